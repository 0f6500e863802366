"""Grades an agent's work on a forged task. This file is in the task's ``tests`` folder, beside ``task.json``.

Only the library's source is taken from /app. It is copied into a fresh project of the task's own files, including tests
and ``conftest.py``. Links, compiled files and new ``conftest.py`` files are not copied. Python starts without
environment variables, ``.pth`` files and ``sitecustomize``. As root, the tests run as ``nobody``, who can neither write
the reward nor leave processes behind.

Two controls run beside the tests. With the original library, the FAIL_TO_PASS tests must still fail; and canary tests
with random names must pass or fail as drawn. If either control fails, the results are not trusted, and the reward is 0.

Known gaps: code of the library runs in the process of its tests, so it can find pytest there and change single results;
and an agent that is root can change Python itself so that it misbehaves only in the last run. A separate verifier
container prevents the second.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import shutil
import signal
import stat
import subprocess
import sys
import sysconfig
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any

#: Outcomes of a test, from best to worst; if a test reports several, the worst counts.
OUTCOMES = ("passed", "skipped", "failed", "error")
#: User and group id of ``nobody``.
NOBODY = 65534
#: Maximum size in bytes and number of files that are taken from /app.
_MOST_BYTES, _MOST_FILES = 8 << 20, 20_000
#: Maximum size of the JUnit file, in bytes.
_MOST_JUNIT = 64 << 20


#: No user packages, no ``.pth`` files, no ``sitecustomize``, no modules beside the script, no compiled files.
PYTHON_FLAGS = ("-P", "-s", "-S", "-B")


class Broken(Exception):
    """The tests could not be run, for reasons other than the agent's work. No reward is written."""


