"""``rollenv gateway``"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rollenv.cli.common import SEND_AS_HELP, AgentOptions, console, make_agent, sent_names
from rollenv.core.errors import UsageError, writes

#: Seconds between two looks for a new checkpoint.
_FOLLOW_SECONDS = 1.0
#: Seconds for an answer of an upstream endpoint, which clients of the gateway wait too by default.
_TIMEOUT = 600.0
#: Characters for a reward in a file of chats.
_REWARD = 25

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from rollenv.agents.gateway.gateway import Gateway
    from rollenv.agents.gateway.session import GatewaySession


def command(
    model: str = typer.Option("", metavar="NAME", help="Model: local:FOLDER, vllm:FOLDER, or a name at --upstream."),
    upstream: str = typer.Option("", metavar="URL", help="OpenAI-compatible endpoint whose answers are recorded."),
    host: str = typer.Option("127.0.0.1", help="Address to listen on for agents; anyone who reaches it needs a key."),
    port: int = typer.Option(8900, min=0, max=65535, help="Port for agents; 0 picks a free one."),
    admin_port: int = typer.Option(
        8901, min=0, max=65535, help="Port on 127.0.0.1 for opening and rewarding sessions."
    ),
    record: Path = typer.Option(None, help="File that records all calls; its unfinished sessions are continued."),
    chats: Path = typer.Option(
        None, help="File to which finished sessions are appended as chats, for supervised training."
    ),
    follow: Path = typer.Option(
        None, metavar="RUN", help="Run folder whose checkpoints are served as they are written, without a pause."
    ),
    temperature: float = typer.Option(None, min=0, help="Sampling temperature. Default: what each client requests."),
    max_tokens: int = typer.Option(
        None, min=1, help="Maximum tokens per answer. Default: 1024, but none with --upstream."
    ),
    threads: int = typer.Option(None, min=1, help="CPU threads of local:FOLDER. Default: the idle cores."),
    seed: int = typer.Option(0, help="Seed for sampling."),
    calls: int = typer.Option(1000, min=1, help="Maximum number of calls per session."),
    tokens: int = typer.Option(1_000_000, min=1, help="Maximum number of sampled tokens per session."),
    send_as: str = typer.Option("", metavar="KEY=NAME,...", help=SEND_AS_HELP),
) -> None:
    """Serve a model to existing agent programs, and record the tokens of their calls.

    Agents use chat completions, Responses, Messages or Gemini. The first session opens at once; its settings are
    printed. Open, reward and finish others at the admin port: POST /sessions, /sessions/ID/reward, /sessions/ID/finish,
    GET /sessions/ID, /sessions/ID/samples, /metrics. The admin key is $ROLLENV_GATEWAY_KEY, or a random one.
    """
    from rollenv.agents.gateway.gateway import Gateway
    from rollenv.agents.gateway.session import Caps

    if not model and not upstream:
        raise UsageError("name the model to serve with --model: local:FOLDER, vllm:FOLDER, or a name at --upstream")
    gateway = Gateway(
        _model(
            model,
            upstream,
            AgentOptions(temperature=temperature, max_tokens=max_tokens, threads=threads, send_as=send_as),
        ),
        host=host,
        port=port,
        record=record,
        caps=Caps(calls=calls, tokens=tokens),
        seed=seed,
    )
    if follow and upstream:
        raise UsageError("--follow needs a model of this gateway: local:FOLDER or vllm:FOLDER")
    if chats is not None:
        gateway.on_finish = _writer(chats)
    if upstream:
        console.print("answers come from a foreign endpoint: they have no tokens, and are recorded only")
    asyncio.run(_serve(gateway, admin_port, follow))
    open_ones = sum(not session.over and bool(session.tree.nodes) for session in gateway.sessions.values())
    if chats is not None and open_ones:
        console.print(f"{open_ones} sessions with calls were not finished: {chats} has only what was finished before")


def _model(model: str, upstream: str, options: AgentOptions) -> Any:
    """Make the model of a name, or the upstream endpoint."""
    from rollenv.agents.chat.endpoint import Endpoint, Patience
    from rollenv.agents.gateway.endpoint import Upstream
    from rollenv.agents.gateway.policy import PolicyModel

    if upstream:
        if options.threads:
            raise UsageError("--threads is for --model local:FOLDER, not for --upstream")
        sampling = {"temperature": options.temperature, "max_tokens": options.max_tokens}
        body = {name: value for name, value in sampling.items() if value is not None}
        key, names = os.environ.get("OPENAI_API_KEY") or None, sent_names(options.send_as)
        return Upstream(Endpoint(upstream, key, names=names, patience=Patience(_TIMEOUT)), model, body=body)
    if model.partition(":")[0] not in ("local", "vllm"):
        raise UsageError(f"--model {model} needs --upstream URL, or is local:FOLDER or vllm:FOLDER")
    agent = make_agent(model, replace(options, max_tokens=options.max_tokens or 1024))
    return PolicyModel(agent, client_sampling=options.temperature is None)


def _writer(file: Path) -> Any:
    """Return a function that writes a finished session's chats to a file, and later their reward alone.

    It fails at once if the file is not writable.
    """
    with writes(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        open(file, "a").close()
    lock = threading.Lock()

    def write(session: GatewaySession) -> None:
        # The reward has a fixed place and width, so that a later one replaces it.
        start = f'{{"session": "{session.id}", "reward": '
        reward = json.dumps(session.total_reward).ljust(_REWARD)
        with lock, open(file, "r+b") as rows, open(file, "ab") as out:
            places, at = [], 0
            for line in rows:
                if line.startswith(start.encode()):
                    places.append(at + len(start))
                at += len(line)
            for place in places:
                os.pwrite(rows.fileno(), reward.encode(), place)
            for chat in () if places else session.chats():
                rest = json.dumps({"task": session.task, **chat})
                out.write(f"{start}{reward}, {rest[1:]}\n".encode())

    return write


async def _follow(agent: Any, run: Path) -> None:
    """Load every new checkpoint of a run into the agent's engine; calls in progress continue with it."""
    from rollenv.agents.local import LocalAgent
    from rollenv.trainers.batches import as_saved
    from rollenv.trainers.checkpoint import CheckpointError, checkpoints, load

    seen = None
    while True:
        newest = next(reversed(checkpoints(run / "checkpoints")), None)
        if newest not in (None, seen):
            try:
                trained, _, about = await asyncio.to_thread(load, newest, plays=False)
            except CheckpointError as error:  # a newer one may have replaced it
                logger.warning("%s", error)
            else:
                await agent.suspend()
                try:
                    weights = trained.model.state_dict().items()
                    await agent.update_weights(
                        weights if isinstance(agent, LocalAgent) else as_saved(trained.model, weights)
                    )
                    agent.version = about["version"]
                finally:
                    await agent.resume()
                console.print(f"serving {newest}", soft_wrap=True, markup=False)
            seen = newest
        await asyncio.sleep(_FOLLOW_SECONDS)


