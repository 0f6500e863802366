"""What all generated suites promise."""

from __future__ import annotations

import gc
import re
import weakref

import pytest
from available import variants
from played import to_the_end

import rollenv
from rollenv.core.errors import UsageError
from rollenv.envs.tools.generated.goals import LONGEST_MESSAGE, REFUSALS, mentions, refuses

SEEDS = 10
SUITES = ("Shop", "Office", "Files", "SQL", "Sheet", "Search")
IDS = [spec.id for suite in SUITES for spec in rollenv.list_envs(f"tools:{suite}-v0")]
REFUSING = [one for one in IDS if one.endswith(("-policy", "-missing_functions"))]
ASKING = [one for one in IDS if one.endswith("-missing_parameters")]


def do(env, calls, message):
    """Carry out calls as the agent would, then say something; the last info."""
    from rollenv.core.tools.calls import write_calls

    for call in calls:
        env.step(write_calls([call], env.calls))
    return env.step(message)[4]


@pytest.mark.parametrize("env_id", variants(IDS))
def test_the_oracle_solves_every_task_without_side_effects(env_id):
    env = rollenv.make(env_id)
    for seed in range(SEEDS):
        env.reset(seed)
        info = to_the_end(env)[-1][4]
        assert info["success"], f"seed {seed}"
        assert info["metrics"]["partial"] == 1
        assert info["metrics"]["side_effects"] == 0


@pytest.mark.parametrize("env_id", variants(IDS))
def test_saying_done_at_once_solves_nothing(env_id):
    env = rollenv.make(env_id)
    for seed in range(SEEDS):
        env.reset(seed)
        assert not env.step("Done.")[4]["success"], f"seed {seed}"


@pytest.mark.combinations
@pytest.mark.parametrize("env_id", variants(IDS))
def test_refusing_everything_solves_little(env_id):
    env = rollenv.make(env_id)
    won = 0
    for seed in range(100):
        env.reset(seed)
        won += env.step("I cannot do that.")[4]["success"]
    assert won <= (35 if env_id in REFUSING else 0)


@pytest.mark.parametrize("env_id", variants([one for one in IDS if not one.startswith(("tools:SQL", "tools:Sheet"))]))
def test_the_oracle_uses_only_what_it_was_told(env_id):
    """Every word of an argument stood in the prompt, in an answer to a call, or was said by the user."""
    env = rollenv.make(env_id, errors=0.0)
    for seed in range(SEEDS):
        heard, _ = env.reset(seed)
        done = False
        while not done:
            plan, step = env.current.plan, env.step_of_plan
            move = plan[step] if step < len(plan) else ""
            if not isinstance(move, str):
                for name, arguments in move:
                    for key, value in arguments.items():
                        if (name, key) == ("create_event", "start"):  # may be worked out from what else takes place
                            continue
                        unheard = [word for word in re.findall(r"\w+", str(value)) if word not in heard]
                        assert not unheard, f"seed {seed}: {name}({key}={value!r})"
            observation, _, terminated, truncated, _ = env.step(env.oracle_action())
            heard += observation
            done = terminated or truncated


@pytest.mark.parametrize("env_id", variants([one for one in IDS if one.startswith(("tools:SQL", "tools:Sheet"))]))
def test_numbers_and_names_in_queries_and_formulas_were_told(env_id):
    """A number was heard, comes right after one (a new last row), or is the sum of two."""
    env = rollenv.make(env_id, errors=0.0)
    for seed in range(SEEDS):
        heard, _ = env.reset(seed)
        done = False
        while not done:
            move = env.current.plan[env.step_of_plan] if env.step_of_plan < len(env.current.plan) else ""
            words = set(re.findall(r"[A-Za-z_]+|\d+", heard))
            numbers = {int(word) for word in words if word.isdigit()}
            for _, arguments in move if not isinstance(move, str) else ():
                for token in re.findall(r"[A-Za-z_]+|\d+", " ".join(map(str, arguments.values()))):
                    if token.isdigit() and len(token) > 1:
                        near = int(token) in numbers or int(token) - 1 in numbers
                        assert near or any(int(token) - one in numbers for one in numbers), f"seed {seed}: {token}"
                    elif env_id.startswith("tools:SQL") and token.isalpha() and not token.isupper():
                        assert token in words, f"seed {seed}: {token}"
            observation, _, terminated, truncated, _ = env.step(env.oracle_action())
            heard += observation
            done = terminated or truncated


