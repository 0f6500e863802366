"""``rollenv probe``"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rollenv.cli import completion
from rollenv.cli.common import AGENT_HELP, AgentOptions, console, describe_data, make_agent, print_result, print_tables
from rollenv.core.errors import UsageError, writes
from rollenv.rollout.workers.factory import WORKERS_HELP, make_workers

if TYPE_CHECKING:
    from rollenv.cli.train import Display
    from rollenv.probe.run import ProbeResult
    from rollenv.trainers.config import TrainConfig

SET_HELP = "Setting of the run that is considered, as in `rollenv train`: prompt.examples=5. May be repeated."

#: Maximum number of concurrent episodes: tasks are finished one after the other.
_CONCURRENT = 32


def command(
    env: str = typer.Argument(
        help="Environment id; see `rollenv list`. Or a file or folder of questions.", autocompletion=completion.ids
    ),
    arguments: list[str] = typer.Argument(None, metavar="[KEY=VALUE]...", help="Arguments of the environment."),
    agent: str = typer.Option(
        "local:tiny", "--agent", "-a", help=AGENT_HELP + " local:tiny is the warmed-up model of `rollenv train ID`."
    ),
    n: int = typer.Option(24, "-n", min=1, help="Number of tasks."),
    k: int = typer.Option(16, "-k", min=2, help="Episodes per task."),
    settings: list[str] = typer.Option(None, "--set", metavar="KEY=VALUE", help=SET_HELP),
    minutes: float = typer.Option(4.0, min=0.05, help="Time for everything; fewer tasks are played if it is short."),
    seed: int = typer.Option(0, "--seed", "-s", min=0, help="Seed of the first task; the others count up."),
    workers: str = typer.Option("inline", "--workers", "-w", help=WORKERS_HELP),
    out: Path | None = typer.Option(None, "--out", "-o", help="Folder. Default: the next free runs/probe-ID-N."),
    *,
    options: AgentOptions,
) -> None:
    """Ask before a run: can this environment teach this model, and can it be cheated?

    Plays the model, agents without skill, and episodes again in a second process. A page, probe.json and the
    episodes are written to one folder.

    The exit code is 1 if something must be mended first: a floor above the model, results that differ for the same
    actions, or many failed episodes.
    """
    from rollenv.cli.train import Display
    from rollenv.probe.page import page_result
    from rollenv.probe.run import probe
    from rollenv.rollout.episode import EpisodeLimits
    from rollenv.rollout.manager import RolloutManager

    if wrong := [text for text in arguments or () if "=" not in text]:
        raise UsageError(f"{wrong[0]!r} is no KEY=VALUE; one environment is probed at a time")
    folder = _folder(env, out)
    given = [*(f"env.kwargs.{text}" for text in arguments or ()), *(settings or ())]
    if seed:
        given.append(f"seed={seed}")
    if agent.startswith("local:"):
        drawn = {"rollout.temperature": options.temperature, "rollout.max_new_tokens": options.max_tokens}
        given += [f"{key}={value}" for key, value in drawn.items() if value is not None]
    with Display() as display:
        config, player = _player(env, given, agent, options, display)
        describe_data(config.env.id, config.env.kwargs)
        together = options.concurrency or _CONCURRENT
        limits = EpisodeLimits(turns=200, episode=30 * minutes)
        with (
            make_workers(workers) as pool,
            RolloutManager(player, pool, limits=limits, max_concurrent=together, unhealthy_after=10_000) as manager,
        ):
            seconds = 60 * minutes
            found = probe(
                config, player, agent, manager, n=n, k=k, seconds=seconds, watch=display.watch, settings=given
            )
    result = page_result(found)
    about = {"env": config.env.id, "agent": agent, "n": len(found.told.tasks), "k": k}
    _write(folder, found, result, about, getattr(player, "tokenizer", None))
    if not print_result(found.to_dict()):
        console.print(f"{found.env_id} with {agent}", markup=False, style="bold")
        for remark in found.remarks:
            style = {"red": "bold red", "amber": "yellow", "good": "green"}[remark.level]
            console.print(remark.text, style=style, markup=False, soft_wrap=True)
        print_tables(result["tables"][:3])
        console.print(f"page, numbers and episodes: {folder} ({found.seconds:.0f} s)", markup=False, soft_wrap=True)
    if found.red:
        raise typer.Exit(1)


def _write(folder: Path, found: ProbeResult, result: Mapping[str, Any], about: dict[str, Any], tokenizer: Any) -> None:
    """Write what a probe has found as an evaluation's folder, with its page.

    Args:
        result: the numbers that the page shows.
        about: what was played.
        tokenizer: of a model, so that the page shows prompts as the model reads them.
    """
    from rollenv.report import write_report
    from rollenv.rollout.records.storage import write

    with writes(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder / "tokenizer")
            about = {**about, "policy": "local:tokenizer"}
        for name, data in {"probe": found.to_dict(), "result": result, "eval": about}.items():
            (folder / f"{name}.json").write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
        write(folder / "episodes.jsonl", found.episodes)
        write_report([folder], folder / "report.html")


def _folder(env: str, out: Path | None) -> Path:
    from rollenv.trainers.run_dir import folder_name, next_free

    if out is not None:
        if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / "probe.json").exists())):
            raise UsageError(f"{out} holds something else; name another folder with --out")
        return out
    name = re.sub(r"[^\w.-]+", "-", folder_name(env)).strip("-.")[-80:]
    return next_free(Path("runs"), f"probe-{name or 'questions'}")


def _player(env: str, given: list[str], agent: str, options: AgentOptions, display: Display) -> tuple[TrainConfig, Any]:
    """Return the recipe that a run would have, and the agent."""
    from rollenv.trainers.config.load import load_config

    kind, _, path = agent.partition(":")
    if kind != "local":
        return load_config(env, ["model=MODEL", *given]), make_agent(agent, options)
    options.check(agent)
    from rollenv.agents.engines.cpu_threads import CpuThreads
    from rollenv.agents.gguf import newest_checkpoint
    from rollenv.agents.prompts.session import AGENT_FILE
    from rollenv.core.wrappers.factory import with_tokenizer
    from rollenv.trainers.models import initial_agent

    path = path if path == "tiny" else str(newest_checkpoint(Path(os.path.expanduser(path))))
    config = load_config(env, [f"model={json.dumps(path)}", *given])
    if Path(path, AGENT_FILE).exists():  # it plays as it was trained
        return config, make_agent(agent, options)
    wrappers = with_tokenizer(config.env.wrappers, config.model.tokenizer)
    player = initial_agent(config, wrappers, display.watch)
    player.engine.threads = CpuThreads(options.threads or 0)
    return config, player
