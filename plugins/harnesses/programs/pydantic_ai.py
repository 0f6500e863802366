"""An agent of pydantic-ai."""

from pydantic_ai import Agent, UsageLimits
from pydantic_ai.models.openai import OpenAIChatModel
from shell_tool import INSTRUCTIONS, MAX_TURNS, MODEL, TASK, bash

agent = Agent(OpenAIChatModel(MODEL), instructions=INSTRUCTIONS, tools=[bash])
print(agent.run_sync(TASK, usage_limits=UsageLimits(request_limit=MAX_TURNS)).output)