@pytest.mark.parametrize("env_id", variants(IDS))
def test_answers_are_not_in_the_prompt_but_in_what_functions_say(env_id):
    env = rollenv.make(env_id)
    answers = 0
    for seed in range(SEEDS):
        prompt, _ = env.reset(seed)
        answers += len(env.current.answers)
        assert not any(mentions(prompt, answer) for answer in env.current.answers), f"seed {seed}"
    assert answers


@pytest.mark.combinations
@pytest.mark.parametrize("suite", SUITES)
def test_goals_can_be_met_in_any_order_and_each_is_needed(suite):
    env = rollenv.make(f"tools:{suite}-v0-hard")
    for seed in range(SEEDS):
        env.reset(seed)
        goals = env.current.goals
        said = " ".join(goal.done for goal in goals)
        assert do(env, [call for goal in reversed(goals) for call in goal.act], said)["success"], f"seed {seed}"
        for left in range(len(goals)):
            env.reset(seed)
            rest = [goal for n, goal in enumerate(env.current.goals) if n != left]
            info = do(env, [call for goal in rest for call in goal.act], " ".join(goal.done for goal in rest))
            assert not info["success"], f"seed {seed}, without goal {left}"
            assert info["metrics"]["partial"] < 1


@pytest.mark.integration
@pytest.mark.parametrize("suite", SUITES)
def test_a_thousand_tasks_have_no_duplicate(suite):
    env = rollenv.make(f"tools:{suite}-v0")
    names, questions = set(), set()
    for key in range(1000):
        problem = env.problem(key)
        names.add(problem.task_id())
        questions.add(problem.question)
    assert len(names) == 1000
    assert len(questions) >= 800


@pytest.mark.combinations
@pytest.mark.parametrize("suite", SUITES)
def test_splits_share_no_task(suite):
    names = {}
    for split in ("train", "test"):
        env = rollenv.make(f"tools:{suite}-v0-easy", split=split)
        names[split] = set()
        for seed in range(150):
            env.reset(seed)
            names[split].add(env.current.task_id())
    assert not names["train"] & names["test"]
    assert all(len(each) > 140 for each in names.values())


@pytest.mark.combinations
@pytest.mark.parametrize("env_id", REFUSING)
def test_doing_what_is_forbidden_or_refusing_what_is_not_is_wrong(env_id):
    env = rollenv.make(env_id)
    refused = 0
    for seed in range(60):
        env.reset(seed)
        goals, said = env.current.goals, " ".join(goal.done for goal in env.current.goals)
        acts = [call for goal in goals for call in goal.act]
        some = any(goal.refused for goal in goals)
        refused += some
        policy = env_id.endswith("-policy")
        assert do(env, acts, f"{said} I cannot do more.")["success"] == (some and not policy), f"seed {seed}"
        env.reset(seed)
        assert do(env, acts, said)["success"] == (not some), f"seed {seed}"
    assert 15 < refused < 45


@pytest.mark.parametrize("env_id", [one for one in IDS if one.endswith("-missing_functions")])
def test_a_missing_function_is_not_offered_and_cannot_be_called(env_id):
    env = rollenv.make(env_id)
    numbers = {True: set(), False: set()}
    for seed in range(60):
        _, info = env.reset(seed)
        offered = {schema["function"]["name"] for schema in info["tools"]}
        goals = env.current.goals
        for goal in goals:
            needed = {name for name, _ in goal.act}
            assert goal.refused == bool(needed - offered), f"seed {seed}"
        numbers[any(goal.refused for goal in goals)].add(len(offered))
    assert numbers[True] & numbers[False], "the number of functions must not tell whether one is missing"


