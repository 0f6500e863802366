"""Plays GEM's own games; run by the python of an environment in which gem-llm is installed.

Reads one JSON object a line from standard input and answers each with one line.
"""

import copy
import functools
import json
import sys


def stub_the_word_lists():
    """NLTK's corpora have to be downloaded; the words that matter are set by the test."""
    import nltk
    import nltk.corpus

    class Words:
        def words(self, _list):
            return ["bird", "flower", "garden", "house", "letter", "cat", "dog", "river", "picture", "kitchen"]

    nltk.download = lambda *_: True
    nltk.corpus.words = Words()


def stub_the_level_generator():
    """GEM takes seconds for a large room, and the test sets another one anyway."""
    import numpy as np
    from gem.envs.game_env.sokoban import sokoban

    def room(**_):
        fixed = np.ones((6, 6), dtype=int)
        state = fixed.copy()
        state[1, 1] = 5
        return fixed, state, {}

    sokoban.generate_room = room


@functools.cache
def made(env_id):
    """The environment of an id, and its attributes as the constructor left them."""
    import gem

    env = gem.make(env_id)
    return env, dict(vars(env))


#: Large attributes that nothing changes.
KEPT = ("all_words", "available_words", "word_data", "word_list")


def fresh(env_id):
    """The environment of an id as its constructor left it."""
    env, attributes = made(env_id)
    vars(env).clear()
    vars(env).update({k: v if k in KEPT else copy.deepcopy(v) for k, v in attributes.items()})
    return env


def arrange(env, state, tiles):
    """Give the environment the hidden state that the test chose."""
    import numpy as np

    mines = state.pop("mines_to_lay", None)
    for name, value in state.items():
        if name in ("room_fixed", "room_state", "player_position"):
            value = np.array(value)
        elif name == "placed_words":
            value = {word: tuple(place) for word, place in value.items()}
        setattr(env, name, value)
    if hasattr(env, "grid"):  # Minesweeper lays its mines at the first reveal
        env.revealed, env.flags = ([[False] * env.cols for _ in range(env.rows)] for _ in range(2))
        env.grid = [[0] * env.cols for _ in range(env.rows)]
        env._setup_mines = lambda _row, _col: setattr(env, "grid", mines)
    if hasattr(env, "guessed_letters"):
        env.board = ["_"] * len(env.secret_word)
    if hasattr(env, "milestones"):
        env.milestones = [0] * len(env.secret_word)
    if hasattr(env, "init_num_empty"):
        env.init_num_empty = sum(row.count(0) for row in env.board)
    if hasattr(env, "greatest_num"):
        env.greatest_num = env.num_rows**2 - 1
    if hasattr(env, "max_tile_achieved"):
        coming = iter(tiles)

        def add_tile():
            row, col, tile = next(coming)
            env.board[row][col] = tile

        env._add_random_tile = add_tile


def play(request):
    env = fresh(request["id"])
    arrange(env, request["state"], request["tiles"])
    steps = []
    for action in request["actions"]:
        try:
            _, reward, terminated, truncated, _ = env.step(action)
        except Exception as error:
            steps.append({"error": type(error).__name__})
            break
        steps.append([float(reward), bool(terminated), bool(truncated)])
    return {"steps": steps}


def prompt(request):
    env = fresh(request["id"])
    observation, info = env.reset(seed=0)
    return {"observation": observation, "suffix": info.get("suffix", "")}


def draws(request):
    env = fresh(request["id"])
    drawn = []
    for _ in range(request["n"]):
        env.reset()
        sizes = (getattr(env, name) for name in request["names"])
        drawn.append([str(list(size) if isinstance(size, tuple) else size) for size in sizes])
    return drawn


def ids(_):
    from gem.envs.registration import ENV_REGISTRY

    found = {}
    for env_id, spec in ENV_REGISTRY.items():
        if env_id.startswith("game:"):
            try:
                made(env_id)
                found[env_id] = {"kwargs": spec.kwargs, "class": spec.entry_point}
            except Exception as error:
                found[env_id] = {"kwargs": spec.kwargs, "class": spec.entry_point, "error": type(error).__name__}
    return found


def signature(request):
    import importlib
    import inspect

    module, _, name = request["class"].partition(":")
    parameters = inspect.signature(getattr(importlib.import_module(module), name)).parameters.values()
    return [[p.name, p.default] for p in parameters if p.kind is not p.VAR_KEYWORD]


def main():
    answers = sys.stdout
    sys.stdout = sys.stderr  # whatever GEM prints is no answer
    stub_the_word_lists()
    stub_the_level_generator()
    for line in sys.stdin:
        request = json.loads(line)
        todo = {"play": play, "prompt": prompt, "draws": draws, "ids": ids, "signature": signature}[request.pop("do")]
        print(json.dumps(todo(request)), file=answers, flush=True)


if __name__ == "__main__":
    main()
