"""``rollenv bench``"""

from __future__ import annotations

import contextlib
import json as json_module
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table

from rollenv.cli import completion
from rollenv.cli.common import (
    AGENT_HELP,
    NO_OPTIONS,
    AgentOptions,
    console,
    error_console,
    key_values,
    make_agent,
    percent,
    progress_console,
    with_agent_options,
)
from rollenv.cli.eval import print_failures
from rollenv.cli.playing import ACCEPT_HELP, FINGERPRINTS, SETTINGS_FILE, EvalFolder, playing, totals, writes
from rollenv.core.errors import UsageError
from rollenv.rollout.workers.factory import WORKERS_HELP

if TYPE_CHECKING:
    from rollenv.bench import Benchmark, Suite
    from rollenv.bench.run import Row


@with_agent_options
def command(
    names: list[str] = typer.Argument(
        None,
        metavar="SUITE [KEY=VALUE]... | compare FOLDER FOLDER",
        help="A suite (see --list) or an environment id, with constructor arguments; or two runs to compare.",
    ),
    options: AgentOptions = NO_OPTIONS,
    agent: str = typer.Option("random", "--agent", "-a", help=AGENT_HELP, autocompletion=completion.agents),
    calls: str = typer.Option(
        "auto",
        help="Format of tool calls: native (the endpoint's own), hermes, json or python. "
        "auto means native for chat agents and the environment's own for others.",
    ),
    n: int | None = typer.Option(
        None, "-n", min=1, help="Maximum number of tasks per category. Default: all of a data set, else 100."
    ),
    k: int = typer.Option(1, "-k", min=1, help="Episodes per task, for pass^k."),
    seed: int = typer.Option(0, "--seed", "-s", min=0, help="Seed of the first task of each category."),
    workers: str = typer.Option("inline", "--workers", "-w", help=WORKERS_HELP),
    out: Path | None = typer.Option(None, "--out", "-o", help="Folder for the episodes, the report and the numbers."),
    resume: bool = typer.Option(False, "--resume", help="Continue the run in --out."),
    show: bool = typer.Option(False, "--list", help="List the suites, including those that cannot run here."),
    accept: bool = typer.Option(False, "--accept-changes", help=ACCEPT_HELP),
    json: bool = typer.Option(False, "--json", help="Print JSON instead of tables."),
) -> None:
    """Play a suite of tasks and report each category: success, pass^k, calls, side effects, tokens, cost and time.

    `rollenv bench compare A B` compares two such runs (folders of --out) task by task.

    The exit code is 1 if the agent or its endpoint failed in an episode, or if most episodes failed for any reason.
    """
    from rollenv.bench import run, suite
    from rollenv.bench.suites import all_tasks

    if show:
        _list(json)
        return
    if not names:
        raise UsageError(
            "name a suite, as in `rollenv bench tool-use --agent oracle`; `rollenv bench --list` shows all"
        )
    first, *rest = names
    if first == "compare":
        _compare(rest, out, json)
        return
    form = _form(calls, agent)
    chosen = suite(first, key_values(rest), form)
    tasks = len(all_tasks(chosen.parts, n, seed)) if chosen.parts else 0
    about = {"agent": agent, "calls": form, "k": k, "seed": seed, "tasks_of_each": n, "n": tasks}
    folder = _folder(out, chosen, options, about, resume, accept)
    player = make_agent(agent, options, native=form == "native", answer_tokens=512)
    with playing(chosen.name, k * tasks, player, options, workers, out, folder) as opened:
        result = run(chosen, player, n=n, k=k, seed=seed, note=progress_console.print, **opened)
    numbers = {**(folder.settings if folder else {"agent": agent, "k": k, "seed": seed}), **result.to_dict()}
    numbers = {name: value for name, value in numbers.items() if name not in FINGERPRINTS}
    numbers |= {name: value for name, value in totals(player).items() if name in ("requests", "retries", "problems")}
    if out is not None:
        with writes(out):
            _save(out, numbers, result)
    if json:
        console.print_json(json_module.dumps(numbers))
    else:
        _print(result, agent, numbers, out)
    if form == "native" and result.failures.get("agent"):
        error_console.print("if the endpoint knows no tools, write the calls as text: --calls hermes")
    if result.failures.get("agent") or result.total.failed > result.total.n * k / 2:
        raise typer.Exit(1)


