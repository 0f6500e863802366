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
    from rollenv.rollout.episode import EpisodeLimits
    from rollenv.rollout.manager import RolloutManager
    from rollenv.rollout.types import Task, Trajectory

    about: dict[str, Any] = {"env": env, "seed": seed}
    try:
        options = {} if index is None else {"index": index}
        if options and not spec(env).indexed:
            raise UsageError(f"{env} draws its tasks from the seed and has none to choose by --index")
        task = Task(spec(env).id, seed, key_values(settings or ()), named_wrappers(wrappers), options)
        key = os.environ.get(api_key_env, "").strip() or None
        if not key and api_key_env != _KEY:  # and no other one is sent
            raise UsageError(f"--api-key-env: there is no key in the environment variable {api_key_env}")
        patience = Patience(timeout=timeout, retries=retries)
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
        about["model"] = player.body["model"] = model or asyncio.run(only_model(base_url, key, patience))
        limits = EpisodeLimits(step=step_deadline, turns=max_turns)
        with make_workers(workers) as pool, RolloutManager(player, pool, limits=limits) as manager:
            (played,) = manager.play([Trajectory(task)])
    except Exception as error:  # rollenv's own are printed and give the exit code, as for any command
        print_result(about | {"reward": None, "error": str(error) or type(error).__name__}, None)
        raise
    result = about | {"reward": played.reward, "success": played.success, "status": played.status}
    result |= {"error": played.error, "failure": played.failure} if played.error else {}
    if not print_result(result | {"turns": len(played.turns), "trajectory": played.to_dict()}, None):
        for number, turn in enumerate(played.turns, 1):
            console.print(well_formed(turn.observation), markup=False, style="dim", soft_wrap=True)
            console.print(well_formed(f"{number}> {turn.raw or turn.text}"), markup=False, soft_wrap=True)
        console.print(well_formed(played.final_observation), markup=False, style="dim", soft_wrap=True)
        end = f"{played.status} after {len(played.turns)} turns, reward {played.reward:g}"
        console.print(f"{end}{', success' if played.success else ''}", markup=False, style="bold")
    if not played.complete:
        raise RollenvError(" ".join(played.error.split()) or f"the episode of {env} was {played.status}")


async def only_model(base_url: str, key: str | None, patience: Patience) -> str:
    """Return the model of an endpoint that has exactly one; it is asked again as after other failures of requests.

    Raises:
        RollenvError: it gives no answer.
        UsageError: it refuses the key, or does not list one model.
    """
    import httpx

    from rollenv.agents.chat.endpoint import MAY_PASS, without_login

    named, url = without_login(base_url), base_url.rstrip("/") + "/models"
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    for attempt in range(patience.retries + 1):
        await asyncio.sleep(min(patience.longest_wait, patience.first_wait * 2.0 ** (attempt - 1)) if attempt else 0.0)
        try:
            http = httpx.AsyncClient(timeout=patience.timeout, mounts=without_proxy(url))
            async with asyncio.timeout(patience.timeout), http as client:
                answer = await client.get(url, headers=headers)
        except (TimeoutError, httpx.HTTPError) as error:
            problem = f"{type(error).__name__} {error}"
        else:
            problem = f"status {answer.status_code}"
            if answer.status_code < 500 and answer.status_code not in MAY_PASS:
                break
    else:
        raise RollenvError(f"{named} gave no answer ({problem}). Check --base-url, and that the server is up")
    if answer.status_code in (401, 403):
        raise UsageError(f"{named} refuses the key ({problem}): check {_KEY}, or name --api-key-env")
    names: list[str] = []
    with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
        ids = [each["id"] for each in answer.json()["data"]]
        names = list(dict.fromkeys(name for name in ids if isinstance(name, str) and name.strip()))
    if answer.status_code != 200 or len(names) != 1:
        some = ", ".join(" ".join(name.split()) for name in names[:5])
        has = f"has {len(names)} models ({some})" if names else "does not list its models"
        raise UsageError(f"{named} {has} ({problem}); name one with --model")
    return names[0]
