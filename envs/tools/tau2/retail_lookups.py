"""The functions of tau2-bench's retail shop that change nothing."""

from __future__ import annotations

import json
from typing import Any

from rollenv.envs.tools.tau2.store import Record, StoreBackend, Tables
from rollenv.tools.backend import ToolError, tool
from rollenv.tools.calculator import evaluate


class RetailLookups(StoreBackend):
    """A shop's products, users and orders, to look at."""

    def __init__(self, tables: Tables):
        super().__init__(tables)
        self.state |= {"found": [], "transferred": False}

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


def _identity(user: Record) -> tuple[str, str, str]:
    name = user["name"]
    return name["first_name"].casefold(), name["last_name"].casefold(), user["address"]["zip"]
