"""rollenv's machines as an environment of Harbor's (0.25), so that its tasks run without Docker.

    harbor run --path TASKS --agent oracle --env rollenv.plugins.adapters.harbor:MachineEnvironment

Harbor needs Python 3.12. Tasks reach the hosts of their ``allowlist`` and no others. Images are built as
:mod:`rollenv.sandbox.image_builder` says.
"""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path
from typing import Any

from rollenv.core.needs import peer
from rollenv.sandbox import Image, Machine, SandboxError
from rollenv.sandbox.image_builder import build
from rollenv.sandbox.machine import LIMITS, PATH
from rollenv.sandbox.offline import NOTES, Offline

with peer("harbor", "0.25", "pip install 'harbor==0.25.*', with Python 3.12 or newer"):
    from harbor.environments.base import BaseEnvironment, ExecResult
    from harbor.environments.capabilities import EnvironmentCapabilities

#: Default time limit of a command, in seconds.
_UNLIMITED = 24 * 3600.0


class MachineEnvironment(BaseEnvironment):  # type: ignore[misc]  # Harbor needs a newer Python than the checks
    """A machine of rollenv's local sandbox for each trial."""

    _machine: Machine | None = None
    _offline: Offline | None = None

    @staticmethod
    def type() -> str:
        """Name of this kind of environment."""
        return "rollenv"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(
            disable_internet=True,
            network_allowlist=True,
            network_allowlist_hostnames=True,
            network_allowlist_wildcard_hostnames=True,
            network_allowlist_ipv4_addresses=True,
            network_allowlist_ipv6_addresses=True,
            network_allowlist_ipv4_cidrs=True,
            network_allowlist_ipv6_cidrs=True,
        )

    def _validate_definition(self) -> None:
        if not (self.environment_dir / "Dockerfile").is_file():
            raise FileNotFoundError(
                f"{self.environment_dir} has no Dockerfile: rollenv builds images from it and cannot pull any"
            )

    @property
    def machine(self) -> Machine:
        """The machine of the trial."""
        if self._machine is None:
            raise RuntimeError("the environment has not been started")
        return self._machine

    async def start(self, force_build: bool) -> None:
        """Build the image if necessary, and start the machine.

        Args:
            force_build: taken as no; layers are cached by what they depend on.
        """
        self._machine = await asyncio.to_thread(self._start)

    def _start(self) -> Machine:
        self._offline = Offline()
        seconds = float(self.task_env_config.build_timeout_sec or 600.0)
        scripts = sorted(self.environment_dir.parent.glob("tests/*.sh"))
        self._offline.prepare(script.read_text(errors="replace") for script in scripts)
        image: Image = build(self.environment_dir, offline=self._offline, timeout=seconds)
        hosts = self._network_policy.allowed_hosts if self._network_is_allowlist else ()
        shown = self._offline.shown()
        machine = Machine.create(image, limits=LIMITS, env=self._persistent_env, shown=shown, network=hosts)
        made = f"mkdir -p /logs/agent /logs/verifier /logs/artifacts && chmod -R 777 /logs && mkdir -m 1777 -p {NOTES}"
        done = machine.run(["/bin/sh", "-c", made], user="0", cwd="/")
        if done.exit_code != 0:
            machine.kill()
            raise SandboxError(f"the machine could not be prepared: {done.stderr[-300:]}")
        return machine

    async def stop(self, delete: bool) -> None:
        """End the machine.

        Args:
            delete: ignored; nothing is left in any case.
        """
        machine, self._machine = self._machine, None
        if machine is not None:
            await asyncio.to_thread(machine.kill)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copy a file into the machine."""
        data = Path(source_path).read_bytes()
        mode = Path(source_path).stat().st_mode & 0o777
        await asyncio.to_thread(self.machine.files.write, target_path, data)
        await asyncio.to_thread(self.machine.run, ["chmod", f"{mode:o}", target_path], user="0", cwd="/")

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Copy a folder's contents into the machine."""
        await asyncio.to_thread(self.machine.upload, source_dir, target_dir)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copy a file out of the machine."""
        data = await asyncio.to_thread(self.machine.files.read_bytes, source_path)
        Path(target_path).parent.mkdir(parents=True, exist_ok=True)
        Path(target_path).write_bytes(data)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy a folder's contents out of the machine."""
        await asyncio.to_thread(self.machine.download, source_dir, target_dir)

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run a command with bash.

        Args:
            cwd: folder to start in; by default the task's working directory.
            timeout_sec: seconds that the command may take; None for no limit.
            user: user that runs it; by default the one that Harbor names now.

        Raises:
            TimeoutError: if it takes longer.
        """
        who = user if user is not None else self.default_user
        assert self._offline is not None
        variables = {**self._offline.env(self.machine.image.env.get("PATH", PATH)), **(env or {})}
        settings: dict[str, Any] = {"env": variables, "timeout": float(timeout_sec or _UNLIMITED)}
        settings |= {"cwd": cwd or self.task_env_config.workdir, "user": None if who is None else str(who)}
        done = await asyncio.to_thread(self.machine.run, ["bash", "-c", command], **settings)
        if done.error is not None and done.error.name == "Timeout":
            raise TimeoutError(f"{shlex.quote(command)[:200]} took longer than {timeout_sec} s")
        return ExecResult(stdout=done.stdout, stderr=done.stderr, return_code=done.exit_code)
