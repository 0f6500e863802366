"""The page of a probe: self-contained HTML in the look of a run's report, without scripts."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Iterable, Sequence
from importlib import resources
from typing import Any

from rollenv.probe.run import ProbeResult
from rollenv.probe.teach import Verdict
from rollenv.probe.verdict import interval, percent_of
from rollenv.report.plain import clip
from rollenv.report.summary import duration
from rollenv.rollout.types import Trajectory, Turn

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<main>
{main}
</main>
</body>
</html>
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
    parts = [
        _tag("h1", title),
        *(_tag("div", _text(remark.text), f"remark {remark.level}") for remark in found.remarks),
        _tiles(found),
        _advice(found),
        _tasks(found),
        _floors(found),
        _lengths(found),
        _again(found),
        _episodes(found, decode),
    ]
    style = (resources.files("rollenv.report") / "page" / "style.css").read_text(encoding="utf-8")
    return _PAGE.format(title=title, style=style, main="\n".join(parts))


def _text(text: Any) -> str:
    """Escape a text; control characters and those that turn its direction are shown as their numbers."""
    shown = "".join(c if c.isprintable() or c in "\n\t" else f"⟨{ord(c):X}⟩" for c in str(text))
    return html.escape(shown)


def _tag(name: str, content: str, kind: str = "", **attributes: str) -> str:
    """Render an element; ``content`` is HTML."""
    given = {"class": kind, **attributes}
    written = "".join(f' {key}="{html.escape(value)}"' for key, value in given.items() if value)
    return f"<{name}{written}>{content}</{name}>"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], kinds: Sequence[str] = ()) -> str:
    """Render a table; cells are HTML, and ``kinds`` are the classes of the first rows."""
    heads = "".join(_tag("th", each) for each in head)
    body = "".join(
        _tag("tr", "".join(_tag("td", cell) for cell in row), kinds[number] if number < len(kinds) else "")
        for number, row in enumerate(rows)
    )
    return _tag("div", f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>", "card scroll")


def _meter(share: float) -> str:
    return _tag("div", _tag("i", "", style=f"width: {100 * share:.1f}%"), "meter")


def _tiles(found: ProbeResult) -> str:
    told, steps = found.told, found.iteration
    time = duration(steps.play) or "0 s"
    if steps.update:
        time += f" + {duration(steps.update)}"
    tiles = [
        ("Success", interval(told.success), f"{len(told.tasks)} tasks × {found.k}, 95 %"),
        ("Reward", f"{told.reward[0]:.3g}", f"{told.reward[1]:.3g} to {told.reward[2]:.3g}"),
        *((f"Groups of {size} that teach", interval(share), "") for size, share in told.informative.items()),
        ("Distinct tasks", f"{told.distinct} of {len(told.tasks)}", ""),
        ("Failed episodes", str(sum(told.failures.values())), "in no rate"),
        ("An iteration here", time, f"{steps.episodes} episodes{', then at most the update' * bool(steps.update)}"),
    ]
    if steps.cost is not None:
        tiles.append(("Cost of an iteration", f"{steps.cost:.4g}", "by --prices"))
    cards = [
        _tag("div", _text(label), "label") + _tag("div", f"{_text(value)} {_tag('small', _text(more))}", "value")
        for label, value, more in tiles
    ]
    left = "".join(_tag("p", f"Not measured: {_text(each)}.", "small dim") for each in found.left_out)
    return _tag("div", "".join(_tag("div", card, "card tile") for card in cards), "tiles") + left


def _advice(found: ProbeResult) -> str:
    parts = [_tag("h2", "What to do")]
    if found.imitation:
        parts.append(_tag("p", _text(found.imitation)))
    if found.advice:
        rows = [
            (_tag("code", _text(" ".join(a.settings))), _text(a.text), "played" if a.tried else "computed")
            for a in found.advice
        ]
        parts.append(_table(("setting", "what it gives", "how known"), rows))
    parts.append(_tag("p", _tag("code", _text(found.command))))
    if found.trials:
        texts = [
            f"{' '.join(t.settings)}: {percent_of(t.informative)} of groups of {found.group_size} would teach, success "
            f"{interval(t.success)} on {t.tasks} tasks"
            for t in found.trials
        ]
        parts.append(_tag("p", f"Played: {_text('; '.join(texts))}.", "small dim"))
    return "".join(parts)


def _tasks(found: ProbeResult) -> str:
    told = found.told
    counts = {verdict: told.count(verdict) for verdict in _CLASSES}
    bar = "".join(_tag("i", "", _CLASSES[verdict], style=f"flex: {n}") for verdict, n in counts.items() if n)
    legend = "".join(_tag("span", "", f"swatch {_CLASSES[v]}") + f"{v} {n}" for v, n in counts.items())
    ordered = sorted(told.tasks, key=lambda t: (t.verdict == "failed", -t.solved, -t.reward))
    columns, rows = [], []
    for t in ordered:
        of = t.episodes - t.failed
        about = f"{t.task}: {t.solved} of {of} solved, reward {t.reward:.3g}, {t.verdict}"
        filled = _tag("i", "", _CLASSES[t.verdict], style=f"height: {100 * t.solved / max(of, 1):.0f}%")
        columns.append(_tag("span", filled, "task", title=about))
        rows.append((_text(t.task), str(t.solved), str(of), str(t.failed), f"{t.reward:.3g}", t.verdict))
    how = (
        "Each column is a task, filled by its success. A group teaches if its rewards differ. For each task with "
        f"k = {found.k} episodes, of which c had the same reward, a group of G teaches with 1 − Σ C(c, G) / C(k, G), "
        "which for two rewards estimates 1 − p^G − (1 − p)^G; for G > k the value of k, at least. Shown are means "
        "over tasks."
    )
    table = _table(("task", "solved", "of", "failed", "reward", "verdict"), rows)
    parts = [
        _tag("div", f"{len(told.tasks)} tasks{legend}", "small"),
        _tag("div", bar, "bar"),
        *columns,
        _tag("p", _text(how), "small dim"),
        _tag("details", f"<summary>All tasks</summary>{table}"),
    ]
    return _tag("h2", "Tasks") + _tag("div", "".join(parts), "card")


def _floors(found: ProbeResult) -> str:
    if not found.floors:
        return ""
    told = found.told
    ordered = sorted(found.floors, key=lambda f: (not f.above, -f.success[0], -f.reward))
    rows = [
        (_text(f.name), interval(f.success), _meter(f.success[0]), f"{f.reward:.3g}", str(f.episodes), f.above)
        for f in ordered
    ]
    high = sum(bool(floor.above) for floor in ordered)
    whose = f"the model, {_text(found.agent)}"
    played = str(sum(task.episodes - task.failed for task in told.tasks))
    model = (whose, interval(told.success), _meter(told.success[0]), f"{told.reward[0]:.3g}", played, "")
    head = ("agent without skill", "success (95 %)", "", "reward", "episodes", "")
    table = _table(head, [*rows[:high], model, *rows[high:]], [*["red"] * high, "model"])
    return _tag("h2", "Floors: what is earned without skill") + table


def _lengths(found: ProbeResult) -> str:
    seen = found.lengths
    measured = [
        ("turns of an episode", seen.turns, None),
        ("tokens of a prompt", seen.prompt, seen.max_prompt or seen.context),
        ("tokens of an answer", seen.answer, seen.max_new),
    ]
    rows = [
        (label, *(f"{value:,.0f}" for value in values), f"{limit:,}" if limit else "")
        for label, values, limit in measured
        if values is not None
    ]
    cut = (
        f"{percent_of(seen.cut_answers)} of the answers end at the limit of tokens; {percent_of(seen.truncated)} of "
        f"the episodes are cut by a limit, {percent_of(seen.full)} because the next prompt does not fit."
    )
    table = _table(("", "median", "95 %", "largest", "limit"), rows)
    return _tag("h2", "Lengths") + table + _tag("p", cut, "small dim")


def _again(found: ProbeResult) -> str:
    again = found.again
    if again.unchecked:
        return _tag("h2", "Repeatability") + _tag("p", f"Not checked: {_text(again.unchecked)}.")
    same = again.episodes - again.rewards - again.observations - again.graded
    text = (
        f"{same} of {again.episodes} episodes gave the same observations and rewards in a second process, and again "
        "when graded there with a clock that is a day ahead."
    )
    lines = "".join(_tag("li", _text(each)) for each in again.differences)
    return _tag("h2", "Repeatability") + _tag("p", text) + _tag("ul", lines)


def shown_episodes(episodes: Sequence[Trajectory]) -> list[Trajectory]:
    """Choose episodes to look at: one each that is solved, not solved, cut off and failed, then others."""
    kinds: dict[str, Trajectory] = {}
    for t in episodes:
        if t.turns or t.error:
            kinds.setdefault("solved" if t.success else t.status, t)
    rest = [t for t in episodes if t.turns and all(t is not other for other in kinds.values())]
    return [*kinds.values(), *rest[:: max(1, len(rest) // _SHOWN)]][:_SHOWN]


def _episodes(found: ProbeResult, decode: Decode | None) -> str:
    blocks = []
    for number, t in enumerate(shown_episodes(found.episodes)):
        outcome = "solved" if t.success else t.status
        place = f"row {t.task.options['index']}" if "index" in t.task.options else f"seed {t.task.seed}"
        about = f"{place}: {outcome}, reward {t.reward:.3g}, {len(t.turns)} turns"
        parts = [_tag("summary", _text(about))]
        for turn in t.turns[:_TURNS]:
            parts.append(
                _message("the model reads", decode(turn.prompt_ids) if decode and turn.prompt_ids else _read(turn))
            )
            said = decode(turn.response_ids) if decode and turn.response_ids else turn.raw or turn.text
            parts.append(_message(f"it says, reward {turn.reward:.3g}", said, "assistant"))
        if len(t.turns) > _TURNS:
            parts.append(_tag("p", f"{len(t.turns) - _TURNS} more turns", "dim"))
        parts.append(_message("at the end", t.error or t.final_observation, "tool"))
        how = {"open": "open"} if number == 0 else {}
        blocks.append(_tag("details", "".join(parts), "card", style="margin-top: 10px", **how))
    return _tag("h2", "Episodes, as the model reads them") + "".join(blocks)


def _message(who: str, text: str, kind: str = "") -> str:
    return _tag("div", _tag("div", _text(who), "who") + _tag("pre", _text(clip(text))), f"msg {kind}")


def _read(turn: Turn) -> str:
    """The chat messages of a turn, or what the environment said."""
    if not turn.messages:
        return turn.observation
    return "\n\n".join(f"[{m.get('role', '')}] {m.get('content') or json.dumps(m)}" for m in turn.messages)
