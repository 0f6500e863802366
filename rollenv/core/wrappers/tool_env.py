"""Tools around an environment: an action that calls a tool takes no turn of the environment."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, TypeGuard

from rollenv.core.env import Env, ResetResult, StepResult, Wrapper
from rollenv.core.errors import EpisodeOver, UsageError
from rollenv.core.picture_forms import observed
from rollenv.core.tools.base import BaseTool
from rollenv.core.tools.call_readers import ToolCall
from rollenv.core.tools.calls import find_calls
from rollenv.core.tools.function import CallableTool, CallResult, together, unknown_tool

#: Appended to the answer to the last allowed call.
LAST_USE = "\n\nThat was the last tool call allowed. Give the final answer now."


class ToolEnvWrapper(Wrapper):
    """Lets an agent call tools during an episode.

    The first tool that recognises an action answers it; the answer to a malformed or failed call is its error. Several
    calls by name are carried out in order, each counts, and ``info["tool_responses"]`` has one text for each;
    ``info["images"]`` has the pictures that they return, if any. An action that no tool recognises is a step of the
    environment. The tools are reset and closed with the environment; a spawned copy has its own tools.

    Args:
        tool_success_reward: added to ``tool_reward`` if the call succeeds.
        max_tool_uses: calls per episode; after them every action goes to the environment. None for no limit.
    """

    def __init__(
        self,
        env: Env,
        tools: Sequence[BaseTool],
        tool_reward: float = 0.0,
        tool_success_reward: float = 0.0,
        tool_execute_error_reward: float = 0.0,
        max_tool_uses: int | None = 10,
    ):
        super().__init__(env)
        if max_tool_uses is not None and max_tool_uses < 0:
            raise UsageError(f"max_tool_uses must be None or at least 0, got {max_tool_uses}")
        for tool in tools:
            tool.check()
        self.tools = [tool.acquire() for tool in tools]
        self._closed = False
        self.tool_reward, self.tool_success_reward = tool_reward, tool_success_reward
        self.tool_execute_error_reward = tool_execute_error_reward
        self.max_tool_uses = max_tool_uses
        self.tool_use_counter = self.tool_success_counter = 0
        self._over = True

    def reset(self, seed: int | None = None, **kwargs: Any) -> ResetResult:
        observation, info = super().reset(seed, **kwargs)
        for tool in self._adapted():
            tool.reset()
        info["prev_ep_tool_use_counter"] = self.tool_use_counter
        info["prev_ep_tool_success_counter"] = self.tool_success_counter
        self.tool_use_counter = self.tool_success_counter = 0
        self._over = False
        instructions = "\n".join(tool.instruction_string() for tool in self._adapted())
        if len(self.tools) > 1:
            instructions = f"Available tools:\n{instructions}"
        return f"{observation}\n{instructions}", info | self._counters(used=False)

    def step(self, action: str, verbose: bool = False) -> StepResult:
        if self._over:
            raise EpisodeOver(f"{self}: the episode is over; call reset() to start the next one")
        if self.max_tool_uses is None or self.tool_use_counter < self.max_tool_uses:
            for tool in self._adapted():
                if _is_called_by_name(tool):
                    if calls := self._calls(action):
                        return self._carried_out(calls, action)
                    continue
                known, failed, answer, parsed = tool.execute_action(action)
                if known:
                    return self._used(tool, [failed], answer, parsed)
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._over = terminated or truncated
        return observation, reward, terminated, truncated, info | self._counters(used=False)

    def _adapted(self) -> Sequence[BaseTool]:
        """The tools, adapted to this environment."""
        return self.tools

    def _calls(self, action: str) -> list[ToolCall]:
        schemas = [schema for tool in self._adapted() if _is_called_by_name(tool) for schema in tool.schemas()]
        return find_calls(action, schemas=schemas)[0]

    def _carried_out(self, calls: list[ToolCall], action: str) -> StepResult:
        """Carry out calls in order up to the limit, and name those beyond it."""
        tools = [tool for tool in self._adapted() if _is_called_by_name(tool)]
        by_name = {name: tool for tool in reversed(tools) for name in tool.names()}
        left = len(calls) if self.max_tool_uses is None else min(len(calls), self.max_tool_uses - self.tool_use_counter)
        results = [
            by_name.get(call.name, tools[0]).answer(call)
            if call.problem or call.name in by_name
            else CallResult(True, unknown_tool(call.name, list(by_name)))
            for call in calls[:left]
        ]
        texts, images = [text for _, text in results], [image for result in results for image in result.images]
        texts += ["This call was not carried out: no tool calls are left."] * (len(calls) - len(texts))
        shown, seen = observed(together(calls, texts), images)
        failures = [failed for failed, _ in results]
        step = self._used(by_name.get(calls[0].name, tools[0]), failures, shown, action[: calls[-1].end])
        step[4]["tool_responses"] = [observed(text, images)[0] for text in texts]
        if seen:
            step[4]["images"] = seen
        return step

    def _used(self, tool: BaseTool, failures: list[bool], answer: str, parsed: str) -> StepResult:
        self.tool_use_counter += len(failures)
        self.tool_success_counter += failures.count(False)
        rewards = self.tool_success_reward, self.tool_execute_error_reward
        reward = sum(self.tool_reward + rewards[failed] for failed in failures)
        if self.tool_use_counter == self.max_tool_uses and not answer.endswith(LAST_USE):
            answer += LAST_USE
        info = {"parsed_action": parsed, "tool_type": tool.tool_type, "valid": True}
        return answer, reward, False, False, info | self._counters(used=True)

    def _counters(self, used: bool) -> dict[str, Any]:
        return {
            "tool_use_counter": self.tool_use_counter,
            "tool_success_counter": self.tool_success_counter,
            "use_tool": used,
        }

    def spawn(self, same_state: bool = False, **kwargs: Any) -> Env:
        twin = super().spawn(same_state, **kwargs)
        if isinstance(twin, ToolEnvWrapper) and twin.tools is self.tools:  # a copy of this wrapper
            twin.tools = []
            twin._closed = False
            try:
                for tool in self._adapted():
                    twin.tools.append(tool.spawn(same_state).acquire())
            except BaseException:
                twin.close()
                raise
        return twin

    def close(self) -> None:
        """Close the environment, and each tool that no other environment uses."""
        with contextlib.ExitStack() as stack:
            stack.callback(super().close)
            if not self._closed:
                self._closed = True
                for tool in self._adapted():
                    stack.callback(tool.release)

    def _get_state(self) -> dict[str, Any]:
        return {"uses": self.tool_use_counter, "successes": self.tool_success_counter, "over": self._over}

    def _set_state(self, state: dict[str, Any]) -> None:
        self.tool_use_counter, self.tool_success_counter = state["uses"], state["successes"]
        self._over = state["over"]


def _is_called_by_name(tool: BaseTool) -> TypeGuard[CallableTool]:
    """Return whether the wrapper parses the calls of a tool; GEM's tools parse actions themselves."""
    return isinstance(tool, CallableTool) and type(tool).execute_action is CallableTool.execute_action
