"""What the patterns share: GEM's classes as its users write them."""

from __future__ import annotations

import itertools
import random
import re
from typing import Any

PATTERNS: dict[str, Any] = {}


def pattern(function):
    PATTERNS[function.__name__] = function
    return function


def raises(kind, function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind} was raised")


class FakeTokenizer:
    def apply_chat_template(self, conversation, tokenize=True, add_generation_prompt=False, **_):
        text = "".join(f"<{m['role']}>{m['content']}</{m['role']}>" for m in conversation)
        return text + ("<assistant>" if add_generation_prompt else "")


def classes():
    """An environment, a wrapper and a tool in the way of GEM's documentation."""
    import gem
    from gem.core import EnvWrapper
    from gem.tools.base_tool import BaseTool
    from gem.utils.parsing import extract_last_boxed_answer

    class Doubling(gem.Env):
        """Double the number; three turns."""

        def __init__(self, top=9, seed=None, **_):
            super().__init__()
            self.top, self.seed, self.turn = top, seed, 0

        def reset(self, seed=None):
            super().reset(seed)
            self.number, self.turn = random.randint(1, self.top), 0
            return f"Double {self.number}.", {"suffix": "Answer now."}

        def step(self, action):
            self.turn += 1
            right = extract_last_boxed_answer(action) == str(2 * self.number)
            over = right or self.turn == 3
            return f"turn {self.turn}", float(right), over, over and not right, {"suffix": "Again."}

        def sample_random_action(self):
            return f"\\boxed{{{random.randint(1, 2 * self.top)}}}"

    class Loud(EnvWrapper):
        def reset(self, seed=None):
            observation, info = self.env.reset(seed=seed)
            return observation.upper(), info

        def step(self, action):
            observation, *rest = self.env.step(action)
            return observation.upper(), *rest

    class Echo(BaseTool):
        tool_type = "echo"

        def __init__(self, mark="!"):
            super().__init__()
            self.mark, self.name, self.calls = mark, "echo", 0

        def instruction_string(self):
            return "Say <echo>something</echo>."

        def execute_action(self, action):
            match = re.search(r"<echo>(.*?)</echo>", action)
            if not match:
                return False, True, "", action
            self.calls += 1
            return True, "fail" in match[1], match[1] + self.mark, action[: match.end()]

    return Doubling, Loud, Echo


NAMES = itertools.count()


def registered(cls, **kwargs):
    from gem import register

    name = f"custom:P{next(NAMES)}"
    register(name, cls, **kwargs)
    return name
