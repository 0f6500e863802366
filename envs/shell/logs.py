"""Log files: count, filter, aggregate, rank, select a time window."""

from __future__ import annotations

import datetime
import itertools
from collections import Counter
from typing import NamedTuple

from rollenv.envs.shell.checks import Line, Lines, Number
from rollenv.envs.shell.draw import TaskDraw
from rollenv.envs.shell.packing import gzipped
from rollenv.envs.shell.task import Family, ShellTask
from rollenv.envs.shell.words import LEVELS, SERVICES

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
FAMILY = Family("logs", "log files: count, filter, aggregate, rank, windows of time")

#: Command that counts equal lines and prints each with its count, the most frequent first.
RANKED = "sort | uniq -c | awk '{ print $2, $1 }' | LC_ALL=C sort -k2,2nr -k1,1"


class Event(NamedTuple):
    """A line of an application's log."""

    when: datetime.datetime
    level: str
    service: str
    message: str

    def __str__(self) -> str:
        return f"{self.when:%Y-%m-%d %H:%M:%S} {self.level} [{self.service}] {self.message}"


class LogLine(NamedTuple):
    """A line of a web server's log."""

    when: datetime.datetime
    client: str
    path: str
    status: int
    sent: int
    milliseconds: int

    def __str__(self) -> str:
        month = _MONTHS[self.when.month - 1]
        day = f"{self.when:%d}/{month}/{self.when:%Y:%H:%M:%S}"
        return (
            f'{self.client} - - [{day} +0000] "GET {self.path} HTTP/1.1" {self.status} {self.sent} {self.milliseconds}'
        )


def _events(draw: TaskDraw, size: int) -> list[Event]:
    """Draw lines of an application's log, in order of time."""
    services = draw.some(SERVICES, 1 + size)
    levels = draw.mixed(LEVELS)
    levels = [*levels, *levels[:2], levels[0]]
    times = draw.moments(draw.records(size), hours=6 * size)
    return [Event(t, draw.pick(levels), draw.pick(services), f"{draw.word()} {draw.word()}") for t in times]


def _requests(draw: TaskDraw, size: int) -> list[LogLine]:
    """Draw lines of a web server's log, in order of time."""
    clients = [draw.address() for _ in range(3 + 3 * size)]
    clients += clients[:3] * 2
    paths = [
        f"/{topic}/{word}" for topic, word in zip(draw.topics(2 + 2 * size), draw.words(2 + 2 * size), strict=True)
    ]
    found = []
    for when in draw.moments(draw.records(size), hours=5 * size):
        status, sent, took = draw.pick((200, 200, 200, 301, 404, 404, 500)), draw.number(90, 9000), draw.number(1, 3000)
        found.append(LogLine(when, draw.pick(clients), draw.pick(paths), status, sent, took))
    return found


def _text(lines: list[Event] | list[LogLine]) -> str:
    """Return the contents of a log file."""
    return "".join(f"{line}\n" for line in lines)


_LINE = "Each line of {name} is a date, a time, a level, a service in brackets and a message."
_REQUEST = (
    "{name} is the log of a web server. Each line is: client address, two dashes, the time in brackets, the request in "
    "double quotes, the status, the number of bytes sent, and the duration in milliseconds."
)


@FAMILY.template(1, 2)
def _count_level(draw: TaskDraw, size: int) -> ShellTask:
    """Count the lines of a level."""
    lines = _events(draw, size)
    counts = Counter(line.level for line in lines)
    level = draw.pick(sorted(level for level, count in counts.items() if count > 1))
    return ShellTask(
        f"How many lines of app.log have the level {level}? Write the number to answer.txt.",
        {"app.log": _text(lines)},
        (f"grep -c {level} app.log > answer.txt",),
        (Number("answer.txt", counts[level]),),
    )


@FAMILY.template(1, 1)
def _count_lines(draw: TaskDraw, size: int) -> ShellTask:
    """Count the lines of a log."""
    lines = _events(draw, draw.number(1, 2))
    return ShellTask(
        "How many lines does app.log have? Write the number to answer.txt.",
        {"app.log": _text(lines)},
        ("wc -l < app.log > answer.txt",),
        (Number("answer.txt", len(lines)),),
    )


@FAMILY.template(1, 1)
def _last_line(draw: TaskDraw, size: int) -> ShellTask:
    """Find the last or the first line."""
    lines = _events(draw, draw.number(1, 2))
    last = draw.chance(0.5)
    return ShellTask(
        f"Write the {'last' if last else 'first'} line of app.log to answer.txt.",
        {"app.log": _text(lines)},
        (f"{'tail' if last else 'head'} -n 1 app.log > answer.txt",),
        (Line("answer.txt", str(lines[-1 if last else 0])),),
    )


