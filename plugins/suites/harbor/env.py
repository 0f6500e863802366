"""Task folders as environments."""

from __future__ import annotations

import contextlib
import shlex
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollenv.core.env_spec import EnvSpec
from rollenv.core.errors import UnknownEnv, UsageError
from rollenv.core.needs import MACHINES
from rollenv.envs.numbered import checked_index
from rollenv.envs.terminal.base import Graded, StartedTask, TerminalEnv
from rollenv.plugins.suites.harbor.folder import Healthcheck, TaskFolder, TaskFolderError, TaskStep
from rollenv.plugins.suites.harbor.read import find_tasks, read_task
from rollenv.plugins.suites.harbor.verify import SolutionNotPlayed, lacking, verify
from rollenv.sandbox import Image, Limits, Machine, NotFound, SandboxError, image_copy
from rollenv.sandbox.docker import docker_image
from rollenv.sandbox.errors import InvalidArgument
from rollenv.sandbox.image_builder import HIDDEN, Base, BuildError, build, image_for
from rollenv.sandbox.machine import LIMITS
from rollenv.sandbox.network import AllowList
from rollenv.sandbox.offline import Offline

_ABILITIES = frozenset({"oracle", "random_action"})
_building = threading.Lock()


def make_spec(env_id: str) -> EnvSpec:
    """Make the spec of ``harbor:PATH`` or ``tb:PATH``: a task folder, or a folder of task folders."""
    path = env_id.partition(":")[2]
    try:
        tasks = find_tasks(Path(path).expanduser())
    except TaskFolderError as error:
        raise UnknownEnv(f"{env_id}: {error}") from error
    return EnvSpec(
        env_id,
        "rollenv.plugins.suites.harbor.env:HarborEnv",
        {"path": path},
        _ABILITIES,
        (MACHINES,),
        nondeterministic=True,
        indexed=True,
        summary=f"{len(tasks)} terminal task{'s' if len(tasks) > 1 else ''} in {Path(path).name}",
    )


