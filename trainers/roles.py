"""Parts of a run in Ray actors: reference and teacher models, and rewards."""

from __future__ import annotations

import functools
import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Literal

import torch

from rollenv.core import registry
from rollenv.core.env_spec import EnvSpec, Wrappers
from rollenv.core.errors import RollenvError
from rollenv.core.needs import extra
from rollenv.rollout.types import Trajectory
from rollenv.trainers.config import TrainConfig
from rollenv.trainers.config.placement import RoleConfig
from rollenv.trainers.models import reading_model
from rollenv.trainers.policies.base import LOGPROBS, Output, Outputs
from rollenv.trainers.policies.packed import Packed, on
from rollenv.trainers.ranks import Ranks
from rollenv.trainers.rewards.configured import DomainRewards

with extra("ray", "Placing parts of a run"):
    import ray

    from rollenv.rollout import ray_calls

#: Maximum number of restarts of an actor by Ray; its state follows from the settings alone.
_RESTARTS = 3


class RoleLost(RollenvError):
    """An actor of a run has ended and could not be restarted."""

    def __init__(self, name: str, why: str):
        super().__init__(f"the actor of placement.roles.{name} is lost: {why}; continue with --resume")


class RemoteReader:
    """A reference or teacher model in an actor, on the cluster that this process is connected to; a ``Reader``.

    The actor loads the model, and computes the same as a policy in this process. Several ranks share it.

    Raises:
        RoleLost: the actor has ended.
    """

    def __init__(self, config: TrainConfig, wrappers: Wrappers, name: Literal["reference", "teacher"], ranks: Ranks):
        self.name = name
        actor = None
        if ranks.first:
            (actor,) = _actors(_Model, name, getattr(config.placement.roles, name), config, wrappers, name)
        self.actor: Any = ranks.share(actor)
        self.packs: bool
        self.vocabulary: dict[str, int]
        self.packs, self.vocabulary = self._result(self.actor.about.remote())

    def logprobs(
        self, batch: Packed, outputs: Collection[Output] = LOGPROBS, *, entropy_gradient: bool = False
    ) -> Outputs:
        """See :class:`~rollenv.trainers.policies.base.LogprobReader`; without gradients."""
        sent = on("cpu", replace(batch, columns={}, routes=None))
        computed: Outputs = self._result(self.actor.logprobs.remote(sent, tuple(outputs)))
        return on(batch.ids.device, computed)

    def _result(self, reference: Any) -> Any:
        with ray_calls.plain_errors(functools.partial(RoleLost, self.name)):
            return ray.get(reference)

    def close(self) -> None:
        """End the actor."""
        ray_calls.kill_actor(self.actor)


class RemoteRewards(DomainRewards):
    """The rewards of ``rewards.domains``, each by the actor with the fewest to compute; see :class:`DomainRewards`."""

    def __init__(self, config: TrainConfig):
        super().__init__(config)
        self.actors = _actors(_Rewards, "rewards", config.placement.roles.rewards, config)
        self._pending = [0] * len(self.actors)

    async def of(self, pattern: str, trajectory: Trajectory) -> list[float]:
        """See :class:`DomainRewards`."""
        number = self._pending.index(min(self._pending))
        self._pending[number] += 1
        try:
            reference = self.actors[number].rewards_of.remote(pattern, trajectory)
            rewards: list[float] = await ray_calls.result_of(reference, functools.partial(RoleLost, "rewards"))
        finally:
            self._pending[number] -= 1
        return rewards

    def counts(self) -> dict[str, float]:
        """Return the judges' counts over all actors."""
        total: dict[str, float] = {}
        for counts in ray.get([actor.counts.remote() for actor in self.actors]):
            total |= {name: total.get(name, 0) + value for name, value in counts.items()}
        return total

    def close(self) -> None:
        """End the actors."""
        for actor in self.actors:
            ray_calls.kill_actor(actor)


def _actors(kind: type, name: str, role: RoleConfig, *arguments: Any) -> list[Any]:
    """Start the actors of a role."""
    options = {"num_cpus": role.cpus, "num_gpus": role.gpus, "resources": role.resources}
    ray_calls.check_room(role.actors, options, f"lower placement.roles.{name}")
    retries: dict[str, Any] = {"max_restarts": _RESTARTS, "max_task_retries": _RESTARTS}
    actor: Any = ray.remote(kind).options(scheduling_strategy="SPREAD", **options, **retries)
    return [actor.remote(role, registry.added_specs(), *arguments) for _ in range(role.actors)]


class _Model:
    """An actor with a reference or teacher model."""

    def __init__(
        self, role: RoleConfig, environments: Mapping[str, EnvSpec], config: TrainConfig, wrappers: Wrappers, name: str
    ):
        if not role.gpus:  # Ray does not hide GPUs from actors without any
            os.environ |= dict.fromkeys(("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"), "")
        torch.set_num_threads(max(1, int(role.cpus)))
        registry.add_specs(environments)
        self.reader, self.vocabulary = reading_model(config, wrappers, name)

    def about(self) -> tuple[bool, dict[str, int]]:
        """Return whether the model reads packed sequences, and its vocabulary."""
        return self.reader.packs, self.vocabulary

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def logprobs(self, batch: Packed, outputs: tuple[Output, ...]) -> Outputs:
        return on("cpu", self.reader.logprobs(on(self.reader.device, batch), outputs))


class _Rewards:
    """An actor that computes rewards."""

    def __init__(self, role: RoleConfig, environments: Mapping[str, EnvSpec], config: TrainConfig):
        registry.add_specs(environments)
        self.rewards = DomainRewards(config)

    async def rewards_of(self, pattern: str, trajectory: Trajectory) -> list[float]:
        return await self.rewards.of(pattern, trajectory)

    async def counts(self) -> dict[str, float]:
        return self.rewards.counts()
