"""``rollenv health``"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import typer
from rich.text import Text

from rollenv.cli.common import console, print_result, print_table
from rollenv.core.errors import RollenvError, UsageError, reads
from rollenv.core.proxies import without_proxy
from rollenv.remote.address import ADVICE
from rollenv.report.summary import duration
from rollenv.rollout.records.storage import read_object

#: Age in seconds after which a record is marked as old.
_OLD_SECONDS = 10.0
_QUANTILES = ("p50", "p95", "p99")


def command(
    where: str = typer.Argument(metavar="RUN|URL", help="Folder of a run, or URL of a server."),
) -> None:
    """Show how the environments and workers of a rollout are doing. The exit code is 1 if an environment is failing."""
    if where.startswith(("http://", "https://")):
        health = _fetch(where)
    else:
        path = Path(where)
        health = read_object(path / "health.json" if path.is_dir() else path, "a rollout writes it into its run folder")
    with reads(f"{where} holds no health; name a run's folder, or a server's URL"):
        if not print_result(health):
            _print(health)
        if any(env["state"] != "up" for env in health["envs"]):
            raise typer.Exit(1)


def _fetch(url: str) -> dict[str, Any]:
    import httpx

    address = url.rstrip("/") + "/health"
    try:
        token = os.environ.get("ROLLENV_TOKEN", "").strip()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        with httpx.Client(timeout=10.0, headers=headers, mounts=without_proxy(address)) as client:
            answer = client.get(address)
        if answer.status_code in (401, 403):
            raise UsageError(f"{address}: {_said(answer.text)}. {ADVICE}")
        answer.raise_for_status()
        health: dict[str, Any] = answer.json()
    except (httpx.HTTPError, ValueError) as error:
        raise RollenvError(f"no health from {address}: {error}") from error
    return health


def _said(text: str) -> str:
    """Return the sentence in a server's error."""
    try:
        return str(json.loads(text)["detail"])[:300]
    except (ValueError, LookupError, TypeError):
        return text[:300]


def _print(health: dict[str, Any]) -> None:
    age = time.time() - health["time"]
    written = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(health["time"]))
    if age > _OLD_SECONDS:
        written += f", {duration(age)} ago"
    console.print(f"written {written}")
    kinds = ("completed", "failed", "cancelled")
    envs = [[_name(record), _state(record), *_counts(record, *kinds)] for record in health["envs"]]
    print_table(["environment", "state", *kinds], envs, ids=True)
    workers = [
        [
            _name(record),
            _state(record),
            *(str(record.get(name, "-")) for name in ("envs", "deaths")),
            *_counts(record, "step", "raised", "hung", "lost"),
        ]
        for record in health["workers"]
    ]
    print_table(["worker", "state", "envs", "deaths", "steps", "raised", "hung", "lost"], workers, ids=True)
    times = [
        [_name(record), *(_latency(record, "step", q) for q in _QUANTILES), _latency(record, "reset", "p99")]
        for record in [*health["envs"], *health["workers"]]
    ]
    print_table(["time", "step p50", "p95", "p99", "reset p99"], times, ids=True)
    for record in health["envs"]:
        for reason, number in record["reasons"].items():
            since = time.strftime("%H:%M:%S", time.localtime(record["failing_since"]))
            console.print(f"{record['name']} since {since}: {number} times {reason}", markup=False)


def _counts(record: dict[str, Any], *names: str) -> list[str]:
    return [str(record.get("counts", {}).get(name, 0)) for name in names]


def _name(record: dict[str, Any]) -> str:
    return str(record["name"] if "name" in record else record["worker"])


def _latency(record: dict[str, Any], operation: str, quantile: str) -> str:
    quantiles = record.get("latency", {}).get(operation) or {}
    if quantile not in quantiles:
        return "-"
    seconds = quantiles[quantile]
    if seconds >= 0.1:
        return f"{seconds:.2f} s"
    if seconds >= 0.001:
        return f"{1000 * seconds:.2g} ms"
    return f"{1e6 * seconds:.0f} µs"


def _state(record: dict[str, Any]) -> Text:
    state = record["state"]
    return Text(state, style={"up": "green", "starting": "yellow", "quarantined": "yellow"}.get(state, "red"))
