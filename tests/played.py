"""Episodes that the oracle plays."""

from __future__ import annotations

from typing import Any


def to_the_end(env: Any) -> list[Any]:
    """The results of the oracle's steps from where an episode stands to its end."""
    results: list[Any] = []
    while not results or not (results[-1][2] or results[-1][3]):
        results.append(env.step(env.oracle_action()))
    return results
