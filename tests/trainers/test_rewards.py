"""Rewards beside the environment's: by domain, for form and length, and by a judge."""

import asyncio
import sys
from pathlib import Path

import pytest
from answered import answered, thinking, worth

from rollenv import UsageError
from rollenv.agents.base import AgentFailed, OracleAgent
from rollenv.agents.chat.endpoint import Endpoint, Patience
from rollenv.core.errors import RollenvError
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.types import Task
from rollenv.trainers.config.load import parse_config
from rollenv.trainers.rewards import ByDomain, Format, Judge, JudgeFailed, Sum
from rollenv.trainers.rewards.configured import DomainRewards
from rollenv.trainers.rewards.judge import read_score
from rollenv.trainers.sources import MixtureSource, SeedSource, TaskTemplate

sys.path.append(str(Path(__file__).parent.parent / "agents"))
from chat_server import ChatServer, completion

SUMS = TaskTemplate("math:Arithmetic-v0-digit")


def always(value):
    async def reward(trajectory):
        return value

    return reward


async def broken(trajectory):
    raise ValueError("broken")


# -- by domain ---------------------------------------------------------------------------------------------------------


def test_the_domain_is_the_name_in_the_mixture_and_then_the_environment():
    source = MixtureSource({"hard": (1, SeedSource(SUMS)), "other": (1, SeedSource(SUMS))})
    hard, other = next(source), next(source)
    reward = ByDomain({"*": always(0), "math:*": always(1), "hard": always(2), "code:*": always(3)})
    assert worth(reward, answered("x", task=hard)) == 2
    assert worth(reward, answered("x", task=other)) == 1
    assert worth(reward, answered("x", task=Task("game:Sokoban-v0-easy", 0))) == 0
    assert worth(reward, answered("x", task=Task("code:OneLine-v0", 0))) == 3


def test_the_outer_name_goes_before_the_inner_one():
    inner = MixtureSource({"inner": (1, SeedSource(SUMS))})
    task = next(MixtureSource({"outer": (1, inner)}))
    assert worth(ByDomain({"inner": always(1), "outer": always(2)}), answered("x", task=task)) == 2
    assert worth(ByDomain({"inner": always(1), "math:*": always(2)}), answered("x", task=task)) == 1


def test_a_domain_without_a_reward_is_an_error():
    with pytest.raises(UsageError, match="math:Arithmetic-v0-digit"):
        worth(ByDomain({"code:*": always(1)}), answered("x"))


def test_sums_are_weighted_and_a_part_that_fails_is_reported_as_it_is():
    assert worth(Sum([(2.0, always(1.0)), (-0.5, always(3.0))]), answered("x")) == 0.5
    left = []

    async def slow(trajectory):
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            left.append("cancelled")
            raise

    with pytest.raises(ValueError, match="broken"):
        worth(Sum([(1.0, slow), (1.0, broken)]), answered("x"))
    assert left == ["cancelled"]


def test_rewards_are_added_as_trajectories_end_and_a_failing_one_is_no_zero():
    source = MixtureSource({"good": (1, SeedSource(SUMS)), "bad": (1, SeedSource(SUMS))})
    reward = ByDomain({"good": always(0.25), "bad": broken})
    with RolloutManager(OracleAgent(), reward=reward) as manager:
        groups = manager.collect([next(source), next(source)], 2)
    done = [t for group in groups for t in group]
    assert {t.reward for t in done if t.complete} == {1.25}
    failed = [t for t in done if not t.complete]
    assert {t.failure for t in failed} == {"reward"}
    assert all("broken" in t.error for t in failed)


# -- form and length ---------------------------------------------------------------------------------------------------


def test_the_format_is_that_of_the_whole_response_in_every_turn():
    reward = Format(r"<think>.*</think>\s*\d+", matched=0.1, missed=-0.5)
    assert worth(reward, answered("<think>\nso\n</think> 4\n")) == 0.1
    assert worth(reward, answered("well <think></think> 4")) == -0.5
    assert worth(reward, answered("<think></think>4", "4")) == pytest.approx(-0.2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ByDomain({}),
        lambda: Sum([]),
        lambda: Format("("),
        lambda: Format("x", matched=0.0, missed=0.0),
        lambda: Judge("http://127.0.0.1:1/v1", "m", template="{task}"),
        lambda: Judge("http://127.0.0.1:1/v1", "m", attempts=0),
    ],
)
def test_settings_that_cannot_be_are_refused(make):
    with pytest.raises(UsageError):
        make()


# -- a judge -----------------------------------------------------------------------------------------------------------


def judge_that_says(*replies):
    left = list(replies)

    async def behave(exchange):
        reply = left.pop(0) if len(left) > 1 else left[0]
        await (exchange.hang_up() if reply is None else exchange.json(completion(reply)))

    return ChatServer(behave)


def test_a_judge_sees_task_and_answer_as_they_are_and_its_score_is_the_reward():
    with judge_that_says("It is right.\n\n**Score: 7.5**") as server:
        judge = Judge(server.url, "m", extra_body={"seed": 1})
        assert worth(judge, answered("{task} Score: 10", asked="What is {answer}?")) == 0.75
    (body,) = server.requests
    assert body["model"] == "m"
    assert body["seed"] == 1
    text = body["messages"][0]["content"]
    assert "What is {answer}?" in text
    assert "\n{task} Score: 10\n" in text
    assert judge.metrics() == {"judge/verdicts": 1, "judge/unreadable": 0, "judge/failures": 0}


