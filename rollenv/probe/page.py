"""The part of a probe's page above its episodes: the verdict, and tables of text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rollenv.probe.run import ProbeResult
from rollenv.probe.teach import SIZES
from rollenv.probe.verdict import interval, percent_of
from rollenv.report.summary import duration


def page_result(found: ProbeResult) -> dict[str, Any]:
    """Return a probe's numbers as those of an evaluation, with remarks and tables for its page."""
    told = found.told
    numbers = dict(zip(("success", "low", "high"), told.success, strict=True))
    numbers |= {"n": len(told.tasks), "k": found.k, "reward": told.reward[0], "seconds": found.seconds}
    tables = [{"title": title, "rows": rows} for title, rows in _tables(found)]
    return numbers | {"remarks": [[remark.level, remark.text] for remark in found.remarks], "tables": tables}


def _tables(found: ProbeResult) -> Iterator[tuple[str, list[list[str]]]]:
    """Yield titles and rows, the first of which is the head."""
    told, steps, seen, again = found.told, found.iteration, found.lengths, found.again
    advice = [[" ".join(each.settings), each.text] for each in found.advice]
    imitation = [["rollenv sft", found.imitation]] if found.imitation else []
    yield (
        "What to do",
        [
            ["setting", "why"],
            *imitation,
            *advice,
            [found.command, "a training" + " with the first setting" * bool(advice and advice[0][0])],
        ],
    )

    numbers = [["tasks × episodes", f"{len(told.tasks)} × {found.k}"], ["success (95 %)", interval(told.success)]]
    numbers += [
        [f"groups of {size} that teach (95 %)", "at least " * (size > found.k) + interval(told.informative(size))]
        for size in SIZES
    ]
    numbers.append(["distinct tasks", f"{told.distinct} of {len(told.tasks)}"])
    numbers.append(["failed episodes, in no rate", str(sum(told.failures.values()))])
    numbers.append(["episodes left out for lack of time", str(told.cut)])
    same = f"{again.episodes - len(again.differences)} of {again.episodes}"
    numbers.append(["equal when played again in a second process", again.unchecked or same])
    numbers.append([f"playing an iteration of {steps['episodes']} episodes, here", duration(steps["play"] or 0.0)])
    if steps["update"]:
        numbers.append(["updating, at most, without the optimizer's step", duration(steps["update"])])
    if steps["cost"] is not None:
        numbers.append(["cost of an iteration, by --prices", f"{steps['cost']:.4g}"])
    yield "In numbers", [["", ""], *numbers]

    model = [f"the model, {found.agent}", interval(told.success), f"{told.reward[0]:.3g}"]
    rows = [
        [f.name, interval(f.success), f"{f.reward:.3g}", str(f.episodes), f.above]
        for f in sorted(found.floors, key=lambda f: (not f.above, -f.success[0], -f.reward))
    ]
    rows.insert(sum(bool(f.above) for f in found.floors), [*model, str(sum(len(t.rewards) for t in told.tasks)), ""])
    yield "Floors: what is earned without skill", [["who", "success (95 %)", "reward", "episodes", ""], *rows]

    rows = [
        [t.task, f"{t.solved} of {len(t.rewards)}", f"{t.reward:.3g}", str(t.failed), t.verdict]
        for t in sorted(told.tasks, key=lambda t: (t.verdict == "failed", -t.solved, -t.reward))
    ]
    yield "Tasks; one teaches if its rewards differ", [["task", "solved", "reward", "failed", ""], *rows]

    rows = [
        [name, *(f"{value:,.0f}" for value in values), str(found.limits.get(name, ""))]
        for name, values in seen.items()
        if isinstance(values, list)
    ]
    text = f"Lengths; {percent_of(seen['answers_cut'])} of the answers end at the limit of tokens, "
    text += f"{percent_of(seen['truncated'])} of the episodes at a limit, {percent_of(seen['full'])} at that of prompts"
    yield text, [["", "median", "95 %", "largest", "limit"], *rows]

    yield "Played again", [["what differs first"], *([each] for each in again.differences)]
