"""Examples in prompts: the same words as the question, through the model's own chat template."""

from __future__ import annotations

import pytest
from chat_templates import SHAPES, tokenizer_for

import rollenv
from rollenv import UsageError
from rollenv.agents.engines.base import Sampling
from rollenv.agents.local import LocalAgent
from rollenv.agents.prompts import ChatPrompt, StepPrompt
from rollenv.agents.prompts.chat_format import ChatFormat
from rollenv.agents.prompts.conversation import Conversation
from rollenv.agents.prompts.examples import oracle_examples
from rollenv.agents.prompts.session import TokenAgent
from rollenv.agents.tiny.model import build_model
from rollenv.agents.tiny.settings import TinySize
from rollenv.core import registry
from rollenv.trainers.config import load_config, load_prompt

SIZE = TinySize(hidden=16, layers=1, heads=2, intermediate=16)
PAIRS = (("2 + 2 =", "4"), ("5 - 3 =", "2"))
QWEN3 = next(shape for shape in SHAPES if shape.name == "qwen3")
SUMS = "math:Arithmetic-v0-digit"


class Engine:
    version, max_context = 0, 10_000


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
@pytest.mark.parametrize("kind", ["step", "chat"])
def test_examples_are_messages_before_the_question_as_the_template_writes_them(shape, kind):
    tokenizer = tokenizer_for(shape)
    args = {"date_string": "1 May 2026"} if "date_string" in shape.template else {}
    step = StepPrompt("{state}", examples=PAIRS, template_args=args) if kind == "step" else None
    turns = [{"role": r, "content": t} for a, b in PAIRS for r, t in (("user", a), ("assistant", b))]
    turns.append({"role": "user", "content": "1 + 1 ="})
    expected = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False, **args)
    prompt = step or ChatPrompt(examples=PAIRS, template_args=args)
    agent = LocalAgent(build_model(SIZE, tokenizer, 0), tokenizer, prompt)
    engine = TokenAgent(Engine(), tokenizer, step, Sampling(), examples=PAIRS, **args)
    found = agent.start(None, 0)._prompt("1 + 1 =", {})
    assert tokenizer.decode(found) == expected
    assert engine.start(None, 0)._prompt("1 + 1 =", {}) == found


@pytest.mark.parametrize("form", ["step", "plain", "chat"])
def test_the_asked_prompt_is_never_among_its_examples(form):
    """Rows that are examples are trained on too: their prompts would hold their answers."""
    tokenizer = tokenizer_for(QWEN3)
    chat = form != "plain"
    prompt = ChatPrompt(examples=PAIRS) if form == "chat" else StepPrompt("{state}", chat=chat, examples=PAIRS)
    agent = LocalAgent(build_model(SIZE, tokenizer, 0), tokenizer, prompt)
    session = agent.start(None, 0)
    own, other = (tokenizer.decode(agent.start(None, 0)._prompt(text, {})) for text in (PAIRS[1][0], "1 + 1 ="))
    assert own.count(PAIRS[1][0]) == 1
    assert own.count(PAIRS[0][0]) == 1
    assert other.count(PAIRS[1][0]) == other.count(PAIRS[0][0]) == 1
    assert tokenizer.decode(session._prompt(PAIRS[0][0], {})).count(PAIRS[0][0]) == 1


@pytest.mark.parametrize("shape", [each for each in SHAPES if "tools" in each.template], ids=lambda shape: shape.name)
def test_a_call_among_examples_and_its_result_are_messages_as_in_an_episode(shape):
    args = {"date_string": "1 May 2026"} if "date_string" in shape.template else {}
    form = ChatFormat.of(tokenizer_for(shape), **args)
    call = '<tool_call>{"name": "look", "arguments": {"at": 7}}</tool_call>'
    look = {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "integer"}}}}
    talk = Conversation(form, tools="env", examples=(("What is there?", call), ("a key", "A key.")))
    talk.offer([{"type": "function", "function": look}])
    talk.add("user", "And now?")
    assert form.decode(talk.prompt()).count("a key") == 1
    structured = form.writes_calls and form.has_results
    assert [message["role"] for message in talk.messages][2] == ("tool" if structured else "user")
    assert ("tool_calls" in talk.messages[1]) == structured


def test_a_chat_with_examples_goes_on_as_one_sequence_of_tokens():
    tokenizer = tokenizer_for(QWEN3)
    talk = LocalAgent(build_model(SIZE, tokenizer, 0), tokenizer, ChatPrompt(examples=PAIRS)).conversation()
    talk.add("user", "1 + 1 =")
    first = talk.prompt()
    talk.answer((*tokenizer.encode("2"), tokenizer.eos_token_id))
    talk.add("user", "3 + 3 =")
    assert talk.prompt()[: len(first)] == first
    assert talk.splits == 0


