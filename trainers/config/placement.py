"""Settings of where the parts of a run are."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from rollenv.trainers.config.section import Section


class RoleConfig(Section):
    """A part of a run in Ray actors of its own, which Ray spreads over the nodes."""

    actors: int = Field(0, ge=0)
    """Their number; 0 leaves it in the trainer's process."""
    cpus: float = Field(1.0, ge=0)
    """CPUs of an actor."""
    gpus: float = Field(0.0, ge=0)
    """GPUs of an actor, or a share of one that it has in common with others."""
    resources: dict[str, float] = Field(default_factory=dict)
    """Ray's own resources of an actor, such as ``{ judges = 0.5 }`` where nodes are started with them."""


class RolesConfig(Section):
    """Parts of a run apart from the policy."""

    reference: RoleConfig = RoleConfig()
    """The model of ``kl``; one actor holds it."""
    teacher: RoleConfig = RoleConfig()
    """The model of ``distill.path``; one actor holds it."""
    rewards: RoleConfig = RoleConfig()
    """``rewards.domains``, judges among them; episodes take turns over the actors."""

    @model_validator(mode="before")
    @classmethod
    def _which_learn(cls, data: Any) -> Any:
        if isinstance(data, dict) and (learn := {"critic", "policy"} & data.keys()):
            raise ValueError(f"{learn.pop()} learns with each step, in the trainer's process: only readers have roles")
        return data

    @property
    def all_cpus(self) -> float:
        """CPUs of all actors."""
        return sum(role.actors * role.cpus for role in (self.reference, self.teacher, self.rewards))

    @property
    def used(self) -> bool:
        """True if there are any actors."""
        return any(role.actors for role in (self.reference, self.teacher, self.rewards))


class PlacementConfig(Section):
    """The processes that train the model. By default it is this one."""

    ranks: int = Field(1, ge=1)
    """Processes with a device each that train the model together (FSDP2 under Ray Train). The first one also plays."""
    min_ranks: int = Field(0, ge=0)
    """The fewest ranks with which a run continues after some were lost for good; 0 for all of them."""
    address: str = ""
    """Address of a Ray cluster, such as HOST:6379; by default the one of RAY_ADDRESS, or this machine."""
    devices: Literal["auto", "cpu", "gpu"] = "auto"
    """The devices of ranks; auto takes GPUs (CUDA or ROCm) where Ray reports any."""
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """The communication backend of ranks; auto takes nccl for GPUs and gloo for CPUs."""
    cpus: float = Field(1.0, gt=0)
    """CPUs that Ray keeps for a rank."""
    gpus: float = Field(1.0, gt=0.5, le=1)
    """The share of its GPU that Ray keeps for a rank; engines and roles with a share no larger than the rest may be
    beside it. Above a half, so that no GPU has two ranks."""
    roles: RolesConfig = RolesConfig()
    gradients: Literal["step", "micro_batch"] = "step"
    """The moment when gradients are summed over ranks. Once a step is less to send, but needs memory for all gradients
    on every rank."""
    max_failures: int = Field(0, ge=0)
    """The number of restarts of all ranks from the last checkpoint after one was lost."""
    wait: float = Field(300.0, ge=0)
    """Seconds to wait for devices when they are started again."""

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
            raise ValueError("cannot be nccl for CPUs; take gloo")
        return backend

    @property
    def by_ray(self) -> bool:
        """True if Ray starts the processes."""
        return self.ranks > 1 or bool(self.address)
