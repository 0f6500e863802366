"""Presets: what `algorithm=NAME` sets, under what a recipe and the user set themselves."""

import pytest

from rollenv.core.errors import UsageError
from rollenv.trainers.config import load_config
from rollenv.trainers.config.presets import PRESETS, preset

NEEDS = {"opd": ["distill.path=teacher"]}


def leaves(section, prefix=""):
    for key, value in section.items():
        yield from leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else [(prefix + key, value)]


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_sets_its_settings_on_the_command_line_and_in_a_recipe(name, tmp_path):
    (recipe := tmp_path / "r.toml").write_text(f'algorithm = "{name}"\n[env]\nid = "game:Sokoban-v0-tiny"\n')
    for config in (
        load_config("sokoban", [f"algorithm={name}", *NEEDS.get(name, [])]),
        load_config(str(recipe), NEEDS.get(name, [])),
    ):
        for key, value in leaves(PRESETS[name].settings):
            section, field = config, key.split(".")
            for part in field:
                section = getattr(section, part)
            assert section == value, key
        assert load_config("sokoban").env == load_config("sokoban", [f"algorithm={name}", *NEEDS.get(name, [])]).env


def test_own_settings_come_on_top_of_a_preset(tmp_path):
    (recipe := tmp_path / "r.toml").write_text(
        'algorithm = "dapo"\n[env]\nid = "game:Sokoban-v0-tiny"\n[loss]\nclip_high = 0.4\n'
    )
    assert load_config(str(recipe)).loss.clip_high == 0.4
    assert load_config(str(recipe), ["loss.clip_high=0.5"]).loss.clip_high == 0.5
    changed = load_config(str(recipe), ["loss.cap=3.0", "algorithm=cispo"])
    assert (changed.loss.name, changed.loss.cap, changed.rollout.refill) == ("cispo", 3.0, 256)


@pytest.mark.parametrize("name", ["dapoo", "", "GRPO"])
def test_an_unknown_preset_lists_the_known_ones(name):
    with pytest.raises(UsageError, match="dapo"):
        load_config("sokoban", [f"algorithm={name}"])


def test_the_papers_spelling_is_another_name():
    assert preset("reinforce++") == preset("reinforce_pp")
