"""SkyPilot: a task for ``sky launch``, on any cloud, Kubernetes or Slurm."""

from __future__ import annotations

import textwrap
from typing import Any, ClassVar, Literal

from pydantic import Field

from rollenv.plugins.launch.base import BaseLauncher, Job, filled, followed, refuse_own, started, yaml


class SkyPilotLauncher(BaseLauncher):
    """A SkyPilot cluster, made for the run. The run folder is in a mount that all machines share."""

    unserved: ClassVar = {
        "hours": "SkyPilot has no time limit",
        "gpus": 'SkyPilot wants their kind: launch.options.resources.accelerators = "H100:8"',
        "container": 'name it in launch.options.resources.image_id = "docker:IMAGE"',
        "follow": "sky launch follows what it starts",
    }
    where: ClassVar[str] = 'RANK=$SKYPILOT_NODE_RANK HEAD=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)'
    cancels: ClassVar[str] = "sky down {}"
    program: ClassVar[str] = "sky"
    kind: Literal["skypilot"] = "skypilot"
    options: dict[str, Any] = Field(default_factory=dict)
    """Further keys of the task: ``resources``, ``setup``, ``workdir``, ``file_mounts``."""

    def render(self, job: Job) -> dict[str, str]:
        refuse_own(self.options, ("name", "num_nodes", "secrets", "run"))
        fields = {
            "name": yaml(job.name),
            "nodes": str(self.nodes),
            "secrets": yaml(dict.fromkeys(self.secrets)),
            "options": "\n".join(f"{yaml(key)}: {yaml(value)}" for key, value in self.options.items()),
            "node": textwrap.indent(job.node, "  ", bool),
        }
        return {"skypilot.yaml": filled("skypilot.yaml", fields, self.template)}

    def submit(self, job: Job) -> str:
        return job.name

    def wait(self, job: Job, job_id: str) -> None:
        secrets = [word for name in self.secrets for word in ("--secret", name)]
        command = ["sky", "launch", "--yes", "--down", "--cluster", job_id, *secrets, str(job.script)]

        def play() -> str:
            sky = started(command)
            followed(sky, job.logs / "skypilot.log").join()
            code = sky.returncode
            return f"SkyPilot job {job_id} failed with exit code {code}; logs: {job.logs}" if code else ""

        self.attempt(play)
