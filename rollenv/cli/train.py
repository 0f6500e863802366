"""``rollenv train``"""

from __future__ import annotations

import contextlib
import gc
import json
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from rollenv.cli import completion
from rollenv.cli.common import (
    advice_on_epochs,
    console,
    describe_data,
    error_console,
    is_setting,
    key_values,
    percent,
    print_result,
    print_table,
    progress,
)
from rollenv.cli.options import option
from rollenv.cli.playing import ACCEPT_HELP
from rollenv.core.errors import MissingExtra, UsageError, writes
from rollenv.core.interrupt import Terminated
from rollenv.core.needs import Package
from rollenv.core.trust import TRUST_HELP, named

if TYPE_CHECKING:
    from rollenv.trainers.config import TrainConfig
    from rollenv.trainers.run_dir import RunDir
    from rollenv.trainers.trainer import TrainingResult


@dataclass(frozen=True)
class RunOptions:
    """Options of a run, or of one for each seed and setting."""

    resume: bool = option("--resume", default=False, help="Continue the run in run_dir, or the recipe's latest run.")
    trust: bool = option("--trust", default=False, help="With --resume: " + TRUST_HELP)
    accept: bool = option("--accept-changes", default=False, help=ACCEPT_HELP)
    dry_run: bool = option(
        "--dry-run", default=False, help="Show settings, first prompt and needs, without starting anything."
    )
    launch: Path = option(
        "--launch", metavar="FILE", help="Run on other machines: a file with the keys of the section launch."
    )
    seeds: int = option(default=0, min=0, help="Number of seeds: a run for each, in one folder, with their means.")
    vary: list[str] = option(metavar="KEY=A,B", help="Values of a setting to compare, each by all seeds.")


def command(
    recipe: str = typer.Argument(
        "",
        show_default=False,
        help="Bundled recipe (sokoban, webshop), TOML file, environment id, or file or folder of questions.",
        autocompletion=completion.recipes,
    ),
    overrides: list[str] = typer.Argument(None, metavar="[KEY=VALUE]...", help="Settings, as in algorithm.name=gigpo."),
    harness: str = typer.Option(
        "", "--harness", help="Existing agent program that plays: pi, mini-swe-agent, codex, ... (sets harness.name)."
    ),
    list_algorithms: bool = typer.Option(False, "--list-algorithms", help="List the values of algorithm=NAME."),
    beside: int = typer.Option(0, min=0, help="Runs at a time with --seeds or --vary; 0: one per core, one on a GPU."),
    gateway: str = typer.Option(
        "", "--from", metavar="URL", help="Train on rated sessions of `rollenv gateway`; URL is its administrator's."
    ),
    batch: int = typer.Option(16, min=1, help="Rated sessions for each update, with --from."),
    write_recipe: Path = typer.Option(None, help="Write the settings to this TOML file, without starting anything."),
    *,
    options: RunOptions,
) -> None:
    """Train an agent; everything is written to one run directory."""
    if list_algorithms:
        _list_algorithms()
        return
    overrides = overrides or []
    if is_setting(recipe):  # a run that is continued has its recipe
        recipe, overrides = "", [recipe, *overrides]
    if gateway:
        need_packages()
        from rollenv.cli.train_from import train_from

        if harness or options.seeds or options.vary or options.dry_run or write_recipe:
            raise UsageError(
                "--from plays nothing itself: leave out --harness, --seeds, --vary, --dry-run, --write-recipe"
            )
        train_from(gateway, [*filter(None, [recipe]), *overrides], batch, options.accept)
        return
    if harness:
        overrides = [*overrides, f"harness.name={json.dumps(harness)}"]
    start(recipe, overrides, options, beside, write_recipe)


def _list_algorithms() -> None:
    from rollenv.trainers.config.presets import PRESETS

    every = [{"name": name, "formula": each.formula, "paper": each.paper} for name, each in PRESETS.items()]
    if not print_result({"algorithms": every}):
        print_table(["algorithm=", "what it computes", "paper"], ([*each.values()] for each in every))
        console.print("Further settings override them, as in algorithm=dapo loss.clip_high=0.3.", markup=False)