class HarborEnv(TerminalEnv):
    """Task folders in Harbor's format or Terminal-Bench's, played on machines of the local sandbox.

    The image is built from the task's Dockerfile (:func:`rollenv.sandbox.image_builder.build`). The tests run on a
    fresh machine with the agent's files, see :mod:`rollenv.envs.terminal.guard`. A task that cannot be built or graded
    raises :class:`BuildError` or :class:`VerifierError` instead of returning a reward.

    Args:
        path: a task folder, or a folder of them; ``reset(options={"index": i})`` selects one.
        limits: limits of the machines; by default the task's, or 3 GiB of memory and 2 GiB of files.
        agent_timeout: whether to apply the task's time limit of the agent, to the sum over its commands.
        base: images for names in FROM, see :func:`rollenv.sandbox.image_builder.build`; ``docker`` for those of this
            host's Docker engine.
        offline: substitute for the network; by default wheels from the cache, which the host's pip fills.
        network: hosts that agents may reach (see :class:`~rollenv.sandbox.network.AllowList`), by default none. If a
            task has its own list, only its hosts that are allowed here; ``*`` allows all.
    """

    reset_options = frozenset({"index"})

    def __init__(
        self,
        *,
        path: str,
        limits: Limits | None = None,
        agent_timeout: bool = True,
        base: Base | str | None = None,
        offline: Offline | None = None,
        network: Sequence[str] = (),
        max_turns: int = 100,
        **settings: Any,
    ):
        super().__init__(max_turns=max_turns, **settings)
        self.folders = find_tasks(Path(path).expanduser())
        if isinstance(base, str) and base != "docker":
            raise UsageError(f"base={base!r} is unknown: it is 'docker', or a function from a name to an image")
        self.base: Base | None = docker_image if isinstance(base, str) else base
        self.given_limits, self.agent_timeout = limits, agent_timeout
        self.offline, self.network = offline, AllowList(network).hosts
        self._given_seconds = self.max_seconds
        self._task: TaskFolder | None = None
        self._image: Image | None = None

    def num_tasks(self) -> int:
        """Return the number of task folders."""
        return len(self.folders)

    @property
    def task(self) -> TaskFolder:
        """The current task."""
        if self._task is None:
            raise UsageError(f"{self}: call reset() to choose a task")
        return self._task

    @property
    def part(self) -> TaskStep:
        """The current step."""
        return self.task.steps[self._at]

    def start(self, options: dict[str, Any]) -> StartedTask:
        index = options.get("index")
        chosen = self.randint(len(self.folders)) if index is None else checked_index(self, index)
        task = read_task(self.folders[chosen])
        self._task, self._at = task, 0
        self._rewards: list[float] = []
        self._solution_lacks = ""
        if self.offline is None:
            self.offline = Offline()
        with _building:  # so that the same image is built only once
            image = self._unconfigured(task)
        image = self._image = replace(image, workdir=task.workdir or image.workdir)
        limits, hosts = self._limits(task), self._hosts(task)
        machine = Machine.create(image, limits=limits, env=task.env, network=hosts, **self.attached.settings)
        try:
            self._prepare(machine)
        except BaseException:
            machine.kill()
            raise
        return StartedTask(self.part.instruction, machine, image.workdir, self._agent)

    @property
    def _agent(self) -> str:
        """The user of the agent."""
        assert self._image is not None
        return self.part.user or self._image.user

    def _unconfigured(self, task: TaskFolder) -> Image:
        if task.dockerfile:
            return build(
                task.context,
                task.dockerfile,
                base=self.base,
                offline=self.offline,
                ignored=task.ignored,
                limits=self._limits(task),
                timeout=task.build_seconds,
            )
        if task.image:
            return self._named(task, task.image)
        return replace(Image.host(), workdir="/app")

    def _named(self, task: TaskFolder, name: str) -> Image:
        try:
            return image_for(name, self.base)
        except (UsageError, InvalidArgument) as error:
            raise BuildError(f"{task.path}: there is no Dockerfile, and {error}") from error

    def _limits(self, task: TaskFolder) -> Limits:
        given = self.given_limits or LIMITS
        memory, disk = max(task.memory_mb or 0, given.memory_mb), max(task.storage_mb or 0, given.disk_mb)
        return replace(given, memory_mb=memory, disk_mb=min(disk, 4 * given.disk_mb))

    def _hosts(self, task: TaskFolder) -> Sequence[str]:
        if task.network_mode != "allowlist":
            return self.network if task.network_mode == "public" else ()
        return [host for host in task.allowed_hosts if host in self.network or "*" in self.network]

    def _prepare(self, machine: Machine) -> None:
        """Prepare the machine for the agent."""
        task = self.task
        made = "mkdir -p /logs/agent /logs/verifier /logs/artifacts && chmod 777 /logs/agent /logs/artifacts"
        machine.run(["/bin/sh", "-c", made], user="0", cwd="/")
        if task.kind == "tb" and not task.dockerfile:
            files = image_copy.BuildContext(task.context, "", HIDDEN, task.ignored)
            image_copy.put(machine, [files.source(task.context)], "/app", True, "", "")
        self._prepare_step(machine)
        if task.healthcheck is not None:
            _wait_until_healthy(machine, task.healthcheck, task)

    def _prepare_step(self, machine: Machine) -> None:
        if self.part.setup is not None:
            workdir = machine.image.workdir
            machine.upload(self.part.setup, workdir)
            if (self.part.setup / "setup.sh").is_file():
                done = machine.run(["bash", f"{workdir}/setup.sh"], timeout=self.task.build_seconds, user=self._agent)
                if done.exit_code != 0:
                    raise BuildError(f"{self.part.setup}/setup.sh failed: {(done.stdout + done.stderr)[-500:]}")
                machine.run(["rm", "-f", f"{workdir}/setup.sh"], user="0")
        try:
            machine.run(["/bin/sh", "-c", ":"], user=self._agent, cwd="/")
        except NotFound as error:
            raise BuildError(f"{self.task.name}: the agent is to be {self._agent!r}: {error}") from error
        if self.part.healthcheck is not None:
            _wait_until_healthy(machine, self.part.healthcheck, self.task)
        limit = self.part.agent_seconds if self.agent_timeout else None
        self.max_seconds = min((each for each in (limit, self._given_seconds) if each is not None), default=None)
        self.spent = 0.0

    def grade(self) -> Graded:
        image, step = self._image, self.part
        assert image is not None
        verdict = verify(
            self.task,
            step,
            self.machine,
            image,
            offline=self.offline,
            separate=self._separate(step) if step.verifier.separate else None,
            limits=self._limits(self.task),
        )
        if verdict.reward <= 0 and self._solution_lacks:
            raise SolutionNotPlayed(f"{self.task.name}: the solution needs a network: {self._solution_lacks[:300]}")
        self._rewards.append(verdict.reward)
        self._passed = all(verdict.rewards.get(name, 0.0) >= least for name, least in step.min_reward.items())
        reward = self._rewards[-1] if self.task.final_only else sum(self._rewards) / len(self.task.steps)
        details = {
            "rewards": verdict.rewards,
            "ended_early": verdict.ended_early,
            "broke_tests": verdict.broke_tests,
            "output": verdict.output,
            "left_out": verdict.left_out[:20],
        }
        return Graded(reward, reward >= 1.0, {"steps": len(self._rewards)}, {"verifier": details})

    def _separate(self, step: TaskStep) -> Image:
        dockerfile = step.verifier.find("Dockerfile")
        with _building:
            if dockerfile is not None:
                return build(dockerfile.parent, base=self.base, offline=self.offline, limits=self._limits(self.task))
            if step.verifier.image:
                return self._named(self.task, step.verifier.image)
        assert self._image is not None
        return self._image

    def go_on(self, graded: Graded) -> bool:
        """Start the next step, unless this one failed."""
        if self._at + 1 >= len(self.task.steps) or not self._passed:
            return False
        self._at += 1
        self._shell.user = self._agent
        self._prepare_step(self.machine)
        graded.says = self.part.instruction
        return True

    def solution(self) -> Sequence[str]:
        """Copy the folder's solution to /solution, and return its command."""
        solution = self.part.solution
        if solution is None:
            raise UsageError(f"{self.task.path} has no solution")
        name = "solve.sh" if solution.is_dir() else solution.name
        self.machine.upload(solution, "/solution")
        # Put the files that were hidden from the build where the Dockerfile would have put them.
        for path in [path for hidden in HIDDEN for path in self.task.context.rglob(hidden)]:
            self.machine.upload(path, f"{self.machine.image.workdir}/{path.name}")
        self.machine.run(["/bin/sh", "-c", "chmod +x /solution/*.sh"], user="0", cwd="/")
        variables = "".join(f"export {key}={shlex.quote(value)}; " for key, value in self.task.solution_env.items())
        return [f"{variables}DEBIAN_FRONTEND=noninteractive bash /solution/{name}"]

    def _run(self, command: str, seconds: float) -> str:
        if "/solution/" in command and self._plan is not None:
            # The solution has the task's time limit of the agent.
            done = self.machine.run(
                ["bash", "-c", command], timeout=max(seconds, self.part.agent_seconds or 0.0), user=self._agent
            )
            self.spent += done.seconds
            self._solution_lacks = lacking(done.stdout + done.stderr)
            return done.stdout + done.stderr
        return super()._run(command, seconds)


def _wait_until_healthy(machine: Machine, check: Healthcheck, task: TaskFolder) -> None:
    """Wait for the healthcheck; raise BuildError if it fails."""
    begun, failures, output = time.monotonic(), 0, ""
    while failures < check.retries:
        with contextlib.suppress(SandboxError):
            done = machine.run(check.command, timeout=check.timeout)
            if done.exit_code == 0:
                return
            output = (done.stdout + done.stderr)[-300:]
        if time.monotonic() - begun >= check.start_period:
            failures += 1
        time.sleep(min(check.interval, 5.0))
    raise BuildError(f"{task.name}: the machine did not become healthy: {check.command!r} failed: {output}")
