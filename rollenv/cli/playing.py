"""Shared parts of commands that play many episodes: workers, a manager, a progress bar, and the file of episodes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollenv.cli.common import CONCURRENT, AgentOptions
from rollenv.cli.dashboard import Dashboard
from rollenv.rollout.workers.factory import make_workers

if TYPE_CHECKING:
    from rollenv.cli.eval_folder import EvalFolder


@contextlib.contextmanager
def playing(
    what: str,
    episodes: int,
    player: Any,
    options: AgentOptions,
    workers: str,
    out: Path | None,
    folder: EvalFolder | None,
    step_deadline: float | None = None,
) -> Iterator[dict[str, Any]]:
    """Yields the arguments ``manager``, ``played``, ``seconds`` and ``watch`` of what evaluates."""
    from rollenv.rollout.episode import Limits
    from rollenv.rollout.manager import RolloutManager

    with (
        contextlib.ExitStack() as stack,
        make_workers(workers) as pool,
        RolloutManager(
            player,
            pool,
            limits=Limits() if step_deadline is None else Limits(step=step_deadline),
            max_concurrent=options.concurrency or CONCURRENT,
            keep_views=out is not None,
            run_dir=out,
        ) as manager,
    ):
        played = folder.played if folder else []
        dashboard = stack.enter_context(Dashboard(what, episodes, manager, player).shown(played))
        if folder is not None:
            dashboard.file = stack.enter_context(folder.writing())
        seconds = folder.seconds if folder else 0.0
        yield {"manager": manager, "played": played, "seconds": seconds, "watch": dashboard.count}
