"""``rollenv serve``"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from rollenv.cli.common import console, error_console
from rollenv.core.errors import UsageError
from rollenv.core.registry import ENV_REGISTRY, spec
from rollenv.serve.protocols import protocols as all_protocols

if TYPE_CHECKING:
    from rollenv.serve.run import ServedWorkers
    from rollenv.serve.server import Settings

#: Shown by --help, one line for each client.
_EXAMPLES = """
Clients, once it runs on port 8800:

rollenv: rollenv.make("rollenv+ws://localhost:8800/game:Sokoban-v0-easy")

ROCK: ROCK_BASE_URL=http://localhost:8800, then rock.make("game:Sokoban-v0-easy")

OpenEnv: GenericEnvClient(base_url="http://localhost:8800/openenv/game:Sokoban-v0-easy")

E2B: E2B_API_URL=http://localhost:8800/e2b E2B_SANDBOX_URL=http://localhost:8800/e2b, then Sandbox.create()

SandboxFusion, verl, ROLL: POST http://localhost:8800/run_code

MCP: http://localhost:8800/mcp, or http://localhost:8800/mcp/env/game:Sokoban-v0-easy for one environment

A browser: http://localhost:8800/

OpenReward: OPENREWARD_API_URL=http://localhost:8800 OPENREWARD_SESSION_URL=http://localhost:8800
"""


def command(
    env: list[str] = typer.Argument(
        None, metavar="[ID]...", help="Environments of yours to serve too: module:Class or file.py:Class."
    ),
    host: str = typer.Option("127.0.0.1", help="Address to listen on; other machines need tokens."),
    port: int = typer.Option(8800, min=0, max=65535, help="Port to listen on; 0 picks a free one."),
    workers: int = typer.Option(0, min=0, help="Number of worker processes; 0 means one per core."),
    inline: list[str] = typer.Option(
        [], metavar="PATTERN", help="Ids to run in the server's process, such as 'game:*'."
    ),
    sessions: int = typer.Option(1024, min=1, help="Maximum number of concurrent sessions."),
    per_client: int = typer.Option(0, min=0, help="Maximum number of concurrent sessions per token; 0 means no limit."),
    rate: float = typer.Option(0.0, min=0, help="Maximum requests per second and token; 0 means no limit."),
    compute: float = typer.Option(0.0, min=0, help="Maximum compute seconds per minute and token; 0 means no limit."),
    idle: float = typer.Option(1800.0, min=0.1, help="Seconds without a call after which a session ends."),
    gone: float = typer.Option(300.0, min=0.1, help="Seconds that a session is kept after its client disconnects."),
    reset_deadline: float = typer.Option(
        300.0, min=0.1, help="Time limit in seconds to build or reset an environment."
    ),
    step_deadline: float = typer.Option(120.0, min=0.1, help="Time limit in seconds for other environment calls."),
    sandboxes: int = typer.Option(64, min=0, help="Maximum number of concurrent sandboxes."),
    sandbox: str = typer.Option("", help="Sandbox of clients and environments: local or docker."),
    image: str = typer.Option("", help="Image of the docker sandbox."),
    protocols: str = typer.Option(",".join(all_protocols()), help="Additional protocols to serve."),
    tokens: Path = typer.Option(None, help="TOML file with the token hashes."),
    new_token: str = typer.Option("", metavar="NAME", help="Print a new token, and its lines for the --tokens file."),
    scopes: str = typer.Option("environments", help="Scopes of the new token: environments, sandboxes, admin."),
    allow_host: list[str] = typer.Option([], help="Additional host name that clients may use for the server."),
    certificate: Path = typer.Option(None, help="TLS certificate file."),
    key: Path = typer.Option(None, help="TLS key file."),
    drain: float = typer.Option(30.0, min=0, help="Seconds that sessions have to end when the server stops."),
    silence: float = typer.Option(900.0, min=0.1, help="Seconds without a message after which a connection is closed."),
    log: str = typer.Option("off", help="Log requests and sessions to standard error: off, text or json."),
    traces: bool = typer.Option(False, help="Send traces to an OpenTelemetry collector (OTEL_EXPORTER_OTLP_ENDPOINT)."),
    group_reward: str = typer.Option(
        "", metavar="MODULE:FUNCTION", help="Function to score groups for OpenReward clients."
    ),
    packages: Path = typer.Option(
        None, metavar="INDEX", help="Folder of `rollenv publish`, to list on the page and to serve below /packages."
    ),
    any_arguments: bool = typer.Option(False, help="Accept environment arguments that name files and programs."),
) -> None:
    """Serve environments and sandboxes to any client, from worker processes on this machine."""
    from rollenv.core.tools.sandboxed import chosen
    from rollenv.sandbox.backends import DEFAULT
    from rollenv.serve import auth
    from rollenv.serve.catalog import read_catalog
    from rollenv.serve.logs import write_to_stderr
    from rollenv.serve.quotas import Quota, SessionLimits
    from rollenv.serve.run import ServedWorkers
    from rollenv.serve.sandboxes import SandboxLimits
    from rollenv.serve.server import Settings

    if new_token:
        token, lines = auth.new_token(new_token, [scope.strip() for scope in scopes.split(",")])
        error_console.print(f"the token, which is shown this once: {token}", soft_wrap=True, markup=False)
        console.print(lines, end="", soft_wrap=True, markup=False)
        return
    if (certificate is None) != (key is None):
        raise UsageError("TLS needs both --certificate and --key")
    ENV_REGISTRY.update({each: spec(each) for each in env or ()})
    if packages:
        read_catalog(str(packages))  # fails before the server starts
    limits = SessionLimits(
        sessions=sessions,
        each=Quota(per_client, rate, compute),
        idle=idle,
        gone=gone,
        reset=reset_deadline,
        step=step_deadline,
        any_arguments=any_arguments,
    )
    settings = Settings(
        host=host,
        protocols=tuple(name.strip() for name in protocols.split(",") if name.strip()),
        hosts=tuple(allow_host),
        tokens=tokens,
        tls=(certificate, key) if certificate else None,
        drain=drain,
        silence=silence,
        group_reward=group_reward,
        packages=packages,
        traces=traces,
        sessions=limits,
        sandboxes=SandboxLimits(sandboxes=sandboxes, idle=idle),
    )
    where = chosen(sandbox or None, image or None)
    os.environ[DEFAULT] = f"docker:{where['image']}" if where else "local"  # for the environments' processes too
    write_to_stderr(log)
    _serve(settings, port, ServedWorkers(workers or None, envs_per_process=sessions, inline=inline))


command.__doc__ = f"{command.__doc__}\n{_EXAMPLES}"


def _serve(settings: Settings, port: int, workers: ServedWorkers) -> None:
    from rollenv.serve import run

    run.return_memory()
    sock = run.listen(settings.host, port, min(run.UNREAD, settings.silence))
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address = f"{'https' if settings.tls else 'http'}://{host}:{sock.getsockname()[1]}"

    def ready() -> None:
        console.print(f"serving on {address}", soft_wrap=True, markup=False)

    with sock, workers:
        run.run(run.serve(settings, workers, sock, ready))
