"""GEM's wrappers: rollenv's, with GEM's defaults, order of arguments and attributes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from rollenv import wrappers
from rollenv.compat.gem.core import GemWrapper, Refused
from rollenv.compat.gem.tools import PythonCodeTool, SearchTool, as_tool
from rollenv.core import StepResult, UsageError
from rollenv.wrappers import TOKENIZER_REQUIRED

__all__ = [
    "TOKENIZER_REQUIRED",
    "WRAPPER_FACTORY",
    "EpisodeTrackingWrapper",
    "ObservationWrapper",
    "ToolEnvWrapper",
    "WrapperObsType",
    "get_wrapper_fns",
    "maybe_add_new_line",
]

WrapperObsType = TypeVar("WrapperObsType")


def maybe_add_new_line(text: str) -> str:
    """The text with a line end, unless it is empty or has one."""
    return text if not text or text.endswith("\n") else f"{text}\n"


class ObservationWrapper(GemWrapper, wrappers.ObservationWrapper):
    """The history as the observation; without more arguments through a chat template, as in GEM."""

    def __init__(
        self,
        env: Any,
        include_action: bool = True,
        include_chat_template: bool = True,
        apply_chat_template_on_reset: bool = False,
        max_history_length: int | None = None,
        tokenizer: Any = None,
    ):
        try:
            wrappers.ObservationWrapper.__init__(
                self,
                env,
                include_action,
                include_chat_template,
                apply_chat_template_on_reset,
                max_history_length or None,
                tokenizer,
            )
        except UsageError as error:
            raise Refused(str(error)) from error

    @property
    def obs_queue(self) -> list[tuple[str, bool]]:
        """The observations so far, and whether each came from a tool."""
        return self._observations

    @property
    def act_queue(self) -> list[str]:
        """The actions so far."""
        return self._actions


class EpisodeTrackingWrapper(GemWrapper, wrappers.EpisodeTrackingWrapper):
    """Statistics of the episode in ``info``."""


class ToolEnvWrapper(GemWrapper, wrappers.ToolEnvWrapper):
    """Tools beside an environment; they may be tools written for GEM.

    The fifth argument by position is ``tool_execute_error_reward``, or in GEM 0.1.0 ``max_tool_uses``: a whole number
    or None there means the latter.
    """

    def __init__(
        self,
        env: Any,
        tools: Sequence[Any],
        tool_reward: float = 0.0,
        tool_success_reward: float = 0.0,
        *rest: Any,
        **named: Any,
    ):
        names = ["tool_execute_error_reward", "max_tool_uses"]
        if len(rest) == 1 and not isinstance(rest[0], float):
            names = ["max_tool_uses"]
        if len(rest) > len(names):
            raise TypeError(f"ToolEnvWrapper takes at most 6 arguments by position besides self, got {len(rest) + 4}")
        settings = {**dict(zip(names, rest, strict=False)), **named}
        if settings.get("max_tool_uses") == float("inf"):
            settings["max_tool_uses"] = None
        rewards: dict[str, Any] = {"tool_reward": tool_reward, "tool_success_reward": tool_success_reward}
        wrappers.ToolEnvWrapper.__init__(self, env, [as_tool(tool) for tool in tools], **rewards, **settings)
        if self.max_tool_uses is None:
            self.max_tool_uses = float("inf")  # type: ignore[assignment]

    def close(self) -> None:
        wrappers.ToolEnvWrapper.close(self)

    def step(self, action: str, verbose: bool = False) -> StepResult:
        self._over = False  # whether an episode may go on is for the environment inside to say
        return wrappers.ToolEnvWrapper.step(self, action, verbose)

    def get_state(self) -> dict[str, Any]:
        """The state of the environment inside, and both counters."""
        return {
            **self.env.get_state(),
            "tool_use_counter": self.tool_use_counter,
            "tool_success_counter": self.tool_success_counter,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        state = dict(state)
        self.tool_use_counter = state.pop("tool_use_counter", 0)
        self.tool_success_counter = state.pop("tool_success_counter", 0)
        self.env.set_state(state)


def _tool(tool: Any, **settings: Any) -> Callable[..., Any]:
    """As in GEM, the tool is there from the start and all environments share it: neither remembers anything."""
    return partial(ToolEnvWrapper, tools=[tool], max_tool_uses=5, **settings)


#: Order when several are combined: a tool, an observation, tracking.
WRAPPER_FACTORY: dict[str, Callable[..., Any]] = {
    "python_tool": _tool(PythonCodeTool(timeout=5), tool_reward=0.05, tool_success_reward=0.25),
    "python_tool_no_int_reward": _tool(PythonCodeTool(timeout=5)),
    "python_tool_no_int_reward_last_line_error": _tool(PythonCodeTool(timeout=5, keep_error_last_line=True)),
    "search_tool": _tool(SearchTool(topk=3, timeout=5), tool_reward=0.3),
    "search_tool_no_int_reward": _tool(SearchTool(topk=3, timeout=5)),
    "concat": partial(ObservationWrapper, include_action=False, include_chat_template=False),
    "concat_chat": partial(ObservationWrapper, include_action=True, include_chat_template=True),
    "concat_with_action": partial(ObservationWrapper, include_action=True, include_chat_template=False),
    "concat_chat_on_reset": partial(
        ObservationWrapper, include_action=True, include_chat_template=False, apply_chat_template_on_reset=True
    ),
    "episode_tracking": EpisodeTrackingWrapper,
}


def get_wrapper_fns(wrappers: str, tokenizer: Any = None) -> list[Callable[..., Any]]:
    """The wrappers named in a comma-separated string, in this order; chat wrappers get the tokenizer if there is one.

    Raises:
        KeyError: for an unknown name.
    """
    found = []
    for name in filter(None, (part.strip() for part in (wrappers or "").split(","))):
        function = WRAPPER_FACTORY[name]
        given = {"tokenizer": tokenizer} if name in TOKENIZER_REQUIRED and tokenizer is not None else {}
        found.append(partial(function, **given) if given else function)
    return found
