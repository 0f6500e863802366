"""Progress that is shown, and written, while episodes are played."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.console import Group as Lines
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from rollenv.cli.common import Ticker, percent, progress_console

if TYPE_CHECKING:
    from rollenv.rollout.manager import RolloutManager
    from rollenv.rollout.types import Trajectory


class Dashboard:
    """A bar, and two lines of numbers."""

    def __init__(self, what: str, total: int, manager: RolloutManager, agent: Any):
        self.manager, self.agent, self.total = manager, agent, total
        self.file: Any = None
        self.wins = self.done = self.failed = self.turns = self.tokens = 0
        self.reward = 0.0
        self.started = time.perf_counter()
        self.ticker = Ticker(what, total)
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=progress_console,
        )
        self.task = self.bar.add_task(what, total=total)

    @contextlib.contextmanager
    def shown(self, played: list[Trajectory]) -> Iterator[Dashboard]:
        """Show it until the block ends, on a terminal; elsewhere a line now and then tells how far it is."""
        for trajectory in played:
            if trajectory.complete:
                self._add(trajectory)
        if not progress_console.is_terminal or progress_console.quiet:
            yield self
            return
        with Live(console=progress_console, transient=True, refresh_per_second=4, get_renderable=lambda: self.draw()):
            yield self

    def count(self, trajectory: Trajectory) -> None:
        """An episode ended."""
        if self.file:
            self.file.write(trajectory)
        self._add(trajectory)
        self.tokens += sum(len(turn.response_ids) for turn in trajectory.turns)
        self.ticker.tick(self.done, f"success {100 * self.wins / self.done:.1f} %  failed {self.failed}")

    def _add(self, trajectory: Trajectory) -> None:
        self.done += 1
        self.wins += trajectory.success
        self.failed += trajectory.status == "failed"
        self.turns += len(trajectory.turns)
        self.reward += trajectory.reward
        self.bar.update(self.task, advance=1)

    def draw(self) -> Lines:
        """The bar and two lines of numbers."""
        from rollenv.rollout.evaluate import wilson_interval

        done, seconds = max(self.done, 1), time.perf_counter() - self.started
        low, high = wilson_interval(self.wins, done)
        numbers = (
            f"success {percent(self.wins / done, low, high)}   reward {self.reward / done:.3f}   "
            f"turns {self.turns / done:.1f}   failed {self.failed}   {self.done / seconds:.1f} episodes/s"
            + (f"   {self.tokens / seconds:.0f} tokens/s" if self.tokens else "")
        )
        rows = [row for row in self.manager.flight.now() if row["phase"] != "waiting"]
        phases = Counter(row["phase"] for row in rows)
        longest = f"   longest: {rows[0]['phase']} for {rows[0]['seconds']:.0f} s" if rows else ""
        doing = "now: " + ", ".join(f"{number} {phase}" for phase, number in phases.most_common()) + longest
        used = totals(self.agent)
        cost = f"   cost {used['cost']:.4f}   retries {used['retries']}" if used else ""
        return Lines(self.bar, Text(numbers), Text(doing + cost, style="dim"))


def totals(agent: Any) -> dict[str, Any]:
    """Return the tokens, requests and cost of a chat agent."""
    used = getattr(agent, "totals", None)
    return {} if used is None else {name: getattr(used, name) for name in type(used).__slots__}
