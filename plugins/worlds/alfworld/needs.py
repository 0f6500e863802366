"""The data that some ids need."""

from __future__ import annotations

from rollenv.core.needs import Ability, DataFiles

GAMES = Ability("official games of ALFWorld", "rollenv.plugins.worlds.alfworld.games:why_not")
TRIALS = DataFiles("alfred", ("train.jsonl.gz",), "https://github.com/askforalfred/alfred")
