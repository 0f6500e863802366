"""Kubernetes: an indexed Job, and a Service by which its pods find the first one."""

from __future__ import annotations

import math
import re
import textwrap
import time
from typing import Any, ClassVar, Literal

from pydantic import Field

from rollenv.core.errors import UsageError
from rollenv.plugins.launch import base
from rollenv.plugins.launch.base import BaseLauncher, Job, LaunchFailed, filled, followed, run, started, yaml


class KubernetesLauncher(BaseLauncher):
    """A Job with a pod for each machine, in the current context of kubectl. All share the volume of the run folder."""

    secrets_from_here: ClassVar[bool] = False
    where: ClassVar[str] = "RANK=$JOB_COMPLETION_INDEX HEAD={name}-0.{name}"
    cancels: ClassVar[str] = "kubectl delete job,service {}"
    kind: Literal["kubernetes"] = "kubernetes"
    container: str = Field(min_length=1)
    """The image, with rollenv installed."""
    folder: str = Field(min_length=1)
    """The working folder in the containers, from which a relative ``run_dir`` starts, such as a volume's mount."""
    secret: str = "rollenv"
    """The Kubernetes Secret that has ``secrets``, by their names."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Further keys of the pods, such as ``volumes`` and ``nodeSelector``; ``containers`` is a table with further keys
    of the container, such as ``volumeMounts`` and ``resources``."""

    def render(self, job: Job) -> dict[str, str]:
        container = {"resources": {"limits": {"nvidia.com/gpu": self.gpus}} if self.gpus else {}}
        pod = {"automountServiceAccountToken": False, **self.options}
        more = pod.pop("containers", {})
        if not isinstance(more, dict):
            raise UsageError("launch.options: containers is a table with further keys of the one container, no list")
        base.refuse_own(pod, ("subdomain", "restartPolicy", "terminationGracePeriodSeconds"))
        base.refuse_own(more, ("name", "image", "env", "command", "args"))
        container |= more
        refs = [{"name": one, "valueFrom": {"secretKeyRef": {"name": self.secret, "key": one}}} for one in self.secrets]
        node = re.sub(r"\$(?=[$(])", "$$", job.node)  # Kubernetes reads $$ as $, and $(NAME) as a variable
        # A lost pod costs the first one and all others, and itself once more if it joined again before the first ended.
        losses = self.nodes + 1 if self.nodes > 1 else 1
        fields = {
            "name": yaml(job.name),
            "nodes": str(self.nodes),
            "retries": str(self.requeue * losses),
            "seconds": str(math.ceil(self.hours * 3600)) if self.hours else "null",
            "options": "\n".join(f"{yaml(key)}: {yaml(value)}" for key, value in pod.items()).replace("\n", "\n      "),
            "container": yaml(self.container),
            "container_options": "\n          ".join(f"{yaml(key)}: {yaml(value)}" for key, value in container.items()),
            "secrets": yaml(refs),
            "node": textwrap.indent(node, " " * 14, bool),
        }
        return {"kubernetes.yaml": filled("kubernetes.yaml", fields, self.template)}

    def submit(self, job: Job) -> str:
        there = '--output=jsonpath={.metadata.name} {.status.conditions[?(@.status=="True")].type}'
        if not job.resumed:
            found = run("kubectl", "get", "job", job.name, "--ignore-not-found", there).split()
            if found and not {"Complete", "Failed"} & {*found}:
                raise LaunchFailed(
                    f"Kubernetes already has a job {job.name} that goes on, perhaps another run's: choose another "
                    f"run_dir, or delete it with: {self.cancels.format(job.name)}"
                )
        run("kubectl", "delete", "job", job.name, "--ignore-not-found")  # its place is taken
        run("kubectl", "apply", "-f", str(job.script))
        return job.name

    def wait(self, job: Job, job_id: str) -> None:
        pods, state = f"--selector=job-name={job_id}", ""
        logs = ["kubectl", "logs", "--follow", "--prefix", "--tail=-1", f"--max-log-requests={self.nodes}", pods]
        ended = '--output=jsonpath={.status.conditions[?(@.status=="True")].type}'
        while not {"Complete", "Failed"} & {*state.split()}:
            followed(started(logs), job.logs / "kubernetes.log").join()
            time.sleep(base.LOOK_EVERY)
            state = run("kubectl", "get", "job", job_id, ended, unless="NotFound")
        if "Failed" in state:
            failed = run("kubectl", "get", "pods", pods, "--output=wide")
            raise LaunchFailed(f"Kubernetes job {job_id} failed; logs: {job.logs}\n{failed}")
