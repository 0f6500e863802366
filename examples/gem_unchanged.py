"""Run code that was written for GEM. Needs: a base install; GEM itself does not have to be there."""

from rollenv.plugins import gem as compat

compat.install()  # before the first `import gem`

# From here on, this is a program for GEM.
import gem  # noqa: E402
from gem.wrappers.wrapper_factory import get_wrapper_fns  # noqa: E402

wrappers = get_wrapper_fns("concat,episode_tracking")
env = gem.make_vec(["game:GuessTheNumber-v0-easy", "game:Mastermind-v0-easy"], wrappers=wrappers)
observations, infos = env.reset(seed=3)
for _ in range(3):
    actions = [one.sample_random_action() for one in env.envs]
    observations, rewards, terminated, truncated, infos = env.step(actions)
print(observations[0])
print(rewards, terminated)
