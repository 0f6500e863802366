"""Processes: stop the right one, start a lasting one, inspect one."""

from __future__ import annotations

from rollenv.envs.shell.checks import Line, Number
from rollenv.envs.shell.draw import TaskDraw, listed
from rollenv.envs.shell.running import Runs
from rollenv.envs.shell.task import Family, ShellTask

FAMILY = Family("processes", "processes: end the right one, start one that stays, answer about one that runs")
_WORKER = "import signal\n\nwhile True:\n    signal.pause()\n"
_SUPERVISOR = """import subprocess, sys, time

while True:
    worker = subprocess.Popen([sys.executable, "worker.py", *sys.argv[1:]], stdin=subprocess.DEVNULL)
    worker.wait()
    time.sleep(0.2)
"""
_REPORTER = """import pathlib, signal, sys

value = sys.stdin.readline().strip()
signal.signal(signal.SIGUSR1, lambda *_: pathlib.Path(sys.argv[1] + ".out").write_text(value + "\\n"))
pathlib.Path(sys.argv[1] + ".ready").touch()
while True:
    signal.pause()
"""
#: Shell function that starts a command in the background and waits for its exec.
_START = """start() {
    nohup "$@" > /dev/null 2>&1 < /dev/null &
    until [ "$(tr '\\0' ' ' < /proc/$!/cmdline)" = "$* " ]; do sleep 0.02; done
}
"""


def kill_by(pattern: str, signal: str = "TERM") -> str:
    """Return a command that signals every process whose command line matches a pattern of grep."""
    found = f"grep -alz -- '^[{pattern[0]}]{pattern[1:]}$' /proc/[0-9]*/cmdline 2>/dev/null"
    return f"for p in $({found}); do p=${{p#/proc/}}; kill -{signal} ${{p%/cmdline}}; done"


def _workers(names: list[str]) -> str:
    return _START + "\n".join(f"start python3 worker.py {name}" for name in names)


def _until_workers(count: int) -> str:
    found = "grep -alz '^[w]orker.py$' /proc/[0-9]*/cmdline 2>/dev/null | wc -l"
    return f"\nuntil [ $({found}) -ge {count} ]; do sleep 0.05; done"


def _is_running(name: str, count: int = 1) -> Runs:
    return Runs(("worker.py", name), count)


@FAMILY.template(1, 2)
def _stop_by_number(draw: TaskDraw, size: int) -> ShellTask:
    """Stop the process whose id is in a file."""
    names = draw.labels(size)
    setup = _START + "\n".join(f"start python3 worker.py {name}; echo $! > {name}.pid" for name in names)
    gone, *others = names
    clause = f" Another process, 'python3 worker.py {others[0]}', must keep running." if others else ""
    return ShellTask(
        f"A process is running in the background; its process id is in the file {gone}.pid. Stop this process.{clause}",
        {"worker.py": _WORKER},
        (f"kill $(cat {gone}.pid)",),
        (_is_running(gone, 0), *map(_is_running, others)),
        setup,
    )


@FAMILY.template(1, 3)
def _start_one(draw: TaskDraw, size: int) -> ShellTask:
    """Start a process that keeps running."""
    names = draw.labels(size)
    clause = listed([f"'python3 worker.py {name}'" for name in names])
    commands = tuple(f"nohup python3 worker.py {name} > /dev/null 2>&1 &" for name in names)
    return ShellTask(
        f"Start {clause} in the background, {'once' if size == 1 else 'each of them once'}, so that "
        f"{'it keeps' if size == 1 else 'they keep'} running.",
        {"worker.py": _WORKER},
        ("\n".join(commands),),
        tuple(map(_is_running, names)),
    )


@FAMILY.template(2, 5)
def _stop_by_argument(draw: TaskDraw, size: int) -> ShellTask:
    """Stop the workers of some queues, and no others."""
    queues = draw.labels(2 + size)
    gone, kept = queues[: max(1, size - 2)], queues[max(1, size - 2) :]
    kept += [f"{gone[0]}s"]  # has the other's name as a prefix
    setup = _START + "\n".join(f"start python3 worker.py --queue {name}" for name in draw.mixed(gone + kept))
    return ShellTask(
        "Several worker processes are running; the last word of each command line is the name of its queue. Stop the "
        f"workers of these queues: {', '.join(gone)}. Names have to match exactly. All other workers must keep "
        "running; do not restart them.",
        {"worker.py": _WORKER},
        tuple(kill_by(name) for name in gone),
        tuple(Runs(("--queue", name), int(name in kept)) for name in gone + kept),
        setup,
    )


@FAMILY.template(2, 5)
def _environment(draw: TaskDraw, size: int) -> ShellTask:
    """Find a variable in the environment of a process."""
    names, tokens = draw.labels(size), [draw.token() for _ in range(size)]
    variable = f"{draw.word().upper()}_KEY"
    setup = _START + "\n".join(
        f"export {variable}={token}; start python3 worker.py {name}" for name, token in zip(names, tokens, strict=True)
    )
    return ShellTask(
        f"The process 'python3 worker.py {names[0]}' is running. Which value does the variable {variable} have in its "
        "environment? Write the value to answer.txt.",
        {"worker.py": _WORKER},
        (
            f"p=$(grep -alz '^[{names[0][0]}]{names[0][1:]}$' /proc/[0-9]*/cmdline 2>/dev/null); "
            f"tr '\\0' '\\n' < ${{p%cmdline}}environ | sed -n 's/^{variable}=//p' > answer.txt",
        ),
        (Line("answer.txt", tokens[0]),),
        setup + f"\nunset {variable}",
    )


