"""What every text game promises, over all their ids."""

import json
import re

import pytest
from played import to_the_end

import rollenv
from rollenv import UsageError
from rollenv.envs.game import GAMES, UNWINNABLE

IDS = [spec.id for spec in rollenv.list_envs("game:") if "Sokoban" not in spec.id]
RANDOM = [env_id for env_id in IDS if env_id.endswith("-random")]

#: What gem-llm 0.1.0 registers; WikiGame as its main branch does.
GEM_KWARGS = {
    "game:GuessTheNumber-v0-easy": {"min_number": 1, "max_number": 10, "max_turns": 4},
    "game:GuessTheNumber-v0-hard": {"min_number": 1, "max_number": 50, "max_turns": 7},
    "game:GuessTheNumber-v0-random": {"min_number": None, "max_number": None, "max_turns": None},
    "game:Mastermind-v0-easy": {"code_length": 2, "num_numbers": 6, "max_turns": 10, "duplicate_numbers": False},
    "game:Mastermind-v0-hard": {"code_length": 4, "num_numbers": 8, "max_turns": 30, "duplicate_numbers": False},
    "game:Mastermind-v0-random": {
        "code_length": None,
        "num_numbers": None,
        "max_turns": None,
        "duplicate_numbers": False,
    },
    "game:Minesweeper-v0-easy": {"rows": 5, "cols": 5, "num_mines": 5, "max_turns": 25},
    "game:Minesweeper-v0-hard": {"rows": 8, "cols": 8, "num_mines": 12, "max_turns": 64},
    "game:Minesweeper-v0-random": {"rows": None, "cols": None, "num_mines": None, "max_turns": None},
    "game:Wordle-v0-easy": {"word_length": 3, "only_real_words": True, "max_turns": 15},
    "game:Wordle-v0-hard": {"word_length": 5, "only_real_words": True, "max_turns": 25},
    "game:Wordle-v0-random": {"word_length": None, "only_real_words": True, "max_turns": None},
    "game:FifteenPuzzle-v0-easy": {"num_rows": 2, "max_turns": 10},
    "game:FifteenPuzzle-v0-hard": {"num_rows": 4, "max_turns": 50},
    "game:FifteenPuzzle-v0-random": {"num_rows": None, "max_turns": None},
    "game:Hangman-v0-easy": {"word_length": 3, "hardcore": False, "max_turns": 10},
    "game:Hangman-v0-hard": {"word_length": 7, "hardcore": False, "max_turns": 20},
    "game:Hangman-v0-random": {"word_length": None, "hardcore": False, "max_turns": None},
    "game:Sudoku-v0-easy": {"clues": 10, "max_turns": 15, "scale": 4},
    "game:Sudoku-v0-hard": {"clues": 50, "max_turns": 50, "scale": 9},
    "game:Sudoku-v0-random": {"clues": None, "max_turns": None, "scale": None},
    "game:TowerofHanoi-v0-easy": {"num_disks": 3, "max_turns": 10},
    "game:TowerofHanoi-v0-hard": {"num_disks": 5, "max_turns": 35},
    "game:TowerofHanoi-v0-random": {"num_disks": None, "max_turns": None},
    "game:Game2048-v0-easy": {"target_tile": 64, "max_turns": 50, "board_size": 4},
    "game:Game2048-v0-hard": {"target_tile": 512, "max_turns": 50},
    "game:Game2048-v0-extreme-hard": {"target_tile": 2048, "max_turns": 100},
    "game:Game2048-v0-random": {"target_tile": None, "max_turns": None},
    "game:Crosswords-v0-easy": {"hardcore": False, "max_turns": 30, "num_words": 3},
    "game:Crosswords-v0-hard": {"hardcore": True, "max_turns": 40, "num_words": 3},
    "game:Crosswords-v0-random": {"hardcore": None, "max_turns": None, "num_words": None},
    "game:WordSearch-v0-easy": {"num_words": 5, "max_turns": 20, "hardcore": False},
    "game:WordSearch-v0-hard": {"num_words": 5, "max_turns": 20, "hardcore": True},
    "game:WordSearch-v0-random": {"num_words": None, "max_turns": None, "hardcore": None},
    "game:WikiGame-v0-easy": {"max_turns": 30, "page_summary_length": (50, "words"), "variant": "noregrets"},
    "game:WikiGame-v0-hard": {"max_turns": 15},
}


def oracle_episode(env, seed):
    """The results of all steps of an episode that the oracle plays."""
    env.reset(seed)
    return to_the_end(env)


