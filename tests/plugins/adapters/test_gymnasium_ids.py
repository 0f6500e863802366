"""``gymnasium:ID``: observations and actions as text, of every kind of space."""

from __future__ import annotations

import enum
import json
import sys
import time

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

import rollenv
from rollenv.core.checker import run_checks
from rollenv.core.errors import EpisodeOver, MissingExtra, NoSuchAbility, UnknownEnv, UsageError
from rollenv.plugins.adapters.environments import Misbehaved
from rollenv.plugins.adapters.environments import gymnasium_ids as texts

MODULE = __name__


class Turns(enum.IntEnum):
    left = 0
    right = 1
    wait = 2


class Odd(gymnasium.Env):
    """Does what it is told.

    ## Description
    Move about.

    ## Version History
    Nobody needs this.
    """

    actions = Turns

    def __init__(self, kind="discrete", **settings):
        self.kind = kind
        self.observation_space = spaces.Dict({"at": spaces.Box(-1, 1, (2,)), "image": spaces.Box(0, 255, (64, 64, 3))})
        self.action_space = {
            "discrete": spaces.Discrete(3),
            "started": spaces.Discrete(3, start=-1),
            "many": spaces.MultiDiscrete([3, 4]),
            "bits": spaces.MultiBinary(4),
            "box": spaces.Box(-1.0, 1.0, (2, 2)),
            "wide": spaces.Box(-np.inf, np.inf, (3,)),
            "text": spaces.Text(10),
            "dict": spaces.Dict({"go": spaces.Discrete(2), "by": spaces.Box(0, 1, (2,)), "say": spaces.Text(5)}),
            "tuple": spaces.Tuple([spaces.Discrete(2), spaces.MultiBinary(2)]),
            "graph": spaces.Graph(spaces.Box(0, 1, (2,)), None),
        }[kind]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.last = None
        return self._seen(), {"options": options or {}, "array": np.zeros(3, np.float32)}

    def _seen(self):
        return {"at": self.np_random.uniform(-1, 1, 2).astype(np.float32), "image": np.zeros((64, 64, 3))}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.last = action
        over = self.np_random.random() < 0.02
        return self._seen(), np.float32(0.5), np.bool_(over), False, {"success": np.bool_(over)}


class Bad(Odd):
    """Fails in all ways."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return (self._seen(), {}) if seed != 13 else None

    def step(self, action):
        if action == 0:
            raise RuntimeError("two\nlines")
        reward = "much" if action == 1 else (float("nan"), np.array([1.0, 2.0]))[int(self.np_random.random() < 0.5)]
        return self._seen(), reward, False, False, {}


class Clock(Odd):
    """Not deterministic, and does not say so."""

    count = 0

    def _seen(self):
        Clock.count += 1
        return {"at": np.array([Clock.count, 0.0], np.float32), "image": np.zeros(1)}


class Page(gymnasium.Env):
    """As BrowserGym's are: pages in, calls as text out."""

    class Unicode(gymnasium.Space):
        """BrowserGym's space of all texts."""

        def __init__(self):
            super().__init__(shape=None, dtype=None)

        def sample(self, mask=None, probability=None):
            return f"noop({self.np_random.integers(100)})"

        def contains(self, x):
            return isinstance(x, str)

        @property
        def is_np_flattenable(self):
            return False

    class Actions:
        def describe(self, with_long_description, with_examples):
            return "click(bid: str) or noop(wait_ms: float)"

        def to_python_code(self, action):
            return action

    def __init__(self, **settings):
        self.action_space = self.Unicode()
        self.observation_space = spaces.Dict(
            {
                "goal": self.Unicode(),
                "last_action_error": self.Unicode(),
                "screenshot": spaces.Box(0, 255, (720, 1280, 3)),
            }
        )
        self.action_mapping = self.Actions().to_python_code

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.wanted = int(self.np_random.integers(2))
        return self._seen(""), {}

    def step(self, action):
        over = action == f'click("{12 + self.wanted}")'
        return self._seen("" if "(" in action else f"ValueError: {action} is no call"), float(over), over, False, {}

    def _seen(self, error):
        def node(number, role, name, children=(), bid=None, **more):
            told = {"nodeId": str(number), "role": {"value": role}, "name": {"value": name}, "childIds": list(children)}
            return told | ({"browsergym_id": bid} if bid else {}) | more

        states = {"properties": [{"name": "focused", "value": {"value": True}}]}
        nodes = [
            node(1, "RootWebArea", "Shop", ["2", "3"]),
            node(2, "generic", "", ["4", "5"]),
            node(3, "InlineTextBox", "hidden"),
            node(4, "button", "Buy", ["6"], "12", **states),
            node(6, "StaticText", "Buy"),
            node(5, "button", "Sell", ("1", "7", "8"), "13"),
            node(7, "StaticText", "for 5 €"),
        ]
        return {
            "goal": "",
            "goal_object": [{"type": "text", "text": ["Buy it", "Sell it"][self.wanted]}],
            "url": "http://shop/",
            "open_pages_urls": ("http://shop/", "http://other/"),
            "active_page_index": np.array([0]),
            "chat_messages": [{"role": "assistant", "message": "Hello."}],
            "screenshot": np.zeros((720, 1280, 3), np.uint8),
            "axtree_object": {"nodes": nodes},
            "focused_element_bid": "12",
            "last_action_error": error,
            "elapsed_time": np.array([time.monotonic()]),
        }


