"""Shell tasks: equal seeds, distinct tasks, oracles that are accepted and everything else that is not."""

import os
import pickle
import subprocess
import sys
from collections import Counter

import pytest

from rollenv.core.errors import UsageError
from rollenv.envs.shell.checks import Holds, HoldsJson, HoldsTree, Lines, Number, Paths, Table, lines_of, walk
from rollenv.envs.shell.generate import FAMILIES, MIX, generate, split_of
from rollenv.envs.shell.task import SIZES

KINDS = [(family, one.name, size) for family, f in FAMILIES.items() for one in f.templates for size in one.sizes]
#: Each template in one of its sizes, in turn: the integration tests play these.
TEMPLATES = [
    (family, one.name, one.sizes[n % len(one.sizes)])
    for family, f in FAMILIES.items()
    for n, one in enumerate(f.templates)
]
#: One task in so many is played by default.
SAMPLE = [kind for kind in KINDS[::17] if kind[0] != "services"] + [("services", "stop_server", 2)]
ANSWERS = ("answer.txt", "answer.csv", "answer.json")


def name(kind):
    return "-".join(map(str, kind))


def made(kind, seed=0):
    family, template, size = kind
    return generate(family, seed, size, template)


def answer_of(bench):
    """The file with the answer and its contents; None for a task that wants something else."""
    return next(((path, data) for path in ANSWERS if (data := bench.place.read(path)) is not None), None)


def close(task, answer):
    """Contents that are nearly right, for the checks of an answer file."""
    text = answer.decode()
    for check in task.checks:
        if isinstance(check, Number) and check.path in ANSWERS:
            yield from (f"{check.value + 1:g}", f"{check.value - 1:g}", f"{check.value:g}{check.value:g}", f"-{text}")
        elif isinstance(check, Lines | Table) and check.path in ANSWERS:
            lines = lines_of(text)
            yield from ("\n".join(lines[:-1]), "\n".join([*lines, "more"]), text[1:], f"{text.rstrip()}x")
            if isinstance(check, Lines) and check.ordered and len(set(lines)) > 1:
                yield "\n".join(lines[::-1])
        elif isinstance(check, HoldsJson):
            yield from (text.replace("1", "2", 1), "[]", text[:-1], "[" * 100_000)


def spaced(task, answer):
    """The same answer, written a little differently."""
    text = answer.decode()
    yield from (text.rstrip("\n"), text.rstrip("\n") + "\n\n")
    if not any(isinstance(check, Holds) for check in task.checks):
        yield text.replace("\n", "\r\n")
    if any(isinstance(check, Number) for check in task.checks):
        yield f" {text.strip()} \n"
    if any(isinstance(check, Paths) for check in task.checks):
        yield "\n".join(f"./{line}" for line in reversed(text.split()))


def played(kind, seed, bench):
    """All that holds for the end of a task."""
    task = made(kind, seed)
    bench.begin(task)
    assert not task.judge(bench.place).success, "nothing was done"
    bench.act(*task.oracle)
    verdict = task.judge(bench.place)
    assert verdict.success, verdict.why
    assert verdict.partial == 1
    found = answer_of(bench)
    if found is not None and any(getattr(check, "path", "") == found[0] for check in task.checks):
        path, answer = found
        for text in spaced(task, answer):
            bench.machine.files.write(f"/app/{path}", text)
            assert task.judge(bench.place).success, text
        for text in close(task, answer):
            bench.machine.files.write(f"/app/{path}", text)
            assert not task.judge(bench.place).success, text


def spoiled_tree(kind, seed, bench):
    """A tree that is nearly as wanted is wrong."""
    task = made(kind, seed)
    for tree in (check for check in task.checks if isinstance(check, HoldsTree)):
        bench.solve(task)
        path = f"{tree.path}/{sorted(tree.files)[0]}"
        for command in (f"echo x >> {path}", f"rm {path}", f"mkdir {path}", f"touch {tree.path}/other"):
            bench.act(command)
            assert not task.judge(bench.place).success, command


