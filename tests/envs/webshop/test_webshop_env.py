"""The environment: the original's trace, pages, and everything an agent may try."""

import html.parser
import json
import sys
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from played import to_the_end

import rollenv
from rollenv import EpisodeOver, UsageError
from rollenv.envs.webshop.env import WebShopEnv, parse_action
from rollenv.envs.webshop.pages import MODES, View


@pytest.fixture
def make(data):
    """``make(**kwargs)`` builds the environment on the real products."""
    data("webshop")
    return lambda **kwargs: rollenv.make("webshop:train-text", **{"rules": {"nouns": "simple"}, **kwargs})


def play(env, *actions, seed=0):
    """The last step's result."""
    result = env.reset(seed)
    for action in actions:
        result = env.step(action)
    return result


def place_of(env, wanted):
    for place, number in enumerate(env.goals.split(env.split)):
        goal = env.goals[int(number)]
        if goal.asin == wanted["asin"] and goal.options == wanted["goal_options"]:
            return place
    raise AssertionError("no such goal")


@pytest.mark.slow
def test_an_id_keeps_what_it_promises(data):
    data("webshop")
    rollenv.check_env("webshop:train-html", episodes=10)


def test_a_trace_of_the_original(make, data):
    trace = json.loads(data("webshop/text_obs_trace.json").read_text())
    env = make(split="all", keep_unreachable_goals=True, invalid_action_penalty=0.0)
    place = place_of(env, trace["goal"])
    seed = next(
        s
        for s in range(20)
        if make(split="all", price_seed=s).goals[int(env.goals.split("all")[place])].price_upper
        == trace["goal"]["price_upper"]
    )
    env = make(split="all", price_seed=seed, invalid_action_penalty=0.0)
    first, *steps = trace["trace"]
    observation, info = env.reset(0, options={"index": place})
    assert (observation, info["available_actions"]) == (first["observation"], first["available"])
    for step in steps:
        observation, reward, terminated, truncated, info = env.step(step["action"])
        assert observation == step["observation"]
        assert info["available_actions"] == step["available"]
        assert (reward, terminated, truncated) == (step["reward"], step["done"], False)
    for name, value in trace["verbose_info"].items():
        if name != "title_score":  # the trace's was made without a language model
            assert info["reward_details"][name] == value
    assert info["success"]


def visible(page):
    class Reader(html.parser.HTMLParser):
        texts: list[str] = []

        def handle_data(self, data):
            self.texts.append(data.strip())

    reader = Reader()
    reader.texts = []
    reader.feed(page)
    return [text for text in reader.texts if text]


@pytest.mark.parametrize("seed", range(4))
def test_the_same_page_in_every_mode(make, seed):
    envs = {mode: make(observation=mode, max_steps=60) for mode in MODES}
    seen = {mode: env.reset(seed)[0] for mode, env in envs.items()}
    for _ in range(40):
        assert visible(seen["html"]) == seen["text"].split(" [SEP] ")
        bare = [line for line in seen["text_rich"].split("\n") if line and not line.startswith("You have clicked")]
        for mark in ("[button]", "[button_]", "[clicked button]", "[clicked button_]"):
            bare = [line.replace(mark, "").strip() for line in bare]
        assert " ".join(" ".join(bare).split()) == " ".join(seen["text"].replace(" [SEP] ", " ").split())
        action = envs["text"].sample_random_action()
        results = {mode: env.step(action) for mode, env in envs.items()}
        seen = {mode: result[0] for mode, result in results.items()}
        assert len({result[1:4] for result in results.values()}) == 1
        if results["text"][2]:
            break


def item_with_options(env):
    """Reset to a goal whose product has options, and open its page."""
    for seed in range(50):
        env.reset(seed)
        if len(env.goals.plan(env.goal)) > 1:
            break
    while env.view.page != "item":
        observation, *_ = env.step(env.oracle_action())
    return observation


def test_selected_options_show_only_where_asked(make):
    plain, shown, rich = make(), make(show_selected=True), make(observation="text_rich")
    for env in (plain, shown, rich):
        before = item_with_options(env)
        value = env.goals.plan(env.goal)[0]
        key = env.state_key()
        after, _, _, _, info = env.step(f"click[{value}]")
        assert env.state_key() != key
        assert info["valid"]
        if env is plain:
            assert after == before
        elif env is shown:
            assert after == before.replace(f" [SEP] {value} [SEP]", f" [SEP] {value} (selected) [SEP]", 1)
        else:
            assert after.startswith(f"You have clicked {value}.\n")
            assert f"[clicked button] {value} [clicked button_]" in after


def test_back_to_search_clears_what_was_visited(make):
    """As the original does: marks, keywords, item and options are those of a new customer."""
    env = make(observation="text_rich", max_steps=50)
    item_with_options(env)
    asin, keywords = env.view.visited[0], env.view.keywords
    env.step("click[< prev]")
    assert f"[clicked button] {asin} [clicked button_]" in env.step(f"search[{keywords}]")[0]
    fresh = env.step("click[back to search]")[0]
    assert env.view == View()
    assert "clicked" not in fresh
    again = env.step(f"search[{keywords}]")[0]
    assert f"[button] {asin} [button_]" in again
    assert "[clicked button]" not in again


