"""Slurm: a batch script for ``sbatch``."""

from __future__ import annotations

import codecs
import math
import re
import shlex
import time
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rollenv.core.errors import UsageError
from rollenv.plugins.launch import base
from rollenv.plugins.launch.base import BaseLauncher, Job, LaunchFailed, filled, refuse_own, run, show
from rollenv.trainers.run_dir import LAUNCHED

_ENDS = {
    "COMPLETED",
    "FAILED",
    "CANCELLED",
    "TIMEOUT",
    "NODE_FAIL",
    "PREEMPTED",
    "OUT_OF_MEMORY",
    "DEADLINE",
    "BOOT_FAIL",
    "REVOKED",
}


class SlurmLauncher(BaseLauncher):
    """A Slurm job. The run folder is on a file system that all machines share with this one."""

    where: ClassVar[str] = "RANK=$SLURM_PROCID"
    cancels: ClassVar[str] = "scancel {}"
    kind: Literal["slurm"] = "slurm"
    options: list[Annotated[str, Field(pattern=r"^--[a-z][a-z-]*(=[^\n]*)?$")]] = Field(default_factory=list)
    """Options of ``sbatch``, such as ["--partition=gpu", "--mem=200G"]; those of containers are ``srun``'s."""

    def render(self, job: Job) -> dict[str, str]:
        folder = job.path / LAUNCHED
        batch = [
            *(f"--job-name={job.name}", f"--nodes={self.nodes}", "--ntasks-per-node=1", "--open-mode=append"),
            f"--output={str(job.logs).replace('%', '%%')}/slurm-%j.log",
            *("--signal=B:TERM@120", "--requeue" if self.requeue else "--no-requeue"),
            *([f"--gpus-per-node={self.gpus}"] if self.gpus else []),
            *([f"--time={math.ceil(self.hours * 60)}"] if self.hours else []),
        ]
        step = [f"--container-image={self.container}"] * bool(self.container)
        own = [word.partition("=")[0] for word in batch]
        refuse_own([word.partition("=")[0] for word in self.options], [*own, "--ntasks", "--array"])
        for word in self.options:
            (step if word.startswith("--container") else batch).append(word)
        if "\n" in batch[4]:
            raise UsageError("launch.logs: Slurm takes no folder whose name has a line end")
        pairs = [word.partition("=") for word in batch]
        lines = [f"#SBATCH {name}{sign}{shlex.quote(value) * bool(sign)}\n" for name, sign, value in pairs]
        fields = {
            "options": "".join(lines).rstrip(),
            "step": shlex.join(step),
            "node": shlex.quote(f"{folder}/node.sh"),
            "pid": shlex.quote(f"{folder}/pid"),
            "requeue": str(self.requeue),
        }
        return {"slurm.sh": filled("slurm.sh", fields, self.template), "node.sh": job.node}

    def submit(self, job: Job) -> str:
        answer = run("sbatch", "--parsable", "--export=ALL", str(job.script))
        ids = re.findall(r"^(?:Submitted batch job )?(\d+)(?:;.*| on cluster .*)?$", answer, re.MULTILINE)
        if not ids:
            raise LaunchFailed(f"sbatch named no job: {answer[-300:]!r}; look for {job.name} with squeue --me")
        return str(ids[-1])

    def wait(self, job: Job, job_id: str) -> None:
        log, at, state = job.logs / f"slurm-{job_id}.log", 0, ""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while not _states(state) or not _ENDS.issuperset(_states(state)):
            time.sleep(base.LOOK_EVERY)
            try:
                state = run("squeue", "--noheader", "--states=all", f"--job={job_id}", "--format=%T", unless="Invalid")
            except LaunchFailed as error:  # Slurm forgets jobs some minutes after their end
                raise LaunchFailed(f"Slurm forgot job {job_id}; its log: {log}") from error
            if log.exists():
                with log.open("rb") as file:
                    file.seek(at)
                    show(decoder.decode(file.read()))
                    at = file.tell()
        if _states(state) != {"COMPLETED"}:
            raise LaunchFailed(f"Slurm job {job_id} ended as {state}; its log: {log}")


def _states(answer: str) -> set[str]:
    """Return the states that squeue names, one a line: `CANCELLED by 0` is `CANCELLED`."""
    return {line.split()[0] for line in answer.splitlines() if line.strip() and not line.startswith("CLUSTER:")}
