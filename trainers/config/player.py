"""The settings of the player during training."""

from __future__ import annotations

import json
import warnings
from abc import abstractmethod
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import Field, SerializeAsAny, field_validator, model_validator

from rollenv.agents.gateway.tree import Kind
from rollenv.trainers.config.section import Positive, Section, union, unless

#: The largest adapter rank that vLLM supports.
MAX_LORA_RANK = 512


class LocalPlayer(Section):
    """The local engine, in this process."""

    kind: Literal["local"] = "local"
    precision: Literal["float32", "bfloat16"] = "float32"
    """The type of matrix products on a CPU. With ``bfloat16``, a copy of the weights in it draws: twice as fast on
    processors with AMX or AVX512-BF16, and log-probabilities differ from the trainer's by 0.02 on average."""

    @property
    def structure(self) -> dict[str, Any]:
        """Empty: it constrains no answers."""
        return {}


with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "Field name", UserWarning)  # pydantic's own `schema` is deprecated

    class StructuredPlayer(Section):
        """Base of the players that constrain answers."""

        schema: dict[str, Any] = Field(default_factory=dict)  # type: ignore[assignment]
        """A JSON schema that every answer follows, such as ``{ type = "object", required = ["move"] }``. Probabilities
        are then not those of the trained model: see ``rollout.top_p``."""
        grammar: str = ""
        """A grammar in EBNF that every answer follows."""

        @model_validator(mode="after")
        def _one_structure(self) -> Self:
            if self.schema and self.grammar:
                raise ValueError("answers follow a schema or a grammar, not both")
            return self

        @property
        def structure(self) -> dict[str, Any]:
            """The arguments of ``Sampling`` that constrain answers."""
            return {"schema": json.dumps(self.schema) if self.schema else "", "grammar": self.grammar}

        @property
        def context(self) -> int:
            """The longest context that the settings name; 0 for the player's default."""
            return int(getattr(self, "options", {}).get("max_model_len") or 0)


class VllmPlayer(StructuredPlayer):
    """vLLM: in this process, one in each of ``rollout.shards``, or behind servers. It gets the trainer's weights or
    adapter after every update."""

    kind: Literal["vllm"] = "vllm"
    options: dict[str, Any] = Field(default_factory=dict)
    """Arguments of ``vllm.EngineArgs``, such as ``{ gpu_memory_utilization = 0.4, max_model_len = 4096 }``."""
    url: str = ""
    """Addresses of vLLM servers, separated by commas; each needs access to the run folder."""
    patience: Positive = 20.0
    """Seconds to wait for a server that does not respond."""
    lora: Literal["adapter", "merged"] = "adapter"
    """The weights that vLLM gets if adapters are trained (``model.lora.rank``): the adapter, under a new name after
    every update, or all weights with the adapter merged."""
    sleep: Literal[0, 1, 2] = 0
    """Release of vLLM's GPU memory during updates: 0 for none; at level 1 its weights move to main memory, at level 2
    they are dropped."""

    @field_validator("options")
    @classmethod
    def _own(cls, options: dict[str, Any]) -> dict[str, Any]:
        if {"enable_lora", "max_lora_rank", "max_loras"} & options.keys():
            follow = "follow from model.lora.rank and player.lora"
            raise ValueError(f"cannot have enable_lora, max_lora_rank and max_loras, which {follow}")
        return options

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if self.url and self.options:
            raise ValueError("a server is started with its own options: give url, or options")
        return self

    def problems(self, run: Any) -> Iterator[str]:
        if run.played_rank > MAX_LORA_RANK:
            yield f"model.lora.rank is above {MAX_LORA_RANK}, vLLM's maximum; take player.lora=merged"
        if run.played_rank and self.sleep == 2:
            why = "as the base model is dropped then; take 1, or player.lora=merged"
            yield f"player.sleep cannot be 2 with player.lora=adapter, {why}"

    def unused(self, run: Any) -> dict[str, str]:
        return unless(run.model.lora.rank, "model.lora.rank above 0", "player.lora")


class HarnessConfig(Section):
    """A third-party agent that plays, with the trained model behind a gateway, in an environment with a machine."""

    name: str = ""
    """pi, mini-swe-agent, codex, claude-code and others (docs/guides/harness.md), or command:WORDS; "" for none: the
    model plays with the prompts of this recipe."""
    args: list[str] = Field(default_factory=list)
    """Additional command line arguments, such as ["--tools", "bash"]."""
    seconds: Positive = 600.0
    """Deadline of an episode; the state at that time is graded."""
    max_turns: int = Field(30, ge=1)
    """Maximum number of turns of an episode, if the harness has such a limit."""
    calls: int = Field(200, ge=1)
    """Maximum number of model calls in an episode; later calls are refused."""
    train: list[Kind] = ["main", "subagent", "compaction"]
    """The kinds of calls to train on: main, subagent, compaction, aside (titles and probes), superseded, cancelled."""

    def problems(self, run: Any) -> Iterator[str]:
        if self.name and run.model.path == "tiny":
            yield "model.path must be a model with a chat template for a harness; the tiny one has none"
        if self.name and run.rollout.shards:
            yield "harness.name needs an engine in this process, or servers: leave out rollout.shards"

    def unused(self, run: Any) -> dict[str, str]:
        return unless(self.name, "harness.name", "harness", "args", "seconds", "max_turns", "calls", "train")


class ServerPlayer(StructuredPlayer):
    """Servers of another engine: an entry point of ``rollenv.players`` with the name of its ``kind``. They get the
    trainer's weights after every update, through the run folder."""

    kind: str
    url: str = Field(min_length=1)
    """Addresses of the servers, separated by commas; each needs access to the run folder."""
    patience: Positive = 20.0
    """Seconds to wait for a server that does not respond."""

    @abstractmethod
    def transport(self) -> Any:
        """Return the subclass of ``rollenv.agents.engines.vllm_http.HttpTransport`` that calls a server."""


PLAYERS = "rollenv.players"

_Player = LocalPlayer | VllmPlayer
AnyPlayer = Annotated[
    _Player,
    Field(discriminator="kind"),
    union("player", "kind", _Player, group=PLAYERS),
    SerializeAsAny(),
]
