"""Playing tasks: trajectories, groups, the manager, evaluation."""
