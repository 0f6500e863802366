"""Evaluation of data sets, as GEM's training scripts do it: part of the rows, each once, with several answers."""

import json

from datasets import Dataset
from gem.envs.code_env import CodeEnv
from gem.envs.math_env import MathEnv
from gem.envs.qa_env import QaEnv

ROWS = Dataset.from_list(
    [
        {
            "problem": f"What is {i} * {i}?",
            "question": f"Who has number {i}?",
            "answer": str(i * i),
            "tests": json.dumps({"inputs": [str(i)], "outputs": [str(i * i)]}),
        }
        for i in range(40)
    ]
)


def answers(i):
    """Four answers to row i, of which some are right."""
    return [i * i, i + i, 16, i * i + i % 3]


def evaluate(env, form, limit=8):
    env.dataset = env.dataset.select(range(limit))
    scores, asked = [], []
    for _ in range(len(env.dataset)):
        observation, _ = env.reset()
        asked.append(observation)
        row = int("".join(c for c in env.first_obs.split("?")[0] if c.isdigit() or c == " ").split()[-1])
        scores.append([float(env.step(form.format(answer))[1]) for answer in answers(row)])
    assert sorted(asked) == sorted(env.dataset[key_of(env)])
    return {
        "mean": sum(map(sum, scores)) / len(scores) / 4,
        "best": sum(map(max, scores)) / len(scores),
        "all": scores,
        "epoch": env.epoch,
    }


def key_of(env):
    return env.question_key


def spawned(env):
    env.reset()
    state = env.get_state()
    child = MathEnv(dataset=ROWS, use_mp=False)
    child.set_state({name: state[name] for name in ("first_obs", "answer")})
    return [float(child.step(f"\\boxed{{{env.answer}}}")[1]), child.first_obs == env.first_obs]


program = "```python\nn = int(input())\nprint({} if n else 0)\n```"
print(
    json.dumps(
        {
            "math": evaluate(MathEnv(dataset=ROWS, use_mp=False), "So \\boxed{{{}}}."),
            "math, in order": evaluate(MathEnv(dataset=ROWS, use_mp=False, eval=True), "\\boxed{{{}}}", 12),
            "questions": evaluate(QaEnv(dataset=ROWS, seed=1), "<think>...</think> <answer>{}</answer>"),
            "programs": evaluate(CodeEnv("apps", dataset=ROWS, seed=4), "```python\nprint({})\n```", 6),
            "same state": spawned(MathEnv(dataset=ROWS, use_mp=False)),
        }
    )
)
