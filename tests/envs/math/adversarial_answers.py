"""Mathematical answers that are easily graded wrong, by class: what is gold, what is right, what is wrong.

The class ``mixed`` was written after the grader, to see whether it had only learnt the others.
"""

import json
from pathlib import Path

_ROWS = Path(__file__).with_suffix(".jsonl").read_text(encoding="utf-8").splitlines()


def answers(right):
    """(class, gold, answer) for all right or all wrong ones."""
    rows = map(json.loads, _ROWS)
    return [(row["kind"], row["gold"], one) for row in rows for one in row["right" if right else "wrong"]]
