"""Git repositories: histories, lost files, branches, merges, reverts."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from rollenv.envs.shell.checks import Holds, Line, Number
from rollenv.envs.shell.draw import TaskDraw
from rollenv.envs.shell.git_objects import (
    CheckedOut,
    Commit,
    CommitName,
    LastSubject,
    NoRef,
    Repository,
    Tip,
    line_of_commits,
)
from rollenv.envs.shell.task import Check, Family, ShellTask

FAMILY = Family("git", "git repositories: histories, lost files, branches, merges, reverts")
_RESET = "git reset -q --hard"
_VERBS = ("Add", "Fix", "Update", "Improve", "Check", "Rename", "Describe", "Shorten")


class History:
    """A linear history of commits with small changes."""

    def __init__(self, draw: TaskDraw, size: int, count: int = 0):
        self.draw, self.size = draw, size
        self.names = [f"{name}.txt" for name in draw.words(1 + size)]
        self.people = draw.people(1 + size)
        self.commits: list[Commit] = []
        self.when = draw.moment()
        files = {name: draw.text(draw.number(3, 6)) for name in self.names}
        self.add(files, "Begin")
        for _ in range(count or draw.number(*((3, 12), (5, 9), (8, 14), (14, 24), (24, 40))[size - 1])):
            name = draw.pick(self.names)
            files = files | {name: files[name] + f"{draw.sentence()} {draw.token(4)}\n"}
            self.add(files, f"{draw.pick(_VERBS)} {' '.join(draw.words(2))} {draw.token(3)}")

    def add(self, files: dict[str, str], message: str) -> None:
        """Add a commit by one of the authors, some hours later."""
        self.when += datetime.timedelta(minutes=self.draw.number(10, 3000))
        self.commits.append(Commit(files, message, self.draw.pick(self.people), self.when))

    @property
    def files(self) -> dict[str, str]:
        """Return all files after the last commit."""
        return dict(self.commits[-1].files)

    def repository(self) -> tuple[Repository, list[str]]:
        """Make a repository with the branch main."""
        made = Repository()
        names = line_of_commits(made, self.commits)
        made.refs["refs/heads/main"] = names[-1]
        return made, names


def task(made: Repository, request: str, oracle: Sequence[str], *checks: Check) -> ShellTask:
    """Make a task in a repository in the working folder; the request follows a sentence on the repository."""
    request = f"The current folder is a git repository. {request}"
    return ShellTask(request, made.written(), tuple(oracle), checks, _RESET)


@FAMILY.template(1, 2)
def _last_subject(draw: TaskDraw, size: int) -> ShellTask:
    """Find the message of the last commit."""
    history = History(draw, size)
    made, _ = history.repository()
    return task(
        made,
        "Write the message of the last commit to answer.txt.",
        ("git log -1 --format=%s > answer.txt",),
        Line("answer.txt", history.commits[-1].message),
    )


@FAMILY.template(1, 2)
def _count_commits(draw: TaskDraw, size: int) -> ShellTask:
    """Count the commits of the branch."""
    history = History(draw, size, draw.number(3, 20))
    made, names = history.repository()
    return task(
        made,
        "How many commits does the branch main have? Write the number to answer.txt.",
        ("git rev-list --count main > answer.txt",),
        Number("answer.txt", len(names)),
    )


@FAMILY.template(1, 2)
def _make_branch(draw: TaskDraw, size: int) -> ShellTask:
    """Create a branch at the last commit."""
    made, names = History(draw, size).repository()
    branch = f"{draw.word()}-{draw.word()}"
    switch = size > 1
    return task(
        made,
        f"Create a branch named {branch} at the last commit of main"
        + (", and check it out." if switch else ". Stay on main."),
        (f"git switch -q -c {branch}" if switch else f"git branch {branch}",),
        Tip(f"refs/heads/{branch}", commit=names[-1]),
        CheckedOut(branch if switch else "main"),
    )


@FAMILY.template(1, 3)
def _commit_change(draw: TaskDraw, size: int) -> ShellTask:
    """Commit the changes in the working folder."""
    history = History(draw, size)
    made, names = history.repository()
    changed = draw.some(history.names, size)
    after = history.files | {name: history.files[name] + f"{draw.sentence()}\n" for name in changed}
    if size > 1:
        after[f"{draw.word()}-new.txt"] = draw.text(2)
    message = f"{draw.pick(_VERBS)} the {draw.word()}"
    dirty = {name: text for name, text in after.items() if history.files.get(name) != text}
    clause = f"The file {changed[0]} was changed." if size == 1 else "Some files were changed, and one is new."
    made_task = task(
        made,
        f"{clause} Commit {'the change' if size == 1 else 'all of this'} on main in one commit with the message: "
        f"{message}",
        (f'git add -A && git commit -q -m "{message}"',),
        Tip("refs/heads/main", Repository().tree(after), (names[-1],)),
        LastSubject("refs/heads/main", message),
    )
    setup = [_RESET, *(f"cp .git/{n}.new {name} && rm .git/{n}.new" for n, name in enumerate(dirty))]
    files = dict(made_task.files) | {f".git/{n}.new": text for n, text in enumerate(dirty.values())}
    return ShellTask(made_task.instruction, files, made_task.oracle, made_task.checks, "\n".join(setup))


@FAMILY.template(2, 4)
def _restore_deleted(draw: TaskDraw, size: int) -> ShellTask:
    """Restore a file that a commit deleted."""
    history = History(draw, size)
    name, text = f"{draw.word()}-plan.txt", draw.text(3 + size)
    first = draw.number(1, len(history.commits) - 2)
    last = draw.number(first + 1, len(history.commits) - 1)
    for n in range(first, last):
        one = history.commits[n]
        old = draw.text(3) if n + 1 < last else text
        history.commits[n] = Commit({**one.files, name: old}, one.message, one.author, one.when)
    made, _ = history.repository()
    return task(
        made,
        f"The file {name} was deleted in an earlier commit. Put it back into the folder with the contents that it had "
        "right before it was deleted. (No new commit is needed.)",
        (f"git show $(git rev-list -1 HEAD -- {name})~1:{name} > {name}",),
        Holds(name, text.encode()),
    )


@FAMILY.template(2, 5)
def _introduced(draw: TaskDraw, size: int) -> ShellTask:
    """Find the commit that introduced a line."""
    history = History(draw, size)
    made, names = history.repository()
    n = draw.number(1, len(names) - 1)
    before, after = history.commits[n - 1].files, history.commits[n].files
    name = next(name for name in after if after[name] != before.get(name))
    line = after[name].removeprefix(before[name]).strip()
    return task(
        made,
        f"Which commit added this line to {name}?\n{line}\nWrite the hash of the commit (whole, or its first 7 digits "
        "or more) to answer.txt.",
        (f"git log -S'{line}' --format=%H -- {name} | tail -1 > answer.txt",),
        CommitName("answer.txt", names[n]),
    )


@FAMILY.template(2, 5)
def _line_author(draw: TaskDraw, size: int) -> ShellTask:
    """Find the author of a line."""
    history = History(draw, size)
    made, names = history.repository()
    n = draw.number(1, len(names) - 1)
    before, after = history.commits[n - 1].files, history.commits[n].files
    name = next(name for name in after if after[name] != before.get(name))
    number = after[name].count("\n")
    return task(
        made,
        f"Who (first and last name of the author) last changed line {number} of {name}? Write the name to answer.txt.",
        (f"git blame --porcelain -L{number},{number} {name} | sed -n 's/^author //p' > answer.txt",),
        Line("answer.txt", history.commits[n].author),
    )


@FAMILY.template(2, 4)
def _busiest(draw: TaskDraw, size: int) -> ShellTask:
    """Find the author of the most commits."""
    history = History(draw, size)
    chosen = draw.pick(history.people)
    counts = {who: sum(one.author == who for one in history.commits) for who in history.people}
    while counts[chosen] <= max(number for who, number in counts.items() if who != chosen):
        history.add(history.files | {history.names[0]: draw.text(4)}, f"Update {draw.word()} {draw.token(3)}")
        last = history.commits[-1]
        history.commits[-1] = Commit(last.files, last.message, chosen, last.when)
        counts[chosen] += 1
    made, _ = history.repository()
    return task(
        made,
        "Which author has the most commits on the branch main? Write the first and last name to answer.txt.",
        ("git log --format=%an | sort | uniq -c | sort -nr | head -1 | sed 's/^ *[0-9]* //' > answer.txt",),
        Line("answer.txt", chosen),
    )


@FAMILY.template(2, 4)
def _set_tag(draw: TaskDraw, size: int) -> ShellTask:
    """Tag the commit with a message."""
    history = History(draw, size)
    made, names = history.repository()
    n, tag = draw.number(1, len(names) - 2), f"v{draw.number(0, 9)}.{draw.number(0, 30)}"
    return task(
        made,
        f"Create a tag named {tag} at the commit with the message: {history.commits[n].message}",
        (f"git tag {tag} $(git log -F --grep='{history.commits[n].message}' --format=%H)",),
        Tip(f"refs/tags/{tag}", commit=names[n]),
    )


@FAMILY.template(3, 5)
def _revert(draw: TaskDraw, size: int) -> ShellTask:
    """Undo a commit with a new one."""
    history = History(draw, size)
    n = draw.number(1, len(history.commits) - 1)
    one, extra = history.commits[n], f"{draw.word()}-{draw.token(3)}.txt"
    for m in range(n, len(history.commits)):  # the commit now only adds a file, so that reverting it never conflicts
        now = history.commits[m]
        files = {**history.commits[m].files, extra: "draft\n"}
        files = files if m > n else {**history.commits[n - 1].files, extra: "draft\n"}
        history.commits[m] = Commit(files, now.message, now.author, now.when)
    made, names = history.repository()
    after = {name: text for name, text in history.files.items() if name != extra}
    return task(
        made,
        f"Undo the commit with the message '{one.message}' on main by a new commit (as git revert does). Keep all "
        "other commits; do not rewrite the history.",
        (f"git revert --no-edit $(git log -F --grep='{one.message}' --format=%H)",),
        Tip("refs/heads/main", Repository().tree(after), (names[-1],)),
    )


def _forked(draw: TaskDraw, size: int, branch: str, clash: bool) -> tuple[Repository, list[str], str, dict[str, str]]:
    """Make a branch beside main that changes one file, which main changes too if they clash.

    Returns:
        The repository, main's commits, the branch's last commit, and the merged files (with the branch's version of
        the file in conflict).
    """
    history = History(draw, size)
    made, names = history.repository()
    fork = len(names) - 1
    name, other = history.names[0], history.names[1]
    base = history.files
    theirs = base | {name: base[name].replace("\n", f" {draw.word()}\n", 1), f"{branch}.txt": draw.text(2)}
    ours = base | {(name if clash else other): base[name if clash else other].replace("\n", f" {draw.token(5)}\n", 1)}
    later = history.when + datetime.timedelta(hours=3)
    tip = made.commit(Commit(theirs, f"Work on {branch}", history.people[0], later, (names[fork],)))
    names.append(made.commit(Commit(ours, f"Go on with {other}", history.people[1], later, (names[fork],))))
    made.refs |= {"refs/heads/main": names[-1], f"refs/heads/{branch}": tip}
    return made, names, tip, ours | {k: v for k, v in theirs.items() if base.get(k) != v}


@FAMILY.template(3, 5)
def _merge(draw: TaskDraw, size: int) -> ShellTask:
    """Merge a branch, and resolve its conflict as the request says."""
    branch, clash = draw.word(), size > 3
    made, names, tip, after = _forked(draw, size, branch, clash)
    clause = f" Where both sides changed the same line, take the version of {branch}." if clash else ""
    return task(
        made,
        f"Merge the branch {branch} into main with a merge commit.{clause} Then delete the branch {branch}.",
        (f"git merge -q --no-edit {'-X theirs ' if clash else ''}{branch} && git branch -q -d {branch}",),
        Tip("refs/heads/main", Repository().tree(after), (names[-1], tip)),
        NoRef(f"refs/heads/{branch}"),
    )


@FAMILY.template(3, 5)
def _cherry_pick(draw: TaskDraw, size: int) -> ShellTask:
    """Take one commit of another branch."""
    branch = draw.word()
    made, names, tip, after = _forked(draw, size, branch, False)
    extra = Commit({**after, f"{draw.token(6)}.txt": "more\n"}, "More", draw.person(), draw.moment(), (tip,))
    last = made.commit(extra)
    made.refs[f"refs/heads/{branch}"] = last
    return task(
        made,
        f"Take over only the commit 'Work on {branch}' of the branch {branch} to main, as one new commit on top of "
        f"main (as git cherry-pick does). Do not take over later commits of {branch}, and leave that branch as it is.",
        (f"git cherry-pick $(git log {branch} -F --grep='Work on {branch}' --format=%H)",),
        Tip("refs/heads/main", Repository().tree(after), (names[-1],)),
        Tip(f"refs/heads/{branch}", commit=last),
    )


@FAMILY.template(3, 5)
def _old_version(draw: TaskDraw, size: int) -> ShellTask:
    """Find the version of a file at a time."""
    history = History(draw, size)
    name = history.names[0]
    n = draw.number(1, len(history.commits) - 2)
    when = history.commits[n].when + (history.commits[n + 1].when - history.commits[n].when) / 2
    when = when.replace(second=0)
    made, _ = history.repository()
    return task(
        made,
        f"Write the contents that {name} had on the branch main at {when:%Y-%m-%d %H:%M} UTC, by the dates of the "
        "commits, to answer.txt.",
        (f"git show $(git rev-list -1 --before='{when:%Y-%m-%dT%H:%M:%SZ}' main):{name} > answer.txt",),
        Holds("answer.txt", history.commits[n].files[name].encode()),
    )


@FAMILY.template(4, 5)
def _recover_branch(draw: TaskDraw, size: int) -> ShellTask:
    """Recover a commit that is on no branch."""
    branch = draw.word()
    made, _, tip, _ = _forked(draw, size, branch, True)
    del made.refs[f"refs/heads/{branch}"]
    return task(
        made,
        f"The branch {branch} was deleted by mistake, but its last commit, with the message 'Work on {branch}', is "
        "still in the repository as an object that no branch leads to. Create the branch again at that commit.",
        (
            "for c in $(git fsck --no-reflogs --lost-found 2>/dev/null | sed -n 's/^dangling commit //p'); do "
            f"git log -1 --format=%s $c | grep -q 'Work on {branch}' && git branch {branch} $c; done",
        ),
        Tip(f"refs/heads/{branch}", commit=tip),
    )