@pytest.mark.combinations
@pytest.mark.parametrize("kind", SAMPLE, ids=name)
def test_oracle_is_accepted_and_what_is_close_to_it_is_not(kind, bench):
    played(kind, 11, bench)


@pytest.mark.integration
@pytest.mark.parametrize("kind", TEMPLATES, ids=name)
def test_every_template(kind, bench):
    played(kind, 0, bench)
    spoiled_tree(kind, 0, bench)


@pytest.mark.parametrize("kind", [("trees", "gather", 2), ("archives", "extract", 1)], ids=name)
def test_a_tree_that_is_nearly_right_is_wrong(kind, bench):
    spoiled_tree(kind, 0, bench)


def test_equal_seeds_give_equal_tasks_in_another_process():
    program = (
        "from rollenv.envs.shell.generate import generate\n"
        "for n in range(150): t = generate('mix', n, n % 5 + 1); print(t.task_id(), t.oracle)"
    )
    here = "".join(f"{t.task_id()} {t.oracle}\n" for t in (generate(MIX, n, n % 5 + 1) for n in range(150)))
    env = os.environ | {"PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo"}
    there = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env, check=True)
    assert there.stdout == here


@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=pytest.mark.integration)])
@pytest.mark.parametrize("size", SIZES)
def test_seeds_give_distinct_tasks(size, count):
    assert len({generate(MIX, seed, size).task_id() for seed in range(count)}) == count


@pytest.mark.parametrize("family", FAMILIES)
def test_a_task_is_data_and_keeps_its_answer_to_itself(family):
    for kind in (kind for kind in KINDS if kind[0] == family):
        task = made(kind)
        assert pickle.loads(pickle.dumps(task.checks)) == task.checks
        assert all(not path.startswith(("/", "..")) for path in task.files)
        told = f"{task.instruction} {task.oracle}"
        for check in task.checks:
            if isinstance(check, Lines) and check.path == "answer.txt":
                assert not any(len(line) > 3 and line in told for line in check.lines), kind
            if isinstance(check, Number) and check.value > 99:
                assert f"{check.value:g}" not in told, kind


def test_splits_share_no_task_and_have_their_shares():
    tasks = [generate(MIX, seed, 1 + seed % 3) for seed in range(600)]
    shares = Counter(map(split_of, tasks))
    assert 450 < shares["train"] < 520
    assert all(30 < shares[split] < 90 for split in ("val", "test"))


class Answered:
    """A place where the answer's file holds a constant, and all else is as it should be."""

    def __init__(self, answer):
        self.answer = answer

    def read(self, path, most=0):
        return self.answer.encode()


def right(task, answer):
    checks = [check for check in task.checks if getattr(check, "path", "") in ANSWERS]
    return bool(checks) and not any(check(Answered(answer)) for check in checks)


@pytest.mark.combinations
@pytest.mark.parametrize("family", FAMILIES)
def test_constant_answers_are_seldom_right(family):
    tasks = [generate(family, seed, 1 + seed % 5) for seed in range(100)]
    assert not any(right(task, answer) for task in tasks for answer in ("", "yes", "no", "/", "answer.txt"))
    for number in range(100):
        assert sum(right(task, str(number)) for task in tasks) <= 6


@pytest.mark.parametrize(
    ("family", "size", "template"),
    [("none", 1, None), ("logs", 0, None), ("logs", 6, None), ("logs", True, None), ("logs", 5, "count_lines")],
)
def test_what_does_not_exist_is_named(family, size, template):
    with pytest.raises(UsageError, match=r"family|size|kind"):
        generate(family, 0, size, template)


