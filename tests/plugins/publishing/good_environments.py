"""Sound environments of many kinds, none of which `rollenv accept` may refuse."""

import json
import re
import sqlite3

from rollenv import Env, UsageError
from rollenv.core.parsing import last_boxed

WORDS = ("planet", "guitar", "window", "castle", "rocket", "butter", "forest", "silver", "monkey", "ticket")


def last_line(action):
    return action.strip().splitlines()[-1].strip()[:200] if action.strip() else ""


class Thermostat(Env):
    """Hold a room at 20 degrees; every reward is a cost."""

    def _reset(self, options):
        self.degrees, self.turn = 10.0 + 20.0 * float(self.np_random.random()), 0
        return f"The room has {self.degrees:.1f} degrees, and should have 20. Heat by a number from -5 to 5.", {}

    def _step(self, action):
        self.turn += 1
        try:
            heat = float(last_line(action))
        except ValueError:
            heat = float("nan")
        valid = -5 <= heat <= 5
        self.degrees += (heat if valid else 0.0) + float(self.np_random.normal(0, 0.2))
        cost = abs(self.degrees - 20.0) + (0.0 if valid else 5.0)
        over = self.turn == 10
        info = {"valid": valid, "success": over and abs(self.degrees - 20) < 1.5}
        return f"It has {self.degrees:.1f} degrees.", -cost / 10, over, False, info

    def sample_random_action(self):
        return f"{self.action_rng.uniform(-5, 5):.1f}"

    def oracle_action(self):
        return f"{max(-5.0, min(5.0, 20 - self.degrees)):.1f}"


class MayPass(Env):
    """A sum whose wrong answers cost a point; who passes gets nothing, and so does who says nothing."""

    def _reset(self, options):
        self.a, self.b = self.randint(20), self.randint(20)
        return f"What is {self.a} * {self.b}? Answer in \\boxed{{}}, or pass.", {}

    def _step(self, action):
        said = last_boxed(action)
        right = said == str(self.a * self.b)
        reward = 1.0 if right else 0.0 if said is None or said == "pass" else -1.0
        return "Thanks.", reward, True, False, {"success": right}

    def sample_random_action(self):
        return f"\\boxed{{{self.action_rng.randrange(400)}}}"

    def oracle_action(self):
        return f"\\boxed{{{self.a * self.b}}}"


class Prime(Env):
    """Yes or no: is it prime? Half of the numbers are."""

    def _reset(self, options):
        primes = [n for n in range(100, 1000) if all(n % d for d in range(2, 32))]
        others = [n for n in range(101, 1000, 2) if n not in primes]
        self.prime = bool(self.randint(2))
        self.number = (primes if self.prime else others)[self.randint(100)]
        return f"Is {self.number} prime? End with \\boxed{{yes}} or \\boxed{{no}}.", {}

    def _step(self, action):
        said = last_boxed(action)
        right = said == ("yes" if self.prime else "no")
        valid = said in ("yes", "no")
        return ("Right." if right else "Wrong."), float(right), True, False, {"success": right, "valid": valid}

    def sample_random_action(self):
        return f"\\boxed{{{self.action_rng.choice(['yes', 'no'])}}}"

    def oracle_action(self):
        return f"\\boxed{{{'yes' if self.prime else 'no'}}}"


ROOMS = {
    "hall": {"north": "kitchen", "east": "study"},
    "kitchen": {"south": "hall", "east": "cellar"},
    "study": {"west": "hall", "north": "cellar"},
    "cellar": {"west": "kitchen", "south": "study"},
}


