"""Steps per second of `rollenv serve` with the short way of a step (`EnvSession.start_step`) and without it.

Two servers, one of which sends every step by the long way, a task for each, as it does all other calls. Both are
measured in turn, round by round, by the clients of `benchmarks/server.py`. The short way is there as long as it pays.
"""

from __future__ import annotations

import argparse
import os

from common import header, save, table
from server import HEAD, Ways, compared, native, sockets
from serving import Served

#: Makes every step wait for a task.
LONG_WAY = "from rollenv.serve.session import EnvSession; EnvSession.start_step = lambda *call: False"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="of one measurement")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sessions", type=int, nargs="*", default=[1, 16, 64, 256])
    given = parser.parse_args()
    workers = len(os.sched_getaffinity(0))
    long_way = Served("--sessions", "4096", workers=workers, first=LONG_WAY)
    short_way = Served("--sessions", "4096", workers=workers)
    rows: list[tuple[object, ...]] = []
    try:
        for protocol, clients in (("native", native), ("OpenEnv's protocol", sockets)):
            ways: Ways = {}
            for name, served in (("long way", long_way), ("short way", short_way)):
                socket = f"ws://127.0.0.1:{served.port}/openenv/test:Echo-v0/ws"
                where = served.address if clients is native else socket
                ways[f"{name}, {protocol}"] = clients, where, served.process.pid
            for sessions in given.sessions:
                rows += compared(ways, sessions, given.seconds, given.rounds)
    finally:
        long_way.stop()
        short_way.stop()
    note = (
        "An environment that echoes; each session asks again as soon as it was answered. The servers are measured in "
        f"turn, {given.rounds} rounds of {given.seconds:g} s; medians of the rounds, also of the ratios. The last "
        "column is the ratio to the long way by the same protocol."
    )
    save("served_step", f"{header()}\n{note}\n\n{table((*HEAD, 'times the long way'), rows)}")


if __name__ == "__main__":
    main()
