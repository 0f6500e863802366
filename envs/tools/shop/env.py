"""Requests to a shop's back office."""

from __future__ import annotations

import random
from typing import Any

from rollenv.envs.tools.generated import words
from rollenv.envs.tools.generated.generate import GeneratedToolEnv
from rollenv.envs.tools.generated.goals import Draw, Fact, Goal, Template, column
from rollenv.envs.tools.problem import Call
from rollenv.envs.tools.shop.backend import Shop, make_shop
from rollenv.envs.tools.shop.orders import ORDERS


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
