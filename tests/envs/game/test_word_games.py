"""Wordle, Hangman, Crosswords, WordSearch, and the words themselves."""

from collections import Counter

import pytest
from boards import at, boxed
from hypothesis import given
from hypothesis import strategies as st

import rollenv
from rollenv import UsageError
from rollenv.envs.game.base import read_lines, words
from rollenv.envs.game.crosswords import clues, entry_cells
from rollenv.envs.game.wordle import marks

# -- the lists ---------------------------------------------------------------------------------------------------------


def test_the_word_lists_are_clean():
    common, rare = read_lines("words.txt"), read_lines("words_hard.txt")
    for listed in (common, rare):
        assert list(listed) == sorted(set(listed))
        assert all(word.isascii() and word.islower() and 3 <= len(word) <= 8 for word in listed)
    assert not set(common) & set(rare)
    assert 2000 <= len(common) + len(rare) <= 6000
    assert all(len(words(length)) > 300 for length in range(3, 9))


def test_no_clue_names_its_word():
    for hard in (False, True):
        assert all(word.lower() not in clue.lower().split() for word, clue in clues(hard).items())


# -- Wordle ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("secret", "guess", "marked"),
    [
        ("APPLE", "PAPAL", "YYGXY"),
        ("ABBEY", "BABES", "YYGGX"),
        ("CRANE", "EERIE", "XXYXG"),
        ("HELLO", "LLAMA", "YYXXX"),
        ("THERE", "EERIE", "YXYXG"),
    ],
)
def test_doubled_letters_are_marked_as_often_as_they_occur(secret, guess, marked):
    assert marks(secret, guess) == marked


letters = st.text("ABC", min_size=5, max_size=5)


@given(letters, letters)
def test_marks_count_every_letter_of_the_secret_once(secret, guess):
    marked = marks(secret, guess)
    for letter in "ABC":
        hits = sum(mark != "X" for mark, b in zip(marked, guess, strict=True) if b == letter)
        assert hits == min(secret.count(letter), guess.count(letter))
    assert all((mark == "G") == (a == b) for mark, a, b in zip(marked, secret, guess, strict=True))


def test_only_new_greens_pay():
    env = at("game:Wordle-v0", secret="CRANE")
    assert env.step(boxed("crate"))[1] == pytest.approx(0.4)
    assert env.step(boxed("CRAZE"))[1] == 0
    observation, reward, _, _, info = env.step(boxed("BRINE"))
    assert reward == pytest.approx(0.1)
    assert "XGXGG" in observation
    assert info["suffix"].endswith("CRATE GGGXG\nCRAZE GGGXG\nBRINE XGXGG")
    assert env.step(boxed("CRANE"))[1:3] == (0.5, True)


@pytest.mark.parametrize("move", ["CRAN", "CRANES", "SLATE"])
def test_guesses_that_cannot_be_made_cost_a_turn(move):
    env = at("game:Wordle-v0", secret="CRANE")
    env.step(boxed("SLATE"))
    look = env.render()
    assert env.step(boxed(move))[1:4] == (0.0, False, False)
    assert env.render() == look


def test_only_real_words():
    free, strict = (at("game:Wordle-v0", kwargs={"only_real_words": only}, secret="CRANE") for only in (False, True))
    assert "XXXXX" in free.step(boxed("ZZZZZ"))[0]
    observation, *end = strict.step(boxed("ZZZZZ"))
    assert "word list" in observation
    assert end[:3] == [0.0, False, False]
    assert "YXXXX" in strict.step(boxed("alloy"))[0] or "XXXXX" not in strict.render()


# -- Hangman -----------------------------------------------------------------------------------------------------------


def test_the_game_is_won_when_every_letter_is_shown():
    env = at("game:Hangman-v0-easy", secret="TOT")
    assert env.step(boxed("t"))[1:3] == (pytest.approx(1 / 3), False)
    assert "T _ T" in env.render()
    _, reward, terminated, truncated, info = env.step(boxed("O"))
    assert (reward, terminated, truncated, info["success"]) == (pytest.approx(1 / 6 + 0.5), True, False, True)


def test_naming_the_word_pays_for_what_is_hidden():
    env = at("game:Hangman-v0-easy", secret="TOT")
    env.step(boxed("O"))
    assert env.step(boxed("tot"))[1:3] == (pytest.approx(1 / 3 + 0.5), True)


@pytest.mark.parametrize("move", ["X", "TIN", "ABCD", "O"])
def test_misses_and_repeats_pay_nothing(move):
    env = at("game:Hangman-v0-easy", secret="TOT")
    env.step(boxed("O"))
    assert env.step(boxed(move))[1:4] == (0.0, False, False)


def test_hardcore_words_are_rarer():
    env = rollenv.make("game:Hangman-v0-hard", hardcore=True)
    for seed in range(20):
        env.reset(seed)
        assert env.secret.lower() in read_lines("words_hard.txt")


@pytest.mark.parametrize("env_id", ["game:Wordle-v0", "game:Hangman-v0"])
def test_lengths_without_words_are_refused(env_id):
    with pytest.raises(UsageError, match="word_length"):
        rollenv.make(env_id, word_length=9)


