"""Servers under Ray Serve, on the two nodes of a real local cluster."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from clients import ROOT, run

from rollenv.serve.auth import new_token

HERE = Path(__file__).parent


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


@pytest.mark.integration
def test_servers_that_die_come_back_and_no_episode_is_lost(tmp_path):
    token, lines = new_token("ann", ["environments"])
    (tmp_path / "tokens.toml").write_text(lines)
    path = os.pathsep.join([str(ROOT), str(HERE)])
    found = run(
        "ray",
        (HERE / "cluster_session.py").read_text(),
        PYTHONPATH=path,
        ROLLENV_TOKEN=token,
        OPTIONS=f"--workers 1 --sandboxes 0 --drain 1 --tokens {tmp_path / 'tokens.toml'}",
        FIRST_PORT=str(free_port()),
        HTTP_PORT=str(free_port()),
        RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S="250",  # Ray gives up a slow machine after 5 s
    )
    assert [line[2:] for line in found if line.startswith("= ")] == [
        "a server was killed, and every episode ended",
        "there are two again",
        "a replica was killed, and every episode ended",
        "there are two again",
        "a node was lost, and every episode ended",
        "a new node has its server",
        "left over: []",
    ]
