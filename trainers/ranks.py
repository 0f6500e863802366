"""Communication between the processes that train one model together."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from rollenv.core.errors import RollenvError
from rollenv.trainers.experience import Floats

#: Timeout of waiting for other ranks, which are idle while the first one plays. Closed connections or Ray report the
#: death of a rank at once.
_PATIENCE = datetime.timedelta(days=7)


class RankLost(RollenvError):
    """Another process of the run has ended."""


@dataclass(frozen=True)
class Ranks:
    """Several processes with one device each, or a single process.

    All run the same code on the same batch, each for a part of the samples. The first one, number 0, also plays, logs
    and writes, and sends commands to the others.
    """

    number: int = 0
    count: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    group: Any = None
    """Process group for tensors in main memory; None for a single process."""

    @classmethod
    def joined(cls, device: torch.device) -> Ranks:
        """Create the ranks of an initialized torch.distributed."""
        group = dist.new_group(backend="gloo", timeout=_PATIENCE)
        return cls(dist.get_rank(), dist.get_world_size(), device, group)

    @property
    def first(self) -> bool:
        """True if this is the rank that plays, logs and writes."""
        return self.number == 0

    @property
    def together(self) -> bool:
        """True if there are other ranks."""
        return self.group is not None

    def share(self, value: Any) -> Any:
        """Broadcast a value of the first rank and return it.

        Raises:
            RankLost: another rank has ended.
        """
        if self.group is None:
            return value
        box = [value if self.first else None]
        try:
            dist.broadcast_object_list(box, src=0, group=self.group)
        except RuntimeError as error:
            raise self._lost(error) from error
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks in order, on every rank."""
        if self.group is None:
            return [value]
        out = [None] * self.count
        try:
            dist.all_gather_object(out, value, group=self.group)
        except RuntimeError as error:
            raise self._lost(error) from error
        return out

    def sum(self, values: Floats) -> Floats:
        """Return the sum over all ranks, on every rank; shapes must be equal."""
        if self.group is None:
            return values
        total = torch.from_numpy(np.ascontiguousarray(values))
        try:
            dist.all_reduce(total, group=self.group)
        except RuntimeError as error:
            raise self._lost(error) from error
        summed: Floats = total.numpy()
        return summed

    def meet(self) -> None:
        """Wait for all ranks."""
        self.gather(None)

    def send_command(self, order: str, *what: Any) -> None:
        """Send a command to the other ranks; does nothing unless this is the first rank."""
        if self.first:
            self.share((order, what))

    def receive_command(self) -> tuple[str, tuple[Any, ...]]:
        """Wait for the next command of the first rank and return its name and arguments."""
        order, what = self.share(None)
        return order, what

    def _lost(self, error: RuntimeError) -> RankLost:
        return RankLost(
            f"rank {self.number} of {self.count} lost its connection because another rank ended: see its error, and "
            f"continue from the last checkpoint with --resume ({str(error).splitlines()[0]})"
        )


ALONE = Ranks()
