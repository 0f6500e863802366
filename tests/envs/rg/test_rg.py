"""reasoning-gym: names, private seeding, scores, levels, and answers that must not be run."""

import importlib.util
import os
import random
import subprocess
import sys

import numpy as np
import pytest

import rollenv
from rollenv import UsageError
from rollenv.core.parsing import last_boxed
from rollenv.envs.rg import NAMES
from rollenv.envs.rg import env as rg
from rollenv.envs.rg.env import ReasoningGymEnv, boxed
from rollenv.envs.rg.scoring import may_be_scored

pytestmark = pytest.mark.skipif(importlib.util.find_spec("reasoning_gym") is None, reason="needs reasoning-gym")

#: Items that take long to make, and propositional_logic, of which a few cannot be won.
LEFT_OUT = {"acre", "futoshiki", "intermediate_integration", "knight_swap", "puzzle24", "sokoban", "sudoku"}
LEFT_OUT |= {"propositional_logic", "zebra_puzzles"}


@pytest.mark.slow
def test_the_names_are_those_of_the_installed_package():
    from reasoning_gym.factory import DATASETS

    assert set(NAMES) == set(DATASETS)
    assert [s.id for s in rollenv.list_envs("rg:")] == sorted(f"rg:{name}" for name in NAMES)


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(NAMES) - LEFT_OUT))
def test_the_gold_answer_wins_in_its_box(name):
    env = rollenv.make(f"rg:{name}")
    for seed in range(3):
        env.reset(seed)
        _, reward, terminated, truncated, info = env.step(env.oracle_action())
        assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)


@pytest.mark.parametrize("name", ["chain_sum", "maze", "n_queens", "rearc", "gsm_symbolic", "survo"])
def test_items_are_those_of_the_package_itself(name):
    """A shared data set with another seed gives what a new one with that seed would."""
    import reasoning_gym

    env = rollenv.make(f"rg:{name}", dataset_seed=42)
    for seed in range(3):
        env.reset(seed)
        assert env.item == reasoning_gym.create_dataset(name, seed=42, size=500)[env.index]


def test_a_fixed_data_set_and_a_chosen_item():
    env = rollenv.make("rg:chain_sum", dataset_seed=42, size=7)
    observations = {env.reset(seed)[0] for seed in range(200)}
    assert len(observations) == 7
    assert env.reset(1, options={"index": 3}) == env.reset(2, options={"index": 3})
    with pytest.raises(UsageError, match="6"):
        env.reset(options={"index": 7})
    endless = rollenv.make("rg:chain_sum")
    assert len({endless.reset(seed)[0] for seed in range(200)}) > 190


def test_seeds_to_make_and_to_the_class_mean_the_same():
    one, two = rollenv.make("rg:lcm", seed=5), ReasoningGymEnv("lcm", seed=5)
    assert [one.reset() for _ in range(3)] == [two.reset() for _ in range(3)]


@pytest.mark.parametrize("name", ["pool_matrix", "list_functions", "codeio"])
def test_the_process_wide_generators_are_left_alone(name):
    env = rollenv.make(f"rg:{name}")
    items = []
    for state in (1, 2):
        random.seed(state)
        np.random.seed(state)
        expected = random.Random(state).random(), np.random.RandomState(state).random()
        env.reset(9)
        items.append(env.item["question"])
        assert (random.random(), np.random.random()) == expected
    assert items[0] == items[1]


def test_scores_between_nothing_and_all():
    env = rollenv.make("rg:rubiks_cube")
    env.reset(0)
    _, reward, *_, info = env.step("\\boxed{U}")
    assert 0 < reward < 1
    assert info["success"] is False
    env.reset(0)
    assert env.step("no box")[1:] == (0.0, True, False, {"valid": False, "correct": False, "success": False})


#: Data sets that pay a little for no answer, and some that do not.
PAYING = ("countdown", "puzzle24", "fraction_simplification", "chain_sum", "polynomial_multiplication", "n_queens")


@pytest.mark.parametrize("name", PAYING)
def test_what_cannot_be_read_scores_what_the_library_gives_for_it(name):
    env = rollenv.make(f"rg:{name}")
    for action, answer in (("no box", None), ("\\boxed{}", ""), ("\\boxed{what?}", "what?"), ("\\boxed{1 +}", "1 +")):
        env.reset(4)
        dataset, entry = rg.make_item(env._source, env.dataset_seed, env.index)
        assert env.step(action)[1] == dataset.score_answer(answer, entry), action


