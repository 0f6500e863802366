"""Requests to a shop's back office."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from rollenv.envs.tools.generated import words
from rollenv.envs.tools.generated.generate import GeneratedToolEnv
from rollenv.envs.tools.generated.goals import Draw, Fact, Goal, Template, column
from rollenv.envs.tools.problem import Call
from rollenv.envs.tools.shop.backend import Shop, make_shop

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


def _find(product: dict[str, Any]) -> list[Call]:
    return [("find_products", {"name": product["name"]})]


def _price(draw: Draw, breaks: bool) -> Goal | None:
    price = draw.rng.randint(2000, 13_000)  # drawn first, so that it does not tell whether it is allowed
    least = 2 * price / 100  # of what it costs now, for it to be forbidden; not within 1.00 of that
    found = draw.record("products", lambda one: abs(one["price"] - least) >= 1 and (one["price"] > least) == breaks)
    if found is None:
        return None
    key, product = found
    ask = draw.say("Change the price of the {what}", "The {what} gets a new price", what=product["name"])
    fact = Fact(
        ("price", "much", "cost"), f"It costs {price / 100:.2f} from now on.", f"{ask}.", "What is the new price?"
    )
    act = [("set_price", {"product_id": key, "price": price / 100})]
    look = [_find(product), [("get_product", {"product_id": key})]]
    reads = [("products", key)]
    return Goal(f"{ask}: {price / 100:.2f}.", look, act, blocks=["set_price"], fact=fact, reads=reads)


def _restock(draw: Draw, breaks: bool) -> Goal | None:
    key, product = draw.any("products")
    pieces = draw.rng.randint(2, 90)
    ask = draw.say(
        "A delivery of the {what} has arrived; add it to the stock",
        "Book in new pieces of the {what}",
        what=product["name"],
    )
    fact = Fact(("how many", "number", "quantity", "pieces"), f"There are {pieces}.", f"{ask}.", "How many pieces?")
    act = [("add_stock", {"product_id": key, "pieces": pieces})]
    return Goal(
        f"{ask}: {pieces} pieces.", [_find(product)], act, blocks=["add_stock"], fact=fact, reads=[("products", key)]
    )


def _email(draw: Draw, breaks: bool) -> Goal | None:
    key = draw.rng.choice(list(draw.state["customers"]))
    who = draw.state["customers"][key]["name"]
    email = f"{words.name(draw.rng).lower()}{draw.rng.randint(10, 99)}@example.org"
    ask = draw.say("{who} has a new email address", "Update the email address of {who}", who=who)
    fact = Fact(("email", "address"), f"It is {email}", f"{ask}.", "What is the new email address?")
    act = [("set_email", {"customer_id": key, "email": email})]
    look = [[("find_customers", {"name": who})]]
    return Goal(f"{ask}: {email}", look, act, blocks=["set_email"], fact=fact, reads=[("customers", key)])


def _place(draw: Draw, breaks: bool) -> Goal | None:
    number, (customer, about) = draw.rng.randint(5, 35), draw.any("customers")
    known = {one["product"] for one in draw.state["orders"].values() if one["customer"] == customer}
    fits = {key: one for key, one in draw.state["products"].items() if (one["stock"] < number) == breaks}
    key = draw.one([key for key in fits if key not in known])  # a second order of one product would be ambiguous
    if key is None:
        return None
    product, who, address = fits[key], about["name"], words.address(draw.rng)
    ask = draw.say(
        "Order the {what} for {who}: {number} of them, to {address}.",
        "{who} wants {number} of the {what}, sent to {address}; please place a new order.",
        who=who,
        what=product["name"],
        number=number,
        address=address,
    )
    order = {"customer_id": customer, "product_id": key, "quantity": number, "address": address}
    look = [[("find_customers", {"name": who}), *_find(product)], [("get_product", {"product_id": key})]]
    return Goal(
        ask, look, [("place_order", order)], blocks=["place_order"], reads=[("products", key), ("customers", customer)]
    )


def _number(draw: Draw, breaks: bool) -> Goal | None:
    key = draw.rng.choice(list(draw.state["customers"]))
    customer = draw.state["customers"][key]
    ask = draw.say("What is {who}'s customer number?", "Tell me the customer number of {who}.", who=customer["name"])
    look = [[("find_customers", {"name": customer["name"]})], [("get_customer", {"customer_id": key})]]
    return Goal(
        ask,
        look,
        done=f"It is {customer['number']}.",
        answers=[customer["number"]],
        rivals=column("customers", "number"),
        reads=[("customers", key, "number")],
    )


class ShopEnv(GeneratedToolEnv):
    """A shop's back office: orders, products and customers, looked up and changed on request."""

    intro = "You work in the back office of a shop. Today is {today}."
    templates = (
        *ORDERS,
        Template(_price, "A price is never lowered to less than half of what it is."),
        Template(_restock),
        Template(_email),
        Template(_place, "A new order is never for more pieces than there are in stock."),
        Template(_number),
    )

    def world(self, rng: random.Random) -> Shop:
        return make_shop(rng, self.size)
