"""SGLang as the player of a recipe."""

from __future__ import annotations

from typing import Any, Literal

from rollenv.trainers.config.player import ServerPlayer


class SglangPlayer(ServerPlayer):
    """SGLang servers. They get the trainer's weights after every update, through the run folder."""

    kind: Literal["sglang"] = "sglang"

    def transport(self) -> Any:
        from rollenv.plugins.engines.sglang_server import SGLangTransport  # not above: it needs torch

        return SGLangTransport