def need_packages() -> None:
    """Raise MissingExtra unless what trains models is installed."""
    for package in (Package("torch", "train"), Package("transformers", "train")):
        if not package.here:
            raise MissingExtra(f"training needs {package}, which is not installed: {package.hint}")


def start(
    recipe: str, overrides: Sequence[str], options: RunOptions, beside: int = 0, write_recipe: Path | None = None
) -> Path | None:
    """Train to the end and return the run's folder, or do what the options say instead.

    Args:
        beside: runs at a time, of several; 0 for the default.
        write_recipe: write the settings to this file instead.
    """
    started = time.perf_counter()
    need_packages()
    from rollenv.trainers.config import differences, is_env_id, load_config, with_data
    from rollenv.trainers.run_check import check_run
    from rollenv.trainers.run_dir import RunDir

    resume, several, dry_run = options.resume, options.seeds or options.vary, options.dry_run
    if not recipe and (not resume or several or dry_run or write_recipe):
        raise UsageError(
            "name a recipe, a TOML file or an environment; a run to continue (--resume run_dir=PATH); or --from URL"
        )
    if write_recipe and write_recipe.exists():  # before settings are chosen, which plays episodes
        raise UsageError(f"cannot write {write_recipe}: File exists; remove it, or name another file")
    if several:
        if dry_run or write_recipe or options.launch:
            raise UsageError("--seeds and --vary start runs here: leave out --dry-run, --write-recipe and --launch")
        from rollenv.cli.sweep import sweep

        seeds = max(options.seeds, 1)
        folder = sweep(recipe, overrides, seeds, options.vary or (), beside, resume)
        print_result({"folder": str(folder)})
        return None
    if options.launch:
        if not recipe:
            raise UsageError("--launch sends a recipe: name it, also where a run is resumed")
        overrides = [f"launch={json.dumps(str(options.launch))}", *overrides]
    # A run that is resumed has its settings: those of an environment need not be chosen again, and have no [launch].
    has_settings = resume and not options.launch and (not recipe or is_env_id(with_data(recipe, ())[0]))
    config = None if has_settings else load_config(recipe, overrides)
    if config and config.launch and not write_recipe:
        changes = ["--accept-changes"] * options.accept + ["--trust"] * options.trust
        changes += [one for one in overrides if not one.startswith(("launch.", "launch=", "run_dir="))]
        return config.launch.send(config, recipe, changes, resume=resume, dry_run=dry_run)
    run: RunDir | None = None
    if resume and not (write_recipe or dry_run):
        run, config = _resume(recipe, overrides, config, options)
    config = config or load_config(recipe, overrides)
    describe_data(config.env.id, config.env.kwargs)
    if write_recipe:
        with writes(write_recipe, "remove it, or name another file"), write_recipe.open("x", encoding="utf-8") as out:
            out.write("\n".join(differences(config)) + "\n")
        console.print(
            f"wrote {write_recipe}; train by it with: rollenv train {write_recipe}", soft_wrap=True, markup=False
        )
        print_result({"recipe": str(write_recipe)})
        return None
    if dry_run:
        from rollenv.cli import dry_run as dry

        if config.run_dir and not resume and Path(config.run_dir).exists():
            raise UsageError(f"{config.run_dir} exists, so the run would not start: choose another run_dir=PATH")
        dry.dry_run(config)
        print_result({"settings": config.model_dump(mode="json")})
        return None
    check_run(config)
    run = run or RunDir.create(config, recipe)
    trained = _train_to_the_end(config, run, recipe, resume)
    _conclude(run, trained, time.perf_counter() - started)
    files = {"run": str(run.path), "model": str(trained.checkpoint), "metrics": str(run.metrics_file)}
    print_result({**files, "before": trained.before, "after": trained.after, "seconds": trained.seconds})
    return run.path