def test_info_names_the_source_of_nouns(make):
    env = make()
    _, info = env.reset(seed=0)
    assert info["nouns"] == "simple"


def test_paging_has_no_end_and_goes_back(make):
    env = make(max_steps=50)
    play(env, "search[red shirt for women]")
    for page in range(2, 9):
        observation, _, _, _, info = env.step("click[next >]")
        assert f"Page {page} (Total results: 50)" in observation
        products = [c for c in info["available_actions"]["clickables"] if c.startswith("b0")]
        assert len(products) == (10 if page <= 5 else 0)
    for page in range(7, 0, -1):
        observation, *_, info = env.step("click[< prev]")
        assert f"Page {page} (" in observation
    assert not env.step("click[< prev]")[4]["valid"]


def test_back_from_an_item_forgets_its_options(make):
    env = make(max_steps=50)
    item_with_options(env)
    page = env.view.number
    env.step(f"click[{env.goals.plan(env.goal)[0]}]")
    env.step("click[features]")
    env.step("click[< prev]")
    assert env.view.options, "a page about the item keeps them"
    env.step("click[< prev]")
    assert (env.view.page, env.view.number, env.view.options) == ("results", page, {})
    observation, *_, info = env.step("click[back to search]")
    assert observation.startswith("WebShop [SEP]")
    assert info["available_actions"] == {"has_search_bar": True, "clickables": ["search"]}


HOSTILE = [
    "",
    "search",
    "search[]",
    "search[ ]",
    "click[]",
    "click[search]",
    "click[nothing]",
    "click[buy now]",
    "buy[now]",
    "search[" * 10_000,
    "[" * 100_000,
    "click[" + "]" * 100_000,
    "\\boxed{" * 1000,
    "\\boxed{search[]}",
    "\udc80[\ud800]",
    "click[\x00]",
]


@pytest.mark.parametrize("action", HOSTILE)
def test_what_changes_nothing(make, action):
    env = make(invalid_action_penalty=-0.1)
    before = env.reset(1)[0]
    after, reward, terminated, truncated, info = env.step(action)
    assert (after, reward, terminated, truncated, info["valid"]) == (before, -0.1, False, False, False)


@pytest.mark.parametrize(
    "query",
    ["\ud800", "\x00", "] [", "★", "x" * 10_000_000, "tea " * 2_500_000, "<r>", "<a>", "<c>", "<q> ]", "<r> \udc80"],
)
def test_any_query_can_be_searched(make, query):
    env = make(history=2)
    observation, _, _, _, info = play(env, f"search[{query}]")
    assert info["valid"]
    assert "Page 1 (Total results:" in observation
    assert len(observation) < 100_000
    assert len(json.dumps(env.get_state())) < 100_000
    env.spawn(same_state=True).step("click[next >]")


def test_the_same_query_whatever_its_spaces_and_case(make):
    results = {play(make(), f"search[{query}]")[0] for query in ("red  Shirt", " RED shirt ", "red\tshirt")}
    assert len(results) == 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(st.text(max_size=40), st.integers(0, 30)), max_size=25), st.integers(0, 2**32))
def test_no_sequence_of_actions_breaks_it(make, moves, seed):
    env, twin = make(max_steps=100), make(max_steps=100)
    (first, info), (expected, _) = env.reset(seed), twin.reset(seed)
    assert first == expected
    for move in moves:
        if isinstance(move, int):
            clickable = info["available_actions"]["clickables"]
            move = f"click[{clickable[move % len(clickable)]}]"
        elif len(move) % 2:
            move = f"search[{move}]"
        result = env.step(move)
        assert result[:4] == twin.step(move)[:4]
        info = result[4]
        assert 0 <= result[1] <= 1 or result[1] == env.invalid_action_penalty
        if result[2]:
            break


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("search[Red Shoes]", ("search", "red shoes")),
        (" click[< Prev]\n", ("click", "< prev")),
        ("I need shoes.\nsearch[shoes]", ("search", "shoes")),
        ("so \\boxed{click[buy now]}", ("click", "buy now")),
        ("<action>click[b01]</action> done", ("click", "b01")),
        ("<answer>search[a]</answer>", ("search", "a")),
        ("click[[2 pack] red]", ("click", "[2 pack] red")),
        ("please search[shoes]", None),
        ("Search[shoes]", None),
        ("search[shoes] now", None),
        ("", None),
    ],
)
def test_where_an_action_may_stand(text, parsed):
    assert parse_action(text) == parsed


