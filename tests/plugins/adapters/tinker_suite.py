"""Tinker's own rollouts over rollenv's environments; a scripted policy answers in tokens. No key, no service."""

import asyncio
import pickle
import warnings

import pytest
from peer_envs import GUESS, guess, guessed

import rollenv
from rollenv.agents.tiny.model import build_tokenizer
from rollenv.plugins.adapters import EpisodeFailed

with warnings.catch_warnings():
    warnings.simplefilter("error")  # the version is the tested one
    from rollenv.plugins.adapters.tinker import RollenvDatasetBuilder, RollenvMessages

from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
from tinker_cookbook.renderers import get_renderer
from tinker_cookbook.renderers.base import ToolCall
from tinker_cookbook.rl.rollout_strategy import RetryOnFailure
from tinker_cookbook.rl.rollouts import do_group_rollout

OPEN = []


class Brittle(rollenv.Env):
    """Raises at the second step of every second episode."""

    def _reset(self, options):
        OPEN.append(self)
        self.turn = 0
        return "Say something.", {}

    def _step(self, action):
        self.turn += 1
        if self.turn == 2 and len(OPEN) % 2:
            raise OSError("the disk\nis full")
        return "Go on.", 1.0, self.turn == 3, False, {"success": True, "said": action}

    def close(self):
        if self in OPEN:
            OPEN.remove(self)


rollenv.register("test:Brittle-v0", Brittle)


class Scripted(TokenCompleter):
    """Answers what ``say`` makes of the text so far."""

    def __init__(self, tokenizer, say):
        self.tokenizer, self.say, self.prompts = tokenizer, say, []

    async def __call__(self, model_input, stop, *, max_tokens=None):
        text = self.tokenizer.decode(model_input.to_ints())
        self.prompts.append(text)
        ids = self.tokenizer.encode(f" {self.say(text)}{stop[0]}")
        return TokensWithLogprobs(ids, [-0.5] * len(ids))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    build_tokenizer(["Say a number higher or lower than 5", "User: Assistant:"] * 3, 400).save_pretrained(folder)
    return str(folder)


def built(model, env_id=GUESS, **settings):
    given = {"n": 3, "batch_size": 2, "group_size": 4, "model_name": model, "renderer_name": "role_colon"} | settings
    return asyncio.run(RollenvDatasetBuilder(env_id=env_id, **given)())


def scripted(model, say):
    return Scripted(get_renderer("role_colon", _tokenizer(model)).tokenizer, say)


def _tokenizer(model):
    from tinker_cookbook.tokenizer_utils import get_tokenizer

    return get_tokenizer(model)


def test_a_group_is_played_as_by_hand_and_its_members_play_the_same_task(model):
    train, test = built(model, n_test=2)
    assert [len(train.get_batch(i)) for i in range(len(train))] == [2, 1]
    assert [g.task.seed for i in range(len(test)) for g in test.get_batch(i)] == [3, 4]
    for group in train.get_batch(0):
        group = pickle.loads(pickle.dumps(group))
        policy = scripted(model, guess)
        played = asyncio.run(do_group_rollout(group, policy))
        total, turns, success = guessed(group.task.seed)
        assert played.get_total_rewards() == pytest.approx([total] * 4)
        last = [trajectory.transitions[-1] for trajectory in played.trajectories_G]
        assert [(t.metrics["turns"], t.metrics["success"]) for t in last] == [(turns, success)] * 4
        assert all(t.episode_done for t in last)
        assert len({p for p in policy.prompts if "Assistant: \\boxed" not in p}) == 1
        assert group.logging_tags() == [GUESS]
        assert group._made == []


def test_a_failing_environment_is_reported_in_one_line_and_nothing_stays_open(model):
    group = built(model, "test:Brittle-v0", n=1, group_size=1)[0].get_batch(0)[0]
    with pytest.raises(EpisodeFailed) as told:
        asyncio.run(do_group_rollout(group, scripted(model, lambda _: "hello")))
    assert str(told.value) == "test:Brittle-v0 (seed 0) failed at turn 2: OSError: the disk is full"
    assert not OPEN


def test_tinkers_own_strategies_handle_failures(model):
    group = built(model, "test:Brittle-v0", n=1, group_size=1)[0].get_batch(0)[0]
    policy = scripted(model, lambda _: "hello")
    played = asyncio.run(do_group_rollout(group, policy, RetryOnFailure(max_retries=1)))
    assert [error.error_type for error in played.rollout_errors] == ["EpisodeFailed"]
    assert played.get_total_rewards() == [3.0]
    assert not OPEN


def test_turns_and_the_system_prompt_are_those_asked_for(model):
    group = built(model, max_turns=2, system="Be brief.")[0].get_batch(0)[0]
    policy = scripted(model, lambda _: "\\boxed{1}")
    played = asyncio.run(do_group_rollout(group, policy))
    assert [len(t.transitions) for t in played.trajectories_G] == [2] * 4
    assert all("Be brief." in prompt for prompt in policy.prompts)


@pytest.mark.parametrize("content", ["", " ", "x" * 300_000, "\ud800", [{"type": "thinking", "thinking": "5"}]])
def test_odd_answers_are_the_environments_to_judge(content):
    async def play():
        env = RollenvMessages(rollenv.rollout.Task(GUESS, 1), max_turns=1)
        await env.initial_observation()
        done = await env.step({"role": "assistant", "content": content})
        env.close()
        again = await env.step({"role": "assistant", "content": "more"})
        return done, again

    done, again = asyncio.run(play())
    assert done.episode_done
    assert again.next_messages[-1]["content"] == "The episode is over."
    assert again.reward == 0.0


def test_who_begins_again_gives_up_the_first_episode():
    async def play():
        env = RollenvMessages(rollenv.rollout.Task("test:Brittle-v0", 1), system="Be brief.")
        first = await env.initial_observation()
        await env.step({"role": "assistant", "content": "something"})
        assert await env.initial_observation() == first
        env.close()

    asyncio.run(play())
    assert not OPEN


def test_tool_calls_reach_the_environment():
    call = ToolCall(function=ToolCall.FunctionBody(name="search", arguments='{"q": "x"}'), id="1")
    from rollenv.plugins.adapters.tinker import _text

    text = _text({"role": "assistant", "content": "so", "tool_calls": [call]})
    assert text == 'so\n<tool_call>{"name": "search", "arguments": {"q": "x"}}</tool_call>'