def _resume(
    recipe: str, overrides: Sequence[str], config: TrainConfig | None, options: RunOptions
) -> tuple[RunDir, TrainConfig]:
    """Return the run to resume. Repeated settings must be unchanged, except for more iterations.

    Args:
        config: the settings of the recipe, if it has any.
    """
    from rollenv.trainers.config import as_data, with_data, with_settings
    from rollenv.trainers.run_dir import RunDir, folder_name, latest

    env_id, overrides = with_data(recipe, overrides)
    given = as_data(overrides)
    folder = str(key_values(o for o in overrides if o.startswith("run_dir=")).get("run_dir", ""))
    if config:
        folder, given = config.run_dir, {"settings": given, **config.model_dump(mode="json")}
    if not (recipe or folder):
        raise UsageError("name the run to continue by its folder, run_dir=PATH, or by its recipe")
    path = Path(folder) if folder else latest(Path("runs"), folder_name(recipe, config))
    if path is None:
        raise UsageError(f"there is no run of {recipe!r} below runs/ to resume; name one with run_dir=PATH")
    run, started = RunDir.resume(path, None if options.trust else [env_id, *named(given).values()])
    return run, run.extend(started, with_settings(started, overrides), options.accept)


def _train_to_the_end(config: TrainConfig, run: RunDir, recipe: str, resumed: bool) -> TrainingResult:
    """Train. A run that is stopped says how to continue it; a new one that fails before it begins leaves no folder."""
    import torch

    trust = "--trust" if named(config.model_dump(mode="json")) else ""
    words = ["rollenv", "train", recipe, f"run_dir={run.path}", "--resume", trust]
    further = "continue with: " + shlex.join(filter(None, words))
    try:
        return _train(config, run)
    except Exception as error:
        if not resumed:
            run.discard_unless_begun()
        if isinstance(error, torch.OutOfMemoryError):
            raise UsageError(
                f"{str(error).splitlines()[0]} Free some, or take less of it: optimizer.micro_batch_tokens="
                f"{config.optimizer.micro_batch_tokens // 2}, model.gradient_checkpointing=true, model.lora.rank=16"
            ) from error
        raise
    except (KeyboardInterrupt, Terminated):
        error_console.print(further, soft_wrap=True, markup=False)
        raise


def _train(config: TrainConfig, run: RunDir) -> TrainingResult:
    import transformers

    from rollenv.trainers.run_dir import read_rows
    from rollenv.trainers.training import train_in

    transformers.utils.logging.disable_progress_bar()
    console.print(f"writing to {run.path}", soft_wrap=True, markup=False)
    gc.collect()
    gc.freeze()  # every full collection would walk over torch's objects again
    gc.set_threshold(100_000, 20, 20)  # a batch has a million small objects that stay in use until it is done
    before = [row["eval/success"] for row in read_rows(run.metrics_file) if "eval/success" in row]
    with Display(before[:1]) as display:
        return train_in(run, config, display.watch)


#: Seconds between two lines of the log, besides those of evaluations and of a stage's begin and end.
_SILENCE = 30.0


class Display:
    """The progress of stages, one after the other, with the main metrics of each."""

    def __init__(self, evaluated: Sequence[float] = ()) -> None:
        self.known: dict[str, float] = {}
        self.evaluated = [*evaluated]
        """Success of the evaluations; the first is before RL."""
        self._stage = ""
        self._show: Callable[..., None]
        self._shown = contextlib.ExitStack()

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *exc: object) -> None:
        self._shown.close()

    def watch(self, stage: str, done: int, total: int, numbers: dict[str, float] | None = None) -> None:
        numbers, fresh = numbers or {}, stage != self._stage
        self.known |= numbers
        if "eval/success" in numbers:
            self.evaluated.append(numbers["eval/success"])
        if fresh:
            self._shown.close()
            self._stage, self._show = stage, self._shown.enter_context(progress(stage, total, _SILENCE))
        self._show(done, self._numbers(stage), fresh or done == total or "eval/success" in numbers)

    def _numbers(self, stage: str) -> str:
        """Return the main metrics of a stage, short enough for 80 columns."""
        formats = {"loss": "loss {:.3f}"}
        if stage == "training":
            formats = {"reward": "reward {:.2f}", "success": "success {:.2f}"}
            if "epoch" in self.known or "eval/pairs" in self.known:
                formats = {"loss": "loss {:.3f}", "eval/loss": "unseen rows {:.3f}", "accuracy": "right {:.2f}"}
        shown = [text.format(self.known[key]) for key, text in formats.items() if key in self.known]
        if stage == "training" and self.evaluated:
            first, *more = self.evaluated
            shown.append(f"unseen {first:.3f}" + (f" -> {more[-1]:.3f}" if more else ""))
        if stage == "training" and "tokens_per_s" in self.known:
            speed = self.known["tokens_per_s"]
            shown.append(f"{speed / 1000:.0f}k tokens/s" if speed >= 10_000 else f"{speed:.0f} tokens/s")
        return " ".join(shown)


