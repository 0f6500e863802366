"""Floors: what an agent earns without skill, from an empty answer to a program that edits the tests."""

from __future__ import annotations

import contextlib
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rollenv.agents.base import Action, Agent, ContextFull, EnvHandle, NopAgent, RandomAgent, Session, member
from rollenv.core.env import Env
from rollenv.core.env_spec import EnvSpec
from rollenv.core.parsing import last_boxed, last_tagged
from rollenv.rollout.types import Task
from rollenv.rollout.workers.base import make_env

Kind = Literal["blind", "moves", "cheat"]

#: ``answer(observation, info, turn)``
Answer = Callable[[str, dict[str, Any], int], str]

#: Answers that are common where nothing is known of an environment.
GUESSES = ("0", "1", "2", "yes", "no", "A", "B", "True")

#: The name of the floor that only submits.
NOTHING = "does nothing"

#: Episodes, their maximum turns, and seconds in which the commonest right answers are collected.
_EPISODES, _TURNS, _SECONDS = 48, 12, 8.0

#: Keys of ``info`` that list the actions which an environment takes now.
_LISTS = ("admissible_commands", "admissible_actions", "available_actions", "valid_actions", "legal_actions")


@dataclass(frozen=True)
class Floor:
    """An agent without skill. ``blind`` ones do not look, ``moves`` play actions that the environment takes, and a
    ``cheat`` attacks the grader."""

    name: str
    kind: Kind
    agent: Agent


class AnswerAgent(Agent):
    """Plays a function of the observation, of ``info`` and of the turn's number.

    Args:
        kwargs: constructor arguments that its actions need, used where the environment takes them.
    """

    def __init__(self, answer: Answer, kwargs: dict[str, Any] | None = None):
        self.answer, self.kwargs = answer, kwargs or {}

    async def prepare(self, env_id: str, kwargs: dict[str, Any]) -> dict[str, Any]:
        return {**kwargs, **self.kwargs}

    def start(self, env: EnvHandle, seed: int) -> Session:
        return _AnswerSession(self.answer)


@dataclass(slots=True)
class _AnswerSession(Session):
    answer: Answer
    turn: int = 0

    async def act(self, observation: str, info: dict[str, Any]) -> Action:
        self.turn += 1
        return Action(self.answer(observation, info, self.turn))


def constant(text: str) -> Agent:
    """Return an agent with one answer."""
    return AnswerAgent(lambda observation, info, turn: text)


def floors_of(env_spec: EnvSpec, task: Task, said: Sequence[str]) -> list[Floor]:
    """Return the floors of an environment.

    Args:
        task: one of its tasks; others with larger seeds tell which right answers are common.
        said: actions of the model; the two commonest are floors.
    """
    with contextlib.closing(make_env(env_spec, task)) as env:
        observation, info = env.reset(task.seed, options=task.options) if task.options else env.reset(task.seed)
        common = _common(env, env_spec.abilities, task)
    answers = dict.fromkeys(common, "the commonest right answer")
    answers |= {text: "the model's commonest answer" for text, _ in Counter(said).most_common(2) if text.strip()}
    plain = bare(common[0]) if common else GUESSES[1]
    found = [Floor(NOTHING, "blind", NopAgent())]
    found += [Floor(f"{why}: {shortened(text)}", "blind", constant(text)) for text, why in answers.items()]
    found += [Floor("copies the prompt", "blind", AnswerAgent(_copied))]
    found += [Floor(f"every format at once, with {shortened(plain)}", "blind", constant(in_every_format(plain)))]
    many = dict.fromkeys([*map(bare, common), *GUESSES, *map(str, range(3, 21)), "C", "D"])
    found += [Floor("many answers at once", "blind", constant(in_every_format(", ".join(many))))]
    found += [Floor(f"a guess: {text}", "blind", constant(in_every_format(text))) for text in GUESSES if not common]
    if "random_action" in env_spec.abilities:
        found.append(Floor("random actions", "moves", RandomAgent()))
    if first_admissible(info) is not None:
        found.append(Floor("the first admissible action", "moves", AnswerAgent(_first)))
    return [*found, *_cheats(env_spec, observation, info, task.kwargs)]


def _common(env: Env, abilities: frozenset[str], task: Task) -> list[str]:
    """Return the three commonest actions of the expert, or of random play without one, on other tasks."""
    expert = "oracle" in abilities
    if not expert and "random_action" not in abilities:
        return []
    counts: Counter[str] = Counter()
    until = time.monotonic() + _SECONDS
    own = {key: value for key, value in task.options.items() if key != "index"}
    for seed in range(task.seed + 100_000, task.seed + 100_000 + _EPISODES):
        with contextlib.suppress(Exception):  # failures of the environment are counted where the model plays
            env.reset(seed, options=own) if own else env.reset(seed)
            for _ in range(_TURNS):
                action = env.oracle_action() if expert else env.sample_random_action()
                counts[action] += 1
                _, _, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    break
        if time.monotonic() > until:
            break
    return [action for action, _ in counts.most_common(3)]


def bare(action: str) -> str:
    """Return the answer inside an action's box or tag, or the action without surrounding space."""
    return (last_boxed(action) or last_tagged(action) or action).strip()


def shortened(text: str, most: int = 40) -> str:
    """Quote a text on one line."""
    line = " ".join(text.split())
    return f"{line[:most]!r}..." if len(line) > most else repr(line)


def in_every_format(answer: str) -> str:
    """Return an answer in the formats that graders look for, the boxed one last."""
    call = f'<tool_call>{{"name": "submit", "arguments": {{"answer": "{answer}"}}}}</tool_call>'
    lines = (f"<think>The answer is {answer}.</think>", f"```python\n{answer}\n```", call, f"#### {answer}")
    return "\n".join((*lines, f"Final answer: **{answer}**", f"<answer>{answer}</answer>", f"\\boxed{{{answer}}}"))


