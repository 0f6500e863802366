"""A run's folder: about.json, config.json, metrics.jsonl, episodes.jsonl, updates.jsonl, checkpoints/, report.html."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import logging
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rollenv.core.errors import RollenvError, UsageError, writes
from rollenv.core.folder_lock import lock_folder
from rollenv.core.plugins import function_at
from rollenv.core.trust import listed, named
from rollenv.rollout.fingerprints import data_fingerprint, model_fingerprint
from rollenv.rollout.records.folders import UPDATES, numbered_rows
from rollenv.rollout.records.pictures import PictureFiles
from rollenv.rollout.records.plain import to_plain
from rollenv.rollout.records.storage import read_object
from rollenv.rollout.types import Trajectory
from rollenv.trainers.config import TrainConfig, changed_keys, parse_config
from rollenv.trainers.config.algorithms import OwnAlgorithm
from rollenv.trainers.config.batches import StoredConfig
from rollenv.trainers.config.losses import OwnLoss
from rollenv.trainers.config.own import check_functions, own_functions

logger = logging.getLogger(__name__)

#: Maximum number of prompt tokens saved per evaluation: each has about 5 bytes of JSON.
MOST_PROMPT_IDS = 1_000_000
#: Maximum number of response tokens saved per update, and of prompt tokens.
MOST_OF_UPDATE = 50_000, 200_000

#: Prefixes of keys that a resumed run may change, since they do not affect training; iterations may only be raised.
MAY_CHANGE = (
    *("iterations:", "checkpoint_every:", "keep_checkpoints:", "threads:", "eval.", "trackers.", "placement."),
    "report.",
    "rollout.shard",
)


#: The folder of a launcher's scripts and logs, which is there before the run.
LAUNCHED = "launch"

#: What fingerprints of the user's functions begin with; they may change.
_SOURCE = "the file of "


class RunDirError(RollenvError, OSError):
    """A run's folder cannot be used or written."""

    exit_code = 4


