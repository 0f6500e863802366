"""GEM's wrappers: rollenv's, with GEM's defaults, order of arguments and attributes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from rollenv.core import wrappers
from rollenv.core.env import Env, ResetResult, StepResult
from rollenv.core.errors import UsageError
from rollenv.core.tools.base import BaseTool
from rollenv.core.wrappers import TOKENIZER_REQUIRED as TOKENIZER_REQUIRED
from rollenv.plugins.gem.core import GemWrapper, Refused
from rollenv.plugins.gem.tools import AnyTool, PythonCodeTool, SearchTool, as_tool

WrapperObsType = TypeVar("WrapperObsType")


def maybe_add_new_line(text: str) -> str:
    """The text with a line end, unless it is empty or has one."""
    return text if not text or text.endswith("\n") else f"{text}\n"


class ObservationWrapper(GemWrapper, wrappers.ObservationWrapper):
    """The history as the observation; without more arguments through a chat template, as in GEM.

    ``obs_queue`` holds the observations, and whether each came from a tool, ``act_queue`` the actions. The observation
    is made from them, also after others changed them.
    """

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

        turns = max_history_length or None
        self.obs_queue: deque[tuple[str, bool]] = deque(maxlen=turns and turns + 1)
        self.act_queue: deque[str] = deque(maxlen=turns)

    def reset(self, seed: int | None = None, **given: Any) -> ResetResult:
        self.obs_queue.clear()
        self.act_queue.clear()
        observation, info = GemWrapper.reset(self, seed, **given)
        if self.apply_chat_template_on_reset:
            observation = self._template([{"role": "user", "content": observation}])
        self.obs_queue.append((observation, False))
        return self.observation(info), info

    def step(self, action: str) -> StepResult:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.act_queue.append(info.get("parsed_action", action))
        first = self.obs_queue[0] if len(self.obs_queue) == self.obs_queue.maxlen else None
        self.obs_queue.append((observation, bool(info.get("use_tool", False))))
        if first is not None:  # the instructions stay
            self.obs_queue[0] = first
        return self.observation(info), reward, terminated, truncated, info

    def _turns(self) -> list[tuple[str, str, bool]]:
        """Action, observation and whether it came from a tool, after the first observation."""
        if len(self.act_queue) != len(self.obs_queue) - 1:
            raise Refused(
                f"a history has one observation more than actions, not {len(self.obs_queue)} and {len(self.act_queue)}"
            )
        later = list(self.obs_queue)[1:]
        return [(action, *observed) for action, observed in zip(self.act_queue, later, strict=True)]

    def _joined(self) -> str:
        if not self.include_action:
            return "".join(maybe_add_new_line(text) for text, _ in self.obs_queue)
        rest = "".join(maybe_add_new_line(a) + maybe_add_new_line(o) for a, o, _ in self._turns())
        return maybe_add_new_line(self.obs_queue[0][0]) + rest

    def _messages(self) -> list[dict[str, str]]:
        turns = self._turns()
        messages = [{"role": "user", "content": self.obs_queue[0][0]}]
        for action, observation, from_tool in turns:
            messages.append({"role": "assistant", "content": action})
            messages.append({"role": "tool" if from_tool else "user", "content": observation})
        return messages

    def _get_state(self) -> dict[str, Any]:
        return {"observations": [list(o) for o in self.obs_queue], "actions": list(self.act_queue)}

    def _set_state(self, state: dict[str, Any]) -> None:
        self.obs_queue = deque(((text, used) for text, used in state["observations"]), self.obs_queue.maxlen)
        self.act_queue = deque(state["actions"], self.act_queue.maxlen)


class EpisodeTrackingWrapper(GemWrapper, wrappers.EpisodeTrackingWrapper):
    """Statistics of the episode in ``info``."""


class ToolEnvWrapper(GemWrapper, wrappers.ToolEnvWrapper):
    """Tools beside an environment; they may be tools written for GEM, and ``tools`` stays what was given.

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
        self.tools = tools  # type: ignore[assignment]
        if self.max_tool_uses is None:
            self.max_tool_uses = float("inf")  # type: ignore[assignment]

    def _adapted(self) -> list[BaseTool]:
        return [as_tool(tool) for tool in self.tools]

    def spawn(self, same_state: bool = False, **kwargs: Any) -> Env:
        twin = wrappers.ToolEnvWrapper.spawn(self, same_state, **kwargs)
        if isinstance(twin, ToolEnvWrapper):
            twin.tools = [tool.tool if isinstance(tool, AnyTool) else tool for tool in twin.tools]
        return twin

    def close(self) -> None:
        wrappers.ToolEnvWrapper.close(self)

    def step(self, action: str, verbose: bool = False) -> StepResult:
        self._over = False  # whether an episode may go on is for the environment inside to say
        return wrappers.ToolEnvWrapper.step(self, action, verbose)

    def get_state(self, *args: Any, **kwargs: Any) -> Any:
        """The state of the environment inside, and both counters."""
        state = self.env.get_state(*args, **kwargs)
        if args or kwargs or not isinstance(state, dict):
            return state
        counters = {"tool_use_counter": self.tool_use_counter, "tool_success_counter": self.tool_success_counter}
        return {**state, **counters}

    def set_state(self, state: Any, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs or not isinstance(state, dict):
            return self.env.set_state(state, *args, **kwargs)
        state = dict(state)
        self.tool_use_counter = state.pop("tool_use_counter", 0)
        self.tool_success_counter = state.pop("tool_success_counter", 0)
        return self.env.set_state(state)


def _tool(tool: Any, **settings: Any) -> Callable[..., Any]:
    """A wrapper with a tool that all environments share, as in GEM; it keeps no state."""
    rewards = {"tool_reward": 0.0, "tool_success_reward": 0.0, **settings}
    return partial(ToolEnvWrapper, tools=[tool], max_tool_uses=5, **rewards)


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
