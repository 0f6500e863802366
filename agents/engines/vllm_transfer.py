"""Weight transfer from the trainer's GPU to vLLM's with vLLM's trainer API (0.28 and later)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

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


class Transfer:
    """Transfers weights from this process to a vLLM server with ``weight_transfer_config={"backend": KIND}``.

    Args:
        kind: "nccl", between GPUs; or "ipc", on one GPU or between the GPUs of a node with peer access.
    """

    def __init__(self, kind: str, url: str, workers: int):
        if kind not in ("nccl", "ipc"):
            raise UsageError(f'vLLM\'s weight transfer {kind!r} is not "nccl" or "ipc"; training needs one of these')
        if not torch.cuda.is_available():
            raise UsageError(
                f"vLLM's weight transfer by {kind} needs a GPU in the trainer's process: start vLLM without "
                "weight_transfer_config, and weights go through a folder"
            )
        logger.info("weights go to vLLM by %s, to %d GPUs", kind, workers)
        self.kind, self.client, self.workers = kind, HTTPVLLMWeightSyncClient(url), workers
        self._source = _Round()
        self._engine: Any = None

    def send(self, weights: Weights) -> None:
        """Send all weights, and wait until they are loaded."""
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
                "weight_transfer_config they go through a folder"
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
