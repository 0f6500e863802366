"""GEM's public surface against rollenv's under GEM's name, as the table of docs/gem/index.md.

``python benchmarks/gem_surface.py`` prints it; ``--write`` puts it into docs/gem/index.md, ``--check`` fails if it is
out of date. GEM is read in its own environment, ``.bench/gem`` (``pip install gem-llm==0.1.0 requests``).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
GEM = ROOT / ".bench" / "gem" / "bin" / "python"
DOCS = ROOT / "docs" / "gem" / "index.md"
BEGIN, END = "<!-- surface: begin -->", "<!-- surface: end -->"

#: Intended differences with reasons: modules, names, methods.
INTENDED = {
    "gem.envs.mcpmark": "no MCPMark tasks; importing it says so",
    "gem.envs.terminal": "no Docker tasks by this name; importing it says so",
    "gem.tools.mcp_server": "a sample server; importing it says so",
    "gem.utils.constants:BASE_LEETCODE_IMPORTS": "source code of list and tree nodes",
    "gem.tools.search_engine": "servers of models and paid searches; importing it says so",
    "gem.envs.game_env.sokoban.utils": "levels come from `rollenv.envs.game.sokoban.levels`",
    "gem.envs:data_names": "variables of a loop",
    "gem.envs.game_env.sokoban.sokoban:CHANGE_COORDINATES": "a table of directions: `rollenv.envs.game.sokoban.board`",
    "gem.envs.math_env:MathEnv": "the order of arguments is that of GEM's main branch",
    "gem.tools.mcp_tool:is_timeout_error": "a step of GEM's own",
    "gem.vector.async_vector_env:step_reset_env": "a step of GEM's own",
    "gem.vector.vector_env:VectorEnv": "GEM's own vectors call it `actions` too",
    **dict.fromkeys(
        (
            "gem.core:EnvWrapper",
            "gem.tools.tool_env_wrapper:ToolEnvWrapper",
            "gem.wrappers.episode_tracking_wrapper:EpisodeTrackingWrapper",
            "gem.wrappers.observation_wrapper:ObservationWrapper",
        ),
        "a wrapper has it where its environment has",
    ),
    "gem.utils.math_grader": "the steps of GEM's grader; ours has `grade` and the reward functions",
}

# -- what a package has, in either interpreter -------------------------------------------------------------------------


def signature(thing: Any) -> list[list[str]] | None:
    """Name, kind and default of each argument."""
    try:
        found = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return None
    return [[p.name, p.kind.name, "" if p.default is p.empty else repr(p.default)] for p in found if p.name != "self"]


def described(thing: Any) -> dict[str, Any]:
    if not inspect.isclass(thing):
        return {"kind": "function" if callable(thing) else "value", "arguments": signature(thing)}
    methods = {
        name: signature(getattr(thing, name))
        for name in dir(thing)
        if not name.startswith("_") and callable(getattr(thing, name, None))
    }
    return {"kind": "class", "arguments": signature(thing), "methods": methods}


def own_names(module: Any) -> list[str]:
    """Public names that a module defines or says it exports."""
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and not inspect.ismodule(value)
        and getattr(value, "__module__", module.__name__) == module.__name__
        and name not in ("logger", "app")
    ]
    return sorted(names)


def gem_modules() -> list[str]:
    root = Path(importlib.import_module("gem").__path__[0])  # some of its folders are namespaces, without __init__
    files = (path.relative_to(root.parent).with_suffix("") for path in root.rglob("*.py"))
    return sorted({".".join(part for part in path.parts if part != "__init__") for path in files})


def dump(asked: dict[str, list[str]] | None) -> dict[str, Any]:
    """Modules with their names; where ``asked`` is given, those names of those modules."""
    modules: dict[str, Any] = {}
    for name in asked or gem_modules():
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            modules[name] = str(error).splitlines()[0]
            continue
        names = asked[name] if asked else own_names(module)
        modules[name] = {each: described(getattr(module, each)) for each in names if hasattr(module, each)}
    factory = importlib.import_module("gem.wrappers.wrapper_factory").WRAPPER_FACTORY
    registry = importlib.import_module("gem.envs.registration").ENV_REGISTRY
    return {"modules": modules, "factory": sorted(factory), "ids": sorted(registry), "info": info_keys()}


def info_keys() -> dict[str, list[str]]:
    """The keys of ``info`` after a reset and a step: of a game, with a tool, with tracking, of a question."""
    gem = importlib.import_module("gem")
    tools = importlib.import_module("gem.tools.tool_env_wrapper")
    tool = importlib.import_module("gem.tools.python_code_tool").PythonCodeTool()
    tracking = importlib.import_module("gem.wrappers.episode_tracking_wrapper").EpisodeTrackingWrapper

    def keys(env: Any, action: str) -> list[str]:
        return sorted(env.reset(seed=1)[1].keys() | env.step(action)[4].keys())

    def game() -> Any:
        return gem.make("game:GuessTheNumber-v0-hard")

    return {
        "a game": keys(game(), "\\boxed{1}"),
        "a tool": keys(tools.ToolEnvWrapper(game(), [tool]), "<python>print(1)</python>"),
        "tracking": keys(tracking(game()), "\\boxed{1}"),
    }


# -- the comparison ----------------------------------------------------------------------------------------------------


def accepts(ours: list[list[str]] | None, theirs: list[list[str]] | None) -> str:
    """``same``, ``lenient`` where every call of theirs works and more does, or what is not accepted."""
    if theirs is None or ours is None or ours == theirs:
        return "same"
    anything = any(kind == "VAR_KEYWORD" for _, kind, _ in ours)
    rest = any(kind == "VAR_POSITIONAL" for _, kind, _ in ours)
    places = [name for name, kind, _ in ours if kind == "POSITIONAL_OR_KEYWORD"]
    for at, (name, kind, _) in enumerate(theirs):
        if kind.startswith("VAR_"):
            if kind == "VAR_KEYWORD" and not anything:
                return f"`**{name}`"
        elif name not in [n for n, _, _ in ours] and not anything:
            return f"`{name}`"
        elif kind == "POSITIONAL_OR_KEYWORD" and not rest and places[at : at + 1] != [name]:
            return f"`{name}` at place {at + 1}"
    return "lenient"


def compared(ours: Any, theirs: Any) -> tuple[str, str]:
    """The verdict on a name, and the details of it."""
    verdict = accepts(ours["arguments"], theirs["arguments"])
    problems = [] if verdict in ("same", "lenient") else [verdict]
    for method, arguments in theirs.get("methods", {}).items():
        if method not in ours.get("methods", {}):
            problems.append(f"no `{method}()`")
        elif (each := accepts(ours["methods"][method], arguments)) not in ("same", "lenient"):
            problems.append(f"`{method}()`: no {each}")
        elif each == "lenient":
            verdict = "lenient" if verdict == "same" else verdict
    return ("different", "; ".join(problems)) if problems else (verdict, "")


def reason(module: str, name: str) -> str:
    for key in (f"{module}:{name}", module, *(m for m in INTENDED if module.startswith(f"{m}."))):
        if key in INTENDED:
            return INTENDED[key]
    return ""


def rows(theirs: dict[str, Any], ours: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """Module, name, verdict, note."""
    found = []
    for module, names in theirs["modules"].items():
        there = ours["modules"].get(module)
        if isinstance(names, str):  # it does not import in GEM's own environment
            found.append((module, "", "different" if isinstance(there, str) else "lenient", reason(module, "")))
        elif not names:
            found.append((module, "", "same" if isinstance(there, dict) else "different", reason(module, "")))
        elif isinstance(there, str) or there is None:
            found.append((module, "all names", "different", reason(module, "")))
        else:
            missing = sorted(names.keys() - there.keys())
            for name in sorted(names.keys() & there.keys()):
                verdict, note = compared(there[name], names[name])
                found.append((module, name, verdict, "; ".join(filter(None, (note, note and reason(module, name))))))
            if missing:
                listed = ", ".join(f"`{name}`" for name in missing)
                found.append((module, f"not there: {listed}", "different", reason(module, missing[0])))
    return found


def table(theirs: dict[str, Any], ours: dict[str, Any]) -> str:
    lines = ["| module | name | against GEM 0.1.0 | note |", "| --- | --- | --- | --- |"]
    lines += [
        f"| `{m}` | {n and (n if ' ' in n else f'`{n}`')} | {v} | {note} |" for m, n, v, note in rows(theirs, ours)
    ]
    lines += ["", "| keys of `info` with | GEM's | more here | not here |", "| --- | --- | --- | --- |"]
    for kind, keys in theirs["info"].items():
        here = ours["info"][kind]
        cells = (keys, sorted({*here} - {*keys}), sorted({*keys} - {*here}))
        lines.append(f"| {kind} | {' | '.join(', '.join(f'`{k}`' for k in cell) for cell in cells)} |")
    for what in ("factory", "ids"):
        missing = sorted({*theirs[what]} - {*ours[what]})
        name = "strings of `WRAPPER_FACTORY`" if what == "factory" else "registered ids"
        absent = f"missing: {', '.join(missing)}" if missing else "all there"
        lines += ["", f"{name}: {len(theirs[what])} in GEM, {absent}."]
    return "\n".join(lines)


def both() -> tuple[dict[str, Any], dict[str, Any]]:
    theirs = asked(GEM, {})
    names = {name: sorted(found) if isinstance(found, dict) else [] for name, found in theirs["modules"].items()}
    return theirs, asked(Path(sys.executable), names)


def asked(python: Path, names: dict[str, list[str]]) -> dict[str, Any]:
    """The dump of one interpreter; names are given to ours."""
    command = [str(python), __file__, "--dump", *(["--shim"] if names else [])]
    env = {**os.environ, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, input=json.dumps(names), capture_output=True, text=True, env=env, timeout=300)
    if done.returncode:
        raise SystemExit(f"{python} failed:\n{done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    for flag in ("--dump", "--shim", "--write", "--check"):
        parser.add_argument(flag, action="store_true")
    args = parser.parse_args()
    if args.dump:
        names = json.loads(sys.stdin.read())
        if args.shim:
            importlib.import_module("rollenv.plugins.gem").install()
        with contextlib.redirect_stdout(io.StringIO()):
            found = dump(names or None)
        print(json.dumps(found))
        return
    if not GEM.exists():
        raise SystemExit(f"{GEM} is not there: make it with `python -m venv .bench/gem` and install gem-llm==0.1.0")
    text = table(*both())
    page = DOCS.read_text(encoding="utf-8") if DOCS.exists() else f"{BEGIN}\n{END}\n"
    before, _, rest = page.partition(BEGIN)
    new = f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}"
    if args.write:
        DOCS.write_text(new, encoding="utf-8")
    elif args.check:
        raise SystemExit(
            "docs/gem/index.md is out of date: run benchmarks/gem_surface.py --write" if new != page else 0
        )
    else:
        print(text)


if __name__ == "__main__":
    main()
