"""Gradients that are computed while the last episodes are played: those of the whole batch, whatever comes first."""

from __future__ import annotations

import asyncio
import copy
import itertools
import os
import random
import signal

import pytest
import torch
from early_runs import COLLECT, EARLY, config_of, start
from tiny_runs import numbers
from waiting import eventually

from rollenv.core.errors import UsageError
from rollenv.core.interrupt import Terminated
from rollenv.trainers.columns import TrainingError
from rollenv.trainers.early import EarlyUpdater
from rollenv.trainers.updater import Updater


class Delayed:
    """Workers whose environments take a random time for a step, beside each other."""

    def __init__(self, workers, seconds=0.004):
        self.workers, self.seconds = workers, seconds
        self.aclose, self.report, self.interruptible = workers.aclose, workers.report, workers.interruptible

    async def open(self, *given, **how):
        return DelayedEnv(await self.workers.open(*given, **how), self.seconds)


class DelayedEnv:
    def __init__(self, env, seconds):
        self.env, self.seconds, self.clock = env, seconds, random.SystemRandom()

    def __getattr__(self, name):
        return getattr(self.env, name)

    async def step(self, action):
        await asyncio.sleep(self.seconds * self.clock.lognormvariate(0, 1))
        return await self.env.step(action)


class OthersHang(Delayed):
    """Workers with which no group ends but the first."""

    def __init__(self, workers):
        super().__init__(workers)
        self.first, self.hanging = None, 0

    async def open(self, task, *given, **how):
        env = await self.workers.open(task, *given, **how)
        self.first = self.first or task
        return env if task == self.first else HangingEnv(env, self)


class HangingEnv:
    def __init__(self, env, workers):
        self.env, self.workers = env, workers

    def __getattr__(self, name):
        return getattr(self.env, name)

    async def step(self, action):
        self.workers.hanging += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.workers.hanging -= 1


def rows(path) -> list[dict]:
    return [{k: v for k, v in row.items() if k != "sharing"} for row in numbers(path)]


def saved_weights(path) -> bytes:
    return sorted(path.glob("checkpoints/*/model.safetensors"))[-1].read_bytes()


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """A state to train, and a batch that was played with it."""
    with start(tmp_path_factory.mktemp("run") / "run", EARLY, "kl.name=loss") as trainer:
        groups = trainer.batches.next({})
        yield trainer, groups


def gradient_of(updater, groups, order=()):
    """The gradient of a batch before it is clipped, and the update's metrics; no weight changes.

    Args:
        order: groups whose gradients are computed before the batch is complete.
    """
    policy, found = updater.state.policy, []

    def step(lr, *, hold=False):
        found.append(torch.cat([w.grad.flatten().double() for w in policy.weights.values()]))
        policy.adam.zero_grad()
        return float(found[0].norm())

    policy.step, metrics = step, {}
    try:
        if order:
            updater.begin()
        for number in order:
            updater.add(groups[number])
        metrics |= updater.update(updater.compute_advantages(groups, metrics))
    finally:
        del policy.step
    del metrics["sharing"]  # prefixes of different groups are not shared
    return found[0], metrics


def assert_equal_gradients(played, *overrides):
    trainer, groups = played
    groups, state, run = copy.deepcopy(groups), trainer.state, trainer.run
    expected, metrics = gradient_of(Updater(config_of(*COLLECT, *overrides), state, run), groups)
    early = EarlyUpdater(config_of(EARLY, *overrides), state, run)
    found = [gradient_of(early, groups, order) for order in ([5, 2, 0, 4, 1, 3], [3, 1], [2, 3, 4, 5, 0])]
    for gradient, others in found:
        assert (gradient - expected).norm() <= 1e-6 * expected.norm()
        assert others == pytest.approx(metrics, rel=1e-5, abs=1e-6)
        assert torch.equal(gradient, found[0][0]), "it depends on the order"
    assert expected.norm() > 0


ALGORITHMS = {
    "grpo": [],
    "dr_grpo": ["algorithm.normalize_std=false"],
    "clipped": ["algorithm.clip_advantage=0.5"],
    **{name: [f"algorithm.name={name}"] for name in ("rloo", "maxrl", "gigpo", "hgpo", "mt_grpo", "reinforce")},
    "step_reinforce": ["algorithm.name=step_reinforce"],
}


AGGREGATES = ["token", "sequence", "episode", "prompt", "fixed"]
QUICK = {("grpo", "prompt"), ("rloo", "sequence"), ("maxrl", "fixed"), ("gigpo", "token"), ("gigpo", "episode")}


@pytest.mark.parametrize(
    ("algorithm", "aggregate"),
    [
        pytest.param(*case, marks=[] if case in QUICK else pytest.mark.integration)
        for case in itertools.product(ALGORITHMS, AGGREGATES)
    ],
)
def test_the_gradient_is_that_of_the_whole_batch_in_any_order(played, algorithm, aggregate):
    assert_equal_gradients(played, *ALGORITHMS[algorithm], f"loss.aggregate={aggregate}")


@pytest.mark.parametrize(
    "overrides",
    [
        ["kl.name=loss", "kl.coef=0.5", "loss.entropy=0.1", "loss.entropy_samples=all"],
        ["loss.name=gspo", "optimizer.old_logprobs=recomputed"],
        ["correction.name=tis", "loss.imitate=0.3", "rollout.samples=trajectory"],
        ["rewards.drop_repetition=3", "rollout.keep.mean=[0.8, 9.0]"],
        ["distill.name=sibling", "distill.coef=0.5"],
        ["rewards.mean=group", "rewards.std=group", "optimizer.micro_batch_tokens=40"],
    ],
    ids=lambda overrides: overrides[0],
)
def test_so_it_is_with_what_else_is_in_the_loss(played, overrides):
    assert_equal_gradients(played, *overrides)