_HOSTILE = [
    "rm -rf .git; mkfifo {p}",
    "mkdir {p}; mkfifo {p}/a; ln -s {p} {p}/b",
    "ln -s {p} {p}",
    "ln -s /dev/zero {p}",
    "ln -s /proc/self/mem {p}",
    "truncate -s 1T {p}",
    "head -c 200000 /dev/urandom > {p}",
    "printf '%0500000d' 7 > {p}",
    "mkdir -p {p}/$(printf 'a\\nb') {p}/$(printf '\\377')",
    "for n in $(seq 40); do mkdir -p {p}$n/$n; done; ln -s . {p}",
    "touch {p}; chmod 000 {p} .",
    "printf 1e999 > {p}",
    "printf NaN > {p}",
]


@pytest.mark.combinations
@pytest.mark.parametrize("trick", _HOSTILE)
def test_checks_neither_raise_nor_wait_whatever_is_there(trick, bench):
    kinds = [("logs", "count_lines", 1), ("tables", "to_json", 2), ("archives", "pack_file", 1), ("trees", "gather", 2)]
    kinds += [("permissions", "set_mode", 1), ("git", "set_tag", 2)]
    for kind in kinds:
        task = made(kind)
        paths = {getattr(check, "path", "") for check in task.checks} - {""}
        paths |= {path for check in task.checks for path in getattr(check, "modes", ())}
        bench.begin(task)
        bench.act(*(f"rm -rf {path}; {trick.format(p=path)}" for path in paths or [".git/HEAD"]))
        assert not task.judge(bench.place).success or kind[0] == "permissions"
        bench.act("chmod 755 .")


def test_an_endless_tree_is_wrong_and_not_walked_to_its_end(bench):
    bench.begin(made(("trees", "rename_file", 1)))
    bench.act("mkdir top; cd top; for n in $(seq 2500); do : > $n; done")
    assert walk(bench.place, "top") is None


def test_a_folder_or_a_shell_that_is_gone_is_no_error(bench):
    task = made(("scripting", "say", 1))
    bench.begin(task).act(*task.oracle, "rm -rf /app")
    try:
        assert not task.judge(bench.place).success
    finally:
        bench.machine.run("mkdir -p /app", cwd="/")


def test_a_setup_that_fails_is_no_failure_of_the_agent(bench):
    with pytest.raises(Exception, match="setup"):
        bench.place.prepare({}, "exit 3")


@pytest.mark.integration
def test_a_compressed_file_may_have_parts_and_is_read_to_its_end(bench):
    task = made(("archives", "pack_file", 1))
    bench.begin(task).act("f=$(ls); { head -c 9 $f | gzip; tail -c +10 $f | gzip; } > $f.gz")
    assert task.judge(bench.place).success
    for more in ("printf x | gzip", "gzip < /dev/zero | head -c 99999", "printf garbage", "head -c 9 *.gz"):
        bench.begin(task).act(f"f=$(ls); {{ gzip < $f; {more}; }} > $f.gz")
        assert not task.judge(bench.place).success, more


def test_gits_own_files_are_read_in_any_form_and_its_settings_are_not_obeyed(bench):
    task = made(("git", "merge", 4))
    bench.solve(task).act(
        "git gc -q --aggressive --prune=now", "git pack-refs --all", "echo x > .git/hooks/post-checkout"
    )
    bench.act("git config core.fsmonitor 'touch /app/hooked'", "git config core.hooksPath /app")
    assert not bench.place.listing(".git/objects/aa")
    assert task.judge(bench.place).success
    assert bench.place.look("hooked") is None
    bench.act("f=$(ls .git/objects/pack/*.pack); chmod 644 $f; printf XXXXXXXX | dd of=$f bs=1 seek=20 conv=notrunc")
    assert not task.judge(bench.place).success


def test_an_annotated_tag_is_a_tag(bench):
    task = made(("git", "set_tag", 3))
    bench.begin(task).act(task.oracle[0].replace("git tag ", "git tag -m release "))
    assert bench.machine.run("git cat-file -t $(git tag)", cwd="/app").stdout == "tag\n"
    assert task.judge(bench.place).success


