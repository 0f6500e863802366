"""Evaluate a chat endpoint. Needs: a base install, and an endpoint in $OPENAI_BASE_URL (a key in $OPENAI_API_KEY)."""

import os

from rollenv.agents import ChatAgent
from rollenv.rollout import evaluate

url = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
agent = ChatAgent(
    os.environ.get("MODEL", "my-model"),
    url,
    system="You play a game. Think briefly, then give your answer as in \\boxed{5}.",
    max_tokens=500,
    concurrency=8,
)

result = evaluate(agent, "game:GuessTheNumber-v0-easy", n=5)
print(f"success {result.success:.2f}, 95 % interval {result.low:.2f} to {result.high:.2f}, {result.failed} failed")
for turn in result.trajectories[0].turns:
    print("observed:", turn.observation.splitlines()[-1])
    print("answered:", turn.text)
print(agent.totals)