def _form(calls: str, agent: str) -> str:
    from rollenv.core.tools.calls import CALL_FORMS

    if calls not in ("auto", *CALL_FORMS):
        raise UsageError(f"--calls is auto, {', '.join(CALL_FORMS)}, not {calls!r}")
    chat = agent.startswith("chat:")
    if calls == "native" and not chat:
        raise UsageError(f"--calls native is for chat agents, whose endpoint knows tools; {agent} needs another form")
    if calls == "auto":
        return "native" if chat else ""
    return calls


def _folder(
    out: Path | None, chosen: Suite, options: AgentOptions, about: dict[str, Any], resume: bool, accept: bool
) -> EvalFolder | None:
    """Return the folder for episodes, if one was given."""
    from rollenv.rollout.fingerprints import row_fingerprints

    if out is None:
        if resume:
            raise UsageError("--resume needs --out: the folder of the run to continue")
        return None
    settings: dict[str, Any] = {"suite": chosen.name, "env": f"bench {chosen.name}", **about}
    settings |= {"parts": [{"env_id": part.env_id, "kwargs": dict(part.kwargs)} for part in chosen.parts]}
    settings |= {"temperature": options.temperature, "max_tokens": options.max_tokens, "system": options.system}
    rows = [one for part in chosen.parts for one in row_fingerprints(part.env_id, part.kwargs, about["tasks_of_each"])]
    settings |= {"rows": rows} if rows else {}
    return EvalFolder.begin(out, json_module.loads(json_module.dumps(settings)), resume, accept)


def _save(out: Path, numbers: Mapping[str, Any], result: Benchmark) -> None:
    from rollenv.core.errors import MissingExtra
    from rollenv.report import write_report
    from rollenv.rollout.records.storage import write

    (out / "result.json").write_text(json_module.dumps(numbers, indent=2) + "\n", encoding="utf-8")
    with contextlib.suppress(MissingExtra):  # episodes.jsonl has them too
        write(out / "episodes.parquet", result.trajectories)
    write_report([out], out / "report.html")


def _list(json: bool) -> None:
    from rollenv.bench import suites

    every = suites()
    if json:
        plain = [
            {"name": s.name, "about": s.about, "parts": [p.env_id for p in s.parts], "missing": s.missing}
            for s in every
        ]
        console.print_json(json_module.dumps(plain))
        return
    table = Table("suite", "categories", "about", box=None, padding=(0, 1, 0, 0))
    for each in every:
        there = str(len(each.parts)) + (f" (and {len(each.missing)} not here)" if each.missing else "")
        table.add_row(each.name, there, each.about)
    console.print(table)
    needs = dict.fromkeys(need for each in every for need in each.missing.values())
    for need in needs:
        console.print(f"not here: {need}", markup=False, style="dim", soft_wrap=True)


