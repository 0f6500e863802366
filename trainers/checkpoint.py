"""Checkpoints that are complete or absent: written aside, synced, renamed; checked against a manifest when read."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from rollenv.agents.local import LocalAgent
from rollenv.core import RollenvError

MANIFEST = "MANIFEST.json"


class Stateful(Protocol):
    """Something with a state to save."""

    def state_dict(self) -> dict[str, Any]:
        """The state, as plain data and tensors."""
        ...


class CheckpointError(RollenvError):
    """A checkpoint cannot be written, or is damaged."""

    exit_code = 5


def folder_name(iteration: int) -> str:
    """The name of the checkpoint taken after ``iteration`` iterations."""
    return f"step-{iteration:06d}"


def checkpoints(root: Path) -> list[Path]:
    """All checkpoints below ``root``, oldest first."""
    return sorted(root.glob("step-*")) if root.is_dir() else []


def save(
    root: Path,
    iteration: int,
    agent: LocalAgent,
    states: Mapping[str, Stateful],
    keep: int,
    more: dict[str, Any] | None = None,
) -> Path:
    """Write a checkpoint in Hugging Face format, with the states of its optimizers and of the run.

    Older checkpoints beyond the last ``keep`` are deleted.

    Args:
        root: folder of the checkpoints.
        iteration: number of the iteration, part of the name.
        agent: model, tokenizer and prompt format.
        states: whose states are saved, by name.
        keep: number of checkpoints to keep.
        more: JSON data saved with the checkpoint.

    Raises:
        CheckpointError: it cannot be written. Earlier checkpoints stay as they are.
    """
    final = root / folder_name(iteration)
    partial = root / f"partial-{final.name}"
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        agent.save(partial)
        torch.save({name: state.state_dict() for name, state in states.items()}, partial / "optimizer.pt")
        about = {"iteration": iteration, "version": agent.version, **(more or {})}
        (partial / "trainer.json").write_text(json.dumps(about) + "\n")
        _write_manifest(partial)
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
        _sync(root)
    except Exception as error:  # torch and safetensors raise their own kinds for a full disk
        shutil.rmtree(partial, ignore_errors=True)
        good = checkpoints(root)
        raise CheckpointError(
            f"cannot write the checkpoint {final}: {error} ({_mib_free(root)} MiB are free there). "
            + (f"The last good one is {good[-1]}. " if good else "")
            + "Free some space or fix the permissions, then continue with --resume"
        ) from error
    for old in checkpoints(root)[:-keep]:
        shutil.rmtree(old)
    return final


def load(folder: Path) -> tuple[LocalAgent, dict[str, Any], dict[str, Any]]:
    """``(agent, states by name, the iteration and what else was saved)`` of a checkpoint.

    The agent continues counting versions where it was. The optimizer's tensors are on the CPU, wherever they came from.

    Raises:
        CheckpointError: if a file is missing, cut short or altered.
    """
    _check_manifest(folder)
    try:
        about = json.loads((folder / "trainer.json").read_text())
        iteration = int(about["iteration"])
        state = torch.load(folder / "optimizer.pt", weights_only=True, map_location="cpu")
        agent = LocalAgent.load(folder)
        agent.version = int(about.get("version", iteration))  # those of before this was kept had one for each
    except RollenvError:
        raise
    except Exception as error:  # torch, transformers and safetensors raise their own kinds
        raise CheckpointError(_damaged(folder, f"it cannot be read: {type(error).__name__}: {error}")) from error
    return agent, state, about


def _mib_free(path: Path) -> str:
    try:
        return str(shutil.disk_usage(path).free >> 20)
    except OSError:
        return "unknown"


def _write_manifest(folder: Path) -> None:
    files = sorted(p for p in folder.iterdir() if p.is_file())
    manifest = {p.name: {"bytes": p.stat().st_size, "sha256": _sha256(p)} for p in files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
    for path in (*files, folder / MANIFEST, folder):
        _sync(path)


def _check_manifest(folder: Path) -> None:
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(_damaged(folder, f"its {MANIFEST} cannot be read ({error})")) from error
    for name, expected in manifest.items():
        path = folder / name
        if not path.is_file():
            raise CheckpointError(_damaged(folder, f"{name} is missing"))
        if path.stat().st_size != expected["bytes"]:
            raise CheckpointError(_damaged(folder, f"{name} has {path.stat().st_size} of {expected['bytes']} bytes"))
        if _sha256(path) != expected["sha256"]:
            raise CheckpointError(_damaged(folder, f"the contents of {name} have changed"))


def damaged(folder: Path, why: str) -> CheckpointError:
    """The error for a checkpoint that training cannot resume from.

    Args:
        folder: of the checkpoint.
        why: what is wrong with it.
    """
    return CheckpointError(_damaged(folder, why))


def _damaged(folder: Path, why: str) -> str:
    older = [p for p in checkpoints(folder.parent) if p.name < folder.name]
    if older:
        return f"the checkpoint {folder} is damaged: {why}. Delete that folder to resume from {older[-1]}"
    return f"the checkpoint {folder} is damaged: {why}. There is no older one; start again with another run_dir"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