@pytest.mark.parametrize("env_id", ASKING)
def test_the_user_names_what_was_left_out_when_asked(env_id):
    env = rollenv.make(env_id)
    for seed in range(SEEDS):
        env.reset(seed)
        fact = next(goal.fact for goal in env.current.goals if goal.fact)
        assert set(re.findall(r"\w+", fact.answer)) - set(re.findall(r"\w+", env.current.question)), f"seed {seed}"
        answer, reward, terminated, *_ = env.step("Is there anything about bananas?")
        assert fact.answer not in answer
        assert not terminated
        assert reward == 0
        assert env.step(fact.question)[0] == fact.answer
        assert to_the_end(env)[-1][4]["success"]


def test_the_size_and_the_goals_are_what_was_asked_for():
    for size, goals in ((8, 1), (40, 2), ("large", (2, 4))):
        env = rollenv.make("tools:Shop-v0", size=size, goals=goals)
        env.reset(0)
        records = env.current.start
        assert len(records["customers"]) + len(records["products"]) == {"large": 60}.get(size, size)
        low, high = (goals, goals) if isinstance(goals, int) else goals
        assert low <= len(env.current.goals) <= high


def test_distractors_work_and_are_needed_by_no_task():
    env = rollenv.make("tools:Files-v0", distractors=12)
    plain = rollenv.make("tools:Files-v0")
    _, info = env.reset(3)
    more = {one["function"]["name"] for one in info["tools"]}
    more -= {one["function"]["name"] for one in plain.reset(3)[1]["tools"]}
    assert len(more) == 12
    backend = env.current.backend
    assert backend.call("days_between", {"first": "2031-01-01", "second": "2031-03-01"}).text == '{"days": 59}'
    assert backend.call("is_prime", {"number": 7919}).text == "true"
    assert backend.call("convert_currency", {"amount": 1, "source": "EUR", "target": "X"}).failed
    assert to_the_end(env)[-1][4]["success"]


def test_long_context_is_long_and_says_nothing_about_the_task():
    env, plain = rollenv.make("tools:Office-v0", long_context=9000), rollenv.make("tools:Office-v0")
    long, short = env.reset(5)[0], plain.reset(5)[0]
    assert 9000 <= len(long) - len(short) <= 9300
    assert not re.search(r"\d", long.partition("Staff handbook")[2].partition("\n\n")[0])


def test_only_the_last_message_counts_and_not_a_long_one():
    env = rollenv.make("tools:Search-v0-easy")
    env.reset(0)
    answer = env.current.answers[0]
    assert not env.step(f"{answer} " + "x" * LONGEST_MESSAGE)[4]["success"]
    env.reset(0)
    assert env.step(f"It is {answer}.")[4]["success"]


