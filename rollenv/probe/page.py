"""The page of a probe: self-contained HTML in the look of a run's report, without scripts."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Iterable, Sequence
from importlib import resources
from typing import Any

from rollenv.probe.run import ProbeResult
from rollenv.probe.teach import SIZES, Verdict, place
from rollenv.probe.verdict import interval, percent_of
from rollenv.report.plain import clip
from rollenv.report.summary import duration
from rollenv.rollout.types import Trajectory, Turn

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<title>{title}</title><style>
{style}</style></head>
<body><main>
{main}
</main></body></html>
"""

#: The classes of the verdicts on tasks.
_CLASSES: dict[Verdict, str] = {"teaches": "teaches", "too easy": "easy", "too hard": "hard", "failed": "failed"}

#: Episodes to look at, and turns of each.
_SHOWN, _TURNS = 5, 4

#: Decodes token ids, special tokens included.
Decode = Callable[[Sequence[int]], str]


def page(found: ProbeResult, decode: Decode | None = None) -> str:
    """Render the page.

    Args:
        decode: shows prompts as the model reads them; without it, they are what the environment said.
    """
    title = _text(f"Probe: {found.env_id} with {found.agent}")
    sections = (_tiles, _advice, _tasks, _floors, _lengths, _again)
    parts = [
        _tag("h1", title),
        *(_tag("div", _text(remark.text), f"remark {remark.level}") for remark in found.remarks),
        *(section(found) for section in sections),
        _episodes(found, decode),
    ]
    style = (resources.files("rollenv.report") / "page" / "style.css").read_text(encoding="utf-8")
    return _PAGE.format(title=title, style=style, main="\n".join(parts))


def _text(text: Any) -> str:
    """Escape a text; control characters and those that turn its direction are shown as their numbers."""
    return html.escape("".join(c if c.isprintable() or c in "\n\t" else f"⟨{ord(c):X}⟩" for c in str(text)))


def _tag(name: str, content: str, kind: str = "", **attributes: str) -> str:
    """Render an element; ``content`` is HTML."""
    given = {"class": kind, **attributes}
    written = "".join(f' {key}="{html.escape(value)}"' for key, value in given.items() if value)
    return f"<{name}{written}>{content}</{name}>"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], kinds: Sequence[str] = ()) -> str:
    """Render a table; cells are HTML, and ``kinds`` are the classes of the first rows."""
    written = [_tag("tr", "".join(_tag("th", each) for each in head))]
    for number, row in enumerate(rows):
        kind = kinds[number] if number < len(kinds) else ""
        cells = "".join(_tag("td", cell, "short" if len(cell) < 28 else "") for cell in row)
        written.append(_tag("tr", cells, kind))
    return _tag("div", _tag("table", "".join(written)), "card scroll")


def _tiles(found: ProbeResult) -> str:
    told, steps = found.told, found.iteration
    tiles = [
        ("Success", interval(told.success), f"{len(told.tasks)} tasks × {found.k}, 95 %"),
        ("Reward", f"{told.reward[0]:.3g}", f"{told.reward[1]:.3g} to {told.reward[2]:.3g}"),
        *(
            (f"Groups of {size} that teach", interval(told.informative(size)), "at least" * (size > found.k))
            for size in SIZES
        ),
        ("Distinct tasks", f"{told.distinct} of {len(told.tasks)}", ""),
        ("Failed episodes", str(sum(told.failures.values())), "in no rate"),
        ("Playing an iteration", duration(steps["play"] or 0.0) or "0 s", f"{steps['episodes']} episodes, here"),
    ]
    if steps["update"]:
        tiles.append(("Updating, at most", duration(steps["update"]), "without the optimizer's step"))
    if steps["cost"] is not None:
        tiles.append(("Cost of an iteration", f"{steps['cost']:.4g}", "by --prices"))
    cards = [
        _tag("div", _text(label), "label") + _tag("div", f"{_text(value)} {_tag('small', _text(more))}", "value")
        for label, value, more in tiles
    ]
    left = _tag("p", f"{told.cut} episodes are left out for lack of time.", "small dim") if told.cut else ""
    return _tag("div", "".join(_tag("div", card, "card tile") for card in cards), "tiles") + left


def _advice(found: ProbeResult) -> str:
    parts = [_tag("h2", "What to do")]
    if found.imitation:
        parts.append(_tag("p", _text(found.imitation)))
    if rows := [(_tag("code", _text(" ".join(each.settings))), _text(each.text)) for each in found.advice]:
        parts.append(_table(("setting", "why"), rows))
    parts.append(_tag("p", _tag("code", _text(found.command))))
    return "".join(parts)


