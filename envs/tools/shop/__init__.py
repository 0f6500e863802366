"""The back office of a shop: orders, products and customers, generated."""

from __future__ import annotations

from rollenv.envs.tools.generated.variants import HARDSHIPS, SIZES, register_suite


def register_tools() -> None:
    """Register ``tools:Shop-v0`` and its variants."""
    register_suite("Shop", "rollenv.envs.tools.shop.env:ShopEnv", {**SIZES, **HARDSHIPS})