class RunDir:
    """Paths and files of one run."""

    def __init__(self, path: Path):
        self.path = path
        self.about_file = path / "about.json"
        self.config_file = path / "config.json"
        self.metrics_file = path / "metrics.jsonl"
        self.episodes_file = path / "episodes.jsonl"
        self.updates_file = path / UPDATES
        self.checkpoints = path / "checkpoints"

    @classmethod
    def create(cls, config: TrainConfig, recipe: str) -> RunDir:
        """Create a folder: ``config.run_dir``, or the next free ``runs/RECIPE-N``.

        Raises:
            RunDirError: it cannot be created.
        """
        path = Path(config.run_dir) if config.run_dir else next_free(Path("runs"), folder_name(recipe, config))
        run = cls(path)
        about = json.dumps({"recipe": recipe, "fingerprints": fingerprints(config)})  # may fail: before the folder
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir(exist_ok=path.is_dir() and not any(one.name != LAUNCHED for one in path.iterdir()))
            lock_folder(path, run)
            run._write_config(config)
            run.about_file.write_text(about + "\n")
        except OSError as error:
            if isinstance(error, FileExistsError) and path.exists():
                how = "continue it with --resume, or choose another with run_dir=PATH"
                raise UsageError(f"the run directory {path} exists; {how}") from error
            raise RunDirError(f"cannot write the run directory {path}: {error.strerror or error}") from error
        return run

    @classmethod
    def resume(cls, path: Path, allowed: Collection[Any] | None = None) -> tuple[RunDir, TrainConfig]:
        """Open an existing folder and load the configuration that it was started with.

        Args:
            allowed: what it may name (:mod:`rollenv.core.trust`); None for anything.
        """
        run = cls(path)
        data = read_object(run.config_file, f"cannot resume {path}")
        others = {} if allowed is None else {key: one for key, one in named(data).items() if one not in allowed}
        if others:
            raise UsageError(
                f"cannot resume {path}: its config.json names {listed(others)}, and your command does not. If you "
                "trust what that runs and connects to, give the recipe and settings of the run, or --trust"
            )
        try:
            config = parse_config(data)
        except UsageError as error:
            wrong = str(error).partition(";")[0]
            raise UsageError(
                f"cannot resume {path}: this version of rollenv cannot read its config.json ({wrong}). Resume it with "
                "the version that began it, or start a new run in another folder"
            ) from error
        lock_folder(path, run)
        return run, config

    @classmethod
    def open(cls, config: TrainConfig, recipe: str, accept: bool = False) -> tuple[RunDir, TrainConfig]:
        """Continue the run in ``config.run_dir``, or create it."""
        if not (path := Path(config.run_dir)).joinpath("config.json").exists():
            return cls.create(config, recipe), config
        run, started = cls.resume(path)
        return run, run.extend(started, config, accept)

    def extend(self, started: TrainConfig, wanted: TrainConfig, accept: bool = False) -> TrainConfig:
        """Check changed settings of a resumed run, write and return them.

        Raises:
            RunDirError: the new settings cannot be written.
        """
        wanted = wanted.model_copy(update={"run_dir": started.run_dir})
        changes = changed_keys(started, wanted)
        refused = [change for change in changes if not change.startswith(MAY_CHANGE)]
        if wanted.iterations < started.iterations:
            refused += [change for change in changes if change.startswith("iterations:")]
        if refused:
            raise UsageError(
                f"cannot resume {self.path} with another configuration ({'; '.join(refused)}); iterations may be "
                "raised, and eval, trackers, placement, rollout.shards, checkpoints and threads be changed. Leave the "
                "others out, or start a new run in another folder"
            )
        before = {} if accept else self._about().get("fingerprints", {})
        now = fingerprints(wanted) if before else {}  # not of what only the old settings name
        others = [name for name in now if before.get(name, now[name]) != now[name]]
        for name in [name for name in others if name.startswith(_SOURCE)]:
            logger.warning("%s changed since the run was started: what follows is trained by the new one", name)
            others.remove(name)
        if others:
            raise UsageError(
                f"cannot resume {self.path}: {' and '.join(others)} changed since the run was started. Restore the old "
                "state, start a new run in another folder, or continue anyway with --accept-changes"
            )
        if wanted.iterations > started.iterations and (wanted.optimizer.final_lr, wanted.loss.final_entropy) != (1, 1):
            logger.warning(
                "optimizer.lr and loss.entropy decay over all iterations: with %d instead of %d they rise again, to "
                "fall until the new end",
                wanted.iterations,
                started.iterations,
            )
        if changes:
            self._write_config(wanted)
        return wanted

    def with_functions(
        self, config: TrainConfig, advantage: Callable[..., Any] | None, loss: Callable[..., Any] | None
    ) -> TrainConfig:
        """Return the settings with functions of the caller, whose names and arguments are stored."""
        chosen: dict[str, Any] = {}
        if advantage:
            chosen["algorithm"] = OwnAlgorithm.of(advantage, config.algorithm)
        if loss:
            chosen["loss"] = OwnLoss.of(loss, config.loss)
        wanted = config.model_copy(update=chosen)
        if self.checkpoints.exists() and (changes := changed_keys(config, wanted)):
            raise UsageError(f"cannot resume {self.path} with another function ({'; '.join(changes)})")
        check_functions(wanted)
        self._write_config(wanted)
        return wanted

    def with_iterations(self, config: TrainConfig, iterations: int) -> TrainConfig:
        """Return the settings with the number of updates, as the data say, and store it."""
        if config.iterations != iterations:
            config = config.model_copy(update={"iterations": iterations})
            self._write_config(config)
        return config

    def _about(self) -> dict[str, Any]:
        try:
            about = json.loads(self.about_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return about if isinstance(about, dict) else {}

    def discard_unless_begun(self) -> None:
        """Delete the folder of a run that ended before its first metrics and checkpoints."""
        if not read_rows(self.metrics_file) and not self.checkpoints.exists():
            for one in self.path.iterdir():
                if one.name != LAUNCHED:
                    shutil.rmtree(one, ignore_errors=True) if one.is_dir() else one.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self.path.rmdir()

    def _write_config(self, config: TrainConfig) -> None:
        partial = self.config_file.with_suffix(".partial")
        with writes(self.config_file, kind=RunDirError):
            partial.write_text(json.dumps(config.model_dump(mode="json"), indent=2) + "\n")
            partial.replace(self.config_file)

    def append(self, file: Path, *rows: Any) -> None:
        """Append lines of JSON and flush them to disk."""
        with writes(file, kind=RunDirError), file.open("a", encoding="utf-8") as out:
            out.writelines(json.dumps(row) + "\n" for row in rows)
            out.flush()
            os.fsync(out.fileno())

    def keep_episodes(self, iteration: int, trajectories: Sequence[Trajectory]) -> None:
        """Save all episodes of an evaluation, for inspection.

        Beyond :data:`MOST_PROMPT_IDS`, prompts are left out, those of successful episodes first.
        """
        self.append(self.episodes_file, *self._episode_rows(iteration, trajectories, MOST_PROMPT_IDS))

    def keep_update(self, iteration: int, episodes: Iterable[tuple[Trajectory, dict[str, Any]]]) -> dict[str, float]:
        """Save episodes of an update with its numbers of their tokens; return how many were left out, as a metric.

        Beyond :data:`MOST_OF_UPDATE` they are left out, except the first.
        """
        chosen: list[tuple[Trajectory, dict[str, Any]]] = []
        left_out, (most, most_read) = 0, MOST_OF_UPDATE
        for trajectory, numbers in episodes:
            most -= sum(len(turn.response_ids) for turn in trajectory.turns)
            if most >= 0 or not chosen:
                chosen.append((trajectory, numbers))
            else:
                left_out += 1
        rows = self._episode_rows(iteration, [trajectory for trajectory, _ in chosen], most_read)
        self.append(self.updates_file, *(row | {"update": each} for row, (_, each) in zip(rows, chosen, strict=True)))
        return {"report/left_out": left_out} if left_out else {}

    def _episode_rows(self, iteration: int, trajectories: Sequence[Trajectory], left: int) -> list[dict[str, Any]]:
        full = set()
        for number in sorted(range(len(trajectories)), key=lambda i: bool(trajectories[i].success)):
            left -= sum(len(turn.prompt_ids) for turn in trajectories[number].turns)
            if left >= 0:
                full.add(number)
        rows, files = [], PictureFiles(self.path)
        for number, trajectory in enumerate(trajectories):
            plain: dict[str, Any] = to_plain(trajectory, files)
            if number not in full:
                for turn in plain["turns"]:
                    turn["prompt_ids"] = []
            rows.append({"iteration": iteration, **plain, "reward": trajectory.reward})
        return rows

    def cut_back(self, iteration: int, updated: int | None = None) -> None:
        """Drop rows after ``iteration``, and lines that cannot be read, such as an incomplete last one.

        Args:
            updated: the last update, if it is not yet logged.
        """
        last = {self.metrics_file: iteration, self.episodes_file: iteration}
        if self.updates_file.exists():
            last[self.updates_file] = iteration if updated is None else updated
        for file, end in last.items():
            partial = file.with_suffix(".partial")
            with writes(partial, kind=RunDirError):
                with partial.open("w", encoding="utf-8") as out:
                    out.writelines(json.dumps(row) + "\n" for row in _rows(file) if row["iteration"] <= end)
                partial.replace(file)


def fingerprints(config: TrainConfig) -> dict[str, str]:
    """Return fingerprints of a run's data sets, in training and evaluation, of its models and its own functions."""
    prints = {}
    for path, name in own_functions(config).items():
        with contextlib.suppress(UsageError, OSError, TypeError):  # a function of a script, or without a file
            file = inspect.getfile(inspect.unwrap(function_at(name, path)))
            prints[f"{_SOURCE}{name}"] = hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16]
    for env in config.environments() if config.env.id else ():  # a loop of the caller's own has none
        name = f"the data of {env.id} {json.dumps(env.kwargs, sort_keys=True, default=str)}"
        prints[name] = data_fingerprint(env.id, env.kwargs)
    for path in (config.model.path, getattr(config.distill, "path", None) or ""):
        prints[f"the model {path}"] = model_fingerprint(path)
    given = file_fingerprints(config.batches.data) if isinstance(config.batches, StoredConfig) else {}
    return {name: value for name, value in (prints | given).items() if value}