def _tasks(found: ProbeResult) -> str:
    told = found.told
    counts = {verdict: told.count(verdict) for verdict in _CLASSES}
    bar = "".join(_tag("i", "", _CLASSES[verdict], style=f"flex: {n}") for verdict, n in counts.items() if n)
    legend = "".join(_tag("span", "", f"swatch {_CLASSES[v]}") + f"{v} {n}" for v, n in counts.items())
    columns = []
    for t in sorted(told.tasks, key=lambda t: (t.verdict == "failed", -t.solved, -t.reward)):
        about = (
            f"{t.task}: {t.solved} of {len(t.rewards)} solved, reward {t.reward:.3g}, {t.failed} failed: {t.verdict}"
        )
        height = 100 * t.solved / max(len(t.rewards), 1)
        columns.append(
            _tag("span", _tag("i", "", _CLASSES[t.verdict], style=f"height: {height:.0f}%"), "task", title=about)
        )
    how = (
        "Each column is a task, filled by its success; its numbers are under the pointer and in probe.json. A group "
        f"teaches if its rewards differ. For each task with k = {found.k} episodes, of which c had the same reward, a "
        "group of G teaches with 1 − Σ C(c, G) / C(k, G), which for two rewards estimates 1 − p^G − (1 − p)^G; for "
        "G > k the value of k is a lower bound. Shown are means over tasks."
    )
    head = _tag("div", f"{len(told.tasks)} tasks{legend}", "small") + _tag("div", bar, "bar")
    return _tag("h2", "Tasks") + _tag("div", head + "".join(columns) + _tag("p", _text(how), "small dim"), "card")


def _floors(found: ProbeResult) -> str:
    told = found.told

    def row(name: str, success: Any, reward: float, episodes: int, above: str) -> Sequence[str]:
        meter = _tag("div", _tag("i", "", style=f"width: {100 * success[0]:.1f}%"), "meter")
        return _text(name), interval(success), meter, f"{reward:.3g}", str(episodes), above

    ordered = sorted(found.floors, key=lambda f: (not f.above, -f.success[0], -f.reward))
    rows = [row(f.name, f.success, f.reward, f.episodes, f.above) for f in ordered]
    high, played = sum(bool(f.above) for f in ordered), sum(len(t.rewards) for t in told.tasks)
    rows.insert(high, row(f"the model, {found.agent}", told.success, told.reward[0], played, ""))
    table = _table(("who", "success (95 %)", "", "reward", "episodes", ""), rows, [*["red"] * high, "model"])
    return _tag("h2", "Floors: what is earned without skill") + table


def _lengths(found: ProbeResult) -> str:
    seen = found.lengths
    measured = [(name, values) for name, values in seen.items() if isinstance(values, list)]
    rows = [
        (name, *(f"{value:,.0f}" for value in values), f"{found.limits.get(name, '')}") for name, values in measured
    ]
    text = (
        f"{percent_of(seen['answers_cut'])} of the answers end at the limit of tokens; {percent_of(seen['truncated'])} "
        f"of the episodes are cut by a limit, {percent_of(seen['full'])} because the next prompt does not fit."
    )
    table = _table(("", "median", "95 %", "largest", "limit"), rows)
    return _tag("h2", "Lengths") + table + _tag("p", text, "small dim")


def _again(found: ProbeResult) -> str:
    again = found.again
    text = f"Not checked: {again.unchecked}."
    if not again.unchecked:
        same = again.episodes - len(again.differences)
        text = f"{same} of {again.episodes} episodes gave the same observations and rewards in a second process, and "
        text += "again when graded there with a clock that is a day ahead."
    lines = "".join(_tag("li", _text(each)) for each in again.differences)
    return _tag("h2", "Repeatability") + _tag("p", _text(text)) + _tag("ul", lines)


def _episodes(found: ProbeResult, decode: Decode | None) -> str:
    blocks: list[str] = []
    for t in shown_episodes(found.episodes):
        outcome = "solved" if t.success else t.status
        parts = [_tag("summary", _text(f"{place(t)}: {outcome}, reward {t.reward:.3g}, turns: {len(t.turns)}"))]
        for turn in t.turns[:_TURNS]:
            read = decode(turn.prompt_ids) if decode and turn.prompt_ids else _read(turn)
            said = decode(turn.response_ids) if decode and turn.response_ids else turn.raw or turn.text
            parts += [
                _message("the model reads", read),
                _message(f"it says, reward {turn.reward:.3g}", said, "assistant"),
            ]
        end = "at the end" if len(t.turns) <= _TURNS else f"at the end, {len(t.turns) - _TURNS} turns later"
        parts.append(_message(end, t.error or t.final_observation, "tool"))
        opened = {} if blocks else {"open": "open"}
        blocks.append(_tag("details", "".join(parts), "card", style="margin-top: 10px", **opened))
    return _tag("h2", "Episodes, as the model reads them") + "".join(blocks)


def shown_episodes(episodes: Sequence[Trajectory]) -> list[Trajectory]:
    """Choose episodes to look at: one of each outcome, then others."""
    kinds: dict[str, Trajectory] = {}
    for t in episodes:
        kinds.setdefault("solved" if t.success else t.status, t)
    rest = [t for t in episodes if all(t is not other for other in kinds.values())]
    return [*kinds.values(), *rest[:: max(1, len(rest) // _SHOWN)]][:_SHOWN]


def _message(who: str, text: str, kind: str = "") -> str:
    return _tag("div", _tag("div", _text(who), "who") + _tag("pre", _text(clip(text))), f"msg {kind}")


def _read(turn: Turn) -> str:
    """The chat messages of a turn, or what the environment said."""
    chat = [f"[{m.get('role', '')}] {m.get('content') or json.dumps(m)}" for m in turn.messages]
    return "\n\n".join(chat) or turn.observation
