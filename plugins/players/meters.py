"""Meters of how well an agent plays a game of OpenSpiel: functions for ``eval.measures``.

They read an agent's exact probabilities: those of the text of each legal move, normalised to all legal ones, at the
temperature of its sampling. Agents without a local model are asked several times instead.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rollenv.agents.base import Agent
from rollenv.core.errors import UsageError
from rollenv.core.registry import make
from rollenv.plugins.players.solve import MOST_STATES, has_expert, is_open
from rollenv.plugins.players.spiel import OpenSpiel

#: Probabilities of moves by information state.
Policy = dict[str, dict[int, float]]
Losses = dict[str, float]

#: Most histories of a game that are walked.
_MOST = 200_000
#: Number of answers of an agent without a local model, in all states, and the least in each.
_ANSWERS, _LEAST = 5000, 16
#: Number of answers that are scored at a time.
_ROWS = 512
#: File in a run's folder with the policies of its evaluations.
_FILE = "policies.jsonl"


def exploitability(agent: Agent, config: Any) -> dict[str, float]:
    """Measure how much a best response wins against the agent, and against the average of its later evaluations.

    Half of OpenSpiel's NashConv: 0 in an equilibrium. The average is the one of fictitious self-play (Heinrich, Lanctot
    and Silver 2015, theorem 7) over the later half of the evaluations so far: in each information state, policies are
    weighted by their own probability of getting there.

    Args:
        config: a :class:`~rollenv.trainers.TrainConfig`, or what has its ``env`` and ``run_dir``. With the latter, the
            policies of evaluations are kept in its file ``policies.jsonl``.

    Returns:
        ``exploitability``, ``average_exploitability``, and ``illegal``, the probability of answers that are no legal
        move, averaged over information states.

    Raises:
        UsageError: the environment is no game of OpenSpiel, or too large.
    """
    env = _game_of(config)
    places = information_states(env.game)
    policy, legal = policy_of(agent, env, places)
    policies = [*_kept(config, getattr(agent, "version", None) or 0, policy), policy]
    later = policies[len(policies) // 2 :]
    return {
        "exploitability": exploitability_of(env.game, policy),
        "average_exploitability": exploitability_of(env.game, average(later, places)),
        "illegal": 1 - legal,
    }


def losses(agent: Agent, config: Any) -> dict[str, float]:
    """Count the games that an agent loses with its likeliest moves, over all replies of the opponent, in both seats.

    An answer that is no legal move counts as a loss where it may be likelier than the likeliest legal move.

    Returns:
        ``losses`` and ``games``, their number in both seats; ``losses_first`` and ``losses_second`` by seat.

    Raises:
        UsageError: the environment is no game of OpenSpiel without hidden information and chance, or too large.
    """
    env = _open_game_of(config)
    return lost_games(env.game, lambda states: chances(agent, env, [state.history() for state in states]))


def average_losses(agent: Agent, config: Any) -> dict[str, float]:
    """Count the games that the agent and the average of its later evaluations lose.

    The average is the mean probability of each move in each position, over the later half of the evaluations so far;
    so the agent must see the position only, and not the moves to it.

    Args:
        config: as for :func:`exploitability`.

    Returns:
        What :func:`losses` does, and ``average_losses``.
    """
    env = _open_game_of(config)
    histories = positions(env.game)
    answers = dict(zip(histories, chances(agent, env, list(histories.values())), strict=True))
    table = np.zeros((len(histories), env.game.num_distinct_actions() + 1), np.float32)
    for row, (moves, legal) in zip(table, answers.values(), strict=True):
        row[[*moves, -1]] = *moves.values(), legal
    mean = dict(zip(histories, _later_mean(config, getattr(agent, "version", None) or 0, table), strict=True))

    def averaged(states: Sequence[Any]) -> list[tuple[dict[int, float], float]]:
        rows = [mean[str(state)] for state in states]
        return [({m: row[m] for m in s.legal_actions()}, row[-1]) for s, row in zip(states, rows, strict=True)]

    own = lost_games(env.game, lambda states: [answers[str(state)] for state in states])
    return own | {"average_losses": lost_games(env.game, averaged)["losses"]}


def _later_mean(config: Any, version: int, table: Any) -> Any:
    """Keep a table of an evaluation in the run's folder, and return the mean of the later half of all so far."""
    if not getattr(config, "run_dir", ""):
        return table
    folder = Path(config.run_dir, "positions")
    folder.mkdir(exist_ok=True)
    np.save(folder / f"{version:06d}.npy", table)
    kept = [file for file in sorted(folder.glob("*.npy")) if int(file.stem) <= version]  # a resumed run plays again
    return np.mean([np.load(file) for file in kept[len(kept) // 2 :]], axis=0)


def lost_games(game: Any, answers: Callable[[Sequence[Any]], Sequence[tuple[dict[int, float], float]]]) -> Losses:
    """Count the games that the likeliest moves lose.

    Args:
        answers: returns, for states of OpenSpiel, the probabilities of legal moves and of a legal answer.
    """
    lost, games = [0, 0], 0
    for seat in (0, 1):
        open_games = [game.new_initial_state()]
        while open_games:
            over = [state for state in open_games if state.is_terminal()]
            games += len(over)
            lost[seat] += sum(state.returns()[seat] < 0 for state in over)
            asked = [state for state in open_games if state.current_player() == seat]
            others = [s for s in open_games if not s.is_terminal() and s.current_player() != seat]
            open_games = [state.child(move) for state in others for move in state.legal_actions()]
            for state, (moves, legal) in zip(asked, answers(asked), strict=True):
                move = max(moves, key=lambda each: moves[each])
                if moves[move] * legal < 1 - legal:
                    lost[seat], games = lost[seat] + 1, games + 1
                else:
                    open_games.append(state.child(move))
    return {"losses": sum(lost), "games": games, "losses_first": lost[0], "losses_second": lost[1]}


def _open_game_of(config: Any) -> OpenSpiel:
    env = _game_of(config)
    if not is_open(env.game) or not has_expert(str(env.game)):
        raise UsageError(
            f"losses are counted in zero-sum games for two without hidden information or chance and with at most "
            f"{MOST_STATES} states; {config.env.id} is none"
        )
    return env


def _game_of(config: Any) -> OpenSpiel:
    env = make(config.env.id, **config.env.kwargs).unwrapped
    if not isinstance(env, OpenSpiel):
        raise UsageError(f"{config.env.id} is no game of OpenSpiel (spiel:GAME), so its moves cannot be enumerated")
    return env


# -- policies --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """An information state: the moves of one history to it, and its player's own earlier choices."""

    history: tuple[int, ...]
    own: tuple[tuple[str, int], ...]


def information_states(game: Any) -> dict[str, Place]:
    """Walk a game and return its information states.

    Raises:
        UsageError: it is too large, or has no texts for them.
    """
    if not game.get_type().provides_information_state_string:
        raise UsageError(f"OpenSpiel's {game} has no texts of its information states")
    places: dict[str, Place] = {}
    todo = [(game.new_initial_state(), {player: tuple[tuple[str, int], ...]() for player in range(game.num_players())})]
    for _ in range(_MOST):
        if not todo:
            return places
        state, own = todo.pop()
        player = state.current_player()
        if player not in own:  # chance, or the end
            todo += [(state.child(move), own) for move in state.legal_actions()]
            continue
        key = state.information_state_string()
        places.setdefault(key, Place(tuple(state.history()), own[player]))
        for move in state.legal_actions():
            todo.append((state.child(move), own | {player: (*own[player], (key, move))}))
    raise UsageError(f"OpenSpiel's {game} has more than {_MOST} histories: too many to measure")


def positions(game: Any) -> dict[str, tuple[int, ...]]:
    """Walk a game without hidden information and return its positions by their texts, each with moves to it."""
    found: dict[str, tuple[int, ...]] = {}
    todo = [game.new_initial_state()]
    while todo:
        state = todo.pop()
        if not state.is_terminal() and str(state) not in found:
            found[str(state)] = tuple(state.history())
            todo += [state.child(move) for move in state.legal_actions()]
    return found


def policy_of(agent: Agent, env: OpenSpiel, places: dict[str, Place]) -> tuple[Policy, float]:
    """Return an agent's probabilities of moves in information states, and the mean probability of a legal answer."""
    moves, legal = zip(*chances(agent, env, [place.history for place in places.values()]), strict=True)
    return dict(zip(places, moves, strict=True)), sum(legal) / len(legal)


def exploitability_of(game: Any, policy: Policy) -> float:
    """Return OpenSpiel's exploitability of a policy."""
    import pyspiel

    try:
        table = pyspiel.TabularPolicy({key: list(moves.items()) for key, moves in policy.items()})
        return float(pyspiel.exploitability(game, table))
    except pyspiel.SpielError as error:
        raise UsageError(f"OpenSpiel cannot measure {game}: {' '.join(str(error).split()):.200}") from error


def average(policies: Sequence[Policy], places: dict[str, Place]) -> Policy:
    """Return the average of policies, in each information state weighted by their own probability of getting there."""
    averaged: Policy = {}
    for key, place in places.items():
        weights = [math.prod(policy[at][move] for at, move in place.own) for policy in policies]
        if not sum(weights):
            weights = [1.0] * len(policies)
        averaged[key] = {
            move: sum(weight * policy[key][move] for weight, policy in zip(weights, policies, strict=True))
            / sum(weights)
            for move in policies[0][key]
        }
    return averaged


def _kept(config: Any, version: int, policy: Policy) -> list[Policy]:
    """Return the policies of earlier evaluations of the run, and keep this one."""
    if not getattr(config, "run_dir", ""):
        return []
    file = Path(config.run_dir, _FILE)
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []
    rows = [row for row in rows if row["version"] < version]  # a run that is resumed plays later ones again
    kept = [*rows, {"version": version, "policy": policy}]
    whole = file.with_suffix(".new")
    whole.write_text("".join(json.dumps(row) + "\n" for row in kept), "utf-8")
    whole.replace(file)  # a run that is killed leaves the old ones
    return [{key: {int(m): p for m, p in moves.items()} for key, moves in row["policy"].items()} for row in rows]


# -- an agent's probabilities ----------------------------------------------------------------------------------------


def chances(agent: Agent, env: OpenSpiel, histories: Sequence[Sequence[int]]) -> list[tuple[dict[int, float], float]]:
    """Return, for each history, the agent's probabilities of the legal moves, which sum to 1, and of a legal answer.

    All legal moves are equally likely where no answer is legal.
    """
    if hasattr(agent, "model") and hasattr(agent, "tokenizer"):
        return _scored(agent, env, histories)
    with ThreadPoolExecutor(1) as thread:  # an event loop of its own
        return thread.submit(asyncio.run, _sampled(agent, env, histories)).result()


def _scored(agent: Any, env: OpenSpiel, histories: Sequence[Sequence[int]]) -> list[tuple[dict[int, float], float]]:
    import torch

    from rollenv.agents.engines.base import Response
    from rollenv.agents.engines.scoring import score

    most = agent.sampling.max_new_tokens

    def ids_of(text: str) -> tuple[int, ...]:
        ids = tuple(agent.tokenizer.encode(text, add_special_tokens=False))
        return ids if len(ids) >= most else (*ids, agent.tokenizer.eos_token_id)

    rows: dict[tuple[tuple[int, ...], tuple[int, ...]], float] = {}
    asked = []
    for history in histories:
        session = agent.start(_Handle(env), 0)
        for observation, info, answer in env.turns_to(history):
            prompt = session.ask(observation, info)
            if answer:
                session.take(observation, prompt, Response(list(ids_of(answer))))
        session.close()
        asked.append({move: (prompt, ids_of(env.write(move))) for move in env.moves()})
        rows |= dict.fromkeys(asked[-1].values(), 0.0)
    unique = list(rows)
    for start in range(0, len(unique), _ROWS):
        some = unique[start : start + _ROWS]
        with torch.no_grad():
            scores = score(agent.model, [p for p, _ in some], [r for _, r in some], agent.sampling.temperature or 1.0)
        rows |= dict(zip(some, scores.logprobs.sum(-1).double().exp().tolist(), strict=True))
    return [_normalised({move: rows[row] for move, row in each.items()}) for each in asked]


async def _sampled(
    agent: Agent, env: OpenSpiel, histories: Sequence[Sequence[int]]
) -> list[tuple[dict[int, float], float]]:
    async def answer(seed: int) -> int | None:
        session = agent.start(_Handle(env), seed)
        for observation, info, _ in turns:
            action = await session.act(observation, info)
        if hasattr(session, "close"):
            session.close()
        return env.read(action.text)

    answers = max(_LEAST, _ANSWERS // max(1, len(histories)))
    found = []
    for history in histories:
        turns = env.turns_to(history)
        given = Counter(await asyncio.gather(*map(answer, range(answers))))
        found.append(_normalised({move: given[move] / answers for move in env.moves()}))
    return found


def _normalised(moves: dict[int, float]) -> tuple[dict[int, float], float]:
    total = sum(moves.values())
    if not total:
        return dict.fromkeys(moves, 1 / len(moves)), 0.0
    return {move: chance / total for move, chance in moves.items()}, min(total, 1.0)


@dataclass(slots=True)
class _Handle:
    """The environment of an agent that is asked about one state."""

    env: OpenSpiel

    @property
    def env_id(self) -> str:
        return str(self.env)

    async def call(self, method: str, *args: Any) -> Any:
        return getattr(self.env, method)(*args)
