"""A shop's back office: functions, generated shops, and requests."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from rollenv.core.tools.backend import ToolError, tool
from rollenv.envs.tools.base import Call
from rollenv.envs.tools.generated import words
from rollenv.envs.tools.generated.generate import GeneratedToolEnv
from rollenv.envs.tools.generated.goals import Fact, Goal, GoalDraw, GoalKind, World, column

Amount = Annotated[int, Field(ge=1, le=1000)]
Status = Literal["pending", "shipped", "delivered", "cancelled", "refunded"]


class ShopWorld(World):
    """Customers, products and orders; an order is for one product."""

    def _pending(self, order_id: str) -> dict[str, Any]:
        order = self.record("orders", order_id)
        if order["status"] != "pending":
            raise ToolError(f"order {order_id} is {order['status']}; only pending orders can be changed")
        return order

    @tool
    def find_customers(self, name: str) -> list[dict[str, Any]]:
        """Search customers by name; gives ids and names."""
        return [{"id": one["id"], "name": one["name"]} for one in self.matching("customers", "name", name)]

    @tool
    def get_customer(self, customer_id: str) -> dict[str, Any]:
        """All data of a customer: name, email, tier and customer number."""
        return self.record("customers", customer_id)

    @tool
    def list_orders(self, customer_id: str) -> list[dict[str, Any]]:
        """The orders of a customer: ids, products and status."""
        self.record("customers", customer_id)
        return [
            {"id": key, "product": self.state["products"][one["product"]]["name"], "status": one["status"]}
            for key, one in self.state["orders"].items()
            if one["customer"] == customer_id
        ]

    @tool
    def get_order(self, order_id: str) -> dict[str, Any]:
        """All data of an order: product, quantity, status, dates, address, discount in percent, tracking code."""
        return self.record("orders", order_id)

    @tool
    def find_products(self, name: str) -> list[dict[str, Any]]:
        """Search products by name; gives ids and names."""
        return [{"id": one["id"], "name": one["name"]} for one in self.matching("products", "name", name)]

    @tool
    def get_product(self, product_id: str) -> dict[str, Any]:
        """All data of a product: name, price and stock."""
        return self.record("products", product_id)

    @tool
    def cancel_order(self, order_id: str) -> str:
        """Cancel a pending order."""
        self._pending(order_id)["status"] = "cancelled"
        return f"order {order_id} is cancelled"

    @tool
    def refund_order(self, order_id: str) -> str:
        """Refund a delivered order."""
        order = self.record("orders", order_id)
        if order["status"] != "delivered":
            raise ToolError(f"order {order_id} is {order['status']}; only delivered orders can be refunded")
        order["status"] = "refunded"
        return f"order {order_id} is refunded"

    @tool
    def change_address(self, order_id: str, address: str) -> str:
        """Send a pending order to another address, given as street and number, comma, city.

        Args:
            order_id: such as O1234.
            address: the new one.
        """
        self._pending(order_id)["address"] = " ".join(address.split())[:200]
        return f"order {order_id} has a new address"

    @tool
    def set_quantity(self, order_id: str, quantity: Amount) -> str:
        """Change how many pieces a pending order is for.

        Args:
            order_id: such as O1234.
            quantity: pieces.
        """
        self._pending(order_id)["quantity"] = quantity
        return f"order {order_id} is for {quantity}"

    @tool
    def set_discount(self, order_id: str, percent: Annotated[int, Field(ge=0, le=100)]) -> str:
        """Set the discount of a pending order, in percent.

        Args:
            order_id: such as O1234.
            percent: 0 for none.
        """
        self._pending(order_id)["discount"] = percent
        return f"order {order_id} has a discount of {percent} %"

    @tool
    def set_price(self, product_id: str, price: Annotated[float, Field(gt=0, le=100_000)]) -> str:
        """Set the price of a product.

        Args:
            product_id: such as P1234.
            price: for one piece.
        """
        self.record("products", product_id)["price"] = round(price, 2)
        return f"product {product_id} costs {price:.2f}"

    @tool
    def add_stock(self, product_id: str, pieces: Amount) -> str:
        """Add pieces of a product that have arrived to the stock.

        Args:
            product_id: such as P1234.
            pieces: how many have arrived.
        """
        product = self.record("products", product_id)
        product["stock"] += pieces
        return f"product {product_id} has a stock of {product['stock']}"

    @tool
    def set_email(self, customer_id: str, email: str) -> str:
        """Change the email address of a customer.

        Args:
            customer_id: such as C1234.
            email: the new address.
        """
        self.record("customers", customer_id)["email"] = email.strip()[:100]
        return f"customer {customer_id} has a new email address"

    @tool
    def place_order(self, customer_id: str, product_id: str, quantity: Amount, address: str) -> str:
        """Place an order for a customer, to an address given as street and number, comma, city.

        Args:
            customer_id: such as C1234.
            product_id: such as P1234.
            quantity: pieces.
            address: where it is sent.
        """
        self.record("customers", customer_id)
        self.record("products", product_id)
        key = self.next_id("orders")
        self.state["orders"][key] = _order(customer_id, product_id, quantity, self.state["today"]) | {
            "address": " ".join(address.split())[:200]
        }
        return f"order {key} is placed"


def _order(customer: str, product: str, quantity: int, ordered: str) -> dict[str, Any]:
    return {
        "customer": customer,
        "product": product,
        "quantity": quantity,
        "status": "pending",
        "ordered": ordered,
        "delivered": None,
        "address": "",
        "discount": 0,
        "tracking": None,
    }


def make_shop(rng: random.Random, size: int) -> ShopWorld:
    """Generate a shop with ``size`` customers and products in total, and as many orders, at least six."""
    today = words.day("2031-01-01", rng.randint(0, 1000))
    customers = {
        key: {
            "name": name,
            "email": words.email(name),
            "tier": rng.choice(("standard", "gold")),
            "number": words.code(rng),
        }
        for key, name in zip(words.ids(rng, "C", size // 2), words.people(rng, size // 2), strict=True)
    }
    products = {
        key: {"name": name, "price": rng.randint(500, 30_000) / 100, "stock": rng.randint(0, 40)}
        for key, name in zip(
            words.ids(rng, "P", size // 2), words.pairs(rng, words.COLOURS, words.THINGS, size // 2), strict=True
        )
    }
    each = [(customer, product) for customer in customers for product in products]
    chosen = rng.sample(each, min(len(each), max(size, 6)))
    orders = {
        key: _past_order(rng, today, *pair) for key, pair in zip(words.ids(rng, "O", len(chosen)), chosen, strict=True)
    }
    return ShopWorld({"today": today, "customers": customers, "products": products, "orders": orders})


def _past_order(rng: random.Random, today: str, customer: str, product: str) -> dict[str, Any]:
    order = _order(customer, product, rng.randint(1, 9), words.day(today, -rng.randint(90, 120)))
    order |= {"address": words.address(rng), "discount": rng.choice((0, 0, 5, 10))}
    order["status"] = rng.choice(("pending", "pending", "shipped", "delivered", "delivered", "cancelled"))
    if order["status"] == "pending":
        order["ordered"] = words.day(today, -rng.randint(0, 9))
    if order["status"] in ("shipped", "delivered"):
        order["tracking"] = words.code(rng, 8)
    if order["status"] == "delivered":
        order["delivered"] = words.day(today, -rng.randint(1, 80))
    return order


_REFUND_DAYS, _MOST_DISCOUNT = 30, {"standard": 10, "gold": 25}


class _Order:
    """An order with its description and lookup; a customer has at most one order per product."""

    def __init__(self, draw: GoalDraw, key: str):
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


def _an_order(draw: GoalDraw, status: str, fits: Callable[[_Order], bool] = lambda order: True) -> _Order:
    orders = (_Order(draw, key) for key, one in draw.state["orders"].items() if one["status"] == status)
    return draw.one([order for order in orders if fits(order)])


def _cancel(draw: GoalDraw, breaks: bool) -> Goal | None:
    order = _an_order(draw, "pending")
    ask = draw.say(
        f"Cancel the order of {order.who} for the {order.what}.",
        f"{order.who} does not want the {order.what} any more; please cancel that order.",
        f"Please call off {order.who}'s order of the {order.what}.",
    )
    return Goal(
        ask, order.look, [("cancel_order", {"order_id": order.key})], blocks=["cancel_order"], reads=[order.path]
    )


def _refund(draw: GoalDraw, breaks: bool) -> Goal | None:
    limit = words.day(draw.state["today"], -_REFUND_DAYS)
    order = _an_order(draw, "delivered", lambda one: (one.data["delivered"] < limit) == breaks)
    ask = draw.say(
        f"{order.who} wants the money back for the {order.what}; refund the order.",
        f"Please refund {order.who}'s order of the {order.what}.",
        f"Give {order.who} a refund for the {order.what}.",
    )
    act = [("refund_order", {"order_id": order.key})]
    return Goal(ask, [*order.look, order.see], act, blocks=["refund_order"], reads=[order.path])


def _address(draw: GoalDraw, breaks: bool) -> Goal | None:
    order = _an_order(draw, "pending")
    address = words.address(draw.rng)
    ask = draw.say(
        f"Send the {order.what} that {order.who} ordered to another address",
        f"Change where {order.who}'s {order.what} goes",
    )
    fact = Fact(("address", "where"), f"The new address is {address}.", f"{ask}.", "What is the new address?")
    act = [("change_address", {"order_id": order.key, "address": address})]
    return Goal(f"{ask}: {address}.", order.look, act, blocks=["change_address"], fact=fact, reads=[order.path])


def _quantity(draw: GoalDraw, breaks: bool) -> Goal | None:
    number = draw.rng.randint(5, 35)  # drawn first, so that it does not reveal whether it is allowed
    order = _an_order(draw, "pending", lambda one: (one.product["stock"] < number) == breaks)
    ask = draw.say(
        f"{order.who} wants another number of the {order.what}",
        f"Change how many pieces of the {order.what} {order.who} gets",
    )
    fact = Fact(("how many", "number", "quantity", "pieces"), f"Make it {number}.", f"{ask}.", "How many pieces?")
    act = [("set_quantity", {"order_id": order.key, "quantity": number})]
    look = [*order.look, order.see, [("get_product", {"product_id": order.data["product"]})]]
    reads = [order.path, ("products", order.data["product"])]
    return Goal(f"{ask}: make it {number}.", look, act, blocks=["set_quantity"], fact=fact, reads=reads)


def _discount(draw: GoalDraw, breaks: bool) -> Goal | None:
    percent = draw.rng.randint(_MOST_DISCOUNT["standard"] + 1, _MOST_DISCOUNT["gold"])  # allowed for some tiers
    order = _an_order(draw, "pending", lambda one: (_MOST_DISCOUNT[one.customer["tier"]] < percent) == breaks)
    ask = draw.say(
        f"Give {order.who} a discount on the pending order of the {order.what}",
        f"{order.who} gets a discount on the {order.what}",
    )
    fact = Fact(
        ("discount", "percent", "much", "%"), f"{percent} percent.", f"{ask}.", "How much discount, in percent?"
    )
    look = [*order.look, [("get_customer", {"customer_id": order.data["customer"]})]]
    act = [("set_discount", {"order_id": order.key, "percent": percent})]
    reads = [order.path, ("customers", order.data["customer"])]
    return Goal(f"{ask}: {percent} percent.", look, act, blocks=["set_discount"], fact=fact, reads=reads)


def _tracking(draw: GoalDraw, breaks: bool) -> Goal | None:
    order = _an_order(draw, "shipped")
    ask = draw.say(
        f"What is the tracking code of {order.who}'s {order.what}?",
        f"{order.who} asks for the tracking code of the {order.what}.",
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


def _total(draw: GoalDraw, breaks: bool) -> Goal | None:
    order = _an_order(draw, "pending")
    ask = draw.say(
        f"How much does {order.who} pay for the order of the {order.what}, after the discount?",
        f"What does {order.who}'s order of the {order.what} come to, with the discount taken off?",
    )
    look = [*order.look, order.see, [("get_product", {"product_id": order.data["product"]})]]
    amount = _to_pay(draw.state, order.key)
    reads = [order.path, ("products", order.data["product"])]
    return Goal(
        ask,
        look,
        done=f"It comes to {amount}.",
        answers=[amount],
        reads=reads,
        rivals=lambda state: [_to_pay(state, key) for key in state["orders"]],
    )


def _to_pay(state: Mapping[str, Any], key: str) -> str:
    order = state["orders"][key]
    price = state["products"][order["product"]]["price"]
    return f"{price * order['quantity'] * (100 - order['discount']) / 100:.2f}"


def _find(product: dict[str, Any]) -> list[Call]:
    return [("find_products", {"name": product["name"]})]


def _price(draw: GoalDraw, breaks: bool) -> Goal | None:
    price = draw.rng.randint(2000, 13_000)  # drawn first, so that it does not reveal whether it is allowed
    least = 2 * price / 100  # current prices above this, by 1.00 or more, make it forbidden
    key, product = draw.record(
        "products", lambda one: abs(one["price"] - least) >= 1 and (one["price"] > least) == breaks
    )
    ask = draw.say(f"Change the price of the {product['name']}", f"The {product['name']} gets a new price")
    fact = Fact(
        ("price", "much", "cost"), f"It costs {price / 100:.2f} from now on.", f"{ask}.", "What is the new price?"
    )
    act = [("set_price", {"product_id": key, "price": price / 100})]
    look = [_find(product), [("get_product", {"product_id": key})]]
    reads = [("products", key)]
    return Goal(f"{ask}: {price / 100:.2f}.", look, act, blocks=["set_price"], fact=fact, reads=reads)


def _restock(draw: GoalDraw, breaks: bool) -> Goal | None:
    key, product = draw.any("products")
    pieces = draw.rng.randint(2, 90)
    ask = draw.say(
        f"A delivery of the {product['name']} has arrived; add it to the stock",
        f"Book in new pieces of the {product['name']}",
    )
    fact = Fact(("how many", "number", "quantity", "pieces"), f"There are {pieces}.", f"{ask}.", "How many pieces?")
    act = [("add_stock", {"product_id": key, "pieces": pieces})]
    return Goal(
        f"{ask}: {pieces} pieces.", [_find(product)], act, blocks=["add_stock"], fact=fact, reads=[("products", key)]
    )


def _email(draw: GoalDraw, breaks: bool) -> Goal | None:
    key = draw.rng.choice(list(draw.state["customers"]))
    who = draw.state["customers"][key]["name"]
    email = f"{words.name(draw.rng).lower()}{draw.rng.randint(10, 99)}@example.org"
    ask = draw.say(f"{who} has a new email address", f"Update the email address of {who}")
    fact = Fact(("email", "address"), f"It is {email}", f"{ask}.", "What is the new email address?")
    act = [("set_email", {"customer_id": key, "email": email})]
    look = [[("find_customers", {"name": who})]]
    return Goal(f"{ask}: {email}", look, act, blocks=["set_email"], fact=fact, reads=[("customers", key)])


def _place(draw: GoalDraw, breaks: bool) -> Goal | None:
    number, (customer, about) = draw.rng.randint(5, 35), draw.any("customers")
    known = {one["product"] for one in draw.state["orders"].values() if one["customer"] == customer}
    fits = {key: one for key, one in draw.state["products"].items() if (one["stock"] < number) == breaks}
    key = draw.one([key for key in fits if key not in known])  # a second order of one product would be ambiguous
    product, who, address = fits[key], about["name"], words.address(draw.rng)
    ask = draw.say(
        f"Order the {product['name']} for {who}: {number} of them, to {address}.",
        f"{who} wants {number} of the {product['name']}, sent to {address}; please place a new order.",
    )
    order = {"customer_id": customer, "product_id": key, "quantity": number, "address": address}
    look = [[("find_customers", {"name": who}), *_find(product)], [("get_product", {"product_id": key})]]
    return Goal(
        ask, look, [("place_order", order)], blocks=["place_order"], reads=[("products", key), ("customers", customer)]
    )


def _number(draw: GoalDraw, breaks: bool) -> Goal | None:
    key = draw.rng.choice(list(draw.state["customers"]))
    customer = draw.state["customers"][key]
    ask = draw.say(
        f"What is {customer['name']}'s customer number?", f"Tell me the customer number of {customer['name']}."
    )
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
        GoalKind(_cancel),
        GoalKind(_refund, f"Refund an order only within {_REFUND_DAYS} days of its delivery."),
        GoalKind(_address),
        GoalKind(_quantity, "An order is never changed to more pieces than there are in stock."),
        GoalKind(_discount, "Customers of the tier standard get at most 10 percent discount, those of gold 25."),
        GoalKind(_tracking),
        GoalKind(_total),
        GoalKind(_price, "A price is never lowered to less than half of what it is."),
        GoalKind(_restock),
        GoalKind(_email),
        GoalKind(_place, "A new order is never for more pieces than there are in stock."),
        GoalKind(_number),
    )

    def world(self, rng: random.Random) -> ShopWorld:
        return make_shop(rng, self.size)
