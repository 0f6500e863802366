"""Every kind of misbehaviour in every kind of worker: no hang, the right status with the environment's name, no
neighbour harmed, nothing left."""

import dataclasses
import os
from pathlib import Path

import misbehaving
import psutil
import pytest
from misbehaving import ID, KINDS, TURNS, alive, task
from waiting import eventually

from rollenv.agents.base import RandomAgent
from rollenv.rollout.episode import EpisodeLimits
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.workers.processes import ProcessWorkers

# A random agent waits for its environment's worker: its deadline is beyond those that find the worker stopped.
LIMITS = EpisodeLimits(reset=2.0, step=2.0, agent=300.0, max_replays=0, max_backoff=0.0, max_replacements=0)


@pytest.fixture(scope="module", autouse=True)
def known():
    with pytest.MonkeyPatch.context() as patch:
        misbehaving.register(patch)
        yield


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    """Where environments note the processes that they start."""
    with pytest.MonkeyPatch.context() as patch:
        file = tmp_path_factory.mktemp("left") / "pids"
        patch.setenv("LEFT", str(file))
        yield file


def hold(kinds, workers, left, healthy=4):
    """Play an episode of every kind beside healthy ones, all at the same time, and look at everything."""
    left.unlink(missing_ok=True)
    hanging = any(kind in SETS["hangs"] for kind in kinds)
    limits = LIMITS if hanging else dataclasses.replace(LIMITS, reset=30.0, step=30.0)
    with RolloutManager(RandomAgent(), workers, limits=limits, unhealthy_after=10_000) as manager:
        groups = manager.collect([*map(task, kinds), *[task(seed=s) for s in range(healthy)]])
    for (good,) in groups[len(kinds) :]:
        assert (good.status, len(good.turns)) == ("terminated", TURNS), good.error
    for kind, (bad,) in zip(kinds, groups, strict=False):
        check(kind, bad, inline=workers is None)
    pids = left.read_text().split() if left.exists() else []
    if isinstance(workers, ProcessWorkers) or (workers is not None and pids):
        workers.close()  # what they left ends with them, at the latest
    assert eventually(lambda: not alive(pids)), f"processes were left: {alive(pids)}"


def check(name, played, inline):
    """Whether an episode became what it has to."""
    kind = KINDS[name]
    status = "terminated" if inline and kind.inline is None else kind.status
    assert played.status == status, (name, played.error)
    if status == "failed":
        assert ID in played.error, name
        assert kind.says in played.error, name
    else:
        assert [type(turn.reward) for turn in played.turns] == [float] * TURNS, name
        assert {type(turn.observation) for turn in played.turns} == {str}, name


def by_class(*names):
    return [kind for kind in KINDS if kind.partition("-")[0] in names]


#: What is wrong in itself is played at once; what harms its process one class at a time, or, where it changes the
#: process for all that share it, one by one.
SETS = {
    "values": by_class("returns", "raises", "unsent"),
    **{name: by_class(name) for name in ("hangs", "dies", "descriptors", "leaves")},
}


@pytest.mark.parametrize("kinds", SETS)
def test_inline(kinds, left):
    survived = [kind for kind in SETS[kinds] if KINDS[kind].inline is not False]
    for together in [survived] if kinds == "values" else [[kind] for kind in survived]:
        hold(together, None, left)


def test_there_are_at_least_sixty_kinds_and_each_is_in_a_set():
    assert len(KINDS) >= 60
    assert sorted(kind for kinds in SETS.values() for kind in kinds) == sorted(KINDS)


@pytest.fixture(scope="module")
def processes(left):
    before = descendants()
    with ProcessWorkers(2, envs_per_process=4, ping_every=0.1, lost_after=2.0, close_deadline=1.0) as pool:
        yield pool
    assert eventually(lambda: not ours(before)), f"processes were left: {ours(before)}"


def descendants():
    return {child.pid for child in psutil.Process().children(recursive=True)}


def ours(before):
    """Descendants that came meanwhile, but for the one that multiprocessing keeps as long as this process lives."""
    new = alive(descendants() - before)
    return {pid for pid in new if b"resource_tracker" not in Path(f"/proc/{pid}/cmdline").read_bytes()}


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize("kinds", SETS)
def test_in_processes(kinds, processes, left):
    hold(SETS[kinds], processes, left)


@pytest.fixture(scope="module")
def actors(left):
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'rollenv[ray]'")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    from rollenv.rollout.workers.ray import RayWorkers

    here = {"env_vars": {"PYTHONPATH": str(Path(__file__).parent), "LEFT": str(left)}}
    memory = 80 * 2**20
    ray.init(
        "local", num_cpus=2, object_store_memory=memory, include_dashboard=False, log_to_driver=False, logging_level=40
    )
    try:
        options = {"num_cpus": 0.5, "runtime_env": here}
        with RayWorkers(2, envs_per_actor=4, actor_options=options, ping_every=0.2, close_deadline=1.0) as pool:
            yield pool
    finally:
        ray.shutdown()


@pytest.mark.integration
@pytest.mark.parametrize("kinds", SETS)
def test_in_actors(kinds, actors, left):
    hold(SETS[kinds], actors, left)
