"""``rollenv reward-model``"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import typer

from rollenv.cli import train
from rollenv.cli.common import console, error_console, is_setting, print_result, print_table
from rollenv.core.errors import UsageError


def command(
    data: list[str] = typer.Argument(
        metavar="DATA... [KEY=VALUE]...",
        help="Stored episodes, whose groups are compared, or rows with chosen and rejected; then settings.",
    ),
    resume: bool = typer.Option(False, "--resume", help="Continue the run in run_dir."),
    best_of: Path = typer.Option(
        None, "--best-of", metavar="EPISODES", help="Show the best of n stored episodes by the model in DATA."
    ),
    beside: Path = typer.Option(
        None, "--beside", metavar="RUN", help="With --best-of: a training on the model's rewards, in the same plot."
    ),
) -> None:
    """Train a reward model on pairs, for rewards.domains of `rollenv train`."""
    train.need_packages("a reward model")
    if best_of:
        print_result({"best_of": _show_best_of(data, best_of, beside)})
        return
    if beside:
        raise UsageError("--beside shows a run beside the best of n: name the episodes with --best-of")
    if not resume and all(map(is_setting, data)):
        raise UsageError("name the data to compare: stored episodes, or rows with chosen and rejected")
    path = train.start("reward-model", settings_of(data), train.RunOptions(resume=resume))
    assert path
    from rollenv.trainers.run_dir import RunDir, read_rows

    numbers = read_rows(RunDir(path).metrics_file)[-1]
    accuracy, pairs = numbers.get("eval/accuracy", 1.0), numbers.get("eval/pairs", 0.0)
    if accuracy <= 0.5:
        console.print(
            f"[bold]no better than chance on held-out tasks ({accuracy:.2f} of {pairs:.0f} pairs)[/]: "
            "raise epochs or lr, or give more pairs"
        )
    console.print(f'use it with: rewards.domains=[{{kind="learned", path="{path}"}}] rewards.own=0', markup=False)


#: Sections of the keys that this command takes without one.
_SECTIONS = {
    "batches": ("where", "size", "epochs", "held_out", "unusable"),
    "optimizer": ("lr", "max_grad_norm", "micro_batch_tokens"),
    "algorithm": ("smoothing", "margin", "centre"),
}


def settings_of(words: Sequence[str]) -> list[str]:
    """Return paths and settings as settings of the recipe."""
    sources, settings = [word for word in words if not is_setting(word)], list[str]()
    if sources:
        settings.append(f"batches.data={json.dumps(sources)}")
    sections = {key: section for section, keys in _SECTIONS.items() for key in keys}
    for word in filter(is_setting, words):
        key, _, value = word.partition("=")
        settings.append(f"{sections[key]}.{word}" if key in sections else word)
        if key == "checkpoint_every":
            settings.append(f"eval.every={value}")
        if key == "iterations":  # instead of epochs
            settings.append("batches.epochs=0")
    return settings


def _show_best_of(models: Sequence[str], pool: Path, beside: Path | None) -> list[dict[str, float]]:
    from rollenv.report.curves import curves_svg
    from rollenv.rollout.records.stored import stored_episodes
    from rollenv.trainers.reward_model import RewardModel

    if len(models) != 1:
        raise UsageError("--best-of takes one reward model, and the episodes to choose from")
    trained = away_of(beside) if beside else []
    model, tasks = RewardModel.load(models[0]), dict[str, list[tuple[float, float]]]()
    played = [*stored_episodes(pool, "complete")]
    for trajectory, proxy in zip(played, model.rewards(played), strict=True):
        tasks.setdefault(repr(trajectory.task), []).append((proxy, trajectory.own_reward))
    sizes = sorted({len(each) for each in tasks.values()})
    if not sizes or sizes[0] < 2:
        raise UsageError(f"{pool} needs at least two episodes of every task: play it with `rollenv eval -k N --out`")
    rows = []
    for n in [2**power for power in range(int(math.log2(sizes[0])) + 1)]:
        chosen = [best_of(each, n) for each in tasks.values()]
        proxy, true = (sum(pair[i] for pair in chosen) / len(chosen) for i in (0, 1))
        away = math.sqrt(math.log(n) - (n - 1) / n)
        rows.append({"n": n, "root_kl": away, "proxy": proxy, "true": true})
    shown = ([str(row["n"]), *(f"{row[key]:.3f}" for key in ("root_kl", "proxy", "true"))] for row in rows)
    print_table(["best of", "root of KL", "by the model", "true reward"], shown)
    out = Path(models[0], "best_of.json")
    out.write_text(json.dumps({"best_of": rows, "run": trained}, indent=2) + "\n")
    curves = {
        f"{name}: {label}": [(row["root_kl"], row[key]) for row in found]
        for name, found in (("best of n", rows), ("RL", trained))
        for key, label in (("true", "true reward"), ("proxy", "by the model"))
        if found
    }
    plot = out.with_suffix(".svg")
    plot.write_text(curves_svg(curves, "root of KL to the start, nats per episode", "reward"), encoding="utf-8")
    error_console.print(f"{len(tasks)} tasks; written to {out} and {plot}", soft_wrap=True, markup=False)
    return rows


def away_of(path: Path) -> list[dict[str, float]]:
    """Return the evaluations of a run that learns from a reward model, with the root of its KL per episode.

    Raises:
        UsageError: it has none, or no KL.
    """
    from rollenv.report import open_run

    run = open_run(path)
    size = run.settings.get("rollout", {})
    episodes = size.get("groups_per_batch", 1) * size.get("group_size", 1)
    found = []
    for row in run.metrics:
        if "eval/trained_reward" in row and ("reference_kl" in row or not row["iteration"]):
            away = max(row.get("reference_kl", 0.0), 0.0) * row.get("response_tokens", 0.0) / episodes
            numbers = {"iteration": row["iteration"], "root_kl": math.sqrt(away)}
            found.append(numbers | {"proxy": row["eval/trained_reward"], "true": row["eval/reward"]})
    if len(found) < 2:
        raise UsageError(
            f"{path} has no evaluations with the rewards of a model and a KL: train with rewards.domains of kind "
            "learned, and kl.name=loss or reward"
        )
    return found


def best_of(episodes: Sequence[tuple[float, float]], n: int) -> tuple[float, float]:
    """Return the expected proxy and true reward of the best of n episodes by the proxy, over all choices of n.

    The episode at rank r of m (the best is 1) is the best of C(m - r, n - 1) of the C(m, n) choices.
    """
    ranked, m = sorted(episodes, reverse=True), len(episodes)
    weights = [math.comb(m - rank, n - 1) / math.comb(m, n) for rank in range(1, m + 1)]
    proxy, true = (sum(w * pair[i] for w, pair in zip(weights, ranked, strict=True)) for i in (0, 1))
    return proxy, true
