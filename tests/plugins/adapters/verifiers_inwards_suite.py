"""``verifiers:PACKAGE``: tasks of packages that are written as verifiers asks for, scored by its own code."""

from __future__ import annotations

import gc
import importlib.metadata
import sys
import threading
import time

import pytest

import rollenv
from rollenv.core.checker import run_checks
from rollenv.core.errors import EpisodeOver, MissingExtra, NoSuchAbility, UsageError
from rollenv.plugins.adapters.environments import Misbehaved

TASKSET = """
import asyncio, itertools, sys, time
import verifiers.v1 as vf

class Data(vf.TaskData):
    answer: int = 0

class Config(vf.TasksetConfig):
    n: int = 5
"""

PACKAGES = {
    "sums_tasks": """
class Sum(vf.Task[Data, vf.State, vf.TaskConfig]):
    @vf.reward(weight=2.0)
    async def right(self, task, trace) -> float:
        assert trace.assistant_messages[-1].content is not None and trace.messages[0].role == "system"
        if trace.last_reply == "raise":
            raise RuntimeError("two\\nlines")
        if trace.last_reply == "hang":
            await asyncio.sleep(100)
        return float(trace.last_reply == str(task.answer))

    @vf.metric
    async def length(self, trace) -> float:
        return float(len(trace.last_reply))

class Sums(vf.Taskset[Sum, Config]):
    def load(self):
        for i in range(self.config.n):
            yield Sum(Data(name=f"sum {i}", prompt=f"{i} + 1?", system_prompt="Add.", answer=i + 1), self.config.task)

__all__ = ["Sums"]
""",
    "odd_tasks": """
class Odd(vf.Task[Data, vf.State, vf.TaskConfig]):
    @vf.reward
    async def told(self, trace) -> float:
        return float(sys.exit("no display") if trace.last_reply == "exit" else trace.last_reply)

class Odds(vf.Taskset[Odd, Config]):
    def load(self):
        yield Odd(Data(name="odd", prompt="?"), self.config.task)

__all__ = ["Odds"]
""",
    "picture_tasks": """
PIXEL = "data:image/png;base64," + (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
)

class Picture(vf.Task[Data, vf.State, vf.TaskConfig]):
    @vf.reward
    async def right(self, trace) -> float:
        return float(len(trace.messages[0].content) == 3)

class Pictures(vf.Taskset[Picture, Config]):
    def load(self):
        for url in (PIXEL, "https://example.com/a.png"):
            image = vf.ImageUrlContentPart(image_url=vf.ImageUrlSource(url=url))
            parts = [vf.TextContentPart(text="An <image> here:"), image, vf.TextContentPart(text="Which colour?")]
            yield Picture(Data(prompt=[vf.UserMessage(content=parts)]), self.config.task)

__all__ = ["Pictures"]
""",
    "exiting_tasks": "sys.exit('no display')",
    "dataless_tasks": """
class None_(vf.Task[Data, vf.State, vf.TaskConfig]):
    pass

class Nones(vf.Taskset[None_, Config]):
    def load(self):
        sys.exit("no data")

__all__ = ["Nones"]
""",
    "nim_tasks": """
class Game(vf.Task[Data, vf.State, vf.TaskConfig]):
    @vf.reward
    async def polite(self, trace) -> float:
        return 0.25 * all(len(m.content) < 3 for m in trace.assistant_messages)

class Games(vf.Taskset[Game, vf.TasksetConfig]):
    INFINITE = True
    def load(self):
        return (Game(Data(answer=i), self.config.task) for i in itertools.count())

class NimConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()

class Nim(vf.Env[NimConfig]):
    async def run(self, task, agents):
        left = 3
        async with agents.player.interaction(task) as talk:
            segment = await talk.turn(f"game {task.data.answer}: {left} left")
            while not segment.terminated:
                if segment.last_reply == "raise":
                    raise RuntimeError("broke")
                if segment.last_reply == "hang":
                    time.sleep(1)
                if segment.last_reply == "steer":
                    await talk.steer("x")
                left -= int(segment.last_reply) if segment.last_reply in ("1", "2") else 0
                if left <= 0:
                    break
                segment = await talk.turn(f"{left} left")
        talk.trace.record_reward("won", float(left == 0))

__all__ = ["Games", "Nim"]
""",
    "box_tasks": """
class Box(vf.Task[Data, vf.State, vf.TaskConfig]):
    NEEDS_CONTAINER = True

class Boxes(vf.Taskset[Box, Config]):
    def load(self):
        return [Box(Data(prompt="x"), self.config.task)]

__all__ = ["Boxes"]
""",
    "graded_tasks": """
class Graded(vf.Task[Data, vf.State, vf.TaskConfig]):
    @vf.reward
    async def tests(self, trace, runtime) -> float:
        return 1.0

class All(vf.Taskset[Graded, Config]):
    def load(self):
        return [Graded(Data(prompt="x"), self.config.task)]

__all__ = ["All"]
""",
    "two_tasks": """
class One(vf.Task[Data, vf.State, vf.TaskConfig]): pass

class Ones(vf.Taskset[One, Config]):
    def load(self):
        return [One(Data(prompt="x"), self.config.task)]

class TwoConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()
    judge: vf.AgentConfig = vf.AgentConfig()

class Two(vf.Env[TwoConfig]):
    async def run(self, task, agents): pass

__all__ = ["Ones", "Two"]
""",
    "none_tasks": """
class Never(vf.Taskset[vf.Task, Config]):
    def load(self):
        if self.config.n:
            raise OSError("no data")
        return []

__all__ = ["Never"]
""",
    "talk_tasks": """
class Alone(vf.Taskset[vf.Task, Config]):
    def load(self):
        return [vf.Task(vf.TaskData(), self.config.task)]

class TalkConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()

class Talk(vf.Env[TalkConfig]):
    async def run(self, task, agents):
        async with agents.player.interaction(task) as talk:
            segment = await talk.turn([{"role": "user", "content": "as data"}])
            if segment.last_reply == "both":
                await asyncio.gather(talk.turn("first"), talk.turn("second"))
            elif segment.last_reply == "cancel":
                raise asyncio.CancelledError
            else:
                while True:
                    await talk.turn("again")

__all__ = ["Alone", "Talk"]
""",
    "other_tasks": "__all__ = ['Config']\n",
}


