"""``rollenv regrade``"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import typer

from rollenv.cli.common import console, print_result, print_tables, progress
from rollenv.cli.export import WHERE_HELP
from rollenv.core.errors import UsageError, writes
from rollenv.core.plugins import function_at
from rollenv.core.trust import TRUST_HELP
from rollenv.rollout.workers.factory import WORKERS_HELP, make_workers

if TYPE_CHECKING:
    from rollenv.rollout.regrade import Regraded


def command(
    run: Path = typer.Argument(help="Folder of a run, evaluation or benchmark; file of episodes; record of a gateway."),
    where: str = typer.Option("complete", "--where", help=WHERE_HELP),
    grader: str = typer.Option(
        "", "--grader", metavar="MODULE:FUNCTION", help="Judge by this function instead (as rewards.function)."
    ),
    out: Path | None = typer.Option(None, "--out", "-o", help="New folder. Default: regraded-N in the run's."),
    workers: str = typer.Option("2", help=WORKERS_HELP),
    step_deadline: float = typer.Option(120.0, min=0.001, help="Seconds after which an environment hangs."),
    trust: bool = typer.Option(False, "--trust", help=TRUST_HELP),
) -> None:
    """Compute the rewards of stored episodes again, by today's environments or a function, beside the old ones."""
    from rollenv.report import write_report
    from rollenv.rollout.records.pictures import PictureFiles
    from rollenv.rollout.records.plain import to_plain
    from rollenv.rollout.records.stored import stored
    from rollenv.rollout.regrade import regrade
    from rollenv.trainers.rewards import FunctionReward

    reward = FunctionReward(function_at(grader, "a grader"), trust=trust) if grader else None
    episodes = stored(run, where)
    first = next(episodes, None)
    if first is None:
        raise UsageError(f"no episode of {run} is chosen by {where!r}")
    folder = _new_folder(run, out)
    about = {"source": str(run), "where": where, "grader": grader, "regraded": True}
    about |= {"env": first.trajectory.task.env_id, "agent": first.run.agent if first.run else ""}
    rows: list[dict[str, Any]] = []
    kinds: Counter[str] = Counter()
    files = PictureFiles(folder)
    with (
        writes(folder),
        make_workers("inline" if grader else workers) as pool,
        progress("regraded") as show,
        open(folder / "episodes.jsonl", "w") as file,
    ):
        (folder / "eval.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        for each in regrade(
            itertools.chain([first], episodes), pool, reward=reward, step_deadline=step_deadline, trust=trust
        ):
            rows.append(_row(each))
            kinds[each.kind] += 1
            show(len(rows), _counts(kinds))
            if each.new is not None:
                began = {} if each.old.iteration is None else {"iteration": each.old.iteration}
                file.write(json.dumps(began | to_plain(each.new, files) | {"reward": each.new.reward}) + "\n")
    result = dict(kinds) | _tables(rows)
    told = json.dumps(result | {"episodes": rows}, indent=1)
    with writes(folder):
        (folder / "result.json").write_text(told + "\n", encoding="utf-8")
        write_report([folder], folder / "report.html")
    if not print_result(about | result | {"folder": str(folder)}):
        _print(_counts(kinds), result, folder)


def _new_folder(run: Path, out: Path | None) -> Path:
    base = run / "regraded" if run.is_dir() else run.with_name(f"{run.stem}-regraded")
    free = (base.with_name(f"{base.name}-{number}") for number in range(1, 1 << 30))
    folder = out or next(path for path in free if not path.exists())
    with writes(folder, "name a new folder with --out"):
        folder.mkdir(parents=True)
    return folder


def _row(each: Regraded) -> dict[str, Any]:
    old, new = each.old.trajectory, each.new
    return {
        "env_id": old.task.env_id,
        "seed": old.task.seed,
        "index": old.task.options.get("index"),
        "member": old.member,
        "iteration": each.old.iteration,
        "kind": each.kind,
        "old": None if old.failure == "reward" else old.own_reward,
        "new": None if new is None else new.reward,
        "success": [old.success, None if new is None else new.success],
        "reason": each.reason,
    }


def _tables(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the means over episodes with both rewards, and tables of what changed and of what was not judged."""
    both = [row for row in rows if row["old"] is not None and row["new"] is not None]
    means: dict[str, float] = {}
    if both:
        means = {f"{name}_reward": fmean(row[name] for row in both) for name in ("old", "new")}
    if judged := [row["success"] for row in both if None not in row["success"]]:
        means |= {f"{name}_success": fmean(each[i] for each in judged) for i, name in enumerate(("old", "new"))}
    changes = [["environment", "task", "member", "before", "now", "why"]]
    for row in (row for row in rows if row["kind"] == "changed"):
        task = f"seed {row['seed']}" if row["index"] is None else str(row["index"])
        values = "" if row["old"] is None else f"{row['old']:.4g}", f"{row['new']:.4g}"
        changes.append([row["env_id"], task, str(row["member"]), *values, row["reason"]])
    reasons = Counter(row["reason"] for row in rows if row["new"] is None)
    refused = [["episodes", "why"], *([str(n), reason] for reason, n in reasons.most_common())]
    titled = {"Changed rewards": changes, "No new reward": refused}
    return {**means, "tables": [{"title": title, "rows": rows} for title, rows in titled.items()]}


def _counts(kinds: Counter[str]) -> str:
    return ", ".join(f"{n} {kind}" for kind, n in kinds.items())


def _print(counts: str, result: dict[str, Any], folder: Path) -> None:
    print_tables(result["tables"])
    console.print(counts)
    if "old_reward" in result:
        text = "reward {old_reward:.3f} -> {new_reward:.3f}"
        text += ", success {old_success:.1%} -> {new_success:.1%}" if "old_success" in result else ""
        console.print(text.format(**result))
    console.print(f"both rewards, page and numbers: {folder}", markup=False, soft_wrap=True)
