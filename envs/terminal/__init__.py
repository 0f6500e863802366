"""What tasks in a terminal share: an environment with a shell, guards around grading, task folders of others."""
