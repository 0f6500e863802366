"""Demonstrations for the tiny model: prompts and answers of a noisy expert, played by two processes if possible."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rollenv.agents.prompts import ChatPrompt, StepPrompt
from rollenv.agents.prompts.session import chat_messages
from rollenv.agents.prompts.step import StepEpisode
from rollenv.core.checker.digests import HelperProcess
from rollenv.core.env import Env
from rollenv.core.env_spec import EnvSpec
from rollenv.core.errors import Unsolvable
from rollenv.core.pictures import Picture, pictures

#: Number of episodes with the same random generator, which are sent together.
CHUNK = 100

#: Minimum number of chunks for a second process; with fewer it would start too late.
_WORTH_A_HELPER = 8

#: Number of random actions in addition to the expert's, which are more informative than the played one alone.
RANDOM_ACTIONS = 4


#: A conversation up to an answer: roles of chat templates, texts, and their pictures.
Chat = tuple[tuple[str, str, tuple[Picture, ...]], ...]


class DemonstratedTurn(NamedTuple):
    """One turn of a demonstration."""

    prompt: str | Chat
    expert: str
    random: tuple[str, ...]
    """Actions that the noisy expert might have taken instead."""
    images: tuple[Picture, ...] = ()
    """Those of the prompt, unless it is a conversation."""

    @property
    def sees(self) -> bool:
        """Return whether the prompt has pictures."""
        return bool(self.images if isinstance(self.prompt, str) else any(images for *_, images in self.prompt))

    @property
    def prompt_text(self) -> str:
        """The prompt, or the messages of a conversation since the last answer."""
        if isinstance(self.prompt, str):
            return self.prompt
        news = itertools.takewhile(lambda message: message[0] != "assistant", reversed(self.prompt))
        return "\n".join(text for _, text, _ in reversed([*news]))


@dataclass(frozen=True)
class Lesson:
    """An environment to demonstrate, with the prompt format and the share of random actions."""

    spec: EnvSpec
    kwargs: dict[str, Any]
    prompt: StepPrompt | ChatPrompt
    wandering: float
    seed: int
    episodes: int
    turns: int = 0
    """Maximum number of turns of an episode, 0 for no limit. The last turn is not played."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of every reset."""

    @property
    def chunks(self) -> int:
        """Number of chunks of the episodes."""
        return -(-self.episodes // CHUNK)

    def play(self, env: Env, chunk: int) -> list[DemonstratedTurn]:
        """Play the demonstrations of one chunk, which depend only on the lesson and the number (from 0)."""
        rng = random.Random(f"{self.seed} {chunk}")
        first, last = chunk * CHUNK, min((chunk + 1) * CHUNK, self.episodes)
        return [turn for _ in range(first, last) for turn in self._episode(env, rng)]

    def _episode(self, env: Env, rng: random.Random) -> Iterator[DemonstratedTurn]:
        """Yield the turns of one episode, until the expert cannot finish it."""
        observation, info = env.reset(rng.getrandbits(32), options=self.options or None)
        stories: dict[int, _Chat | StepEpisode] = {}  # by the player
        for turn in itertools.count(1):
            if (player := info.get("player", 0)) not in stories:
                form = self.prompt
                stories[player] = _Chat() if isinstance(form, ChatPrompt) else StepEpisode(form)
            story = stories[player]
            try:
                expert = env.oracle_action()
            except Unsolvable:
                return
            others = tuple(env.sample_random_action() for _ in range(RANDOM_ACTIONS))
            if isinstance(story, _Chat):
                yield DemonstratedTurn(story.prompt(observation, info), expert, others)
            else:
                yield DemonstratedTurn(next(story.prompts(observation, info)), expert, others, pictures(info))
            if turn == self.turns:
                return
            action = rng.choice(others) if rng.random() < self.wandering else expert
            story.add(action)
            observation, _, terminated, truncated, info = env.step(action)
            if terminated or truncated:
                return


@dataclass
class _Chat:
    """An episode as one conversation."""

    turns: Chat = ()

    def prompt(self, observation: str, info: dict[str, Any]) -> Chat:
        self.turns = (*self.turns, *chat_messages(observation, info, as_results=True))  # the tiny template has the role
        return self.turns

    def add(self, action: str) -> None:
        self.turns = (*self.turns, ("assistant", action, ()))


def demonstrate(lesson: Lesson, report: Callable[[int, int], None] = lambda *_: None) -> list[DemonstratedTurn]:
    """Return all demonstrations of a lesson, independently of the number of processes."""
    chunks: dict[int, list[DemonstratedTurn]] = {}
    with contextlib.closing(lesson.spec.make(**lesson.kwargs)) as env, _helper(lesson, chunks):
        for chunk in range(lesson.chunks):
            if chunk not in chunks:  # the helper starts at the other end
                chunks[chunk] = lesson.play(env, chunk)
                report(min(len(chunks) * CHUNK, lesson.episodes - 1), lesson.episodes)
    report(lesson.episodes, lesson.episodes)
    return [turn for chunk in range(lesson.chunks) for turn in chunks[chunk]]


@contextlib.contextmanager
def _helper(lesson: Lesson, chunks: dict[int, list[DemonstratedTurn]]) -> Iterator[None]:
    """Let another process, if possible, fill ``chunks`` from the last one on while the block runs."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if cores < 2 or lesson.chunks < _WORTH_A_HELPER:
        yield
        return
    ended = threading.Event()

    def fill() -> None:
        with contextlib.suppress(Exception):  # it cannot be sent or ended: missing chunks are played here
            for chunk in reversed(range(lesson.chunks)):
                if ended.is_set() or chunk in chunks:
                    return
                chunks.setdefault(chunk, helper.call(f"{__name__}:play_chunk", lesson, chunk))

    with HelperProcess() as helper:
        thread = threading.Thread(target=fill, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            helper.kill()
            thread.join()


def play_chunk(lesson: Lesson, chunk: int) -> list[DemonstratedTurn]:
    """Play the demonstrations of one chunk in a new environment."""
    with contextlib.closing(lesson.spec.make(**lesson.kwargs)) as env:
        return lesson.play(env, chunk)
