"""Shared parts of commands that play many episodes: workers, a manager, a progress bar, and the file of episodes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group as Lines
from rich.live import Live
from rich.text import Text

from rollenv.cli import completion
from rollenv.cli.common import (
    AGENT_HELP,
    CONCURRENT,
    TICK,
    AgentOptions,
    ProgressLine,
    console,
    error_console,
    progress_console,
)
from rollenv.cli.options import option
from rollenv.core.errors import UsageError, writes
from rollenv.core.folder_lock import lock_folder
from rollenv.core.trust import TRUST_HELP
from rollenv.rollout.workers.factory import WORKERS_HELP, make_workers

if TYPE_CHECKING:
    from rollenv.panels import Panel
    from rollenv.rollout.manager import RolloutManager
    from rollenv.rollout.records.storage import JsonlWriter
    from rollenv.rollout.types import Trajectory

SETTINGS_FILE, EPISODES_FILE = "eval.json", "episodes.jsonl"
_AGAIN = "fix that and try again (--resume keeps the finished episodes)"
#: Keys that are no settings: seconds of all earlier sessions, and whether the last one is running or was cut off.
_SECONDS, _OPEN = "seconds", "open"
#: Settings that detect changes of data and model.
FINGERPRINTS = ("rows", "model")
ACCEPT_HELP = "With --resume: continue although the data or the model have changed."


@dataclass(frozen=True)
class PlayOptions:
    """Options of commands that play many episodes: where, into which folder, and how it is told."""

    workers: str = option("--workers", "-w", default="inline", help=WORKERS_HELP)
    step_deadline: float = option(default=120.0, min=0.001, help="Time limit in seconds for a step in a worker.")
    out: Path | None = option("--out", "-o", help="Folder for the episodes, the report and the numbers.")
    resume: bool = option("--resume", default=False, help="Continue what is in --out.")
    accept: bool = option("--accept-changes", default=False, help=ACCEPT_HELP)

    def __post_init__(self) -> None:
        if self.resume and self.out is None:
            raise UsageError("--resume needs --out: the folder to continue")

    def begin(self, settings: Mapping[str, Any]) -> EvalFolder | None:
        """Begin or continue the folder, if there is one."""
        return EvalFolder.begin(self.out, settings, self.resume, self.accept) if self.out else None

    def save(self, numbers: Mapping[str, Any], panel: Panel | None = None) -> dict[str, Any]:
        """Write the numbers, sealed if they are of a panel, and the page, if there is a folder; return the numbers."""
        from rollenv.panels.verify import seal
        from rollenv.report import write_report

        if self.out:
            numbers = {**numbers, "seal": seal(self.out, numbers)} if panel else numbers
            with writes(self.out, _AGAIN):
                (self.out / "result.json").write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")
                write_report([self.out], self.out / "report.html")
        return dict(numbers)

    def tell(self, written: str = "episodes") -> None:
        """Print what was written where, if there is a folder."""
        if self.out:
            console.print(f"{written}, page and numbers: {self.out}", markup=False, soft_wrap=True)


@dataclass(frozen=True)
class TaskOptions:
    """Options of who plays which tasks."""

    agent: str = option("--agent", "-a", default="random", help=AGENT_HELP, autocompletion=completion.agents)
    k: int | None = option("-k", min=1, help="Episodes per task, for pass@k and pass^k. Default: 1.")
    seed: int | None = option("--seed", "-s", min=0, help="Seed of the first task; the others count up. Default: 0.")
    trust: bool = option("--trust", default=False, help=TRUST_HELP)

    def panel(
        self, name: str, options: AgentOptions, others: Mapping[str, object]
    ) -> tuple[Panel | None, int, AgentOptions]:
        """Return the panel of a name, with episodes per task and options as it fixes them; None if it is no panel's.

        Args:
            others: further options and settings by name, which a panel leaves no room for.

        Raises:
            UsageError: something was given that the panel fixes.
        """
        from rollenv.panels import is_panel, load_panel

        if not is_panel(name):
            return None, self.k or 1, options
        panel = load_panel(name, trust=self.trust)
        protocol = panel.protocol
        pairs = (
            ("-k", self.k, protocol.k),
            ("--temperature", options.temperature, protocol.temperature),
            ("--max-tokens", options.max_tokens, protocol.max_tokens),
        )
        wrong = [other for other, value in {**others, "--seed": self.seed}.items() if value not in (None, "")]
        wrong += [each for each, own, said in pairs if said is not None and own not in (None, said)]
        if wrong:
            raise UsageError(
                f"{panel.name} fixes what {wrong[0]} would change: leave it away, or make a panel of your own "
                "(`rollenv panel make`)"
            )
        fixed = protocol.model_dump(exclude={"k"}, exclude_none=True)
        return panel, protocol.k, dataclasses.replace(options, **fixed)


@dataclass
class EvalFolder:
    """The folder of an evaluation.

    Args:
        settings: settings of the evaluation; a continuation may only increase ``n``.
    """

    path: Path
    settings: dict[str, Any]
    played: list[Trajectory]
    seconds: float
    _locked: bool = False

    @classmethod
    def begin(cls, path: Path, settings: Mapping[str, Any], resume: bool, accept: bool = False) -> EvalFolder:
        """Create the folder, or continue an existing one.

        Args:
            settings: with ``rows``, a fingerprint of each row of a data set, and ``model``, of a model's weights.
            accept: continue although rows or model have changed.

        Raises:
            UsageError: it holds another evaluation, or one and ``resume`` is false.
        """
        file, episodes = path / SETTINGS_FILE, path / EPISODES_FILE
        if path.exists() and not path.is_dir():
            raise UsageError(f"{path} is a file; name a folder with --out")
        written = episodes.is_file() and episodes.stat().st_size > 0
        if not file.exists():
            if written:
                raise UsageError(f"{path} has episodes but no {SETTINGS_FILE}, so not of an evaluation: name another")
            return cls(path, dict(settings), [], 0.0)
        before = _read(file)
        if not resume:
            if written or before.get(_OPEN):
                raise UsageError(
                    f"{path} holds an evaluation already: continue it with --resume, or name another folder"
                )
            file.unlink()  # the session failed before its first episode
            return cls(path, dict(settings), [], 0.0)
        if accept:
            before = {key: value for key, value in before.items() if key not in FINGERPRINTS}
        _check(path, before, settings)
        found = cls(path, dict(settings), [], 0.0)
        found._lock()
        from rollenv.rollout.records.storage import read

        found.played = list(read(episodes)) if episodes.exists() else []
        known = before.get(_SECONDS)
        found.seconds = float(known) if isinstance(known, int | float) else 0.0
        if before.get(_OPEN) and episodes.exists():  # the session was cut off after its last episode was written
            found.seconds += max(0.0, episodes.stat().st_mtime - file.stat().st_mtime)
        return found

    def _lock(self) -> None:
        self._locked = self._locked or lock_folder(self.path, self)

    @contextlib.contextmanager
    def writing(self) -> Iterator[JsonlWriter]:
        """Open the file of episodes; entering saves the settings, leaving saves the time."""
        from rollenv.rollout.records.storage import JsonlWriter

        with writes(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        fresh = not self._locked
        self._lock()
        if fresh and self._locked and (self.path / SETTINGS_FILE).exists():
            raise UsageError(f"another process has begun an evaluation in {self.path}; name another folder")
        started = time.monotonic()
        done = len(self.played)
        self._save(self.seconds, is_open=True)
        try:
            with writes(self.path, _AGAIN):
                writer = JsonlWriter(self.path / EPISODES_FILE)
            with writer:
                yield writer
        except KeyboardInterrupt:
            error_console.print(
                f"{self.path} keeps the finished episodes: the same command with --resume plays the others",
                markup=False,
                soft_wrap=True,
            )
            raise
        finally:
            idle = done >= self.settings["n"] * self.settings["k"] and all(t.complete for t in self.played)
            self._save(self.seconds + (0.0 if idle else time.monotonic() - started), is_open=False)

    def _save(self, seconds: float, *, is_open: bool) -> None:
        partial = self.path / f"{SETTINGS_FILE}.partial"
        data = {**self.settings, _SECONDS: seconds, _OPEN: is_open}
        with writes(self.path, _AGAIN):
            partial.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
            os.replace(partial, self.path / SETTINGS_FILE)


def tasks_before(path: Path) -> int | None:
    """Return the number of tasks of the evaluation in a folder; None if there is none."""
    file = path / SETTINGS_FILE
    n = _read(file).get("n") if file.exists() else None
    return n if isinstance(n, int) else None


def _check(path: Path, before: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Raise UsageError if an evaluation cannot continue another one."""
    for key in {**before, **settings}:
        old, new = before.get(key), settings.get(key)
        if old == new or key in (_SECONDS, _OPEN) or (key in FINGERPRINTS and None in (old, new)):
            continue
        if key == "rows" and isinstance(old, list) and isinstance(new, list):
            changed = [i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b]
            if not changed:
                continue
            raise UsageError(
                f"{path} holds an evaluation with other data: {len(changed)} rows have changed, the first is row "
                f"{changed[0]}; name another folder, or continue anyway with --accept-changes"
            )
        if key == "model":
            raise UsageError(
                f"{path} holds an evaluation with other weights under the same name; name another folder, or continue "
                "anyway with --accept-changes"
            )
        if key != "n" or not isinstance(old, int) or not isinstance(new, int):
            raise UsageError(f"{path} holds an evaluation with {key}={old!r}, not {new!r}; name another folder")
        if new < old:
            raise UsageError(f"{path} holds an evaluation with n={old}; n can grow, and {new} is less")


