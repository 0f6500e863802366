"""Workers: environments in this process, in worker processes, in Ray actors or on servers."""

from rollenv.rollout.workers.base import EnvFailure, InlineWorkers, WorkerEnv, Workers

__all__ = ["EnvFailure", "InlineWorkers", "WorkerEnv", "Workers"]
