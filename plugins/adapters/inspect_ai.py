"""inspect_ai (0.3.285): rollenv's sandboxes as one of its sandbox providers, and any rollenv id as one of its tasks.

    inspect eval TASK.py --sandbox rollenv --model MODEL
    inspect eval rollenv/rollenv_task -T env_id=game:GuessTheNumber-v0-easy --model MODEL

inspect finds both through rollenv's entry point, where rollenv is installed.
"""

from __future__ import annotations

import posixpath
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict

from rollenv.core.errors import UsageError
from rollenv.core.needs import peer
from rollenv.core.pictures import Picture
from rollenv.plugins.adapters import TextEpisode
from rollenv.sandbox import (
    CommandHandle,
    CommandResult,
    FileRefused,
    Image,
    Limits,
    Machine,
    NotFound,
    Sandbox,
    SandboxDied,
    SandboxFileError,
    SandboxPaused,
)
from rollenv.sandbox.image_builder import build

with peer("inspect_ai", "0.3", "pip install 'inspect_ai==0.3.285'"):
    import anyio
    from inspect_ai import Task, task
    from inspect_ai.dataset import Sample
    from inspect_ai.model import ChatMessageSystem, ChatMessageUser
    from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
    from inspect_ai.solver import Generate, Solver, TaskState, solver
    from inspect_ai.util import (
        ExecResult,
        OutputLimitExceededError,
        SandboxEnvironment,
        SandboxEnvironmentLimits,
        SandboxUnavailableError,
        SandboxUserUnsupportedError,
        sandboxenv,
    )

#: Default time limit of a command, in seconds.
_UNLIMITED = 24 * 3600.0
#: Maximum seconds to wait for an episode to close.
_CLOSING = 3.0
#: Maximum bytes of output of a sandbox.
_MOST_OUTPUT = 32 << 20
#: The key of an episode in inspect's store.
_KEY = "rollenv_episode"
T = TypeVar("T")


async def _run_in_thread(call: Callable[..., T], *args: Any, undo: Callable[[T], object] | None = None) -> T:
    """A call in a daemon thread of its own: where a sample is cancelled, what never returns is left behind.

    Args:
        undo: called with the result after its waiter was cancelled.
    """
    done, token, outcome = anyio.Event(), anyio.lowlevel.current_token(), Future[T]()

    def work() -> None:
        try:
            outcome.set_result(call(*args))
        except BaseException as error:  # raised again below
            outcome.set_exception(error)
        with suppress(RuntimeError):  # the loop has ended
            anyio.from_thread.run_sync(done.set, token=token)

    def clear_away(outcome: Future[T]) -> None:
        if undo is not None and outcome.exception() is None:
            undo(outcome.result())

    threading.Thread(target=work, name="rollenv-bridge", daemon=True).start()
    try:
        await done.wait()
    except anyio.get_cancelled_exc_class():
        outcome.add_done_callback(clear_away)
        raise
    return outcome.result()


