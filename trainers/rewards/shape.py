"""Rewards for the format and length of responses."""

from __future__ import annotations

import logging
import re
from typing import Any

from rollenv.core.errors import UsageError
from rollenv.core.needs import require_extra
from rollenv.rollout.types import Trajectory
from rollenv.trainers.advantages import overlong_penalty

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


class Overlong:
    r"""DAPO's soft overlong punishment (arXiv 2503.14476, equation 13), for the sum of all response tokens.

    With ``y`` tokens: 0 up to ``longest - buffer``, then ``(longest - buffer - y) / buffer`` down to -1 at ``longest``,
    and -1 beyond; times ``penalty``.

    Args:
        longest: number of response tokens in an episode at which the punishment is complete.
        buffer: number of tokens before that over which it grows.
    """

    def __init__(self, longest: int, buffer: int, penalty: float = 1.0):
        if not 0 < buffer <= longest or not penalty > 0:
            raise UsageError(
                f"0 < buffer <= longest and penalty > 0 must hold; got buffer={buffer}, longest={longest}, "
                f"penalty={penalty}"
            )
        self.longest, self.buffer, self.penalty = longest, buffer, penalty

    async def __call__(self, trajectory: Trajectory) -> float:
        tokens = sum(len(turn.response_ids) for turn in trajectory.turns)
        return self.penalty * float(overlong_penalty([tokens], limit=self.longest, buffer=self.buffer)[0])