def test_a_group_without_turns_and_one_without_signal_count_as_in_the_whole_batch(played):
    trainer, groups = played
    groups = copy.deepcopy(groups)
    for trajectory in groups[1]:
        trajectory.turns.clear()
    for trajectory in groups[4]:
        trajectory.turns[:] = groups[4].trajectories[0].turns
    assert_equal_gradients((trainer, groups), "algorithm.name=rloo")


def test_an_estimator_that_looks_across_groups_is_found_out(played):
    trainer, groups = played
    early = EarlyUpdater(config_of(EARLY).model_copy(deep=True), trainer.state, trainer.run)
    early.config.algorithm.whiten = True
    with pytest.raises(TrainingError, match="advantages"):
        gradient_of(early, groups, [0, 1])


@pytest.mark.parametrize(
    "overrides",
    [[], ["rollout.extra_groups=2", "rollout.extra_members=1", "rollout.refill=2"], ["rollout.workers=1"]],
    ids=["plain", "extra", "workers"],
)
def test_gradients_begin_while_others_play_and_no_weight_changes_until_all_have_ended(tmp_path, overrides):
    with start(tmp_path / "run", EARLY, "optimizer.old_logprobs=recomputed", *overrides) as trainer:
        trainer.manager.workers = Delayed(trainer.manager.workers, 0.02)
        metrics: dict[str, float] = {}
        groups = trainer.batches.next(metrics)
        assert metrics["time/early"] > 0
        assert len(groups) == 6
        once = Updater(config_of(*COLLECT, "optimizer.old_logprobs=recomputed"), trainer.state, trainer.run)
        expected, numbers = gradient_of(once, groups)
        gradient, others = gradient_of(trainer.learner, groups)
        assert (gradient - expected).norm() <= 1e-6 * expected.norm()
        assert others == pytest.approx(numbers, rel=1e-5, abs=1e-6)
        assert others["logprob_drift"] < 1e-5, "the player had other weights"
        trainer.fit()
        assert {turn.policy_version for g in trainer.batches.next({}) for t in g for turn in t.turns} == {4}


def test_an_early_run_trains_as_one_with_collected_batches(tmp_path):
    for name, kind in (("early", [EARLY]), ("collected", COLLECT)):
        with start(tmp_path / name, *kind) as trainer:
            trainer.fit()
    for row, collected in zip(rows(tmp_path / "early"), rows(tmp_path / "collected"), strict=True):
        assert row == pytest.approx(collected, rel=1e-3, abs=1e-5)


def test_a_run_that_ends_between_gradients_resumes_to_equal_numbers(tmp_path):
    with start(tmp_path / "whole", EARLY) as trainer:
        trainer.fit()
    with start(tmp_path / "part", EARLY) as trainer:
        accumulate, calls = trainer.learner._accumulate, []

        def terminated(*given):
            calls.append(trainer.state.iteration)
            found = accumulate(*given)
            if calls.count(2) == 3:
                os.kill(os.getpid(), signal.SIGTERM)
            return found

        trainer.learner._accumulate = terminated
        with pytest.raises(Terminated):
            trainer.fit()
    with start(tmp_path / "part", EARLY) as trainer:
        assert trainer.state.iteration in (2, 3)  # an update under way is finished
        trainer.fit()
    assert rows(tmp_path / "part") == rows(tmp_path / "whole")
    assert saved_weights(tmp_path / "part") == saved_weights(tmp_path / "whole")


def test_a_batch_that_was_given_up_leaves_nothing_in_the_next_gradient(played):
    trainer, groups = played
    early = EarlyUpdater(config_of(EARLY), trainer.state, trainer.run)
    expected, _ = gradient_of(early, groups, [0])
    early.begin()
    early.add(groups[3])
    gradient, _ = gradient_of(early, groups, [1])
    assert torch.equal(gradient, expected)


def test_an_error_in_a_gradient_ends_the_episodes_that_still_play(tmp_path):
    with start(tmp_path / "run", EARLY) as trainer:
        workers = trainer.manager.workers = OthersHang(trainer.manager.workers)

        def broken(group):
            raise ValueError("no memory")

        trainer.learner.add = broken
        with pytest.raises(ValueError, match="no memory"):
            trainer.batches.next({})
        assert eventually(lambda: not workers.hanging)


REFUSED = {
    "algorithm.name=reinforce_pp": [],
    "algorithm.name=rebn": [],
    "algorithm.name=empg": [],
    "algorithm.name=ppo": [],
    "algorithm.name=dpo": ["loss.name=likelihood", "loss.entropy=0"],
    "algorithm.name=math:fsum": [],
    "algorithm.mean=batch": ["algorithm.name=step_reinforce"],
    "algorithm.std=batch": ["algorithm.name=step_reinforce"],
    "algorithm.whiten=true": [],
    "rewards.mean=batch": [],
    "rewards.std=running": [],
    "rewards.length_weight=true": [],
    "rewards.difficulty_weight=true": [],
    "loss.observations=0.1": ["rollout.samples=trajectory"],
    "loss.router=0.1": ["model.size.experts=2"],
    "kl.target=0.1": ["kl.name=reward"],
    "optimizer.epochs=2": [],
    "placement.ranks=2": [],
    "rollout.shards=2": [],
    "player.sleep=1": ["player.kind=vllm"],
}


@pytest.mark.parametrize("override", REFUSED)
def test_what_is_not_a_sum_over_groups_is_refused_before_anything_is_played(override):
    with pytest.raises(UsageError, match=r"batches\.kind=early cannot train with") as refused:
        config_of(EARLY, *REFUSED[override], override)
    assert override.partition("=")[0] in str(refused.value)
    config_of(*REFUSED[override], override)