@FAMILY.template(1, 2)
def _filter_level(draw: TaskDraw, size: int) -> ShellTask:
    """Select the lines of a level."""
    lines = _events(draw, size)
    level = draw.pick(sorted({line.level for line in lines}))
    return ShellTask(
        f"Write all lines of app.log that have the level {level} to answer.txt, in the same order.",
        {"app.log": _text(lines)},
        (f"grep {level} app.log > answer.txt",),
        (Lines("answer.txt", tuple(str(line) for line in lines if line.level == level)),),
    )


@FAMILY.template(2, 4)
def _level_of_service(draw: TaskDraw, size: int) -> ShellTask:
    """Count the lines of a service with a level."""
    lines = _events(draw, size)
    chosen = draw.pick(lines)
    count = sum((line.level, line.service) == (chosen.level, chosen.service) for line in lines)
    return ShellTask(
        f"{_LINE.format(name='app.log')} How many lines have the level {chosen.level} and come from the service "
        f"{chosen.service}? Write the number to answer.txt.",
        {"app.log": _text(lines)},
        (f"grep -c ' {chosen.level} \\[{chosen.service}\\]' app.log > answer.txt",),
        (Number("answer.txt", count),),
    )


@FAMILY.template(2, 5)
def _window(draw: TaskDraw, size: int) -> ShellTask:
    """Count the lines of a time window."""
    lines = _events(draw, size)
    first, last = sorted(draw.some(range(len(lines)), 2))
    level = "" if size < 4 else draw.pick(lines[first:last]).level
    start, end = f"{lines[first].when:%Y-%m-%d %H:%M:%S}", f"{lines[last].when:%Y-%m-%d %H:%M:%S}"
    count = sum(level in ("", line.level) for line in lines[first:last])
    clause = f" and have the level {level}" if level else ""
    test = f' && $3 == "{level}"' if level else ""
    command = f'awk \'{{ t = $1 " " $2 }} t >= "{start}" && t < "{end}"{test} {{ n++ }} END {{ print n + 0 }}\' app.log'
    return ShellTask(
        f"{_LINE.format(name='app.log')} Count the lines whose time is at or after {start} and before {end} (the end "
        f"is not included){clause}. Write the number to answer.txt.",
        {"app.log": _text(lines)},
        (f"{command} > answer.txt",),
        (Number("answer.txt", count),),
    )


@FAMILY.template(2, 5)
def _top_clients(draw: TaskDraw, size: int) -> ShellTask:
    """Rank the clients with the most requests."""
    lines, most = _requests(draw, size), draw.number(2, 3 + size)
    counts = Counter(line.client for line in lines)
    ranked = sorted(counts, key=lambda client: (-counts[client], client.encode()))[:most]
    command = f"cut -d' ' -f1 access.log | {RANKED} | head -{most}"
    return ShellTask(
        f"{_REQUEST.format(name='access.log')} Write the {most} clients with the most requests to answer.txt, one a "
        "line: the address, a space, and the number of its requests. Most requests come first; among equal numbers, "
        "addresses are in the order of LC_ALL=C sort.",
        {"access.log": _text(lines)},
        (f"{command} > answer.txt",),
        (Lines("answer.txt", tuple(f"{client} {counts[client]}" for client in ranked)),),
    )


@FAMILY.template(2, 5)
def _slowest(draw: TaskDraw, size: int) -> ShellTask:
    """Find the path of the slowest request."""
    lines = _requests(draw, size)
    times = draw.some(range(1, 9000), len(lines))
    lines = [line._replace(milliseconds=took) for line, took in zip(lines, times, strict=True)]
    status = draw.pick(sorted({line.status for line in lines}))
    chosen = max((line for line in lines if line.status == status), key=lambda line: line.milliseconds)
    command = f"awk '$9 == {status} {{ print $11, $7 }}' access.log | sort -nr | head -1 | cut -d' ' -f2 > answer.txt"
    return ShellTask(
        f"{_REQUEST.format(name='access.log')} Among the requests with status {status}, find the one that took the "
        "longest, and write its path (such as /a/b) to answer.txt.",
        {"access.log": _text(lines)},
        (command,),
        (Line("answer.txt", chosen.path),),
    )


@FAMILY.template(3, 5)
def _bytes_of_paths(draw: TaskDraw, size: int) -> ShellTask:
    """Sum the bytes sent for each path."""
    lines, status = _requests(draw, size), draw.pick((200, 404))
    totals: Counter[str] = Counter()
    for line in lines:
        totals.update({line.path: line.sent} if line.status == status else {})
    command = (
        f"awk '$9 == {status} {{ s[$7] += $10 }} END {{ for (p in s) print p \",\" s[p] }}' access.log | LC_ALL=C sort"
    )
    return ShellTask(
        f"{_REQUEST.format(name='access.log')} For each path that was requested with status {status}, add up the "
        "bytes sent with that status. Write one line for each such path to answer.txt: the path, a comma, the sum; "
        "in the order of LC_ALL=C sort.",
        {"access.log": _text(lines)},
        (f"{command} > answer.txt",),
        (Lines("answer.txt", tuple(sorted(f"{path},{total}" for path, total in totals.items()))),),
    )


