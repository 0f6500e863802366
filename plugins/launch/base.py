"""The base of launchers: a run's recipe becomes scripts in its folder, which are submitted and followed."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field, model_validator

from rollenv.cli.common import console, error_console
from rollenv.core.errors import RollenvError, UsageError
from rollenv.rollout.workers.factory import workers_of
from rollenv.trainers.config import TrainConfig, differences
from rollenv.trainers.config.launch import Launcher
from rollenv.trainers.config.own import own_functions
from rollenv.trainers.config.section import HomePath
from rollenv.trainers.run_dir import LAUNCHED, RunDirError, folder_name, latest, next_free

#: Seconds between two looks at a job.
LOOK_EVERY = float(os.environ.get("ROLLENV_LAUNCH_POLL", "5"))

_FIELD = re.compile(r"\{\{(\w+)\}\}")

Variable = Annotated[str, Field(pattern="^[A-Za-z_][A-Za-z0-9_]*$")]
#: Without the characters that YAML changes or refuses.
Text = Annotated[str, Field(pattern=r"^[^\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]*$")]


class LaunchFailed(RollenvError):
    """A job could not be submitted, or failed."""


@dataclass(frozen=True)
class Job:
    """A run for other machines: its folder here and that of logs, its name of letters, digits and hyphens, the script
    of each machine, whether it continues, and the texts of all files by name, the one that is submitted first.
    """

    path: Path
    logs: Path
    name: str
    node: str
    resumed: bool = False
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def script(self) -> Path:
        """The file that is submitted."""
        return self.path / LAUNCHED / next(iter(self.files))

    def make_folders(self) -> None:
        """Make the folders of scripts and logs."""
        try:
            self.script.parent.mkdir(parents=True, exist_ok=True)
            self.logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunDirError(f"cannot make the folders of {self.path}: {error}") from error

    def write(self) -> None:
        """Write the files, for this user alone; a shell that runs an older one keeps it."""
        for name, text in self.files.items():
            partial = self.script.with_name(f"{name}.partial")
            partial.touch(0o600)
            partial.write_text(text, encoding="utf-8")
            partial.replace(self.script.with_name(name))


class BaseLauncher(Launcher):
    """Keys of all launchers. ``rollenv train RECIPE`` writes a script, submits it and follows the job."""

    #: Keys that this launcher cannot serve, and why.
    unserved: ClassVar[Mapping[str, str]] = {}
    #: Lines of shell that set RANK and HEAD on a machine; ``{name}`` is the job's name.
    where: ClassVar[str] = ""
    #: The command that cancels a job; empty if it ends with this process.
    cancels: ClassVar[str] = ""
    #: The program that only :meth:`wait` starts: without it nothing is begun.
    program: ClassVar[str] = ""
    #: Whether the values of ``secrets`` are those of the environment here.
    secrets_from_here: ClassVar[bool] = True

    nodes: int = Field(1, ge=1, le=4096)
    """Machines. On more than one, a Ray cluster is started for the run and ends with it."""
    gpus: int = Field(0, ge=0, le=64)
    """GPUs of each machine."""
    container: str = ""
    """The image with rollenv in which the run is played."""
    venv: HomePath = ""
    """The virtual environment with rollenv on the machines; by default what is on their PATH."""
    folder: HomePath = ""
    """The working folder on the machines, from which a relative ``run_dir`` starts; by default this one."""
    environment: dict[Variable, Text] = Field(default_factory=dict)
    """Environment variables, which are written into the script. RAY_START_OPTIONS are options of ``ray start``."""
    secrets: list[Variable] = Field(default_factory=list)
    """Names of environment variables whose values are passed on and never written."""
    logs: HomePath = ""
    """Folder of the job's logs; by default ``launch/`` in the run folder."""
    hours: float = Field(0, ge=0, le=100_000)
    """Time limit; 0 for that of the machines."""
    requeue: int = Field(0, ge=0, le=1000)
    """Maximum restarts of a job that failed or was preempted, from its last checkpoint."""
    follow: bool = True
    """Print the job's log and wait for its end."""
    template: HomePath = ""
    """A file in place of the launcher's template."""

    @model_validator(mode="before")
    @classmethod
    def _check(cls, data: Any) -> Any:
        for key, why in cls.unserved.items():
            if isinstance(data, dict) and data.get(key, cls.model_fields[key].default) != cls.model_fields[key].default:
                raise ValueError(f"{key} cannot be set: {why}")
        return data

    def problems(self, run: TrainConfig) -> Iterator[str]:
        spread = run.placement.ranks > 1 or run.rollout.shards or workers_of(run.rollout.workers)[0] == "ray"
        if self.nodes > 1 and not (spread or run.placement.roles.used):
            yield (
                "launch.nodes is above 1, and nothing in the recipe runs on several machines: set placement.ranks, "
                "rollout.shards, rollout.workers=ray:N or placement.roles"
            )

    @abstractmethod
    def render(self, job: Job) -> dict[str, str]:
        """Return the texts of files by name, the one to submit first."""

    @abstractmethod
    def submit(self, job: Job) -> str:
        """Submit the rendered script and return the job's id."""

    @abstractmethod
    def wait(self, job: Job, job_id: str) -> None:
        """Print the job's log until it ends.

        Raises:
            LaunchFailed: it failed.
        """

    def attempt(self, play: Callable[[], str]) -> None:
        """Call what returns how it failed, and again as often as ``requeue`` says."""
        for left in range(self.requeue, -1, -1):
            if not (failed := play()):
                return
            if left:
                show(f"rollenv: {failed}; starting again from the last checkpoint\n")
        raise LaunchFailed(failed)

    def send(self, config: TrainConfig, recipe: str, changes: list[str], *, resume: bool, dry_run: bool) -> Path:
        path = (
            Path(config.run_dir)
            if config.run_dir
            else (latest if resume else next_free)(Path("runs"), folder_name(recipe, config))
        )
        if path is None:
            raise UsageError(f"there is no run of {recipe!r} below runs/ to resume; name one with run_dir=PATH")
        job = self._job(config, recipe, path, changes if resume else [], resume)
        record = job.script.with_name("job")
        if not resume and any(one.name != LAUNCHED or record.exists() for one in path.glob("*")):
            named = f" as {self.kind} job {record.read_text()}" if record.exists() else ""
            raise UsageError(
                f"the run in {path} was begun{named}: continue it with --resume, or choose another run_dir"
            )
        for name in self.secrets if self.secrets_from_here and not dry_run else ():
            if name not in os.environ:
                raise UsageError(f"launch.secrets: {name} is not set here; export it before the launch")
        if self.program and not dry_run and not shutil.which(self.program):
            raise LaunchFailed(f"cannot run {self.program}: install it, or launch from a machine that has it")
        job.make_folders()
        if dry_run:
            job.write()
            for text in job.files.values():
                console.print(text, markup=False, highlight=False, soft_wrap=True)
            error_console.print(f"wrote {job.script}; nothing was submitted", markup=False, soft_wrap=True)
            return path
        try:
            with record.open("w" if resume else "x") as file:
                job.write()
                file.write(job_id := self.submit(job))
        except FileExistsError:
            raise UsageError(f"the run in {path} is being launched by another process") from None
        except BaseException:
            record.unlink(missing_ok=True)
            raise
        console.print(f"{self.kind} job {job_id}; scripts and logs: {job.logs}", markup=False, soft_wrap=True)
        try:
            if self.follow:
                self.wait(job, job_id)
        except KeyboardInterrupt:
            if self.cancels:
                how = f"job {job_id} goes on; cancel it with: {self.cancels.format(job_id)}"
                error_console.print(how, markup=False, soft_wrap=True)
            raise
        return path

    def _job(self, config: TrainConfig, recipe: str, path: Path, changes: list[str], resumed: bool) -> Job:
        """Return a run as a job, with its files rendered.

        Raises:
            UsageError: a template cannot be read, or names a field that there is not.
        """
        name = re.sub(r"[^a-z0-9]+", "-", path.name.lower()).strip("-")
        if name != path.name or len(name) > 45 or not name[:1].isalpha():
            name = (name if name[:1].isalpha() else f"run-{name}")[:38].strip("-")  # services begin with a letter
            name += f"-{hashlib.sha256(path.name.encode()).hexdigest()[:6]}"
        settings = "\n".join(differences(config.model_copy(update={"launch": None, "run_dir": ""})))
        lines = [f"export {key}={shlex.quote(value)}" for key, value in self.environment.items()]
        if own_functions(config) and Path(recipe).is_file():
            beside = shlex.quote(str(Path(recipe).absolute().parent))
            lines.append(f'export PYTHONPATH={beside}"${{PYTHONPATH:+:$PYTHONPATH}}"')
        if self.venv:
            lines.append(f'export PATH={shlex.quote(f"{self.venv}/bin")}":$PATH"')
        fields = {
            "folder": shlex.quote(self.folder or os.getcwd()),
            "run_dir": shlex.quote(str(path)),
            "exports": "\n".join([*lines, self.where.format(name=name)]),
            "recipe": re.sub(r"[\x7f-\x9f\u2028\u2029]", lambda one: f"\\u{ord(one[0]):04x}", settings),
            "changes": shlex.join(changes),
            "nodes": str(self.nodes),
            # Of its own for each run, as machines may be shared.
            "port": str(20000 + int(hashlib.sha256(str(path.absolute()).encode()).hexdigest(), 16) % 10000),
        }
        node = filled("node.sh", fields)
        logs = Path(self.logs) if self.logs else path / LAUNCHED
        job = Job(path.absolute(), logs.absolute(), name, node, resumed)
        return replace(job, files=self.render(job))


