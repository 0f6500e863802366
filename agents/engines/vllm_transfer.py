"""Weights from the trainer's GPU to vLLM's by vLLM's own trainer API (0.28 and later)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from rollenv.core import UsageError
from rollenv.needs import extra

with extra("vllm", "Sending weights to vLLM"):
    import torch
    from vllm.distributed.weight_transfer import (  # type: ignore[import-not-found]
        HTTPVLLMWeightSyncClient,
        WeightTransferTrainerFactory,
    )
    from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource  # type: ignore[import-not-found]
    from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo  # type: ignore[import-not-found]
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo  # type: ignore[import-not-found]
    from vllm.utils.network_utils import get_ip, get_open_port  # type: ignore[import-not-found]

logger = logging.getLogger(__name__)

Weights = Sequence[tuple[str, torch.Tensor]]


class Client(Protocol):
    """The four calls that vLLM's side of a transfer answers (vLLM's ``VLLMWeightSyncClient``)."""

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None: ...

    def start_weight_update(self) -> None: ...

    def update_weights(self, update_info: Any) -> None: ...

    def finish_weight_update(self, weight_version: str | None = None) -> None: ...


class Transfer:
    """A way for weights from this process to one vLLM engine, which has ``weight_transfer_config={"backend": KIND}``.

    Args:
        kind: "nccl", between GPUs; or "ipc", on one GPU, or between those of a node that see each other's memory.

    Raises:
        UsageError: there is no such way, or no GPU in this process.
    """

    def __init__(self, kind: str, client: Client, workers: int = 1):
        if kind not in ("nccl", "ipc"):
            raise UsageError(f'vLLM\'s weight transfer {kind!r} is not "nccl" or "ipc"; training needs one of these')
        if not torch.cuda.is_available():
            raise UsageError(
                f"vLLM waits for weights by {kind}, which needs a GPU in the trainer's process: start it without "
                "weight_transfer_config, and weights go through Ray's object store or a folder"
            )
        logger.info("weights go to vLLM by %s, to %d GPUs", kind, workers)
        self.kind, self.client, self.workers = kind, client, workers
        self._source = _Round()
        self._engine: Any = None

    def send(self, weights: Weights) -> None:
        """Send all weights, and wait until they are loaded.

        Raises:
            UsageError: the engine refused the transfer.
        """
        device = next((tensor.device for _, tensor in weights if tensor.is_cuda), torch.device("cuda"))
        try:
            with torch.cuda.device(device):  # a thread of its own begins with the first GPU, whichever is trained on
                self._source.weights = [(name, tensor.detach().to(device)) for name, tensor in weights]
                if self._engine is None:
                    self._engine = WeightTransferTrainerFactory.trainer_init(
                        self._about(), client=self.client, source=self._source
                    )
                self._engine.send_weights()
        except Exception as error:
            self._engine = None  # the next one begins anew, also where vLLM was started again
            raise UsageError(
                f"vLLM did not take weights by {self.kind}: {type(error).__name__}: {error}; without "
                "weight_transfer_config they go through Ray's object store or a folder"
            ) from error
        finally:
            self._source.weights = []

    def _about(self) -> Any:
        if self.kind == "ipc":
            return IPCTrainerInitInfo(rank=0, packed=True)
        world = 1 + self.workers
        return NCCLTrainerInitInfo(
            rank=0, master_address=get_ip(), master_port=get_open_port(), world_size=world, packed=True
        )


class _Round(WeightSource):  # type: ignore[misc]
    """The weights of one update, in vLLM's form."""

    weights: Weights = ()

    def metadata(self) -> list[Any]:
        return [ParamMeta(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in self.weights]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(self.weights)


class CalledClient:
    """A client over an engine that is called by name.

    Args:
        call: calls one of vLLM's worker methods in the engine, with these keyword arguments, and waits.
    """

    def __init__(self, call: Callable[..., Any]):
        self._call = call

    def init_weight_transfer_engine(self, init_info: Mapping[str, Any]) -> None:
        """Begin; see vLLM."""
        self._call("init_weight_transfer_engine", init_info=dict(init_info))

    def start_weight_update(self) -> None:
        """Begin an update."""
        self._call("start_weight_update")

    def update_weights(self, update_info: Any) -> None:
        """Receive weights."""
        self._call("update_weights", update_info=update_info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """End an update; versions are marked elsewhere."""
        self._call("finish_weight_update")


def server_transfer(kind: str, url: str, workers: int) -> Transfer:
    """Make the transfer of weights to a vLLM server.

    Args:
        kind: "nccl" or "ipc"; see :class:`Transfer`.
    """
    return Transfer(kind, HTTPVLLMWeightSyncClient(url), workers)
