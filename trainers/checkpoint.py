"""Atomic checkpoints: written to a temporary folder, synced, renamed; verified against a manifest when read."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from rollenv.agents.engines.adapters import Adapter
from rollenv.agents.gguf import STEPS
from rollenv.agents.local import LocalAgent
from rollenv.core.errors import RollenvError
from rollenv.trainers import sharded_state
from rollenv.trainers.policies import lora
from rollenv.trainers.ranks import ALONE, RankLost, Ranks

MANIFEST = "MANIFEST.json"
OPTIMIZER = "optimizer.pt"

logger = logging.getLogger(__name__)


class Stateful(sharded_state.Tensors, Protocol):
    """An object with a state to save."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state, as plain data and tensors."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        ...


class CheckpointError(RollenvError):
    """A checkpoint cannot be written, or is damaged."""

    exit_code = 5


def checkpoints(root: Path) -> list[Path]:
    """List the run's own checkpoints below ``root``, oldest first. Other folders there are left alone."""
    return sorted(root.glob(STEPS)) if root.is_dir() else []


def save(
    root: Path,
    iteration: int,
    agent: LocalAgent,
    states: Mapping[str, Stateful],
    keep: int,
    more: dict[str, Any] | None = None,
    ranks: Ranks = ALONE,
    adapter: Adapter | None = None,
) -> Path:
    """Write a checkpoint in Hugging Face format, with the states of its optimizers and of the run.

    Older checkpoints beyond the last ``keep`` are deleted.

    Args:
        adapter: adapter of the base model, saved in addition; the agent's weights have it merged.

    Raises:
        CheckpointError: it cannot be written. Earlier checkpoints are unchanged.
    """
    final = root / f"step-{iteration:06d}"
    partial = root / f"partial-{final.name}"
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        agent.save(partial)
        if adapter:
            adapter.save(partial / lora.FOLDER)
        if ranks.together:
            sharded_state.write(partial, states, ranks)
        else:
            torch.save({name: state.state_dict() for name, state in states.items()}, partial / OPTIMIZER)
        about = {"iteration": iteration, "version": agent.version, **(more or {})}
        (partial / "trainer.json").write_text(json.dumps(about) + "\n")
        _write_manifest(partial)
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
        _sync(root)
    except RankLost:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    except Exception as error:  # torch and safetensors raise exceptions of their own for a full disk
        shutil.rmtree(partial, ignore_errors=True)
        good = checkpoints(root)
        raise CheckpointError(
            f"cannot write the checkpoint {final}: {error} ({_mib_free(root)} MiB are free there). "
            + (f"The last good one is {good[-1]}. " if good else "")
            + "Free some space or fix the permissions, then continue with --resume"
        ) from error
    for old in checkpoints(root)[:-keep]:
        try:
            shutil.rmtree(old)
        except OSError as error:
            logger.warning("the old checkpoint %s cannot be deleted: %s", old, error)
    return final


def load(
    folder: Path, *, plays: bool = True, kind: type[LocalAgent] = LocalAgent
) -> tuple[LocalAgent, dict[str, Any], dict[str, Any]]:
    """Load ``(agent, states by name, metadata with the iteration)`` of a checkpoint.

    The agent has the saved version number, and the optimizer's tensors are on the CPU. The states are empty if several
    ranks wrote them: see :mod:`rollenv.trainers.sharded_state`.

    Args:
        plays: whether the agent plays, see :class:`~rollenv.agents.local.LocalAgent`.

    Raises:
        CheckpointError: a file is missing, truncated or altered.
    """
    check_manifest(folder)
    try:
        about = json.loads((folder / "trainer.json").read_text())
        state, agent = states_of(folder), kind.load(folder, plays=plays)
        agent.version = int(about["version"])
    except RollenvError:
        raise
    except Exception as error:  # torch, transformers and safetensors raise exceptions of their own
        raise damaged_error(folder, f"it cannot be read: {type(error).__name__}: {error}") from error
    return agent, state, about


def states_of(folder: Path) -> dict[str, Any]:
    """Load the states by name, on the CPU; empty for a checkpoint that several ranks wrote."""
    if (folder / sharded_state.FOLDER).is_dir():
        return {}
    states: dict[str, Any] = torch.load(folder / OPTIMIZER, weights_only=True, map_location="cpu", mmap=True)
    return states


def _mib_free(path: Path) -> str:
    try:
        return str(shutil.disk_usage(path).free >> 20)
    except OSError:
        return "unknown"


def _write_manifest(folder: Path) -> None:
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    manifest = {p.relative_to(folder).as_posix(): {"bytes": p.stat().st_size, "sha256": _sha256(p)} for p in files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
    for path in (*files, folder / MANIFEST, *{p.parent for p in files}, folder):
        _sync(path)


def check_manifest(folder: Path) -> None:
    """Compare a checkpoint's files with its manifest.

    Raises:
        CheckpointError: a file is missing, truncated or altered.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        known = {name: (about["bytes"], about["sha256"]) for name, about in manifest.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise damaged_error(folder, f"its {MANIFEST} cannot be read ({error})") from error
    for name, (size, digest) in known.items():
        path = folder / name
        if not path.is_file():
            raise damaged_error(folder, f"{name} is missing")
        if path.stat().st_size != size:
            raise damaged_error(folder, f"{name} has {path.stat().st_size} of {size} bytes")
        if _sha256(path) != digest:
            raise damaged_error(folder, f"the contents of {name} have changed")


def damaged_error(folder: Path, why: str) -> CheckpointError:
    """Create the error for a checkpoint that training cannot resume from."""
    older = [p for p in checkpoints(folder.parent) if p.name < folder.name]
    what_next = (
        f"Delete that folder to resume from {older[-1]}"
        if older
        else "There is no older one; start again with another run_dir"
    )
    return CheckpointError(f"the checkpoint {folder} is damaged: {why}. {what_next}")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
