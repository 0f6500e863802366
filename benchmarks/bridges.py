"""Seconds per command or turn of each bridge beside the framework's own environment, in one run; and its size.

Each bridge is measured in the framework's environment, ``.bench/NAME`` (``make peers``). A bridge is a line of
:data:`BRIDGES` and, where the framework has something of its own to compare with, a function: it yields
:class:`Pair`, whose two calls are timed in turns.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import ROOT, header, save, table


@dataclass(frozen=True)
class Pair:
    """Two calls that do the same, each ``times`` steps long."""

    what: str
    ours: Callable[[], Any]
    own: Callable[[], Any]
    own_name: str
    times: int = 1


@dataclass(frozen=True)
class Bridge:
    """A bridge: what is measured, and what it is made of.

    Attributes:
        name: of its environment in ``.bench`` and of its suite.
        package: as pip knows it.
        adapter: its file in ``rollenv/bridges``.
        pairs: yields what is timed; None where there is nothing to compare with.
    """

    name: str
    package: str
    adapter: str
    pairs: Callable[[ExitStack], Iterator[Pair]] | None = None


def inspect_pairs(stack: ExitStack) -> Iterator[Pair]:
    import asyncio

    from inspect_ai import eval
    from inspect_ai.model import ModelOutput, ModelUsage, get_model
    from inspect_ai.solver import solver
    from inspect_ai.util._sandbox.local import LocalSandboxEnvironment

    from rollenv.bridges.inspect_ai import BoxConfig, BoxEnvironment, rollenv_task

    local = LocalSandboxEnvironment()
    stack.callback(local.directory.cleanup)
    for name, config in (("sandbox", BoxConfig()), ("machine", BoxConfig(machine=True))):
        box = BoxEnvironment.start(config)
        stack.callback(box.box.kill)
        run = {one: (lambda one=one: asyncio.run(one.exec(["echo", "x"], concurrency=False))) for one in (box, local)}
        yield Pair(f"a command in a {name}", run[box], run[local], "its `local` sandbox (no isolation)")

    @solver
    def talk(turns: int) -> Any:
        async def solve(state: Any, generate: Any) -> Any:
            for _ in range(turns):
                state = await generate(state)
            return state

        return solve

    said = ModelOutput.from_content("mockllm/model", r"\boxed{1}")
    said.usage = ModelUsage()
    model, turns = get_model("mockllm/model", custom_outputs=lambda *_: said), 20
    logs = stack.enter_context(tempfile.TemporaryDirectory())
    settings = {"model": model, "log_dir": logs, "display": "none", "log_level": "error"}
    game = rollenv_task("game:GuessTheNumber-v0-hard", episodes=1, max_turns=turns, env={"max_turns": turns})
    yield Pair(
        "a turn of a game, in an evaluation",
        lambda: eval(game, **settings),
        lambda: eval(game, solver=talk(turns), **settings),
        "a solver without an environment",
        turns,
    )


def smolagents_pairs(stack: ExitStack) -> Iterator[Pair]:
    from smolagents import ChatMessage, CodeAgent, LocalPythonExecutor, LogLevel, Model
    from smolagents.models import MessageRole

    from rollenv.bridges.smolagents import BoxExecutor

    class Scripted(Model):
        def generate(self, messages: Any, **_: Any) -> ChatMessage:
            step = sum(message.role == MessageRole.ASSISTANT for message in messages)
            code = f"x = {step} * 2\nprint(x)" if step < steps - 1 else "final_answer(x)"
            return ChatMessage(role=MessageRole.ASSISTANT, content=f"<code>\n{code}\n</code>")

    steps = 10
    executors = [stack.enter_context(BoxExecutor()), LocalPythonExecutor([])]

    def play(executor: Any) -> None:
        agent = CodeAgent(tools=[], model=Scripted(), executor=executor, verbosity_level=LogLevel.OFF)
        agent.run("count", max_steps=steps)

    own = "its `local` executor (an interpreter in Python)"
    yield Pair("a step of an agent", lambda: play(executors[0]), lambda: play(executors[1]), own, steps)
    loop = "total = 0\nfor i in range(20_000):\n    total += i % 7\ntotal"
    yield Pair("a loop of 20,000 turns", lambda: executors[0](loop), lambda: executors[1](loop), own)


def deepagents_pairs(stack: ExitStack) -> Iterator[Pair]:
    from deepagents.backends.local_shell import LocalShellBackend

    from rollenv.bridges.deepagents import BoxBackend
    from rollenv.sandbox import Sandbox

    folder = stack.enter_context(tempfile.TemporaryDirectory())
    local = LocalShellBackend(root_dir=folder, inherit_env=True)
    own = "its `LocalShellBackend` (no isolation)"
    for name, box in (("machine", BoxBackend()), ("sandbox", BoxBackend(Sandbox.create()))):
        stack.enter_context(box)
        yield Pair(f"a command in a {name}", lambda b=box: b.execute("echo x"), lambda: local.execute("echo x"), own)
        files = (lambda b=box: b.write("/tmp/x.txt", "x"), lambda: local.write(f"{folder}/x.txt", "x"))
        yield Pair(f"writing a file in a {name}", *files, own)


BRIDGES = (
    Bridge("inspect", "inspect_ai", "inspect_ai.py", inspect_pairs),
    Bridge("smolagents", "smolagents", "smolagents.py", smolagents_pairs),
    Bridge("deepagents", "deepagents", "deepagents.py", deepagents_pairs),
    Bridge("harbor", "harbor", "harbor.py"),
)


def measure(bridge: Bridge, rounds: int) -> dict[str, Any]:
    """The version, and medians of seconds; runs in the framework's environment."""
    import importlib.metadata

    rows = []
    with ExitStack() as stack:
        for pair in bridge.pairs(stack) if bridge.pairs else ():
            seconds: dict[str, list[float]] = {"ours": [], "own": []}
            for one in [*[("ours", pair.ours), ("own", pair.own)] * (rounds + 1)]:
                started = time.perf_counter()
                one[1]()
                seconds[one[0]].append((time.perf_counter() - started) / pair.times)
            middle = {name: statistics.median(times[1:]) for name, times in seconds.items()}
            rows.append({"what": pair.what, "own_name": pair.own_name, **middle})
    return {"version": importlib.metadata.version(bridge.package), "rows": rows}


