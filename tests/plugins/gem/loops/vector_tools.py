"""Mathematics with a Python tool in vector environments, wrapped by GEM's factory, as in GEM's tool-use recipes."""

import json
import re

import gem
from datasets import Dataset
from gem.envs.math_env import MathEnv
from gem.envs.registration import register
from gem.wrappers.wrapper_factory import get_wrapper_fns

ROWS = Dataset.from_list([{"problem": f"What is {i} ** 5?", "answer": str(i**5)} for i in range(2, 14)])
register("own:Powers", MathEnv, dataset=ROWS, use_mp=True)


def act(prompt, turn):
    """Works it out with the tool, in ways that fail too, and answers with what the tool said."""
    question = re.search(r"(\d+) \*\* 5", prompt[prompt.rindex("What is") :])
    n = int(question[1])
    results = re.findall(r"Code execution result: (-?\d+)", prompt)
    if turn == 0:
        return f"Let me see.\n```python\nprint({n} ** {5 if n % 4 else 4})\n``` and so on"
    if turn == 1 and n % 2:
        return f"<python>print(1 / {n - 3})</python>"
    return f"It is \\boxed{{{results[-1] if results else 0}}}." if n % 5 else "I cannot say."


def play(wrappers, asynchronous, steps=14):
    env = gem.make_vec(["own:Powers"] * 4, wrappers=get_wrapper_fns(wrappers), async_mode=asynchronous, seed=1)
    observations, _infos = env.reset()
    turns, log = [0] * 4, []
    for step in range(steps):
        chosen = [i for i in range(4) if (i + step) % 3 or step < 3]  # some environments wait, as when a model is slow
        actions = {i: act(observations[i], turns[i]) for i in chosen}
        after, rewards, terminated, truncated, stepped = env.step(actions)
        for place, i in enumerate(chosen):
            info = stepped[place]
            observations[i] = after[place]
            turns[i] = 0 if terminated[place] or truncated[place] else turns[i] + 1
            names = (
                "tool_use_counter",
                "tool_success_counter",
                "prev_ep_tool_use_counter",
                "step_counter",
                "prev_ep_step_counter",
                "cumulative_rewards",
                "prev_ep_cumulative_rewards",
                "use_tool",
            )
            log.append(
                [i, round(float(rewards[place]), 6), bool(terminated[place]), bool(truncated[place])]
                + [round(float(info[name]), 6) if name in info else None for name in names]
            )
    return {"log": log, "questions": [re.findall(r"What is (\d+)", o) for o in observations]}


if __name__ == "__main__":
    print(
        json.dumps(
            {
                "tool": play("python_tool,concat_with_action,episode_tracking", False),
                "threads": play("python_tool_no_int_reward,concat_with_action,episode_tracking", True),
            }
        )
    )