class House(Env):
    """A text adventure without an expert: find the lamp, and carry it to the hall. New rooms pay a little."""

    def _reset(self, options):
        self.room, self.has, self.turn, self.seen = "hall", False, 0, {"hall"}
        self.lamp = ("kitchen", "study", "cellar")[self.randint(3)]
        return self._look(), {"actions": self._allowed()}

    def _look(self):
        lamp = " A lamp is here." if self.room == self.lamp and not self.has else ""
        return f"You are in the {self.room}.{lamp} Find the lamp and drop it in the hall."

    def _allowed(self):
        found = [f"go {way}" for way in ROOMS[self.room]]
        if self.room == self.lamp and not self.has:
            found.append("take lamp")
        return [*found, "drop lamp"] if self.has else found

    def _step(self, action):
        self.turn += 1
        said = last_line(action).lower()
        valid, reward, won = said in self._allowed(), 0.0, False
        if valid and said == "take lamp":
            self.has = True
        elif valid and said == "drop lamp":
            self.has, self.lamp = False, self.room
            won = self.room == "hall"
        elif valid:
            self.room = ROOMS[self.room][said.removeprefix("go ")]
            reward = 0.0 if self.room in self.seen else 0.05
            self.seen.add(self.room)
        reward += float(won)
        late = self.turn == 25 and not won
        text = self._look() if valid else "That is not possible here."
        return text, reward, won, late, {"actions": self._allowed(), "valid": valid, "success": won}


class Capitals(Env):
    """Numbered questions from a list in the module."""

    rows = (("France", "Paris"), ("Japan", "Tokyo"), ("Peru", "Lima"), ("Kenya", "Nairobi"), ("Norway", "Oslo"))
    rows += (("Cuba", "Havana"), ("Chad", "N'Djamena"), ("Fiji", "Suva"), ("Iran", "Tehran"), ("Oman", "Muscat"))
    reset_options = frozenset({"index"})

    def num_tasks(self):
        return len(self.rows)

    def _reset(self, options):
        index = options.get("index", self.randint(len(self.rows)))
        if not 0 <= index < len(self.rows):
            raise UsageError(f"there is no question {index}")
        self.country, self.capital = self.rows[index]
        return f"What is the capital of {self.country}? One word.", {}

    def _step(self, action):
        right = last_line(action).casefold() == self.capital.casefold()
        return f"It is {self.capital}.", float(right), True, False, {"success": right}

    def oracle_action(self):
        return self.capital


class Bandit(Env):
    """Three arms that pay a point by chance; the expert pulls the best one."""

    def _reset(self, options):
        self.chances, self.turn, self.total = [float(p) for p in self.np_random.permutation([0.1, 0.3, 0.9])], 0, 0
        return "Pull an arm, a, b or c, twenty times. Each pays a point with a chance of its own.", {}

    def _step(self, action):
        self.turn += 1
        arm = "abc".find(last_line(action)) if len(last_line(action)) == 1 else -1
        paid = arm >= 0 and float(self.np_random.random()) < self.chances[arm]
        self.total += paid
        info = {"valid": arm >= 0, "success": self.turn == 20 and self.total >= 12}
        return f"You get {int(paid)}.", float(paid), self.turn == 20, False, info

    def sample_random_action(self):
        return self.action_rng.choice("abc")

    def oracle_action(self):
        return "abc"[self.chances.index(max(self.chances))]


class Constrained(Env):
    """Write a line by a rule that a program checks: a number of words that begin with a letter."""

    def _reset(self, options):
        self.letter, self.count = "bcdfglmprst"[self.randint(11)], self.randint(4) + 3
        return f"Write one line of exactly {self.count} different words, each beginning with {self.letter}.", {}

    def _step(self, action):
        words = re.findall(r"[a-z]+", action.lower()) if len(action) < 500 and "\n" not in action.strip() else []
        right = len(words) == self.count == len(set(words)) and all(word[0] == self.letter for word in words)
        return ("Good." if right else "Not by the rule."), float(right), True, False, {"success": right}

    def oracle_action(self):
        return " ".join(self.letter + end for end in ("a", "e", "i", "o", "u", "an", "en")[: self.count])


class RaceTo21(Env):
    """Two players add 1, 2 or 3 in turn; who says 21 wins."""

    players = 2
    total = mover = 0

    def _reset(self, options):
        self.total, self.mover = self.randint(4), 0
        return self._tell(), {"player": 0}

    def _tell(self):
        return f"The total is {self.total}, player {self.mover} moves. Add 1, 2 or 3; who reaches 21 wins."

    def _step(self, action):
        said, mover = last_line(action), self.mover
        if said not in ("1", "2", "3") or self.total + int(said) > 21:
            return self._end(1 - mover, mover, valid=False)
        self.total += int(said)
        if self.total == 21:
            return self._end(mover, mover)
        self.mover = 1 - mover
        return self._tell(), 0.0, False, False, {"player": self.mover, "valid": True}

    def _end(self, winner, mover, valid=True):
        rewards = [1.0 if seat == winner else -1.0 for seat in range(2)]
        told = ["You win." if seat == winner else "You lose." for seat in range(2)]
        info = {"rewards": rewards, "observations": told, "success": [seat == winner for seat in range(2)]}
        return told[mover], rewards[mover], True, False, {**info, "valid": valid}

    def render(self):
        return f"{self.total}, player {self.mover} moves"

    def sample_random_action(self):
        return str(self.action_rng.randrange(min(3, 21 - self.total)) + 1)

    def oracle_action(self):
        return str((21 - self.total) % 4 or 1)


