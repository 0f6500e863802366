"""Failures between a harness and its gateway: the episode ends properly, and the call sent again is trained once."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import struct
import time

import pytest

from rollenv.agents.gateway.messages import FunctionCall, ModelAnswer
from rollenv.agents.gateway.session import SampledAnswer
from rollenv.agents.harness.agent import HarnessAgent
from rollenv.agents.harness.run import attached
from rollenv.core.errors import MissingExtra
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.types import Task, Trajectory
from rollenv.rollout.workers.factory import make_workers

#: Harnesses are taken from the user's cache, where they are installed once: each is some 100 MB.
CACHE = os.environ.get("ROLLENV_CACHE")
TASK = "shell:Logs-v0-easy"
#: Names under which harnesses offer a shell.
SHELLS = ("bash", "Bash", "exec_command", "shell")
COMMANDS = ("echo one", "echo two", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")


class Says:
    """Calls the shell three times, then ends with a text."""

    name, max_context, sees = "scripted", 100_000, False

    def accept(self, request):
        return request

    async def draw(self, session, place, request):
        shell = next(t["function"] for t in request.tools if t["function"]["name"] in SHELLS)
        argument = "cmd" if "cmd" in shell["parameters"]["properties"] else "command"
        said = sum(message.role == "assistant" for message in request.messages)
        answer = ModelAnswer("Done.")
        if said < len(COMMANDS):
            number = len(session.tree.nodes)
            call = FunctionCall(f"call_{number:032x}", shell["name"], json.dumps({argument: COMMANDS[said]}))
            answer = ModelAnswer("", (call,), finish="tool_calls")
        return SampledAnswer(answer, {"began": time.time(), "ended": time.time(), "has_tools": True})

    def count(self, session, place, request):
        return 100

    def ignores(self, request):
        return []

    def release(self, session):
        pass


class Faulty(HarnessAgent):
    """Reaches its gateway through a proxy that fails the second call."""

    def __init__(self, harness, fault):
        super().__init__(Says(), harness, seconds=120, max_turns=12)
        self.fault, self.asked, self.server = fault, 0, None

    async def prepare(self, env_id, kwargs):
        made = await super().prepare(env_id, kwargs)
        if self.server is None:
            self.server = await asyncio.start_server(self.relay, "127.0.0.1", 0)
        port = self.server.sockets[0].getsockname()[1]
        return {**made, "attached": attached(self.harness, f"127.0.0.1:{port}")}

    async def relay(self, reader, writer):
        """One request of a connection, which is closed after it."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            lines = [line for line in head[:-4].split(b"\r\n") if not line.lower().startswith(b"connection:")]
            fields = dict(line.lower().split(b": ", 1) for line in lines[1:])
            body = await reader.readexactly(int(fields.get(b"content-length", b"0")))
            is_call = lines[0].startswith(b"POST") and b"count_tokens" not in lines[0]
            self.asked += is_call
            fails = is_call and self.asked == 2
            if fails and self.fault[:3] in ("429", "500"):
                again = b"Retry-After: 1\r\n" if self.fault.endswith("with Retry-After") else b""
                status = self.fault[:3].encode() + b" Failed\r\nContent-Type: application/json\r\n"
                error = b'{"type": "error", "error": {"type": "api_error", "message": "a failure"}}'
                size = b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(error)
                writer.write(b"HTTP/1.1 " + status + again + size + error)
            elif fails and self.fault == "reset":
                self.reset(writer)
            else:
                host, port = self.gateway.address.split(":")
                there, out = await asyncio.open_connection(host, int(port))
                out.write(b"\r\n".join([*lines, b"Connection: close", b"", b""]) + body)
                answer = await there.read()
                out.close()
                if fails:  # the answer is there, and is lost
                    writer.write(answer[: answer.index(b"\r\n\r\n") + 4])
                    await writer.drain()
                    self.reset(writer)
                else:
                    writer.write(answer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def reset(self, writer):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()


@pytest.mark.integration
@pytest.mark.skipif(shutil.which("npm") is None, reason="harnesses are installed with npm")
@pytest.mark.parametrize("fault", ["429", "429 with Retry-After", "500", "reset", "cut before the first byte"])
@pytest.mark.parametrize("harness", ["mini-swe-agent", "pi", "codex", "claude-code"])
def test_a_failed_call_is_sent_again_and_trained_once(harness, fault, monkeypatch):
    monkeypatch.setenv("ROLLENV_CACHE", CACHE) if CACHE else monkeypatch.delenv("ROLLENV_CACHE", raising=False)
    agent = Faulty(harness, fault)
    with make_workers("inline") as workers, RolloutManager(agent, workers) as manager:
        try:
            (played,) = manager.play([Trajectory(Task(TASK, 3))])
        except MissingExtra as error:
            pytest.skip(str(error))
    nodes = played.record.get("nodes", [])
    kinds = [node["kind"] for node in nodes]
    print(harness, fault, played.status, "asked", agent.asked, kinds, played.record.get("counts"), played.error[-200:])
    main = [node for node in nodes if node["kind"] == "main"]
    if (harness, fault) == ("codex", "429"):  # it dies of one without a hint, which the gateway never sends
        assert len(main) == 1
        return
    assert [node["parent"] for node in main] == [None, *(node["number"] for node in main[:-1])]
    assert len(main) == (3 if harness == "mini-swe-agent" else 4)
    assert set(kinds) <= {"main", "superseded", "cancelled"}
