"""The functions of a shop's back office, and shops to call them on."""

from __future__ import annotations

import random
from typing import Annotated, Any, Literal

from pydantic import Field

from rollenv.envs.tools.generated import words
from rollenv.envs.tools.generated.goals import World
from rollenv.tools.backend import ToolError, tool

Amount = Annotated[int, Field(ge=1, le=1000)]
Status = Literal["pending", "shipped", "delivered", "cancelled", "refunded"]


class Shop(World):
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


def make_shop(rng: random.Random, size: int) -> Shop:
    """A shop with orders.

    Args:
        size: customers and products together; there are as many orders, at least six.
    """
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
    return Shop({"today": today, "customers": customers, "products": products, "orders": orders})


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
