"""An agent with its own engine, whose weights are trained elsewhere."""

from __future__ import annotations

from typing import Any

from rollenv.agents.base import OwnsEngine
from rollenv.agents.prompts.session import TokenAgent


class EngineAgent(OwnsEngine, TokenAgent):
    """A :class:`TokenAgent` over an :class:`~rollenv.agents.engines.base.UpdatableEngine`."""

    engine: Any

    async def sleep(self, level: int = 1) -> None:
        """Free the engine's accelerator memory (see :class:`~rollenv.agents.engines.base.RestingEngine`)."""
        await self.engine.sleep(level)

    def close(self) -> None:
        """Close the engine, if it has ``close()``."""
        if hasattr(self.engine, "close"):
            self.engine.close()
