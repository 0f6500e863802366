"""Harbor's Terminus 2, which works in the machine that it runs in."""

import asyncio
import os
import subprocess
from pathlib import Path

from harbor.agents.terminus_2 import Terminus2
from harbor.environments.base import ExecResult
from harbor.models.agent.context import AgentContext
from shell_tool import MAX_TURNS, MODEL, TASK


class Here:
    """This machine, with the part of Harbor's environment interface that the agent uses."""

    session_id, default_user = "here", None

    async def exec(self, command, cwd=None, env=None, timeout_sec=None, user=None):
        """Run a command as the current user."""
        settings = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "errors": "replace", "cwd": cwd}
        done = await asyncio.to_thread(subprocess.run, ["bash", "-c", command], timeout=timeout_sec, **settings)
        return ExecResult(stdout=done.stdout, stderr=done.stderr, return_code=done.returncode)


async def main():
    """Play the task."""
    agent = Terminus2(
        Path(os.environ["HARNESS_HOME"]),
        f"openai/{MODEL}",
        MAX_TURNS,
        api_base=os.environ["OPENAI_BASE_URL"],
        model_info={"max_input_tokens": int(os.environ["HARNESS_CONTEXT"])},
        record_terminal_session=False,
    )
    subprocess.run(["mkdir", "-p", "/logs/agent"])  # for its terminal record
    await agent.setup(Here())
    await agent.run(TASK, Here(), AgentContext())


asyncio.run(main())