@pytest.mark.parametrize("answer", ["}{", "a{b", '{"x": "}"}', "plain", "{[()]}"])
def test_braces_without_a_partner_survive_the_box(answer):
    inside = last_boxed(boxed(answer))
    assert inside is not None
    assert inside.replace("\\{", "{").replace("\\}", "}") == answer


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "attack"),
    [
        ("puzzle24", "__import__('pathlib').Path('pwned').touch()"),
        ("countdown", "().__class__.__base__.__subclasses__()"),
        ("countdown", "9**9**9**9"),
        ("polynomial_multiplication", "9**9**9"),
        ("polynomial_multiplication", "9**(9*9*9*9*9*9)"),
        ("polynomial_multiplication", "open('pwned', 'w')"),
        ("simple_integration", "x**(10**9)"),
        ("intermediate_integration", "eval('1')"),
        ("string_insertion", "oracle_answer"),
        ("spiral_matrix", "[oracle_answer]"),
        ("binary_matrix", "[[open('pwned', 'w')]]"),
        ("n_queens", "valid_solutions"),
    ],
)
def test_answers_are_never_run(name, attack, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = rollenv.make(f"rg:{name}")
    env.reset(0)
    nothing = 0.01 if name in ("countdown", "puzzle24") else 0.0
    assert env.step(f"\\boxed{{{attack}}}")[1] == nothing, "what is never run counts as no answer"
    assert not list(tmp_path.iterdir())


def test_a_formula_in_another_form_still_wins():
    env = rollenv.make("rg:polynomial_multiplication")
    env.reset(1)
    answer = env.item["answer"]
    assert env.step(f"\\boxed{{({answer} + 1) - 1}}")[1] == 1.0
    lists = rollenv.make("rg:spiral_matrix")
    lists.reset(1)
    assert lists.step(f"\\boxed{{[{', '.join(lists.item['answer'].split())}]}}")[1] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("numbers", "answer", "right"),
    [
        *(((8, 5, 10, 6), answer, True) for answer in ("10*(8 - 5) - 6", "(8-5)*10-6")),
        *(((8, 5, 10, 6), answer, False) for answer in ("6*4*1*1", "8*3", "10*5/(8-6)")),
        *(((7, 7, 2, 1), "7*7/2*1", False), ((3, 3, 8, 8), "3*8 + 3/8", False)),  # 24 and a bit is not 24
    ],
)
def test_24_is_made_of_the_given_numbers(numbers, answer, right):
    item = {"answer": "10*(8 - 5) - 6", "metadata": {"numbers": numbers}}
    assert may_be_scored("puzzle24", answer, item) is right


@pytest.mark.parametrize(("answer", "right"), [("False", True), (" false ", True), ("True", False), ("x", False)])
def test_any_text_is_not_the_answer_of_a_halting_life(answer, right):
    assert may_be_scored("game_of_life_halting", answer, {"answer": False, "metadata": {}}) is right


def test_a_composite_mixes_and_guards_its_parts():
    parts = [{"name": n, "weight": 1.0, "config": {}} for n in ("puzzle24", "rubiks_cube")]
    env = rollenv.make("rg:composite", datasets=parts)
    kinds = set()
    for seed in range(8):
        env.reset(seed)
        kinds.add(env.item["metadata"]["source_dataset"])
        if kinds == {"puzzle24"}:
            assert env.score("__import__('os')") == 0.01
        assert env.step(env.oracle_action())[4]["success"]
    assert kinds == {"puzzle24", "rubiks_cube"}


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("chain_sum", {"size": 0}, "size"),
        ("chain_sum", {"min_termz": 3}, "min_termz"),
        ("chain_sum", {"min_terms": -1}, "min_terms"),
        ("chain_sum", {"level": -1}, "levels"),
        ("acre", {"level": 1}, "no curriculum"),
        ("caesar_cipher", {"level": 3}, "level 3"),
        ("chain_sum", {"min_terms": object()}, "plain JSON"),
    ],
)
def test_wrong_settings_are_refused(name, kwargs, message):
    with pytest.raises(UsageError, match=message):
        rollenv.make(f"rg:{name}", **kwargs)


@pytest.mark.integration
def test_an_override_can_mend_a_level():
    env = rollenv.make("rg:knight_swap", level=0, min_nodes=6, max_nodes=6)
    assert "Knight" in env.reset(0)[0]
    with pytest.raises(UsageError, match="'chain'"):
        ReasoningGymEnv("chain")


def test_a_scorer_that_raises_is_logged_and_counted(monkeypatch, caplog):
    env = rollenv.make("rg:chain_sum")
    env.reset(0)

    def trips(self, answer, entry):
        raise ValueError("no such answer")

    monkeypatch.setattr(type(rg.make_item(env._source, env.dataset_seed, env.index)[0]), "score_answer", trips)
    _, reward, *_, info = env.step("\\boxed{an answer never seen before}")
    assert (reward, info["scorer_error"], env.scorer_errors) == (0.0, "ValueError: no such answer", 1)
    assert "chain_sum" in caplog.text


def test_nothing_is_written_into_a_home_that_cannot_be(tmp_path):
    program = "import rollenv; rollenv.make('rg:spell_backward').reset(seed=0)"
    environ = {**os.environ, "HOME": "nowhere"}
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "writable" not in done.stderr
    assert not list(tmp_path.iterdir())
