"""The metrics that Prometheus reads at ``/metrics``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from rollenv import __version__
from rollenv.needs import extra
from rollenv.serve.sandboxes import SandboxManager
from rollenv.serve.sessions import SessionManager

with extra("serve", "rollenv serve"):
    from prometheus_client import CollectorRegistry, Histogram
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
    from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
    from prometheus_client.registry import Collector

CONTENT_TYPE = CONTENT_TYPE_LATEST

#: Seconds, from a cheap step to a slow reset.
_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class Metrics(Collector):
    """The metrics of one server, read when they are asked for."""

    def __init__(self, sessions: SessionManager, sandboxes: SandboxManager):
        self._sessions, self._sandboxes = sessions, sandboxes
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        calls = Histogram(
            "rollenv_env_call_seconds",
            "Time of calls into environments that succeeded, with the way to their workers.",
            ["method"],
            registry=self._registry,
            buckets=_BUCKETS,
        )
        known = {name: calls.labels(method=name) for name in ("reset", "step", "other")}
        sessions.on_call_time = lambda method, seconds: known.get(method, known["other"]).observe(seconds)

    def text(self) -> bytes:
        """All of it, in Prometheus's format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """The numbers that are kept elsewhere."""
        sessions, sandboxes = self._sessions, self._sandboxes
        yield InfoMetricFamily("rollenv_server", "What runs.", {"version": __version__})
        for name, value, told in (
            ("sessions_open", len(sessions.by_name), "Sessions of environments."),
            ("sessions_max", sessions.limits.sessions, "Sessions that there may be."),
            ("calls_waiting", sessions.queue.waiting, "Calls into environments that wait for their turn."),
            ("sandboxes_open", len(sandboxes.by_name), "Sandboxes of clients."),
            ("sandboxes_max", sandboxes.limits.sandboxes, "Sandboxes that there may be."),
            ("programs_waiting", sandboxes.queue.waiting, "Programs that wait for the pool."),
            ("draining", int(sessions.draining), "1 when the server is about to stop."),
        ):
            yield GaugeMetricFamily(f"rollenv_{name}", told, value)
        for what, counts in (("session", asdict(sessions.counters)), ("sandbox", asdict(sandboxes.counters))):
            for name, value in counts.items():
                yield CounterMetricFamily(f"rollenv_{what}_{name}", f"{name} of {what} since the start.", value)
        yield from self._workers()
        yield from self._envs()

    def _workers(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("rollenv_worker_up", "1 where a worker process is up.", labels=["worker"])
        envs = GaugeMetricFamily("rollenv_worker_envs", "Environments in a worker process.", labels=["worker"])
        deaths = CounterMetricFamily("rollenv_worker_deaths", "How often a worker died.", labels=["worker"])
        for row in self._sessions.workers.report():
            name = [str(row["worker"])]
            up.add_metric(name, float(row["state"] == "up"))
            envs.add_metric(name, float(row["envs"]))
            deaths.add_metric(name, float(row["deaths"]))
        yield from (up, envs, deaths)

    def _envs(self) -> Iterator[Metric]:
        events = CounterMetricFamily(
            "rollenv_env_events", "Calls that succeeded, ends of episodes and failures.", labels=["env", "event"]
        )
        for record in self._sessions.health.envs.values():
            for event, count in record.counts.items():
                events.add_metric([record.name, event], count)
        yield events