@pytest.mark.combinations
@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (("git", "merge", 3), "git merge -q --squash {b}; git commit -qm x; git branch -q -D {b}"),
        (("git", "merge", 3), "git reset -q --hard {b}; git branch -q -D {b}"),
        (("git", "revert", 3), "git reset -q --hard HEAD~1"),
        (("git", "revert", 3), "git revert --no-edit HEAD HEAD~1"),
        (("git", "commit_change", 2), "git commit -qam Update"),
        (("git", "make_branch", 2), "git branch other"),
        (("git", "cherry_pick", 3), "git merge -q --no-edit $(git branch --format='%(refname:short)' | grep -v main)"),
    ],
    ids=str,
)
def test_a_history_that_is_nearly_right_is_wrong(kind, wrong, bench):
    task = made(kind)
    branch = "$(git branch --format='%(refname:short)' | grep -v main)"
    bench.begin(task).act(wrong.replace("{b}", branch))
    assert not task.judge(bench.place).success


def test_what_an_agent_leaves_in_its_environment_does_not_reach_the_checks(bench):
    task = made(("processes", "start_one", 1))
    fake = "#!/bin/sh\necho '9 S L3Vzci9iaW4vcHl0aG9uMw== cHl0aG9uMwB3b3JrZXIucHkAeA=='\nexit 0\n"
    bench.begin(task)
    bench.machine.files.write_many({f"/app/{tool}": fake for tool in ("bash", "head", "base64", "python3", ".bashrc")})
    bench.act("chmod 755 *; cp * /usr/local/bin/; cp .bashrc ~/; echo 'export PATH=/app' >> /etc/profile")
    assert not task.judge(bench.place).success
    bench.act("rm /usr/local/bin/*", *task.oracle)
    assert task.judge(bench.place).success


@pytest.mark.parametrize(
    "right", ["python3 $PWD/worker.py {n}", "nice python3 -u ./worker.py {n}", "timeout 99 python3 worker.py {n}"]
)
def test_a_process_may_be_started_in_other_ways(right, bench):
    task = made(("processes", "start_one", 1))
    (words,) = (check.words for check in task.checks)
    bench.begin(task).act(f"setsid {right.replace('{n}', words[-1])} > /dev/null 2>&1 &", "sleep 0.2")
    assert task.judge(bench.place).success


@pytest.mark.combinations
@pytest.mark.parametrize(
    "wrong",
    [
        "nohup python3 worker.py {n}x > /dev/null 2>&1 &",
        "for i in 1 2; do nohup python3 worker.py {n} > /dev/null 2>&1 & done",
        "python3 worker.py {n} & kill $!",
        "echo python3 worker.py {n} > answer.txt",
        "nohup tail -f /dev/null worker.py {n} > /dev/null 2>&1 &",
    ],
)
def test_another_process_than_the_wanted_one_is_wrong(wrong, bench):
    task = made(("processes", "start_one", 1))
    (words,) = (check.words for check in task.checks)
    bench.begin(task).act(wrong.replace("{n}", words[-1]), "sleep 0.2")
    assert not task.judge(bench.place).success


@pytest.mark.combinations
@pytest.mark.parametrize(
    "script",
    [
        "kill -9 $PPID", "yes", "cat /dev/zero", "exit 3", "rm -rf $APP", "while :; do :; done", "sleep 1000 & wait",
    ],
)  # fmt: skip
def test_a_script_that_misbehaves_is_wrong(script, bench):
    task = made(("scripting", "say", 1))
    (check,) = task.checks
    path = check.command.split()[1]
    bench.begin(task)
    bench.machine.files.write(f"/app/{path}", f"{script}\n")
    assert not task.judge(bench.place).success
    bench.machine.run("mkdir -p /app", cwd="/")
