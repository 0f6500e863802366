"""``rollenv bench``"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rollenv.cli.common import (
    AgentOptions,
    console,
    error_console,
    has_saved_prompt,
    key_values,
    knows_tools,
    make_agent,
    print_result,
    print_table,
    print_tables,
    progress_console,
)
from rollenv.cli.eval import model_of, print_answers, print_failures
from rollenv.cli.playing import (
    FINGERPRINTS,
    SETTINGS_FILE,
    EvalFolder,
    PlayOptions,
    TaskOptions,
    playing,
    totals,
)
from rollenv.core.errors import MissingExtra, UsageError, writes
from rollenv.core.version import __version__

if TYPE_CHECKING:
    from rollenv.bench import Benchmark, Suite


def command(
    names: list[str] = typer.Argument(
        None,
        metavar="SUITE [KEY=VALUE]... | compare FOLDER FOLDER",
        help="A suite (see --list), a panel or an environment id with arguments; or two runs to compare.",
    ),
    calls: str = typer.Option(
        "auto",
        help="Format of tool calls: native (the endpoint's or the chat template's own), hermes, json or python. "
        "auto means native for chat agents and pretrained models that know tools, the environment's own for others.",
    ),
    n: int | None = typer.Option(
        None, "-n", min=1, help="Maximum number of tasks per category. Default: all of a data set, else 100."
    ),
    show: bool = typer.Option(False, "--list", help="List the suites, including those that cannot run here."),
    *,
    tasks: TaskOptions,
    play: PlayOptions,
    options: AgentOptions,
) -> None:
    """Play a suite of tasks and report each category: success, pass^k, calls, side effects, tokens, cost and time.

    `rollenv bench compare A B` compares two such runs (folders of --out) task by task.

    The exit code is 1 if the agent or its endpoint failed in an episode, or if most episodes failed for any reason.
    """
    from rollenv.bench import run, suite
    from rollenv.bench.suites import all_tasks, suite_of
    from rollenv.rollout.records.storage import write

    if show:
        _list()
        return
    if not names:
        raise UsageError(
            "name a suite, as in `rollenv bench tool-use --agent oracle`; `rollenv bench --list` shows all"
        )
    first, *rest = names
    if first == "compare":
        _compare(rest, play)
        return
    agent, seed = tasks.agent, tasks.seed or 0
    form = _form(calls, agent)
    panel, k, options = tasks.panel(first, options, {**dict.fromkeys(rest, 1), "-n": n, "--calls": form})
    chosen = suite_of(panel) if panel else suite(first, key_values(rest), form)
    number = len(all_tasks(chosen.parts, n, seed)) if chosen.parts else 0
    about = {"agent": agent, "calls": form, "k": k, "seed": seed, "tasks_of_each": n, "n": number}
    if panel:
        about |= {"panel": panel.identity, "rollenv": __version__}
    folder = _folder(play, chosen, options, about)
    player = make_agent(agent, options, native=form == "native", answer_tokens=512)
    with playing(chosen.name, k * number, player, options, play, folder, panel) as opened:
        result = run(chosen, player, n=n, k=k, seed=seed, note=progress_console.print, **opened)
    numbers = {**(folder.settings if folder else {"agent": agent, "k": k, "seed": seed}), **result.to_dict()}
    numbers = {name: value for name, value in numbers.items() if name not in FINGERPRINTS}
    numbers |= {name: value for name, value in totals(player).items() if name in ("requests", "retries", "problems")}
    if play.out is not None:
        with writes(play.out), contextlib.suppress(MissingExtra):  # episodes.jsonl has them too
            write(play.out / "episodes.parquet", result.trajectories)
    numbers = play.save(numbers, panel)
    if not print_result(numbers):
        _print(result, agent, numbers)
        play.tell()
    if form == "native" and result.failures.get("agent"):
        error_console.print("if the endpoint knows no tools, write the calls as text: --calls hermes")
    if result.failures.get("agent") or result.total.failed > result.total.n * k / 2:
        raise typer.Exit(1)


def _form(calls: str, agent: str) -> str:
    from rollenv.core.tools.calls import CALL_FORMS

    if calls not in ("auto", *CALL_FORMS):
        raise UsageError(f"--calls is auto, {', '.join(CALL_FORMS)}, not {calls!r}")
    model = model_of(agent)
    knows = agent.startswith("chat:") or (bool(model) and not has_saved_prompt(model) and knows_tools(model))
    if calls == "native" and not knows:
        raise UsageError(
            f"--calls native is for endpoints and models with a chat template of their own; {agent} needs another form"
        )
    if calls == "auto":
        return "native" if knows else ""
    return calls


def _folder(play: PlayOptions, chosen: Suite, options: AgentOptions, about: dict[str, Any]) -> EvalFolder | None:
    """Return the folder for episodes, if one was given."""
    from rollenv.rollout.fingerprints import row_fingerprints

    if play.out is None:
        return None
    settings: dict[str, Any] = {"suite": chosen.name, "env": f"bench {chosen.name}", **about}
    settings |= {"parts": [{"env_id": part.env_id, "kwargs": dict(part.kwargs)} for part in chosen.parts]}
    settings |= {"temperature": options.temperature, "max_tokens": options.max_tokens, "system": options.system}
    rows = [one for part in chosen.parts for one in row_fingerprints(part.env_id, part.kwargs, about["tasks_of_each"])]
    settings |= {"rows": rows} if rows else {}
    return play.begin(json.loads(json.dumps(settings)))


def _list() -> None:
    from rollenv.bench import suites

    every = suites()
    plain = [
        {"name": s.name, "about": s.about, "parts": [p.env_id for p in s.parts], "missing": s.missing} for s in every
    ]
    if print_result(plain):
        return
    there = [f"{len(s.parts)} (and {len(s.missing)} not here)" if s.missing else str(len(s.parts)) for s in every]
    rows = ((each.name, number, each.about) for each, number in zip(every, there, strict=True))
    print_table(["suite", "categories", "about"], rows)
    needs = dict.fromkeys(need for each in every for need in each.missing.values())
    for need in needs:
        console.print(f"not here: {need}", markup=False, style="dim", soft_wrap=True)


def _print(result: Benchmark, agent: str, numbers: Mapping[str, Any]) -> None:
    from rollenv.report.summary import category_tables

    console.print(f"{result.suite} played by {agent}", markup=False, style="bold")
    print_tables(category_tables(numbers), most=1000)
    if len(result.rows) > 1:
        console.print(f"mean of the categories: {100 * result.macro:.1f} %")
    if agent.startswith("noisy:") and (unharmed := [row.category for row in result.rows if row.success[0] == 1.0]):
        text = "random calls do no harm there, and its success says nothing of calls that were not needed"
        console.print(f"{', '.join(unharmed)}: solved with {agent}; {text}", markup=False, soft_wrap=True)
    print_answers(result.trajectories, agent)
    if problems := numbers.get("problems"):
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(problems.items()))
        console.print(f"the endpoint's problems, all tried again: {counts}", markup=False)
    if result.total.failed:
        print_failures(result.trajectories, result.failures)


def _compare(folders: list[str], play: PlayOptions) -> None:
    from rollenv.bench import compare
    from rollenv.cli.view import write_report
    from rollenv.panels.verify import check_same_panel
    from rollenv.rollout.records.storage import read

    if len(folders) != 2:
        raise UsageError(f"compare takes two folders of runs, got {len(folders)}: rollenv bench compare A B")
    paths = [Path(folder) for folder in folders]
    for path in paths:
        if not (path / SETTINGS_FILE).is_file() or not (path / "episodes.jsonl").is_file():
            raise UsageError(f"{path} holds no run; make one with `rollenv bench SUITE --out {path}`")
    check_same_panel(*paths)
    result = compare(*(read(path / "episodes.jsonl") for path in paths))
    if (out := play.out) is not None:
        with writes(out):
            out.mkdir(parents=True, exist_ok=True)
            (out / "comparison.json").write_text(json.dumps(result.to_dict(), indent=2) + "\n", encoding="utf-8")
            write_report(*paths, out=out / "compare.html")
    if print_result(result.to_dict()):
        return
    console.print(f"{folders[1]} against {folders[0]}", markup=False, style="bold")
    rows = []
    for row in [*result.rows, *([result.total] if len(result.rows) > 1 else [])]:
        change = f"{100 * row.difference:+.1f} ({100 * row.low:+.1f} to {100 * row.high:+.1f})"
        cells = [row.category, str(row.tasks), f"{row.first:.1%}", f"{row.second:.1%}", change]
        cells += ["clear" if row.clear else "not clear", str(row.only_first), str(row.only_second)]
        rows.append(cells)
    head = ["category", "tasks", *folders, "difference (95 %)", "", "only first", "only second"]
    print_table(head, rows)
    if result.only_first or result.only_second:
        console.print(
            f"left out, since only one of the two has graded episodes of them: {result.only_first} tasks of the first, "
            f"{result.only_second} of the second"
        )
    if out is not None:
        console.print(f"page and numbers: {out}", markup=False, soft_wrap=True)