def test_examples_of_a_plain_prompt_are_lines_and_saved_with_the_model(tmp_path):
    tokenizer = tokenizer_for(QWEN3)
    form = StepPrompt("{state}", chat=False, examples=PAIRS)
    LocalAgent(build_model(SIZE, tokenizer, 0), tokenizer, form, Sampling(stop=("\n",))).save(tmp_path)
    agent = LocalAgent.load(tmp_path)
    assert (agent.prompt, agent.sampling.stop) == (form, ("\n",))
    assert tokenizer.decode(agent.start(None, 0)._prompt("1 + 1 =", {})) == "2 + 2 = 4\n5 - 3 = 2\n1 + 1 ="


def test_the_text_of_an_example_cannot_end_its_message():
    tokenizer = tokenizer_for(QWEN3)
    form = ChatFormat.of(tokenizer)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    plain, odd = (form.prompt("x", ((text, text),)) for text in ("a", "a<|im_end|>"))
    assert plain.count(end) == odd.count(end)


@pytest.mark.parametrize("number", [1, 5])
def test_turns_of_an_expert_are_different_training_tasks_in_the_words_of_the_prompt(number):
    kwargs = {"operands": [0, 20], "answers": [0, 20], "split": "train"}
    form = StepPrompt("{state} ? Say it.")
    found = oracle_examples(rollenv.spec(SUMS), kwargs, form, number)
    assert found == oracle_examples(rollenv.spec(SUMS), kwargs, form, number)
    assert len(set(found)) == number
    for asked, said in found:
        task = asked.removesuffix(" = ? Say it.")
        assert eval(task) == int(said)


def test_a_prompt_for_a_turn_gets_later_turns_and_a_chat_whole_episodes():
    guess = rollenv.spec("game:GuessTheNumber-v0")
    turns = oracle_examples(guess, {}, StepPrompt("{state}"), 3)
    assert [asked.count("(") for asked, _ in turns] == [0, 1, 2]
    chat = oracle_examples(guess, {}, ChatPrompt(), 4)
    assert chat[0][0].startswith("This is Guess the Number")
    later = [asked for asked, _ in chat if not asked.startswith("This is")]
    assert later
    assert all("the number is" in asked for asked in later)


def test_too_few_turns_and_no_expert_are_said(monkeypatch):
    class Dumb(rollenv.Env):
        def _reset(self, options):
            return "again", {}

        def _step(self, action):
            return "again", 0.0, True, False, {}

    rollenv.list_envs()  # else all ids would be registered in the copy alone
    monkeypatch.setattr(registry, "ENV_REGISTRY", dict(registry.ENV_REGISTRY))
    rollenv.register("test:Dumb-v0", Dumb)
    with pytest.raises(UsageError, match="no expert"):
        oracle_examples(rollenv.spec("test:Dumb-v0"), {}, StepPrompt(), 2)
    with pytest.raises(UsageError, match="different turns"):
        oracle_examples(rollenv.spec("game:GuessTheNumber-v0"), {}, StepPrompt("{instructions}"), 3)
    sums = {"operands": [0, 1], "answers": [0, 2], "operators": "+"}
    with pytest.raises(UsageError, match="4 different"):  # soon, however many are asked for
        oracle_examples(rollenv.spec(SUMS), sums, StepPrompt("{state}"), 1000)


@pytest.mark.parametrize(
    "given", ["-1", "1001", "2.5", "two", "true", "[3]", "[{user='a'}]", "[{user='a', asistant='b'}]"]
)
def test_what_is_no_number_or_list_of_examples_is_said_in_a_sentence(given):
    with pytest.raises(UsageError, match=r"prompt(\.|: )examples"):
        load_prompt([f"examples={given}"])


def test_a_stop_text_is_not_empty():
    with pytest.raises(UsageError, match=r"prompt\.stop\.0"):
        load_prompt(["stop=['']"])


def test_an_evaluation_takes_the_prompt_of_a_recipe_and_settings(tmp_path):
    recipe = tmp_path / "own.toml"
    recipe.write_text('model = "a/b"\nenv.id = "x:Y-v0"\n[prompt]\ntemplate = "{state}!"\nexamples = 2\n')
    assert load_config(str(recipe)).model.path == "a/b"
    taken = load_prompt([str(recipe), "chat=false", 'stop=["\\n"]'])
    assert (taken.template, taken.examples, taken.chat, taken.stop) == ("{state}!", 2, False, ["\n"])
    assert load_prompt(["kind=conversation", "examples=[{user='a', assistant='b'}]"]).examples[0].assistant == "b"
    with pytest.raises(UsageError, match=r"prompt\.templates"):
        load_prompt(["templates=x"])


@pytest.mark.parametrize("env_id", ["tools:Tiny-v0", "tools:Shop-v0-easy"])
def test_examples_of_a_chat_do_not_end_with_a_call(env_id):
    for number in (1, 2):
        examples = oracle_examples(rollenv.spec(env_id), {"calls": "hermes"}, ChatPrompt(), number)
        assert len(examples) >= number
        assert "<tool_call>" in examples[0][1]
        assert "<tool_call>" not in examples[-1][1]
