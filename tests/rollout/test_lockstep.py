"""Episodes that advance together are those that advance one by one: every token, reward and count."""

import hashlib
import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import rollenv
from rollenv.agents.engines.base import Sampling
from rollenv.agents.local import LocalAgent
from rollenv.agents.prompts import ChatPrompt, StepPrompt
from rollenv.agents.tiny.model import build_model, build_tokenizer
from rollenv.agents.tiny.settings import TinySize
from rollenv.core import registry
from rollenv.rollout import filters
from rollenv.rollout.episode import Limits
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.records.health import EnvUnhealthy
from rollenv.rollout.types import Task

SIZE = TinySize(hidden=32, layers=1, heads=2, intermediate=64, context=96)
CHAT = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}you: {% endif %}"
)


class Walk(rollenv.Env):
    """A chain of hashes over seed, actions and draws; some links are troubled.

    Args:
        turns: the most there are.
        trouble: what happens at some of them: "raise", "wrong", "once" (in the first episode that comes there), "long".
    """

    open_now = 0
    _changed_in_place = ()
    been: set[str] = set()

    def __init__(self, turns=5, trouble=""):
        self.turns, self.trouble, self.turn, self.chain = turns, trouble, 0, ""
        Walk.open_now += 1

    def _twin(self):
        Walk.open_now += 1
        return super()._twin()

    def close(self):
        Walk.open_now -= 1

    def _reset(self, options):
        self.turn, self.chain = 0, f"{self.np_random.random():.6f}"
        self._troubled("reset")
        return self.chain, {"suffix": "begin"}

    def _step(self, action):
        self.turn += 1
        drawn = self.randint(2)
        self.chain = hashlib.sha256(f"{self.chain} {action} {drawn}".encode()).hexdigest()[:6]
        said = self._troubled(self.chain)
        over = self.turn >= self.turns or self.chain[0] in "01"
        info = {"success": self.chain[1] < "8", "metrics": {"turn": self.turn}} if over else {"valid": drawn == 1}
        return said, self.randint(3) / 2, over and self.chain[2] < "8", over and self.chain[2] >= "8", info

    def _troubled(self, where):
        if self.trouble == "never" and where != "reset":
            raise ValueError("no way")
        due = hashlib.sha256(where.encode()).digest()[0] < 40
        if due and self.trouble == "raise":
            raise ValueError("lost my way")
        if due and self.trouble == "once" and where not in Walk.been:
            Walk.been.add(where)
            raise ValueError("lost my way for once")
        return 7 if due and self.trouble == "wrong" else "far " * 60 if due and self.trouble == "long" else self.chain

    def state_key(self):
        return self.chain

    def render(self):
        return f"at {self.chain}"


@pytest.fixture(scope="module")
def player():
    tokenizer = build_tokenizer(["begin far you user 0123456789abcdef."], 60)
    tokenizer.chat_template = CHAT
    model = build_model(SIZE, tokenizer, 0).eval()
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(8.0)  # so that members of a group often say the same
    return LocalAgent(model, tokenizer, sampling=Sampling(1.0, 1))


@pytest.fixture(autouse=True)
def known(monkeypatch):
    rollenv.list_envs()
    monkeypatch.setattr(registry, "ENV_REGISTRY", dict(registry.ENV_REGISTRY))
    rollenv.register("test:Walk-v0", Walk, abilities=["state_key", "spawn"])
    rollenv.register("test:Alone-v0", Walk, abilities=["state_key"])
    rollenv.register("test:Chance-v0", Walk, abilities=["state_key", "spawn"], nondeterministic=True)


def play(player, tasks, *, lock_step, groups=None, size=4, keep=None, extra=(0, 0), views=False, replays=3, **how):
    """What was played, its replays and counts, and the environments left open."""
    Walk.open_now, Walk.been = 0, set()
    player.weights_changed()
    player.version = 0
    limits, how = Limits(max_backoff=0.0, max_replays=replays), {"unhealthy_after": 10_000} | how
    with RolloutManager(player, limits=limits, lock_step=lock_step, keep_views=views, **how) as manager:
        played = manager.batch(
            tasks, groups or len(tasks), size, keep=keep, extra_groups=extra[0], extra_members=extra[1]
        )
        counts = {name: dict(record.counts) for name, record in manager.health.envs.items()}
        assert manager.workers.report()[0]["envs"] == 0
    return played, [[t.replays for t in group] for group in played], counts, Walk.open_now


def both(player, tasks, **how):
    together, apart = (play(player, tasks, lock_step=lock_step, **how) for lock_step in (True, False))
    same_groups(together[0], apart[0])
    assert together[1:] == apart[1:]
    return together


def same_groups(one, two):
    assert without_logprobs(one) == without_logprobs(two)
    assert logprobs(one) == pytest.approx(logprobs(two), abs=1e-5)  # batches of other sizes round otherwise


def without_logprobs(groups):
    return [
        [replace(one, turns=[replace(turn, logprobs=()) for turn in one.turns]) for one in group] for group in groups
    ]


def logprobs(groups):
    return [p for group in groups for one in group for turn in one.turns for p in turn.logprobs]


PROMPTS = [
    StepPrompt("{state}", chat=False),
    StepPrompt(history_length=2, chat=False, max_tokens=40),
    StepPrompt("{observation}", chat=True),
    ChatPrompt("find it"),
]


