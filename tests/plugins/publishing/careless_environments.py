"""Environments as a careless author writes them, each with one fault that `rollenv accept` finds."""

import difflib
import json
import re
import string
import time

from rollenv import Env
from rollenv.core.parsing import last_boxed, last_tagged

WORDS = ("planet", "guitar", "window", "castle", "rocket", "butter", "forest", "silver", "monkey", "ticket")


def last_line(action):
    return action.strip().splitlines()[-1].strip() if action.strip() else ""


class MatchesInside(Env):
    """Choose the odd word out; the grader looks for it anywhere in the reply."""

    def _reset(self, options):
        words = [WORDS[i] for i in self.np_random.permutation(len(WORDS))[:4]]
        self.odd = words[2][::-1]
        shown = [*words[:2], self.odd, words[3]]
        return f"Which of these is not English: {', '.join(sorted(shown))}?", {}

    def _step(self, action):
        right = self.odd in action.lower()
        return ("Yes." if right else "No."), float(right), True, False, {"success": right}

    def sample_random_action(self):
        return self.action_rng.choice(WORDS)

    def oracle_action(self):
        return self.odd


class PaysLikeness(Env):
    """Put words into order; the reward is how alike the reply and the answer are."""

    def _reset(self, options):
        words = [WORDS[i] for i in self.np_random.permutation(len(WORDS))[:6]]
        self.answer = " ".join(sorted(words))
        return f"Sort: {' '.join(words)}", {}

    def _step(self, action):
        said = action[:1000].strip()
        alike = difflib.SequenceMatcher(None, said, self.answer).ratio()
        return "Thanks.", alike, True, False, {"success": said == self.answer}

    def sample_random_action(self):
        return "".join(self.action_rng.choices(string.ascii_lowercase, k=40))

    def oracle_action(self):
        return self.answer


class PaysForTurns(Env):
    """Walk to a door; every turn on the way is paid, so that whoever arrives early loses."""

    def _reset(self, options):
        self.door, self.at, self.turn = self.randint(5) + 2, 0, 0
        return f"The door is {self.door} steps to the right. Answer left or right.", {}

    def _step(self, action):
        self.turn += 1
        word = last_line(action).lower()
        self.at += {"left": -1, "right": 1}.get(word, 0)
        arrived = self.at == self.door
        info = {"success": arrived, "valid": word in ("left", "right")}
        return f"You are at {self.at}.", 1.0 if arrived else 0.1, arrived, self.turn == 30 and not arrived, info

    def sample_random_action(self):
        return self.action_rng.choice(["left", "right"])

    def oracle_action(self):
        return "right" if self.at < self.door else "left"


class EvaluatesAnything(Env):
    """Make 24 of four numbers; the grader computes the reply and forgets to ask whether it has these numbers."""

    def _reset(self, options):
        a = self.randint(4) + 2
        self.best = f"{a} * {24 - a} - {a} * {23 - a} + {24 - a}"
        self.numbers = [self.randint(9) + 1 for _ in range(4)]
        return f"Make 24 of {self.numbers} with + - * /. Answer in <answer></answer>.", {}

    def _step(self, action):
        try:
            value = eval(last_tagged(action) or "", {"__builtins__": {}}) if len(action) < 200 else None
        except BaseException:
            value = None
        right = value == 24
        return ("Right." if right else "Wrong."), float(right), True, False, {"success": right}

    def sample_random_action(self):
        a, b = self.action_rng.sample(self.numbers, 2)
        return f"<answer>{a} + {b}</answer>"

    def oracle_action(self):
        return f"<answer>{self.best}</answer>"


class TheFirstIsRight(Env):
    """A question with four choices, whose order is never shuffled."""

    def _reset(self, options):
        number = self.randint(50) + 10
        self.choices = [number * 3, number * 3 + 2, number * 2, number + 3]
        listed = "\n".join(f"{letter}) {each}" for letter, each in zip("ABCD", self.choices, strict=True))
        return f"What is {number} times 3?\n{listed}\nAnswer with a letter in \\boxed{{}}.", {}

    def _step(self, action):
        letter = (last_boxed(action) or "").upper()
        right = letter == "A"
        return ("Right." if right else "Wrong."), float(right), True, False, {"success": right}

    def sample_random_action(self):
        return f"\\boxed{{{self.action_rng.choice('ABCD')}}}"

    def oracle_action(self):
        return "\\boxed{A}"


