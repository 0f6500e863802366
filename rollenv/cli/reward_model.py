"""``rollenv reward-model``"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from pydantic import ValidationError

from rollenv.cli.common import advice_on_epochs, console, error_console, print_table
from rollenv.cli.train import Display, need_packages
from rollenv.core.arguments import value_of
from rollenv.core.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from rollenv.trainers.reward_model import RewardModelConfig


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
    need_packages("a reward model")
    if best_of:
        _show_best_of(data, best_of, beside)
        return
    if beside:
        raise UsageError("--beside shows a run beside the best of n: name the episodes with --best-of")
    config = config_of(data)
    from rollenv.trainers.given_episodes import Unusable, check_given
    from rollenv.trainers.reward_model import RewardModelTrainer
    from rollenv.trainers.run_dir import RunDir, file_fingerprints, next_free, read_rows

    path = Path(config.run_dir) if config.run_dir else next_free(Path("runs"), "reward-model")
    run = RunDir(path)
    if resume != (run.config_file.is_file() if resume else path.exists()):
        raise UsageError(
            f"there is no run in {path} to resume" if resume else f"{path} exists: continue it with --resume"
        )
    check_given(config.data, Unusable(config.unusable))
    settings = json.dumps(config.model_dump(mode="json") | {"data_hashes": file_fingerprints(config.data)}, indent=2)
    if resume and run.config_file.read_text() != settings:
        raise UsageError(f"cannot resume {path}: its settings or data are others than in its config.json")
    console.print(f"writing to {path}", soft_wrap=True, markup=False)
    with Display() as display:
        trainer = RewardModelTrainer(config, run, display.watch)
        path.mkdir(parents=True, exist_ok=True)
        run.config_file.write_text(settings)
        last = trainer.fit()
    held_out = "eval/loss" in last
    title = "on held-out tasks" if held_out else "on the pairs of the last update: no task is held out"
    names = {
        name: f"eval/{name}" if held_out else name for name in ("loss", "accuracy", "accuracy_of_lengths", "pairs")
    }
    numbers = {name: f"{last[key]:.3f}".removesuffix(".000") for name, key in names.items() if key in last}
    print_table([title, ""], ([name.replace("_", " "), number] for name, number in numbers.items()))
    if (accuracy := last.get("eval/accuracy", 1.0)) <= 0.5:
        console.print(
            f"[bold]no better than chance on held-out tasks ({accuracy:.2f})[/]: raise epochs or lr, or give more pairs"
        )
    if advice := advice_on_epochs(read_rows(run.metrics_file), "epochs"):
        console.print(advice, soft_wrap=True, markup=False)
    console.print(f"model: {path}", soft_wrap=True, markup=False)
    console.print(f'use it with: rewards.domains=[{{kind="learned", path="{path}"}}] rewards.own=0', markup=False)


def config_of(words: Sequence[str]) -> RewardModelConfig:
    """Read paths and settings.

    Raises:
        UsageError: a key is unknown, or a value refused.
    """
    from rollenv.trainers.reward_model import RewardModelConfig

    given: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if Path(word).exists() or not equals:
            given.setdefault("data", []).append(word)
        elif (key := key.removeprefix("batches.").removeprefix("optimizer.")) not in RewardModelConfig.model_fields:
            known = f"there are {', '.join(RewardModelConfig.model_fields)}"
            hint = did_you_mean(key, RewardModelConfig.model_fields, known, form=repr)
            raise UsageError(f"there is no key {key!r}; {hint}".removesuffix("; "))
        else:
            given[key] = value_of(text)
    try:
        return RewardModelConfig.model_validate(given)
    except ValidationError as error:
        wrong = error.errors()[0]
        raise UsageError(f"{'.'.join(map(str, wrong['loc'])) or 'settings'}: {wrong['msg']}") from error


def _show_best_of(models: Sequence[str], pool: Path, beside: Path | None) -> None:
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