class Queries(Env):
    """SQL queries to a database in memory, then an answer."""

    def _reset(self, options):
        self.close()
        self.database, self.turn = sqlite3.connect(":memory:", check_same_thread=False), 0
        self.database.execute("create table sales (item text, amount integer)")
        rows = [(WORDS[self.randint(len(WORDS))], self.randint(900) + 100) for _ in range(40)]
        self.database.executemany("insert into sales values (?, ?)", rows)
        self.item = rows[self.randint(40)][0]
        self.answer = sum(amount for item, amount in rows if item == self.item)
        return f"The table sales has item and amount. What is the sum of {self.item}? SQL, or: answer N", {}

    def _step(self, action):
        self.turn += 1
        text, late = last_line(action), self.turn == 6
        if text.lower().startswith("answer"):
            right = text.split()[-1] == str(self.answer)
            return "Thanks.", float(right), True, False, {"success": right}
        try:
            found = self.database.execute(text).fetchmany(20)
        except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
            return f"Error: {error}"[:300], 0.0, False, late, {"valid": False, "success": False}
        return str(found)[:2000], 0.0, False, late, {"success": False}

    def close(self):
        if database := getattr(self, "database", None):
            database.close()

    def sample_random_action(self):
        return self.action_rng.choice([f"answer {self.action_rng.randrange(5000)}", "select * from sales limit 3"])

    def oracle_action(self):
        if self.turn == 0:
            return f"select sum(amount) from sales where item = '{self.item}'"
        return f"answer {self.answer}"


class Recall(Env):
    """A code is shown first, then chatter, and then asked for."""

    def _reset(self, options):
        self.code, self.turn = f"{self.randint(10_000):04}", 0
        self.chatter = [WORDS[self.randint(len(WORDS))] for _ in range(4)]
        return f"Remember this code: {self.code}. Answer ok until you are asked for it.", {}

    def _step(self, action):
        self.turn += 1
        if self.turn <= 4:
            end = "What was the code? Box it." if self.turn == 4 else "Answer ok."
            return f"I have a {self.chatter[self.turn - 1]}. {end}", 0.0, False, False, {"success": False}
        right = last_boxed(action) == self.code
        return ("Right." if right else "Wrong."), float(right), True, False, {"success": right}

    def sample_random_action(self):
        return "ok" if self.turn < 4 else f"\\boxed{{{self.action_rng.randrange(10_000):04}}}"

    def oracle_action(self):
        return "ok" if self.turn < 4 else f"\\boxed{{{self.code}}}"


class LongWalk(Env):
    """A corridor of three hundred steps, whose doors are opened by the key that they name."""

    def _reset(self, options):
        self.at, self.turn, self.doors = 0, 0, [self.randint(4) for _ in range(300)]
        return self._look(), {}

    def _look(self):
        return f"Door {self.at + 1} of 300 wants the key {'abcd'[self.doors[self.at]]}. Answer with the key's letter."

    def _step(self, action):
        self.turn += 1
        said = last_line(action)
        opened = said == "abcd"[self.doors[self.at]]
        self.at += opened
        done = self.at == 300
        late = self.turn == 400 and not done
        info = {"success": done, "valid": said in ("a", "b", "c", "d")}
        return ("Done." if done else self._look()), opened / 300, done, late, info

    def sample_random_action(self):
        return self.action_rng.choice("abcd")

    def oracle_action(self):
        return "abcd"[self.doors[self.at]]


