"""Stored data of a rollout: trajectories in files, samples for trainers, health, statistics."""
