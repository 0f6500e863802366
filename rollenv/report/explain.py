"""The course of a run, in sentences that each link to what they were read from."""

from __future__ import annotations

import math
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from urllib.parse import quote

from rollenv.report.plain import finite
from rollenv.report.story import Row, Story, Told
from rollenv.report.summary import domains
from rollenv.rollout.evaluate import wilson_interval
from rollenv.rollout.records.folders import EPISODES, METRICS, UPDATES

Link = tuple[str, str]
"""A name and an address, relative to the run's folder."""
Links = Sequence[Link]

#: Maximum links of a sentence, and alarms that are told.
_LINKS, _ALARMS = 3, 5
#: Characters that turn the direction of text.
_TURNING = re.compile(r"[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
#: Sentences on sums of metrics, in their order.
_SUMS: dict[str, str] = tomllib.loads(Path(__file__).with_name("explain.toml").read_text("utf-8"))
#: What is told of stored episodes.
_CHOSEN: tuple[tuple[Callable[[Told], object], str], ...] = (
    (lambda told: told.status == "truncated", "ended at a limit"),
    (lambda told: told.cut, "had an answer that was cut"),
    (lambda told: not math.isfinite(told.reward), "had a reward that is no finite number"),
    (lambda told: told.replays, "needed a replay in a new environment"),
    (lambda told: told.status in ("cancelled", "open"), "did not end: cancelled, or still open"),
)


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence about a run."""

    topic: str
    text: str
    links: Links

    def __str__(self) -> str:
        links = ", ".join(f"[{escaped(name)}]({address})" for name, address in self.links)
        return f"- {escaped(self.text)} ({links})"


def explain(story: Story) -> list[Sentence]:
    """Say what happened: how it went, what was learned from, what was lost, and what is doubtful."""
    if story.kind == "training":
        said = [*_course(story), *_success(story), *_groups(story), *_lost(story), *_doubts(story)]
    else:
        said = [*_evaluated(story), *_lost(story)]
    if story.damaged:
        text = f"{_count(story.damaged, 'line')} of its files could not be read"
        said.append(Sentence("lost", text, _files(story)))
    return [replace(each, links=each.links[:_LINKS]) for each in said]


def markdown(story: Story, sentences: Sequence[Sentence]) -> str:
    """Format the sentences as a page of Markdown."""
    lines = [f"# {escaped(story.name)}: {escaped(story.about or story.kind)}", ""]
    for topic in dict.fromkeys(sentence.topic for sentence in sentences):
        lines += [f"**{topic.capitalize()}**", "", *(str(each) for each in sentences if each.topic == topic), ""]
    there = story.page in story.files
    hint = "" if there else f" `rollenv view` writes {escaped(story.page)}, which is not there or old."
    return "\n".join([*lines, f"Links are relative to the place of the run.{hint}"])


def escaped(text: str) -> str:
    """Escape a text for one line of Markdown; what turns its direction is shown as a number."""
    text = " ".join(_TURNING.sub(lambda c: f"U+{ord(c[0]):04X}", text).split())
    text = "".join(c if c.isprintable() else "\ufffd" for c in text)
    return re.sub(r"([\\`*_\[\]<>#|])", r"\\\1", text)


def _row(line: int) -> Link:
    return f"{METRICS}:{line}", f"{METRICS}#L{line}"


def _page(story: Story, told: Told, turn: int = 0, token: int = 0) -> Link:
    parts = [f"it={told.iteration}"] * (told.iteration >= 0) + ["of=update"] * told.part + [f"ep={told.number}"]
    parts += [f"turn={turn}"] * bool(turn) + [f"token={token}&colour=difference"] * bool(token)
    where = f"{'update' if told.part else 'iteration'} {told.iteration}, " if told.iteration >= 0 else ""
    return f"{where}episode {told.number}", f"{quote(story.page)}#{'&'.join(parts)}"


def _files(story: Story) -> Links:
    known = [name for name in (METRICS, EPISODES, UPDATES, "eval.json") if name in story.files]
    return [(name, name) for name in known] or [(story.name, quote(story.name))]


def _course(story: Story) -> Iterator[Sentence]:
    if not story.metrics:
        text = "It has no iteration yet: it was stopped before the first one, or is still at it"
        yield Sentence("course", text, _files(story))
        return
    line, row = story.metrics[-1]
    last, planned = _iteration(row), story.settings.get("iterations")
    text = f"{_count(last, 'iteration')} ran"
    if type(planned) is int and planned != 10**9:  # it has an end
        text = (
            f"All {text}" if last >= planned else f"{last} of {planned} iterations ran: it was stopped, or still runs"
        )
    yield Sentence("course", text, [_row(line)])


def _success(story: Story) -> Iterator[Sentence]:
    for name in ["", *(f"{name}/" for name in domains({key for _, row in story.metrics for key in row})[0])][:4]:
        rows = _rows(story, f"eval/{name}success")
        if not rows:
            continue
        shares, links = [row[f"eval/{name}success"] for _, row in rows], [_row(line) for line, _ in rows]
        what = f"Success on unseen tasks{f' of {name[:-1]}' if name else ''}"
        if len(rows) == 1:
            yield Sentence("success", f"{what} was {_share(shares[0])} at the only evaluation", links)
            continue
        ends = [row.get(f"eval/{name}{end}", math.nan) for _, row in (rows[0], rows[-1]) for end in ("low", "high")]
        overlap = shares[0] != shares[-1] and ends[0] <= ends[3] and ends[2] <= ends[1]
        doubt = "; their 95 % intervals overlap, so this may be chance" if overlap else ""
        yield Sentence("success", f"{what} {_moved(shares[0], shares[-1], _share)}{doubt}", [links[0], links[-1]])
        steps = [(after - before, i) for i, (before, after) in enumerate(pairwise(shares))]
        for (step, i), verb in ((max(steps), "rose"), (min(steps), "fell")):
            if len(steps) > 1 and (step > 0 if verb == "rose" else step < 0):
                between = f"from iteration {_iteration(rows[i][1])} to {_iteration(rows[i + 1][1])}"
                yield Sentence("success", f"{what} {verb} most {between}: {100 * step:+.1f} points", links[i : i + 2])
    rows = _rows(story, "reward")
    values, width = [row["reward"] for _, row in rows], max(1, len(rows) // 5)
    if len(rows) > 1:
        moved = _moved(fmean(values[:width]), fmean(values[-width:]), "{:.3g}".format)
        over = f" (means of {_count(width, 'iteration')})" if width > 1 else ""
        yield Sentence("success", f"The reward in training {moved}{over}", [_row(rows[0][0]), _row(rows[-1][0])])
    places = range(width, len(rows) - width + 1)
    falls = [(fmean(values[i - width : i]) - fmean(values[i : i + width]), i) for i in places]
    if len(falls) > 2 and (fall := max(falls))[0] > 0:
        line, row = rows[fall[1]]
        yield Sentence("success", f"It fell most around iteration {_iteration(row)}: by {fall[0]:.3g}", [_row(line)])


def _groups(story: Story) -> Iterator[Sentence]:
    rows = _rows(story, "taught_groups")
    if rows:
        shares, ends = [row["taught_groups"] for _, row in rows], [_row(rows[0][0]), _row(rows[-1][0])]
        hard, easy = (fmean(row.get(name, 0.0) for _, row in rows) for name in ("too_hard", "too_easy"))
        text = f"{_share(fmean(shares))} of the groups taught"
        if len(rows) > 1:
            text += f": {_share(shares[0])} at first, {_share(shares[-1])} at last"
        text += f"; all failed in {_share(hard)}, all succeeded in {_share(easy)}"
        if fmean(shares) + hard + easy > 1.001:  # the turns of a group may differ where its episodes do not
            text += ", and such groups taught, too"
        yield Sentence("groups", text, ends)
    stored: dict[tuple[int, int], list[Told]] = {}
    for told in story.episodes:
        if told.part:
            stored.setdefault((told.iteration, told.group), []).append(told)
    taught, whys = list[list[Told]](), dict[str, list[Told]]()
    for members in stored.values():
        rewards = {told.reward for told in members}
        reasons = {why for told in members for why in told.why} or {"no token"}
        if "" in reasons:
            taught.append(members)
        elif reasons == {"no advantage"} and len(rewards) == 1:
            whys.setdefault(f"all members had reward {rewards.pop():.3g}", []).append(members[0])
        else:
            whys.setdefault(", ".join(sorted(reasons)), []).append(members[0])
    taught.sort(key=lambda members: -abs(max(told.reward for told in members) - min(told.reward for told in members)))
    if taught:
        counts = Counter(f"{told.reward:.3g}" for told in sorted(taught[0], key=lambda told: -told.reward))
        shown = ", ".join(f"{reward} ({count}×)" for reward, count in [*counts.items()][:4])
        text = f"{len(taught)} of {len(stored)} stored groups taught"
        text += f"; most differed {taught[0][0].task}, rewards {shown}" if len(counts) > 1 else ""
        yield Sentence("groups", text, [_page(story, members[0]) for members in taught])
    for why, firsts in sorted(whys.items(), key=lambda pair: -len(pair[1]))[:3]:
        text = f"{_count(len(firsts), 'stored group')} did not teach: {why}"
        yield Sentence("groups", text, [_page(story, told) for told in firsts])
    if rows and not stored:
        text = "Which groups taught is not stored; report.tokens=2 keeps two groups of each update"
        yield Sentence("groups", text, [("config.json",) * 2] if "config.json" in story.files else _files(story))


def _lost(story: Story) -> Iterator[Sentence]:
    training, count = story.kind == "training", 0
    for name, form in _SUMS.items() if training else ():
        rows = _rows(story, name)
        if total := sum(row[name] for _, row in rows):
            line, worst = max(rows, key=lambda pair: pair[1][name])
            text = form.format(_share(total / len(rows)) if name == "truncated" else f"{total:g}")
            yield Sentence("lost", f"{text}; most in iteration {_iteration(worst)}", [_row(line)])
            count += 1
    played = [told for told in story.episodes if not told.part]
    kinds = {told.failure: f"failed: {told.failure}" for told in played if told.failure}
    found = [([told for told in played if told.failure == kind], text) for kind, text in [*kinds.items()][:4]]
    found += [([told for told in played if chosen(told)], text) for chosen, text in _CHOSEN]
    for those, text in found:
        if those:
            whose = f"{_count(len(those), 'stored episode')}{' of evaluations' if training else ''}"
            yield Sentence("lost", f"{whose} {text}", [_page(story, told, told.cut) for told in those])
            count += 1
    if story.again:
        text = f"{_count(story.again, 'episode')} came up again; the last result counts"
        yield Sentence("lost", text, _files(story))
    elif not count and not training:
        yield Sentence("lost", "Nothing was cut, failed, replayed or played again", _files(story))
    elif not count and (rows := _rows(story, "failed")):  # nobody counts what was replayed, or which answers were cut
        text = "No limit ended an episode in training, and none failed"
        yield Sentence("lost", text, [_row(rows[0][0]), _row(rows[-1][0])])


def _doubts(story: Story) -> Iterator[Sentence]:
    for line, text in story.alarms[:_ALARMS]:
        yield Sentence("alarms", text, [_row(line)])
    if idle := [line for line, row in _rows(story, "trained_samples") if row["trained_samples"] == 0]:
        text = f"{_count(len(idle), 'iteration')} gave no learning signal: nothing was trained on"
        yield Sentence("alarms", text, [_row(line) for line in idle])
    if len(story.alarms) > _ALARMS or not (story.alarms or idle):
        text = f"{len(story.alarms) - _ALARMS} more" if story.alarms else "No alarm was raised"
        yield Sentence("alarms", text, [_row(line) for line, _ in story.alarms[_ALARMS:]] or _files(story))
    for name, text in (("logprob_drift", "Engine and trainer differ by {:.2g} nats a token"),
                       ("staleness/max", "The oldest tokens of a batch were {:.2g} updates old")):  # fmt: skip
        if rows := _rows(story, name):
            line, worst = max(rows, key=lambda pair: pair[1][name])
            most = f"most, {worst[name]:.2g}, in iteration {_iteration(worst)}"
            yield Sentence("engine", f"{text.format(fmean(row[name] for _, row in rows))}; {most}", [_row(line)])
    stored = [told for told in story.episodes if told.part]
    if compared := [told for told in stored if told.gaps[1]]:
        total, count = (sum(told.gaps[i] for told in compared) for i in (0, 1))
        told = max(compared, key=lambda told: told.widest[0])
        gap = f"{total / count:.2g} nats, at most {told.widest[0]:.2g}"
        text = f"Over {count:,} stored tokens with equal weights engine and trainer differ by {gap}"
        yield Sentence("engine", text, [_page(story, told, *told.widest[1:])])
    elif story.metrics and not _rows(story, "logprob_drift"):
        same = "no stored token was trained on with the weights that sampled it"
        why = same if stored else "a correction or report.tokens would measure it"
        yield Sentence("engine", f"How far engine and trainer differ is not known: {why}", _files(story))
    if learned := [told for told in stored if "" in told.why]:
        oldest = max(learned, key=lambda told: told.stale)
        old = f"weights up to {_count(oldest.stale, 'update')} older than those" if oldest.stale else "the weights"
        yield Sentence("engine", f"Stored tokens were sampled by {old} that were then trained", [_page(story, oldest)])


def _evaluated(story: Story) -> Iterator[Sentence]:
    played = story.episodes
    if not played:
        text = "No episode has been stored: nothing was played yet, or its files are damaged"
        yield Sentence("success", text, _files(story))
        return
    if not story.result and EPISODES in story.files:
        yield Sentence("course", f"It is not finished: {_count(len(played), 'episode')} so far", _files(story))
    judged = [told for told in played if told.status in ("solved", "wrong", "truncated")]
    solved = [told for told in judged if told.status == "solved"]
    if judged and "members" not in story.settings:
        low, high = (finite(story.result.get(end)) for end in ("low", "high"))
        if low is None or high is None:
            low, high = wilson_interval(len(solved), len(judged))
        text = f"{len(solved)} of {len(judged):,} episodes were solved: {_share(len(solved) / len(judged))} "
        text += f"(95 % interval {100 * low:.3g} to {100 * high:.3g})"
        if not solved and any(told.reward > 0 for told in judged):
            text += "; some earned a reward, so the environment may never say `success` in its info"
        yield Sentence("success", text, [_page(story, told) for told in solved] or _files(story))
    ended = [told for told in played if told.status not in ("error", "open") and math.isfinite(told.reward)]
    if ended:
        worst, best = (of(ended, key=lambda told: told.reward) for of in (min, max))
        which = " of the episodes that did not fail" if any(told.status == "error" for told in played) else ""
        mean = f"The mean reward{which} is {fmean(told.reward for told in ended):.3g}"
        links = [_page(story, worst), _page(story, best)]
        yield Sentence("success", f"{mean}, from {worst.reward:.3g} to {best.reward:.3g}", links)
    tasks: dict[str, list[Told]] = {}
    for told in judged:
        tasks.setdefault(told.task, []).append(told)
    if len(tasks) < len(judged) and "members" not in story.settings:
        results = [({told.status == "solved" for told in each}, each[0]) for each in tasks.values()]
        never, always = ([first for found, first in results if found == {which}] for which in (False, True))
        text = f"Of {len(tasks)} tasks, solved in every episode: {len(always)}; in none: {len(never)}"
        yield Sentence("groups", text, [_page(story, told) for told in (*always[:1], *never)] or _files(story))


def _rows(story: Story, name: str) -> list[tuple[int, Row]]:
    return [(line, row) for line, row in story.metrics if name in row]


def _iteration(row: Row) -> int:
    return int(row.get("iteration", 0))


def _moved(before: float, after: float, form: Callable[[float], str]) -> str:
    if form(before) == form(after):
        return f"stayed at {form(after)}"
    return f"{'rose' if after > before else 'fell'} from {form(before)} to {form(after)}"


def _share(value: float) -> str:
    return f"{100 * value:.3g} %"


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"