# -- Crosswords --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", ["game:Crosswords-v0", "game:Crosswords-v0-hard", "game:Crosswords-v0-random"])
def test_words_cross_and_nothing_else_is_spelt(env_id):
    env = rollenv.make(env_id)
    for seed in range(40):
        env.reset(seed)
        grid = {divmod(cell, env.width): letter for cell, letter in env.letters.items()}
        assert len(grid) <= env.max_turns
        assert len(env.entries) == env.num_words
        assert len({word for word, *_ in env.entries}) == env.num_words
        spelt = runs(grid, 0, 1) + runs(grid, 1, 0)
        assert sorted(spelt) == sorted(word for word, *_ in env.entries)
        shared = Counter(cell for entry in env.entries for cell in entry_cells(entry))
        assert env.num_words == 1 or all(any(shared[c] == 2 for c in entry_cells(e)) for e in env.entries)


def runs(grid, down, right):
    """All stretches of two letters and more in one direction."""
    found = []
    for r, c in grid:
        if (r - down, c - right) not in grid:
            word = ""
            while (r, c) in grid:
                word += grid[r, c]
                r, c = r + down, c + right
            found += [word] * (len(word) > 1)
    return found


def test_the_clues_stand_below_the_grid_and_letters_do_not():
    for seed in range(10):
        env = rollenv.make("game:Crosswords-v0-easy")
        env.reset(seed)
        grid, listed = env.render().splitlines()[1:-3], env.render().splitlines()[-3:]
        assert set("".join(grid)) <= set(" _.0123456789")
        for (word, *_), line in zip(env.entries, listed, strict=True):
            assert line.endswith(clues(False)[word])
            assert f"{len(word)} letters" in line


def test_right_letters_are_entered_and_wrong_ones_are_not():
    env = rollenv.make("game:Crosswords-v0-easy")
    env.reset(0)
    cell, letter = next(iter(env.letters.items()))
    row, col = divmod(cell, env.width)
    wrong = "A" if letter != "A" else "B"
    look = env.render()
    assert env.step(boxed(f"{row} {col} {wrong}"))[1:4] == (0.0, False, False)
    assert env.render() == look
    assert env.step(boxed(f"{row}, {col}, {letter.lower()}"))[1] == pytest.approx(1 / len(env.letters))
    assert env.render() != look
    assert "filled" in env.step(boxed(f"{row} {col} {letter}"))[0]


def test_too_few_turns_for_the_words_are_refused():
    with pytest.raises(UsageError, match="raise max_turns"):
        rollenv.make("game:Crosswords-v0", max_turns=8)


# -- WordSearch --------------------------------------------------------------------------------------------------------


def grid_lines(env):
    across = [env.grid[i : i + env.side] for i in range(0, len(env.grid), env.side)]
    return across, ["".join(column) for column in zip(*across, strict=True)]


@pytest.mark.parametrize("env_id", ["game:WordSearch-v0", "game:WordSearch-v0-hard", "game:WordSearch-v0-random"])
def test_every_word_is_in_the_grid(env_id):
    env = rollenv.make(env_id)
    for seed in range(30):
        env.reset(seed)
        across, down = grid_lines(env)
        assert len(set(env.hidden)) == env.num_words
        assert all(any(word in line for line in across + down) for word in env.hidden)


def test_words_are_listed_unless_hardcore():
    easy, hard = rollenv.make("game:WordSearch-v0-easy"), rollenv.make("game:WordSearch-v0-hard")
    for seed in range(5):
        easy.reset(seed)
        hard.reset(seed)
        assert easy.render().endswith(", ".join(easy.hidden))
        assert hard.render().endswith(": " + ", ".join(str(len(word)) for word in hard.hidden))


def test_a_word_is_found_from_either_end_and_marked():
    env = rollenv.make("game:WordSearch-v0-easy")
    env.reset(0)
    word = env.hidden[0]
    a, b, c, d = env.oracle_action()[7:-1].split()
    observation, reward, _, _, info = env.step(boxed(f"{c} {d} {a} {b}"))
    assert word in observation
    assert reward == pytest.approx(1 / 5)
    lower = "".join(char for char in info["suffix"].split("\n", 1)[1].rsplit("\n", 1)[0] if char.islower())
    assert Counter(lower) == Counter(word.lower())
    assert "not a hidden word" in env.step(boxed(f"{a} {b} {c} {d}"))[0]


def test_crooked_stretches_cost_a_turn():
    env = rollenv.make("game:WordSearch-v0-easy")
    env.reset(0)
    observation, *end = env.step(boxed("0 0 2 2"))
    assert "neither across nor down" in observation
    assert end[:3] == [0.0, False, False]


# -- what is hidden stays hidden ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", ["game:Wordle-v0", "game:Hangman-v0", "game:Wordle-v0-easy", "game:Hangman-v0-hard"])
def test_words_that_differ_in_secret_alone_look_alike_until_a_hint(env_id):
    views = set()
    for seed in range(10):
        env = rollenv.make(env_id)
        views.add((*env.reset(seed)[0:1], env.render()))
    assert len(views) == 1


@pytest.mark.parametrize("env_id", ["game:Crosswords-v0-hard", "game:WordSearch-v0-hard"])
def test_no_hidden_word_is_shown(env_id):
    env = rollenv.make(env_id)
    for seed in range(20):
        observation, info = env.reset(seed)
        hidden = [entry[0] for entry in env.entries] if "Cross" in env_id else env.hidden
        told = (observation + info["suffix"]).upper().split()
        assert not set(hidden) & set(told)
