"""Step several environments together. Needs: a base install."""

import rollenv

ids = ["game:Sokoban-v0-easy", "game:Wordle-v0-easy", "ragen:FrozenLake-v0"]
vector = rollenv.make_vec(ids)
observations, infos = vector.reset(seed=[1, 2, 3])

total = [0.0] * len(ids)
for _ in range(10):
    actions = [env.sample_random_action() for env in vector.envs]
    # An environment that has ended starts its next episode by itself.
    observations, rewards, terminated, truncated, infos = vector.step(actions)
    total = [before + float(reward) for before, reward in zip(total, rewards, strict=True)]

for name, reward in zip(ids, total, strict=True):
    print(f"{name:25} {reward:5.2f}")
vector.close()
