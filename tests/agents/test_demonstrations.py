"""The tiny model's demonstrations: the same whoever makes them, and no process outlives them."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

import rollenv
from rollenv.agents.prompts import StepPrompt
from rollenv.agents.tiny import demonstrations
from rollenv.agents.tiny.demonstrations import CHUNK, Lesson, demonstrate
from rollenv.core.env_spec import EnvSpec
from rollenv.core.registry import spec


class Words(rollenv.Env):
    """Say the word that is shown. In any process but ``home``, a reset may print, raise or end it."""

    def __init__(self, home=0, elsewhere=""):
        self.strange = elsewhere if os.getpid() != home else ""

    def _reset(self, options):
        if self.strange == "print":
            print("noise on standard output", flush=True)
        elif self.strange == "raise":
            raise ValueError("not here")
        elif self.strange == "die":
            os._exit(1)
        self.word = ("up", "down", "left")[self.randint(3)]
        return self.word, {}

    def _step(self, action):
        return self.word, 1.0, True, False, {"success": action == self.word}

    def oracle_action(self):
        time.sleep(0.0005)  # so that there is something to share
        return self.word

    def sample_random_action(self):
        return self.action_rng.choice(("up", "down", "left"))


def lesson(episodes=20 * CHUNK, seed=0, env_spec=None, **kwargs) -> Lesson:
    env_spec = env_spec or EnvSpec("test:Words-v0", f"{__name__}:Words")
    return Lesson(env_spec, kwargs, StepPrompt("{state}", chat=False), 0.5, seed, episodes)


@pytest.fixture
def alone(monkeypatch):
    """What one process makes of a lesson."""

    def play(which):
        with monkeypatch.context() as change:
            change.setattr(demonstrations, "_WORTH_A_HELPER", sys.maxsize)
            return demonstrate(which)

    return play


@pytest.fixture
def played_here(monkeypatch):
    """The chunks that this process played."""
    chunks, play = [], Lesson.play
    monkeypatch.setattr(Lesson, "play", lambda self, env, chunk: chunks.append(chunk) or play(self, env, chunk))
    return chunks


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize("elsewhere", ["", "print", "raise", "die"])
def test_a_helper_changes_nothing_whatever_becomes_of_it(alone, elsewhere):
    which = lesson(home=os.getpid(), elsewhere=elsewhere)
    assert demonstrate(which) == alone(which)


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core helps nobody")
def test_a_second_process_does_a_part(played_here):
    which = lesson(episodes=60 * CHUNK)
    pairs = demonstrate(which)
    assert 0 < len(played_here) < 60
    assert len(pairs) >= which.episodes


@pytest.mark.integration
def test_what_cannot_be_sent_to_another_process_is_played_here(played_here, alone):
    class Local(Words):
        pass

    which = lesson(env_spec=EnvSpec("test:Local-v0", Local))
    pairs = demonstrate(which)
    assert sorted(played_here) == list(range(20))
    assert pairs == alone(which)


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize("episodes", [1, CHUNK - 1, CHUNK, CHUNK + 1, 9 * CHUNK + 7])
def test_progress_ends_with_all_episodes_and_is_reported_once(episodes):
    told = []
    which = Lesson(spec("game:Sokoban-v0-tiny"), {}, StepPrompt("{state}", chat=False), 1.0, 0, episodes)
    demonstrate(which, lambda done, total: told.append((done, total)))
    assert [t for t in told if t[0] == t[1]] == [(episodes, episodes)] == told[-1:]
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_demonstrations_follow_the_seed():
    first, again, other = (demonstrate(lesson(episodes=50, seed=seed)) for seed in (1, 1, 2))
    assert first == again != other


def test_the_helper_ends_with_the_work(monkeypatch):
    begun, popen = [], subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: begun.append(popen(*a, **k)) or begun[-1])

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        demonstrate(lesson(), stop)
    assert all(process.poll() is not None for process in begun)