@FAMILY.template(2, 4)
def _count_workers(draw: TaskDraw, size: int) -> ShellTask:
    """Count the processes that run a program."""
    word = draw.label()
    count, others = draw.number(2, 4 + size), draw.number(1, 3)
    setup = _START + f"for n in $(seq {count}); do start python3 {word}.py $n; done\n"
    setup += f"for n in $(seq {others}); do start python3 {word}s.py $n; done"
    return ShellTask(
        f"How many processes are running whose command is python3 {word}.py and an argument? Write the number to "
        "answer.txt.",
        {f"{word}.py": _WORKER, f"{word}s.py": _WORKER},
        (f"grep -alz '^[{word[0]}]{word[1:]}[.]py$' /proc/[0-9]*/cmdline 2>/dev/null | wc -l > answer.txt",),
        (Number("answer.txt", count),),
        setup,
    )


@FAMILY.template(2, 5)
def _working_folder(draw: TaskDraw, size: int) -> ShellTask:
    """Find the working folder of a process."""
    folders, names = draw.topics(size + 1), draw.labels(size + 1)
    setup = _START + "\n".join(
        f"mkdir {folder}; cd {folder}; start python3 ../worker.py {name}; cd .."
        for folder, name in zip(folders, names, strict=True)
    )
    return ShellTask(
        f"The process 'python3 ../worker.py {names[0]}' is running in one of the folders here. Write the name of that "
        "folder (its working directory, without the folders above it) to answer.txt.",
        {"worker.py": _WORKER},
        (
            f"p=$(grep -alz '^[{names[0][0]}]{names[0][1:]}$' /proc/[0-9]*/cmdline 2>/dev/null); "
            "basename $(readlink ${p%cmdline}cwd) > answer.txt",
        ),
        (Line("answer.txt", folders[0]),),
        setup,
    )


@FAMILY.template(3, 5)
def _supervised(draw: TaskDraw, size: int) -> ShellTask:
    """Stop a process that another one restarts."""
    gone, *kept = draw.labels(size - 1)
    setup = _START + "\n".join(f"start python3 supervisor.py {name}" for name in (gone, *kept))
    setup += _until_workers(size - 1)
    clause = f" The workers and the supervisors of {listed(kept)} must keep running." if kept else ""
    supervisor = f"grep -alz '^[s]upervisor.py$' /proc/[0-9]*/cmdline 2>/dev/null | xargs grep -lz '^{gone}$'"
    return ShellTask(
        f"Each 'worker.py NAME' is started again by a 'supervisor.py NAME' when it ends. Stop worker.py {gone} for "
        f"good.{clause}",
        {"worker.py": _WORKER, "supervisor.py": _SUPERVISOR},
        (
            f"p=$({supervisor}); p=${{p#/proc/}}; kill ${{p%/cmdline}}",
            f"for p in $(grep -alz '^[w]orker.py$' /proc/[0-9]*/cmdline 2>/dev/null | xargs grep -lz '^{gone}$'); do "
            "p=${p#/proc/}; kill ${p%/cmdline}; done",
        ),
        (
            _is_running(gone, 0),
            Runs(("supervisor.py", gone), 0),
            *(Runs((program, name), 1) for name in kept for program in ("supervisor.py", "worker.py")),
        ),
        setup,
    )


@FAMILY.template(3, 5)
def _signal_one(draw: TaskDraw, size: int) -> ShellTask:
    """Make a process write its secret to a file by a signal."""
    names, values = draw.labels(size - 1), [draw.token() for _ in range(size - 1)]
    setup = "\n".join(
        f"echo {value} > {name}.in; nohup python3 reporter.py {name} < {name}.in > /dev/null 2>&1 &\n"
        f"until [ -e {name}.ready ]; do sleep 0.02; done; rm {name}.in {name}.ready"
        for name, value in zip(names, values, strict=True)
    )
    return ShellTask(
        f"The process 'python3 reporter.py {names[0]}' is running. When it receives the signal USR1, it writes a "
        f"value to the file {names[0]}.out. Write that value to answer.txt. The process must keep running.",
        {"reporter.py": _REPORTER},
        (kill_by(names[0], "USR1"), f"until [ -s {names[0]}.out ]; do sleep 0.1; done; cp {names[0]}.out answer.txt"),
        (Line("answer.txt", values[0]), Runs(("reporter.py", names[0]), 1)),
        setup,
    )


@FAMILY.template(3, 5)
def _parents(draw: TaskDraw, size: int) -> ShellTask:
    """Find the parent of a process."""
    names = draw.labels(size)
    setup = _START + "\n".join(f"start python3 supervisor.py {name}" for name in names) + _until_workers(size)
    return ShellTask(
        f"The process 'python3 worker.py {names[0]}' (python3 may be shown with its whole path) was started by "
        "another process. Stop that parent process and let the worker itself go on running. Leave all other "
        "processes as they are.",
        {"worker.py": _WORKER, "supervisor.py": _SUPERVISOR},
        (
            f"p=$(grep -alz '^[w]orker.py$' /proc/[0-9]*/cmdline 2>/dev/null | xargs grep -lz '^{names[0]}$'); "
            "kill $(awk '/^PPid:/ { print $2 }' ${p%cmdline}status)",
        ),
        (
            Runs(("supervisor.py", names[0]), 0),
            _is_running(names[0]),
            *(Runs((program, name), 1) for name in names[1:] for program in ("supervisor.py", "worker.py")),
        ),
        setup,
    )
