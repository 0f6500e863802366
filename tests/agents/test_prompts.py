"""From observations to prompt texts."""

import itertools

import pytest

import rollenv
from rollenv import UsageError
from rollenv.agents.prompts.step import DEFAULT_TEMPLATE, StepPrompt

INFO = {"suffix": "BOARD"}


def test_history_is_bounded_and_ends_with_the_last_turn():
    turns = [(f"seen {i}", f"did {i}") for i in range(5)]
    text = StepPrompt("{history}", history_length=2).render("RULES", turns, "now", INFO)
    assert "did 2" not in text
    assert text.index("seen 3") < text.index("did 3") < text.index("did 4")


def test_an_unknown_field_is_refused():
    with pytest.raises(UsageError, match="board"):
        StepPrompt("{board}")


TEMPLATES = (
    "{state}",
    "{observation}",
    "{instructions}",
    "{instructions}\n{state}",
    "{observation}\n{state}",
    "{instructions}\n{observation}",
    "{history}{state}",
    "{history}{observation}\n{state}",
    "{instructions}\n{history}{state}",
    DEFAULT_TEMPLATE,
)


@pytest.mark.parametrize("template", TEMPLATES)
def test_no_template_shows_a_text_twice_or_loses_it(template):
    for length, info in itertools.product([0, 1, 9], [{}, {"suffix": "BOARD"}, {"brief": "in short"}]):
        prompt = StepPrompt(template, history_length=length)
        told, turns = ["RULES", "seen 1", "seen 2"], []
        for turn, observation in enumerate(told):
            text = prompt.render("RULES", turns, observation, info)
            shown = {each: text.count(each) for each in (*told, *info.values())}
            assert max(shown.values()) <= 1
            rest = template.replace("{history}", "")
            if info and "{state}" in rest:
                alone = rest == "{state}"
                assert shown[next(iter(info.values()))] == (alone or "suffix" in info)
            elif not info and rest != "{instructions}":
                assert shown[observation] == 1
            if "{instructions}" in template or (length > turn > 0 and "{history}" in template):
                assert shown["RULES"] == 1
            assert [f"You: did {i}" in text for i in range(turn)] == [
                "{history}" in template and turn - i <= length for i in range(turn)
            ]
            turns.append((observation, f"did {turn}"))


def test_state_that_the_observation_ends_with_is_not_repeated():
    info = {"suffix": "BOARD"}
    assert StepPrompt().render("RULES", [], "You moved.\nBOARD", info).count("BOARD") == 1
    assert StepPrompt("{state}").render("RULES", [], "You moved.\nBOARD", info) == "BOARD"


def test_a_task_in_short_is_all_that_a_template_of_the_state_shows():
    env = rollenv.make("math:Arithmetic-v0-easy", max_turns=3)
    question, info = env.reset(1)
    short = StepPrompt("{state}").render(question, [], question, info)
    assert len(short) < len(question) / 2
    assert str(eval(short.strip("= "))) in env.oracle_action()
    said, *_, info = env.step("\\boxed{-1000}")
    assert "too low" in StepPrompt("{state}").render(question, [], said, info), "later turns know what was tried"
    later = StepPrompt().render(question, [], said, info)
    assert (later.count(question), later.count("too low")) == (1, 1)
