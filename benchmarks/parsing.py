"""Parsing hostile text of 1 and 10 MB: the ratio of times is about 10 where time is linear, and 100 where it is square.

python benchmarks/parsing.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

from common import header, save, table

from rollenv.core.parsing import code_blocks, first_tagged, last_boxed, last_tagged
from rollenv.core.tools.calls import CALL_FORMS, find_calls, first_call

PIECES = ("\\boxed{", "\\boxed ", "{", "```", "```\n", "```py\n", "``` x ")
PIECES += ("<answer>", "</answer>", "<python>", "<tool_call>")
READERS: dict[str, Callable[[str], object]] = {
    "boxes": last_boxed,
    "fences": lambda text: list(code_blocks(text)),
    "last tag": last_tagged,
    "first tag": lambda text: first_tagged(text, "python"),
    "tool call": first_call,
    "tool calls": lambda text: [find_calls(text, form) for form in CALL_FORMS],
}


def seconds(read: Callable[[str], object], text: str) -> float:
    """The best of three."""
    times = []
    for _ in range(3):
        started = time.perf_counter()
        read(text)
        times.append(time.perf_counter() - started)
    return min(times)


def main() -> None:
    found = []
    for name, read in READERS.items():
        rows = []
        for piece in PIECES:
            one, ten = (seconds(read, piece * (size // len(piece))) for size in (10**6, 10**7))
            rows.append((ten, one, piece))
        ten, one, piece = max(rows)
        found.append([name, repr(piece), f"{one:.4f}", f"{ten:.4f}", f"{ten / one:.1f}"])
    head = ["reader", "what repeats, where 10 MB take longest", "seconds at 1 MB", "seconds at 10 MB", "ratio"]
    save("parsing", f"{header()}\n{table(head, found)}")


if __name__ == "__main__":
    main()
