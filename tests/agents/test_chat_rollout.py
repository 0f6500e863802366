"""A rollout over an endpoint that misbehaves in some episodes: they fail and say why, the rest goes on, none leaks."""

import asyncio
import itertools
import json

import pytest
from chat_answers import PASSING
from chat_server import ChatServer, completion

from rollenv.agents.chat import ChatAgent
from rollenv.agents.chat.endpoint import Patience
from rollenv.rollout.episode import EpisodeLimits
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.types import Task

ENV = "game:GuessTheNumber-v0-easy"
KINDS = {**{name: wrong for name, (wrong, _) in PASSING.items()}, "a hang": lambda exchange: exchange.hang()}


@pytest.fixture(autouse=True)
def _no_key(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


class Spoilt:
    """Answers the first chats well, and the others only until their second turn."""

    def __init__(self, wrong, good_chats):
        self.wrong, self.good_chats, self.seen = wrong, good_chats, []

    async def __call__(self, exchange):
        seed, messages = exchange.body["seed"], exchange.body["messages"]
        if len(messages) == 1:
            self.seen.append(seed)
            await exchange.json(completion("\\boxed{1}"))
        elif len(self.seen) > self.good_chats and "5" in str(seed):
            await self.wrong(exchange)
        else:
            await exchange.json(completion(f"\\boxed{{{len(messages)}}}"))


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_the_run_goes_on_and_says_what_failed(name):
    patience = Patience(timeout=0.3 if name == "a hang" else 30, retries=1, first_wait=0.001)
    spoilt = Spoilt(KINDS[name], good_chats=0)
    with ChatServer(spoilt) as server:
        agent = ChatAgent("tiny", server.url, patience=patience)
        manager = RolloutManager(agent, limits=EpisodeLimits(max_replacements=0), unhealthy_after=1)
        with manager:
            groups = manager.collect([Task(ENV, s) for s in range(6)], 2)
        server.wait_closed()
    trajectories = [t for g in groups for t in g]
    assert len(trajectories) == 12
    assert manager.workers.open_now == 0
    failed = [t for t in trajectories if t.status == "failed"]
    assert failed
    assert len(failed) < 12
    assert all("2 attempts" in t.error and len(t.turns) >= 1 for t in failed)
    assert manager.health.env(ENV).counts["agent_failed"] == len(failed)
    assert manager.health.env(ENV).counts["failed"] == 0, "it is not the environment's fault"


def test_losers_of_a_race_stop_asking():
    """Members that lose are cancelled in the middle of their requests."""

    chats = itertools.count()

    async def behave(exchange):
        messages = exchange.body["messages"]
        if len(messages) == 1:
            await exchange.json(completion(f"\\boxed{{{60 + next(chats) % 2}}}"))  # even chats go on, odd ones do not
        elif messages[1]["content"] == "\\boxed{60}":
            await exchange.json(completion("\\boxed{1}"))
        else:
            await exchange.hang()

    with ChatServer(behave) as server:
        agent = ChatAgent("tiny", server.url)

        async def play():
            (group,) = await asyncio.wait_for(manager.collect_async([Task(ENV, 0)], 3, extra_members=13), 60)
            return group

        with RolloutManager(agent) as manager:
            group = manager.run(play())
        server.wait_closed()
    assert all(t.complete for t in group)
    assert manager.workers.open_now == 0


@pytest.mark.slow
def test_the_command_plays_through_an_endpoint_and_counts(rollenv_command):
    with ChatServer(lambda exchange: exchange.json(completion("\\boxed{5}"))) as server:
        done = rollenv_command("eval", ENV, "-a", "chat:tiny", "--base-url", server.url, "-n", "5", "--json")
        result = json.loads(done.stdout)
        assert result["requests"] == len(server.requests) >= 5
        assert result["prompt_tokens"] == 90 * len(server.requests)
        assert result["n"] == 5


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize(("refused", "code"), [(0, 0), (1, 1), (40, 1)])
def test_the_exit_code_tells_whether_the_endpoint_failed(rollenv_command, refused, code):
    numbers = itertools.count()

    async def answer(exchange):
        if next(numbers) < refused:
            await exchange.json({"error": {"message": "no such seed"}}, "400 Bad Request")
        else:
            await exchange.json(completion("\\boxed{5}"))

    with ChatServer(answer) as server:
        done = rollenv_command("eval", ENV, "-a", "chat:tiny", "--base-url", server.url, "-n", "4")
    assert done.returncode == code
    assert ("no such seed" in done.stderr) == bool(refused)


@pytest.mark.integration
def test_a_model_that_spends_all_its_tokens_on_thoughts_answers_nothing(rollenv_command):
    with ChatServer(lambda exchange: exchange.json(completion(None, finish_reason="length"))) as server:
        done = rollenv_command("eval", ENV, "-a", "chat:tiny", "--base-url", server.url, "-n", "1", "--json")
    result = json.loads(done.stdout)
    assert (done.returncode, result["failed"], result["success"]) == (0, 0, 0.0)
    assert len(server.requests) == result["turns"], "an answer is not asked for twice"
