"""Has GEM judge answers. It reads a class, its arguments, and for each case the right answer and an action."""

import importlib
import json
import sys

from datasets import Dataset

asked = json.load(sys.stdin)
module, name = asked["class"].split(":")
row = {"problem": "?", "question": "?", "answer": "1", "tests": json.dumps({"inputs": ["1"], "outputs": ["1"]})}
env = getattr(importlib.import_module(module), name)(dataset=Dataset.from_list([row]), **asked["arguments"])
env.reset()
results = []
for right, action in asked["cases"]:
    setattr(env, asked["attribute"], right)
    try:
        observation, reward, terminated, truncated, info = env.step(action)
        results.append([observation, float(reward), terminated, truncated])
        assert bool(info.get("correct", reward > 0)) == (reward > 0)
    except Exception as error:
        results.append(type(error).__name__)
print(json.dumps(results))
