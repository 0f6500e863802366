"""The base of generated tasks: draws, splits, action formats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rollenv.core.errors import UsageError
from rollenv.core.parsing import ACTION_FORMATS, last_code_block
from rollenv.envs.data.task import AnswerEnv
from rollenv.envs.splits import check_split, in_split

Format = tuple[Callable[[str], str | None], str]

#: Parsers of answers, and the templates to write them.
FORMATS: dict[str, Format] = {**ACTION_FORMATS, "code": (last_code_block, "```python\n%s\n```")}

#: One in this many tasks is a test task.
_TEST_SHARE = 5
LARGEST = 10**12


class ProceduralEnv(AnswerEnv):
    """A task drawn from the private random stream.

    Args:
        split: ``train`` and ``test`` never share a task; ``all`` is both.
        action_format: ``boxed``, ``answer`` (tags), ``code`` (a fenced block) or ``bare`` (nothing but the answer).
    """

    #: Attributes with the state of the task: numbers, texts and tuples of those.
    state_names: tuple[str, ...]

    def __init__(self, *, split: str, action_format: str, max_turns: int, format_reward: float):
        super().__init__(max_turns=max_turns, format_reward=format_reward)
        check_split(split)
        if action_format not in FORMATS:
            raise UsageError(f"action_format {action_format!r} is unknown; choose from {', '.join(FORMATS)}")
        self.split, self.action_format = split, action_format
        self._extract, self._template = FORMATS[action_format]

    def _draw(self) -> str:
        """Draw a task and return its name: equal tasks have equal names."""
        raise NotImplementedError(f"{type(self).__name__} has no _draw()")

    def _new_task(self, options: dict[str, Any]) -> None:
        for _ in range(1000):
            if in_split(self._draw(), self.split, _TEST_SHARE):
                return
        raise UsageError(f"{self}: its settings leave no tasks in the split {self.split!r}")

    def _between(self, span: tuple[int, int]) -> int:
        """Draw from the span, including both ends."""
        return span[0] + self.randint(span[1] - span[0] + 1)

    def format_answer(self, answer: object) -> str:
        """Write an answer in the action format."""
        return self._template % str(answer)

    def _get_state(self) -> dict[str, Any]:
        return {"turn": self.turn, **{name: getattr(self, name) for name in self.state_names}}

    def _set_state(self, state: dict[str, Any]) -> None:
        self.turn = state["turn"]
        for name in self.state_names:
            setattr(self, name, _tuples(state[name]))


def _tuples(value: Any) -> Any:
    """Convert lists from JSON back to tuples."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def span(name: str, value: int | Sequence[int], least: int) -> tuple[int, int]:
    """Normalise a number, or a pair of bounds, to inclusive bounds."""
    ends = (value, value) if isinstance(value, int) else tuple(value)
    if len(ends) != 2 or not least <= ends[0] <= ends[1] <= LARGEST:
        raise UsageError(f"{name} must be a number or (lowest, highest) from {least} to {LARGEST}, got {value!r}")
    return ends[0], ends[1]
