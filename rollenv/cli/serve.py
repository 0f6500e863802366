"""``rollenv serve``"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rollenv.cli.common import console, error_console
from rollenv.cli.options import option
from rollenv.core.errors import UsageError
from rollenv.core.registry import ENV_REGISTRY, spec
from rollenv.serve.protocols import protocols as all_protocols

if TYPE_CHECKING:
    from rollenv.serve.quotas import SessionLimits

#: Shown by --help, one line for each client.
_EXAMPLES = Path(__file__).with_name("serve_clients.txt").read_text(encoding="utf-8")


@dataclass(frozen=True)
class ListenOptions:
    """Options of the address, and of who may use it."""

    host: str = option(default="127.0.0.1", help="Address to listen on; other machines need tokens.")
    port: int = option(default=8800, min=0, max=65535, help="Port to listen on; 0 picks a free one.")
    allow_host: list[str] = option(help="Additional host name that clients may use for the server.")
    tokens: Path | None = option(help="TOML file with the token hashes.")
    new_token: str = option(default="", metavar="NAME", help="Print a new token, and its lines for the --tokens file.")
    scopes: str = option(default="environments", help="Scopes of the new token: environments, sandboxes, admin.")
    certificate: Path | None = option(help="TLS certificate file.")
    key: Path | None = option(help="TLS key file.")
    drain: float = option(default=30.0, min=0, help="Seconds that sessions have to end when the server stops.")
    silence: float = option(
        default=900.0, min=0.1, help="Seconds without a message after which a connection is closed."
    )

    @property
    def settings(self) -> dict[str, Any]:
        """These options as settings of a server."""
        if (self.certificate is None) != (self.key is None):
            raise UsageError("TLS needs both --certificate and --key")
        return {
            "host": self.host,
            "hosts": tuple(self.allow_host or ()),
            "tokens": self.tokens,
            "tls": (self.certificate, self.key) if self.certificate and self.key else None,
            "drain": self.drain,
            "silence": self.silence,
        }


@dataclass(frozen=True)
class SessionOptions:
    """Options of the sessions of environments and of sandboxes."""

    workers: int = option(default=0, min=0, help="Number of worker processes; 0 means one per core.")
    inline: list[str] = option(metavar="PATTERN", help="Ids to run in the server's process, such as 'game:*'.")
    sessions: int = option(default=1024, min=1, help="Maximum number of concurrent sessions.")
    per_client: int = option(
        default=0, min=0, help="Maximum number of concurrent sessions per token; 0 means no limit."
    )
    rate: float = option(default=0.0, min=0, help="Maximum requests per second and token; 0 means no limit.")
    compute: float = option(default=0.0, min=0, help="Maximum compute seconds per minute and token; 0 means no limit.")
    idle: float = option(default=1800.0, min=0.1, help="Seconds without a call after which a session ends.")
    gone: float = option(default=300.0, min=0.1, help="Seconds that a session is kept after its client disconnects.")
    reset_deadline: float = option(
        default=300.0, min=0.1, help="Time limit in seconds to build or reset an environment."
    )
    step_deadline: float = option(default=120.0, min=0.1, help="Time limit in seconds for other environment calls.")
    any_arguments: bool = option(default=False, help="Accept environment arguments that name files and programs.")
    sandboxes: int = option(default=64, min=0, help="Maximum number of concurrent sandboxes.")
    sandbox: str = option(default="", help="Sandbox of clients and environments: local or docker.")
    image: str = option(default="", help="Image of the docker sandbox.")

    @property
    def limits(self) -> SessionLimits:
        """The limits of environments' sessions."""
        from rollenv.serve.quotas import Quota, SessionLimits

        return SessionLimits(
            sessions=self.sessions,
            each=Quota(self.per_client, self.rate, self.compute),
            idle=self.idle,
            gone=self.gone,
            reset=self.reset_deadline,
            step=self.step_deadline,
            any_arguments=self.any_arguments,
        )


def command(
    env: list[str] = typer.Argument(
        None, metavar="[ID]...", help="Environments of yours to serve too: module:Class or file.py:Class."
    ),
    protocols: str = typer.Option(",".join(all_protocols()), help="Additional protocols to serve."),
    log: str = typer.Option("off", help="Log requests and sessions to standard error: off, text or json."),
    traces: bool = typer.Option(False, help="Send traces to an OpenTelemetry collector (OTEL_EXPORTER_OTLP_ENDPOINT)."),
    group_reward: str = typer.Option(
        "", metavar="MODULE:FUNCTION", help="Function to score groups for OpenReward clients."
    ),
    packages: Path = typer.Option(
        None, metavar="INDEX", help="Folder of `rollenv publish`, to list on the page and to serve below /packages."
    ),
    *,
    where: ListenOptions,
    what: SessionOptions,
) -> None:
    """Serve environments and sandboxes to any client, from worker processes on this machine."""
    from rollenv.core.tools.sandboxed import chosen
    from rollenv.sandbox.backends import DEFAULT
    from rollenv.serve import auth, run
    from rollenv.serve.catalog import read_catalog
    from rollenv.serve.logs import write_to_stderr
    from rollenv.serve.sandboxes import SandboxLimits
    from rollenv.serve.server import Settings

    if where.new_token:
        token, lines = auth.new_token(where.new_token, [scope.strip() for scope in where.scopes.split(",")])
        error_console.print(f"the token, which is shown this once: {token}", soft_wrap=True, markup=False)
        console.print(lines, end="", soft_wrap=True, markup=False)
        return
    ENV_REGISTRY.update({each: spec(each) for each in env or ()})
    if packages:
        read_catalog(str(packages))  # fails before the server starts
    settings = Settings(
        protocols=tuple(name.strip() for name in protocols.split(",") if name.strip()),
        group_reward=group_reward,
        packages=packages,
        traces=traces,
        sessions=what.limits,
        sandboxes=SandboxLimits(sandboxes=what.sandboxes, idle=what.idle),
        **where.settings,
    )
    image = chosen(what.sandbox or None, what.image or None)
    os.environ[DEFAULT] = f"docker:{image['image']}" if image else "local"  # for the environments' processes too
    write_to_stderr(log)
    run.return_memory()
    sock = run.listen(where.host, where.port, min(run.UNREAD, where.silence))
    host = f"[{where.host}]" if ":" in where.host else where.host
    address = f"{'https' if settings.tls else 'http'}://{host}:{sock.getsockname()[1]}"
    workers = run.ServedWorkers(what.workers or None, envs_per_process=what.sessions, inline=what.inline or ())

    def ready() -> None:
        console.print(f"serving on {address}", soft_wrap=True, markup=False)

    with sock, workers:
        run.run(run.serve(settings, workers, sock, ready))


command.__doc__ = f"{command.__doc__}\n\n{_EXAMPLES}"
