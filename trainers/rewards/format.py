"""Rewards for the format of responses."""

from __future__ import annotations

import logging
import re
from typing import Any

from rollenv.core.errors import UsageError
from rollenv.core.needs import require_extra
from rollenv.rollout.types import Trajectory

logger = logging.getLogger(__name__)

#: Seconds after which a match counts as failed: ``(a+)+b`` takes exponential time.
PATIENCE = 1.0


class Format:
    """A reward for responses in a format, and another for other responses; the mean over turns.

    Args:
        pattern: a regular expression for the whole response; ``.`` matches line ends too, and white space around the
            response does not count. A match that takes longer than :data:`PATIENCE` counts as none, with a warning.
    """

    def __init__(self, pattern: str, *, matched: float = 0.0, missed: float = -1.0):
        library: Any = require_extra("regex", "train", "A reward for the format")  # re has no time limit
        try:
            re.compile(pattern, re.DOTALL)
            self.pattern = library.compile(pattern, library.DOTALL)
        except (re.error, library.error) as error:
            raise UsageError(f"the format {pattern!r} is not a regular expression: {error}") from error
        if matched == missed:
            raise UsageError(f"a format whose rewards are both {matched} has no effect")
        self.matched, self.missed = matched, missed

    async def __call__(self, trajectory: Trajectory) -> float:
        good = [self._fits((turn.raw or turn.text).strip()) for turn in trajectory.turns]
        return sum(self.matched if one else self.missed for one in good) / len(good)

    def _fits(self, response: str) -> bool:
        try:
            return self.pattern.fullmatch(response, timeout=PATIENCE) is not None
        except TimeoutError:
            logger.warning("the format %r took over %g s on %.60r...", self.pattern.pattern, PATIENCE, response)
            return False
