"""Play one episode. Needs: a base install."""

import rollenv

env = rollenv.make("game:GuessTheNumber-v0-easy", seed=7)
observation, info = env.reset()
print(observation)

low, high = 1, 10
while True:
    guess = (low + high) // 2
    observation, reward, terminated, truncated, info = env.step(f"I guess \\boxed{{{guess}}}")
    print(guess, "->", observation)
    if terminated or truncated:
        break
    if "lower" in observation.lower():
        high = guess - 1
    else:
        low = guess + 1

print("solved" if info["success"] else "not solved", "with reward", reward)
env.close()