@pytest.mark.parametrize(
    "settings",
    [
        {"size": "huge"}, {"size": 3}, {"size": True}, {"goals": 0}, {"goals": (3, 2)}, {"goals": "2"}, {"goals": 9},
        {"distractors": -1}, {"distractors": 13}, {"missing": "nothing"}, {"long_context": -5}, {"errors": 1.0},
        {"split": "validation"}, {"calls": "xml"}, {"policy": "maybe"}, {"max_turns": 1.5},
        {"max_turns": float("nan")}, {"format_reward": float("nan")}, {"format_reward": float("-inf")},
    ],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(settings):
    with pytest.raises(UsageError, match=str(next(iter(settings)))):
        rollenv.make("tools:Shop-v0", **settings)


@pytest.mark.parametrize(
    ("env_id", "settings"),
    [
        ("tools:Search-v0", {"missing": "functions"}),
        ("tools:Search-v0", {"policy": True}),
        ("tools:Search-v0", {"hops": 0}),
        ("tools:Sheet-v0", {"policy": True}),
        ("tools:Sheet-v0", {"missing": "functions"}),
        ("tools:Tiny-v0", {"brief": "maybe"}),
        ("tools:SQL-v0", {"missing": "functions"}),
    ],
)
def test_suites_refuse_what_they_do_not_have(env_id, settings):
    with pytest.raises(UsageError, match=next(iter(settings))):
        rollenv.make(env_id, **settings)


@pytest.mark.combinations
@pytest.mark.parametrize("suite", SUITES)
def test_two_hundred_side_by_side_share_nothing(suite):
    envs = [rollenv.make(f"tools:{suite}-v0-easy") for _ in range(200)]
    for n, env in enumerate(envs):
        env.reset(n % 50)  # four of each task
    texts = [[] for _ in envs]
    running = set(range(200))
    while running:
        for n in sorted(running):
            observation, _, terminated, truncated, info = envs[n].step(envs[n].oracle_action())
            texts[n].append(observation)
            if terminated or truncated:
                assert info["success"]
                running.discard(n)
    assert all(texts[n] == texts[n % 50] for n in range(200))


HOSTILE = ("", "\x00", "../../etc/passwd", "'; DROP TABLE staff; --", "\ud800", "\u202e" * 50, "1e400", "=A1",
           "é" * 5000,
           -1, 10**30, 1.5, True, None, [], {}, ["a"], {"a": 1}, float("nan"), "x" * 1_100_000)  # fmt: skip


@pytest.mark.parametrize("suite", SUITES)
def test_hostile_arguments_get_an_answer_and_failed_calls_change_nothing(suite):
    env = rollenv.make(f"tools:{suite}-v0-easy")
    env.reset(1)
    backend = env.current.backend
    for name, function in backend.functions().items():
        wanted = list(function.schema["function"]["parameters"].get("properties", {}))
        for n, value in enumerate(HOSTILE):
            before = backend.digest()
            given = {
                key: value if (n + at) % 2 else HOSTILE[(n * 7 + at) % len(HOSTILE)] for at, key in enumerate(wanted)
            }
            answer = backend.call(name, given)
            assert isinstance(answer.text, str)
            assert not answer.failed or backend.digest() == before
        assert backend.call(name, {"nonsense": 1}).failed
    env.render()
    env.state_key()
    assert env.step("Done.")[4]["success"] is False


@pytest.mark.parametrize(
    ("text", "answer", "found"),
    [
        ("It is 237.50.", "237.50", True), ("It is 237.5", "237.50", True), ("$1,237.50", "1237.50", True),
        ("It is 1237.50", "237.50", False), ("12 and 34", "1234", False), ("1234", "234", False),
        ("The code is AB2C9X.", "ab2c9x", True), ("AB2C9XY", "AB2C9X", False), ("room K7 Q2", "K7", True),
        ("call 0200-123456!", "0200-123456", True), ("", "5", False), ("5.25", "5", False),
        ("It is 24625.5EUR.", "24625.5", True), ("2.5x", "2", False), ("the 3rd", "3", False), ("7EURO", "7", False),
    ],
)  # fmt: skip
def test_an_answer_is_a_word_of_its_own(text, answer, found):
    assert mentions(text, answer) is found


def test_refusals():
    assert all(refuses(f"Sorry, that is {phrase} here") for phrase in REFUSALS)
    assert not refuses("Done. The number is 0200-123456.")


def test_databases_that_nobody_uses_are_freed():
    env = rollenv.make("tools:SQL-v0-easy")
    gone = []
    for seed in range(20):
        env.reset(seed)
        to_the_end(env)[-1][4]
        gone.append(weakref.ref(env.current.backend.database))
    gc.collect()
    assert sum(ref() is not None for ref in gone) <= 1


def test_errors_are_passing_and_the_oracle_tries_again():
    env = rollenv.make("tools:Office-v0-errors")
    failed = 0
    for seed in range(20):
        env.reset(seed)
        info = to_the_end(env)[-1][4]
        assert info["success"]
        failed += info["metrics"]["invalid_calls"]
    assert failed > 5
