"""Train a tiny model from Python for three iterations. Needs: the train extra."""

import tempfile
from pathlib import Path

from rollenv.trainers import RunDir, Trainer, load_config

# A recipe and what to change in it, as on the command line. Leave the changes out for a model that learns well.
SHORT = [
    "iterations=3",
    "model.size={hidden=32, layers=1, intermediate=64}",
    "model.warm_up={episodes=500, steps=120, noise=0.5, lr=1e-2}",
    "env.kwargs={min_moves=[1, 2], split='train'}",
    "eval.kwargs={min_moves=[1, 2], split='test'}",
    "rollout.groups_per_batch=8",
    "eval.episodes=50",
]


def watch(stage: str, done: int, total: int, numbers: dict[str, float]) -> None:
    """Called after every step of a stage."""
    if stage != "warm-up" and done == total:
        print(stage, {name: round(value, 3) for name, value in list(numbers.items())[:4]})


with tempfile.TemporaryDirectory() as folder:
    config = load_config("sokoban", [f"run_dir={folder}/run", *SHORT])
    with Trainer(config, RunDir.create(config, "sokoban"), watch) as trainer:
        result = trainer.fit()
    for name, numbers in (("before", result.before), ("after", result.after)):
        print(f"success {name}: {numbers['eval/success']:.2f}")
    print("written:", sorted(path.name for path in (Path(folder) / "run").iterdir()))
