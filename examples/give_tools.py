"""Give an agent a calculator of yours and a Python interpreter. Needs: a base install."""

import rollenv
from rollenv.core.tools import FunctionTool, PythonCodeTool
from rollenv.core.wrappers import ToolEnvWrapper


def days(hours: int) -> float:
    """Turn hours into days."""
    return hours / 24


inner = rollenv.make("math:Arithmetic-v0-hard", seed=3)
env = ToolEnvWrapper(inner, [FunctionTool(days), PythonCodeTool()])
observation, info = env.reset()
print(observation, "\n")

# What a model would write. The tools answer, and the task waits.
print(env.step('<tool_call>{"name": "days", "arguments": {"hours": 36}}</tool_call>')[0])
print(env.step("<python>print(sum(range(10)))</python>")[0])

# Everything that is not a call goes to the task.
observation, reward, terminated, truncated, info = env.step(inner.oracle_action())
print("reward", reward)
env.close()
