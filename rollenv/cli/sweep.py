"""``rollenv train --seeds N --vary KEY=A,B``: a run for each setting and seed, in one folder."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollenv.cli.common import console, error_console, print_tables, progress
from rollenv.core.errors import RollenvError, UsageError, reads, writes
from rollenv.core.folder_lock import locked
from rollenv.report.sweep import open_runs, sweep_table
from rollenv.rollout.records.folders import METRICS, SWEEP, is_run, numbered_rows
from rollenv.rollout.records.storage import read_object

if TYPE_CHECKING:
    from rollenv.trainers.config import TrainConfig

#: Characters of a folder's name that are of its setting; the rest is in a digest.
_READABLE = 120


@dataclass(slots=True)
class _Run:
    """A setting with a seed."""

    setting: str
    seed: int
    folder: Path
    overrides: list[str]
    iterations: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        return f"{self.setting}, seed {self.seed}" if self.setting else f"seed {self.seed}"

    @property
    def log(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Its metrics so far, of which the last line may be half written."""
        rows = (row for _, row in numbered_rows(self.folder / METRICS))
        return [row for row in rows if row and type(row.get("iteration")) is int]

    @property
    def done(self) -> int:
        """Iterations so far."""
        return max((row["iteration"] for row in self.rows), default=0)

    @property
    def finished(self) -> bool:
        last = self.folder / "checkpoints" / f"step-{self.iterations:06d}"
        return self.done >= self.iterations and last.is_dir()

    def start(self, recipe: str, threads: int) -> None:
        """Start or continue the run in a process of its own."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-P", "-m", "rollenv", "train", recipe, *self.overrides, f"run_dir={self.folder}"]
        if threads and not any(o.startswith("threads=") for o in self.overrides):
            command.append(f"threads={threads}")
        if (self.folder / "config.json").exists():
            command.append("--resume")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(  # in a group of its own: Ctrl-C would end it before it saves
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0
            )


def sweep(
    recipe: str,
    overrides: Sequence[str],
    seeds: int,
    vary: Sequence[str],
    beside: int,
    resume: bool,
) -> Path:
    """Run all settings with all seeds, show their progress, write their page and table, and return their folder.

    Args:
        beside: runs at a time; 0 for one for each core, or one at a time on a GPU.

    Raises:
        UsageError: a setting is wrong, or the folder has other runs.
        RollenvError: runs failed; the others are complete.
        KeyboardInterrupt: Ctrl-C, SIGTERM or SIGHUP, after all runs have saved a checkpoint.
    """
    from rollenv.trainers.run_check import check_run

    folder, settings, runs, configs = _plan(recipe, overrides, seeds, vary, resume)
    for config in configs:
        check_run(config)
    cores = len(os.sched_getaffinity(0))
    import torch

    beside = min(beside or (1 if torch.cuda.is_available() else cores), len(runs))
    with writes(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            for run in runs:  # one may be under way, as where the command was killed before it could stop them
                if run.folder.is_dir():
                    with locked(run.folder):
                        pass
            _write_plan(folder, recipe, overrides, settings, runs)
            console.print(f"{len(runs)} runs, {beside} at a time, below {folder}", soft_wrap=True, markup=False)
            try:
                failed = _run_all(recipe, runs, beside, max(1, cores // beside) if beside > 1 else 0)
            except KeyboardInterrupt:
                further = shlex.join([f"run_dir={folder}", "--resume"])
                error_console.print(f"give the same command with {further} to go on", soft_wrap=True, markup=False)
                raise
    if any(is_run(run.folder) for run in runs):
        _conclude(folder)
    if failed:
        named = "; ".join(f"{run.name}: {_last_line(run.log)} ({run.log})" for run in failed)
        raise RollenvError(f"{len(failed)} of {len(runs)} runs failed. {named}")
    return folder


def _plan(
    recipe: str, overrides: Sequence[str], seeds: int, vary: Sequence[str], resume: bool
) -> tuple[Path, list[str], list[_Run], list[TrainConfig]]:
    """Return the folder, what the recipe says (nothing of one that is chosen), its runs and their configurations."""
    from rollenv.trainers.config import differences, is_env_id, load_config, with_data
    from rollenv.trainers.run_dir import folder_name, latest, next_free

    varied: dict[str, list[str]] = {}
    for text in vary:
        key, equals, values = text.partition("=")
        if not equals or not values or key in varied or key in ("seed", "run_dir"):
            raise UsageError(f"--vary takes KEY=A,B, each key once, and neither seed nor run_dir; not {text!r}")
        varied[key] = _values(values)
        if "" in varied[key] or len(set(varied[key])) < len(varied[key]):
            raise UsageError(f"--vary {text}: each value once, and none empty; an empty string is {key}='\"\"'")
    own = [o for o in overrides if not o.startswith("run_dir=")]
    base = load_config(recipe, own)
    if base.launch:
        raise UsageError("--seeds and --vary start runs here, and the recipe has [launch]: launch one run for each")
    named = load_config(recipe, overrides).run_dir
    name = f"{folder_name(recipe, base)}-seeds"
    folder = Path(named) if named else (latest if resume else next_free)(Path("runs"), name)
    if folder is None:
        raise UsageError(f"there are no runs of {recipe!r} with seeds below runs/ to resume; name their run_dir=")
    if not resume and folder.exists():
        raise UsageError(f"{folder} exists; continue it with --resume, or choose another with run_dir=PATH")
    if resume and not (folder / SWEEP).is_file():
        raise UsageError(f"{folder} has no runs with seeds to resume: there is no {SWEEP}")
    runs, configs = [], []
    for combination in itertools.product(*varied.values()):
        chosen = [f"{key}={value}" for key, value in zip(varied, combination, strict=True)]
        try:
            configs.append(load_config(recipe, [*own, *chosen]))
        except UsageError as error:
            every = "--vary combines every value with every other; keys of one variant need runs of their own. "
            raise UsageError(f"{every if len(chosen) > 1 else ''}With {' '.join(chosen)}: {error}") from error
        setting = " ".join(chosen)
        below = folder / _folder_name(chosen) if setting else folder
        for seed in range(base.seed, base.seed + seeds):
            settings = [*(o for o in own if not o.startswith("seed=")), *chosen, f"seed={seed}"]
            runs.append(_Run(setting, seed, below / f"seed-{seed}", settings, configs[-1].iterations))
    said = [] if is_env_id(with_data(recipe, ())[0]) else differences(base)
    return folder, said, runs, configs


def _values(text: str) -> list[str]:
    """Return the values between the commas that are outside of brackets and quotes."""
    values, depth, quote, before = [""], 0, "", ""
    for c in text:
        if quote:
            quote = "" if c == quote and before != "\\" else quote
        elif c in "\"'" and (depth or not values[-1].strip()):
            quote = c
        elif c == "," and not depth:
            values.append("")
            continue
        else:
            depth = max(0, depth + (c in "[{") - (c in "]}"))
        values[-1] += c
        before = c
    return [value.strip() for value in values]


def _folder_name(chosen: Sequence[str]) -> str:
    """Return a name for a setting that no other one has."""
    name = ",".join(chosen)
    readable = re.sub(r"[^\w.=,+-]+", "-", name, flags=re.ASCII)[:_READABLE]
    if readable == name and name.count(",") == len(chosen) - 1:
        return readable
    return f"{readable}-{hashlib.sha256(json.dumps(list(chosen)).encode()).hexdigest()[:8]}"


def _write_plan(folder: Path, recipe: str, overrides: Sequence[str], settings: list[str], runs: Sequence[_Run]) -> None:
    listed = [
        {"setting": run.setting or recipe, "seed": run.seed, "folder": run.folder.relative_to(folder).as_posix()}
        for run in runs
    ]
    plan: dict[str, Any] = {"recipe": recipe, "settings": settings, "runs": listed}
    plan["overrides"] = [o for o in overrides if not o.startswith("run_dir=")]
    file = folder / SWEEP
    if file.exists():
        before = read_object(file, "restore it, or start the runs again in another run_dir")
        with reads(f"{file} is damaged"):
            kept = {each["folder"] for each in before["runs"]} <= {each["folder"] for each in listed}
        if not kept or any(before.get(name, value) != value for name, value in plan.items() if name != "runs"):
            raise UsageError(f"{folder} has runs of other settings: give what {file} says, or another run_dir")
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(plan, indent=2) + "\n", encoding="utf-8")
    partial.replace(file)


def _run_all(recipe: str, runs: Sequence[_Run], beside: int, threads: int) -> list[_Run]:
    """Run all that are not finished, and return those that failed."""
    waiting = [run for run in runs if not run.finished]
    running: list[_Run] = []
    failed = []
    with progress("iterations", sum(run.iterations for run in runs)) as show:
        try:
            while waiting or running:
                while waiting and len(running) < beside:
                    running.append(waiting.pop(0))
                    running[-1].start(recipe, threads)
                time.sleep(0.5)
                for run in [r for r in running if r.process is not None and r.process.poll() is not None]:
                    running.remove(run)
                    if run.process is not None and run.process.returncode:
                        failed.append(run)
                    error_console.print(f"{run.name}: {_success(run)}", soft_wrap=True, markup=False)
                show(sum(min(run.done, run.iterations) for run in runs), "")
        finally:
            for run in running:
                if run.process is not None:
                    run.process.terminate()  # it saves a checkpoint
            for run in running:
                if run.process is not None:
                    run.process.wait()
    return failed


def _success(run: _Run) -> str:
    rows = [row for row in run.rows if row.keys() & {"eval/success", "eval/failed"}]
    shares = [f"{row['eval/success']:.3f}" if "eval/success" in row else "all failed" for row in rows]
    if run.process is not None and run.process.returncode:
        return f"failed: {_last_line(run.log)}"
    return f"{shares[0]} -> {shares[-1]}" if shares else "done"


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else "it said nothing"


def _conclude(folder: Path) -> None:
    from rollenv.cli.view import write_report

    page = write_report(folder, out=folder / "report.html")
    print_tables(sweep_table(open_runs(folder)), most=1000)
    console.print(f"page to look at: {page}", soft_wrap=True, markup=False)