def wins(env_id, episodes):
    env = rollenv.make(env_id)
    return sum(oracle_episode(env, seed)[-1][4]["success"] for seed in range(episodes))


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize("env_id", IDS)
def test_the_oracle_wins(env_id):
    if env_id in UNWINNABLE:
        assert wins(env_id, 3) == 0
    else:
        assert wins(env_id, 200) >= 198


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize("env_id", [i for i in IDS if i not in UNWINNABLE and "WikiGame" not in i])
def test_a_win_has_paid_one_in_all(env_id):
    env = rollenv.make(env_id)
    for seed in range(8):
        results = oracle_episode(env, seed)
        if results[-1][4]["success"]:
            assert sum(result[1] for result in results) == pytest.approx(1.0)
            assert results[-1][2:4] == (True, False)


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize("env_id", IDS)
@pytest.mark.parametrize("action", ["", "up", "\\boxed{}", "\\boxed{?}", "\\boxed{1.5 x}", "boxed{1}"])
def test_an_action_that_does_not_parse(env_id, action):
    env = rollenv.make(env_id)
    env.reset(3)
    _, reward, terminated, truncated, info = env.step(action)
    if "WikiGame" in env_id:
        assert (reward, terminated, truncated) == (-0.2, False, False)
    else:
        assert (reward, terminated, truncated, info["success"]) == (-0.1, True, False, False)
        assert info["valid"] is False


@pytest.mark.parametrize("env_id", [i for i in IDS if "WikiGame" not in i])
def test_spaces_in_the_box_and_an_open_box_behind_it_do_not_matter(env_id):
    env, other = rollenv.make(env_id), rollenv.make(env_id)
    env.reset(5)
    other.reset(5)
    action = env.oracle_action()
    spaced = action.replace("{", "{  ").replace("}", "  }") + " or \\boxed{"
    assert env.step(action) == other.step(spaced)


#: Moves that parse in every state but change nothing.
IDLE = {
    "GuessTheNumber": "999",
    "Mastermind": "1",
    "Minesweeper": "reveal 99 99",
    "Wordle": "A",
    "Hangman": "AB",
    "Sudoku": "99 99 99",
    "TowerofHanoi": "B C",
    "Crosswords": "99 99 A",
    "WordSearch": "99 99 99 99",
}


@pytest.mark.parametrize("name", IDLE)
def test_the_turn_limit_truncates(name):
    for variant in GAMES[name][1]:
        env = rollenv.make(f"game:{name}-v0-{variant}".rstrip("-"))
        env.reset(2)
        look = env.render()
        for turn in range(1, env.max_turns + 1):
            _, reward, terminated, truncated, info = env.step(f"\\boxed{{{IDLE[name]}}}")
            assert (reward, terminated, info["valid"]) == (0.0, False, True)
            assert truncated == (turn == env.max_turns)
            assert env.render() == look
        assert info["success"] is False


@pytest.mark.parametrize("env_id", RANDOM)
def test_random_variants_vary(env_id):
    env = rollenv.make(env_id)
    sizes, again = [], []
    for seen in (sizes, again):
        env.reset(1)
        for _ in range(30):
            env.reset()
            seen.append(tuple(getattr(env, name) for name in env.size_names))
    assert len(set(sizes)) > 1
    assert sizes == again
    assert set(sizes) <= set(env.random_sizes)


@pytest.mark.parametrize("env_id", IDS)
def test_episodes_vary_and_state_is_json(env_id):
    env = rollenv.make(env_id)
    states = set()
    for seed in range(20):
        env.reset(seed)
        env.step(env.oracle_action())  # mines are laid by the first move
        states.add(json.dumps(env.get_state()["env"]))
    assert len(states) == 1 if "Hanoi" in env_id and "random" not in env_id else len(states) > 1


@pytest.mark.parametrize("env_id", GEM_KWARGS)
def test_gem_s_constructor_arguments_are_accepted(env_id):
    env = rollenv.make(env_id, **GEM_KWARGS[env_id])
    env.reset(0)
    for name in env.size_names:
        if GEM_KWARGS[env_id][name] is not None:
            assert getattr(env, name) == GEM_KWARGS[env_id][name]
            assert getattr(rollenv.make(env_id), name) == GEM_KWARGS[env_id][name]


@pytest.mark.parametrize("env_id", RANDOM)
def test_sizes_are_given_all_or_none(env_id):
    with pytest.raises(UsageError, match="None"):
        rollenv.make(env_id, max_turns=7)


