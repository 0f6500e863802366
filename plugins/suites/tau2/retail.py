"""The functions of tau2-bench's retail shop."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rollenv.core.tools.backend import Backend, ToolError, tool
from rollenv.envs.calculator import evaluate

Record = dict[str, Any]
#: Tables of records by key.
Tables = Mapping[str, Mapping[str, Record]]


_REASONS = ("no longer needed", "ordered by mistake")


class RetailBackend(Backend):
    """A shop's products, users and orders, copied on write.

    The state has ``changed`` (the changed records of each table), ``found`` (the users looked up) and ``transferred``.

    Args:
        tables: read-only data, shared by all backends.
    """

    def __init__(self, tables: Tables):
        super().__init__({"changed": {name: {} for name in tables}, "found": [], "transferred": False})
        self.tables = tables

    def record(self, table: str, key: str) -> Record:
        """Return a record, for reading."""
        changed = self.state["changed"][table]
        if key not in changed and key not in self.tables[table]:
            raise ToolError(f"{table.removesuffix('s').capitalize()} not found")
        found: Record = changed[key] if key in changed else self.tables[table][key]
        return found

    def own(self, table: str, key: str) -> Record:
        """Return the episode's own copy of a record, for changes."""
        changed = self.state["changed"][table]
        if key not in changed:
            changed[key] = copy.deepcopy(self.record(table, key))
        return changed[key]  # type: ignore[no-any-return]

    def records(self, table: str) -> Iterator[tuple[str, Record]]:
        """Yield all records of a table, for reading."""
        changed = self.state["changed"][table]
        for key, record in self.tables[table].items():
            yield key, changed.get(key, record)

    def data(self) -> dict[str, Any]:
        """Return the state, without records that are unchanged."""
        changed = {
            name: {key: record for key, record in records.items() if record != self.tables[name].get(key)}
            for name, records in self.state["changed"].items()
        }
        return {**self.state, "changed": changed}

    # -- looking up ----------------------------------------------------------------------------------------------------

    @tool
    def find_user_id_by_email(self, email: str) -> str:
        """Find the id of a user by email.

        Args:
            email: such as 'something@example.com'.
        """
        wanted = email.casefold()
        return self._find(lambda user: user["email"].casefold() == wanted)

    @tool
    def find_user_id_by_name_zip(self, first_name: str, last_name: str, zip: str) -> str:
        """Find the id of a user by name and zip code, where the email is not known or not found.

        Args:
            first_name: such as 'John'.
            last_name: such as 'Doe'.
            zip: such as '12345'.
        """
        wanted = (first_name.casefold(), last_name.casefold(), zip)
        return self._find(lambda user: _identity(user) == wanted)

    def _find(self, fits: Any) -> str:
        for key, user in self.records("users"):
            if fits(user):
                if key not in self.state["found"]:
                    self.state["found"].append(key)
                return key
        raise ToolError("User not found")

    @tool
    def get_user_details(self, user_id: str) -> Record:
        """Get the details of a user, with their orders.

        Args:
            user_id: such as 'sara_doe_496'.
        """
        return self.record("users", user_id)

    @tool
    def get_order_details(self, order_id: str) -> Record:
        """Get the status and the details of an order.

        Args:
            order_id: such as '#W0000000', with the '#'.
        """
        return self.record("orders", order_id)

    @tool
    def get_product_details(self, product_id: str) -> Record:
        """Get the variants of a product and whether they are available.

        Args:
            product_id: such as '6086499569'; it is not an item id.
        """
        return self.record("products", product_id)

    @tool
    def get_item_details(self, item_id: str) -> Record:
        """Get the details of one variant of a product.

        Args:
            item_id: such as '6086499569'; it is not a product id.
        """
        for _, product in self.records("products"):
            if item_id in product["variants"]:
                return product["variants"][item_id]  # type: ignore[no-any-return]
        raise ToolError("Item not found")

    @tool
    def list_all_product_types(self) -> str:
        """List the names of all products with their product ids."""
        return json.dumps({product["name"]: key for key, product in self.records("products")}, sort_keys=True)

    # -- the rest ------------------------------------------------------------------------------------------------------

    @tool
    def calculate(self, expression: str) -> str:
        """Calculate an expression of numbers, + - * / and parentheses.

        Args:
            expression: such as '2 + 2'.
        """
        if set(expression) - set("0123456789+-*/(). "):
            raise ToolError("Invalid characters in expression")
        try:
            return str(round(float(evaluate(expression)), 2))
        except ValueError as error:
            raise ToolError(str(error)) from error

    @tool
    def transfer_to_human_agents(self, summary: str) -> str:
        """Transfer the user to a human agent: only if they ask for it, or if what they want cannot be done.

        Args:
            summary: of what the user wants.
        """
        self.state["transferred"] = True
        return "Transfer successful"

    # -- orders --------------------------------------------------------------------------------------------------------

    @tool
    def cancel_pending_order(self, order_id: str, reason: str) -> Record:
        """Cancel a pending order and refund it. Explain it and get a yes from the user first.

        Args:
            order_id: such as '#W0000000', with the '#'.
            reason: 'no longer needed' or 'ordered by mistake'.
        """
        order = self._order(order_id, "pending", "Non-pending order cannot be cancelled")
        if reason not in _REASONS:
            raise ToolError("Invalid reason")
        refunds = []
        for payment in order["payment_history"]:
            refunds.append(_payment("refund", payment["amount"], payment["payment_method_id"]))
            self._pay(order["user_id"], payment["payment_method_id"], -payment["amount"])
        order["payment_history"].extend(refunds)
        order |= {"status": "cancelled", "cancel_reason": reason}
        return order

    @tool
    def modify_pending_order_address(
        self, order_id: str, address1: str, address2: str, city: str, state: str, country: str, zip: str
    ) -> Record:
        """Change the shipping address of a pending order. Explain it and get a yes from the user first.

        Args:
            order_id: such as '#W0000000', with the '#'.
            address1: the first line, such as '123 Main St'.
            address2: the second line, such as 'Apt 1', or ''.
            city: such as 'San Francisco'.
            state: such as 'CA'.
            country: such as 'USA'.
            zip: such as '12345'.
        """
        order = self._order(order_id, None, "Non-pending order cannot be modified")
        order["address"] = _address(address1, address2, city, state, country, zip)
        return order

    @tool
    def modify_pending_order_items(
        self, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
    ) -> Record:
        """Change items of a pending order to others of the same products; only once for an order. Explain it and get a
        yes from the user first.

        Args:
            order_id: such as '#W0000000', with the '#'.
            item_ids: the items to change; an item may be named as often as it was ordered.
            new_item_ids: for each of them the new item, in the same order.
            payment_method_id: pays or gets the difference, such as 'gift_card_0000000'.
        """
        order = self._order(order_id, "pending", "Non-pending order cannot be modified")
        variants = self._check_exchange(order, item_ids, new_item_ids)
        if any(old == new for old, new in zip(item_ids, new_item_ids, strict=True)):
            raise ToolError("The new item id should be different from the old item id")
        difference = _difference(order, item_ids, variants)
        self._covers(order["user_id"], payment_method_id, difference)
        kind = "payment" if difference > 0 else "refund"
        order["payment_history"].append(_payment(kind, abs(difference), payment_method_id))
        self._pay(order["user_id"], payment_method_id, difference)
        for old, new in zip(item_ids, new_item_ids, strict=True):
            # As upstream, for comparable results: all items get the price and options of the last one.
            changes = {"item_id": new, "price": variants[-1]["price"], "options": dict(variants[-1]["options"])}
            _item(order, old).update(changes)
        order["status"] = "pending (item modified)"
        return order

    @tool
    def modify_pending_order_payment(self, order_id: str, payment_method_id: str) -> Record:
        """Change the payment method of a pending order. Explain it and get a yes from the user first.

        Args:
            order_id: such as '#W0000000', with the '#'.
            payment_method_id: the new one, such as 'gift_card_0000000'.
        """
        order = self._order(order_id, None, "Non-pending order cannot be modified")
        self._method(order["user_id"], payment_method_id)
        history = order["payment_history"]
        if len(history) != 1 or history[0]["transaction_type"] != "payment":
            raise ToolError("There should be exactly one payment for a pending order")
        amount, old = history[0]["amount"], history[0]["payment_method_id"]
        if old == payment_method_id:
            raise ToolError("The new payment method should be different from the current one")
        self._covers(order["user_id"], payment_method_id, amount)
        history += [_payment("payment", amount, payment_method_id), _payment("refund", amount, old)]
        self._pay(order["user_id"], payment_method_id, amount)
        self._pay(order["user_id"], old, -amount)
        return order

    @tool
    def exchange_delivered_order_items(
        self, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
    ) -> Record:
        """Exchange items of a delivered order for others of the same products; only once for an order. Explain it and
        get a yes from the user first.

        Args:
            order_id: such as '#W0000000', with the '#'.
            item_ids: the items to exchange; an item may be named as often as it was ordered.
            new_item_ids: for each of them the new item, in the same order.
            payment_method_id: pays or gets the difference, such as 'gift_card_0000000'.
        """
        order = self._order(order_id, "delivered", "Non-delivered order cannot be exchanged")
        difference = round(_difference(order, item_ids, self._check_exchange(order, item_ids, new_item_ids)), 2)
        self._covers(order["user_id"], payment_method_id, difference)
        order |= {
            "status": "exchange requested",
            "exchange_items": sorted(item_ids),
            "exchange_new_items": sorted(new_item_ids),
            "exchange_payment_method_id": payment_method_id,
            "exchange_price_difference": difference,
        }
        return order

    @tool
    def return_delivered_order_items(self, order_id: str, item_ids: list[str], payment_method_id: str) -> Record:
        """Return items of a delivered order. Explain it and get a yes from the user first.

        Args:
            order_id: such as '#W0000000', with the '#'.
            item_ids: the items to return; an item may be named as often as it was ordered.
            payment_method_id: gets the refund: the one that paid, or a gift card.
        """
        order = self._order(order_id, "delivered", "Non-delivered order cannot be returned")
        method = self._method(order["user_id"], payment_method_id)
        if method["source"] != "gift_card" and payment_method_id != order["payment_history"][0]["payment_method_id"]:
            raise ToolError("Payment method should be the original payment method")
        _check_ordered(order, item_ids)
        if not item_ids:
            raise ToolError("There are no items to be returned")
        changes = {"return_items": sorted(item_ids), "return_payment_method_id": payment_method_id}
        order |= {"status": "return requested", **changes}
        return order

    # -- the rest ------------------------------------------------------------------------------------------------------

    @tool
    def modify_user_address(
        self, user_id: str, address1: str, address2: str, city: str, state: str, country: str, zip: str
    ) -> Record:
        """Change the default address of a user. Explain it and get a yes from the user first.

        Args:
            user_id: such as 'sara_doe_496'.
            address1: the first line, such as '123 Main St'.
            address2: the second line, such as 'Apt 1', or ''.
            city: such as 'San Francisco'.
            state: such as 'CA'.
            country: such as 'USA'.
            zip: such as '12345'.
        """
        user = self.own("users", user_id)
        user["address"] = _address(address1, address2, city, state, country, zip)
        return user

    # -- shared by the above -------------------------------------------------------------------------------------------

    def _order(self, order_id: str, status: str | None, problem: str) -> Record:
        """Return an order for changes, with exactly this status, or, for None, any pending one."""
        found = self.record("orders", order_id)["status"]
        if found != status if status else "pending" not in found:
            raise ToolError(problem)
        return self.own("orders", order_id)

    def _method(self, user_id: str, method_id: str) -> Record:
        methods = self.record("users", user_id)["payment_methods"]
        if method_id not in methods:
            raise ToolError("Payment method not found")
        return methods[method_id]  # type: ignore[no-any-return]

    def _covers(self, user_id: str, method_id: str, amount: float) -> None:
        method = self._method(user_id, method_id)
        if method["source"] == "gift_card" and method["balance"] < amount:
            raise ToolError("Insufficient gift card balance")

    def _pay(self, user_id: str, method_id: str, amount: float) -> None:
        """Take an amount from a gift card; other payment methods have no balance."""
        if self._method(user_id, method_id)["source"] == "gift_card":
            method = self.own("users", user_id)["payment_methods"][method_id]
            method["balance"] = round(method["balance"] - amount, 2)

    def _check_exchange(self, order: Record, item_ids: Sequence[str], new_item_ids: Sequence[str]) -> list[Record]:
        """Check an exchange, and return the new variants."""
        _check_ordered(order, item_ids)
        if len(item_ids) != len(new_item_ids):
            raise ToolError("The number of items to be exchanged should match")
        if not item_ids:
            raise ToolError("There are no items to be exchanged")
        variants = []
        for old, new in zip(item_ids, new_item_ids, strict=True):
            known = self.record("products", _item(order, old)["product_id"])["variants"]
            if new not in known:
                raise ToolError("Variant not found")
            if not known[new]["available"]:
                raise ToolError(f"New item {new} not found or available")
            variants.append(known[new])
        return variants


def _check_ordered(order: Record, item_ids: Sequence[str]) -> None:
    ordered = [item["item_id"] for item in order["items"]]
    for item_id in item_ids:
        if item_ids.count(item_id) > ordered.count(item_id):
            raise ToolError(f"Number of {item_id} not found")


def _item(order: Record, item_id: str) -> Record:
    return next(item for item in order["items"] if item["item_id"] == item_id)


def _difference(order: Record, item_ids: Sequence[str], variants: Sequence[Record]) -> float:
    total = 0.0
    for old, variant in zip(item_ids, variants, strict=True):
        total += variant["price"] - _item(order, old)["price"]
    return total


def _payment(kind: str, amount: float, method_id: str) -> Record:
    return {"transaction_type": kind, "amount": amount, "payment_method_id": method_id}


def _address(*lines: str) -> Record:
    return dict(zip(("address1", "address2", "city", "state", "country", "zip"), lines, strict=True))


def _identity(user: Record) -> tuple[str, str, str]:
    name = user["name"]
    return name["first_name"].casefold(), name["last_name"].casefold(), user["address"]["zip"]
