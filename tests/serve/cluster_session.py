"""Servers on two nodes of a Ray cluster, one of which is lost; a test runs this where ``ray[serve]`` is."""

import os
import signal
import time

import httpx
import psutil
import ray
from ray import serve
from ray.cluster_utils import Cluster

import rollenv
from rollenv.serve.cluster import Options, build

FIRST, HTTP = int(os.environ["FIRST_PORT"]), int(os.environ["HTTP_PORT"])


def servers():
    """The addresses that the directory tells."""
    answer = httpx.get(f"http://127.0.0.1:{HTTP}/servers", timeout=20)
    return answer.json()["urls"] if answer.status_code == 200 else []


def works(url):
    """Whether a server answers; one that was killed is told for some seconds."""
    try:
        return httpx.get(f"{url}/livez").text == "alive\n"
    except httpx.TransportError:
        return False


def two_servers(seconds=90):
    """Wait until the directory tells two that answer; their addresses."""
    end = time.monotonic() + seconds
    while True:
        told = servers()
        if len(told) == 2 and all(map(works, told)):
            return told
        assert time.monotonic() < end, f"there are not two servers after {seconds} s: {told}"
        time.sleep(0.3)


def process_of(url):
    """The server that listens at a URL."""
    port = int(url.rpartition(":")[2])
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if "--attached" in line and line[line.index("--port") + 1] == str(port):
            return process
    raise LookupError(url)


def episodes(address, number):
    """Sessions at their first turn, each with a twin at home."""
    found = []
    for seed in range(number):
        pair = rollenv.make(f"{address}/game:Sokoban-v0-tiny"), rollenv.make("game:Sokoban-v0-tiny")
        assert pair[0].reset(seed=seed) == pair[1].reset(seed=seed)
        found.append(pair)
    return found


def finish(pairs):
    """Play to the end; every turn is what it is at home."""
    for served, twin in pairs:
        over = False
        while not over:
            action = twin.oracle_action()
            answer = served.step(action)
            assert answer == twin.step(action)
            over = answer[2] or answer[3]
        served.close()


# A server takes a CPU, as does the directory: the first node has room for both, the second for a server.
memory = {"object_store_memory": 80 * 2**20}
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False, **memory})
second = cluster.add_node(num_cpus=1, **memory)
ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
serve.start(http_options={"host": "127.0.0.1", "port": HTTP})
serve.run(build(Options(servers=2, cpus=1, port=FIRST, options=os.environ["OPTIONS"])))
before = two_servers()
address = httpx.get(f"http://127.0.0.1:{HTTP}/").text.strip()

pairs = episodes(address, 4)
process_of(before[0]).kill()
finish(pairs)
print("= a server was killed, and every episode ended")
both = two_servers()
print("= there are two again")

pairs = episodes(httpx.get(f"http://127.0.0.1:{HTTP}/").text.strip(), 4)
server = process_of(both[1])
os.kill(server.ppid(), signal.SIGKILL)  # the replica, whose server ends with it
server.wait(30)
finish(pairs)
print("= a replica was killed, and every episode ended")
both = two_servers()
print("= there are two again")

pairs = episodes(httpx.get(f"http://127.0.0.1:{HTTP}/").text.strip(), 4)
cluster.remove_node(second, allow_graceful=False)
finish(pairs)
print("= a node was lost, and every episode ended")
cluster.add_node(num_cpus=1, **memory)
both = two_servers(180)
print("= a new node has its server")

left = [process_of(url) for url in both]
serve.shutdown()
psutil.wait_procs(left, 60)
print("= left over:", [process.pid for process in left if process.is_running()])
ray.shutdown()
cluster.shutdown()
