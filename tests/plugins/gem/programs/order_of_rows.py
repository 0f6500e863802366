"""Which rows GEM's data environments ask for: in order, by seed, by number, after another data set was put in place."""

import json

from datasets import Dataset
from gem.envs.code_env import CodeEnv
from gem.envs.math_env import MathEnv
from gem.envs.qa_env import QaEnv

ROWS = Dataset.from_list(
    [
        {
            "problem": f"row {i:02}",
            "question": f"row {i:02}",
            "answer": str(i),
            "tests": '{"inputs": [""], "outputs": [""]}',
        }
        for i in range(11)
    ]
)


def row(observation):
    return int(observation[observation.index("row ") + 4 :][:2])


def walk(env):
    found = []
    for seed in [None] * 25 + [3, None, None, 7, 8, None, 12345, None]:
        found.append(
            [
                row(env.reset(seed)[0]),
                env.epoch,
                env.step("\\boxed{3} <answer>3</answer>")[1] if not isinstance(env, CodeEnv) else 0,
            ]
        )
    env.dataset = env.dataset.select(range(4))
    if isinstance(env, CodeEnv):
        env.dataset_iter = iter(env.dataset)
    else:
        env.idx = 0
    for _ in range(6):
        found.append([row(env.reset()[0]), env.epoch])
    found.append([len(env.dataset), row(env.first_obs), type(env.dataset).__name__])
    return found


print(
    json.dumps(
        {
            "math": walk(MathEnv(dataset=ROWS, use_mp=False)),
            "math of a seed": walk(MathEnv(dataset=ROWS, use_mp=False, seed=5)),
            "math in order": walk(MathEnv(dataset=ROWS, use_mp=False, eval=True)),
            "questions": walk(QaEnv(dataset=ROWS, seed=2)),
            "code": walk(CodeEnv(dataset=ROWS, seed=2)),
            "by number": [
                row(e.reset(idx=i)[0]) for e in [MathEnv(dataset=ROWS, use_mp=False, eval=True)] for i in (4, 0, 10)
            ],
        }
    )
)
