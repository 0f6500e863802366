"""Counts of test tasks of published splits that are, or are alike, tasks for training.

Rows whose data is absent below $ROLLENV_DATA are left empty.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any

from common import header, save, table

from rollenv.core.errors import RollenvError
from rollenv.panels.check import training_tasks
from rollenv.panels.identity import identities
from rollenv.rollout.types import Task

#: Tasks that a run of 150 iterations with 16 groups asks for.
TRAINED = 2400

Rows = list[list[object]]


def look(name: str, tests: Iterable[Task], training: Iterable[Task]) -> list[object]:
    """Count the tests that are, or are alike, tasks for training."""
    tested, trained = list(identities(tests)), list(identities(training))
    same, alike = {each[:2] for each in trained}, {each.alike for each in trained}
    twice = len(tested) - len({each.alike for each in tested})
    equal, near = sum(each[:2] in same for each in tested), sum(each.alike in alike for each in tested)
    return [name, len(tested), len(trained), equal, near, twice]


def published(env_id: str, test: Mapping[str, Any], train: Mapping[str, Any]) -> list[object]:
    """Look at a data set's own split."""
    return look(env_id, training_tasks(env_id, test), training_tasks(env_id, train))


def seeded(env_id: str, kwargs: Mapping[str, Any], tests: int = 500) -> list[object]:
    """Look at tests that differ from training by their seeds alone, as most training codes draw them."""
    ours = [Task(env_id, 10**9 + number, dict(kwargs)) for number in range(tests)]
    return look(f"{env_id}, by seeds", ours, (Task(env_id, number, dict(kwargs)) for number in range(TRAINED)))


def shuffled(workers: int) -> list[object]:
    """Look at WebShop's goals as lists that each worker shuffles by its own seed, split by position."""
    goals = [task.options["index"] for task in training_tasks("webshop:test-text", {"split": "all"})]
    lists = [random.Random(233 + worker).sample(goals, len(goals)) for worker in range(workers)]
    tested, trained = set(lists[0][:500]), {goal for order in lists for goal in order[500:]}
    both = len(tested & trained)
    return [f"webshop, shuffled by each of {workers} workers", 500, len(trained), both, both, 0]


def main() -> None:
    """Look at every split whose data is here."""
    test, train = {"split": "test"}, {"split": "train"}
    looks = {
        "webshop:test-text": lambda: published("webshop:test-text", test, train),
        **{f"webshop, {n} workers": lambda n=n: shuffled(n) for n in (1, 8, 128)},
        "webshop:mini": lambda: published("webshop:mini", test, train),
        "math:GSM8K": lambda: published("math:GSM8K", test, train),
        "code:MBPP": lambda: published("code:MBPP", test, train),
        "code:HumanEval against MBPP": lambda: [
            "code:HumanEval against code:MBPP",
            *look("", training_tasks("code:HumanEval", {}), training_tasks("code:MBPP", train))[1:],
        ],
        "game:Sokoban-v0-tiny": lambda: seeded("game:Sokoban-v0-tiny", {}),
        "game:Sokoban-v0-tiny, our split": lambda: [
            "game:Sokoban-v0-tiny, our split",
            *look(
                "",
                (Task("game:Sokoban-v0-tiny", 10**9 + n, test) for n in range(500)),
                (Task("game:Sokoban-v0-tiny", n, train) for n in range(TRAINED)),
            )[1:],
        ],
        **{each: lambda each=each: seeded(each, {}) for each in ("ragen:Sokoban-v0", "ragen:FrozenLake-v0")},
        "tools:Tiny-v0": lambda: published("tools:Tiny-v0", test, train),
        "tools:BFCL simple against multiple": lambda: look(
            "tools:BFCL simple_python against multiple",
            training_tasks("tools:BFCL-v4-simple_python", {}),
            training_tasks("tools:BFCL-v4-multiple", {}),
        ),
        **{
            each: lambda each=each: published(each, test, train)
            for each in ("textcraft:TextCraft-v0", "textcraft:Synth-v0", "textcraft:Generated-v0", "alfworld:generated")
        },
        "alfworld:alfred-seen": lambda: published("alfworld:alfred-seen", {}, train),
        "alfworld:alfred-unseen": lambda: published("alfworld:alfred-unseen", {}, train),
    }
    rows: Rows = []
    for name, each in looks.items():
        try:
            rows.append(each())
        except RollenvError as error:
            print(f"{name}: {error}")
            rows.append([name, "", "", "", "", ""])
    head = ["test tasks", "number", "training tasks", "equal", "alike", "alike an earlier one"]
    about = (
        "How many test tasks are tasks for training, or alike by the environment's own rule: the same goal at another "
        "price, a board that is turned or mirrored, a question with other numbers, the same items from another "
        f"inventory. Where tasks have no end, the first {TRAINED} (150 iterations of 16 groups) or 2,000 are looked at."
    )
    save("leaks", f"{about}\n\n{header()}\n{table(head, rows)}")


if __name__ == "__main__":
    main()
