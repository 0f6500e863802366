"""History, tools and tracking around real environments."""

from __future__ import annotations

import threading

import pytest

import rollenv
from rollenv import EpisodeOver, UsageError
from rollenv.core.checker import run_checks
from rollenv.core.checker.digests import digest
from rollenv.core.tools.base import NOT_CALLED, BaseTool, ToolResult
from rollenv.core.wrappers import (
    TOKENIZER_REQUIRED,
    WRAPPER_FACTORY,
    EpisodeTrackingWrapper,
    ObservationWrapper,
    ToolEnvWrapper,
    wrap,
)

ENV = "game:Sokoban-v0-easy"


class Tags:
    """A tokenizer whose template can be read back: <role>content."""

    def apply_chat_template(self, conversation, *, tokenize, add_generation_prompt):
        assert not tokenize
        return "".join(f"<{m['role']}>{m['content']}" for m in conversation) + "<assistant>" * add_generation_prompt


class Echo(BaseTool):
    """Answers ``word: text``; fails on ``word: bad``."""

    def __init__(self, word: str):
        super().__init__()
        self.word = self.tool_type = word

    def instruction_string(self):
        return f"Write {self.word}: text."

    def execute_action(self, action):
        head, colon, text = action.partition(":")
        if head != self.word or not colon:
            return NOT_CALLED
        return ToolResult(True, "bad" in text, f"{self.word} says {text.strip()}", action)


def wrapped(*names: str, **kwargs) -> rollenv.Env:
    settings = {name: {"tokenizer": Tags()} if name in TOKENIZER_REQUIRED else {} for name in names}
    return wrap(rollenv.make(ENV, **kwargs), settings)


class Essence(rollenv.Wrapper):
    """Leaves out what wrappers show on purpose and no environment may: the episode before, and endless histories."""

    def reset(self, seed=None, *, options=None):
        observation, info = self.env.reset(seed, options=options)
        return observation, {k: v for k, v in info.items() if not k.startswith("prev_ep_")}

    def step(self, action):
        observation, *rest = self.env.step(action)
        return digest(observation), *rest


ABILITIES = sorted(rollenv.ABILITIES - {"state_key"})


@pytest.mark.combinations
@pytest.mark.parametrize("name", [name for name in WRAPPER_FACTORY if "search" not in name])
def test_a_wrapped_environment_keeps_its_promises(name):
    findings = run_checks(lambda: Essence(wrapped(name)), abilities=ABILITIES, episodes=5)
    assert {f.name: f.detail for f in findings if f.ok is False} == {}
    assert {f.name for f in findings if f.ok} >= {"types", "seeds", "replay", "state", "spawn", "hostile", "oracle"}


@pytest.mark.integration
def test_combined_wrappers_too():
    def build():
        return Essence(ObservationWrapper(ToolEnvWrapper(rollenv.make(ENV), [Echo("a"), Echo("b")])))

    findings = run_checks(build, abilities=ABILITIES, episodes=5)
    assert {f.name: f.detail for f in findings if f.ok is False} == {}


def test_a_history_echoes_what_the_agent_wrote_and_no_more():
    env = wrapped("concat_with_action")
    env.reset(0)
    assert len(env.step("x" * 1_000_000)[0]) < 1_010_000


def test_the_history_holds_instructions_turns_and_the_current_state():
    env = wrapped("concat_with_action")
    first, info = env.reset(3)
    assert first.endswith(info["suffix"])
    action = env.sample_random_action()
    second, *_, info = env.step(action)
    third, *_, info = env.step(action)
    assert third.count(action) == 2 + first.count(action)
    assert "Turn 1" in third
    assert "Turn 2" in third
    assert third.endswith(info["suffix"])
    assert third.count(info["suffix"]) == 1, "only the current state is shown"
    assert "Turn 2" not in second


def test_concat_leaves_the_actions_out():
    env = wrapped("concat")
    env.reset(3)
    assert "\\boxed{up} please" not in env.step("\\boxed{up} please")[0]


@pytest.mark.parametrize("length", [0, 1, 2, 5])
def test_a_bounded_history_keeps_the_instructions(length):
    env = ObservationWrapper(rollenv.make(ENV), max_history_length=length)
    instructions = rollenv.make(ENV).reset(3)[0]
    env.reset(3)
    for turn in range(1, 5):
        shown = env.step("\\boxed{up}")[0]
        assert shown.startswith(instructions)
        turns = [k for k in range(1, turn + 1) if f"Turn {k}:" in shown]
        assert turns == list(range(max(1, turn - length + 1), turn + 1))


