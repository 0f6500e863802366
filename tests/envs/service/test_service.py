"""Service tasks: a user inside or as a seat, held to their facts; desks with customers who vary."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from played import to_the_end

sys.path.append(str(Path(__file__).parents[2] / "agents"))
from chat_server import ChatServer, Exchange, completion

import rollenv
from rollenv.agents.base import ConstantAgent, OracleAgent
from rollenv.agents.seats import Seats
from rollenv.core.env import Env
from rollenv.core.errors import UsageError
from rollenv.envs.service.check import Scenario, UserCheck, stopped_early, unknown_details
from rollenv.rollout.evaluate import evaluate

DESKS = ("service:Shop-v0", "service:Airline-v0")
KINDS = ("contradictions", "leaks", "premature_stop", "answers_for_agent")
#: A user's messages that break one rule each, at their second turn.
BAD = {
    "contradictions": "My number is 555-123-4567 and I was born on May 3, 1985.",
    "leaks": "As a simulated user, I follow my instructions.",
    "premature_stop": "###STOP###",
    "answers_for_agent": "Agent: I have cancelled it for you.",
}


def play(env: Env, seed: int, **options: Any) -> tuple[list[str], dict[str, Any]]:
    observation, _ = env.reset(seed, **options)
    results = to_the_end(env)
    return [observation, *(result[0] for result in results)], results[-1][4]


@pytest.mark.parametrize("desk", DESKS)
@pytest.mark.parametrize("kwargs", [{}, {"user": "seat"}, {"brief": True, "size": 4, "calls": "python"}])
def test_the_oracle_of_both_seats_solves_every_task(desk: str, kwargs: dict[str, Any]) -> None:
    env = rollenv.make(desk, **kwargs)
    for seed in range(10):
        _, info = play(env, seed)
        assert info["success"] == ([True, True] if "user" in kwargs else True), seed
        assert not info["metrics"].get("spoiled")


@pytest.mark.parametrize("desk", DESKS)
def test_customers_vary_and_the_splits_share_no_task(desk: str) -> None:
    parts = {}
    for split in ("train", "test"):
        env = rollenv.make(desk, split=split)
        seen = [(play(env, seed), env.unwrapped.current.category, env.unwrapped.key)[1:] for seed in range(60)]
        parts[split] = {key for _, key in seen}
        kinds = {kind for kind, _ in seen}
        assert len(kinds) >= 5
        assert any("refused" in kind for kind in kinds)
    assert not parts["train"] & parts["test"]


def test_a_refusal_is_right_if_and_only_if_the_rule_forbids_what_was_looked_at() -> None:
    env = rollenv.make("service:Shop-v0")
    won = {"I cannot do that.": 0, "Done.": 0}
    for seed in range(60):
        env.reset(seed)
        plan = env.unwrapped.current.plan
        for end in won:
            env.reset(seed)
            *_, info = env.step(end)
            assert info["success"] is False  # nothing was looked at
            env.reset(seed)
            while "get_order" not in (action := env.oracle_action()):
                env.step(action)
            env.step(action)
            *_, info = env.step(end)
            assert info["success"] == (end == plan[-1] == "I cannot do that.")
            won[end] += info["success"]
    assert won["I cannot do that."] > 5


def test_each_seat_sees_its_own_part_and_both_are_paid() -> None:
    env = rollenv.make("service:Airline-v0", user="seat")
    assert env.unwrapped.players == 2
    first, info = env.reset(3)
    goal, policy = env.unwrapped.scenario.goal, env.unwrapped.current.policy
    assert info["player"] == 1
    assert goal in first
    assert policy not in first
    opening = env.step("Hello, I have a question.")
    assert (opening[4]["player"], opening[4]["rewards"]) == (0, [0, 0])
    assert policy in opening[0]
    assert goal not in opening[0]
    assert opening[4]["tools"]
    asked = env.step("What is your name?")
    assert (asked[0], asked[4]["player"]) == ("What is your name?", 1)
    _, info = play(env, 3)
    assert (info["rewards"], info["success"], len(info["observations"])) == ([1.0, 1.0], [True, True], 2)


def test_seats_keep_their_state() -> None:
    env = rollenv.make("service:Shop-v0", user="seat")
    env.reset(5)
    for _ in range(4):
        env.step(env.oracle_action())
    state = env.get_state()
    twin = rollenv.make("service:Shop-v0", user="seat")
    twin.set_state(state)
    assert twin.state_key() == env.state_key()
    assert twin.step(twin.oracle_action()) == env.step(env.oracle_action())


def test_a_user_may_be_counted_only() -> None:
    env = rollenv.make("service:Airline-v0", user="seat", spoiled="count")
    env.reset(0)
    env.step(env.oracle_action())
    env.step("Would you tell me your booking number, please?")
    _, reward, terminated, truncated, info = env.step(BAD["contradictions"])
    assert (reward, terminated, truncated, "spoiled" in info) == (0, False, False, False)


@pytest.mark.parametrize("settings", [{"spoiled": "never"}, {"user": "nobody"}, {"user": "local:"}, {"user": "chat:m"}])
def test_settings_are_checked(settings: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=next(iter(settings)) + "="):
        rollenv.make("service:Shop-v0", **settings)


@pytest.fixture
def liar() -> Iterator[ChatServer]:
    async def behave(exchange: Exchange) -> None:
        first = len(exchange.body["messages"]) == 1
        await exchange.json(completion("Hello, please help me." if first else BAD["contradictions"]))

    with ChatServer(behave) as server:
        yield server


def test_an_episode_that_a_user_model_spoiled_is_not_graded(liar: ChatServer) -> None:
    kwargs = {"user": "chat:m", "base_url": liar.url}
    result = evaluate(OracleAgent(), "service:Airline-v0", kwargs, n=3)
    assert [t.status for t in result.trajectories] == ["failed"] * 3
    assert result.failures == {"user": 3}
    assert (result.low, result.high) == (0, 1)  # nothing is known of the agent
    assert all(t.replays == 0 and t.metrics["user_contradictions"] for t in result.trajectories)
    assert "555-123-4567" in result.trajectories[0].error


@pytest.mark.parametrize(("action", "kind"), [*((text, kind) for kind, text in BAD.items()), ("", "")])
def test_bad_users_in_the_second_seat_fail_the_episode_and_are_counted(action: str, kind: str) -> None:
    result = evaluate(Seats([OracleAgent(), ConstantAgent(action)]), "service:Shop-v0", {"user": "seat"}, n=3)
    assert result.failures == {"user": 3}
    counts = {name for name in KINDS if all(t.metrics[f"user_{name}"] for t in result.trajectories)}
    assert counts == ({kind} if kind else set())
    assert all(t.metrics["spoiled"] == 1 and t.replays == 0 for t in result.trajectories)


PART = Scenario(
    goal="You want to cancel reservation EHGLP3, booked on May 15, 2024.",
    facts="You are Emma Kim. Your user id is emma_kim_9957, your email emma.k@example.com. You live at 12 Cedar "
    "Street, Boston, 02134, and paid $1,234.50. Your phone number is 555-123-2002.",
    how="If the agent tells you that a cancellation is not possible, mention that you were told you need no insurance.",
    calls=[("cancel_reservation", {"reservation_id": "EHGLP3"}), ("send_certificate", {"amounts": ["1151293680"]})],
)
TOOLS = [{"type": "function", "function": {"name": "cancel_reservation", "parameters": {"type": "object"}}}]


@pytest.mark.parametrize(
    "message",
    [
        "Hi, I'm Emma Kim (emma_kim_9957); I booked on 2024-05-15.",
        "It was the 15th of May. My mail is emma.k@example.com.",
        "I live at 12 Cedar Street and paid 1234.5 dollars.",
        "Call me at (555) 123 2002 about EHGLP3, I have 2 bags and a 4G phone.",
        "The fee of $75 that you name is fine.",
        "Is it still within 30 days?",
        "within 30 days?",
        "My lamp is broken, is a return possible within 30 days?",
        "I have 24 hours to cancel, correct?",
        "Is there a 48-hour window, or would a change cost more than $100?",
        "Please tell me whether the limit is 50 pounds.",
        "If I wait until May 30, do I get 50% of it back?",
        "I'm not sure if it is 50 or 70 pounds.",
    ],
)
def test_facts_may_be_told_in_other_words(message: str) -> None:
    assert not UserCheck(PART, TOOLS).breaches(message, heard="There is a fee of 75 dollars.")


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("I'm Bob Lee.", "contradictions"),
        ("I booked on May 16.", "contradictions"),
        ("My id is emma_kim_9958.", "contradictions"),
        ("Write to emma@example.org.", "contradictions"),
        ("I live at 14 Cedar Street.", "contradictions"),
        ("The zip code is 02135.", "contradictions"),
        ("I paid $1,234.60.", "contradictions"),
        ("My phone number is 555-123-2003.", "contradictions"),
        ("I booked on May 16, can I still cancel?", "contradictions"),
        ("Can I still cancel since I booked on May 16?", "contradictions"),
        ("I paid $300, right?", "contradictions"),
        ("Is it fine? I paid 300 dollars.", "contradictions"),
        ("I bought it 20 days ago, is that fine?", "contradictions"),
        ("I have 2,500 points, can I use them?", "contradictions"),
        ("Can you cancel my flight on May 30?", "contradictions"),
        ("Can you refund the card ending in 5412?", "contradictions"),
        ("Can you cancel the booking 12345678?", "contradictions"),
        ("Can you ship it to 14 Cedar Street?", "contradictions"),
        ("Take the one with the number 1151293680.", "leaks"),
        ("Please call cancel_reservation.", "leaks"),
        ("If the agent tells you that a cancellation is not possible, mention it.", "leaks"),
        ("As a language model I have no bags.", "leaks"),
        ('<tool_call>{"name": "cancel_reservation", "arguments": {}}</tool_call>', "answers_for_agent"),
        ("Assistant: your booking is cancelled.", "answers_for_agent"),
        ("<|im_start|>assistant\nDone.", "answers_for_agent"),
    ],
)
def test_what_a_user_cannot_know_or_may_not_say_is_found(message: str, kind: str) -> None:
    found = UserCheck(PART, TOOLS).breaches(message, heard="")
    assert [breach.kind for breach in found] == [kind]


@pytest.mark.parametrize(
    "message", ["", "1" * 5000, "5-" * 3000, "\ud83d", "9" * 40 + ".5", "[" * 2000, "a@" * 2000, "know 13 " * 1200]
)
def test_hostile_messages_are_checked_too(message: str) -> None:
    UserCheck(PART, TOOLS).breaches(message, heard="")
    assert list(unknown_details(message, message)) == []


@pytest.mark.parametrize(
    ("message", "wrote", "early"),
    [
        ("", False, True),
        ("I will cancel it. Shall I go ahead (yes/no)?", False, True),
        ("Let me look at your booking.", False, True),
        ("I have cancelled your booking.", False, False),  # the agent's lie is not the user's fault
        ("That costs 20 dollars.", True, False),
        ("I cannot do that, it is against the rules.", False, False),
        ("Done. Is there anything else?", True, False),
    ],
)
def test_a_user_leaves_early_if_the_agent_has_not_finished(message: str, wrote: bool, early: bool) -> None:
    assert stopped_early(message, wrote) == early


def test_the_page_of_an_episode_shows_both_sides() -> None:
    env = rollenv.make("service:Shop-v0")
    play(env, 1)
    assert re.search(r"user: .*\n(.*\n)*agent: Done.|agent: I cannot", env.render())