def test_a_limit_below_one_is_refused():
    for env_id in IDS:
        kwargs = dict(rollenv.make(env_id.removesuffix("-random")).spec.kwargs) | {"max_turns": 0}
        with pytest.raises(UsageError):
            rollenv.make(env_id, **kwargs)


# -- spellings ---------------------------------------------------------------------------------------------------------

#: For every game a plain move, another one, and other ways to write the first.
SPELLINGS = {
    "GuessTheNumber": ("7", "3", ["07", " 7 ", "+7", "٧", "７", "\n7"]),
    "Mastermind": ("1 2 3 4", "4 3 2 1", ["1,2,3,4", "1  2\t3\n4", "01 2 3 4", "1, 2, 3, 4"]),
    "Minesweeper": (
        "reveal 1 2",
        "flag 0 0",
        ["REVEAL 1 2", "reveal\t1\n2", "reveal 1, 2", "reveal,1,2", "reveal 01 2"],
    ),
    "Wordle": ("crane", "slate", ["CRANE", "c r a n e", "c\tr\na n e", "Cra ne"]),
    "Hangman": ("e", "a", ["E", " e\n"]),
    "Sudoku": ("1 2 3", "9 9 9", ["1,2,3", "1 , 2 , 3", "1\t2  3", "٠١ ٢ ٣"]),
    "TowerofHanoi": ("A C", "A B", ["a c", "A,C", "A  C", "AC", "a , c", "A\n,\tC", "A" + " " * 99 + "C"]),
    "Game2048": ("up", "left", ["UP", "Up", " up "]),
    "FifteenPuzzle": ("up", "left", ["UP", "Up", " up "]),
    "Crosswords": ("0 1 E", "1 0 A", ["0 1 e", "0,1,E", "00  1\tE", "٠ ١ E"]),
    "WordSearch": ("0 1 0 4", "1 1 1 5", ["0,1,0,4", "0  1\t0\n4", "00 01 0 4"]),
}


def results(env_id, texts):
    env = rollenv.make(env_id)
    env.reset(5)
    return [env.step(text)[:4] for text in texts]


@pytest.mark.parametrize("name", SPELLINGS)
def test_moves_are_read_however_they_are_spelled(name):
    env_id = f"game:{name}-v0"
    move, other, spellings = SPELLINGS[name]
    plain = results(env_id, [f"\\boxed{{{move}}}"])
    for spelling in spellings:
        assert results(env_id, [f"\\boxed{{{spelling}}}"]) == plain, spelling
        assert results(env_id, [f"\\boxed{{{other}}} no, \\fbox{{{spelling}}}"]) == plain


@pytest.mark.parametrize("name", SPELLINGS)
def test_the_last_box_that_holds_a_move_counts(name):
    env_id = f"game:{name}-v0"
    move, other, _ = SPELLINGS[name]
    expected = results(env_id, [f"\\boxed{{{move}}}"])
    words = () if name in ("Wordle", "Hangman") else ("\\boxed{the answer}",)  # there they are letters apart
    for behind in ("\\boxed{?}", "\\boxed{}", "\\boxed{", "\\boxed{{x}}", "}{", *words):
        assert results(env_id, [f"\\boxed{{{other}}} \\boxed{{{move}}} {behind}"]) == expected, behind


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize("name", SPELLINGS)
@pytest.mark.parametrize(
    "piece", ["\\boxed{", "\\boxed{1 }", "\\boxed{up?}", "A ", "9" * 5000 + " ", "\\boxed{A" + " " * 5000 + "} "]
)
def test_reading_an_action_takes_time_linear_in_its_length(name, piece):
    """A megabyte of anything is read in a moment; a quadratic reader would take minutes."""
    for text in ("\\boxed{" + piece * (10**6 // len(piece)), piece * (10**6 // len(piece)) + "}"):
        results(f"game:{name}-v0", [text])


@pytest.mark.parametrize("name", ["GuessTheNumber", "Mastermind", "Minesweeper", "Sudoku", "Crosswords", "WordSearch"])
def test_numbers_of_any_length_are_outside_the_game(name):
    move = re.sub(r"\d+", "9" * 4000, SPELLINGS[name][0], count=1)
    observation, *end = results(f"game:{name}-v0", [f"\\boxed{{{move}}}"])[0]
    assert end == [0.0, False, False]
    assert len(observation) < 300