@pytest.fixture(scope="module", autouse=True)
def packages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packages")
    for name, code in PACKAGES.items():
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(TASKSET + code)
    sys.path.insert(0, str(folder))
    yield
    sys.path.remove(str(folder))


def test_a_task_of_one_turn_is_scored_by_its_own_rewards():
    env = rollenv.make("verifiers:sums-tasks", n=4)
    assert env.num_tasks() == 4
    assert env.reset(0, options={"index": 2}) == ("Add.\n\n2 + 1?", {"task": "sum 2"})
    assert env.step(" 3\n") == (
        "The episode is over.", 2.0, True, False, {"rewards": {"right": 2.0}, "metrics": {"length": 1.0}}
    )  # fmt: skip
    with pytest.raises(EpisodeOver):
        env.step("3")
    env.reset(0, options={"index": 2})
    assert env.step("4")[1] == 0.0
    assert {env.reset(seed)[0] for seed in range(30)} == {f"Add.\n\n{i} + 1?" for i in range(4)}
    for index in (-1, 4, True, "1"):
        with pytest.raises(UsageError, match="0 to 3"):
            env.reset(0, options={"index": index})
    env.close()


def test_an_environment_of_the_package_is_played_turn_by_turn():
    env = rollenv.make("verifiers:nim-tasks", tasks=10)
    assert env.reset(0, options={"index": 7})[0] == "game 7: 3 left"
    assert env.step("1")[:4] == ("2 left", 0.0, False, False)
    *_, reward, terminated, truncated, info = env.step("2")
    assert (reward, terminated, truncated) == (1.25, True, False)
    assert info["rewards"] == {"polite": 0.25, "won": 1.0}
    env.close()


def test_pictures_of_a_prompt_are_shown():
    env = rollenv.make("verifiers:picture-tasks")
    observation, info = env.reset(0, options={"index": 0})
    assert observation == "An [image] here:\n<image>\nWhich colour?"
    assert [image.array().tolist() for image in info["images"]] == [[[[255, 0, 0]]]]
    assert env.step("red")[1] == 1.0
    with pytest.raises(Misbehaved, match="picture"):
        env.reset(0, options={"index": 1})
    env.close()


def test_a_limit_of_turns_ends_it_and_it_is_scored():
    env = rollenv.make("verifiers:nim-tasks", max_turns=2)
    env.reset(1)
    env.step("1")
    *_, reward, terminated, truncated, info = env.step("1")
    assert (reward, terminated, truncated) == (0.25, False, True)
    assert info["rewards"]["won"] == 0.0
    env.close()


def test_a_package_talks_as_it_does_with_verifiers():
    env = rollenv.make("verifiers:talk-tasks", max_turns=3, seconds=5.0)
    assert env.reset(0)[0] == "as data"
    assert [env.step("both")[0], env.step("x")[0], env.step("y")[2]] == ["first", "second", True]
    for reply, said in (("cancel", "CancelledError"), ("on", "the exchange is over")):
        env.reset(0)
        with pytest.raises(Misbehaved, match=said):
            [env.step(reply) for _ in range(3)]
    env.close()