def _print(result: Benchmark, agent: str, numbers: Mapping[str, Any], out: Path | None) -> None:
    console.print(f"{result.suite} played by {agent}", markup=False, style="bold")
    rows = [*result.rows, result.total] if len(result.rows) > 1 else result.rows
    k, priced = result.total.k, any(row.cost for row in rows)
    spoken = any(row.completion_tokens for row in rows)
    head = ["category", "tasks", "success (95 %)", "floor", "failed", "turns", "calls", "invalid", "side effects"]
    head += [f"pass^{j}" for j in range(2, k + 1)]
    head += ["tokens in", "tokens out"] * spoken + ["cost"] * priced + ["s/turn"]
    table = Table(*head, box=None, padding=(0, 1, 0, 0))
    for row in rows:
        table.add_row(*_cells(row, spoken, priced), style="bold" if row is result.total else "")
    console.print(table)
    if len(result.rows) > 1:
        console.print(f"mean of the {len(result.rows)} categories: {100 * result.macro:.1f} %")
    if agent.startswith("noisy:") and (unharmed := [row.category for row in result.rows if row.success[0] == 1.0]):
        text = "random calls do no harm there, and its success says nothing of calls that were not needed"
        console.print(f"{', '.join(unharmed)}: solved with {agent}; {text}", markup=False, soft_wrap=True)
    if problems := numbers.get("problems"):
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(problems.items()))
        console.print(f"the endpoint's problems, all tried again: {counts}", markup=False)
    for category, need in result.missing.items():
        console.print(f"not played: {category}; {need}", markup=False, style="dim", soft_wrap=True)
    if result.total.failed:
        print_failures(result.trajectories, result.failures)
    if out is not None:
        console.print(f"episodes, page and numbers: {out}", markup=False, soft_wrap=True)


def _cells(row: Row, spoken: bool, priced: bool) -> list[str]:
    """Return a table row; metrics that a category does not report are empty."""
    metrics = row.metrics
    cells = [
        row.category,
        str(row.n) if row.k == 1 else f"{row.n} × {row.k}",
        percent(*row.success),
        _percent(row.floor),
        str(row.failed),
        f"{row.turns:.1f}",
        *(f"{metrics[name]:.2f}" if name in metrics else "" for name in ("calls", "invalid_calls")),
        _percent(row.side_effects),
        *(_percent(row.pass_all[j][0]) for j in range(2, row.k + 1)),
    ]
    if spoken:
        cells += [f"{row.prompt_tokens:.0f}", f"{row.completion_tokens:.0f}"]
    if priced:
        cells.append(f"{row.cost:.4f}")
    return [*cells, f"{row.latency:.3f}"]


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


def _compare(folders: list[str], out: Path | None, json: bool) -> None:
    from rollenv.bench import compare
    from rollenv.cli.view import write_report
    from rollenv.rollout.records.storage import read

    if len(folders) != 2:
        raise UsageError(f"compare takes two folders of runs, got {len(folders)}: rollenv bench compare A B")
    paths = [Path(folder) for folder in folders]
    for path in paths:
        if not (path / SETTINGS_FILE).is_file() or not (path / "episodes.jsonl").is_file():
            raise UsageError(f"{path} holds no run; make one with `rollenv bench SUITE --out {path}`")
    result = compare(*(read(path / "episodes.jsonl") for path in paths))
    if out is not None:
        with writes(out):
            out.mkdir(parents=True, exist_ok=True)
            (out / "comparison.json").write_text(json_module.dumps(result.to_dict(), indent=2) + "\n", encoding="utf-8")
            write_report(*paths, out=out / "compare.html")
    if json:
        console.print_json(json_module.dumps(result.to_dict()))
        return
    console.print(f"{folders[1]} against {folders[0]}", markup=False, style="bold")
    table = Table(
        "category", "tasks", folders[0], folders[1], "difference (95 %)", "", "only first", "only second", box=None
    )
    for row in [*result.rows, *([result.total] if len(result.rows) > 1 else [])]:
        change = f"{100 * row.difference:+.1f} ({100 * row.low:+.1f} to {100 * row.high:+.1f})"
        cells = [row.category, str(row.tasks), _percent(row.first), _percent(row.second), change]
        cells += ["clear" if row.clear else "not clear", str(row.only_first), str(row.only_second)]
        table.add_row(*cells, style="bold" if row is result.total else "")
    console.print(table)
    if result.only_first or result.only_second:
        console.print(
            f"left out, since only one of the two has them: {result.only_first} tasks of the first, "
            f"{result.only_second} of the second"
        )
    if out is not None:
        console.print(f"page and numbers: {out}", markup=False, soft_wrap=True)
