"""``rollenv serve``"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from rollenv.cli.common import console, error_console
from rollenv.core import UsageError
from rollenv.serve.protocols import PROTOCOLS

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
    host: str = typer.Option("127.0.0.1", help="Address to listen on; other machines need tokens."),
    port: int = typer.Option(8800, min=0, max=65535, help="Port; 0 for any free one."),
    workers: int = typer.Option(0, min=0, help="Worker processes; 0 for one each core."),
    inline: list[str] = typer.Option([], metavar="PATTERN", help="Ids that play in the server's process, as 'game:*'."),
    sessions: int = typer.Option(1024, min=1, help="Sessions at the same time."),
    per_client: int = typer.Option(0, min=0, help="Sessions of one token at the same time; 0 for no limit."),
    rate: float = typer.Option(0.0, min=0, help="Requests of one token a second; 0 for no limit."),
    compute: float = typer.Option(0.0, min=0, help="Seconds of computing of one token a minute; 0 for no limit."),
    idle: float = typer.Option(1800.0, min=0.1, help="Seconds without a call after which a session ends."),
    gone: float = typer.Option(300.0, min=0.1, help="Seconds after which a session ends whose client has gone."),
    reset_deadline: float = typer.Option(300.0, min=0.1, help="Seconds for building or resetting an environment."),
    step_deadline: float = typer.Option(120.0, min=0.1, help="Seconds for every other call into one."),
    sandboxes: int = typer.Option(64, min=0, help="Sandboxes at the same time."),
    protocols: str = typer.Option(",".join(PROTOCOLS), "--protocols", "--faces", help="Protocols beside its own."),
    tokens: Path = typer.Option(None, help="TOML file with the hashes of tokens."),
    new_token: str = typer.Option("", metavar="NAME", help="Print a token for a client, and its lines for the file."),
    scopes: str = typer.Option("environments", help="What the new token is for: environments, sandboxes, admin."),
    allow_host: list[str] = typer.Option([], help="Another name by which clients may call the server."),
    certificate: Path = typer.Option(None, help="TLS: file of the certificate."),
    key: Path = typer.Option(None, help="TLS: file of its key."),
    drain: float = typer.Option(30.0, min=0, help="Seconds that sessions get to end when it stops."),
    hand_over: str = typer.Option(
        "", metavar="PLACE", help="File, or URL of another server, through which sessions go on when this one stops."
    ),
    silence: float = typer.Option(900.0, min=0.1, help="Seconds without a message after which a connection ends."),
    log: str = typer.Option("off", help="Log requests and who opens what, on standard error: off, text or json."),
    traces: bool = typer.Option(False, help="Send traces to OpenTelemetry's collector (OTEL_EXPORTER_OTLP_ENDPOINT)."),
    group_reward: str = typer.Option("", metavar="MODULE:FUNCTION", help="Scores groups for OpenReward's clients."),
    any_arguments: bool = typer.Option(False, help="Take arguments of environments that name files and programs."),
) -> None:
    """Serve environments and sandboxes to any client, from worker processes on this machine."""
    from rollenv.serve import auth
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
        hand_over=hand_over,
        silence=silence,
        group_reward=group_reward,
        traces=traces,
        sessions=limits,
        sandboxes=SandboxLimits(sandboxes=sandboxes, idle=idle),
    )
    write_to_stderr(log)
    _serve(settings, port, ServedWorkers(workers or None, envs_per_process=sessions, inline=inline))


command.__doc__ = f"{command.__doc__}\n{_EXAMPLES}"


def _serve(settings: Settings, port: int, workers: ServedWorkers) -> None:
    from rollenv.serve import run

    run.return_memory()
    sock = run.listen(settings.host, port, min(run.UNREAD, settings.silence))
    address = f"{'https' if settings.tls else 'http'}://{settings.host}:{sock.getsockname()[1]}"

    def ready() -> None:
        console.print(f"serving on {address}", soft_wrap=True, markup=False)

    with sock, workers:
        run.run(run.serve(settings, workers, sock, ready))
