"""The base of service tasks: an agent talks with a user, who is played inside or is a seat of its own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollenv.core.env import ResetResult, StepResult
from rollenv.core.errors import UsageError
from rollenv.core.tools.backend import Backend
from rollenv.core.tools.calls import CallForm, call_instructions, find_calls
from rollenv.envs.service.check import KINDS, Breach, Kind, Scenario, UserCheck, stopped_early
from rollenv.envs.service.users import ENDS, STOP, TRANSFER, Heard, UserPlayer, clean, player_of
from rollenv.envs.tools.base import Problem, ToolEnv, User, UserReply

GREETING = "Hi! How can I help you today?"
_PART = (
    "You play the customer of a service and talk with its agent. Write one short message at a time, in your own words. "
    "Tell what you are asked for, and nothing that is not below; say that you do not know anything else. When your "
    f"request has been dealt with or refused, write {STOP}; when you are transferred, {TRANSFER}.\n"
)
_PHONE = "Do on your side only what the agent asks for, with these functions; a message and calls are separate turns. "
_SAID: Mapping[Kind, str] = {
    "contradictions": "said what they cannot know",
    "leaks": "told their part or what only the agent knows",
    "premature_stop": "left before the agent had finished",
    "answers_for_agent": "spoke for the agent",
}
_OVER = "The conversation is over."
#: Longest message, in characters; the rest is cut off.
_LONGEST = 10_000
#: Maximum number of calls of a user between two messages.
_MOST_CALLS = 20


@dataclass
class ScriptedPlayer:
    """A player of the user's seat that follows a scripted :class:`~rollenv.envs.tools.base.User`."""

    user: User
    opening: str

    def act(self, heard: Heard) -> str:
        if len(heard) == 1:
            return self.opening
        reply = self.user.reply(heard[-1]["content"])
        return f"{reply.text} {STOP}".strip() if reply.ends else reply.text


@dataclass
class ServiceProblem(Problem):
    """A service task: :attr:`question` is empty, as the user speaks for themselves."""

    scenario: Scenario = field(default_factory=lambda: Scenario(""))
    script: Callable[[Backend], UserPlayer] = lambda backend: ScriptedPlayer(User(), "")
    """Builds the scripted user, who is also the oracle of the user's seat."""
    user_tools: Sequence[str] = ()
    """Names of the backend's functions that the user may call."""


