"""Let the difficulty follow the agent. Needs: a base install."""

from rollenv.agents import OracleAgent
from rollenv.core.curriculum import Curriculum, Schedule
from rollenv.rollout import RolloutManager, Task

curriculum = Curriculum.for_env("game:Sokoban-v0-easy")
schedule = Schedule(len(curriculum), seed=0, window=16, up=0.7, down=0.2)
print(f"{len(curriculum)} levels, the first: {curriculum[0]}")

with RolloutManager(OracleAgent(noise=0.2)) as manager:
    for batch in range(8):
        levels = [schedule.choose(16 * batch + i) for i in range(16)]
        tasks = [
            Task(curriculum.env_id, seed=16 * batch + i, kwargs=curriculum[level]) for i, level in enumerate(levels)
        ]
        groups = manager.collect(tasks, group_size=1)
        for level, group in zip(levels, groups, strict=True):
            schedule.record(level, group.trajectories[0].success)
        won = sum(group.trajectories[0].success for group in groups)
        print(f"batch {batch}: won {won:2} of 16, next level {schedule.level}")
