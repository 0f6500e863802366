"""The flight recorder: the current phase of every episode, and recent errors."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from rollenv.rollout.records.health import Health

if TYPE_CHECKING:
    from rollenv.rollout.episode import Episode


class FlightRecorder:
    """Tracks the episodes in play."""

    def __init__(self, health: Health):
        self.health = health
        self._episodes: dict[Episode, None] = {}

    @contextlib.contextmanager
    def following(self, episode: Episode) -> Iterator[None]:
        """Track an episode during the block."""
        self._episodes[episode] = None
        try:
            yield
        finally:
            del self._episodes[episode]

    def now(self) -> list[dict[str, Any]]:
        """List the episodes with group, member, environment, worker, turn, phase, and seconds in it; longest first.

        Phases: "waiting" (for a slot or a worker), "reset", "agent", "step", "call", "replay", "backoff", "reward".
        """
        rows = []
        for episode in list(self._episodes):
            t = episode.trajectory
            rows.append(
                {
                    "group": t.group,
                    "member": t.member,
                    "env": t.task.env_id,
                    "seed": t.task.seed,
                    "worker": t.worker,
                    "turn": len(t.turns),
                    "replays": t.replays,
                    "phase": episode.phase,
                    "seconds": episode.seconds_in_phase,
                }
            )
        return sorted(rows, key=lambda row: -row["seconds"])

    def text(self) -> str:
        """The record as text."""
        rows = self.now()
        phases = ", ".join(f"{n} {phase}" for phase, n in Counter(row["phase"] for row in rows).most_common())
        lines = [f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {len(rows)} episodes: {phases or 'none'}"]
        lines += [
            f"  group {row['group']:>5} member {row['member']:>3}  {row['env']} seed {row['seed']} turn {row['turn']}: "
            f"{row['phase']} for {row['seconds']:.2f} s on {row['worker'] or '-'}"
            + (f" after {row['replays']} replays" if row["replays"] else "")
            for row in rows
        ]
        if self.health.events:
            lines.append("last failures:")
        for when, env_id, worker, kind, text in self.health.events:
            clock = time.strftime("%H:%M:%S", time.localtime(when))
            lines.append(f"  {clock} {env_id} on {worker or '-'} {kind}: {text[:200]}")
        return "\n".join(lines) + "\n"

    @contextlib.contextmanager
    def on_signal(self, folder: Path | None) -> Iterator[None]:
        """During the block, write the record to standard error and to ``flight.txt`` in the folder on SIGUSR1.

        A plain signal handler, not the event loop's, so that it works while an environment blocks the loop.
        """
        if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGUSR1"):
            yield
            return

        def write(number: int, frame: FrameType | None) -> None:
            text = self.text()
            sys.stderr.write(text)
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
                with (folder / "flight.txt").open("a", encoding="utf-8") as file:
                    file.write(text + "\n")

        before = signal.signal(signal.SIGUSR1, write)
        try:
            yield
        finally:
            signal.signal(signal.SIGUSR1, before)
