"""LangGraph's deep agent, which works in this machine."""

from deepagents import create_deep_agent
from deepagents.backends import LocalShellBackend
from langchain_openai import ChatOpenAI
from shell_tool import MAX_TURNS, MODEL, TASK

agent = create_deep_agent(ChatOpenAI(model=MODEL), backend=LocalShellBackend(inherit_env=True))
done = agent.invoke({"messages": [("user", TASK)]}, {"recursion_limit": 4 * MAX_TURNS})
print(done["messages"][-1].content)