class Desk(Env):
    """A clerk with tools in JSON, who must look up an order before it is refunded; a wrong refund costs."""

    def _reset(self, options):
        self.orders = {f"W{self.randint(9000) + 1000}": bool(self.randint(2)) for _ in range(3)}
        self.order = sorted(self.orders)[self.randint(3)]
        self.turn, self.looked = 0, False
        tools = '{"tool": "look", "order": ID}, {"tool": "refund", "order": ID}, {"tool": "refuse", "order": ID}'
        return f"A customer wants {self.order} refunded; late orders are. Call a tool: {tools}", {}

    def _step(self, action):
        self.turn += 1
        late = self.turn == 6
        try:
            call = json.loads(action[:10_000])
        except (ValueError, RecursionError):
            call = None
        if not isinstance(call, dict) or call.get("order") not in [*self.orders]:
            return "No such call.", 0.0, False, late, {"valid": False, "success": False}
        if call.get("tool") == "look":
            self.looked |= call["order"] == self.order
            return ("late" if self.orders[call["order"]] else "on time"), 0.0, False, late, {"success": False}
        wanted = "refund" if self.orders[self.order] else "refuse"
        right = self.looked and call["order"] == self.order and call.get("tool") == wanted
        return "The customer leaves.", 1.0 if right else -0.5, True, False, {"success": right}

    def sample_random_action(self):
        tool = self.action_rng.choice(["look", "refund", "refuse"])
        return json.dumps({"tool": tool, "order": self.action_rng.choice(sorted(self.orders))})

    def oracle_action(self):
        wanted = "refund" if self.orders[self.order] else "refuse"
        return json.dumps({"tool": wanted if self.looked else "look", "order": self.order})


class Backwards(Env):
    """The answer stands backwards in the question, which asks for that."""

    def __init__(self, split: str = "train"):
        super().__init__()
        self.split, self.word = split, ""

    def _reset(self, options):
        word = WORDS[2 * self.randint(5) + (self.split == "test")]
        self.word = f"{word}{self.randint(1000)}"
        return f"Spell {self.word} backwards, in \\boxed{{}}.", {}

    def _step(self, action):
        right = last_boxed(action) == self.word[::-1]
        return "Thanks.", float(right), True, False, {"success": right}

    def sample_random_action(self):
        return f"\\boxed{{{self.action_rng.randrange(1000)}}}"

    def oracle_action(self):
        return f"\\boxed{{{self.word[::-1]}}}"


class Drawers(Env):
    """Say what lies in a drawer; every task asks the same, and what differs is seen when a drawer is opened."""

    max_turns = 3

    def __init__(self, split: str = "train"):
        super().__init__()
        self.split = split

    def _reset(self, options):
        self.turn = 0
        words = WORDS[:5] if self.split == "train" else WORDS[5:]
        self.things = {name: words[self.randint(5)] + str(self.randint(1000)) for name in ("left", "right")}
        self.asked = ("left", "right")[self.randint(2)]
        return f"What lies in the {self.asked} drawer? Say `open left`, `open right` or \\boxed{{what}}.", {}

    def _step(self, action):
        self.turn += 1
        said, line = last_boxed(action), last_line(action)
        right = said == self.things[self.asked]
        seen = self.things.get(line.removeprefix("open "), "Nothing.") if line.startswith("open ") else "Nothing."
        return seen, float(right), said is not None, self.turn == 3, {"success": right, "valid": True}

    def sample_random_action(self):
        return self.action_rng.choice(["open left", "open right", "\\boxed{nothing}"])

    def oracle_action(self):
        return f"\\boxed{{{self.things[self.asked]}}}" if self.turn else f"open {self.asked}"


class Vowels(Env):
    """Half of the words have no vowels, so that an empty answer is right."""

    def _reset(self, options):
        letters = "bcdfgh" if self.randint(2) else "abcdefghio"
        self.word = "".join(letters[self.randint(len(letters))] for _ in range(6))
        return f"Write the vowels of {self.word} in their order, and nothing else.", {}

    def _step(self, action):
        right = action.strip() == self.vowels
        return "Thanks.", float(right), True, False, {"success": right}

    @property
    def vowels(self):
        return "".join(letter for letter in self.word if letter in "aeiou")

    def sample_random_action(self):
        return "".join(self.action_rng.choices("aeiou", k=3))

    def oracle_action(self):
        return self.vowels
