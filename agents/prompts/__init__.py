"""Prompts from turns: one prompt per turn, or the whole episode as a chat."""

from rollenv.agents.prompts.step import ChatPrompt, StepPrompt

__all__ = ["ChatPrompt", "StepPrompt"]
