"""Games in the middle of an episode."""

import rollenv


def boxed(text):
    return f"\\boxed{{{text}}}"


def at(env_id, seed=0, kwargs=None, **state):
    """The environment with parts of its state replaced."""
    env = rollenv.make(env_id, **(kwargs or {}))
    env.reset(seed)
    saved = env.get_state()
    saved["env"] |= state
    env.set_state(saved)
    return env
