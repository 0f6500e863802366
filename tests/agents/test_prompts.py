"""From observations to prompt texts."""

import pytest

from rollenv import UsageError
from rollenv.agents.prompts import StepPrompt

INFO = {"suffix": "BOARD"}


def test_the_default_has_instructions_and_state():
    text = StepPrompt().render("RULES", [], "RULES", INFO)
    assert text.count("RULES") == 1
    assert text.endswith("BOARD")
    later = StepPrompt().render("RULES", [("RULES", "up")], "You moved.", INFO)
    assert "You moved." in later
    assert "up" not in later


def test_history_is_bounded_and_ends_with_the_last_turn():
    turns = [(f"seen {i}", f"did {i}") for i in range(5)]
    text = StepPrompt("{history}", history_length=2).render("RULES", turns, "now", INFO)
    assert "did 2" not in text
    assert text.index("seen 3") < text.index("did 3") < text.index("did 4")


def test_without_a_suffix_the_observation_is_the_state():
    assert StepPrompt("{state}!").render("RULES", [], "RULES", {}) == "RULES!"


def test_an_unknown_field_is_refused():
    with pytest.raises(UsageError, match="board"):
        StepPrompt("{board}")
