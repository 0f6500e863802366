"""What is stored of a rollout: trajectories in files, samples for trainers, health, statistics."""
