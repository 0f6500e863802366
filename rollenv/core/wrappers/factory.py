"""Wrappers by name, with the names of GEM's training scripts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from rollenv.core.env import Env
from rollenv.core.errors import UsageError, did_you_mean
from rollenv.core.parts import part
from rollenv.core.plugins import function_at
from rollenv.core.tools.base import BaseTool
from rollenv.core.wrappers.observation import ObservationWrapper
from rollenv.core.wrappers.tool_env import ToolEnvWrapper
from rollenv.core.wrappers.tracking import EpisodeTrackingWrapper

if TYPE_CHECKING:
    from rollenv.core.env_spec import Wrappers

WrapperFn = Callable[..., Env]


def _python_tool(**settings: Any) -> BaseTool:
    from rollenv.core.tools.python import PythonCodeTool

    return PythonCodeTool(**{"timeout": 5, **settings})


def _search_tool(**settings: Any) -> BaseTool:
    from rollenv.core.tools.search import SearchTool

    return SearchTool(**{"topk": 3, "timeout": 5, **settings})


def _with_tool(env: Env, *, tool: Callable[..., BaseTool], **settings: Any) -> ToolEnvWrapper:
    """Wrap an environment with a new tool of its own; settings go to the wrapper or the tool by name."""
    about = {"max_tool_uses": 5} | {name: settings.pop(name) for name in _OF_THE_WRAPPER & settings.keys()}
    return ToolEnvWrapper(env, [tool(**settings)], **about)


_OF_THE_WRAPPER = {"tool_reward", "tool_success_reward", "tool_execute_error_reward", "max_tool_uses"}

#: To combine several, list them in this order: a tool, an observation, tracking.
WRAPPER_FACTORY: dict[str, WrapperFn] = {
    "python_tool": partial(_with_tool, tool=_python_tool, tool_reward=0.05, tool_success_reward=0.25),
    "python_tool_no_int_reward": partial(_with_tool, tool=_python_tool),
    "python_tool_no_int_reward_last_line_error": partial(
        _with_tool, tool=partial(_python_tool, keep_error_last_line=True)
    ),
    "search_tool": partial(_with_tool, tool=_search_tool, tool_reward=0.3),
    "search_tool_no_int_reward": partial(_with_tool, tool=_search_tool),
    "concat": partial(ObservationWrapper, include_action=False, include_chat_template=False),
    "concat_chat": partial(ObservationWrapper, include_chat_template=True),
    "concat_with_action": partial(ObservationWrapper, include_chat_template=False),
    "concat_chat_on_reset": partial(ObservationWrapper, include_chat_template=False, apply_chat_template_on_reset=True),
    "episode_tracking": EpisodeTrackingWrapper,
}

TOKENIZER_REQUIRED = ["concat_chat", "concat_chat_on_reset"]


def wrap(env: Env, wrappers: Wrappers) -> Env:
    """Put wrappers around an environment, the first innermost.

    Args:
        wrappers: names of :data:`WRAPPER_FACTORY` or ``"module:function"``, with settings. A ``tokenizer`` may be a
            path.
    """
    for name, settings in wrappers.items():
        if not isinstance(name, str) or not isinstance(settings, Mapping):
            raise UsageError(f"wrappers are names with settings, as {{'concat': {{}}}}, not {name!r}: {settings!r}")
        function, given = _found(name), dict(settings)
        if isinstance(path := given.get("tokenizer"), str):
            given["tokenizer"] = part("tokenizer")(path)
        elif name in TOKENIZER_REQUIRED and path is None:
            raise UsageError(f"the wrapper {name!r} needs a tokenizer; pass tokenizer=")
        try:
            wrapped: Any = function(env, **given)
        except TypeError as error:
            raise UsageError(f"the wrapper {name!r} cannot wrap {env} with {given}: {error}") from error
        if not isinstance(wrapped, Env):
            raise UsageError(f"the wrapper {name!r} returned {type(wrapped).__name__}, which is not an environment")
        env = wrapped
    return env


def _found(name: str) -> WrapperFn:
    if name in WRAPPER_FACTORY:
        return WRAPPER_FACTORY[name]
    if ":" in name:
        return function_at(name, "the wrapper")
    hint = did_you_mean(name, WRAPPER_FACTORY, f"there are {', '.join(WRAPPER_FACTORY)}", most=2)
    raise UsageError(f"there is no wrapper {name!r}; {hint}")


def with_tokenizer(wrappers: Wrappers, tokenizer: str) -> dict[str, dict[str, Any]]:
    """Set the tokenizer, a path, of the wrappers that need one and have none."""
    return {
        name: {**({"tokenizer": tokenizer} if tokenizer and name in TOKENIZER_REQUIRED else {}), **settings}
        for name, settings in wrappers.items()
    }
