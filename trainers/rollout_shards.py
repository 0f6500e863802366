"""The shards of a run: managers in Ray actors, each with its own engine and environments."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rollenv.agents.local import LocalAgent
from rollenv.core import registry
from rollenv.core.env_spec import EnvSpec
from rollenv.core.needs import extra
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.workers.factory import new_workers
from rollenv.trainers.config import TrainConfig
from rollenv.trainers.player_engines import limits_of, make_player

with extra("ray", "Playing in shards"):
    import ray

    from rollenv.rollout.ray_shards import RayShards


@dataclass(frozen=True)
class Build:
    """Creates a shard's manager, in its actor.

    Args:
        folder: folder of the initial model, available on every machine.
        environments: specs of environments that are not part of rollenv.
    """

    config: TrainConfig
    folder: Path
    version: int
    environments: dict[str, EnvSpec]

    def __call__(self) -> RolloutManager:
        registry.add_specs(self.environments)
        rollout, player = self.config.rollout, self.config.player
        base_agent = LocalAgent.load(self.folder, plays=player.kind == "local")
        base_agent.version = self.version
        return RolloutManager(
            make_player(player, base_agent, self.folder),
            new_workers(rollout.workers),
            limits=limits_of(rollout),
            max_concurrent=rollout.max_concurrent or None,
        )


class TrainingShards(RayShards):
    """The shards of a run, used as its player, on the cluster that this process is connected to."""

    def __init__(self, config: TrainConfig, base_agent: LocalAgent, folder: Path):
        rollout = config.rollout
        gpus = {"num_gpus": 1} if ray.cluster_resources().get("GPU") else {}  # type: ignore[no-untyped-call]
        super().__init__(
            rollout.shards,
            Build(config, folder.resolve(), base_agent.version, registry.added_specs()),
            actor_options={**gpus, **rollout.shard_options},
            max_losses=rollout.shard_losses,
            version=base_agent.version,
        )
        self.sampling = base_agent.sampling
