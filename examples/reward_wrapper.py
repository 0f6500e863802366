"""Change the reward of any environment with a wrapper. Needs: a base install."""

import rollenv


class CostPerTurn(rollenv.Wrapper):
    """Takes a little off the reward of every turn, so that short solutions pay more."""

    def __init__(self, env: rollenv.Env, cost: float = 0.01):
        super().__init__(env)
        self.cost = cost

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward - self.cost, terminated, truncated, {**info, "plain_reward": reward}


env = CostPerTurn(rollenv.make("game:Sokoban-v0-tiny", seed=5), cost=0.05)
env.reset()
total = plain = 0.0
done = False
while not done:
    _, reward, terminated, truncated, info = env.step(env.oracle_action())
    total, plain = total + reward, plain + info["plain_reward"]
    done = terminated or truncated
print(f"plain reward {plain:.2f}, with the cost of turns {total:.2f}")
assert total < plain
