"""The shell tool of the programs in this folder."""

import os
import subprocess
import sys

MODEL, MAX_TURNS = os.environ["HARNESS_MODEL"], int(os.environ["HARNESS_MAX_TURNS"])
TASK = sys.stdin.read()
INSTRUCTIONS = "You solve tasks on this computer with the tool bash. When the task is done, say so."


def bash(command: str) -> str:
    """Run a command with bash and return what it prints.

    Args:
        command: a command line, or a script
    """
    done = subprocess.run(
        ["bash", "-c", command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    text = done.stdout.decode(errors="replace")[-10_000:]
    return text + (f"\n[exit code {done.returncode}]" if done.returncode else "")