def _read(file: Path) -> dict[str, Any]:
    """Read the settings of an existing evaluation."""
    from rollenv.rollout.records.storage import read_object

    return read_object(file, f"so which evaluation {file.parent} holds is not known: name another folder, or remove it")


class Dashboard:
    """A progress bar and two lines of metrics."""

    def __init__(self, what: str, total: int, manager: RolloutManager, agent: Any):
        self.manager, self.agent, self.total = manager, agent, total
        self.file: Any = None
        self.wins = self.done = self.failed = self.turns = self.tokens = 0
        self.reward = 0.0
        self.uncalled = not getattr(agent, "tools_of_env", False)
        """True if a missing call needs no warning, or has had it."""
        self.started = time.perf_counter()
        self.line = ProgressLine(what, total, room=0, least=0.25)

    @contextlib.contextmanager
    def shown(self, played: list[Trajectory]) -> Iterator[Dashboard]:
        """Show it on a terminal until the block ends; elsewhere print occasional lines of progress."""
        for trajectory in played:
            if trajectory.complete:
                self._add(trajectory)
        self._show()  # so that only what is played from here on counts for the time that is left
        if not progress_console.is_terminal or progress_console.quiet:
            over = threading.Event()
            threading.Thread(target=self._tell_until, args=(over,), daemon=True).start()
            try:
                yield self
            finally:
                over.set()
            return
        with Live(console=progress_console, transient=True, refresh_per_second=4, get_renderable=lambda: self.draw()):
            yield self

    def _tell_until(self, over: threading.Event) -> None:
        """Print a line now and then, also while no episode ends."""
        while not over.wait(6 * TICK):
            self._show()

    def count(self, trajectory: Trajectory) -> None:
        """Count a finished episode."""
        if self.file:
            self.file.write(trajectory)
        self._add(trajectory)
        self._show()
        if trajectory.complete and trajectory.metrics.get("calls") == 0 and not self.uncalled:
            self.uncalled = True
            error_console.print(
                "an episode ended without a tool call. If more do, the model may never see the tools, as with a chat "
                "template that has no place for them: look at an answer, and try --calls hermes",
                style="yellow",
            )
        self.tokens += sum(len(turn.response_ids) for turn in trajectory.turns)

    def _add(self, trajectory: Trajectory) -> None:
        self.done += 1
        self.failed += not trajectory.complete
        self.turns += len(trajectory.turns)
        if trajectory.complete:
            self.wins += bool(trajectory.success)
            self.reward += trajectory.reward

    def _show(self) -> None:
        graded = max(self.done - self.failed, 1)
        self.line.show(self.done, f"success {100 * self.wins / graded:.1f} %  failed {self.failed}")

    def draw(self) -> Lines:
        """Render the bar and two lines of metrics."""
        done, seconds = max(self.done, 1), time.perf_counter() - self.started
        numbers = f"reward {self.reward / max(self.done - self.failed, 1):.6g}   turns {self.turns / done:.1f}   "
        numbers += f"{self.done / seconds:.1f} episodes/s"
        numbers += f"   {self.tokens / seconds:.0f} tokens/s" if self.tokens else ""
        rows = [row for row in self.manager.flight.now() if row["phase"] != "waiting"]
        phases = Counter(row["phase"] for row in rows)
        longest = f"   longest: {rows[0]['phase']} for {rows[0]['seconds']:.0f} s" if rows else ""
        doing = "now: " + ", ".join(f"{number} {phase}" for phase, number in phases.most_common()) + longest
        used = totals(self.agent)
        cost = f"   cost {used['cost']:.4f}   retries {used['retries']}" if used else ""
        return Lines(self.line.bar, Text(numbers), Text(doing + cost, style="dim"))


