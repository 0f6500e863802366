"""What happened in a run, in sentences that each link to what they were read from."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from rollenv.report.story import Row, Story, Told
from rollenv.report.summary import domains, finite
from rollenv.rollout.evaluate import wilson_interval
from rollenv.rollout.records.folders import EPISODES, METRICS, UPDATES

Link = tuple[str, str]
"""A name and an address, relative to the run's folder."""

#: Maximum links of a sentence, and alarms that are told.
_LINKS, _ALARMS = 3, 5
#: Characters that turn the direction of text.
_TURNING = re.compile(r"[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence about a run."""

    topic: str
    text: str
    links: tuple[Link, ...]

    def __str__(self) -> str:
        links = ", ".join(f"[{escaped(name)}]({address})" for name, address in self.links)
        return f"- {escaped(self.text)} ({links})"


def explain(story: Story) -> list[Sentence]:
    """Say what happened: first how it went, then what was learned from, what was lost, and what is doubtful."""
    tell = _Teller(story)
    parts = (_course, _success, _reward, _groups, _lost, _alarms, _mismatch, _staleness)
    for part in parts if story.kind == "training" else (_evaluated, _tasks, _lost):
        part(tell)
    if story.damaged:
        tell("lost", f"{_count(story.damaged, 'line')} of its files could not be read", tell.files())
    return tell.said


def markdown(story: Story, sentences: Sequence[Sentence]) -> str:
    """Format the sentences as a page of Markdown."""
    about = " on ".join(filter(None, (_agent(story), _env(story))))
    lines = [f"# {escaped(story.name)}: {escaped(about or story.kind)}", ""]
    for topic in dict.fromkeys(sentence.topic for sentence in sentences):
        lines += [f"**{topic.capitalize()}**", "", *(str(each) for each in sentences if each.topic == topic), ""]
    hint = "" if story.page in story.files else f" `rollenv view` writes {escaped(story.page)}, which is not there yet."
    return "\n".join([*lines, f"Links are relative to the place of the run.{hint}"])


def escaped(text: str) -> str:
    """Escape a text for one line of Markdown; what turns its direction is shown as a number."""
    text = " ".join(_TURNING.sub(lambda c: f"U+{ord(c[0]):04X}", text).split())
    text = "".join(c if c.isprintable() else "\ufffd" for c in text)
    return re.sub(r"([\\`*_\[\]<>#|])", r"\\\1", text)


class _Teller:
    """Collects sentences about a story."""

    def __init__(self, story: Story):
        self.story, self.said = story, list[Sentence]()

    def __call__(self, topic: str, text: str, links: Sequence[Link]) -> None:
        self.said.append(Sentence(topic, text, tuple(links[:_LINKS])))

    def rows(self, *names: str) -> list[tuple[int, Row]]:
        """Return the rows of metrics that have all names, with their lines."""
        return [(line, row) for line, row in self.story.metrics if all(name in row for name in names)]

    def row(self, line: int) -> Link:
        return f"{METRICS}:{line}", f"{METRICS}#L{line}"

    def page(self, told: Told, turn: int = 0, token: int = 0) -> Link:
        """Return the link to an episode on the page."""
        parts = [f"it={told.iteration}"] * (told.iteration >= 0) + ["of=update"] * told.part + [f"ep={told.number}"]
        parts += [f"turn={turn}"] * bool(turn) + [f"token={token}&colour=difference"] * bool(token)
        where = f"{'update' if told.part else 'iteration'} {told.iteration}, " if told.iteration >= 0 else ""
        return f"{where}episode {told.number}", f"{quote(self.story.page)}#{'&'.join(parts)}"

    def files(self) -> list[Link]:
        """Return links to the files that the story was read from."""
        known = [name for name in (METRICS, EPISODES, UPDATES, "eval.json") if name in self.story.files]
        return [(name, name) for name in known] or [(self.story.name, quote(self.story.name))]

    def first(self, part: int | None, chosen: Callable[[Told], object]) -> tuple[int, list[Link]]:
        """Return the number of episodes that are chosen, and links to the first ones."""
        found = [told for told in self.story.episodes if part in (None, told.part) and chosen(told)]
        return len(found), [self.page(told, told.cut) for told in found[:_LINKS]]


def _course(tell: _Teller) -> None:
    story = tell.story
    if not story.metrics:
        tell("course", "It has no iteration yet: it was stopped before the first one, or is still at it", tell.files())
        return
    line, row = story.metrics[-1]
    last, planned = int(row.get("iteration", 0)), story.settings.get("iterations")
    if type(planned) is not int or planned == 10**9:
        tell("course", f"{_count(last, 'iteration')} ran", [tell.row(line)])
    elif last < planned:
        text = f"{last} of {_count(planned, 'iteration')} ran: it was stopped, or still runs (--resume continues it)"
        tell("course", text, [tell.row(line)])
    else:
        tell("course", f"All {_count(planned, 'iteration')} ran", [tell.row(line)])


def _success(tell: _Teller) -> None:
    names = ["", *(f"{name}/" for name in domains({key for _, row in tell.story.metrics for key in row})[0])]
    for name in names[:4]:
        rows = tell.rows(f"eval/{name}success")
        if not rows:
            continue
        value = [row[f"eval/{name}success"] for _, row in rows]
        (first, before), (last, after) = rows[0], rows[-1]
        what = f"Success on unseen tasks{f' of {name[:-1]}' if name else ''}"
        if len(rows) == 1:
            tell("success", f"{what} was {_share(value[0])} at the only evaluation", [tell.row(first)])
            continue
        ends = [row.get(f"eval/{name}{end}", math.nan) for row in (before, after) for end in ("low", "high")]
        apart = ends[0] > ends[3] or ends[2] > ends[1] or any(map(math.isnan, ends))
        doubt = "" if apart or value[0] == value[-1] else "; their 95 % intervals overlap, so this may be chance"
        tell("success", f"{what} {_moved(value[0], value[-1], _share)}{doubt}", [tell.row(first), tell.row(last)])
        steps = [(value[i + 1] - value[i], i) for i in range(len(value) - 1)]
        for (step, i), verb in ((max(steps), "rose"), (min(steps), "fell")):
            if len(steps) > 1 and (step > 0) == (verb == "rose") and step:
                at = [int(rows[k][1].get("iteration", 0)) for k in (i, i + 1)]
                text = f"{what} {verb} most from iteration {at[0]} to {at[1]}: {100 * step:+.1f} points"
                tell("success", text, [tell.row(rows[i][0]), tell.row(rows[i + 1][0])])


def _reward(tell: _Teller) -> None:
    rows = tell.rows("reward")
    if len(rows) < 2:
        return
    values, width = [row["reward"] for _, row in rows], max(1, len(rows) // 5)
    (a, _), (b, _) = rows[0], rows[-1]
    begin, end = _mean(values[:width]), _mean(values[-width:])
    over = f" (means of {_count(width, 'iteration')})" if width > 1 else ""
    tell("success", f"The reward in training {_moved(begin, end, '{:.3g}'.format)}{over}", [tell.row(a), tell.row(b)])
    steps = [
        (_mean(values[i : i + width]) - _mean(values[i - width : i]), i) for i in range(width, len(rows) - width + 1)
    ]
    if len(steps) > 2 and (worst := min(steps))[0] < 0:
        line, row = rows[worst[1]]
        text = f"It fell most around iteration {int(row.get('iteration', 0))}: by {-worst[0]:.3g}"
        tell("success", text, [tell.row(line)])


def _groups(tell: _Teller) -> None:
    rows = tell.rows("taught_groups")
    if rows:
        shares = [row["taught_groups"] for _, row in rows]
        text = f"{_share(_mean(shares))} of the groups taught"
        if shares[0] != shares[-1]:
            text += f": {_share(shares[0])} in the first update, {_share(shares[-1])} in the last"
        hard, easy = (_mean([row.get(name, 0.0) for _, row in rows]) for name in ("too_hard", "too_easy"))
        if hard or easy:
            text += f". Every member failed in {_share(hard)}, every member succeeded in {_share(easy)}"
        tell("groups", text, [tell.row(rows[0][0]), tell.row(rows[-1][0])])
        if idle := [line for line, row in rows if not row["taught_groups"]]:
            tell("groups", f"No group taught in {_count(len(idle), 'update')}", [tell.row(line) for line in idle])
    stored: dict[tuple[int, int], list[Told]] = {}
    for told in tell.story.episodes:
        if told.part:
            stored.setdefault((told.iteration, told.group), []).append(told)
    taught = {at: members for at, members in stored.items() if any("" in told.why for told in members)}
    if taught:
        spread = sorted(taught.values(), key=lambda members: _spread(members), reverse=True)
        shown = [f"{members[0].task} with rewards {_rewards(members)}" for members in spread[:2] if _spread(members)]
        text = f"Of {len(stored)} stored groups {len(taught)} taught"
        text += f"; rewards differed most in {' and in '.join(shown)}" if shown else ""
        tell("groups", text, [tell.page(members[0]) for members in spread[:2]])
    whys: dict[str, list[list[Told]]] = {}
    for at, members in stored.items():
        if at not in taught:
            reasons = sorted({why for told in members for why in told.why}) or ["no token"]
            if reasons == ["no advantage"] and len({told.reward for told in members}) == 1:
                reasons = [f"all members had reward {members[0].reward:.3g}"]
            whys.setdefault(", ".join(reasons), []).append(members)
    for why, groups in sorted(whys.items(), key=lambda pair: -len(pair[1]))[:3]:
        text = f"{_count(len(groups), 'stored group')} did not teach: {why}"
        tell("groups", text, [tell.page(members[0]) for members in groups])
    if rows and not stored:
        text = "Which groups taught is not stored; report.tokens=2 keeps two groups of each update"
        tell("groups", text, [("config.json", "config.json")])


def _lost(tell: _Teller) -> None:
    training = tell.story.kind == "training"
    part = 0 if training else None
    for name, text in _SUMS.items() if training else ():
        rows = tell.rows(name)
        total = sum(row[name] for _, row in rows)
        if total:
            worst = max(rows, key=lambda pair: pair[1][name])
            shown = _share(total / len(rows)) if name in ("truncated", "unfinished") else f"{total:g}"
            text = f"{text.format(shown)}; most in iteration {int(worst[1].get('iteration', 0))}"
            tell("lost", text, [tell.row(worst[0])])
    whose = " of evaluations" if training else ""
    failures = Counter(told.failure for told in tell.story.episodes if part in (None, told.part) and told.failure)
    for kind, count in failures.most_common(3):
        of_kind = [
            tell.page(told) for told in tell.story.episodes if part in (None, told.part) and told.failure == kind
        ]
        tell("lost", f"{_count(count, 'stored episode')}{whose} failed: {kind}", of_kind)
    for chosen, text in _CHOSEN:
        count, links = tell.first(part, chosen)
        if count:
            tell("lost", f"{_count(count, 'stored episode')}{whose} {text}", links)
    if tell.story.again:
        tell("lost", f"{_count(tell.story.again, 'episode')} came up again; the last result counts", tell.files())
    if not any(sentence.topic == "lost" for sentence in tell.said):
        tell("lost", "Nothing was cut, failed, replayed or played again", tell.files())


_SUMS = {
    "truncated": "A limit ended {} of the episodes in training",
    "unfinished": "{} of the answers ended inside a thought",
    "failed": "{} episodes failed in training",
    "dropped/truncated": "{} episodes that a limit cut were not trained on",
    "dropped/repetition": "{} episodes were not trained on for repetition",
    "dropped/gibberish": "{} episodes were not trained on for gibberish",
    "dropped/out_of_bounds": "{} episodes of groups outside rollout.keep were not trained on",
    "refilled": "{} groups without a signal were replaced by others",
    "skipped_steps": "{} optimizer steps were skipped, as they were not finite",
    "report/left_out": "The tokens of {} episodes were left out of updates.jsonl, which would be too large",
}
_CHOSEN: tuple[tuple[Callable[[Told], object], str], ...] = (
    (lambda told: told.status == "truncated", "ended at a limit"),
    (lambda told: told.cut, "had an answer that was cut"),
    (lambda told: told.replays, "needed a replay in a new environment"),
    (lambda told: told.status in ("cancelled", "open"), "did not end: cancelled, or still open"),
)


def _alarms(tell: _Teller) -> None:
    alarms = tell.story.alarms
    for line, text in alarms[:_ALARMS]:
        tell("alarms", text, [tell.row(line)])
    if len(alarms) > _ALARMS:
        tell("alarms", f"{len(alarms) - _ALARMS} more", [tell.row(line) for line, _ in alarms[_ALARMS:]])
    if not alarms and tell.story.metrics:
        tell("alarms", "No alarm was raised", [(METRICS, METRICS)])


def _mismatch(tell: _Teller) -> None:
    rows = tell.rows("logprob_drift")
    if rows:
        line, row = max(rows, key=lambda pair: pair[1]["logprob_drift"])
        text = f"Engine and trainer differ by {_mean([r['logprob_drift'] for _, r in rows]):.2g} nats a token; most, "
        text += f"{row['logprob_drift']:.2g}, in iteration {int(row.get('iteration', 0))}"
        tell("engine", text, [tell.row(line)])
    compared = [told for told in tell.story.episodes if told.gaps[1]]
    if compared:
        total, count = (sum(told.gaps[i] for told in compared) for i in (0, 1))
        told = max(compared, key=lambda told: told.widest[0])
        widest, turn, token = told.widest
        text = f"Over {count:,} stored tokens with equal weights engine and trainer differ by {total / count:.2g} nats"
        tell("engine", f"{text}, at most {widest:.2g}", [tell.page(told, turn, token)])
    drifted = [(line, row["drift"]) for line, row in tell.rows("drift") if row["drift"]]
    if drifted:
        turns = sum(count for _, count in drifted)
        tell("engine", f"The tokens of {turns:g} turns are not those that were sampled", [tell.row(drifted[0][0])])
    if not rows and not compared and tell.story.metrics:
        text = "How far engine and trainer differ is not known: "
        stored = any(told.part for told in tell.story.episodes)
        text += "no stored token was trained on" if stored else "a correction or report.tokens would measure it"
        tell("engine", text, [(UPDATES, UPDATES)] if stored else [("config.json", "config.json")])


def _staleness(tell: _Teller) -> None:
    rows = tell.rows("staleness/mean", "staleness/max")
    stale = max((told for told in tell.story.episodes if told.part), key=lambda told: told.stale, default=None)
    if rows:
        line, row = max(rows, key=lambda pair: pair[1]["staleness/max"])
        mean = _mean([row["staleness/mean"] for _, row in rows])
        tell("engine", f"Tokens were {mean:.2g} updates old, at most {row['staleness/max']:g}", [tell.row(line)])
    elif stale:
        old = f"weights up to {_count(stale.stale, 'update')} older than those" if stale.stale else "the weights"
        tell("engine", f"Stored tokens were sampled by {old} that were then trained", [tell.page(stale)])


def _evaluated(tell: _Teller) -> None:
    story, played = tell.story, tell.story.episodes
    if not played:
        tell("success", "No episode has been stored: nothing was played yet, or its files are damaged", tell.files())
        return
    if not story.result and story.files:
        tell("course", f"It is not finished: {_count(len(played), 'episode')} so far", tell.files())
    judged = [told for told in played if told.status not in ("finished", "open")]
    solved = sum(told.status == "solved" for told in judged)
    if judged and "members" not in story.settings:
        low, high = (finite(story.result.get(end)) for end in ("low", "high"))
        if low is None or high is None:
            low, high = wilson_interval(solved, len(judged))
        text = f"{solved} of {len(judged):,} episodes were solved: {_share(solved / len(judged))} "
        text += f"(95 % interval {100 * low:.0f} to {100 * high:.0f})"
        tell("success", text, tell.first(None, lambda told: told.status == "solved")[1] or tell.files())
    ended = [told for told in played if told.status not in ("error", "open")]
    if ended:
        worst, best = (of(ended, key=lambda told: told.reward) for of in (min, max))
        text = f"The mean reward is {_mean([told.reward for told in ended]):.3g}"
        links = [tell.page(worst), tell.page(best)]
        tell("success", f"{text}, from {worst.reward:.3g} to {best.reward:.3g}", links)


def _tasks(tell: _Teller) -> None:
    tasks: dict[str, list[Told]] = {}
    for told in tell.story.episodes:
        if told.status not in ("finished", "open"):
            tasks.setdefault(told.task, []).append(told)
    if all(len(each) == 1 for each in tasks.values()) or "members" in tell.story.settings:
        return
    solved = {task: sum(told.status == "solved" for told in each) for task, each in tasks.items()}
    never = [each[0] for task, each in tasks.items() if not solved[task]]
    always = [each[0] for task, each in tasks.items() if solved[task] == len(each)]
    text = f"Of {len(tasks)} tasks, solved in every episode: {len(always)}; in none: {len(never)}"
    tell("groups", text, [tell.page(told) for told in (*always[:1], *never[:2])] or tell.files())


def _moved(before: float, after: float, form: Callable[[float], str]) -> str:
    if form(before) == form(after):
        return f"stayed at {form(after)}"
    return f"{'rose' if after > before else 'fell'} from {form(before)} to {form(after)}"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _share(value: float) -> str:
    return f"{100 * value:.3g} %"


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def _spread(members: Sequence[Told]) -> float:
    rewards = [told.reward for told in members]
    return max(rewards) - min(rewards)


def _rewards(members: Sequence[Told]) -> str:
    counts = Counter(f"{told.reward:.3g}" for told in sorted(members, key=lambda told: -told.reward))
    return ", ".join(f"{reward} ({count}×)" for reward, count in list(counts.items())[:4])


def _agent(story: Story) -> str:
    model = story.settings.get("model")
    return str(story.settings.get("agent") or (model.get("path") if isinstance(model, dict) else "") or "")


def _env(story: Story) -> str:
    env = story.settings.get("env")
    return str((env.get("id") if isinstance(env, dict) else env) or "")