def test_episodes_are_apart_and_leave_no_threads():
    before = threading.active_count()
    envs = [rollenv.make("verifiers:nim-tasks") for _ in range(5)]
    assert len({env.reset(i)[0] for i, env in enumerate(envs)}) == 5
    assert all(env.step("1")[0] == "2 left" for env in envs)
    envs[0].reset(9)
    assert envs[1].step("1")[0] == "1 left"
    for env in envs:
        env.close()
        env.close()
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("package", "reply", "said"),
    [
        ("nim-tasks", "raise", "RuntimeError"),
        ("nim-tasks", "steer", "AttributeError"),
        ("nim-tasks", "hang", r"0\.5 s"),
        ("sums-tasks", "raise", "two lines"),
        ("sums-tasks", "hang", r"0\.5 s"),
    ],
)
def test_code_that_fails_is_one_line(package, reply, said):
    env = rollenv.make(f"verifiers:{package}", seconds=0.5)
    env.reset(0)
    with pytest.raises(Misbehaved, match=said) as caught:
        env.step(reply)
    assert "\n" not in str(caught.value)
    assert package in str(caught.value)
    assert env.reset(1)[0]
    env.close()


@pytest.mark.parametrize(
    ("package", "error", "said"),
    [
        ("box-tasks", UsageError, "container"),
        ("graded-tasks", UsageError, "runtime"),
        ("two-tasks", UsageError, "player, judge"),
        ("none-tasks", Misbehaved, "OSError"),
        ("other-tasks", UsageError, "taskset"),
        ("no-such-tasks", MissingExtra, "install"),
        ("", UsageError, "verifiers:"),
    ],
)
def test_what_cannot_be_played_is_refused_in_one_line(package, error, said):
    with pytest.raises(error, match=said) as caught:
        rollenv.make(f"verifiers:{package}").reset(0)
    assert "\n" not in str(caught.value)


def test_an_empty_taskset_and_wrong_settings():
    with pytest.raises(UsageError, match="0 tasks"):
        rollenv.make("verifiers:none-tasks", n=0).reset(0)
    for settings in ({"m": 3}, {"n": "many"}):
        with pytest.raises(UsageError, match="cannot be made") as caught:
            rollenv.make("verifiers:sums-tasks", **settings)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("package", ["sums-tasks", "nim-tasks"])
def test_our_checker_finds_nothing(package):
    findings = run_checks(f"verifiers:{package}", episodes=2)
    assert not {f.name: f.detail for f in findings if f.ok is False}


def test_what_is_promised():
    spec = rollenv.spec("verifiers:sums-tasks")
    assert (spec.nondeterministic, spec.indexed, spec.abilities) == (True, True, frozenset())
    assert not rollenv.spec("verifiers:nim-tasks").indexed
    with pytest.raises(NoSuchAbility):
        spec.make().spawn(same_state=True)


def test_without_verifiers_it_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "verifiers.v1.utils.loaders", None)
    with pytest.raises(MissingExtra, match="verifiers:sums-tasks") as caught:
        rollenv.make("verifiers:sums-tasks")
    assert "\n" not in str(caught.value)


def test_another_version_is_warned_of(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "0.40.1")
    with pytest.warns(UserWarning, match=r"verifiers:sums-tasks.*0\.40\.1"):
        rollenv.make("verifiers:sums-tasks")


@pytest.mark.parametrize("reply", ["nan", "inf", "exit"])
def test_rewards_that_are_no_numbers_end_the_episode(reply):
    env = rollenv.make("verifiers:odd_tasks", seconds=5)
    env.reset(0)
    with pytest.raises(Misbehaved) as caught:
        env.step(reply)
    assert "\n" not in str(caught.value)
    with pytest.raises(EpisodeOver):
        env.step("x")
    env.reset(0)
    assert env.step("1.5")[1] == 1.5
    env.close()


def test_packages_that_exit_are_one_line():
    with pytest.raises(UsageError, match="SystemExit"):
        rollenv.make("verifiers:exiting_tasks")
    with pytest.raises(Misbehaved, match="SystemExit"):
        rollenv.make("verifiers:dataless_tasks").reset(0)


def test_an_episode_that_nobody_closes_leaves_no_thread():
    before = threading.active_count()
    for _ in range(3):
        env = rollenv.make("verifiers:odd_tasks")
        env.reset(0)
        del env
    gc.collect()
    late = time.monotonic() + 10
    while threading.active_count() > before:
        assert time.monotonic() < late, [each.name for each in threading.enumerate()]
        time.sleep(0.05)
