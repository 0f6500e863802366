"""``rollenv episode``: not ``eval -n 1``, since other trainers read its line of JSON and its exit codes."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING, Any

import typer

from rollenv.cli import completion
from rollenv.cli.common import console, key_values, print_result
from rollenv.core.errors import RollenvError, UsageError
from rollenv.core.parsing import well_formed
from rollenv.core.proxies import without_proxy
from rollenv.rollout.workers.factory import WORKERS_HELP, make_workers

if TYPE_CHECKING:
    from rollenv.agents.chat.endpoint import Patience
    from rollenv.rollout.types import Trajectory

#: Default environment variable of the API key.
_KEY = "OPENAI_API_KEY"


def command(
    env: str = typer.Argument(help="Environment id; see `rollenv list`.", autocompletion=completion.ids),
    settings: list[str] = typer.Argument(None, metavar="[KEY=VALUE]...", help="Arguments of the environment."),
    base_url: str = typer.Option(..., help="OpenAI-compatible endpoint, such as http://127.0.0.1:8000/v1."),
    model: str = typer.Option("", help="Model name at the endpoint. Default: the only model that it lists."),
    api_key_env: str = typer.Option(_KEY, metavar="NAME", help="Environment variable that holds the API key."),
    seed: int = typer.Option(0, "--seed", "-s", min=0, help="Seed of the episode; equal seeds give equal tasks."),
    index: int | None = typer.Option(None, min=0, help="Number of a task in a data set. Default: the seed draws one."),
    wrappers: str = typer.Option("", "--wrappers", help="Wrappers around the environment, such as python_tool,concat."),
    native: bool = typer.Option(False, "--native", help="Pass the environment's tools to the endpoint as tools."),
    max_turns: int | None = typer.Option(None, min=1, help="Number of turns after which the episode is truncated."),
    max_tokens: int | None = typer.Option(None, min=1, help="Maximum number of tokens per answer."),
    temperature: float | None = typer.Option(None, min=0, help="Sampling temperature."),
    system: str | None = typer.Option(None, help="System prompt."),
    timeout: float = typer.Option(120.0, min=0.001, help="Time limit in seconds for one answer."),
    retries: int = typer.Option(5, min=0, help="Number of retries after a temporary failure of a request."),
    workers: str = typer.Option("1", "--workers", "-w", help=WORKERS_HELP),
    step_deadline: float = typer.Option(120.0, min=0.001, help="Time limit in seconds for a step in a worker."),
) -> None:
    """Play one episode against any OpenAI-compatible endpoint, and print its reward and trajectory.

    For trainers that give an agent only a URL. The exit code is 0 if the episode ended, whatever its reward. If the
    endpoint or the environment failed, it is not 0, and the JSON has an "error".
    """
    from rollenv.agents.chat import ChatAgent
    from rollenv.agents.chat.endpoint import Patience
    from rollenv.core.registry import named_wrappers, spec
    from rollenv.rollout.episode import Limits
    from rollenv.rollout.manager import RolloutManager
    from rollenv.rollout.types import Task, Trajectory

    about: dict[str, Any] = {"env": env, "seed": seed}
    try:
        options = {} if index is None else {"index": index}
        if options and not spec(env).indexed:
            raise UsageError(f"{env} draws its tasks from the seed and has none to choose by --index")
        task = Task(spec(env).id, seed, key_values(settings or ()), named_wrappers(wrappers), options)
        key = _key(api_key_env)
        patience = Patience(timeout=timeout, retries=retries)
        about["model"] = model = model or _only_model(base_url, key, patience)
        player = ChatAgent(
            model,
            base_url,
            key,
            system=system,
            tools="env" if native else None,
            temperature=temperature,
            max_tokens=max_tokens,
            patience=patience,
        )
        limits = Limits(step=step_deadline, turns=max_turns)
        with make_workers(workers) as pool, RolloutManager(player, pool, limits=limits) as manager:
            (played,) = manager.play([Trajectory(task)])
    except Exception as error:  # rollenv's own are printed and give the exit code, as for any command
        print_result(about | {"reward": None, "error": str(error) or type(error).__name__}, None)
        raise
    result = about | {"reward": played.reward, "success": played.success, "status": played.status}
    result |= {"error": played.error, "failure": played.failure} if played.error else {}
    if not print_result(result | {"turns": len(played.turns), "trajectory": played.to_dict()}, None):
        _print(played)
    if not played.complete:
        raise RollenvError(" ".join(played.error.split()) or f"the episode of {env} was {played.status}")


def _key(variable: str) -> str | None:
    """Return the key in an environment variable, without falling back to another variable."""
    key = os.environ.get(variable, "").strip()
    if not key and variable != _KEY:
        raise UsageError(f"--api-key-env: there is no key in the environment variable {variable}")
    if not (key.isascii() and key.isprintable()):
        raise UsageError(f"the key in the environment variable {variable} has characters that no header can hold")
    return key or None


def _only_model(base_url: str, key: str | None, patience: Patience) -> str:
    """Return the model of an endpoint that has exactly one."""
    from rollenv.agents.chat.endpoint import checked_url, without_login

    checked_url(base_url)
    named = without_login(base_url)
    status, names, problem = asyncio.run(_listed(base_url.rstrip("/") + "/models", key, patience))
    if problem:
        raise RollenvError(f"{named} gave no answer ({problem}). Check --base-url, and that the server is up")
    if status in (401, 403):
        raise UsageError(f"{named} refuses the key (status {status}): check {_KEY}, or name --api-key-env")
    if status != 200 or len(names) != 1:
        some = ", ".join(" ".join(name.split()) for name in names[:5])
        has = f"has {len(names)} models ({some})" if names else "does not list its models"
        raise UsageError(f"{named} {has} (status {status}); name one with --model")
    return names[0]


async def _listed(url: str, key: str | None, patience: Patience) -> tuple[int, list[str], str]:
    """Return the HTTP status, the models and the last attempt's problem of listing an endpoint's models."""
    import httpx

    from rollenv.agents.chat.endpoint import MAY_PASS

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    status, names, problem = 0, [], ""
    for attempt in range(patience.retries + 1):
        await asyncio.sleep(min(patience.longest_wait, patience.first_wait * 2.0 ** (attempt - 1)) if attempt else 0.0)
        try:
            http = httpx.AsyncClient(timeout=patience.timeout, mounts=without_proxy(url))
            async with asyncio.timeout(patience.timeout), http as client:
                answer = await client.get(url, headers=headers)
        except TimeoutError:
            problem = f"within {patience.timeout:g} s"
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            problem = f"{type(error).__name__}: {error}"
        else:
            status = answer.status_code
            problem = f"status {status}" if status >= 500 or status in MAY_PASS else ""
            with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
                ids = [each["id"] for each in answer.json()["data"]]
                names = list(dict.fromkeys(name for name in ids if isinstance(name, str) and name.strip()))
        if not problem:
            break
    return status, names, problem


def _print(played: Trajectory) -> None:
    for number, turn in enumerate(played.turns, 1):
        console.print(well_formed(turn.observation), markup=False, style="dim", soft_wrap=True)
        console.print(well_formed(f"{number}> {turn.raw or turn.text}"), markup=False, soft_wrap=True)
    console.print(well_formed(played.final_observation), markup=False, style="dim", soft_wrap=True)
    end = f"{played.status} after {len(played.turns)} turns, reward {played.reward:g}"
    console.print(f"{end}{', success' if played.success else ''}", markup=False, style="bold")
