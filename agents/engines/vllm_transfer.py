"""Weight transfer from the trainer's GPU to vLLM's with vLLM's trainer API (0.28 and later)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from rollenv.core.errors import UsageError
from rollenv.core.needs import extra

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
    """The four calls to vLLM's side of a transfer (vLLM's ``VLLMWeightSyncClient``)."""

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None: ...

    def start_weight_update(self) -> None: ...

    def update_weights(self, update_info: Any) -> None: ...

    def finish_weight_update(self, weight_version: str | None = None) -> None: ...


class Transfer:
    """Transfers weights from this process to one vLLM engine with ``weight_transfer_config={"backend": KIND}``.

    Args:
        kind: "nccl", between GPUs; or "ipc", on one GPU or between the GPUs of a node with peer access.

    Raises:
        UsageError: there is no such kind, or no GPU in this process.
    """

    def __init__(self, kind: str, client: Client, workers: int = 1):
        if kind not in ("nccl", "ipc"):
            raise UsageError(f'vLLM\'s weight transfer {kind!r} is not "nccl" or "ipc"; training needs one of these')
        if not torch.cuda.is_available():
            raise UsageError(
                f"vLLM's weight transfer by {kind} needs a GPU in the trainer's process: start vLLM without "
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
            with torch.cuda.device(device):  # a new thread would use the first GPU
                self._source.weights = [(name, tensor.detach().to(device)) for name, tensor in weights]
                if self._engine is None:
                    self._engine = WeightTransferTrainerFactory.trainer_init(
                        self._about(), client=self.client, source=self._source
                    )
                self._engine.send_weights()
        except Exception as error:
            self._engine = None  # the next transfer initialises again, since vLLM may have been restarted
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
    """A client for an engine whose worker methods are called by name.

    Args:
        call: calls a worker method of vLLM with keyword arguments, and waits for its end.
    """

    def __init__(self, call: Callable[..., Any]):
        self._call = call

    def init_weight_transfer_engine(self, init_info: Mapping[str, Any]) -> None:
        """Initialise the transfer; see vLLM."""
        self._call("init_weight_transfer_engine", init_info=dict(init_info))

    def start_weight_update(self) -> None:
        """Start an update."""
        self._call("start_weight_update")

    def update_weights(self, update_info: Any) -> None:
        """Receive weights."""
        self._call("update_weights", update_info=update_info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Finish an update; the version is set elsewhere."""
        self._call("finish_weight_update")


def server_transfer(kind: str, url: str, workers: int) -> Transfer:
    """Create the weight transfer to a vLLM server.

    Args:
        kind: "nccl" or "ipc"; see :class:`Transfer`.
    """
    return Transfer(kind, HTTPVLLMWeightSyncClient(url), workers)
