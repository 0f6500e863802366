"""Chat endpoints: :class:`ChatAgent` and its HTTP client."""

from rollenv.agents.chat.agent import ChatAgent
from rollenv.agents.chat.endpoint import Budget, BudgetSpent, Prices

__all__ = ["Budget", "BudgetSpent", "ChatAgent", "Prices"]