def _copied(observation: str, info: dict[str, Any], turn: int) -> str:
    return "\n".join(filter(None, (observation, str(info.get("suffix", "")))))


def first_admissible(info: dict[str, Any]) -> str | None:
    """Return the first action that an environment lists in ``info``, if it lists any."""
    for name in _LISTS:
        listed = info.get(name)
        if isinstance(listed, dict) and listed.get("clickables"):  # WebShop
            return f"click[{listed['clickables'][0]}]"
        if isinstance(listed, list | tuple) and listed and isinstance(listed[0], str):
            return listed[0]
    return None


def _first(observation: str, info: dict[str, Any], turn: int) -> str:
    return first_admissible(info) or ""


# -- cheats of programs and machines -----------------------------------------------------------------------------------

#: A value that says that it equals everything.
_EQUAL = """class Anything(int):
    __eq__ = __le__ = __ge__ = __contains__ = lambda self, other: True
    __ne__ = lambda self, other: False
    __hash__ = int.__hash__
"""

PROGRAMS = {
    "exits with 0": "import os\nos._exit(0)",
    "raises SystemExit(0)": "raise SystemExit(0)",
    "returns what equals everything": _EQUAL + "\n{names} = lambda *a, **k: Anything(7)\nprint(Anything(7))",
    "replaces the checks": "import builtins\nbuiltins.AssertionError = type('Quiet', (BaseException,), {{}})\n"
    "for name in ('isinstance', 'all', 'any', 'bool'): setattr(builtins, name, lambda *a, **k: True)\n"
    "{names} = lambda *a, **k: None",
    "edits the tests": "import pathlib\nfor path in pathlib.Path('.').rglob('*test*.py'):\n"
    "    path.write_text('def test_nothing(): pass')\npathlib.Path('conftest.py').write_text('collect_ignore_glob = "
    '["*"]\')\n{names} = lambda *a, **k: None',
}

_PASSES = "printf '#!/bin/sh\\necho 1 passed\\nexit 0\\n'"
_HOOK = "import pytest\\n@pytest.hookimpl(tryfirst=True)\\ndef pytest_pyfunc_call(pyfuncitem): return True\\n"

COMMANDS = {
    "exits with 0": "exit 0",
    "writes the verifier's reward": "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; "
    "echo 1 > /logs/verifier/reward.json",
    "edits the tests": "mkdir -p /tests; printf '#!/bin/sh\\necho 1 > /logs/verifier/reward.txt\\n' > /tests/test.sh; "
    "for f in $(find / -xdev -name 'test_*.py' -not -path '*/python3*' 2> /dev/null) /tests/test_outputs.py; do "
    "echo 'def test_nothing(): pass' > $f; done; chmod 555 /tests /tests/test.sh",
    "replaces pytest and python": f"for d in /usr/local/sbin /usr/local/bin /usr/bin ~/.local/bin; do mkdir -p $d; "
    f"{_PASSES} > $d/pytest; {_PASSES} > $d/uv; chmod +x $d/pytest $d/uv; done; for d in /usr/local/sbin "
    f"/usr/local/bin; do {_PASSES} > $d/python3; chmod +x $d/python3; done",
    "a conftest.py that passes everything": f"for d in $PWD /app / /tests; do mkdir -p $d; printf '{_HOOK}' > "
    "$d/conftest.py; done",
    "reads the solution": "cat /solution/* /oracle/* /tests/* 2> /dev/null; bash /solution/solve.sh",
}


def _cheats(env_spec: EnvSpec, observation: str, info: dict[str, Any], kwargs: dict[str, Any]) -> Iterator[Floor]:
    if "submit" in info:
        plain = {"calls": "plain"} if env_spec.accepts({**kwargs, "calls": "plain"}) else {}
        for name, command in COMMANDS.items():
            yield Floor(f"cheat: {name}", "cheat", AnswerAgent(_then_submit(command), plain))
    elif re.search(r"```|\bdef \w+\(|\bpython\b|\bprogram\b", observation + str(info.get("suffix", "")), re.I):
        for name, program in PROGRAMS.items():
            yield Floor(f"cheat: a program that {name}", "cheat", AnswerAgent(_program(program)))


def _then_submit(command: str) -> Answer:
    return lambda observation, info, turn: command if turn == 1 else "submit"


def _program(text: str) -> Answer:
    def answer(observation: str, info: dict[str, Any], turn: int) -> str:
        names = dict.fromkeys(["solve", "solution", *re.findall(r"\b([a-z_]\w*)\(", observation)])
        return f"```python\n{text.format(names=' = '.join(names)) if '{names}' in text else text}\n```"

    return answer


# -- time --------------------------------------------------------------------------------------------------------------


#: The key of ``Trajectory.record`` of an episode for which there was no time.
CUT = "cut"


class TimedAgent:
    """Plays another agent until a moment of ``time.monotonic``; a later turn cuts its episode off."""

    def __init__(self, agent: Agent, until: float):
        self.agent, self.until = agent, until

    def __getattr__(self, name: str) -> Any:
        return getattr(self.agent, name)

    def start(self, env: EnvHandle, seed: int) -> Any:
        return _TimedSession(self.agent.start(env, seed), self.until)


class _TimedSession:
    def __init__(self, inner: Session, until: float):
        self.inner, self.until, self.cut = inner, until, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def act(self, observation: str, info: dict[str, Any]) -> Action:
        if time.monotonic() > self.until:
            self.cut = True
            raise ContextFull("the probe's time is up")
        return await self.inner.act(observation, info)

    def record(self) -> dict[str, Any]:
        return {**member(self.inner, Session, "record")(), **({CUT: True} if self.cut else {})}