@settings(max_examples=12, deadline=None, phases=[Phase.generate])
@given(
    env_id=st.sampled_from(["test:Walk-v0", "test:Alone-v0", "test:Chance-v0"]),
    prompt=st.sampled_from(PROMPTS),
    trouble=st.sampled_from(["", "", "raise", "wrong", "once", "long"]),
    temperature=st.sampled_from([1.0, 0.5, 0.0]),
    seed=st.integers(0, 1000),
    size=st.integers(1, 6),
    views=st.booleans(),
    few=st.sampled_from([None, 3]),
    tokens=st.sampled_from([1 << 16, 120]),
)
def test_lock_step_changes_nothing(player, env_id, prompt, trouble, temperature, seed, size, views, few, tokens):
    player.prompt = prompt
    player.sampling = Sampling(temperature, 1, stop=("a",) if seed % 2 else ())
    player.engine.max_batch_tokens = tokens
    tasks = [Task(env_id, seed + n, {"turns": 1 + (seed + n) % 6, "trouble": trouble}) for n in range(4)]
    how = {"size": size, "views": views, "max_concurrent": few}
    if trouble == "once":  # who meets it depends on who comes first, and so does the batch in which it is answered
        one, two = (play(player, tasks, lock_step=lock_step, replays=100, **how) for lock_step in (True, False))
        same_groups(one[0], two[0])
        assert sum(map(sum, one[1])) == sum(map(sum, two[1]))
        assert one[3] == 0
    else:
        assert both(player, tasks, **how)[3] == 0


@pytest.mark.parametrize("env_id", ["ragen:Sokoban-v0", "ragen:FrozenLake-v0", "game:Hangman-v0-easy"])
def test_lock_step_changes_nothing_in_games(player, env_id):
    player.prompt, player.sampling = StepPrompt("{state}", chat=False), Sampling(1.0, 1)
    player.engine.max_batch_tokens = 1 << 16
    player.engine.max_context = 96
    both(player, [Task(env_id, n) for n in range(4)])


@pytest.mark.parametrize("extra", [(1, 0), (0, 2), (2, 1)])
def test_redundancy_keeps_the_same_trajectories(player, extra):
    player.prompt, player.sampling = PROMPTS[0], Sampling(1.0, 1)
    tasks = [Task("test:Walk-v0", n, {"turns": 6}) for n in range(8)]
    one, two = (play(player, tasks, lock_step=lock_step, groups=6, extra=extra) for lock_step in (True, False))
    assert one[0] == two[0]
    assert one[3] == two[3] == 0


def test_filtered_groups_and_rewards_are_as_without(player):
    player.prompt, player.sampling = PROMPTS[1], Sampling(1.0, 1)

    async def reward(trajectory):
        return float(len(trajectory.turns))

    tasks = [Task("test:Walk-v0", n) for n in range(16)]
    both(player, tasks, groups=4, keep=filters.varied(), reward=reward)


def test_longer_answers_and_suspended_engines_are_the_episodes_own(player):
    player.prompt = PROMPTS[0]
    for sampling in (Sampling(1.0, 2), Sampling(1.0, 1)):
        player.sampling = sampling
        both(player, [Task("test:Walk-v0", 3)])


@pytest.mark.parametrize("at", [0, 1, 3])
def test_an_engine_that_fails_for_once_fails_nobody(player, monkeypatch, at):
    player.prompt, player.sampling = PROMPTS[3], Sampling(1.0, 1)
    tasks = [Task("test:Walk-v0", n, {"turns": 6}) for n in range(5)]
    expected = play(player, tasks, lock_step=False)[0]
    calls, right = itertools.count(), player.engine._next_logits

    def once(prompts):
        if next(calls) == at:
            raise RuntimeError("out of memory")
        return right(prompts)

    monkeypatch.setattr(player.engine, "_next_logits", once)
    assert play(player, tasks, lock_step=True)[0] == expected


def test_logits_that_are_no_numbers_fail_the_episodes_that_met_them(player, monkeypatch):
    player.prompt, player.sampling = PROMPTS[0], Sampling(1.0, 1)
    right = player.engine._next_logits

    def broken(prompts):
        logits = right(prompts)
        logits[[sum(prompt) % 5 == 0 for prompt in prompts]] = torch.nan
        return logits

    monkeypatch.setattr(player.engine, "_next_logits", broken)
    played, *_ = both(player, [Task("test:Walk-v0", n) for n in range(6)])
    assert {t.status for group in played for t in group} > {"failed"}


def test_an_environment_that_always_fails_ends_the_rollout(player):
    player.prompt, player.sampling = PROMPTS[0], Sampling(1.0, 1)
    rollenv.register("test:Never-v0", lambda: Walk(trouble="never"), abilities=["spawn"])
    errors = []
    for lock_step in (True, False):
        with pytest.raises(EnvUnhealthy) as raised:
            play(player, [Task("test:Never-v0", n) for n in range(20)], lock_step=lock_step, unhealthy_after=20)
        errors.append(str(raised.value).partition(" its last")[0])
    assert errors[0] == errors[1]


def test_a_group_steps_its_environment_once_for_equal_answers(player, monkeypatch):
    player.prompt, player.sampling = PROMPTS[0], Sampling(0.0, 1)
    steps, step = [], Walk._step
    monkeypatch.setattr(Walk, "_step", lambda self, action: steps.append(action) or step(self, action))
    (group,), *_ = play(player, [Task("test:Walk-v0", 1, {"turns": 6})], lock_step=True, size=8)
    assert len(steps) == len(group.trajectories[0].turns)
    assert len({id(t.turns[0]) for t in group}) == 8  # what is later written into one is not in another
    assert all(replace(t, member=0) == group.trajectories[0] for t in group)
