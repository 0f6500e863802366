"""A machine that is emptied between tasks."""

import pytest

from rollenv.envs.shell.workspace import MachineWorkspace
from rollenv.sandbox import Machine


class Bench:
    """One machine for many tasks."""

    def __init__(self, machine):
        self.machine, self.place = machine, MachineWorkspace(machine)

    def begin(self, task):
        """The task's start, and nothing of the task before."""
        self.machine.end_processes()
        self.machine.run("find /app -mindepth 1 -delete")
        self.place.prepare(task.files, task.setup)
        return self

    def act(self, *commands):
        for command in commands:
            self.machine.run(["/bin/bash", "-c", command], cwd="/app", timeout=30)
        return self

    def solve(self, task):
        return self.begin(task).act(*task.oracle)


@pytest.fixture(scope="session")
def bench():
    with Machine.create() as machine:
        yield Bench(machine)
