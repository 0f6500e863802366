"""Questions and rewards of reasoning-gym's data sets, for right answers, wrong ones, and what is no answer."""

import json
import sys

from gem.envs.reasoning_gym import ReasoningGymEnv

found = {}
for name in json.load(sys.stdin):
    env = ReasoningGymEnv(name, size=4, seed=11)
    questions, rewards = [], []
    for _ in range(6):
        question, _ = env.reset()
        questions.append(question)
        answer = str(env.data["answer"])
        for action in (
            f"\\boxed{{{answer}}}",
            f"\\boxed{{ {answer} }}",
            f"\\boxed{{{answer}0}}",
            "\\boxed{what?}",
            "\\boxed{}",
            answer,
            "",
        ):
            try:
                reward = round(float(env.step(action)[1]), 9)
            except Exception as error:
                reward = type(error).__name__
            rewards.append(reward)
    questions.append(env.reset(seed=3)[0])
    found[name] = [questions, rewards]
print(json.dumps(found))
