"""ssh: the shells of given machines."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import time
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from rollenv.plugins.launch.base import BaseLauncher, Job, followed, started

#: Seconds in which machines save and end after they were told to.
_END_SECONDS = 120.0

# The whole is read before it runs. Its input stays open as long as this process follows it.
_SHELL = """{{
exec 3<&0 < /dev/null
(cat <&3; kill -TERM $$) > /dev/null 2>&1 &
{0}
exit
}}
"""


class SshLauncher(BaseLauncher):
    """Machines that ssh reaches without a password and that share the run folder. They end with this process."""

    unserved: ClassVar = {
        "hours": "no queue limits the time of ssh",
        "gpus": "those of the machines are found",
        "container": "ssh starts a shell of the machine",
        "template": "the shells of the machines have the same script for all kinds",
        "follow": "what ssh started ends with this process",
    }
    program: ClassVar[str] = "ssh"
    kind: Literal["ssh"] = "ssh"
    hosts: list[Annotated[str, Field(pattern=r"^[^-\s]\S*$")]] = Field(min_length=1)
    """The machines, as for ssh; ``nodes`` is their number."""
    options: list[str] = Field(default_factory=list)
    """Options of ``ssh``, such as ["-p", "2222"]."""

    @model_validator(mode="after")
    def _count(self) -> Self:
        if self.nodes not in (1, len(self.hosts)):
            raise ValueError(f"nodes is the number of hosts, {len(self.hosts)}: leave it out")
        self.nodes = len(self.hosts)
        return self

    def render(self, job: Job) -> dict[str, str]:
        return {"node.sh": job.node}

    def submit(self, job: Job) -> str:
        return str(os.getpid())

    def wait(self, job: Job, job_id: str) -> None:
        self.attempt(lambda: self._play(job))

    def _play(self, job: Job) -> str:
        """Run all machines to their end and return which failed first."""
        machines, threads, failed = [], [], ""
        try:
            for rank, host in enumerate(self.hosts):
                machine = started(["ssh", *self.options, host, "bash", "-s"], subprocess.PIPE)
                machines.append(machine)
                threads.append(followed(machine, job.logs / f"ssh-{rank}.log", f"[{host}] "))
                values = {"RANK": str(rank), "HEAD": self.hosts[0].rpartition("@")[2]}
                values |= {name: os.environ[name] for name in self.secrets}
                lines = [f"export {name}={shlex.quote(value)}\n" for name, value in values.items()]
                assert machine.stdin is not None
                with contextlib.suppress(OSError):  # it has ended, as its exit code will say
                    machine.stdin.write("".join(lines) + _SHELL.format(job.files["node.sh"]))
                    machine.stdin.flush()
            codes: list[int | None] = [None]
            while None in codes and not failed:
                time.sleep(0.2)
                codes = [machine.poll() for machine in machines]
                failed = next(
                    (f"{self.hosts[at]} failed with exit code {code}" for at, code in enumerate(codes) if code), ""
                )
        finally:
            deadline = time.monotonic() + _END_SECONDS
            for machine in machines:
                assert machine.stdin is not None
                with contextlib.suppress(OSError):
                    machine.stdin.close()
            for machine, thread in zip(machines, threads, strict=True):
                thread.join(max(0.1, deadline - time.monotonic()))
                machine.kill()
        return failed
