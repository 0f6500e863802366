"""The shared parts of terminal tasks: an environment with a shell, guards around grading, task folders of others."""