class BoxConfig(BaseModel):
    """The sandbox of a task or sample: ``SandboxEnvironmentSpec("rollenv", BoxConfig(...))``.

    Attributes:
        machine: a whole system with root and users, see :class:`~rollenv.sandbox.Machine`.
        build: a folder with a Dockerfile, from which the machine's image is built.
        network: hosts that the machine can reach.
        memory_mb: memory limit of the sandbox, including its files.
        disk_mb: size limit of its files.
        processes: processes and threads.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    machine: bool = False
    build: str | None = None
    network: tuple[str, ...] = ()
    memory_mb: int = 2048
    disk_mb: int = 1024
    processes: int = 128

    @classmethod
    def of(cls, given: BaseModel | str | None) -> BoxConfig:
        """Return what inspect hands over: a config, ``"machine"``, a Dockerfile or its folder, or nothing."""
        if given is None or isinstance(given, cls):
            return given or cls()
        folder = Path(str(given))
        if folder.name == "machine" and not folder.exists():  # inspect makes a path of it
            return cls(machine=True)
        folder = folder if folder.is_dir() else folder.parent
        if not isinstance(given, str) or not (folder / "Dockerfile").is_file():
            raise UsageError(
                f"the rollenv sandbox takes BoxConfig, 'machine', or a folder with a Dockerfile, not {given!r}"
            )
        return cls(build=str(folder))


@sandboxenv(name="rollenv")
class BoxEnvironment(SandboxEnvironment):  # type: ignore[misc]
    """A sandbox of rollenv's for each sample."""

    def __init__(self, box: Sandbox | Machine, home: str | None = None):
        super().__init__()
        self.box = box
        self._home = home

    @classmethod
    async def sample_init(cls, task_name: str, config: Any, metadata: dict[str, str]) -> dict[str, SandboxEnvironment]:
        """Start a sandbox."""
        most = min(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE, _MOST_OUTPUT)
        return {
            "default": await _run_in_thread(cls.start, BoxConfig.of(config), most, undo=lambda made: made.box.kill())
        }

    @classmethod
    def start(cls, config: BoxConfig, output_bytes: int = 10 << 20) -> BoxEnvironment:
        """Start a sandbox.

        Args:
            output_bytes: maximum output of a command per stream.
        """
        limits = Limits(
            seconds=_UNLIMITED, output_bytes=output_bytes, memory_mb=config.memory_mb, disk_mb=config.disk_mb,
            processes=config.processes, files=100_000, open_files=1024,
        )  # fmt: skip
        if not (config.machine or config.build or config.network):
            return cls(Sandbox.create(limits=limits))
        image = build(config.build) if config.build else Image.host()
        machine = Machine.create(image, limits=limits, network=config.network)
        return cls(machine, image.workdir if config.build else "/app")

    @classmethod
    async def sample_cleanup(
        cls, task_name: str, config: Any, environments: dict[str, SandboxEnvironment], interrupted: bool
    ) -> None:
        """End the sandboxes.

        Args:
            environments: the sandboxes that :meth:`sample_init` made, by name.
            interrupted: ignored; nothing is left in any case.
        """
        for environment in environments.values():
            await _run_in_thread(environment.as_type(cls).box.kill)

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """Read a config from a log."""
        return BoxConfig(**config)

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Run a program. Where the sample is cancelled, the program is killed.

        Args:
            cwd: folder to start in; relative to the working directory.
            user: user of the machine that runs it.
            timeout: seconds that the program may take; None for no limit.
            timeout_retry: ignored; nothing is tried again.

        Raises:
            OutputLimitExceededError: if it writes more than the limit.
            PermissionError: if the file is not a program.
            SandboxUnavailableError: if the sandbox has ended.
            SandboxUserUnsupportedError: if a user is given and the sandbox is not a machine.
            TimeoutError: if it takes longer.
        """
        if user is not None and not isinstance(self.box, Machine):
            raise SandboxUserUnsupportedError("this sandbox has only one user; for others use BoxConfig(machine=True)")
        settings = {"cwd": self._path(cwd) if cwd else self._home, "env": env, "user": user, "timeout": timeout}
        try:
            done = await self._run(cmd, input.encode() if isinstance(input, str) else bytes(input or b""), settings)
        except FileRefused:
            raise
        except SandboxFileError as error:  # no such program, folder or user; or malformed words
            return ExecResult(False, 127 if isinstance(error, NotFound) else 126, "", f"{error}\n")
        except (SandboxDied, SandboxPaused) as error:
            raise SandboxUnavailableError(str(error)) from error
        return self._result(done, timeout)

    async def _run(self, cmd: list[str], data: bytes, settings: dict[str, Any]) -> CommandResult:
        start = partial(self.box.commands.start, cmd, **settings)
        handle: CommandHandle = await _run_in_thread(start, undo=_kill)

        def finish() -> CommandResult:
            with suppress(NotFound, SandboxDied):  # it does not read, or never began: wait() says why
                handle.send_stdin(data, close=True)
            return handle.wait()

        try:
            return await _run_in_thread(finish)
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await _run_in_thread(_kill, handle)
            raise

    def _result(self, done: CommandResult, timeout: int | None) -> ExecResult[str]:
        kind, message = (done.error.name, done.error.value) if done.error is not None else ("", "")
        if kind == "Timeout":
            raise TimeoutError(f"the command took longer than {timeout} s")
        if kind == "OutputLimit":
            raise OutputLimitExceededError(
                SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, done.stdout or done.stderr
            )
        if kind == "SandboxDied":
            raise SandboxUnavailableError(message)
        text = f"{message}\n" if kind in ("MemoryLimit", "ProcessLimit") else ""
        return ExecResult(done.exit_code == 0, done.exit_code, done.stdout, done.stderr + text)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Write a file; missing folders are made.

        Args:
            contents: text, which is written as UTF-8, or bytes.

        Raises:
            IsADirectoryError, PermissionError: if it cannot be written.
        """
        await _run_in_thread(self.box.files.write, self._path(file), contents)

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Read a file.

        Raises:
            FileNotFoundError, IsADirectoryError, PermissionError: if it cannot be read.
            OutputLimitExceededError: if it has more bytes than the limit.
            UnicodeDecodeError: if it is not text.
        """
        limit, shown = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE, SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR

        def read() -> bytes:
            data = bytearray()
            for piece in self.box.files.read_stream(self._path(file)):
                data += piece
                if len(data) > limit:
                    raise OutputLimitExceededError(shown, None)
            return bytes(data)

        data = await _run_in_thread(read)
        return data.decode() if text else data

    def _path(self, path: str) -> str:
        return posixpath.join(self._home, path) if self._home else path


def _kill(handle: CommandHandle) -> None:
    with suppress(SandboxDied):
        handle.kill()


@task  # type: ignore[untyped-decorator]
def rollenv_task(
    env_id: str,
    episodes: int = 10,
    seed: int = 0,
    max_turns: int = 100,
    system: str | None = None,
    env: dict[str, Any] | None = None,
) -> Task:
    """Episodes of an environment, played by the model under evaluation.

    Args:
        episodes: number of episodes, one per sample.
        seed: seed of the first episode; the others count up.
        max_turns: replies after which an episode is cut off, if the environment has not ended it before.

    Raises:
        RollenvError: if the environment cannot be made.
    """
    if max_turns < 1:
        raise UsageError(f"max_turns must be at least 1, got {max_turns}")
    TextEpisode(env_id, **(env or {})).close()
    samples = [
        Sample(id=f"seed-{number}", input=f"{env_id}, seed {number}", metadata={"env_id": env_id, "seed": number})
        for number in range(seed, seed + episodes)
    ]
    return Task(dataset=samples, solver=play(env_id, max_turns, system, env), scorer=episode_reward())


@solver  # type: ignore[untyped-decorator]
def play(env_id: str, max_turns: int = 100, system: str | None = None, env: dict[str, Any] | None = None) -> Solver:
    """Plays the episode of the sample's seed: observations are user messages, replies are actions.

    Args:
        max_turns: replies after which the episode is cut off.
    """

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        state.store.set(_KEY, {"reward": 0.0, "success": False, "turns": 0, "over": False})
        episode = await _run_in_thread(partial(TextEpisode, env_id, **(env or {})), undo=TextEpisode.close)
        episode.sees = True
        one_at_a_time = threading.Lock()  # an abandoned step may still run when the episode is closed

        def alone(call: Callable[..., T], *args: Any) -> T:
            with one_at_a_time:
                return call(*args)

        try:
            shown = await _run_in_thread(alone, episode.start, state.metadata["seed"])
            state.messages = [ChatMessageSystem(content=system)] if system else []
            state.messages.append(ChatMessageUser(content=episode.content(_image_part, shown)))
            while not episode.over and episode.turns < max_turns:
                state = await generate(state)
                if state.completed:  # a limit of inspect's
                    break
                shown, _ = await _run_in_thread(alone, episode.step, state.output.completion)
                state.messages.append(ChatMessageUser(content=episode.content(_image_part, shown)))
                success = bool(episode.info.get("success", False))
                done = {"reward": episode.total, "success": success, "turns": episode.turns, "over": episode.over}
                state.store.set(_KEY, done)
        finally:
            with anyio.move_on_after(_CLOSING, shield=True), suppress(Exception):  # the reward is already known
                await _run_in_thread(alone, episode.close)
        return state

    return solve


def _image_part(image: Picture) -> dict[str, str]:
    return {"type": "image", "image": image.url}


@scorer(metrics={"reward": [mean(), stderr()], "success": [mean(), stderr()]})  # type: ignore[untyped-decorator]
def episode_reward() -> Scorer:
    """The sum of an episode's rewards, and whether it was a success. An episode that was cut off has what it got."""

    async def score(state: TaskState, target: Target) -> Score:
        done = state.store.get(_KEY)
        if done is None:
            return Score.unscored(explanation="no episode was played; use the task's own solver")
        text = f"{done['turns']} turns, {'ended' if done['over'] else 'cut off'}"
        value = {"reward": float(done["reward"]), "success": float(done["success"])}
        return Score(value=value, answer=state.output.completion, explanation=text, metadata=dict(done))

    return score
