"""Starts real servers for tests and benchmarks."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import httpx

from rollenv.serve.auth import new_token

HERE = Path(__file__).parent

#: For requests whose time is not what a test is about: httpx gives up after 5 seconds, which a busy machine may take.
patient = httpx.Client(timeout=300, limits=httpx.Limits(max_keepalive_connections=0))


def tokens_in(folder: Path, **scopes: str) -> tuple[str, dict[str, str]]:
    """A file of tokens for ``--tokens``, and the tokens by their clients' names; the scopes are words."""
    made = {name: new_token(name, words.split()) for name, words in scopes.items()}
    file = folder / "tokens.toml"
    file.write_text("".join(lines for _, lines in made.values()))
    return str(file), {name: token for name, (token, _) in made.items()}


class Served:
    """A server in a process of its own, which runs the statement ``first`` before it starts."""

    def __init__(
        self,
        *args: str,
        port: int = 0,
        env: dict[str, str] | None = None,
        workers: int = 2,
        stderr: IO[str] | None = None,
        first: str = "pass",
    ):
        code = f"import oddities; from rollenv.cli.main import main; {first}; main()"
        command = [sys.executable, "-c", code, "serve", "--port", str(port), "--workers", str(workers), *args]
        path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
        environ = os.environ | {"PYTHONPATH": path} | (env or {})
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environ)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"https?://(\S+):(\d+)", line)
        assert found, f"the server did not start: {line!r}, exit code {self.process.poll()}"
        self.port = int(found[2])
        self.http = f"http://127.0.0.1:{self.port}"
        self.address = f"rollenv+ws://127.0.0.1:{self.port}"

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def stop(self) -> None:
        """End it by force, however it is; its workers end with it."""
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait(20)
        if self.process.stdout is not None:
            self.process.stdout.close()
