"""An agent of smolagents."""

from shell_tool import MAX_TURNS, MODEL, TASK, bash
from smolagents import OpenAIModel, ToolCallingAgent, tool

agent = ToolCallingAgent(tools=[tool(bash)], model=OpenAIModel(MODEL), max_steps=MAX_TURNS)
print(agent.run(TASK))
