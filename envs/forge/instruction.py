"""The instruction of a forged task: a bug report made of the failing tests."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from rollenv.envs.forge.sources import Package

#: Messages that are shown, tests that are named with each, lines of a message, and characters of a line.
_SHOWN, _NAMED, _LINES, _WIDTH = 6, 6, 6, 200


def instruction(package: Package, failing: Sequence[str], messages: Mapping[str, str]) -> str:
    """The instruction of a task: failures of a library, as its tests report them.

    Args:
        messages: node id to the failure's message.
    """
    many = f"{len(failing)} of its tests fail" if len(failing) > 1 else "one of its tests fails"
    where = " and ".join(f"`{one}`" for one in package.libraries)
    files = sorted({test.partition("::")[0] for test in failing})
    parts = [
        f"# {package.title}: wrong behaviour, {many}",
        f"The source of the Python library {package.title} is in `/app` ({where}). It has a bug: {many}. "
        "The tests are right. Find the cause in the library and repair it.",
        "## What fails",
        *_failures(failing, messages),
    ]
    parts.append(
        "## What counts\n\n"
        "Every failing test must pass, and every test that passes now must still pass. To run the tests: "
        f"`cd /app && python3 -m pytest {' '.join(files[:3])}`. Your work is graded with unchanged copies of the "
        f"tests, so changes of tests and of their configuration do not count; only what is in {where} does."
    )
    return "\n\n".join(parts) + "\n"


def _failures(failing: Sequence[str], messages: Mapping[str, str]) -> list[str]:
    """A paragraph for each message, with the tests that end with it."""
    groups: dict[str, list[str]] = {}
    for test in failing:
        lines = [line[:_WIDTH].rstrip() for line in tidy(messages.get(test, "")).splitlines() if line.strip()]
        groups.setdefault("\n".join(lines[:_LINES]), []).append(test)
    shown = [_failure(tests, message) for message, tests in list(groups.items())[:_SHOWN]]
    if more := sum(len(tests) for tests in list(groups.values())[_SHOWN:]):
        shown.append(f"{more} more {'tests fail' if more > 1 else 'test fails'} in other ways.")
    return shown


def _failure(tests: Sequence[str], message: str) -> str:
    names = [f"- {_code(test)}" for test in tests[:_NAMED]]
    if len(tests) > _NAMED:
        names.append(f"- and {len(tests) - _NAMED} more with the same message")
    block = "\n".join(f"    {line}" for line in message.splitlines())
    return "\n".join(names) + (f"\n\n{block}" if block else "")


def _code(test: str) -> str:
    fence = "``" if "`" in test else "`"
    return f"{fence}{' '.join(test.split())[:_WIDTH]}{fence}"


def tidy(message: str) -> str:
    """A message without what is different in every run or on every machine."""
    message = re.sub(r"(/box/home|/home/user)/run\b", "/app", message)
    message = re.sub(r"(/box)?/tmp/pytest-of-\w+/pytest-\d+", "/tmp", message)
    message = re.sub(r"(/box)?/tmp/tmp\w{8}\b", "/tmp/tmp", message)
    message = re.sub(r"\n?\[(\+\d+ more lines?|truncated); full report in element text\]", "", message)
    message = re.sub(r"(\[\d+ chars\])[0-9a-f]+>", r"\1...>", message)  # an address that unittest has cut
    message = re.sub(r"\n *Use -v to get more diff", "", message)
    message = re.sub(r"/\S*/(site-packages|lib/python3\.\d+)/", "", message)
    return re.sub(r"\b0x[0-9a-f]{6,}", "0x...", message)
