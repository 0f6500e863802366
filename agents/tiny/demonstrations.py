"""Demonstrations for the tiny model: prompts, and answers of a noisy expert. Two processes make them where they can."""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NamedTuple

from rollenv.agents.prompts import ChatPrompt, StepPrompt
from rollenv.agents.prompts.session import role_of, shown
from rollenv.core import Env
from rollenv.env_spec import EnvSpec
from rollenv.errors import Unsolvable

#: Episodes that follow one random stream, and that are handed over together.
CHUNK = 100

#: The fewest chunks for a second process; with fewer it would start too late to help.
_WORTH_A_HELPER = 8

#: The program of the second process. It finds modules where this one does.
_HELPER = """
import pickle, sys
sys.path[:] = pickle.load(sys.stdin.buffer)
from rollenv.agents.tiny.demonstrations import help_out
help_out(sys.stdin.buffer)
"""

#: So many random actions stand beside the expert's. All together tell the pupil more than the one that was played.
RANDOM_ACTIONS = 4


#: A conversation up to an answer: roles, which are those of chat templates, and texts.
Chat = tuple[tuple[str, str], ...]


class Shown(NamedTuple):
    """One turn of a demonstration."""

    prompt: str | Chat
    expert: str
    random: tuple[str, ...]
    """Actions that the noisy expert might have taken instead."""

    @property
    def prompt_text(self) -> str:
        """The prompt, or the last message of a conversation."""
        return self.prompt if isinstance(self.prompt, str) else self.prompt[-1][1]


@dataclass(frozen=True)
class Lesson:
    """A lesson: an environment, how its turns become prompts, and the share of random actions played."""

    spec: EnvSpec
    kwargs: dict[str, Any]
    prompt: StepPrompt | ChatPrompt
    wandering: float
    seed: int
    episodes: int
    turns: int = 0
    """The most turns of an episode, 0 for no limit. The last turn shown is not played."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of every reset."""

    @property
    def chunks(self) -> int:
        """The number of chunks of the episodes."""
        return -(-self.episodes // CHUNK)

    def play(self, env: Env, chunk: int) -> list[Shown]:
        """The demonstrations of one chunk, which follow from the lesson and the number (from 0) alone."""
        rng = random.Random(f"{self.seed} {chunk}")
        first, last = chunk * CHUNK, min((chunk + 1) * CHUNK, self.episodes)
        return [turn for _ in range(first, last) for turn in self._episode(env, rng)]

    def _episode(self, env: Env, rng: random.Random) -> Iterator[Shown]:
        """One episode. It is cut where the expert can no longer finish."""
        observation, info = env.reset(rng.getrandbits(32), options=self.options or None)
        story = _Chat() if isinstance(self.prompt, ChatPrompt) else _Steps(self.prompt, observation)
        for turn in itertools.count(1):
            try:
                expert = env.oracle_action()
            except Unsolvable:
                return
            others = tuple(env.sample_random_action() for _ in range(RANDOM_ACTIONS))
            yield Shown(story.prompt(observation, info), expert, others)
            if turn == self.turns:
                return
            action = rng.choice(others) if rng.random() < self.wandering else expert
            story.add(observation, action)
            observation, _, terminated, truncated, info = env.step(action)
            if terminated or truncated:
                return


@dataclass
class _Steps:
    """An episode as a prompt for each turn."""

    form: StepPrompt
    instructions: str
    turns: list[tuple[str, str]] = field(default_factory=list)

    def prompt(self, observation: str, info: dict[str, Any]) -> str:
        return self.form.render(self.instructions, self.turns, observation, info)

    def add(self, observation: str, action: str) -> None:
        self.turns.append((observation, action))


@dataclass
class _Chat:
    """An episode as one conversation."""

    turns: Chat = ()

    def prompt(self, observation: str, info: dict[str, Any]) -> Chat:
        self.turns = (*self.turns, (role_of(info), shown(observation, info)))
        return self.turns

    def add(self, observation: str, action: str) -> None:
        self.turns = (*self.turns, ("assistant", action))


def demonstrate(lesson: Lesson, report: Callable[[int, int], None] = lambda *_: None) -> list[Shown]:
    """All demonstrations of a lesson; the same however many processes make them.

    Args:
        report: called with the number of episodes so far and of all.
    """
    chunks: dict[int, list[Shown]] = {}
    with contextlib.closing(lesson.spec.make(**lesson.kwargs)) as env, _helper(lesson, chunks):
        for chunk in range(lesson.chunks):
            if chunk not in chunks:  # the helper comes from the other end
                chunks[chunk] = lesson.play(env, chunk)
                report(min(len(chunks) * CHUNK, lesson.episodes - 1), lesson.episodes)
    report(lesson.episodes, lesson.episodes)
    return [turn for chunk in range(lesson.chunks) for turn in chunks[chunk]]


@contextlib.contextmanager
def _helper(lesson: Lesson, chunks: dict[int, list[Shown]]) -> Iterator[None]:
    """While inside, another process fills ``chunks`` from the last one on. Where it cannot, nothing is filled."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        order = pickle.dumps(sys.path) + pickle.dumps(lesson)
    except Exception:  # what a stranger's class raises
        order = b""
    if cores < 2 or lesson.chunks < _WORTH_A_HELPER or not order:
        yield
        return
    # A plain process: multiprocessing would import the user's script again.
    command = [sys.executable, "-c", _HELPER]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **pipes, start_new_session=True) as process:  # type: ignore[call-overload]
        reader = threading.Thread(target=_converse, args=(process, order, chunks), daemon=True)
        reader.start()
        try:
            yield
        finally:
            process.kill()
            reader.join()


def _converse(process: subprocess.Popen[bytes], order: bytes, chunks: dict[int, list[Shown]]) -> None:
    """Send the order and take in what comes, until the other process ends."""
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(Exception):  # it ended, or never began: what it lacks is played here
        process.stdin.write(order)
        process.stdin.close()
        while True:
            chunk, turns = pickle.load(process.stdout)
            chunks.setdefault(chunk, turns)


def help_out(order: BinaryIO) -> None:
    """Play chunks in the other process, the last one first, and write them to what was standard output."""
    lesson: Lesson = pickle.load(order)
    with _kept_stdout() as out, contextlib.closing(lesson.spec.make(**lesson.kwargs)) as env:
        for chunk in reversed(range(lesson.chunks)):
            pickle.dump((chunk, lesson.play(env, chunk)), out)
            out.flush()


@contextlib.contextmanager
def _kept_stdout() -> Iterator[BinaryIO]:
    """Standard output for us alone; what environments print goes to standard error."""
    with os.fdopen(os.dup(1), "wb") as out:
        os.dup2(2, 1)
        yield out
