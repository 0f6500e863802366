"""Rewards of a winner, a loser and a lazy player in all games of TextArena: ``python benchmarks/textarena_rewards.py``.

Games for one player are played by an expert that reads the solution from the game, by one that is wrong,
and by one that does nothing. In games for several, seat 0 plays legal moves at random against opponents
that do the same, and against opponents that do nothing.
"""

from __future__ import annotations

import argparse
import copy
import itertools
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from operator import mul
from typing import Any

from common import header, save, table

import rollenv
from rollenv.envs.ta.games import GAMES

#: An action that no game takes.
NOTHING = "[]"
#: Maximum actions of an episode.
_MOST = 300
DIRECTIONS = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}


def shortest(start: Any, key: Callable[[Any], Hashable], after: Callable[[Any], Iterator[tuple[str, Any]]],
             done: Callable[[Any], bool]) -> list[str]:  # fmt: skip
    """Search the shortest way to a state that is ``done``, breadth first."""
    queue, seen = deque([(start, [])]), {key(start)}
    while queue:
        state, way = queue.popleft()
        if done(state):
            return way
        for action, new in after(state):
            if key(new) not in seen:
                seen.add(key(new))
                queue.append((new, [*way, action]))
    raise ValueError("there is no solution")


def frozen_lake(game: Any) -> Iterator[str]:
    grid, goal = game.state.game_state["grid"], game.state.game_state["goal_pos"]

    def after(at: tuple[int, int]) -> Iterator[tuple[str, tuple[int, int]]]:
        for name, (down, right) in DIRECTIONS.items():
            row, column = at[0] + down, at[1] + right
            if 0 <= row < game.size and 0 <= column < game.size and grid[row][column] != "H":
                yield f"[{name}]", (row, column)

    yield from shortest(tuple(game.state.game_state["player_pos"]), lambda at: at, after, lambda at: at == goal)


def sokoban(game: Any) -> Iterator[str]:
    def after(trial: Any) -> Iterator[tuple[str, Any]]:
        for name in DIRECTIONS:
            new = copy.copy(trial)
            new.room_state, new.player_position = trial.room_state.copy(), trial.player_position.copy()
            if not new._would_collide_with_wall(name) and new._push(name)[0]:
                yield f"[{name}]", new

    yield from shortest(game, lambda trial: trial.room_state.tobytes(), after,
                        lambda trial: trial._check_if_all_boxes_on_target()[1])  # fmt: skip


def rush_hour(game: Any) -> Iterator[str]:
    def copied(trial: Any) -> Any:
        new = copy.copy(trial)
        new.state = copy.copy(trial.state)
        vehicles = {name: copy.copy(car) for name, car in trial.state.game_state["vehicles"].items()}
        new.state.game_state = {**trial.state.game_state, "vehicles": vehicles}
        return new

    def after(trial: Any) -> Iterator[tuple[str, Any]]:
        for name, sign in itertools.product(trial.state.game_state["vehicles"], "+-"):
            new = copied(trial)
            if new._try_move(new.state.game_state["vehicles"][name], sign == "+"):
                yield f"[{name}{sign}]", new

    def key(trial: Any) -> Hashable:
        return tuple((car.row, car.col) for car in trial.state.game_state["vehicles"].values())

    yield from shortest(copied(game), key, after, lambda trial: trial._is_solved())


def peg_jump(game: Any) -> Iterator[str]:
    def solved(board: tuple[bool, ...], way: list[str]) -> list[str] | None:
        if sum(board) == 1:
            return way
        for start, over, end in game.ALLOWED_MOVES:
            if board[start] and board[over] and not board[end]:
                new = list(board)
                new[start] = new[over] = False
                new[end] = True
                if (found := solved(tuple(new), [*way, f"[{start} {end}]"])) is not None:
                    return found
        return None

    yield from solved(tuple(game.state.game_state["board"]), []) or []