def filled(name: str, fields: Mapping[str, str], own: str = "") -> str:
    """Fill every ``{{field}}`` of a template, ours or a file of the user; what a value holds is not replaced.

    Raises:
        UsageError: it cannot be read, or there is no such field.
    """
    try:
        template = Path(own) if own else resources.files(__package__) / "templates" / name
        text = template.read_text(encoding="utf-8")
        if own and "{{node}}" not in text:
            raise UsageError(f"{own} has no {{{{node}}}}, so the machines would have nothing to run")
        return _FIELD.sub(lambda match: fields[match[1]], text)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"launch.template cannot be read: {error}") from error
    except KeyError as error:
        raise UsageError(f"{own or name} has no field {error}; there are {', '.join(fields)}") from None


def refuse_own(options: Iterable[str], own: Iterable[str]) -> None:
    """Refuse options that a launcher sets itself: with other numbers of machines, several would train in one folder."""
    if both := sorted({*options} & {*own}):
        raise UsageError(f"launch.options: {', '.join(both)} is set by rollenv and the other keys of [launch]")


def run(*command: str, unless: str = "") -> str:
    """Run a launcher's program and return its answer; empty if it fails without saying ``unless``.

    Raises:
        LaunchFailed: it is not installed, or it failed; with its own words.
    """
    program = started(command, stderr=subprocess.PIPE)
    answer, said = program.communicate()
    if program.returncode and unless in said + answer:
        words = (said + answer).strip()[-1000:]
        raise LaunchFailed(f"{shlex.join(command)[:300]} failed: {words or program.returncode}")
    return "" if program.returncode else answer.strip()