for name, cls in {"Odd": Odd, "Bad": Bad, "Clock": Clock, "Page": Page}.items():
    gymnasium.register(f"rollenvtest/{name}-v0", f"{MODULE}:{cls.__name__}")
gymnasium.register("rollenvtest/Live-v0", f"{MODULE}:Odd", nondeterministic=True, max_episode_steps=30)

KINDS = ["discrete", "started", "many", "bits", "box", "wide", "text", "dict", "tuple"]


@pytest.mark.integration
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "Blackjack-v1"])
def test_our_checker_finds_nothing_in_gymnasiums_own(env_id):
    findings = {f.name: f for f in run_checks(f"gymnasium:{env_id}", episodes=3)}
    assert not {name: f.detail for name, f in findings.items() if f.ok is False}
    assert {name for name, f in findings.items() if f.ok} >= {"seeds", "replay", "processes", "state", "spawn"}


@pytest.mark.combinations
@pytest.mark.parametrize("kind", KINDS)
def test_our_checker_finds_nothing_whatever_the_actions(kind):
    def make():
        return rollenv.make("gymnasium:rollenvtest/Odd-v0", kind=kind)

    found = run_checks(make, abilities=["state", "spawn", "random_action"], episodes=3)
    assert not {f.name: f.detail for f in found if f.ok is False}


def test_an_episode_is_gymnasiums():
    plain = gymnasium.make("CartPole-v1")
    env = rollenv.make("gymnasium:CartPole-v1", describe=False)
    for seed in (0, 7):
        seen, _ = plain.reset(seed=seed)
        told, _ = env.reset(seed)
        assert np.allclose(json.loads(told.splitlines()[-1]), seen, rtol=1e-4)
        over = False
        while not over:
            action = int(env.np_random.integers(2))
            seen, reward, terminated, truncated, _ = plain.step(action)
            told, ours, *flags, info = env.step(f"I push: \\boxed{{{action}}}")
            assert (ours, flags, info["valid"]) == (reward, [terminated, truncated], True)
            assert np.allclose(json.loads(told), seen, rtol=1e-4)
            over = terminated or truncated


@pytest.mark.parametrize(
    ("kind", "reply", "meant"),
    [
        ("discrete", "\\boxed{2}", 2),
        ("discrete", "LEFT", 0),
        ("discrete", "so \\boxed{wait}", 2),
        ("started", "-1", -1),
        ("many", "\\boxed{[2, 3]}", [2, 3]),
        ("many", "2 3", [2, 3]),
        ("bits", "0,1, 1,0", [0, 1, 1, 0]),
        ("box", "[[0.5, -1], [1, 0]]", [[0.5, -1], [1, 0]]),
        ("wide", "1e3 -2 .5", None),
        ("wide", "1e3 -2 0.5", [1000, -2, 0.5]),
        ("text", "```\nhello\n```", "hello"),
        ("text", " hello ", "hello"),
        ("tuple", "\\boxed{[1, [0, 1]]}", [1, [0, 1]]),
        ("dict", '\\boxed{{"go": 1, "by": [0, 0.5], "say": "hi"}}', {"go": 1, "by": [0, 0.5], "say": "hi"}),
    ],
)
def test_actions_are_read(kind, reply, meant):
    env = rollenv.make("gymnasium:rollenvtest/Odd-v0", kind=kind)
    env.reset(0)
    *_, info = env.step(reply)
    assert info["valid"] is (meant is not None)
    if meant is not None:
        last = env.unwrapped.game.unwrapped.last
        plain = {k: np.asarray(v).tolist() for k, v in last.items()} if isinstance(last, dict) else (
            [np.asarray(v).tolist() for v in last] if isinstance(last, tuple) else np.asarray(last).tolist()
        )  # fmt: skip
        assert plain == meant