@FAMILY.template(3, 5)
def _by_hour(draw: TaskDraw, size: int) -> ShellTask:
    """Count the lines of a level for each hour."""
    lines = _events(draw, size)
    level = draw.pick(sorted({line.level for line in lines}))
    counts = Counter(f"{line.when:%Y-%m-%d %H}" for line in lines if line.level == level)
    return ShellTask(
        f"{_LINE.format(name='app.log')} For each hour in which there is at least one line with the level {level}, "
        "write a line to answer.txt: the date and hour as in 2024-05-31 07, a space, and how many lines with that "
        "level the hour has. Earlier hours come first.",
        {"app.log": _text(lines)},
        (f"grep ' {level} \\[' app.log | cut -c1-13 | sort | uniq -c | awk '{{ print $2, $3, $1 }}' > answer.txt",),
        (Lines("answer.txt", tuple(f"{hour} {counts[hour]}" for hour in sorted(counts))),),
    )


@FAMILY.template(3, 5)
def _rotated(draw: TaskDraw, size: int) -> ShellTask:
    """Count lines of a log and its compressed rotations."""
    lines, service = _events(draw, size), draw.pick(SERVICES)
    lines = [line._replace(service=service) if draw.chance(0.3) else line for line in lines]
    parts = 2 + size // 2
    cuts = [0, *sorted(draw.some(range(1, len(lines)), parts - 1)), len(lines)]
    pieces = [_text(lines[a:b]) for a, b in itertools.pairwise(cuts)]
    files: dict[str, bytes | str] = {
        f"logs/app.log.{parts - 1 - n}.gz": gzipped(piece) for n, piece in enumerate(pieces[:-1])
    }
    files["logs/app.log"] = pieces[-1]
    return ShellTask(
        "The folder logs holds a log: app.log is its latest part, and app.log.1.gz, app.log.2.gz and so on are "
        f"earlier parts, compressed with gzip. Count the lines of the service {service} (that is, with [{service}] in "
        "them) in all parts together, and write the number to answer.txt.",
        files,
        (f"{{ cat logs/app.log; gzip -dc logs/*.gz; }} | grep -c '\\[{service}\\]' > answer.txt",),
        (Number("answer.txt", sum(line.service == service for line in lines)),),
    )


@FAMILY.template(4, 5)
def _still_there(draw: TaskDraw, size: int) -> ShellTask:
    """List the users whose last event is a login."""
    users = [person.lower().replace(" ", ".") for person in draw.people(6 * size)]
    inside: set[str] = set()
    lines = []
    for when in draw.moments(draw.records(size), hours=20):
        user = draw.pick(users)
        inside ^= {user}
        lines.append(f"{when:%Y-%m-%dT%H:%M:%SZ} {'login' if user in inside else 'logout'} {user}")
    return ShellTask(
        "Each line of sessions.log is a time, the word login or logout, and a user. Lines are in order of time. "
        "Write to answer.txt the users who are logged in at the end of the log (their last line is a login), one a "
        "line, in the order of LC_ALL=C sort.",
        {"sessions.log": "".join(f"{line}\n" for line in lines)},
        (
            "awk '{ s[$3] = $2 } END { for (u in s) if (s[u] == \"login\") print u }' sessions.log | LC_ALL=C "
            "sort > answer.txt",
        ),
        (Lines("answer.txt", tuple(sorted(inside))),),
    )


@FAMILY.template(4, 5)
def _longest_gap(draw: TaskDraw, size: int) -> ShellTask:
    """Find the longest time without a line."""
    lines = _events(draw, size)
    gaps = [int((b.when - a.when).total_seconds()) for a, b in itertools.pairwise(lines)]
    program = (
        "from datetime import datetime as d\n"
        "t = [d.fromisoformat(line[:19]) for line in open('app.log')]\n"
        "print(int(max((b - a).total_seconds() for a, b in zip(t, t[1:]))))"
    )
    return ShellTask(
        f"{_LINE.format(name='app.log')} Lines are in order of time. What is the longest time between a line and the "
        "next one? Write it to answer.txt as a whole number of seconds.",
        {"app.log": _text(lines)},
        (f'python3 -c "{program}" > answer.txt',),
        (Number("answer.txt", max(gaps)),),
    )
