"""tau2's retail shop: its published actions, the customer, and records that only their episode changes."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from played import to_the_end

import rollenv
from rollenv.core.env import Env
from rollenv.core.tools.calls import write_calls
from rollenv.plugins.suites.tau2.env import Customer, in_first_person
from rollenv.plugins.suites.tau2.retail import RetailBackend

Data = Callable[[str], Path]


@pytest.fixture
def env(data: Data) -> Env:
    data("agentic/tau2/retail/db.json")
    return rollenv.make("tools:Tau2-v0-retail")


def tables() -> dict[str, dict[str, object]]:
    item = {"name": "Lamp", "product_id": "p1", "item_id": "i1", "price": 10.0, "options": {"color": "red"}}
    variants = {
        "i1": {"item_id": "i1", "options": {"color": "red"}, "available": True, "price": 10.0},
        "i2": {"item_id": "i2", "options": {"color": "blue"}, "available": True, "price": 12.5},
        "i3": {"item_id": "i3", "options": {"color": "gold"}, "available": True, "price": 99.0},
        "i4": {"item_id": "i4", "options": {"color": "grey"}, "available": False, "price": 1.0},
    }
    methods = {
        "gift_card_1": {"source": "gift_card", "id": "gift_card_1", "balance": 20.0},
        "paypal_1": {"source": "paypal", "id": "paypal_1"},
        "credit_card_1": {"source": "credit_card", "id": "credit_card_1"},
    }
    address = {"address1": "1 Road", "address2": "", "city": "Bonn", "state": "NW", "country": "DE", "zip": "53111"}
    user = {"user_id": "u", "name": {"first_name": "Ada", "last_name": "Lee"}, "address": address, "email": "a@b.c"}

    def order(key: str, status: str, method: str) -> dict[str, object]:
        paid = [{"transaction_type": "payment", "amount": 20.0, "payment_method_id": method}]
        shared = {"user_id": "u", "address": address, "items": [item, dict(item)], "payment_history": paid}
        return copy.deepcopy({"order_id": key, "status": status, **shared})

    return {
        "products": {"p1": {"name": "Lamp", "product_id": "p1", "variants": variants}},
        "users": {"u": {**user, "payment_methods": methods, "orders": ["#1", "#2", "#3"]}},
        "orders": {
            "#1": order("#1", "pending", "gift_card_1"),
            "#2": order("#2", "delivered", "paypal_1"),
            "#3": order("#3", "processed", "paypal_1"),
        },
    }


def call(backend: RetailBackend, name: str, **arguments: object) -> str:
    return backend.call(name, arguments).text


def test_a_cancelled_order_is_refunded() -> None:
    shop = tables()
    backend, before = RetailBackend(shop), copy.deepcopy(shop)
    assert "Invalid reason" in call(backend, "cancel_pending_order", order_id="#1", reason="because")
    order = json.loads(call(backend, "cancel_pending_order", order_id="#1", reason="no longer needed"))
    assert order["status"] == "cancelled"
    assert order["payment_history"][-1]["transaction_type"] == "refund"
    user = json.loads(call(backend, "get_user_details", user_id="u"))
    assert user["payment_methods"]["gift_card_1"]["balance"] == 40
    assert "cannot be cancelled" in call(backend, "cancel_pending_order", order_id="#1", reason="no longer needed")
    assert shop == before


def test_items_are_changed_only_for_what_there_is_and_can_be_paid() -> None:
    backend = RetailBackend(tables())

    def modify(items: list[str], new: list[str], method: str = "gift_card_1") -> str:
        arguments = {"item_ids": items, "new_item_ids": new, "payment_method_id": method}
        return call(backend, "modify_pending_order_items", order_id="#1", **arguments)

    for wrong in (
        (["i1"], ["i3"]), (["i1"], ["i4"]), (["i1"], ["i9"]), (["i1"], []), (["i2"], ["i1"]), (["i1"] * 3, ["i2"] * 3),
        (["i1"], ["i1"]), ([], []), (["i1"], ["i2"], "paypal_9"),
    ):  # fmt: skip
        assert modify(*wrong).startswith("error"), wrong
        assert backend.data()["changed"] == {"products": {}, "users": {}, "orders": {}}
    changed = json.loads(modify(["i1", "i1"], ["i2", "i2"]))
    assert [item["item_id"] for item in changed["items"]] == ["i2", "i2"]
    assert backend.record("users", "u")["payment_methods"]["gift_card_1"]["balance"] == 15
    assert modify(["i2"], ["i1"]).startswith("error")


def test_returns_exchanges_addresses_and_payments() -> None:
    backend = RetailBackend(tables())
    back = {"order_id": "#2", "item_ids": ["i1"]}
    assert "original" in call(backend, "return_delivered_order_items", **back, payment_method_id="credit_card_1")
    nothing = {**back, "item_ids": [], "payment_method_id": "paypal_1"}
    assert "no items" in call(backend, "return_delivered_order_items", **nothing)
    exchange = {**back, "new_item_ids": ["i2"], "payment_method_id": "paypal_1"}
    order = json.loads(call(backend, "exchange_delivered_order_items", **exchange))
    assert order["exchange_price_difference"] == 2.5
    assert order["status"] == "exchange requested"
    assert "Non-delivered" in call(backend, "return_delivered_order_items", **back, payment_method_id="paypal_1")
    place = {"address1": "2", "address2": "", "city": "c", "state": "s", "country": "d", "zip": "z"}
    assert "Non-pending" in call(backend, "modify_pending_order_address", order_id="#3", **place)
    assert json.loads(call(backend, "modify_pending_order_address", order_id="#1", **place))["address"] == place
    assert json.loads(call(backend, "modify_user_address", user_id="u", **place))["address"] == place
    paid = json.loads(call(backend, "modify_pending_order_payment", order_id="#1", payment_method_id="paypal_1"))
    assert len(paid["payment_history"]) == 3
    assert "exactly one" in call(backend, "modify_pending_order_payment", order_id="#1", payment_method_id="paypal_1")


def test_looking_up_and_calculating() -> None:
    backend = RetailBackend(tables())
    assert call(backend, "find_user_id_by_email", email="A@b.c") == "u"
    assert call(backend, "find_user_id_by_name_zip", first_name="ada", last_name="LEE", zip="53111") == "u"
    assert "User not found" in call(backend, "find_user_id_by_name_zip", first_name="ada", last_name="LEE", zip="1")
    assert json.loads(call(backend, "list_all_product_types")) == {"Lamp": "p1"}
    assert json.loads(call(backend, "get_item_details", item_id="i2"))["price"] == 12.5
    assert call(backend, "calculate", expression="(1 + 2) * 3.333") == "10.0"
    for wrong in ("__import__('os')", "9**9**9**9", "1 / 0", ""):
        assert call(backend, "calculate", expression=wrong).startswith("error")


def test_two_hundred_backends_share_what_does_not_change_and_nothing_else() -> None:
    shop = tables()
    before = copy.deepcopy(shop)
    backends = [RetailBackend(shop) for _ in range(200)]
    for number, backend in enumerate(backends):
        place = {"address1": str(number), "address2": "", "city": "c", "state": "s", "country": "d", "zip": "z"}
        call(backend, "modify_user_address", user_id="u", **place)
    twin = copy.deepcopy(backends[0])
    call(twin, "cancel_pending_order", order_id="#1", reason="no longer needed")
    assert [backend.record("users", "u")["address"]["address1"] for backend in backends] == list(map(str, range(200)))
    assert backends[0].data()["changed"]["orders"] == {}
    assert shop == before


def test_published_actions_solve_all_114_tasks_and_doing_nothing_none(env: Env) -> None:
    assert env.num_tasks() == 114
    idle = 0.0
    for index in range(114):
        env.reset(0, options={"index": index})
        info = to_the_end(env)[-1][4]
        assert (info["success"], info["metrics"]["db"], info["metrics"]["side_effects"]) == (True, 1, 0), index
        env.reset(0, options={"index": index})
        *_, info = env.step("I cannot do that.")
        assert not info["success"]
        idle += info["metrics"]["db"]
    assert idle == 11  # ten tasks with nothing to write, and one whose only writing action fails


def test_splits_are_the_published_ones(env: Env) -> None:
    parts = {split: {row["id"] for row in rollenv.make(env.spec.id, split=split).unwrapped.rows}  # type: ignore[union-attr]
             for split in ("train", "test")}  # fmt: skip
    assert {split: len(ids) for split, ids in parts.items()} == {"train": 74, "test": 40}
    assert not parts["train"] & parts["test"]


def test_an_unwanted_change_is_a_side_effect(env: Env) -> None:
    env.reset(0, options={"index": 0})
    place = {"address1": "2", "address2": "", "city": "c", "state": "s", "country": "d", "zip": "z"}
    env.step(write_calls([("modify_user_address", {"user_id": "noah_brown_6181", **place})]))
    *_, info = env.step("Done.")
    assert not info["success"]
    assert info["metrics"]["side_effects"] > 0


def test_the_customer_tells_confirms_and_leaves() -> None:
    customer = Customer(
        {
            "reason_for_call": "You want to cancel your order #W1 because you no longer needed it.",
            "known_info": "You are Ada Lee in 53111.",
            "unknown_info": "You do not remember your email address",
            "task_instructions": "You're polite.",
        }
    )
    assert customer.opening == "Hello. I want to cancel my order #W1 because I no longer needed it."
    assert "do not remember my email" in customer.reply("What is your email?").text
    assert "Ada Lee" in customer.reply("Please provide your name and zip code.").text
    assert customer.reply("I will cancel #W1. Do you confirm (yes/no)?").text == "Yes."
    assert "#W1" in customer.reply("What can I do for you?").text
    assert customer.reply("I will cancel it; do you confirm? Is there anything else?").text == "Yes. That is all."
    for goes_on in ("What can I help you with today?", "Would you like something else in its place?"):
        assert not customer.reply(goes_on).ends
    assert customer.reply("Is there anything else?").ends
    assert customer.reply("YOU ARE BEING TRANSFERRED TO A HUMAN AGENT. PLEASE HOLD ON.").ends
    assert customer.reply("Your order is cancelled.").ends


def test_first_person() -> None:
    assert in_first_person("You're Ada. You want your money; they owe you.") == "I'm Ada. I want my money; they owe I."