WRONG = ["", "up", "3", "-2", "1.0", "true", "[1]", "[0, 0, 0, 9]", "9" * 500, "1e999", "NaN", "[NaN, 0, 1]", "{}",
         "null", "[" * 5000, "Infinity 0 0", '{"go": 5}', "[[[]]]", "2" * 18, "[true, false]"]  # fmt: skip


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "text"])
def test_replies_that_mean_no_action_pass_the_turn(kind):
    env = rollenv.make("gymnasium:rollenvtest/Odd-v0", kind=kind, max_turns=len(WRONG))
    env.reset(0)
    for i, reply in enumerate(WRONG):
        observation, reward, terminated, truncated, info = env.step(f"\\boxed{{{reply}}}")
        if not info["valid"]:
            assert (reward, terminated, info) == (0.0, False, {"valid": False})
            assert len(observation) < 1000
            assert "at: [" in observation
        assert truncated is (i == len(WRONG) - 1) or terminated
        if terminated:
            break


SPACES = [Odd(kind).action_space for kind in KINDS]


@given(st.text(max_size=60))
def test_any_text_is_an_action_of_the_space_or_none(text):
    for space in SPACES:
        said = ""
        try:
            assert space.contains(texts.read(texts.found(text, space), space))
        except ValueError as error:
            said = str(error)
        assert len(said) < 400


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_read_as_the_same(kind):
    space = Odd(kind).action_space
    space.seed(3)
    for _ in range(50):
        action = space.sample()
        again = texts.read(texts.found(texts.write(action, space), space), space)
        assert space.contains(again)
        assert spaces.utils.flatten(space, again).tolist() == spaces.utils.flatten(space, action).tolist()


def test_what_it_shows():
    env = rollenv.make("gymnasium:rollenvtest/Odd-v0")
    told, info = env.reset(0, options={"inner": {"level": 3}})
    assert told.startswith("Does what it is told.\n\nDescription:\nMove about.")
    assert "Version" not in told
    assert "Actions are left, right, wait. You have 200 turns." in told
    assert "image: (float64 array of 64 x 64 x 3, not shown)" in told
    assert info == {"options": {"level": 3}, "array": [0.0, 0.0, 0.0]}
    assert env.render().startswith("at: [")
    with pytest.raises(UsageError, match="no option"):
        env.reset(0, options={"level": 3})


def test_states_go_back_and_copies_play_on():
    env = rollenv.make("gymnasium:rollenvtest/Odd-v0", kind="box")
    env.reset(5)
    env.step(env.sample_random_action())
    env.step("nothing")
    state = json.loads(json.dumps(env.get_state()))
    twin = env.spawn(same_state=True)
    action = env.sample_random_action()
    first = env.step(action)
    assert twin.step(action)[:4] == first[:4]
    env.set_state(state)
    assert env.step(action)[:4] == first[:4]


def test_what_is_not_deterministic_is_found_out():
    env = rollenv.make("gymnasium:rollenvtest/Clock-v0")
    env.reset(0)
    state = env.get_state()
    with pytest.raises(Misbehaved, match="not deterministic"):
        env.set_state(state)
    live = rollenv.spec("gymnasium:rollenvtest/Live-v0")
    assert live.nondeterministic
    assert live.abilities == {"random_action"}
    env = live.make()
    assert env.max_turns == 30
    env.reset(0)
    for ability in (env.get_state, lambda: env.spawn(same_state=True)):
        with pytest.raises(NoSuchAbility):
            ability()


