"""Look up an order's number by name, then ship, hold or cancel it; for models of less than a million weights."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from rollenv.core.env import ResetResult, StepResult
from rollenv.core.errors import UsageError
from rollenv.core.tools.backend import Backend, ToolError, tool
from rollenv.core.tools.calls import CallForm
from rollenv.envs.tools.base import Move, Problem, ToolEnv
from rollenv.envs.tools.generated import words

Number = Annotated[int, Field(ge=10, le=99)]
_VERBS = {"ship": "shipped", "hold": "held", "cancel": "cancelled"}


class Orders(Backend):
    """Orders by number, with customer and status."""

    def _set(self, id: int, status: str) -> str:
        if str(id) not in self.state:
            raise ToolError("no such id")
        self.state[str(id)]["status"] = status
        return "ok"

    @tool
    def find(self, name: str) -> str:
        """The id of somebody's order."""
        for key, one in self.state.items():
            if one["name"] == name:
                return key
        raise ToolError("no such name")

    @tool
    def ship(self, id: Number) -> str:
        """Ship an order."""
        return self._set(id, "shipped")

    @tool
    def hold(self, id: Number) -> str:
        """Hold an order back."""
        return self._set(id, "held")

    @tool
    def cancel(self, id: Number) -> str:
        """Cancel an order."""
        return self._set(id, "cancelled")


class TinyEnv(ToolEnv):
    """A few orders; one is to be shipped, held or cancelled, and its number has to be looked up by name.

    ``info["brief"]`` is the state in one line: the request and the last answer, as in ``ship Ada > 17``.

    Args:
        records: number of orders, 3 to 20.
        brief: return ``info["brief"]`` as the observation.
    """

    def __init__(
        self, *, records: int = 4, brief: bool = False, calls: CallForm = "python", max_turns: int = 4, **settings: Any
    ):
        super().__init__(calls=calls, max_turns=max_turns, **settings)
        if isinstance(records, bool) or not isinstance(records, int) or not 3 <= records <= 20:
            raise UsageError(f"records={records!r} is not a whole number from 3 to 20")
        if not isinstance(brief, bool):
            raise UsageError(f"brief={brief!r} is not true or false")
        self.records, self.brief = records, brief

    def problem(self, key: int) -> Problem:
        rng = random.Random(key)
        names, numbers = rng.sample(words.FIRST, self.records), rng.sample(range(10, 100), self.records)
        orders = {str(n): {"name": name, "status": "new"} for n, name in zip(numbers, names, strict=True)}
        verb = rng.choice(list(_VERBS))
        plan: list[Move] = [[("find", {"name": names[0]})], [(verb, {"id": numbers[0]})], "Done."]
        return Problem(f"{verb} {names[0]}", Orders(orders), plan)

    def _brief_line(self) -> str:
        """Return the request and the last answer in one line."""
        answers = [line for line in self.last.split("\n") if line and not line.startswith("<")]
        return " > ".join([self.current.question, *answers])

    def _reset(self, options: dict[str, Any]) -> ResetResult:
        _, info = super()._reset(options)
        verb, name = self.current.question.split()
        asked = f"Say Done. at the end.\n{verb.capitalize()} {name}'s order."
        text = asked if self.calls == "native" else f"{self._described(info['tools'])} {asked}"
        return self._brief_line() if self.brief else text, info | {"brief": self._brief_line()}

    def _described(self, schemas: Sequence[Mapping[str, Any]]) -> str:
        """Describe the functions and the form of calls in one line."""
        each = [
            f"{one['function']['name']}({', '.join(one['function']['parameters']['properties'])})" for one in schemas
        ]
        forms = {"python": '[f(x="a")]', "json": '{"name": "f", "arguments": {"x": "a"}}'}
        how = forms.get(self.calls, '<tool_call>{"name": "f", "arguments": {"x": "a"}}</tool_call>')
        return f"Functions: {', '.join(each)}. Call one with {how}."

    def _step(self, action: str) -> StepResult:
        observation, reward, terminated, truncated, info = super()._step(action)
        brief = self._brief_line()
        return brief if self.brief else observation, reward, terminated, truncated, info | {"brief": brief}