def started(
    command: Sequence[str], stdin: int = subprocess.DEVNULL, stderr: int = subprocess.STDOUT
) -> subprocess.Popen[str]:
    """Start a program whose output is read as lines; Ctrl-C is left to this process.

    Raises:
        LaunchFailed: it is not installed.
    """
    try:
        out = {"stdout": subprocess.PIPE, "stderr": stderr, "text": True, "errors": "replace"}
        return subprocess.Popen(command, stdin=stdin, start_new_session=True, **out)  # type: ignore[call-overload, no-any-return]
    except OSError as error:
        raise LaunchFailed(
            f"cannot run {command[0]}: {error.strerror}; install it, or launch from a machine that has it"
        ) from error


def followed(program: subprocess.Popen[str], log: Path, prefix: str = "") -> threading.Thread:
    """Print the lines of a program to its end in a thread, with a prefix, and append them to a file."""

    def follow() -> None:
        assert program.stdout is not None
        with program.stdout as lines, log.open("a", encoding="utf-8") as file:
            for line in lines:
                show(prefix + line)
                file.write(line)
                file.flush()
        program.wait()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    return thread


def show(text: str) -> None:
    """Print what a job printed."""
    sys.stdout.write(text)
    sys.stdout.flush()


def yaml(value: Any) -> str:
    """Return a value as JSON, which YAML reads."""
    return json.dumps(value, default=str)  # TOML has dates
