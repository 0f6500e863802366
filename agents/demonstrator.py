"""An environment's expert that speaks through a model's prompts: its episodes have the tokens that the model reads."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rollenv.agents.base import Action, Agent, AgentFailed, EnvHandle, Session
from rollenv.agents.engines.base import Ids, Response
from rollenv.agents.local import LocalAgent
from rollenv.agents.prompts import ChatPrompt
from rollenv.agents.prompts.chat_format import ChatFormat
from rollenv.agents.prompts.conversation import Conversation
from rollenv.agents.prompts.session import TokenSession
from rollenv.core.errors import Unsolvable


class Demonstrator(Agent):
    """Plays the expert's actions, or random ones, as if the model had sampled them.

    The numbers of the turns with a random action are in the trajectory's ``record``, as ``random_turns``.

    Args:
        agent: the model, with the prompts that it reads.
        noise: the share of random actions, after which the expert has to recover.
    """

    def __init__(self, agent: LocalAgent, noise: float = 0.0):
        self.agent, self.noise = agent, noise

    def start(self, env: EnvHandle, seed: int) -> Session:
        return _Demonstration(self.agent, self.agent.start(env, seed), env, self.noise, random.Random(seed))


@dataclass(slots=True)
class _Demonstration(Session):
    agent: LocalAgent
    inner: TokenSession
    env: EnvHandle
    noise: float
    rng: random.Random
    turn: int = 0
    random_turns: list[int] = field(default_factory=list)

    async def act(self, observation: str, info: dict[str, Any]) -> Action:
        prompt = self.inner.ask(observation, info)
        if not self.turn and self.noise:
            await self.env.call("seed_actions", self.rng.getrandbits(32))
        if self.noise and self.rng.random() < self.noise:
            action = await self.env.call("sample_random_action")
            self.random_turns.append(self.turn)
        else:
            try:
                action = await self.env.call("oracle_action")
            except Unsolvable as error:
                raise AgentFailed(f"the expert cannot solve this task: {error}") from error
        self.turn += 1
        ids = spoken_ids(self.agent, action, self.inner.play if isinstance(self.inner.play, Conversation) else None)
        return self.inner.take(observation, prompt, Response([*ids], [0.0] * len(ids)))

    def record(self) -> Mapping[str, Any]:
        return {"random_turns": self.random_turns} if self.noise else {}

    def close(self) -> None:
        self.inner.close()


def spoken_ids(agent: LocalAgent, text: str, chat: Conversation | None = None) -> Ids:
    """Return the tokens that a model has to sample to say a text, with its stop token.

    Args:
        chat: the conversation that it is said in; None for a prompt without history.
    """
    if agent.tokenizer.chat_template and (isinstance(agent.prompt, ChatPrompt) or agent.prompt.chat):
        form = chat.format if chat else ChatFormat.from_settings(agent.tokenizer, agent.prompt.template_args)
        frame = chat.frame if chat else form.frame()
        return frame.answer_ids(form.message("assistant", text))
    ids = tuple(agent.tokenizer.encode(text, add_special_tokens=False))
    return ids if agent.sampling.max_new_tokens == 1 else (*ids, agent.tokenizer.eos_token_id)
