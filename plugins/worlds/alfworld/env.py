"""The environments: official games, rooms rebuilt from ALFRED, and drawn ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollenv.core.env import Env, ResetResult, StepResult
from rollenv.core.errors import EpisodeOver, UsageError
from rollenv.core.parsing import last_boxed, last_tagged
from rollenv.envs.numbered import checked_index
from rollenv.plugins.worlds.alfworld import alfred
from rollenv.plugins.worlds.alfworld.brief import brief_text
from rollenv.plugins.worlds.alfworld.draw import Size, draw_room
from rollenv.plugins.worlds.alfworld.games import SPLITS, find_games, read_game
from rollenv.plugins.worlds.alfworld.goals import TASKS
from rollenv.plugins.worlds.alfworld.oracle import next_command
from rollenv.plugins.worlds.alfworld.world import NOTHING, SPELLINGS, Room, State

HOW_TO_ACT = (
    "You are in a household and do the task that you are told. Every turn, answer with one command, such as "
    "go to cabinet 1, open cabinet 1, take mug 1 from cabinet 1, {put}, heat mug 1 with microwave 1, "
    "use desklamp 1, examine mug 1, inventory or look. You carry one object at a time.\n"
)
ORACLES = ("explores", "knows")
#: Longest text that is read as a command, in characters.
_LONGEST = 200


class AlfWorld(Env):
    """A household in text (ALFWorld, arXiv 2010.03768), played by ALFWorld's rules in its words.

    An action is one command, alone, on the last line of a text, or within ``\\boxed{}``, ``<action>`` or ``<answer>``
    tags; capitals do not matter. A command that is not admissible is answered by ``Nothing happens.`` (and
    ``info["valid"]`` is False). The reward is 1 when the task is done, which ends the episode.
    ``info["admissible_commands"]`` has the admissible commands, sorted.

    Args:
        max_steps: turns before the episode is truncated; GiGPO's authors allow 50.
        spelling: how objects are put down: ``move`` (``move mug 1 to desk 1``, ALFWorld since December 2024) or ``put``
            (``put mug 1 in/on desk 1``, before).
        admissible: whether ``info`` has the admissible commands; without them steps are faster.
        show_commands: whether the agent is shown them (``info["suffix"]``).
        brief: whether ``info["brief"]`` has a short text of what the agent knows, for very small models.
        oracle: the expert ``explores`` like an agent, or ``knows`` where everything is.
    """

    _changed_in_place = ("state",)

    room: Room
    state: State

    def __init__(
        self,
        max_steps: int = 50,
        *,
        spelling: str = "move",
        admissible: bool = True,
        show_commands: bool = True,
        brief: bool = False,
        oracle: str = "explores",
    ):
        for name, value, known in (("spelling", spelling, SPELLINGS), ("oracle", oracle, ORACLES)):
            if value not in known:
                raise UsageError(f"{name} {value!r} is unknown; choose from {', '.join(known)}")
        if max_steps < 1:
            raise UsageError(f"max_steps must be at least 1, got {max_steps}")
        if show_commands and not admissible:
            raise UsageError("show_commands needs admissible=True: it shows the admissible commands")
        self.max_steps, self.spelling, self.oracle = max_steps, spelling, oracle
        self.admissible, self.show_commands, self.brief = admissible, show_commands, brief
        self.turn = 0
        self._task: int | None = None
        self._commands: list[str] | None = None

    # -- what a source of rooms writes -------------------------------------------------------------------------------

    def _draw(self, options: dict[str, Any]) -> int:
        """Return the number of the task to play."""
        raise NotImplementedError(f"{type(self).__name__} has no _draw()")

    def _room(self, task: int) -> Room:
        """Return the room of a task."""
        raise NotImplementedError(f"{type(self).__name__} has no _room()")

    # -- the episode -------------------------------------------------------------------------------------------------

    def _reset(self, options: dict[str, Any]) -> ResetResult:
        self._task = self._draw(options)
        self.room = self._room(self._task)
        self.state = self.room.start.copy()
        self.turn = 0
        self._commands = None
        return self.room.intro(self.state), self._info(None)

    def _step(self, action: str) -> StepResult:
        self.turn += 1
        answer = self.room.act(self.state, read_command(action))
        if answer is not None:
            self._commands = None
        won = self.room.reached(self.state)
        truncated = not won and self.turn >= self.max_steps
        info = self._info(answer is not None)
        if won or truncated:
            info["success"] = won
        return NOTHING if answer is None else answer, float(won), won, truncated, info

    def _info(self, valid: bool | None) -> dict[str, Any]:
        info: dict[str, Any] = {"prefix": _HOW[self.room.spelling.verb]}
        if self.admissible:
            info["admissible_commands"] = list(self.commands())
        if self.show_commands:
            info["suffix"] = f"Admissible commands: {', '.join(self.commands())}"
        if self.brief:
            info["brief"] = brief_text(self.room, self.state)
        if valid is not None:
            info["valid"] = valid
        return info

    def commands(self) -> list[str]:
        """Return the admissible commands, sorted."""
        if self._commands is None:
            self._commands = self.room.commands(self.state)
        return self._commands

    def render(self) -> str:
        """Return the task and the whole room, closed receptacles too; empty before the first reset."""
        if self._task is None:
            return ""
        seen = [self.room.receptacles[number].name for number in sorted(self.state.seen)]
        return self.room.render(self.state) + (f"\nSeen: {', '.join(seen)}" if self.brief else "")

    # -- abilities ---------------------------------------------------------------------------------------------------

    def sample_random_action(self) -> str:
        """Return an admissible command."""
        if self._task is None:
            return "look"
        commands = self.commands()
        return commands[int(self.action_rng.random() * len(commands))]

    def oracle_action(self) -> str:
        if self._rollenv_over:
            raise EpisodeOver(f"{self}: the episode is over; there is no next action")
        return next_command(self.room, self.state, self.oracle == "knows")

    def state_key(self) -> str:
        seen = sorted(self.state.seen) if self.brief else ""
        return f"{self._task} {self.room.key(self.state)} {seen}"

    def alike_key(self) -> str:
        """Return the goal and the kinds of the receptacles. Splits of generated rooms share none."""
        return f"{self.room.goal} {sorted(each.kind for each in self.room.receptacles)}"

    def _get_state(self) -> dict[str, Any]:
        state = None if self._task is None else self.state.to_json()
        return {"task": self._task, "turn": self.turn, "state": state}

    def _set_state(self, state: dict[str, Any]) -> None:
        self._task, self.turn, self._commands = state["task"], state["turn"], None
        if self._task is not None:
            self.room = self._room(self._task)
            self.state = State.from_json(state["state"])


_HOW = {verb: HOW_TO_ACT.format(put=f"{verb} mug 1{spelling.between}desk 1") for verb, spelling in SPELLINGS.items()}


def read_command(text: str) -> str:
    """Return the command in an action, in lower case with single spaces; empty if there is none."""
    if "\n" in text or "<" in text or "\\" in text:
        found = last_boxed(text) if "box" in text else None
        if found is None and "</" in text:
            found = last_tagged(text, "action") or last_tagged(text, "answer")
        text = text.rstrip().rpartition("\n")[2] if found is None else found
    return " ".join(text.lower().split()) if len(text) <= _LONGEST else ""


class AlfWorldGame(AlfWorld):
    """Official games of ALFWorld, played exactly: the same rules, texts, names and order of commands.

    Args:
        split: ``train``, ``valid_seen`` or ``valid_unseen``.
        games: a ``game.tw-pddl`` file, or a folder of such; by default the split's in ``$ALFWORLD_DATA/json_2.1.1``.
        spelling: how objects are put down (``move`` or ``put``); by default as the game's own grammar has it.

    ``reset(options={"index": i})`` plays the i-th game, sorted by path.
    """

    reset_options = frozenset({"index"})

    def __init__(
        self,
        split: str = "train",
        games: str = "",
        max_steps: int = 50,
        *,
        spelling: str = "",
        admissible: bool = True,
        show_commands: bool = True,
        brief: bool = False,
        oracle: str = "explores",
    ):
        shown = {"admissible": admissible, "show_commands": show_commands, "brief": brief}
        super().__init__(max_steps, spelling=spelling or "move", oracle=oracle, **shown)
        _check_split(split)
        self.spelling = spelling
        self.files = find_games(games, split)

    def num_tasks(self) -> int:
        """Return the number of games."""
        return len(self.files)

    def _draw(self, options: dict[str, Any]) -> int:
        return _drawn(self, options)

    def _room(self, task: int) -> Room:
        return read_game(self.files[task], self.spelling)


class AlfWorldRebuilt(AlfWorld):
    """Rooms rebuilt from ALFRED's trials: results do not compare with those on ALFWorld's official games.

    The objects of the task stand where the trial has them; the others by the nearest known neighbour. Rooms have fewer
    receptacles and objects than the official ones, so they are easier.

    Args:
        split: ``train``, ``valid_seen`` or ``valid_unseen`` (floor plans that are not in ``train``).
        sentences: the task in ALFWorld's words (``templates``) or in those of ALFRED's annotators (``people``).
        data: the folder of the trials; by default ``$ROLLENV_DATA/alfred``.

    ``reset(options={"index": i})`` plays the i-th trial that can be rebuilt.
    """

    reset_options = frozenset({"index"})

    def __init__(
        self,
        split: str = "train",
        max_steps: int = 50,
        *,
        sentences: str = "templates",
        data: str | Path | None = None,
        spelling: str = "move",
        admissible: bool = True,
        show_commands: bool = True,
        brief: bool = False,
        oracle: str = "explores",
    ):
        super().__init__(
            max_steps, spelling=spelling, admissible=admissible, show_commands=show_commands, brief=brief, oracle=oracle
        )
        _check_split(split)
        if sentences not in ("templates", "people"):
            raise UsageError(f"sentences {sentences!r} is unknown; choose from templates, people")
        self.people = sentences == "people"
        self.trials = alfred.load_trials(data)
        self.played = alfred.playable(self.trials, split)
        if not self.played:
            raise UsageError(f"the split {split!r} has no trial that can be rebuilt")

    def num_tasks(self) -> int:
        """Return the number of trials that can be rebuilt."""
        return len(self.played)

    def _draw(self, options: dict[str, Any]) -> int:
        return _drawn(self, options)

    def _room(self, task: int) -> Room:
        return alfred.rebuild(self.trials, self.played[task], spelling=self.spelling, people=self.people)


class AlfWorldGenerated(AlfWorld):
    """Rooms and tasks without end, drawn from the statistics of ALFRED's training trials.

    Args:
        tasks: types of tasks to draw, by ALFRED's names; empty for all six.
        receptacles: the most receptacles of a room; None for as many as ALFRED's rooms have.
        objects: the most objects of a room; None likewise.
        split: ``train`` and ``test`` share no pair of a goal and a set of receptacles; ``all`` is both.
    """

    def __init__(
        self,
        tasks: Sequence[str] = (),
        receptacles: int | None = None,
        objects: int | None = None,
        split: str = "all",
        max_steps: int = 50,
        *,
        spelling: str = "move",
        admissible: bool = True,
        show_commands: bool = True,
        brief: bool = False,
        oracle: str = "explores",
    ):
        super().__init__(
            max_steps, spelling=spelling, admissible=admissible, show_commands=show_commands, brief=brief, oracle=oracle
        )
        named = (tasks,) if isinstance(tasks, str) else tuple(tasks)
        self.size = Size(named or tuple(TASKS), receptacles, objects, split)

    def _draw(self, options: dict[str, Any]) -> int:
        return self.randint(2**48)

    def _room(self, task: int) -> Room:
        return draw_room(task, self.size, self.spelling)


def _check_split(split: str) -> None:
    if split not in SPLITS:
        raise UsageError(f"split {split!r} is unknown; choose from {', '.join(SPLITS)}")


def _drawn(env: AlfWorld, options: dict[str, Any]) -> int:
    index = options.get("index")
    return env.randint(env.num_tasks()) if index is None else checked_index(env, index)