def countdown(game: Any) -> Iterator[str]:
    def solved(numbers: list[int], way: list[str]) -> list[str] | None:
        for (i, a), (j, b) in itertools.permutations(enumerate(numbers), 2):
            values = {"+": a + b, "*": a * b, "-": a - b, "/": a // b if b and a % b == 0 else None}
            for sign, value in values.items():
                if value is None or abs(value) > 10_000:
                    continue
                if value == game.target:
                    return [*way, f"[{i} {j} {sign}]"]
                rest = [n for at, n in enumerate(numbers) if at not in (i, j)]
                if len(way) < 3 and (found := solved([*rest, value], [*way, f"[{i} {j} {sign}]"])):
                    return found
        return None

    yield from solved(list(game.numbers), []) or []


def cryptarithm(game: Any) -> Iterator[str]:
    weights = dict.fromkeys(sorted(game.letters), 0)
    for word, sign in (*((word, 1) for word in game.addends), (game.result, -1)):
        for power, letter in enumerate(reversed(word)):
            weights[letter] += sign * 10**power
    first = [at for at, letter in enumerate(weights) if letter in game.first_letters]
    for digits in itertools.permutations(range(10), len(weights)):
        if sum(map(mul, weights.values(), digits)) == 0 and all(digits[at] for at in first):
            yield from (f"[{letter} {digit}]" for letter, digit in zip(weights, digits, strict=True))
            return


def lights_out(game: Any) -> Iterator[str]:
    n = game.size
    grid = game.state.game_state["grid"]
    for first in itertools.product((0, 1), repeat=n):  # the first row of presses decides the others
        lit, presses = [[int(light) for light in row] for row in grid], []
        for row in range(n):
            wanted = first if row == 0 else tuple(lit[row - 1])
            for column in range(n):
                if wanted[column]:
                    presses.append(f"[{row} {column}]")
                    for down, right in ((0, 0), *DIRECTIONS.values()):
                        if 0 <= row + down < n and 0 <= column + right < n:
                            lit[row + down][column + right] ^= 1
        if not any(map(any, lit)):
            yield from presses
            return


def minesweeper(game: Any) -> Iterator[str]:
    yield "[0 0]"
    for row, column in itertools.product(range(game.rows), range(game.cols)):
        if not game.revealed[row][column] and game.grid[row][column] != -1:
            yield f"[{row} {column}]"


def hanoi(game: Any) -> Iterator[str]:
    def moved(disks: int, start: str, end: str, other: str) -> Iterator[str]:
        if disks:
            yield from moved(disks - 1, start, other, end)
            yield f"[{start} {end}]"
            yield from moved(disks - 1, other, end, start)

    yield from moved(game.num_disks, "A", "C", "B")


def slitherlink(game: Any) -> Iterator[str]:
    for height, width in itertools.product(range(1, game.R + 1), range(1, game.C + 1)):
        for top, left in itertools.product(range(game.R - height + 1), range(game.C - width + 1)):
            trial = copy.copy(game)
            trial.h_edges = {(row, left + i) for row in (top, top + height) for i in range(width)}
            trial.v_edges = {(top + i, column) for column in (left, left + width) for i in range(height)}
            if trial._is_solved():
                yield from (f"[h {row} {column}]" for row, column in trial.h_edges)
                yield from (f"[v {row} {column}]" for row, column in trial.v_edges)
                return


def card_sets(game: Any) -> Iterator[str]:
    while True:
        for cards in itertools.combinations(enumerate(game.state.game_state["board"], 1), 3):
            if all(len(set(kinds)) != 2 for kinds in zip(*(card for _, card in cards), strict=True)):
                yield str([at for at, _ in cards])
                break
        else:
            yield "[1, 2, 3]"


def twenty_forty_eight(game: Any) -> Iterator[str]:
    while True:
        for name in ("Down", "Left", "Right", "Up"):
            trial = copy.deepcopy(game)
            if trial._apply_move(trial._parse_action(f"[{name}]"))[0]:
                yield f"[{name}]"
                break


def bandit(game: Any) -> Iterator[str]:
    means = game.state.game_state["ground_truth"]
    yield from itertools.repeat(f"[{max(means, key=means.get)}]")


def secretary(game: Any) -> Iterator[str]:
    draws = game.state.game_state["draws"]
    yield from ["[continue]"] * draws.index(max(draws))
    yield "[accept]"


def blackjack(game: Any) -> Iterator[str]:
    while True:
        yield "[hit]" if game._hand_score(game.state.game_state["player_hand"]) < 17 else "[stand]"


def fifteen(game: Any) -> Iterator[str]:
    game.board = [list(range(4 * row + 1, 4 * row + 5)) for row in range(4)]  # two moves from the end
    game.board[3] = [13, None, 14, 15]
    yield from ("[left]", "[left]")


def logic_puzzle(game: Any) -> Iterator[str]:
    for rows in game.game_board_solution.values():
        for row, marks in rows.items():
            yield "".join(f"[{row} {column} {mark}]" for column, mark in marks.items())


#: An expert for each game of one player, by class.
EXPERTS: dict[str, Callable[[Any], Iterator[str]]] = {
    "BanditEnv": bandit,
    "BlackjackEnv": blackjack,
    "CountdownEnv": countdown,
    "CrosswordsEnv": lambda game: iter(
        f"[{row} {column} {letter}]"
        for row, line in enumerate(game.state.game_state["solution"])
        for column, letter in enumerate(line)
        if game.state.game_state["board"][row][column] == "_"
    ),
    "CryptarithmEnv": cryptarithm,
    "FifteenPuzzleEnv": fifteen,
    "FrozenLakeEnv": frozen_lake,
    "Game2048Env": twenty_forty_eight,
    "GuessTheNumberEnv": lambda game: iter([f"[{game.game_number}]"]),
    "LightsOutEnv": lights_out,
    "LogicPuzzleEnv": logic_puzzle,
    "MastermindEnv": lambda game: iter([str(game.state.game_state["secret_code"]).replace(",", "")]),
    "MinesweeperEnv": minesweeper,
    "PegJumpEnv": peg_jump,
    "RushHourEnv": rush_hour,
    "SecretaryEnv": secretary,
    "SetEnv": card_sets,
    "SlitherlinkEnv": slitherlink,
    "SokobanEnv": sokoban,
    "SudokuEnv": lambda game: iter(
        f"[{row + 1} {column + 1} {game.full_grid[row][column]}]"
        for row, column in itertools.product(range(9), range(9))
        if game.state.game_state["board"][row][column] == 0
    ),
    "ThreeCardMonteEnv": lambda game: iter([f"[{game.ball_pos}]"]),
    "TowerOfHanoiEnv": hanoi,
}


#: What a player does who is wrong to the end; in other games, the first half of the solution and then nothing.
MISTAKES: dict[str, Callable[[Any], Iterator[str]]] = {
    "BanditEnv": lambda game: itertools.repeat(
        "[{}]".format(min(means := game.state.game_state["ground_truth"], key=means.get))
    ),
    "BlackjackEnv": lambda game: itertools.repeat("[hit]"),
    "GuessTheNumberEnv": lambda game: (f"[{n}]" for n in range(game.max_number, 0, -1) if n != game.game_number),
    "MastermindEnv": lambda game: iter(["[1 2 3 4 5 6 7 8 9]"]),
    "SecretaryEnv": lambda game: itertools.chain(
        ["[continue]"] * (draws := game.state.game_state["draws"]).index(min(draws)), ["[accept]"]
    ),
    "SetEnv": lambda game: itertools.repeat("[1, 1, 1]"),
    "ThreeCardMonteEnv": lambda game: iter([f"[{(game.ball_pos + 1) % game.num_cups}]"]),
}


def episode(game_id: str, seed: int, who: str, **settings: Any) -> tuple[float, list[float]]:
    """Play one episode as ``right``, ``wrong``, ``lazy`` or ``random``.

    Returns:
        The player's reward (0 if the game does not end), and the game's own rewards of all seats.
    """
    env = rollenv.make(f"ta:{game_id}", **settings)
    env.reset(seed=seed)
    player: Any = env.unwrapped
    kind = type(player._game).__name__
    moves: Iterator[str] = iter(())
    if who == "right" or (who == "wrong" and kind in MISTAKES):
        moves = (EXPERTS if who == "right" else MISTAKES)[kind](player._game)
    elif who == "wrong":
        plan = list(itertools.islice(EXPERTS[kind](copy.deepcopy(player._game)), 100))
        moves = iter(plan[: len(plan) // 2])
    for _ in range(_MOST):
        action = player.sample_random_action() if who == "random" else next(moves, NOTHING)
        _, reward, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            return float(reward), list((player._state.rewards or {0: reward}).values())
    return 0.0, []


def by_class() -> dict[int, dict[str, str]]:
    """Return the first id of every game's class, for one player and for several."""
    found: dict[int, dict[str, str]] = {1: {}, 2: {}}
    for game_id, players in GAMES.items():
        kind = type(rollenv.make(f"ta:{game_id}").unwrapped._game).__name__  # type: ignore[attr-defined]
        found[min(players, 2)].setdefault(kind, game_id)
    return found


def outcomes(game_id: str, seeds: int) -> list[object]:
    """Return a row for a game of several players: the highest and lowest reward of any seat, and the lazy player's."""
    ends: list[float] = []
    for seed in range(seeds):
        ends += episode(game_id, seed, "random")[1]
        ends += episode(game_id, seed, "random", opponent=lambda text: NOTHING)[1]
    lazy = [episode(game_id, seed, "lazy")[0] for seed in range(seeds)]
    return [game_id, max(ends, default=0), min(ends, default=0), f"{min(lazy):g} to {max(lazy):g}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = range(parser.parse_args().seeds)
    games = by_class()
    alone = []
    for game_id in games[1].values():
        means = [
            sum(episode(game_id, seed, who)[0] for seed in seeds) / len(seeds) for who in ("right", "wrong", "lazy")
        ]
        alone.append([game_id, *means])
    several = [outcomes(game_id, len(seeds)) for game_id in sorted(games[2].values())]
    text = f"""# Rewards of TextArena's games

{header()}
One player: the mean reward over {len(seeds)} seeds of an expert that knows the solution, of one that is wrong, and
of one that does nothing. Blackjack pays the share of hands that were won, Set the number of sets.

{table(["game", "right", "wrong", "lazy"], alone)}
Several players: the highest and lowest reward of any seat where seat 0 plays random legal moves against opponents that
do the same or nothing, and the range of a player that does nothing. Not to bid, or to let the other one guess, wins
SimpleBlindAuction and TruthAndDeception by their rules.

{table(["game", "highest", "lowest", "lazy"], several)}"""
    save("textarena_rewards", text)


if __name__ == "__main__":
    main()
