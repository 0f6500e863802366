"""An agent of openai-agents, with the Responses dialect."""

from agents import Agent, Runner, function_tool, set_tracing_disabled
from shell_tool import INSTRUCTIONS, MAX_TURNS, MODEL, TASK, bash

set_tracing_disabled(True)
agent = Agent("agent", instructions=INSTRUCTIONS, model=MODEL, tools=[function_tool(bash)])
print(Runner.run_sync(agent, TASK, max_turns=MAX_TURNS).final_output)