def apart(bridge: Bridge, rounds: int) -> dict[str, Any] | None:
    """:func:`measure` in the framework's environment; None where there is none."""
    python = ROOT / ".bench" / bridge.name / "bin" / "python"
    if not python.exists():
        return None
    with tempfile.TemporaryDirectory() as tree:
        Path(tree, "rollenv").symlink_to(ROOT / "rollenv")
        command = [str(python), __file__, "--rounds", str(rounds), "--measure", bridge.name]
        env = os.environ | {"PYTHONPATH": tree, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=600)
    results = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not results:
        raise SystemExit(f"{bridge.name} could not be measured: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(results[-1].removeprefix("RESULT "))
    return found


def lines_of_code(path: Path) -> int:
    """Lines with code: no comments, docstrings and empty lines."""
    text = path.read_text()
    lines = {n for n, line in enumerate(text.splitlines(), 1) if line.strip() and not line.strip().startswith("#")}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--only", nargs="*", choices=[bridge.name for bridge in BRIDGES])
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        (bridge,) = (one for one in BRIDGES if one.name == given.measure)
        print("RESULT " + json.dumps(measure(bridge, given.rounds)))
        sys.exit()
    sizes, times, missing = [], [], []
    for bridge in BRIDGES:
        if given.only and bridge.name not in given.only:
            continue
        found = apart(bridge, given.rounds)
        adapter = ROOT / "rollenv" / "bridges" / bridge.adapter
        suite = f"tests/bridges/{bridge.name}_suite.py"
        version = found["version"] if found else "not installed"
        sizes.append((bridge.package, version, f"rollenv/bridges/{bridge.adapter}", lines_of_code(adapter), suite))
        missing += [] if found else [bridge.name]
        for row in found["rows"] if found else ():
            ours, own = row["ours"], row["own"]
            seconds = (f"{1000 * ours:.2f} ms", f"{1000 * own:.2f} ms", f"{ours / own:.2f}")
            times.append((bridge.package, row["what"], *seconds, row["own_name"]))
    about = f"Medians of {given.rounds} rounds, the two sides in turns; one call before does not count.\n"
    about += f"The cores are shared with other work: load average {os.getloadavg()[0]:.1f} at the end.\n"
    if missing:
        about += f"Not measured, for `make peers` has not been run: {', '.join(missing)}.\n"
    listed = table(("framework", "version", "adapter", "lines of code", "suite"), sizes)
    timed = table(("framework", "what", "rollenv", "its own", "ratio", "its own is"), times)
    save("bridges", f"{header()}\n{about}\n{timed}\n{listed}")


if __name__ == "__main__":
    main()