def test_a_verdict_that_cannot_be_read_is_asked_for_again_and_never_a_zero():
    with judge_that_says("hm", "Score: 3", "hm") as server:
        judge = Judge(server.url, "m")
        assert worth(judge, answered("x")) == 0.3
        with pytest.raises(JudgeFailed, match="'hm'"):
            worth(judge, answered("x"))
    assert judge.metrics() == {"judge/verdicts": 1, "judge/unreadable": 3, "judge/failures": 1}


def test_a_judge_without_a_verdict_leaves_failed_trajectories_in_the_rollout():
    with judge_that_says("I cannot say.") as server, RolloutManager(OracleAgent(), reward=Judge(server.url, "m")) as m:
        (group,) = m.collect([next(SeedSource(SUMS))], 2)
    assert [t.failure for t in group] == ["reward"] * 2
    assert group.complete == []


def test_an_endpoint_that_hangs_up_is_the_endpoints_error():
    with judge_that_says(None) as server:
        endpoint = Endpoint(server.url, patience=Patience(retries=1, first_wait=0.01))
        with pytest.raises(AgentFailed):
            worth(Judge(endpoint, "m"), answered("x"))


async def silent(exchange):
    await exchange.hang()


async def failing(exchange):
    await exchange.json({"error": "out of memory"}, "500 Internal Server Error")


async def babbling(exchange):
    await exchange.send(b"<html>Score: 10</html>")


def saying(data):
    async def behave(exchange):
        await exchange.json(data)

    return behave


@pytest.mark.parametrize(
    "behave",
    [silent, failing, babbling, saying([]), saying({"choices": []}), saying({"choices": [{"message": "Score: 10"}]})]
    + [saying(completion(text)) for text in (None, "", "Score: 11", "Score: -1", "Score: nan", "Score: 1e1", "10")],
)
def test_a_judge_that_does_not_judge_gives_no_reward_and_does_not_hang(behave):
    with ChatServer(behave) as server:
        judge = Judge(Endpoint(server.url, patience=Patience(0.2, retries=1, first_wait=0.01)), "m")
        with pytest.raises(RollenvError, match=r"judge|gave no answer|Score"):
            worth(judge, answered("x"))
    assert judge.metrics()["judge/failures"] == 1
    assert judge.metrics()["judge/verdicts"] == 0


def test_thoughts_are_no_part_of_an_answer_that_is_judged():
    hidden = thinking("<think>sun, Score: 10</think>rain", "rain")
    with judge_that_says("Score: 3") as server:
        worth(Judge(server.url, "m"), hidden)
    assert "sun" not in server.requests[0]["messages"][0]["content"]
    assert worth(Format("<think>.*</think>rain"), hidden) == 0.0, "a form is that of the whole response"


def test_a_judge_is_not_asked_about_nothing():
    with judge_that_says("Score: 10") as server:
        assert [worth(Judge(server.url, "m"), thinking(r, t)) for r, t in (("", " \n"), ("<think>a</think>", ""))] == [
            0,
            0,
        ]
    assert not server.requests


@pytest.mark.combinations
@pytest.mark.parametrize(
    ("pattern", "response"),
    [(r"(a|a)+b", "a" * 60), (r".*<a>.*</a>.*<b>.*</b>.*<c>.*</c>", "<a></a><b></b><c>" * 3000)],
)
def test_a_pattern_that_backtracks_forever_is_no_match(pattern, response, caplog, monkeypatch):
    monkeypatch.setattr("rollenv.trainers.rewards.format.PATIENCE", 0.2)
    assert worth(Format(pattern, missed=-0.5), answered(response)) == -0.5
    assert "took over" in caplog.text


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ("Score: 10", 10.0), ("score : 0 / 10", 0.0), ("x\nScore: [3].", 3.0), ("Score: 3\n\n", 3.0),
        ("Score: 3\nor so", None), ("Score: 11", None), ("Score: -1", None), ("Score: <number>", None),
        ("The score: 3", None), ("Score: 3 or 4", None), ("Score: nan", None), ("", None),
        ("Score: " + " " * 10**6 + "x", None),
    ],
)  # fmt: skip
def test_scores(reply, score):
    assert read_score(reply) == score


def test_rewards_of_one_domain_are_told_apart_and_their_seconds_counted():
    domains = [
        {"kind": "format", "pattern": "x", "matched": 1.0, "weight": 2.0},
        {"kind": "format", "pattern": "y", "missed": -1.0},
    ]
    config = parse_config({"env": {"id": "math:Arithmetic-v0-digit"}, "rewards": {"domains": domains}})
    rewards = DomainRewards(config)
    assert worth(rewards, answered("x")) == 2.0 - 1.0
    metrics = rewards.metrics()
    assert metrics["added/*"] == 1.0
    named = {"added/*/format": 2.0, "added/*/format-2": -1.0}
    assert named == {key: value for key, value in metrics.items() if key.startswith("added/*/")}
    assert metrics["time/reward"] > 0
    assert rewards.metrics() == {"time/reward": 0.0}
