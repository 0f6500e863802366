"""The part of a checkpoint that all ranks write together, and any number of them can read."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from torch import Tensor
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from rollenv.trainers.ranks import Ranks

#: Name of a folder in the folder of a checkpoint.
FOLDER = "shards"


class Tensors(Protocol):
    """Something that is trained."""

    def tensors(self) -> dict[str, Tensor]:
        """All tensors that training continues with, by name: the tensors themselves, not copies."""
        ...


def write(folder: Path, states: Mapping[str, Tensors], ranks: Ranks) -> None:
    """Write the tensors of all ranks; the first one calls the others.

    Args:
        folder: of the checkpoint, which all ranks see.

    Raises:
        OSError: a rank cannot write its share.
        RankLost: a rank has ended.
    """
    ranks.send_command("save", folder)
    try:
        dcp.save(_flat(states), checkpoint_id=folder / FOLDER, process_group=ranks.group)
    except (CheckpointException, RuntimeError) as error:  # torch's does not derive from Exception
        ranks.meet()
        raise OSError(_first(error)) from error


def read(folder: Path, states: Mapping[str, Tensors], ranks: Ranks) -> None:
    """Put what was written into the tensors, however many ranks wrote and read.

    Raises:
        ValueError: they are of other names or sizes.
        RankLost: a rank has ended.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is", UserWarning)  # as is meant for one process
            where = folder / FOLDER
            dcp.load(_flat(states), checkpoint_id=where, process_group=ranks.group, no_dist=not ranks.together)
    except CheckpointException as error:
        ranks.meet()
        raise ValueError(f"its shards are of another model: {_first(error)}") from error


def _flat(states: Mapping[str, Tensors]) -> dict[str, Tensor]:
    return {f"{part}/{name}": t for part, state in states.items() for name, t in state.tensors().items()}


def _first(error: CheckpointException | RuntimeError) -> str:
    if isinstance(error, RuntimeError):
        return str(error)
    rank, (cause, _) = next(iter(error.failures.items()))
    return f"rank {rank}: {cause}"
