"""What agents and rewards hand over, and what they raise: an episode's failure at most, never the end of a run."""

import asyncio
import collections
import contextlib
import datetime
import decimal
import fractions
import itertools
import math
import threading
import time
import uuid

import numpy as np
import pytest
from troubled import ID, Echo

from rollenv import UsageError
from rollenv.agents.base import Action, AgentFailed, RandomAgent, Session
from rollenv.agents.engines.base import EngineFailed
from rollenv.rollout import validation
from rollenv.rollout.clock import Clock
from rollenv.rollout.episode import EpisodeLimits
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.records.health import AgentUnhealthy, RewardUnhealthy
from rollenv.rollout.stream import RolloutStream
from rollenv.rollout.types import Task
from rollenv.rollout.workers import messages
from rollenv.rollout.workers.base import EnvFailure, EnvResult
from rollenv.rollout.workers.processes import ProcessWorkers

LIMITS = EpisodeLimits(max_replays=0, max_backoff=0.0, max_replacements=0, agent=2.0)


class Says(Session):
    """Answers with what a function gives, in the episodes of one seed; elsewhere it says "go"."""

    version = 3

    def __init__(self, answer, where="act"):
        self.answer, self.where = answer, where

    def start(self, env, seed):
        session = Says(self.answer, self.where) if seed // 1_000_003 == 1 else Says(None)
        return self.answer() if self.where == "start" and session.answer else session

    async def act(self, observation, info):
        if self.answer is None or self.where != "act":
            return Action("go", policy_version=3)
        answer = self.answer()
        return await answer if asyncio.iscoroutine(answer) else answer

    def close(self):
        if self.where == "close" and self.answer:
            self.answer()


def play(agent, clock=Clock.REAL, **settings):
    with RolloutManager(agent, limits=LIMITS, clock=clock, **settings) as manager:
        groups = manager.collect([Task(ID, s) for s in (0, 1, 2)])
    (good,), (bad,), (other,) = groups
    assert (good.status, other.status) == ("terminated", "terminated")
    return bad


def action(**values):
    return lambda: Action(**({"text": "go", "policy_version": 3} | values))


TOKENS = {"prompt_ids": (1,), "response_ids": (2, 3), "logprobs": (-1.0, -1.0)}
WRONG = [
    (lambda: None, "Action"), (lambda: "go", "Action"), (action(text=None), "text"), (action(text=b"go"), "text"),
    (action(text="x" * (1 << 25)), "text"), (action(text="a\ud800"), "text"), (action(finish="end"), "finish"),
    (action(policy_version=None), "policy_version"), (action(policy_version=10**5000), "policy_version"),
    (action(policy_version=0), "policy_version"), (action(policy_version=9), "policy_version"),
    *((action(**TOKENS | {"logprobs": wrong}), "logprobs")
      for wrong in [(-1.0, math.nan), (-1.0, None), (-1.0,), np.array([-1.0, -1.0])]),
    *((action(**TOKENS | {"response_ids": wrong}), "response_ids")
      for wrong in [(2, 3.5), (2, -3), (10**5000, 3), "ab", np.array([2, 3])]),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "field"), WRONG)
def test_a_wrong_action_fails_its_episode_and_names_the_field(answer, field):
    bad = play(Says(answer))
    assert (bad.status, bad.failure) == ("failed", "agent")
    assert field in bad.error


def test_numpy_scalars_and_lists_become_plain_values():
    values = {"prompt_ids": [np.int64(1)], "response_ids": [2, 3], "logprobs": [np.float32(-1), -1.0]}
    (turn, *_) = play(Says(action(**values, versions=[3, np.int32(3)]))).turns
    assert (turn.prompt_ids, turn.response_ids, turn.logprobs, turn.versions) == ((1,), (2, 3), (-1.0, -1.0), (3, 3))
    assert {type(v) for v in (*turn.prompt_ids, *turn.versions)} == {int}
    assert {type(v) for v in turn.logprobs} == {float}


def raising(error):
    def answer():
        raise error

    return answer


class Hostile(AgentFailed):
    def __str__(self):
        raise RuntimeError("no text")