def test_chat_roles():
    env = ObservationWrapper(ToolEnvWrapper(rollenv.make(ENV), [Echo("a")]), tokenizer=Tags())
    env.reset(3)
    env.step("a: one")
    shown = env.step("\\boxed{up}")[0]
    roles = [part.partition(">")[0] for part in shown.split("<")[1:] if ">" in part]
    assert [r for r in roles if r in ("user", "tool", "assistant")] == [
        *("user", "assistant", "tool", "assistant", "user", "assistant")
    ]
    on_reset = wrapped("concat_chat_on_reset")
    assert on_reset.reset(3)[0].startswith("<user>")
    assert on_reset.step("\\boxed{up}")[0].count("<user>") == 1


@pytest.mark.parametrize(
    "settings",
    [
        {"include_chat_template": True},
        {"apply_chat_template_on_reset": True},
        {"include_chat_template": True, "apply_chat_template_on_reset": True, "tokenizer": Tags()},
        {"include_chat_template": True, "include_action": False, "tokenizer": Tags()},
        {"max_history_length": -1},
    ],
)
def test_contradicting_settings_are_errors(settings):
    with pytest.raises(UsageError):
        ObservationWrapper(rollenv.make(ENV), **settings)


def test_unknown_names_and_missing_tokenizers_are_errors():
    with pytest.raises(UsageError, match="concat_chat"):
        wrap(rollenv.make(ENV), {"concat_chats": {}})
    for name in TOKENIZER_REQUIRED:
        with pytest.raises(UsageError, match="tokenizer"):
            wrap(rollenv.make(ENV), {name: {}})


def test_a_tool_call_costs_the_environment_no_turn():
    env, plain = ToolEnvWrapper(rollenv.make(ENV), [Echo("a"), Echo("b")], 0.1, 0.2, -0.3), rollenv.make(ENV)
    observation, info = env.reset(5)
    assert observation.startswith(plain.reset(5)[0])
    assert "Write a: text." in observation
    assert "Write b: text." in observation
    assert info["tool_use_counter"] == 0
    said, reward, terminated, truncated, info = env.step("b: hello")
    assert (said, terminated, truncated) == ("b says hello", False, False)
    assert reward == pytest.approx(0.3)
    assert info["tool_type"] == "b"
    assert (info["tool_use_counter"], info["tool_success_counter"], info["use_tool"]) == (1, 1, True)
    said, reward, *_, info = env.step("a: bad")
    assert said == "a says bad", "a failed call is answered by its tool, not sent to the environment"
    assert reward == pytest.approx(-0.2)
    assert (info["tool_use_counter"], info["tool_success_counter"]) == (2, 1)
    step, expected = env.step("\\boxed{up}"), plain.step("\\boxed{up}")
    assert step[:4] == expected[:4]
    assert step[4]["use_tool"] is False
    _, info = env.reset()
    assert (info["prev_ep_tool_use_counter"], info["tool_use_counter"]) == (2, 0)


def test_the_last_allowed_call_says_so_and_later_ones_are_answers():
    env = ToolEnvWrapper(rollenv.make(ENV), [Echo("a")], max_tool_uses=1)
    env.reset(0)
    assert "last tool call" in env.step("a: x")[0]
    assert env.step("a: x")[2], "it went to the environment, which ends on a malformed action"
    with pytest.raises(EpisodeOver):
        env.step("a: x")


def test_tracking_counts_and_remembers_the_last_episode():
    env = EpisodeTrackingWrapper(rollenv.make(ENV, rewards="ragen"))
    env.reset(1)
    total = 0.0
    for n in range(1, 4):
        _, reward, *_, info = env.step(env.oracle_action())
        total += reward
        assert info["step_counter"] == n
        assert info["cumulative_rewards"] == pytest.approx(total)
    _, info = env.reset(2)
    assert info["prev_ep_step_counter"] == 3
    assert info["prev_ep_cumulative_rewards"] == pytest.approx(total)
    assert info["step_counter"] == 0


def test_environments_with_one_tool_object_can_be_stepped_in_threads():
    tool, answers = Echo("a"), {}

    def play(i: int) -> None:
        env = ToolEnvWrapper(rollenv.make(ENV), [tool], max_tool_uses=None)
        env.reset(i)
        answers[i] = [env.step(f"a: {i}.{k}")[0] for k in range(50)]

    threads = [threading.Thread(target=play, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert answers == {i: [f"a says {i}.{k}" for k in range(50)] for i in range(8)}
