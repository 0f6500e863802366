"""Sokoban: bitboard rules, level generator, solver and the text environment."""

from rollenv.envs.game.sokoban.env import Sokoban

__all__ = ["Sokoban"]
