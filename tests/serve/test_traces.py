"""Traces of OpenTelemetry, as a collector receives them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import httpx
import pytest
from listening import Answers, listening
from played import to_the_end
from serving import patient, tokens_in
from waiting import eventually

import rollenv
from rollenv.core.errors import UnknownEnv

service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2", reason="needs the extra otel")

CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Collector:
    """Takes spans over OTLP."""

    def __init__(self):
        outer = self

        class Handler(Answers):
            def do_POST(self):
                asked = service.ExportTraceServiceRequest()
                asked.ParseFromString(self.rfile.read(int(self.headers["content-length"])))
                outer.received.append(asked)
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

        self.received, self.handler = [], Handler

    def spans(self):
        return [
            s for told in self.received for r in told.resource_spans for scope in r.scope_spans for s in scope.spans
        ]

    def wait(self, name, count=1):
        """The spans of a name, once there are so many."""

        def named():
            return [span for span in self.spans() if span.name == name]

        assert eventually(lambda: len(named()) >= count), sorted({span.name for span in self.spans()})
        return named()


@pytest.fixture
def collector():
    collector = Collector()
    with listening(collector.handler) as address:
        collector.environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{address}", "OTEL_BSP_SCHEDULE_DELAY": "100"}
        yield collector


def about(span):
    return {a.key: a.value.string_value or a.value.int_value for a in span.attributes}


@pytest.mark.integration
def test_a_call_has_a_span_and_its_worker_a_child(serve, collector):
    served = serve("--traces", env=collector.environ)
    env = rollenv.make(f"{served.address}/game:Sokoban-v0-tiny")
    env.reset(seed=3)
    turns = len(to_the_end(env))
    with pytest.raises(UnknownEnv):
        rollenv.make(f"{served.address}/game:Sokobam-v0")
    env.close()
    (reset,), (child,) = collector.wait("call reset"), collector.wait("worker reset")
    told = about(reset)
    assert (told["rollenv.env"], told["rollenv.outcome"]) == ("game:Sokoban-v0-tiny", "ok")
    assert len(told["rollenv.session"]) == 6
    assert told["rollenv.owner"]
    assert (child.parent_span_id, child.trace_id) == (reset.span_id, reset.trace_id)
    assert {"rollenv.worker", "rollenv.env", "rollenv.session", "rollenv.method"} <= about(child).keys()
    steps, below = collector.wait("call step", turns), collector.wait("worker step", turns)
    assert [span.parent_span_id for span in below] == [span.span_id for span in steps]
    wrong = eventually(
        lambda: [s for s in collector.spans() if s.name == "spec" and about(s)["rollenv.outcome"] == "UnknownEnv"]
    )
    assert [span.status.code for span in wrong] == [0], "it is the client's fault"


@pytest.mark.integration
def test_a_request_continues_the_trace_of_its_caller(serve, collector, tmp_path):
    file, tokens = tokens_in(tmp_path, ann="environments")
    served = serve("--traces", "--tokens", file, env=collector.environ)
    headers = {"Authorization": f"Bearer {tokens['ann']}", "traceparent": CALLER}
    client = httpx.Client(base_url=served.http, headers=headers, timeout=60)
    assert client.post("/openenv/game:Sokoban-v0-tiny/reset", json={"seed": 3}).status_code == 200
    assert client.post("/openenv/no:Such-v0/reset", json={}).status_code == 404
    assert patient.get(f"{served.http}/livez").status_code == 200
    right, wrong = collector.wait("POST /openenv/{env_id}/reset", 2)
    assert right.trace_id.hex() == CALLER.split("-")[1]
    assert right.parent_span_id.hex() == CALLER.split("-")[2]
    told = about(right)
    assert (told["rollenv.owner"], told["rollenv.env"]) == ("ann", "game:Sokoban-v0-tiny")
    assert (told["http.response.status_code"], about(wrong)["http.response.status_code"]) == (200, 404)
    children = [span for span in collector.wait("worker reset") if span.parent_span_id == right.span_id]
    assert len(children) == 1
    assert not [span for span in collector.spans() if "livez" in span.name]
    assert tokens["ann"] not in str(collector.received)


@pytest.mark.integration
def test_a_replay_is_seen(serve, collector, tmp_path):
    served = serve("--traces", env=collector.environ)
    env = rollenv.make(f"{served.address}/test:Moody-v0")
    env.reset(seed=1)
    env.step(f"dieonce {tmp_path / 'died'}")
    env.close()
    (step,) = collector.wait("call step")
    below = [span for span in collector.spans() if span.parent_span_id == step.span_id]
    below.sort(key=lambda span: span.start_time_unix_nano)
    assert [(span.name, about(span)["rollenv.outcome"]) for span in below] == [
        ("worker step", "EnvFailure"),
        ("worker open", "ok"),
        ("worker reset", "ok"),
        ("worker step", "ok"),
    ]
    assert below[0].status.code == 2


@pytest.mark.integration
def test_the_last_spans_are_sent_and_a_collector_that_hangs_keeps_nobody_waiting(serve, collector):
    slowly = collector.environ | {"OTEL_BSP_SCHEDULE_DELAY": "600000"}
    served = serve("--traces", "--drain", "0", env=slowly)
    rollenv.make(f"{served.address}/game:Sokoban-v0-tiny").close()
    served.signal(signal.SIGTERM)
    assert served.process.wait(20) == 0
    assert collector.wait("spec")
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        nowhere = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{deaf.getsockname()[1]}"}
        served = serve("--traces", "--drain", "0", env=nowhere)
        rollenv.make(f"{served.address}/game:Sokoban-v0-tiny").close()
        served.signal(signal.SIGTERM)
        assert served.process.wait(20) == 0


@pytest.mark.integration
def test_without_traces_nothing_of_it_is_loaded():
    code = (
        "import sys; from rollenv.serve.run import make_app; from rollenv.serve.server import EnvServer, Settings; "
        "from rollenv.rollout.workers.processes import ProcessWorkers; "
        "make_app(EnvServer(Settings(), ProcessWorkers(1))); print('rollenv.serve.traces' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, timeout=60)
    assert done.stdout == "False\n", done.stderr