def file_fingerprints(paths: Sequence[str]) -> dict[str, str]:
    """Return a fingerprint of each file, or folder of files, of given episodes."""
    prints = {}
    for name in paths:
        files = [Path(name)] if Path(name).is_file() else sorted(Path(name).rglob("*.*"))
        digest = hashlib.blake2b(digest_size=16)
        for file in files:
            if file.suffix in (".jsonl", ".gz", ".parquet", ".csv"):
                digest.update(file.read_bytes())
        prints[f"the data of {name}"] = digest.hexdigest() if files else ""
    return prints


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Read the rows of iterations in a JSONL file; none if there is no file."""
    return list(_rows(file))


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    for number, row in numbered_rows(file):
        if row and type(row.get("iteration")) is int:
            yield row
        else:
            logger.warning("line %d of %s holds no row and is ignored", number, file)


def folder_name(recipe: str, config: TrainConfig | None = None) -> str:
    """Return the start of the names of a recipe's folders, which has no colon of an id.

    Args:
        config: the settings, whose algorithm names a run on rows that no recipe is for: ``sft`` or ``dpo``.
    """
    if recipe == "sft" and config and config.algorithm.name != "imitation":
        return config.algorithm.name
    path = Path(recipe.partition(":")[2] if recipe.startswith("data:") else recipe)
    return (path.stem if path.suffix in (".toml", ".jsonl", ".csv", ".parquet") else path.name).replace(":", "-")


def next_free(root: Path, name: str) -> Path:
    """Return ``root/name-N`` with the smallest N above all existing ones."""
    return root / f"{name}-{max(_numbers(root, name), default=0) + 1}"


def latest(root: Path, name: str) -> Path | None:
    """Return the existing ``root/name-N`` with the largest N, or None."""
    numbers = _numbers(root, name)
    return root / f"{name}-{max(numbers)}" if numbers else None


def _numbers(root: Path, name: str) -> list[int]:
    tails: Iterable[str] = (p.name.removeprefix(f"{name}-") for p in root.glob(f"{name}-*"))
    return [int(tail) for tail in tails if tail.isdigit()]
