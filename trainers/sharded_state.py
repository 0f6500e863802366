"""The part of a checkpoint that all ranks write together; any number of ranks can read it."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from rollenv.trainers.ranks import Ranks

#: Name of a folder in the folder of a checkpoint.
FOLDER = "shards"


class Tensors(Protocol):
    """An object with trained tensors."""

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors of the training state by name, not copied."""
        ...


def write(folder: Path, states: Mapping[str, Tensors], ranks: Ranks) -> None:
    """Write the tensors of all ranks; the first rank sends the command to the others."""
    ranks.send_command("save", folder)
    try:
        dcp.save(_flat(states), checkpoint_id=folder / FOLDER, process_group=ranks.group)
    except (CheckpointException, RuntimeError) as error:  # CheckpointException does not derive from Exception
        ranks.meet()
        raise OSError(_first(error)) from error


def read(folder: Path, states: Mapping[str, Tensors], ranks: Ranks) -> None:
    """Load a checkpoint into the tensors; the number of ranks may have changed."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is", UserWarning)  # intended for a single process
            where = folder / FOLDER
            reader = _Reader(where)
            dcp.load(_flat(states), storage_reader=reader, process_group=ranks.group, no_dist=not ranks.together)
    except CheckpointException as error:
        ranks.meet()
        raise ValueError(f"its shards belong to another model: {_first(error)}") from error


#: What the pickled description of tensors may name, by module; others could run code.
_KNOWN = {
    "torch.distributed.checkpoint.metadata": "Metadata TensorStorageMetadata TensorProperties ChunkStorageMetadata "
    "MetadataIndex StorageMeta _MEM_FORMAT_ENCODING",
    "torch.distributed.checkpoint.filesystem": "_StorageInfo",
    "torch.serialization": "_get_layout",
    "torch": "Size float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool",
    "pathlib": "Path PosixPath",
    "pathlib._local": "Path PosixPath",
}


class _Reader(dcp.FileSystemReader):  # type: ignore[misc]
    """Reads shards whose description names tensors only; torch would unpickle anything."""

    def read_metadata(self, *args: Any, **how: Any) -> Any:
        for file in Path(self.path).glob("*metadata"):
            with file.open("rb") as data:
                _Tensors(data).load()
        return super().read_metadata(*args, **how)


class _Tensors(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name not in _KNOWN.get(module, "").split():
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is no part of a tensor")
        return super().find_class(module, name)


def _flat(states: Mapping[str, Tensors]) -> dict[str, Tensor]:
    return {f"{part}/{name}": t for part, state in states.items() for name, t in state.tensors().items()}


def _first(error: CheckpointException | RuntimeError) -> str:
    if isinstance(error, RuntimeError):
        return str(error)
    rank, (cause, _) = next(iter(error.failures.items()))
    return f"rank {rank}: {cause}"