async def _serve(gateway: Gateway, admin_port: int, follow: Path | None) -> None:
    """Serve until SIGINT or SIGTERM."""
    from rollenv.agents.gateway.server import admin_app
    from rollenv.core.http_server import HttpServer

    over = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    key = os.environ.get("ROLLENV_GATEWAY_KEY") or secrets.token_hex(32)
    admin = HttpServer(admin_app(gateway, key), "127.0.0.1", admin_port)
    await admin.start()
    async with gateway:
        session = gateway.open("the first session")
        console.print(f"agents: {gateway.url}", soft_wrap=True)
        console.print(f"administrator: http://127.0.0.1:{admin.port}, Authorization: Bearer {key}", soft_wrap=True)
        console.print(f"session {session.id}:", soft_wrap=True)
        console.print(f"  OPENAI_BASE_URL={session.base_url} OPENAI_API_KEY={session.key}", soft_wrap=True)
        console.print(f"  ANTHROPIC_BASE_URL={session.anthropic_url} ANTHROPIC_API_KEY={session.key}", soft_wrap=True)
        console.print(f"  GOOGLE_GEMINI_BASE_URL={session.anthropic_url} GEMINI_API_KEY={session.key}", soft_wrap=True)
        model: Any = gateway.model
        following = asyncio.create_task(_follow(model.agent, follow)) if follow else None
        stopped = asyncio.create_task(over.wait())
        await asyncio.wait(filter(None, (following, stopped)), return_when=asyncio.FIRST_COMPLETED)
        if following and not following.cancel():
            following.result()  # raises what ended it
    await admin.stop()
    admin.close()