@pytest.mark.parametrize("action", [0, 1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_an_environment_that_fails_is_one_line(action, seed):
    env = rollenv.make("gymnasium:rollenvtest/Bad-v0")
    env.reset(seed)
    with pytest.raises(Misbehaved) as caught:
        env.step(f"\\boxed{{{action}}}")
    assert "\n" not in str(caught.value)
    assert "gymnasium:rollenvtest/Bad-v0" in str(caught.value)
    with pytest.raises(EpisodeOver):
        env.step("0")
    with pytest.raises(Misbehaved, match="returned no"):
        env.reset(13)
    env.reset(4)
    env.close()
    env.close()


@pytest.mark.parametrize(
    ("env_id", "kwargs", "error", "said"),
    [
        ("gymnasium:CartPol-v1", {}, UnknownEnv, "CartPole-v1"),
        ("gymnasium:", {}, UnknownEnv, "''"),
        ("gymnasium:no.such.module:X-v0", {}, MissingExtra, "no.such.module"),
        ("gymnasium:json:X-v0", {}, UnknownEnv, "importing json"),
        ("gymnasium:CartPole-v1", {"size": 3}, UsageError, "cannot be made"),
        ("gymnasium:CartPole-v1", {"max_turns": 0}, UsageError, "max_turns"),
        ("gymnasium:CartPole-v1", {"max_turns": 2.5}, UsageError, "max_turns"),
        ("gymnasium:CartPole-v1", {"array": np.zeros((3, 3))}, UsageError, "cannot be made"),
        ("gymnasium:rollenvtest/Odd-v0", {"kind": "graph"}, UsageError, "Graph"),
        ("gymnasium:rollenvtest/Odd-v0", {"kind": "none"}, UsageError, "cannot be made"),
    ],
)
def test_what_is_wrong_is_one_line(env_id, kwargs, error, said):
    with pytest.raises(error, match=said) as caught:
        rollenv.make(env_id, **kwargs)
    assert "\n" not in str(caught.value)


class Strange(Odd):
    """Says and returns what no environment should."""

    def __init__(self, kind="", space=None):
        super().__init__()
        self.kind, self.action_space = kind, STRANGE_SPACES.get(space, spaces.Discrete(3))

    def step(self, action):
        self.meant = action
        return RETURNED.get(self.kind, lambda: (0, 1.0, False, False, {}))()


def _within_itself():
    ring = [1]
    ring.append(ring)
    return ring


def _named_within_itself():
    ring = {}
    ring |= dict.fromkeys("abcdef", ring)
    return ring


def _array_within_itself():
    ring = np.empty(20, object)
    ring.fill(ring)
    return ring


class Unnamed:
    def __str__(self):
        raise RuntimeError("no\nname")


def _deep(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


STRANGE_SPACES = {
    "nothing": 5,
    "numbers as names": spaces.Dict({0: spaces.Discrete(2)}),
    "flags": spaces.Box(0, 1, (2,), dtype=np.bool_),
    "huge": spaces.Discrete(2**40),
    "few letters": spaces.Text(4, charset="ab "),
    "scalar": spaces.Box(-1, 1, ()),
    "negative": spaces.Box(-5, -1, (2,), dtype=np.int32),
    "small": spaces.Discrete(5, dtype=np.int8),
    "not signed": spaces.Discrete(5, dtype=np.uint8),
    "half": spaces.Box(-np.inf, np.inf, (2,), dtype=np.float16),
    "in one another": spaces.Dict({"a": spaces.Dict({"b": spaces.Tuple([spaces.Discrete(3, start=5)])})}),
}
RETURNED = {
    "four": lambda: (0, 1.0, True, {}),
    "no reward": lambda: (0, None, False, False, {}),
    "a large reward": lambda: (0, 10**400, False, False, {}),
    "no info": lambda: (0, 1.0, False, False, None),
    "an exit": lambda: sys.exit("no display"),
    "a ring": lambda: (_within_itself(), 1.0, False, False, {"ring": _within_itself()}),
    "depth": lambda: (_deep(5000), 1.0, False, False, {}),
    "a word": lambda: (0, "1.5", False, False, {}),
    "an end in words": lambda: (0, 1.0, "False", False, {}),
    "names that fail": lambda: ({Unnamed(): 1}, 1.0, False, False, {}),
    "names that fail in info": lambda: (0, 1.0, False, False, {Unnamed(): 1}),
    "a ring of names": lambda: (_named_within_itself(), 1.0, False, False, {"ring": _named_within_itself()}),
    "a ring of an array": lambda: (_array_within_itself(), 1.0, False, False, {"ring": _array_within_itself()}),
    "a long complex number": lambda: (np.clongdouble(1), 1.0, False, False, {"not shown": np.clongdouble(1)}),
    "a large number": lambda: (10**5000, 1.0, False, False, {"n": 10**5000}),
}
gymnasium.register("rollenvtest/Strange-v0", f"{MODULE}:Strange", max_episode_steps=20)
STRANGE = "gymnasium:rollenvtest/Strange-v0"


@pytest.mark.parametrize("kind", RETURNED)
def test_strange_results_are_one_line_or_shown(kind):
    env = rollenv.make(STRANGE, kind=kind, space="huge")
    env.reset(1)
    if kind.startswith("a ring") or kind in ("depth", "a large number", "a long complex number"):
        observation, *_, info = env.step("\\boxed{1}")
        assert "not shown" in json.dumps([observation, info])
        return
    with pytest.raises(Misbehaved) as caught:
        env.step("\\boxed{1}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("space", STRANGE_SPACES)
def test_strange_spaces_are_one_line_or_played(space):
    if space in ("nothing", "numbers as names"):
        with pytest.raises(UsageError, match=r"not a space of|names that are not text"):
            rollenv.make(STRANGE, space=space)
        return
    env = rollenv.make(STRANGE, space=space)
    env.reset(1)
    for _ in range(10):
        assert env.step(env.sample_random_action())[-1]["valid"]
        assert env.game.unwrapped.meant in STRANGE_SPACES[space]


@pytest.mark.parametrize("space", ["small", "not signed", "half"])
def test_numbers_that_a_small_type_cannot_hold_pass_the_turn(space):
    env = rollenv.make(STRANGE, space=space)
    env.reset(1)
    for reply in ("300", "-300", "1e39 1", "[70000, 0]"):
        assert env.step(reply)[-1] == {"valid": False}


@pytest.mark.parametrize("place", ["observation", "info"])
def test_random_actions_keep_to_a_mask(place):
    class Masked(gymnasium.Env):
        action_space = spaces.Discrete(5, start=1)
        observation_space = spaces.Dict({"at": spaces.Discrete(5), "action_mask": spaces.MultiBinary(5)})
        at = 0

        def _seen(self):
            mask = {"action_mask": np.arange(5) == self.at}
            return ({"at": self.at, **mask}, {}) if place == "observation" else ({"at": self.at}, mask)

        def reset(self, *, seed=None, options=None):
            self.at = 3
            return self._seen()

        def step(self, action):
            assert action == self.at + 1
            self.at = (self.at + 2) % 5
            observation, info = self._seen()
            return observation, 0.0, False, False, info

    gymnasium.register("Masked-v0", Masked)
    try:
        env = rollenv.make("gymnasium:Masked-v0")
        env.reset(1)
        assert [env.step(env.sample_random_action())[4]["valid"] for _ in range(10)] == [True] * 10
        twin = env.spawn(same_state=True)
        assert twin.sample_random_action() == env.sample_random_action() == "\\boxed{4}"
    finally:
        gymnasium.registry.pop("Masked-v0")


def test_what_is_no_number_is_no_success():
    RETURNED["unknown"] = lambda: (0, 1.0, False, False, {"success": np.float64("nan")})
    env = rollenv.make(STRANGE, kind="unknown")
    env.reset(1)
    assert env.step("1")[-1] == {"valid": True}


def test_the_characters_of_a_text_are_listed():
    assert "of the characters ' ab'" in rollenv.make(STRANGE, space="few letters").reset(1)[0]


def test_an_environment_without_spaces_or_names_is_one_line():
    class Meant(Odd):
        actions = None

        def get_action_meanings(self):
            raise RuntimeError("no ROM\nis here")

    gymnasium.register("rollenvtest/Meant-v0", Meant)
    with pytest.raises(UsageError, match="ROM"):
        rollenv.make("gymnasium:rollenvtest/Meant-v0")


@pytest.mark.parametrize("code", ["raise RuntimeError('two\\nlines')", "import sys; sys.exit('no display')", "1 +"])
def test_a_module_that_fails_is_one_line(tmp_path, monkeypatch, code):
    (tmp_path / "failing_games.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("failing_games", ".failing_games"):
        with pytest.raises(MissingExtra, match="imported") as caught:
            rollenv.make(f"gymnasium:{module}:X-v0")
        assert "\n" not in str(caught.value)


def test_no_limit_of_gymnasiums_is_ours():
    assert rollenv.make(STRANGE, max_episode_steps=-1).max_turns == 200


@pytest.mark.parametrize("limits", [{}, {"max_turns": 30}, {"max_turns": 5}, {"max_episode_steps": 7}])
def test_the_turns_that_it_tells_of_are_those_there_are(limits):
    env = rollenv.make(STRANGE, **limits)
    turns = next(iter(limits.values()), 20)
    assert f"You have {turns} turns." in env.reset(1)[0]
    ends = [env.step("\\boxed{1}")[2:4] for _ in range(turns)]
    assert ends == [(False, False)] * (turns - 1) + [(False, True)]


def test_seeds_of_numpy_are_seeds_and_wrong_options_are_one_line():
    env = rollenv.make("gymnasium:CartPole-v1")
    assert env.reset(np.int64(3)) == env.reset(3)
    with pytest.raises(UsageError, match="option inner"):
        env.reset(3, options={"inner": 5})


def test_pictures_alone_are_refused():
    class Picture(Odd):
        def __init__(self):
            super().__init__()
            self.observation_space = spaces.Box(0, 255, (84, 84))

    gymnasium.register("rollenvtest/Picture-v0", Picture)
    with pytest.raises(UsageError, match="pictures"):
        rollenv.make("gymnasium:rollenvtest/Picture-v0")


def test_ours_in_gymnasium_comes_back():
    env = rollenv.make("gymnasium:rollenv.plugins.adapters.gymnasium:rollenv/game.Sokoban-v0-tiny", describe=False)
    ours = rollenv.make("game:Sokoban-v0-tiny")
    told, (same, _) = env.reset(3)[0], ours.reset(3)
    assert same in told
    while True:
        action = ours.oracle_action()
        step, expected = env.step(action), ours.step(action)
        assert step[1:4] == expected[1:4]
        if step[2] or step[3]:
            break
    assert step[4]["success"] is True


@pytest.mark.integration
def test_pages_of_a_browser():
    env = rollenv.make("gymnasium:rollenvtest/Page-v0")
    told, _ = env.reset(1)
    assert "Actions are click(bid: str) or noop(wait_ms: float)." in told
    page = told[told.index("Goal:") :]
    assert page == (
        f"Goal: {'Buy' if 'Buy it' in page else 'Sell'} it\nPage: http://shop/\n"
        "Tabs: 0 (this one) http://shop/, 1 http://other/\nFocused element: 12\nMessages: assistant: Hello.\n\n"
        "RootWebArea 'Shop'\n  [12] button 'Buy' focused=True\n  [13] button 'Sell'\n    StaticText 'for 5 €'"
    )
    assert "The last action failed: ValueError: nonsense is no call" in env.step("nonsense")[0]
    wanted = 12 if "Buy it" in page else 13
    assert env.step(f'I will do this.\n```\nclick("{wanted}")\n```')[1:4] == (1.0, True, False)
    found = run_checks(lambda: rollenv.make("gymnasium:rollenvtest/Page-v0"), abilities=["random_action", "state"])
    assert not {f.name: f.detail for f in found if f.ok is False}


def test_a_page_whose_tree_is_huge_or_odd_is_shown():
    from rollenv.plugins.adapters.environments.showing import LONGEST, show

    deep = [
        {"nodeId": str(i), "role": {"value": "list"}, "name": {"value": "x" * 50}, "childIds": [str(i + 1)]}
        for i in range(3000)
    ]
    assert len(show({"goal": "g", "axtree_object": {"nodes": deep}})) < LONGEST + 200
    assert "no text" in show({"goal": None, "axtree_object": None, "url": 5})
    assert show({"goal": "g", "pruned_html": "<b>"}).endswith("<b>")
    assert show({"goal_object": None, "dom_object": {"documents": []}}) == "\n(the page has no text)"