ERRORS = [asyncio.CancelledError(), KeyboardInterrupt(), SystemExit(1), GeneratorExit(), EngineFailed("x"), Hostile()]


@pytest.mark.parametrize("where", ["start", "act", "close"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_of_an_agent_ends_its_episode_alone(error, where):
    bad = play(Says(raising(error), where))
    assert bad.status == ("terminated" if where == "close" else "failed")
    assert where == "close" or type(error).__name__ in bad.error


async def stubborn():
    while True:
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            return Action("go", policy_version=3)


async def never_leaves():
    while True:
        with contextlib.suppress(BaseException):
            await asyncio.sleep(0.05)


def cancels_itself_and_answers():
    asyncio.current_task().cancel()
    return Action("go", policy_version=3)


async def leaves_late():
    for _ in range(3):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(10**6)
    return Action("go", policy_version=3)


def cancels_itself():
    asyncio.current_task().cancel()
    return asyncio.sleep(1000)


@pytest.mark.parametrize(
    "answer", [lambda: asyncio.sleep(10**6), stubborn, leaves_late, cancels_itself, cancels_itself_and_answers]
)
def test_an_agent_that_does_not_answer_fails_its_episode(answer):
    bad = play(Says(answer), Clock.VIRTUAL)
    assert (bad.status, bad.failure) == ("failed", "agent")


def test_losers_that_do_not_leave_and_what_agents_left_running_hold_nobody_up():
    class Leaves(Says):
        async def act(self, observation, info):
            self.left = asyncio.get_running_loop().create_task(never_leaves())
            return await super().act(observation, info)

    class Slow(Says):
        def start(self, env, seed):
            return Slow(never_leaves if seed % 1_000_003 else None)

    for agent in (Leaves(None), Slow(None)):
        with RolloutManager(agent, clock=Clock.VIRTUAL) as manager:
            ((played,),) = manager.collect([Task(ID, 0)], extra_members=1)
        assert played.status == "terminated"


@pytest.mark.parametrize("version", ["three", -1, 10**5000, np.ones(2)], ids=["text", "negative", "huge", "array"])
def test_a_version_that_is_no_number_fails_the_episode(version):
    agent = Says(None)
    agent.start, agent.version = (lambda env, seed: agent), version
    with RolloutManager(agent, limits=LIMITS) as manager:
        ((played,),) = manager.collect([Task(ID, 0)])
    assert "version" in played.error


WRONG_TASKS = [
    (ID, None), (ID, 1.5), (ID, -1), (ID, True), (None, 0), (ID, 0, None), (ID, 0, {3: 1}), (ID, 0, {}, ["concat"]),
    (ID, 0, {}, {}, [1]), *((ID, 0, {}, wrappers) for wrappers in (
        {"concat": None}, {"concat": [1]}, {":x": {}}, {".a:x": {}}, {"builtins:id": {}})),
    ("game:Sokoban-v0-easy", 0, {}, {}, {"index": "x"}), ("game:Sokoban-v0-easy", 0, {"num_box": 1}),
    ("game:Nothing-v0", 0),
]  # fmt: skip


@pytest.mark.parametrize("task", WRONG_TASKS, ids=str)
def test_a_wrong_task_ends_the_run_with_a_usage_error(task):
    with pytest.raises(UsageError), RolloutManager(Echo()) as manager:
        manager.collect([Task(*task)])


def test_seeds_of_numpy_are_whole_numbers():
    assert Task(ID, np.int64(3)) == Task(ID, 3)


def test_agents_have_a_deadline_by_default():
    assert EpisodeLimits().agent is not None
    with RolloutManager(Says(lambda: asyncio.sleep(10**6)), clock=Clock.VIRTUAL) as manager:
        _, (bad,) = manager.collect([Task(ID, 0), Task(ID, 1)])
    assert (bad.status, bad.failure) == ("failed", "agent")


def test_an_agent_or_a_reward_that_always_fails_ends_the_run_and_says_why():
    async def reward(trajectory):
        raise ValueError("no judge")

    with pytest.raises(AgentUnhealthy, match="no device"):
        RolloutManager(Says(raising(EngineFailed("no device"))), limits=LIMITS).collect([Task(ID, 1)] * 100)
    with RolloutManager(Echo(), reward=reward) as manager, pytest.raises(RewardUnhealthy, match="no judge"):
        manager.batch((Task(ID, n) for n in itertools.count()), 2)


NO_REWARDS = [
    *(lambda value=value: value for value in (None, "1", math.nan, np.ones(2), 10**400, 1e308)),
    raising(KeyboardInterrupt()), raising(SystemExit()), lambda: asyncio.sleep(10**6), leaves_late,
]  # fmt: skip


@pytest.mark.parametrize("bad_reward", NO_REWARDS)
def test_a_reward_that_is_no_number_or_never_comes_fails_its_trajectory(bad_reward):
    async def reward(trajectory):
        value = bad_reward() if trajectory.task.seed == 1 else np.float32(0.5)
        return await value if asyncio.iscoroutine(value) else value

    with RolloutManager(Echo(), limits=LIMITS, reward=reward, clock=Clock.VIRTUAL) as manager:
        (good,), (bad,) = manager.collect([Task(ID, 0), Task(ID, 1)])
    assert (good.status, bad.status, bad.failure) == ("terminated", "failed", "reward")
    assert type(good.turns[-1].reward) is float


# -- the stream --------------------------------------------------------------------------------------------------------


class Updatable(Says):
    """Counts its updates."""

    def __init__(self, answer=None):
        super().__init__(answer)

    def start(self, env, seed):
        return self

    async def act(self, observation, info):
        return Action("go", policy_version=0 if self.answer else self.version)

    async def suspend(self):
        pass

    async def update_weights(self, weights=None):
        self.version += 1

    resume = suspend


def stream(agent, steps, *, source=None, update=True, limits=LIMITS, **settings):
    async def main():
        endless = (Task(ID, n) for n in itertools.count())
        async with RolloutStream(manager, source or endless, 2, **settings) as batches:
            taken = []
            for _ in range(steps):
                taken.append(await batches.next_batch())
                if update:
                    await batches.update_weights()
            return taken

    with RolloutManager(agent, limits=limits, clock=Clock.VIRTUAL) as manager:
        return manager.run(main())


def test_a_stream_needs_versions_and_updates():
    with pytest.raises(AgentUnhealthy, match="policy_version"):
        stream(Updatable("no version"), 5)
    with pytest.raises(UsageError, match=r"update_weights\(\)"):
        stream(Updatable(), 2, update=False, max_staleness=0)
    ended = stream(Updatable(), 3, update=False, max_staleness=0, source=[Task(ID, 0), Task(ID, 1)])
    assert [len(batch) for batch in ended] == [2, 0, 0], "a source that ended is no mistake"


def test_a_stream_delivers_whole_groups_only():
    bad = {"trouble": "raise", "at": 1}
    source = (Task(ID, n, bad if n % 3 == 0 else {}) for n in itertools.count())
    for batch in stream(Updatable(), 4, source=source, group_size=2):
        assert len(batch) == 2
        assert all(len(group.complete) == 2 for group in batch)


PLAIN = [
    np.float32(1), np.bool_(True), fractions.Fraction(1, 3), collections.OrderedDict(a=1), 1j, {1}, range(3),
    collections.defaultdict(list, {1: [2]}), collections.Counter("aab"), collections.deque([1, 2], 3), uuid.uuid4(),
    datetime.datetime.now(datetime.UTC), decimal.Decimal("1.5"), bytearray(b"x"),
]  # fmt: skip


def test_plain_data_of_every_kind_pass():
    for value in PLAIN:
        assert messages.decode(messages.encode("x", value)) == value
    for array in (np.arange(3), np.array(["a", None], object), np.ones((2, 3), order="F"), np.ones((0, 3))):
        assert np.array_equal(messages.decode(messages.encode("x", array)), array)


def test_what_comes_from_a_worker_is_checked_again():
    for seen in (EnvResult(None), EnvResult("x", float("nan")), EnvResult("x", 0.0, 1), EnvResult("x", info=[])):
        with pytest.raises(EnvFailure):
            messages.decode(messages.encode("x", seen))


# -- processes ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_workers_belong_to_the_process_and_not_to_the_thread_that_started_them():
    with ProcessWorkers(1) as pool, RolloutManager(RandomAgent(), pool) as manager:
        pids = []

        def collect():
            ((trajectory,),) = manager.collect([Task(ID, 0)])
            assert trajectory.replays == 0
            pids.append(pool.report()[0]["pid"])

        for _ in range(3):
            thread = threading.Thread(target=collect)
            thread.start()
            thread.join()
            time.sleep(0.1)
    assert len(set(pids)) == 1


@pytest.mark.slow
def test_a_group_that_ends_its_workers_costs_seconds_and_few_deaths():
    import misbehaving

    with pytest.MonkeyPatch.context() as patch:
        misbehaving.register(patch)
        with ProcessWorkers(2) as pool, RolloutManager(RandomAgent(), pool) as manager:
            tasks = [misbehaving.task("dies-segfault"), *[misbehaving.task(seed=s) for s in range(3)]]
            bad, *good = manager.collect(tasks, 8)
            deaths = sum(report["deaths"] for report in pool.report())
    assert [t.status for t in bad] == ["failed"] * 8
    assert "signal 11" in bad.trajectories[0].error
    assert all(t.status == "terminated" for g in good for t in g)
    assert deaths <= 8 * (1 + EpisodeLimits().max_replacements) + 8, "each suspect ends one worker of others at most"


@pytest.mark.integration
def test_a_standstill_of_the_event_loop_is_no_fault_of_workers_or_environments():
    """Between two collections nobody listens, and an agent may hold the loop for longer than any deadline."""

    class Holds(Says):
        def start(self, env, seed):
            return Holds(seed // 1_000_003 == 1)

        async def act(self, observation, info):
            if self.answer:
                time.sleep(6)
            return Action("go", policy_version=3)

    limits = EpisodeLimits(reset=5.0, step=5.0, max_replays=0)
    with (
        ProcessWorkers(2, ping_every=0.2, lost_after=5.0) as pool,
        RolloutManager(Holds(None), pool, limits=limits) as manager,
    ):
        for _ in range(2):
            groups = manager.collect([Task(ID, n) for n in range(6)])
            assert [t.status for g in groups for t in g] == ["terminated"] * 6
            time.sleep(6)
        assert [report["deaths"] for report in pool.report()] == [0, 0]


def test_messages_of_an_action_are_copied_and_have_to_be_json():
    said = {"role": "user", "content": ["go"]}
    kept = validation.action(Action("up", raw="hm up", messages=(said,)))
    said["content"].append("later")
    assert kept.messages == ({"role": "user", "content": ["go"]},)
    assert kept.raw == "hm up"
    for wrong in (("text",), ({"x": object()},), 5):
        with pytest.raises(validation.BadValue):
            validation.action(Action("up", messages=wrong))


def nested(times):
    value = [0]
    for _ in range(times):
        value = [value, value]
    return value


ITSELF: list = []
ITSELF.append(ITSELF)
LARGE = {
    "shared": nested(60), "cyclic": ITSELF, "texts": ["x" * (1 << 20)] * 1000, "bytes": [b"x" * (1 << 20)] * 1000,
    "arrays": [np.zeros(1000)] * 100_000, "integers": [1 << 1_000_000] * 10_000, "range": range(10**9),
    "deep": {"a": {"b": nested(40)}},
}  # fmt: skip


@pytest.mark.parametrize("value", LARGE.values(), ids=LARGE)
def test_small_data_that_is_large_when_spelled_out_is_refused_at_once(value):
    with pytest.raises(validation.BadValue):
        validation.bounded({"data": value}, "it")


def test_large_data_passes():
    for value in ([1] * 1_000_000, nested(10), "x" * (1 << 25), np.zeros(1_000_000), {1: (2, {3})}):
        validation.bounded({"data": value}, "it")