def read_junit(text: str, files: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Parse a JUnit file.

    Args:
        files: the test files, relative to the project.

    Returns:
        One of :data:`OUTCOMES` and the failure's message, by node id. The node id of a test file that could not be
        collected is its path.
    """
    modules = {file.removesuffix(".py").replace("/", "."): file for file in files}
    found: dict[str, tuple[str, str]] = {}
    for case in ElementTree.fromstring(text).iter("testcase"):
        name = _node_id(case.get("classname", ""), case.get("name", ""), modules)
        outcome, message = _outcome(case)
        if name not in found or OUTCOMES.index(outcome) > OUTCOMES.index(found[name][0]):
            found[name] = (outcome, message)
    return found


def _node_id(classname: str, name: str, modules: dict[str, str]) -> str:
    if not classname:
        return modules.get(name, name)
    parts = classname.split(".")
    for count in range(len(parts), 0, -1):
        if file := modules.get(".".join(parts[:count])):
            return "::".join([file, *parts[count:], name])
    return f"{classname}::{name}"


def _outcome(case: ElementTree.Element) -> tuple[str, str]:
    for tag, outcome in (("error", "error"), ("failure", "failed"), ("skipped", "skipped")):
        if (found := case.find(tag)) is not None:
            text = found.text or ""
            raised = [line[1:].strip() for line in text.splitlines() if line.startswith("E ")]
            message = found.get("message") or text
            return outcome, "\n".join(raised) if raised and message == "collection failure" else message
    return "passed", ""


def libraries() -> list[str]:
    """Return the folders of this Python's packages, which ``-S`` has excluded."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    here = Path(sys.executable).parent.parent
    folders = [here / "lib" / version / "site-packages"]
    folders += [Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")]
    folders += [Path("/usr/local/lib", version, "dist-packages"), Path("/usr/lib/python3/dist-packages")]
    return [folder for folder in dict.fromkeys(map(str, folders)) if os.path.isdir(folder)]


def assemble(target: Path, project: Path, source: Path, packages: Iterable[str]) -> None:
    """Assemble a project from the task's files and a library's source.

    Args:
        project: the task's files: tests, and everything but the library.
        source: untrusted folder with the library.
        packages: the library's folders and modules, relative to both.
    """
    target.mkdir()
    count = 0
    for package in packages:
        for path in _own_files(source, package):
            relative = path.relative_to(source)
            given = project / relative
            count += 1
            if count > _MOST_FILES or path.lstat().st_size > _MOST_BYTES:
                continue
            if path.name == "conftest.py" and not given.exists():
                continue
            (target / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target / relative)
    shutil.copytree(project, target, dirs_exist_ok=True)


def _own_files(source: Path, package: str) -> list[Path]:
    """List regular files below folders that are not links."""
    parts = Path(package).parts
    if any((source / Path(*parts[:n])).is_symlink() for n in range(1, len(parts) + 1)):
        return []
    top = source / package
    if top.is_file():
        return [top]
    found = []
    for folder, folders, names in os.walk(top):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        paths = [Path(folder, name) for name in sorted(names) if not name.endswith((".pyc", ".pth"))]
        found += [path for path in paths if stat.S_ISREG(path.lstat().st_mode)]
    return found


class Canary:
    """Tests with unpredictable names, half of which must fail."""

    def __init__(self, tree: Path):
        name = f"t{secrets.token_hex(8)}"
        self.file = f"{name}/test_{name}.py"
        outcomes = [random.SystemRandom().random() < 0.5 for _ in range(6)]
        self.wanted = {f"{self.file}::test_{n}_{name}": ok for n, ok in enumerate([True, False, *outcomes])}
        numbered = enumerate(self.wanted.values())
        lines = [f"def test_{n}_{name}():\n    assert {n} == {n if ok else n + 1}\n" for n, ok in numbered]
        (tree / self.file).parent.mkdir()
        (tree / self.file).write_text("\n\n".join(lines), encoding="utf-8")

    def honest(self, passed: set[str]) -> bool:
        """Return whether exactly the right ones passed."""
        return all((name in passed) == ok for name, ok in self.wanted.items())


class Tests:
    """Runs tests in folders below a work folder."""

    def __init__(self, here: Path, task: dict[str, Any], work: Path, folders: list[str]):
        self.here, self.task, self.work, self.libraries = here, task, work, folders
        self.user = self._user()
        self.output = ""

    def _user(self) -> int | None:
        """Return the id of ``nobody``, if this process is root and that user can run the tests."""
        if os.geteuid() != 0:
            return None
        probe = f"import sys; sys.path += {self.libraries!r}; import pytest"
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            words = [sys.executable, "-I", "-S", "-c", probe]
            done = subprocess.run(words, user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, timeout=60)
            return NOBODY if done.returncode == 0 else None
        return None

    def passed(self, tree: Path, files: list[str], seconds: float) -> set[str] | None:
        """Return the node ids that pass in a project; None if the run had no result."""
        out = Path(tempfile.mkdtemp(dir=self.work))
        settings = {"root": str(tree), "paths": self.task["paths"], "libraries": self.libraries, "files": files}
        settings["junit"] = str(out / "junit.xml")
        (out / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
        self._give(tree, out)
        with tempfile.TemporaryFile(dir=self.work) as log:
            self._run(out, seconds, log)
            log.seek(0)
            self.output = log.read(1 << 20).decode(errors="replace")[-500:].strip()
        try:
            junit = out / "junit.xml"
            if not stat.S_ISREG(junit.lstat().st_mode) or junit.lstat().st_size > _MOST_JUNIT:  # a pipe, say
                return None
            outcomes = read_junit(junit.read_text(encoding="utf-8"), files)
        except (OSError, ElementTree.ParseError, UnicodeError):
            return None
        return {name for name, (outcome, _) in outcomes.items() if outcome == "passed"}

    def _give(self, *folders: Path) -> None:
        if self.user is None:
            return
        os.chmod(self.work, 0o711)
        for top in folders:
            for folder, _, names in os.walk(top):
                for path in [folder, *(os.path.join(folder, name) for name in names)]:
                    os.chown(path, NOBODY, NOBODY, follow_symlinks=False)

    def _run(self, out: Path, seconds: float, log: IO[bytes]) -> None:
        who: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if self.user is not None else {}
        runner = shutil.copyfile(self.here / "run_tests.py", out / "run_tests.py")
        words = [sys.executable, *PYTHON_FLAGS, str(runner), str(out / "settings.json")]
        env = {"HOME": str(out), "TMPDIR": str(out), "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
        env |= {"TZ": "UTC", "PYTHONHASHSEED": "0"}
        child = subprocess.Popen(
            words, cwd=out, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, **who
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(seconds)
        with contextlib.suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        self._sweep(who)

    def _sweep(self, who: dict[str, Any]) -> None:
        """Kill all processes of ``nobody``."""
        if who:
            subprocess.run([sys.executable, "-I", "-S", "-c", "import os; os.kill(-1, 9)"], capture_output=True, **who)


def grade(here: Path, app: Path, folders: list[str]) -> dict[str, float]:
    """Return the reward and the shares of FAIL_TO_PASS and PASS_TO_PASS that pass.

    Args:
        here: the task's ``tests`` folder.
        app: the agent's working folder.

    Raises:
        Broken: the tests cannot be run here.
    """
    task = json.loads((here / "task.json").read_text(encoding="utf-8"))
    work = Path(tempfile.mkdtemp(prefix="grade-")).resolve()
    try:
        assemble(work / "app", here / "project", app, task["packages"])
        assemble(work / "given", here / "project", here / "given", task["packages"])
        tests = Tests(here, task, work, folders)
        still = tests.passed(work / "given", task["control_files"], task["seconds"])
        if still is None:
            raise Broken(f"the tests do not run with the library as it was given: {tests.output}")
        canary = Canary(work / "app")
        passed = tests.passed(work / "app", [*task["files"], canary.file], task["seconds"]) or set()
        paths = [work / "app" / one for one in task["packages"]]
        if not all(path.is_file() or (path / "__init__.py").is_file() for path in paths):
            passed = set()  # another copy of the library was tested
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return _scores(task, passed, believed=not still & set(task["FAIL_TO_PASS"]) and canary.honest(passed))


def _scores(task: dict[str, Any], passed: set[str], believed: bool) -> dict[str, float]:
    scores = {}
    for name in ("FAIL_TO_PASS", "PASS_TO_PASS"):
        failing = [test for test in task[name] if test not in passed]
        scores[name.lower()] = 1 - len(failing) / max(len(task[name]), 1) if believed else 0.0
        for test in failing[:20]:
            print(f"{name} does not pass: {test}")
    if passed and not believed:
        print("the controls did not end as they must: the reward is 0")
    return {"reward": float(all(score == 1 for score in scores.values())), **scores}


def write_reward(folder: Path, scores: dict[str, float]) -> None:
    """Write ``reward.json`` and ``reward.txt``, replacing anything at these paths."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("reward.json", json.dumps(scores)), ("reward.txt", f"{scores['reward']:g}")):
        with contextlib.suppress(FileNotFoundError):
            (folder / name).unlink()
        with open(folder / name, "x", encoding="utf-8") as file:
            file.write(text + "\n")


def main(arguments: list[str], app: str = "/app", logs: str = "/logs/verifier") -> int:
    """Grade with :func:`report`; the arguments are folders of libraries, besides this Python's own."""
    here = Path(__file__).resolve().parent
    return report(lambda: grade(here, Path(app), [*arguments, *libraries()]), Path(logs))


def report(grading: Callable[[], dict[str, float]], logs: Path) -> int:
    """Grade, write and print the reward.

    Returns:
        The exit code: 3 if the tests cannot be run, and no reward is written.
    """
    try:
        scores = grading()
    except Broken as error:
        print(f"not graded: {error}", file=sys.stderr)
        return 3
    write_reward(logs, scores)
    print(json.dumps(scores))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
