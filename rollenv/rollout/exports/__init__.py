"""Stored episodes as training data for rollenv and for other trainers."""

from rollenv.rollout.exports.files import EXPORTS, export, format_of

__all__ = ["EXPORTS", "export", "format_of"]