class ServiceEnv(ToolEnv):
    """Tasks of a service agent, with a user who has a goal, facts and a persona.

    With ``user="seat"`` there are two players: 0 is the agent, 1 the user, who opens the conversation. The user's
    first observation is their part; an action is a message, calls of their own functions, or an end
    (``###STOP###``, ``###TRANSFER###``, ``###OUT-OF-SCOPE###``). Both are paid the reward of the task.

    A user who is not scripted is checked (:class:`~rollenv.envs.service.check.UserCheck`): ``info["metrics"]`` has
    ``user_contradictions``, ``user_leaks``, ``user_premature_stop`` and ``user_answers_for_agent`` at the end, and
    ``spoiled``. A spoiled episode has the reason in ``info["spoiled"]``; rollouts count it as failed, with the failure
    ``user``, so that it is neither graded nor trained on.

    Args:
        user: who plays the user: ``scripted``, ``seat``, ``chat:MODEL`` for a model behind an endpoint, or
            ``local:PATH`` for one in this process. Episodes of ``chat:MODEL`` are not reproducible, whatever the spec
            declares for the default.
        base_url: URL of the endpoint for ``chat:MODEL``.
        spoiled: ``end``: what the user may not do ends the episode; ``count``: it is only counted.
    """

    def __init__(self, *, user: str = "scripted", base_url: str = "", spoiled: str = "end", **settings: Any):
        if spoiled not in ("end", "count"):
            raise UsageError(f"spoiled={spoiled!r} is unknown; it is 'end' or 'count'")
        self.user, self.base_url, self.on_spoiled = user, base_url, spoiled
        self.model = player_of(user, base_url)
        self.players = 2 if user == "seat" else 1
        super().__init__(**settings)
        #: A player inside has no other means than text.
        self.user_calls: CallForm = "hermes" if self.calls == "native" and self.players == 1 else self.calls

    def _fresh(self) -> None:
        super()._fresh()
        self.mover = self.row = 0
        self.gone = False
        self.spoiled = ""
        self.counts: dict[str, int] = dict.fromkeys(KINDS, 0)
        self.heard: list[dict[str, str]] = []
        self.seen: list[str] = []

    def _reset(self, options: dict[str, Any]) -> ResetResult:
        instructions, info = super()._reset(options)
        schemas = self._user_schemas()
        functions = f"{_PHONE}{call_instructions(schemas, self.user_calls)}" if schemas else ""
        part = "\n".join(text for text in (_PART, self.scenario.text(), functions) if text)
        self._hears(f"{part}\n\nThe agent: {GREETING}")
        self.seen = [instructions]
        if self.players == 2:
            self.mover = 1
            tools = {"tools": schemas} if schemas else {}
            return self.heard[0]["content"], {"player": 1, "category": info["category"]} | tools
        reply = self._played()
        self.gone = reply.ends
        return self._told(reply.text), info

    @property
    def scenario(self) -> Scenario:
        """The user's part in the current task."""
        return self.current.scenario  # type: ignore[attr-defined, no-any-return]

    def _script(self) -> UserPlayer:
        return self.current.script(self.current.backend)  # type: ignore[attr-defined, no-any-return]

    def _user_schemas(self) -> list[dict[str, Any]]:
        names = self.current.user_tools  # type: ignore[attr-defined]
        return self.current.backend.schemas(names) if names else []

    def _hears(self, text: str) -> None:
        self.heard.append({"role": "user", "content": text})

    def _told(self, text: str) -> str:
        """Return what the agent sees after a message of the user; the first comes with their instructions."""
        shown = f"{self.seen.pop()}\n\n{text}" if len(self.seen) == 1 else text
        self.seen.append(shown)
        return shown

    # -- the user's turns ----------------------------------------------------------------------------------------------

    def _played(self) -> UserReply:
        """Let the player inside act until they say something."""
        player = self.model or self._script()
        while True:
            reply = self._take(player.act(self.heard))
            if reply is not None:
                return reply

    def _take(self, action: str) -> UserReply | None:
        """Carry out an action of the user; None if it was calls, whose results they have heard."""
        action = clean(action[:_LONGEST])
        self.heard.append({"role": "assistant", "content": action})
        own, backend = self._user_schemas(), self.current.backend
        found = find_calls(action, self.user_calls, own)[0] if own else []
        if found and not any(call.name in self._check.agents for call in found):
            self.row += len(found)
            names = self.current.user_tools  # type: ignore[attr-defined]
            texts = [call.problem or backend.call(call.name, call.arguments, names).text for call in found]
            self._hears("\n".join(f"<tool_response>\n{text}\n</tool_response>" for text in texts))
            if self.row <= _MOST_CALLS:
                return None
            self.spoiled = f"the user called functions {self.row} times without a message"
            return UserReply("", ends=True)
        self.row = 0
        text = action
        for end in ENDS:
            text = text.replace(end, "")
        reply = UserReply(text.strip() or "(The user says nothing.)", ends=text != action)
        if self.user != "scripted":
            self._judge_user(reply)
            if not action.strip():
                self.spoiled = self.spoiled or "the user said nothing"
        return reply

    @property
    def _check(self) -> UserCheck:
        problem = self.current
        functions = problem.backend.schemas(problem.tools)
        return UserCheck(self.scenario, functions, problem.user_tools)  # type: ignore[attr-defined]

    def _judge_user(self, reply: UserReply) -> None:
        heard = "\n".join(each["content"] for each in self.heard[1:] if each["role"] == "user")
        found = self._check.breaches(reply.text, heard)
        last = self.messages[-1] if self.messages else ""
        again = last in self.messages[:-1]  # a user may leave an agent who repeats themselves
        if reply.ends and not again and stopped_early(last, self.wrote()) and not self.judge(self.current).success:
            found.append(Breach("premature_stop", last[-100:] or "nothing was said yet"))
        for kind, _ in found:
            self.counts[kind] += 1
        if found and not self.spoiled:
            self.spoiled = f"the user spoiled the episode: {_SAID[found[0].kind]} ({found[0].quote!r})"

    def wrote(self) -> bool:
        """Return whether the agent has changed something or handed the user over."""
        return bool(self.changes())

    def _reply(self, message: str) -> UserReply:
        self._hears(message[:_LONGEST] or "(The agent says nothing.)")
        if self.gone:
            return UserReply("", ends=True)
        if self.players == 2:
            self.mover = 1
            return UserReply(self.heard[-1]["content"])
        return self._played()

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _step(self, action: str) -> StepResult:
        mover, first = self.mover, len(self.seen) == 1 and self.players == 2
        if mover == 0:
            self.seen.append(action)
            shown, reward, terminated, truncated, info = super()._step(action)
            if self.mover == 0:
                self.seen.append(shown)
        else:
            reply = self._take(action)
            info = {}
            if reply is None:
                self.last = self.heard[-1]["content"]
            else:
                self.mover, self.last = 0, self._told(reply.text)
                info = {"tools": self.current.backend.schemas(self.current.tools)} if first else {}
            ends = reply is not None and reply.ends
            shown, reward, terminated, truncated, info = self._after(ends, True, info)
        if self.players == 2:
            info["rewards"] = [reward, reward]
            if terminated or truncated:
                info |= {"success": [info["success"]] * 2, "observations": [self.seen[-1], _OVER]}
                shown = info["observations"][mover]
            else:
                info["player"] = self.mover
        return shown, reward, terminated, truncated, info

    def _after(self, ended: bool, valid: bool, info: dict[str, Any]) -> StepResult:
        spoils = bool(self.spoiled) and self.on_spoiled == "end"
        shown, reward, terminated, truncated, info = super()._after(ended and not spoils, valid, info)
        if terminated or truncated:
            if self.user != "scripted":
                counts = {f"user_{kind}": float(number) for kind, number in self.counts.items()}
                info["metrics"] |= counts | {"spoiled": float(bool(self.spoiled))}
            if spoils:
                reward = 0.0
                info |= {"success": False, "spoiled": self.spoiled}
        return shown, reward, terminated, truncated, info

    def _cut(self) -> bool:
        if self.spoiled and self.on_spoiled == "end":
            return True
        return self.mover == 0 and super()._cut()

    # -- experts, state ------------------------------------------------------------------------------------------------

    def oracle_action(self) -> str:
        if self._rollenv_over or self.mover == 0:
            return super().oracle_action()
        return self._script().act(self.heard)

    def sample_random_action(self) -> str:
        """Return a random action of the player to move; the user agrees, asks back, or leaves."""
        if self.mover == 0:
            return super().sample_random_action()
        return self.action_rng.choice(("Yes.", "I do not know.", "What do you need?", f"Thank you. {STOP}"))

    def render(self) -> str:
        """Return the user's goal, the changes of the state, the conversation, and what the agent saw last."""
        if self._current is None:
            return ""
        changed = "\n".join(map(str, self.changes())) or "(nothing has changed)"
        said = [f"{'user' if each['role'] == 'assistant' else 'agent'}: {each['content']}" for each in self.heard[1:]]
        return "\n".join([f"Task {self.key}: {self.scenario.goal}", "", changed, "", *said, "", self.last]).rstrip()

    def state_key(self) -> str:
        if self.players == 1:
            return super().state_key()
        known = self.heard if self.mover else self.seen
        written = json.dumps([self.mover, self.key, known])
        return hashlib.blake2b(written.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    _KEPT = (*ToolEnv._KEPT, "mover", "row", "gone", "spoiled", "counts", "heard", "seen")