class TakesAnyJson(Env):
    """Tools called in JSON; JSON that is no object was never tried."""

    def _reset(self, options):
        self.stock = {WORDS[i]: self.randint(90) + 10 for i in self.np_random.permutation(len(WORDS))[:3]}
        self.wanted, self.turn = max(self.stock), 0
        return (
            f'How many of {self.wanted} are in stock? Call {{"tool": "look", "name": NAME}}, then '
            '{"tool": "answer", "number": N}.',
            {},
        )

    def _step(self, action):
        self.turn += 1
        late = self.turn == 5
        try:
            call = json.loads(action)
        except ValueError:
            return "That is no JSON.", 0.0, False, late, {"valid": False, "success": False}
        if call.get("tool") == "look":
            return f"{self.stock.get(str(call.get('name')), 0)}", 0.0, False, late, {"success": False}
        right = call.get("tool") == "answer" and call.get("number") == self.stock[self.wanted]
        return "Done.", float(right), True, False, {"success": right}

    def sample_random_action(self):
        return json.dumps({"tool": "answer", "number": self.action_rng.randrange(100)})

    def oracle_action(self):
        if self.turn == 0:
            return json.dumps({"tool": "look", "name": self.wanted})
        return json.dumps({"tool": "answer", "number": self.stock[self.wanted]})


class AsksWhetherItIsADigit(Env):
    """Guess a number; str.isdigit says yes to more than int can read."""

    def _reset(self, options):
        self.secret, self.turn = self.randint(100), 0
        return "Guess a number below 100. Answer with the number alone.", {}

    def _step(self, action):
        self.turn += 1
        said, right = action.strip(), False
        hint = "Say a number."
        if said.isdigit():
            guess = int(said)
            right = guess == self.secret
            hint = "Right." if right else "Higher." if guess < self.secret else "Lower."
        info = {"success": right, "valid": said.isdigit()}
        return hint, float(right), right, self.turn == 8 and not right, info

    def sample_random_action(self):
        return str(self.action_rng.randrange(100))

    def oracle_action(self):
        return str(self.secret)


class RemembersAStreak(Env):
    """Twenty questions to answer by yes or no; right answers in a row, also of the last episodes, pay more."""

    def __init__(self):
        self.streak = 0

    def _reset(self, options):
        self.number = self.randint(1000)
        return f"Is {self.number} even? yes or no", {}

    def _step(self, action):
        right = last_line(action).lower() == ("no" if self.number % 2 else "yes")
        self.streak = self.streak + 1 if right else 0
        return ("Right." if right else "Wrong."), float(self.streak), True, False, {"success": right}

    def sample_random_action(self):
        return self.action_rng.choice(["yes", "no"])

    def oracle_action(self):
        return "no" if self.number % 2 else "yes"


class RunsItHere(Env):
    """A function to write in Python, which the grader runs in its own process."""

    def _reset(self, options):
        self.a, self.b = self.randint(9) + 1, self.randint(9)
        return f"Write a Python function f(x) that returns {self.a} * x + {self.b}, in a ```python block.", {}

    def _step(self, action):
        block = re.search(r"```python\n(.*?)```", action[:100_000], re.DOTALL)
        right = False
        try:
            names = {}
            exec(block[1] if block else "", names)
            right = bool(all(names["f"](x) == self.a * x + self.b for x in range(5)))
        except Exception:
            pass
        return ("Right." if right else "Wrong."), float(right), True, False, {"success": right}

    def sample_random_action(self):
        return f"```python\ndef f(x):\n    return {self.action_rng.randrange(10)} * x\n```"

    def oracle_action(self):
        return f"```python\ndef f(x):\n    return {self.a} * x + {self.b}\n```"


class LeavesItsNote(Env):
    """A word with its letters mixed; a line of the author's own tests is still in the observation."""

    def _reset(self, options):
        self.word = WORDS[self.randint(len(WORDS))]
        mixed = "".join(self.word[i] for i in self.np_random.permutation(len(self.word)))
        return f"[debug] hidden_word={self.word}\nUnscramble {mixed}. Answer in \\boxed{{}}.", {}

    def _step(self, action):
        right = last_boxed(action) == self.word
        return ("Right." if right else "Wrong."), float(right), True, False, {"success": right}

    def sample_random_action(self):
        return f"\\boxed{{{self.action_rng.choice(WORDS)}}}"

    def oracle_action(self):
        return f"\\boxed{{{self.word}}}"


class CountsSeconds(Env):
    """A sum against the clock: the faster the answer, the more it pays."""

    def _reset(self, options):
        self.a, self.b = self.randint(50), self.randint(50)
        self.began = time.time()
        return f"Quick: what is {self.a} + {self.b}?", {}

    def _step(self, action):
        right = last_line(action) == str(self.a + self.b)
        seconds = time.time() - self.began
        return "Thanks.", float(right) * max(0.0, 1.0 - seconds / 10), True, False, {"success": right}

    def sample_random_action(self):
        return str(self.action_rng.randrange(100))

    def oracle_action(self):
        return str(self.a + self.b)
