"""Wrappers by name, as GEM's training scripts ask for them."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from functools import partial
from typing import Any

from rollenv.core import Env, UsageError
from rollenv.tools.base import BaseTool
from rollenv.wrappers.observation import ObservationWrapper, Tokenizer
from rollenv.wrappers.tool_env import ToolEnvWrapper
from rollenv.wrappers.tracking import EpisodeTrackingWrapper

WrapperFn = Callable[..., Env]


def _python_tool(**settings: Any) -> BaseTool:
    from rollenv.tools.python import PythonCodeTool

    return PythonCodeTool(timeout=5, **settings)


def _search_tool(**settings: Any) -> BaseTool:
    from rollenv.tools.search import SearchTool

    return SearchTool(topk=3, timeout=5, **settings)


def _with_tool(env: Env, *, tool: Callable[[], BaseTool], **settings: Any) -> ToolEnvWrapper:
    """Each environment gets a tool of its own, made when it is wrapped."""
    return ToolEnvWrapper(env, [tool()], max_tool_uses=5, **settings)


#: Order when several are combined: a tool, an observation, tracking.
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


def get_wrapper_fns(wrappers: str, tokenizer: Tokenizer | None = None) -> list[WrapperFn]:
    """The wrappers named in a comma-separated string, to be applied in this order.

    Raises:
        UsageError: for an unknown name, or a chat wrapper without a tokenizer.
    """
    found: list[WrapperFn] = []
    for name in filter(None, (part.strip() for part in wrappers.split(","))):
        if name not in WRAPPER_FACTORY:
            near = difflib.get_close_matches(name, WRAPPER_FACTORY, n=2)
            hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(WRAPPER_FACTORY)}"
            raise UsageError(f"there is no wrapper {name!r}; {hint}")
        if name in TOKENIZER_REQUIRED:
            if tokenizer is None:
                raise UsageError(f"the wrapper {name!r} needs a tokenizer; pass tokenizer=")
            found.append(partial(WRAPPER_FACTORY[name], tokenizer=tokenizer))
        else:
            found.append(WRAPPER_FACTORY[name])
    return found
