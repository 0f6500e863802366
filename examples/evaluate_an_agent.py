"""Measure agents with intervals and pass^k. Needs: a base install."""

from rollenv.agents import OracleAgent, RandomAgent
from rollenv.rollout import evaluate

AGENTS = {"random": RandomAgent(), "expert, 30 % noise": OracleAgent(noise=0.3), "expert": OracleAgent()}

print(f"{'agent':20} {'success':>8} {'95 % interval':>16} {'pass@3':>7} {'pass^3':>7}")
for name, agent in AGENTS.items():
    # The same 30 rooms for every agent, three episodes of each.
    result = evaluate(agent, "game:Sokoban-v0-tiny", n=30, k=3, seed=100)
    interval = f"{result.low:.2f} to {result.high:.2f}"
    print(
        f"{name:20} {result.success:8.2f} {interval:>16} {result.pass_at[3][0]:7.2f} {result.pass_all[3][0]:7.2f}"
        f"   {result.failed} failed"
    )
