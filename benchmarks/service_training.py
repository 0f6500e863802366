"""The recipe `service` over several seeds: success on unseen tasks before and after reinforcement learning."""

from __future__ import annotations

from common import ROOT, header, save, table
from training_runs import cost, evaluations, interval, options, train

from rollenv.agents import NopAgent, RandomAgent
from rollenv.rollout.evaluate import evaluate
from rollenv.trainers.config import load_config


def main() -> None:
    given = options(__doc__, ROOT / "runs" / "benchmark-service")
    config = load_config("service", given.set)
    body = []
    train("service", given.runs / "warm", 0, ["iterations=0", *given.set])
    start = f"model.path={given.runs / 'warm' / 'checkpoints' / 'step-000000'}"
    for seed in range(given.seeds):
        rows = train("service", given.runs / f"seed-{seed}", seed, [start, *given.set])
        before, after = evaluations(rows)[0], evaluations(rows)[-1]
        ends = [f"{row['eval/turns']:.1f}" for row in (before, after)]
        body.append((seed, interval(before), interval(after), *ends, cost(rows)))
    kwargs = {**config.env.kwargs, **config.eval.kwargs}
    floors = [
        (name, f"{evaluate(agent, config.env.id, kwargs, n=config.eval.episodes, seed=1_000_000).success:.3f}")
        for name, agent in (("says nothing", NopAgent()), ("random calls and ends", RandomAgent()))
    ]
    head = ("seed", "before RL (95 %)", "after RL (95 %)", "turns before", "turns after", "seconds of RL (cpu)")
    note = (
        f"`rollenv train service seed=SEED` ({config.iterations} iterations of GRPO): {config.env.id} with {kwargs}. "
        "The tiny model is warmed up once by imitating an expert with noise, then trained by each seed on the split "
        f"`train`; its success is on {config.eval.episodes} tasks of the split `test`, none of which is in "
        "training. Intervals are Wilson's.\n\n"
    )
    floor = "\nFloors on the split `test`:\n\n" + table(("agent", "success"), floors)
    save("service", header() + "\n" + note + table(head, body) + floor)


if __name__ == "__main__":
    main()
