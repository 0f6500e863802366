"""The settings of batches."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rollenv.trainers.config.section import Section, union


class Collect(Section):
    """Play a batch, train on it, play the next."""

    kind: Literal["collect"] = "collect"


class Stream(Section):
    """Play while training. The order of episodes then depends on the clock: a resumed run goes on with the tasks that
    it had begun, but not to the same numbers."""

    kind: Literal["stream"] = "stream"
    max_staleness: int = Field(1, ge=0)
    """The most updates that the weights may have had since a trained token was drawn."""
    colocated: bool = False
    """Player and trainer share a device: nothing is drawn during an update."""


class Tail(Section):
    """Tasks that are too slow for a batch are put by, and played together when there are enough of them for one. Needs
    ``rollout.extra_groups``."""

    kind: Literal["tail"] = "tail"


AnyBatches = Annotated[
    Collect | Stream | Tail,
    Field(discriminator="kind"),
    union("batches", "kind", Collect, Stream, Tail),
]