def test_limits(make):
    env = make(max_steps=3, error_tolerance=2, invalid_action_penalty=-0.5)
    env.reset(0)
    assert env.step("x")[1:4] == (-0.5, False, False)
    *result, info = env.step("y")
    assert (result[1:], info["success"]) == ([-0.5, True, False], False)
    with pytest.raises(EpisodeOver):
        env.step("search[a]")
    env.reset(0)
    for action in ("search[a]", "x"):
        assert env.step(action)[2:4] == (False, False)
    *result, info = env.step("search[b]")
    assert (result[2:], info["success"]) == ([False, True], False)


def test_history_is_shown_before_the_page(make):
    plain, past = make(), make(history=1)
    actions = ("search[tea]", "click[next >]", "nonsense")
    pages = [play(plain, *actions[:i])[0] for i in range(4)]
    assert [play(past, *actions[:i])[0] for i in range(4)] == [
        pages[0],
        *(f"{pages[i]} [SEP] {actions[i]} [SEP] {pages[i + 1]}" for i in range(3)),
    ]


@pytest.mark.slow
def test_goals_that_cannot_be_reached_are_drawn_only_when_asked_for(make):
    env, every = make(), make(keep_unreachable_goals=True)
    lost = set(env.goals.unreachable())
    drawn = {e: {(e.reset(seed), e.goal.number)[1] for seed in range(400)} for e in (env, every)}
    assert not drawn[env] & lost
    assert drawn[every] & lost
    place = next(p for p, n in enumerate(env.goals.split("train")) if int(n) in lost)
    env.reset(0, options={"index": place})
    assert env.goal.number in lost
    with pytest.raises(UsageError, match="10000000"):
        env.reset(0, options={"index": 10_000_000})


def test_weighted_draws_follow_the_weights(make):
    env = make(weighted=True, keep_unreachable_goals=True)
    weights = dict(zip(map(int, env.goals.split("train")), env.goals.weights("train"), strict=True))
    drawn = [(env.reset(seed), weights[env.goal.number])[1] for seed in range(600)]
    mean = sum(weights.values()) / len(weights)
    expected = sum(w * w for w in weights.values()) / sum(weights.values())
    assert expected > 2 * mean
    assert sum(drawn) / len(drawn) > 1.5 * mean


@pytest.mark.parametrize("kwargs", [{"goals": "human", "split": "all"}, {"num_products": 300}, {"observation": "html"}])
def test_the_oracle_wins(make, kwargs):
    env = make(**kwargs)
    for seed in range(60):
        env.reset(seed)
        assert to_the_end(env)[-1][4]["success"], (seed, env.goal)


def test_the_oracle_finds_back_from_anywhere(make):
    for seed in range(30):
        env = make(max_steps=80)
        env.reset(seed)
        for _ in range(12):
            action = env.sample_random_action()
            if action != "click[buy now]":
                env.step(action)
        assert to_the_end(env)[-1][4]["success"], (seed, env.goal)
        with pytest.raises(EpisodeOver):
            env.oracle_action()


def test_fewer_products_are_the_first(make):
    env, whole = make(num_products=100, split="all"), make()
    assert len(env.shop.catalogue) == 100
    assert list(env.shop.catalogue) == [whole.shop.catalogue.product(i) for i in range(100)]
    assert make(num_products=100).shop is env.shop
    assert env.shop is not whole.shop


@pytest.mark.parametrize(
    "kwargs",
    [
        {"split": "dev"},
        {"observation": "pdf"},
        {"goals": "robot"},
        {"max_steps": 0},
        {"num_products": 0},
        {"history": -1},
        {"rules": {"thresold": 80}},
    ],
)
def test_wrong_settings_are_named(make, kwargs):
    with pytest.raises(UsageError, match=next(iter(kwargs))):
        make(**kwargs)


@pytest.mark.slow
def test_a_thousand_environments_are_small_and_share_the_shop(make):
    first = make()
    play(first, "search[shoes]", first.sample_random_action())
    envs = []
    tracemalloc.start()
    for seed in range(1000):
        env = WebShopEnv(rules={"nouns": "simple"})
        env.reset(seed)
        env.step("search[red shirt]")
        envs.append(env)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len({id(env.shop) for env in envs}) == 1
    assert size / 1000 < 50_000
    assert sys.getsizeof(envs) < 10_000


def test_a_product_that_no_words_find_is_found_by_listing(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    item = {"asin": "B000000001", "name": "the", "customization_options": None, "query": "the"}
    others = [{"asin": f"A{i:09}", "name": "the", "query": "the"} for i in range(60)]
    (folder / "items_shuffle.json").write_text(json.dumps([*others, item]))
    notes = {"attributes": [], "instruction": "it", "instruction_attributes": ["the"]}
    (folder / "items_ins_v2.json").write_text(json.dumps({"B000000001": notes}))
    env = rollenv.make("webshop:train-text", data=str(folder), split="all", rules={"nouns": "simple"})
    env.reset(0)
    action = env.oracle_action()
    assert action == "search[<q> the]", "words that are not indexed find nothing; a listing does"
    env.step(action)
    for _ in range(7):
        env.step(env.oracle_action())
    assert env.view.product == env.goal.product
