"""``rollenv sft``"""

from __future__ import annotations

import json
from pathlib import Path

import typer

from rollenv.cli import completion, train
from rollenv.cli.common import is_setting
from rollenv.core.errors import UsageError

#: Learning rates unless one is set: of the tiny model, of adapters, of a whole model.
_TINY_LR, _ADAPTER_LR, _LR = 1e-3, 2e-4, 2e-5


def command(
    data: list[str] = typer.Argument(
        None,
        metavar="DATA...",
        show_default=False,
        help="Environment id (its expert plays), run folder, stored episodes, or rows (.jsonl, .parquet, .csv); then "
        "settings KEY=VALUE.",
        autocompletion=completion.recipes,
    ),
    env: str = typer.Option("", "--env", metavar="ID", help="Environment that evaluations play as the model learns."),
    *,
    options: train.RunOptions,
) -> None:
    """Teach a model given answers (supervised fine-tuning), by an expert's episodes, stored ones, or rows of texts."""
    given = data or []
    sources, settings = [d for d in given if not is_setting(d)], [d for d in given if is_setting(d)]
    if not (sources or options.resume):
        raise UsageError("name what to imitate: an environment with an expert, stored episodes, or a file of rows")
    recipe, own = recipe_of(sources, env, settings) if sources else ("", [])
    train.start(recipe, [*own, *settings], options)


def recipe_of(sources: list[str], env: str, settings: list[str]) -> tuple[str, list[str]]:
    """Return the recipe of a run that imitates, and its settings before the user's."""
    from rollenv.trainers.config import is_env_id

    keys = dict(setting.partition("=")[::2] for setting in settings)
    own = ["algorithm=sft"]
    if experts := [source for source in sources if is_env_id(source) and not Path(source).exists()]:
        if len(sources) > 1 or env not in ("", *experts):
            raise UsageError("an expert's episodes are the only data of a run: name one environment")
        recipe, own = experts[0], [*own, "batches.data=oracle"]
    else:
        recipe = env or "sft"
        own.append(f"batches.data={json.dumps(sources)}")
        if absent := [source for source in sources if not Path(source).exists()]:
            raise UsageError(f"there is no file or folder {absent[0]!r}, and no environment of that name")
    model, rate = keys.get("model", keys.get("model.path", "tiny")), _LR
    if recipe == env and env and model != "tiny":
        from rollenv.trainers.stored_episodes import has_episodes

        if not any(has_episodes(Path(source)) for source in sources):  # evaluations ask as the rows do: in a chat
            own += ["prompt.kind=conversation", "prompt.examples=0"]
    if not {"iterations", "batches.epochs"} & keys.keys():  # a tiny model knows nothing before
        own.append(f"batches.epochs={20 if recipe != 'sft' and model == 'tiny' else 3}")
    if recipe != "sft" and model == "tiny":
        own, rate = [*own, "model.warm_up.steps=0"], _TINY_LR
    elif keys.get("model.lora.rank", "0") != "0":
        rate = _ADAPTER_LR
    return recipe, [*own, f"optimizer.lr={rate}"]
