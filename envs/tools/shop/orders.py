"""Requests about orders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rollenv.envs.tools.generated import words
from rollenv.envs.tools.generated.goals import Draw, Fact, Goal, Template, column
from rollenv.envs.tools.problem import Call

_REFUND_DAYS, _MOST_DISCOUNT = 30, {"standard": 10, "gold": 25}


class _Order:
    """An order, and how a request names it and an agent finds it: no customer has two of one product."""

    def __init__(self, draw: Draw, key: str):
        self.key = key
        self.data: dict[str, Any] = draw.state["orders"][key]
        self.product: dict[str, Any] = draw.state["products"][self.data["product"]]
        self.customer: dict[str, Any] = draw.state["customers"][self.data["customer"]]
        self.who, self.what = self.customer["name"], self.product["name"]
        self.look: list[list[Call]] = [
            [("find_customers", {"name": self.who})],
            [("list_orders", {"customer_id": self.data["customer"]})],
        ]
        self.path = ("orders", key)
        self.see: list[Call] = [("get_order", {"order_id": key})]


def _an_order(draw: Draw, status: str, fits: Callable[[_Order], bool] = lambda order: True) -> _Order | None:
    orders = (_Order(draw, key) for key, one in draw.state["orders"].items() if one["status"] == status)
    return draw.one([order for order in orders if fits(order)])


def _cancel(draw: Draw, breaks: bool) -> Goal | None:
    order = _an_order(draw, "pending")
    if order is None:
        return None
    ask = draw.say(
        "Cancel the order of {who} for the {what}.",
        "{who} does not want the {what} any more; please cancel that order.",
        "Please call off {who}'s order of the {what}.",
        who=order.who,
        what=order.what,
    )
    return Goal(
        ask, order.look, [("cancel_order", {"order_id": order.key})], blocks=["cancel_order"], reads=[order.path]
    )


def _refund(draw: Draw, breaks: bool) -> Goal | None:
    limit = words.day(draw.state["today"], -_REFUND_DAYS)
    order = _an_order(draw, "delivered", lambda one: (one.data["delivered"] < limit) == breaks)
    if order is None:
        return None
    ask = draw.say(
        "{who} wants the money back for the {what}; refund the order.",
        "Please refund {who}'s order of the {what}.",
        "Give {who} a refund for the {what}.",
        who=order.who,
        what=order.what,
    )
    act = [("refund_order", {"order_id": order.key})]
    return Goal(ask, [*order.look, order.see], act, blocks=["refund_order"], reads=[order.path])


def _address(draw: Draw, breaks: bool) -> Goal | None:
    order = _an_order(draw, "pending")
    if order is None:
        return None
    address, names = words.address(draw.rng), {"who": order.who, "what": order.what}
    ask = draw.say("Send the {what} that {who} ordered to another address", "Change where {who}'s {what} goes", **names)
    fact = Fact(("address", "where"), f"The new address is {address}.", f"{ask}.", "What is the new address?")
    act = [("change_address", {"order_id": order.key, "address": address})]
    return Goal(f"{ask}: {address}.", order.look, act, blocks=["change_address"], fact=fact, reads=[order.path])


def _quantity(draw: Draw, breaks: bool) -> Goal | None:
    number = draw.rng.randint(5, 35)  # drawn first, so that it does not tell whether it is allowed
    order = _an_order(draw, "pending", lambda one: (one.product["stock"] < number) == breaks)
    if order is None:
        return None
    ask = draw.say(
        "{who} wants another number of the {what}",
        "Change how many pieces of the {what} {who} gets",
        who=order.who,
        what=order.what,
    )
    fact = Fact(("how many", "number", "quantity", "pieces"), f"Make it {number}.", f"{ask}.", "How many pieces?")
    act = [("set_quantity", {"order_id": order.key, "quantity": number})]
    look = [*order.look, order.see, [("get_product", {"product_id": order.data["product"]})]]
    reads = [order.path, ("products", order.data["product"])]
    return Goal(f"{ask}: make it {number}.", look, act, blocks=["set_quantity"], fact=fact, reads=reads)


def _discount(draw: Draw, breaks: bool) -> Goal | None:
    percent = draw.rng.randint(_MOST_DISCOUNT["standard"] + 1, _MOST_DISCOUNT["gold"])  # allowed to some
    order = _an_order(draw, "pending", lambda one: (_MOST_DISCOUNT[one.customer["tier"]] < percent) == breaks)
    if order is None:
        return None
    ask = draw.say(
        "Give {who} a discount on the pending order of the {what}",
        "{who} gets a discount on the {what}",
        who=order.who,
        what=order.what,
    )
    fact = Fact(
        ("discount", "percent", "much", "%"), f"{percent} percent.", f"{ask}.", "How much discount, in percent?"
    )
    look = [*order.look, [("get_customer", {"customer_id": order.data["customer"]})]]
    act = [("set_discount", {"order_id": order.key, "percent": percent})]
    reads = [order.path, ("customers", order.data["customer"])]
    return Goal(f"{ask}: {percent} percent.", look, act, blocks=["set_discount"], fact=fact, reads=reads)


def _tracking(draw: Draw, breaks: bool) -> Goal | None:
    order = _an_order(draw, "shipped")
    if order is None:
        return None
    ask = draw.say(
        "What is the tracking code of {who}'s {what}?",
        "{who} asks for the tracking code of the {what}.",
        who=order.who,
        what=order.what,
    )
    code = order.data["tracking"]
    return Goal(
        ask,
        [*order.look, order.see],
        done=f"The tracking code is {code}.",
        answers=[code],
        reads=[order.path],
        rivals=column("orders", "tracking"),
    )


def _total(draw: Draw, breaks: bool) -> Goal | None:
    order = _an_order(draw, "pending")
    if order is None:
        return None
    ask = draw.say(
        "How much does {who} pay for the order of the {what}, after the discount?",
        "What does {who}'s order of the {what} come to, with the discount taken off?",
        who=order.who,
        what=order.what,
    )
    look = [*order.look, order.see, [("get_product", {"product_id": order.data["product"]})]]
    said = _to_pay(draw.state, order.key)
    reads = [order.path, ("products", order.data["product"])]
    return Goal(
        ask,
        look,
        done=f"It comes to {said}.",
        answers=[said],
        reads=reads,
        rivals=lambda state: [_to_pay(state, key) for key in state["orders"]],
    )


def _to_pay(state: Mapping[str, Any], key: str) -> str:
    order = state["orders"][key]
    price = state["products"][order["product"]]["price"]
    return f"{price * order['quantity'] * (100 - order['discount']) / 100:.2f}"


#: What can be asked for.
ORDERS = (
    Template(_cancel),
    Template(_refund, f"Refund an order only within {_REFUND_DAYS} days of its delivery."),
    Template(_address),
    Template(_quantity, "An order is never changed to more pieces than there are in stock."),
    Template(_discount, "Customers of the tier standard get at most 10 percent discount, those of gold 25."),
    Template(_tracking),
    Template(_total),
)