def _groups(run: RunDir) -> list[list[str]]:
    """Return rows of what groups in training taught, in the first and the last iteration."""
    from rollenv.trainers.run_dir import read_rows

    rows = [row for row in read_rows(run.metrics_file) if {"too_easy", "too_hard", "failed"} <= row.keys()]
    if not rows:
        return []
    ends = rows[0], rows[-1]
    names = {"taught_groups": "groups that taught", "too_easy": "too easy", "too_hard": "too hard"}
    shares = [
        [f"{name}, in training", *(f"{row[key]:.0%}" if key in row else "" for row in ends)]
        for key, name in names.items()
    ]
    return [*shares, ["failed episodes, in training", *(f"{row['failed']:.0f}" for row in ends)]]


def _conclude(run: RunDir, result: TrainingResult, seconds: float) -> None:
    from rollenv.cli.view import write_report
    from rollenv.report.summary import domains
    from rollenv.trainers.run_dir import read_rows

    report = write_report(run.path)
    rows, both = list[list[str]](), (result.before, result.after)

    def add_success(label: str, prefix: str = "eval/", low: str = "low", high: str = "high") -> None:
        keys = [prefix + key for key in ("success", low, high)]
        rows.append([label, *(percent(*(row[k] for k in keys)) if row.keys() >= {*keys} else "" for row in both)])

    for name in ("loss", "accuracy", "accuracy_of_lengths"):
        label = name.replace("_", " ")
        if (key := f"eval/{name}") in result.after:
            rows.append([f"{label} on rows held out", *(f"{row[key]:.3f}" for row in both)])
        elif "epoch" in result.after and "eval/loss" not in result.after and name in result.after:
            rows.append([f"{label} of the last update, as no row is held out", "", f"{result.after[name]:.3f}"])
    if any("eval/success" in row for row in both):
        add_success("success on unseen episodes (95 %)")
    for name in domains(result.after)[0]:
        add_success(f"the same, of {name}", f"eval/{name}/")
    if "eval/distinct" in result.after:
        add_success(
            f"the same over {result.after['eval/distinct']:.0f} different tasks", low="tasks_low", high="tasks_high"
        )
    for name in ("reward", "trained reward", "turns"):
        if any((key := f"eval/{name.replace(' ', '_')}") in row for row in both):
            rows.append([f"{name} per episode", *(f"{row[key]:.2f}" if key in row else "" for row in both)])
    if any(row.get("eval/failed") for row in both):
        rows.append(["failed episodes, not graded", *(f"{row.get('eval/failed', 0):.0f}" for row in both)])
    print_table(["", "before", "after"], [*rows, *_groups(run)])
    if unusable := result.after.get("unusable"):
        console.print(f"rows left out as they cannot be learned: {unusable:.0f}; the log names the first of them")
    if advice := advice_on_epochs(read_rows(run.metrics_file), "batches.epochs, or iterations"):
        console.print(advice, soft_wrap=True, markup=False)
    console.print(f"trained in {result.seconds:.0f} s, {seconds:.0f} s with everything before it")
    for label, path in (("model", result.checkpoint), ("metrics", run.metrics_file), ("page to look at", report)):
        console.print(f"{label}: {path}", soft_wrap=True, markup=False)
    sys.stdout.flush()
