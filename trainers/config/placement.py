"""Settings of the processes and Ray actors of a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from rollenv.trainers.config.section import Section, unless


class RoleConfig(Section):
    """A part of a run in dedicated Ray actors, which Ray spreads over the nodes."""

    actors: int = Field(0, ge=0)
    """Number of actors; 0 for the trainer's process."""
    cpus: float = Field(1.0, ge=0)
    """CPUs of an actor."""
    gpus: float = Field(0.0, ge=0)
    """GPUs of an actor, or the share of a GPU that it shares with others."""
    resources: dict[str, float] = Field(default_factory=dict)
    """Custom Ray resources of an actor, such as ``{ judges = 0.5 }``, if nodes are started with them."""


class RolesConfig(Section):
    """Parts of a run outside the policy's processes."""

    reference: RoleConfig = RoleConfig()
    """The model of ``kl``, in one actor."""
    teacher: RoleConfig = RoleConfig()
    """The model of ``distill.path``, in one actor."""
    rewards: RoleConfig = RoleConfig()
    """``rewards.domains``, including judges; each episode goes to the actor with the fewest."""

    @model_validator(mode="before")
    @classmethod
    def _which_learn(cls, data: Any) -> Any:
        if isinstance(data, dict) and (learn := {"critic", "policy"} & data.keys()):
            raise ValueError(f"{learn.pop()} is trained, in the trainer's process: only models that are not have roles")
        return data

    def problems(self, run: Any) -> Iterator[str]:
        if max(self.reference.actors, self.teacher.actors) > 1:
            yield "placement.roles.reference and teacher have one actor each: give it more cpus or gpus"

    def unused(self, run: Any) -> dict[str, str]:
        compared, taught = run.kl.name != "none" and not run.model.lora.rank, run.distill.name == "teacher"
        return {
            **unless(compared, "kl and no adapters", "placement.roles.reference"),
            **unless(taught, "distill.name=teacher", "placement.roles.teacher"),
            **unless(run.rewards.domains, "rewards.domains", "placement.roles.rewards"),
        }

    @property
    def all_cpus(self) -> float:
        """CPUs of all role actors."""
        return sum(role.actors * role.cpus for role in (self.reference, self.teacher, self.rewards))

    @property
    def used(self) -> bool:
        """True if there are any actors."""
        return any(role.actors for role in (self.reference, self.teacher, self.rewards))


class PlacementConfig(Section):
    """The processes that train the model; by default only this one."""

    ranks: int = Field(1, ge=1)
    """Processes with one device each that train the model together (FSDP2 under Ray Train). The first one also plays.
    """
    min_ranks: int = Field(0, ge=0)
    """Minimum number of ranks to continue with after some are permanently lost; 0 for all of them."""
    address: str = ""
    """Address of a Ray cluster, such as HOST:6379; by default the one of RAY_ADDRESS, or this machine."""
    devices: Literal["auto", "cpu", "gpu"] = "auto"
    """The devices of ranks; auto uses GPUs (CUDA or ROCm) if Ray reports any."""
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """The communication backend of ranks; auto uses nccl for GPUs and gloo for CPUs."""
    cpus: float = Field(1.0, gt=0)
    """CPUs that Ray reserves for a rank."""
    gpus: float = Field(1.0, gt=0.5, le=1)
    """The share of a GPU that Ray reserves for a rank; engines and roles that fit into the rest may share the GPU.
    Above one half, so that no GPU has two ranks."""
    roles: RolesConfig = RolesConfig()
    gradients: Literal["step", "micro_batch"] = "step"
    """When gradients are summed over ranks: once per step sends less, but needs memory for all gradients on every rank.
    """
    max_failures: int = Field(0, ge=0)
    """Maximum number of restarts of all ranks from the last checkpoint after one was lost."""
    wait: float = Field(300.0, ge=0)
    """Seconds to wait for devices at a restart."""

    @field_validator("min_ranks")
    @classmethod
    def _no_more_than_there_are(cls, least: int, info: ValidationInfo) -> int:
        if least > info.data.get("ranks", least):
            raise ValueError("is more than placement.ranks")
        return least

    @field_validator("backend")
    @classmethod
    def _for_devices(cls, backend: str, info: ValidationInfo) -> str:
        if backend == "nccl" and info.data.get("devices") == "cpu":
            raise ValueError("cannot be nccl for CPUs; use gloo")
        return backend

    def unused(self, run: Any) -> dict[str, str]:
        by_ray = ("devices", "cpus", "gpus", "max_failures", "wait")
        return {
            **unless(self.by_ray, "placement.ranks above 1 or a placement.address", "placement", *by_ray),
            **unless(self.ranks > 1, "placement.ranks above 1", "placement", "min_ranks", "backend", "gradients"),
        }

    @property
    def by_ray(self) -> bool:
        """True if Ray starts the processes."""
        return self.ranks > 1 or bool(self.address)