def totals(agent: Any) -> dict[str, Any]:
    """Return the tokens, requests and cost of a chat agent."""
    used = getattr(agent, "totals", None)
    return {} if used is None else {name: getattr(used, name) for name in type(used).__slots__}


@contextlib.contextmanager
def playing(
    what: str,
    episodes: int,
    player: Any,
    options: AgentOptions,
    play: PlayOptions,
    folder: EvalFolder | None,
    panel: Panel | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the arguments ``manager``, ``played``, ``seconds`` and ``watch`` of the evaluating function.

    Args:
        panel: whose episodes these are, so that each must begin as its member does.
    """
    from rollenv.panels.check import Watched
    from rollenv.rollout.episode import EpisodeLimits
    from rollenv.rollout.manager import RolloutManager

    with (
        contextlib.ExitStack() as stack,
        make_workers(play.workers) as pool,
        RolloutManager(
            player,
            pool,
            limits=EpisodeLimits(step=play.step_deadline),
            max_concurrent=options.concurrency or concurrent_episodes(player),
            keep_views=play.out is not None,
            run_dir=play.out,
        ) as manager,
    ):
        played = folder.played if folder else []
        dashboard = stack.enter_context(Dashboard(what, episodes, manager, player).shown(played))
        if folder is not None:
            dashboard.file = stack.enter_context(folder.writing())
        seconds = folder.seconds if folder else 0.0
        watch = Watched(panel, dashboard.count) if panel else dashboard.count
        yield {"manager": manager, "played": played, "seconds": seconds, "watch": watch}


def concurrent_episodes(player: Any) -> int:
    """Return the default number of concurrent episodes.

    An endpoint has twice as many as requests: further ones would hold environments, such as machines, and wait.
    """
    if hasattr(player, "harness"):
        from rollenv.agents.harness.agent import concurrent_plays

        return concurrent_plays()
    requests: int | None = getattr(getattr(player, "endpoint", None), "concurrency", None)
    return CONCURRENT if requests is None else 2 * requests
