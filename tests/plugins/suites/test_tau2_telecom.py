"""tau2's telecom: published actions, a phone that obeys its settings and its line, and a customer who listens."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from telecom_company import call, company, customer

import rollenv
from rollenv.core.env import Env
from rollenv.core.errors import UsageError
from rollenv.core.tools.calls import write_calls
from rollenv.envs.tools.base import ToolEnv
from rollenv.plugins.suites.tau2.telecom.backend import AGENT, TelecomBackend
from rollenv.plugins.suites.tau2.telecom.phone import CUSTOMER

Data = Callable[[str], Path]
LINE = {"customer_id": "C1", "line_id": "L1"}


@pytest.fixture
def env(data: Data) -> Env:
    data("agentic/tau2/telecom/tasks_small.json")
    return rollenv.make("tools:Tau2-v0-telecom")


@pytest.fixture
def backend() -> TelecomBackend:
    return company()


def test_published_actions_solve_all_20_tasks_and_doing_nothing_none(env: Env) -> None:
    assert env.num_tasks() == 20
    for index in range(20):
        env.reset(0, options={"index": index})
        over = False
        while not over:
            *_, terminated, truncated, info = env.step(env.oracle_action())
            over = terminated or truncated
        numbers = info["metrics"]
        assert (info["success"], numbers["partial"], numbers["side_effects"], numbers["invalid_calls"]) == (1, 1, 0, 0)
        env.reset(0, options={"index": index})
        over, replies = False, 0
        while not over:
            _, reward, over, _, info = env.step("Done.")
            replies += 1
        assert (reward, info["metrics"]["partial"], replies) == (0, 0, 3), index


def test_actions_judged_as_such_are_transfers(env: Env) -> None:
    judged = [row["evaluation_criteria"] for row in env.unwrapped.rows  # type: ignore[attr-defined]
              if "ACTION" in row["evaluation_criteria"]["reward_basis"]]  # fmt: skip
    assert [[action["name"] for action in each["actions"]] for each in judged] == [["transfer_to_human_agents"]] * 2


def test_the_agent_cannot_touch_the_phone(env: Env) -> None:
    seen, info = env.reset(0)
    assert {each["function"]["name"] for each in info["tools"]} == set(AGENT)
    assert not set(AGENT) & set(CUSTOMER)
    *_, info = env.step(write_calls([(name, {}) for name in CUSTOMER]))
    assert all("no function" in text for text in info["tool_responses"])
    assert "main_policy" in seen


def test_an_unwanted_change_is_a_side_effect(env: Env) -> None:
    env.reset(0, options={"index": 0})
    env.step(write_calls([("suspend_line", {"customer_id": "C1001", "line_id": "L1001", "reason": "x"})]))
    for _ in range(3):
        *_, info = env.step("Done.")
    assert info["metrics"]["side_effects"] == 2


def test_both_texts_on_support_are_there(env: Env) -> None:
    texts = {rollenv.make(env.spec.id, support=each).reset(0)[0] for each in ("manual", "workflow")}  # type: ignore[union-attr]
    assert len(texts) == 2
    with pytest.raises(UsageError, match="support"):
        rollenv.make(env.spec.id, support="none")  # type: ignore[union-attr]


def test_a_copy_of_an_episode_has_its_own_phone(env: Env) -> None:
    env.reset(0, options={"index": 8})
    twin = copy.deepcopy(env)
    twin.step("Please use toggle_airplane_mode() on your phone.")
    *_, terminated, _, info = twin.step("Done.")
    assert terminated
    assert info["success"]
    assert isinstance(env.unwrapped, ToolEnv)
    assert env.unwrapped.changes() == []
    assert "Airplane Mode" in env.step("Done.")[0]


@pytest.mark.parametrize(
    ("breaks", "mends"),
    [
        ("toggle_airplane_mode()", "toggle_airplane_mode()"),
        ("toggle_data()", "toggle_data()"),
        ("toggle_data_saver_mode()", "toggle_data_saver_mode()"),
        ('set_network_mode_preference("2g_only")', 'set_network_mode_preference("4g_5g_preferred")'),
    ],
)
def test_what_breaks_the_phone_is_mended_by_its_opposite(backend: TelecomBackend, breaks: str, mends: str) -> None:
    before = backend.digest()
    assert "Excellent" in call(backend, "run_speed_test")
    asked = customer(backend)
    asked.reply(f"Please use {breaks}.")
    assert "Excellent" not in call(backend, "run_speed_test")
    asked.reply(f"Please use {mends}.")
    assert "Excellent" in call(backend, "run_speed_test")
    assert backend.digest() == before


def test_a_suspended_line_is_noticed_by_the_phone_when_it_looks_for_a_network(backend: TelecomBackend) -> None:
    before, seen = backend.digest(), []
    for name in ("suspend_line", "resume_line"):
        call(backend, name, **LINE, **({"reason": "x"} if name == "suspend_line" else {}))
        for _ in range(2):
            seen.append(backend.phone["network_connection_status"])
            call(backend, "reboot_device")
    assert seen == ["connected", "no_service", "no_service", "connected"]
    assert backend.digest() == before


def test_abroad_both_the_phone_and_the_line_have_to_roam(backend: TelecomBackend) -> None:
    backend.state["caller"]["abroad"] = True
    works = []
    for name, arguments in (("toggle_roaming", {}), ("enable_roaming", LINE), ("toggle_roaming", {})):
        call(backend, name, **arguments)
        works.append(backend.online())
    assert works == [False, True, False]


def test_data_runs_out_and_is_refuelled_for_money(backend: TelecomBackend) -> None:
    backend.line["data_used_gb"] = 5.5
    assert not backend.online()
    assert json.loads(call(backend, "refuel_data", **LINE, gb_amount=2))["charge"] == 4
    assert backend.online()
    drafts = [
        bill
        for bill in json.loads(call(backend, "get_bills_for_customer", customer_id="C1"))
        if bill["status"] == "Draft"
    ]
    assert [bill["total_due"] for bill in drafts] == [4]
    before = backend.digest()
    for wrong in (0, -1, float("nan"), float("inf"), 1e300, "2 GB", None, [2]):
        assert call(backend, "refuel_data", **LINE, gb_amount=wrong).startswith("error")
        assert backend.digest() == before


def test_a_bill_is_paid_on_request_only(backend: TelecomBackend) -> None:
    assert "no payment request" in call(backend, "make_payment")
    call(backend, "send_payment_request", customer_id="C1", bill_id="B1")
    assert "40.0 USD" in call(backend, "check_payment_request")
    assert "awaiting" in call(backend, "send_payment_request", customer_id="C1", bill_id="B1")
    call(backend, "make_payment")
    assert backend.record("B1")["status"] == "Paid"
    assert "no payment request" in call(backend, "make_payment")


def test_looking_up(backend: TelecomBackend) -> None:
    for number in ("555-1", "5551", "(555) 9"):
        assert json.loads(call(backend, "get_customer_by_phone", phone_number=number))["customer_id"] == "C1"
    assert json.loads(call(backend, "get_customer_by_name", full_name="ada lee", dob="1990-01-31"))
    assert json.loads(call(backend, "get_customer_by_name", full_name="ada lee", dob="1990-01-30")) == []
    for name, arguments in (
        ("get_customer_by_phone", {"phone_number": ""}), ("get_customer_by_phone", {"phone_number": "²"}),
        ("get_details_by_id", {"id": ""}), ("get_details_by_id", {"id": "X1"}),
        ("get_details_by_id", {"id": "L" * 90_000}), ("get_details_by_id", {"id": ["L1"]}),
        ("enable_roaming", {"customer_id": "C2", "line_id": "L1"}),
        ("enable_roaming", {"customer_id": "C1", "line_id": "L2"}), ("resume_line", LINE),
        ("send_payment_request", {"customer_id": "C1", "bill_id": "L1"}),
        ("grant_app_permission", {"app_name": "x", "permission": "sms"}),
        ("grant_app_permission", {"app_name": "messaging", "permission": "camera"}),
    ):  # fmt: skip
        before = backend.digest()
        answer = call(backend, name, **arguments)
        assert answer.startswith("error")
        assert len(answer) < 1000
        assert backend.digest() == before
