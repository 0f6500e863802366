"""An agent that runs a Hugging Face causal language model in this process."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollenv.agents.base import Action
from rollenv.agents.prompts import StepPrompt
from rollenv.core import Env, MissingExtra, UsageError

try:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.cache_utils import DynamicCache
except ImportError as error:
    raise MissingExtra(f"local models need the train extra: pip install 'rollenv[train]' ({error})") from error

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

#: Saved beside the weights, so that an evaluation prompts a model the way it was trained.
AGENT_FILE = "rollenv_agent.json"

#: Prompts and responses whose tokenisation is remembered; small environments repeat themselves.
_REMEMBERED = 1 << 16


@dataclass(frozen=True)
class Sampling:
    """How responses are drawn. ``temperature`` 0 takes the likeliest token."""

    temperature: float = 1.0
    max_new_tokens: int = 64


class LocalAgent:
    """Plays with a causal language model, one self-contained prompt a turn.

    Requests of all sessions that are waiting at the same time are answered in one batch, and equal prompts are computed
    once. Token ids and log-probabilities are those that the model drew; nothing is tokenised a second time.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        prompt: StepPrompt | None = None,
        sampling: Sampling | None = None,
    ):
        self.model, self.tokenizer = model, tokenizer
        self.prompt = prompt or StepPrompt()
        self.sampling = sampling or Sampling()
        self.version = 0
        self.engine = Engine(model, stop_ids(tokenizer))
        self._ids: dict[str, tuple[int, ...]] = {}
        self._texts: dict[tuple[int, ...], str] = {}

    @classmethod
    def load(cls, path: str | Path, **sampling: Any) -> LocalAgent:
        """Load a model folder or hub name, and the prompt format saved beside it; ``sampling`` overrides the saved.

        Raises:
            UsageError: if the folder holds no model.
        """
        agent_file = Path(path) / AGENT_FILE
        saved = json.loads(agent_file.read_text()) if agent_file.exists() else {}
        if not Path(path).exists() and str(path).count("/") != 1:
            raise UsageError(f"cannot load a model: there is no folder {str(path)!r}, and a hub name reads OWNER/NAME")
        try:
            model = AutoModelForCausalLM.from_pretrained(path, dtype="auto")
            tokenizer = AutoTokenizer.from_pretrained(path)
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot load a model from {str(path)!r}: {error}") from error
        device = "cuda" if torch.cuda.is_available() else "cpu"
        prompt = StepPrompt(**saved.get("prompt", {}))
        return cls(model.to(device), tokenizer, prompt, Sampling(**{**saved.get("sampling", {}), **sampling}))

    def save(self, path: str | Path) -> None:
        """Write weights, tokenizer and prompt format, so that transformers, vLLM and :meth:`load` find them."""
        self.model.save_pretrained(path)
        self.tokenizer.save_pretrained(path)
        about = {"prompt": dataclasses.asdict(self.prompt), "sampling": dataclasses.asdict(self.sampling)}
        Path(path, AGENT_FILE).write_text(json.dumps(about, indent=2) + "\n")

    def weights_changed(self) -> None:
        """Tell the agent that its model was trained: what was computed before no longer holds."""
        self.version += 1
        self.engine.forget()

    def start(self, env: Env, seed: int) -> LocalSession:
        return LocalSession(self, random.Random(seed))

    def encode(self, text: str) -> tuple[int, ...]:
        """The token ids of a prompt text."""
        ids = self._ids.get(text)
        if ids is None:
            if len(self._ids) >= _REMEMBERED:
                self._ids.clear()
            ids = self._ids[text] = tuple(self._encode(text))
        return ids

    def _encode(self, text: str) -> Sequence[int]:
        if self.prompt.chat and self.tokenizer.chat_template:
            message = [{"role": "user", "content": text}]
            text = self.tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def decode(self, ids: tuple[int, ...]) -> str:
        """The text of a response."""
        text = self._texts.get(ids)
        if text is None:
            if len(self._texts) >= _REMEMBERED:
                self._texts.clear()
            text = self._texts[ids] = self.tokenizer.decode(ids, skip_special_tokens=True)
        return text


@dataclass(slots=True)
class LocalSession:
    """One episode of a :class:`LocalAgent`."""

    agent: LocalAgent
    rng: random.Random
    instructions: str | None = None
    turns: list[tuple[str, str]] = field(default_factory=list)

    async def act(self, observation: str, info: dict[str, Any]) -> Action:
        agent = self.agent
        if self.instructions is None:
            self.instructions = observation
        text = agent.prompt.render(self.instructions, self.turns, observation, info)
        prompt_ids = agent.encode(text)
        response = await agent.engine.generate(prompt_ids, agent.sampling, self.rng.random)
        ids = tuple(response.ids)
        said = agent.decode(ids)
        if agent.prompt.history_length:
            self.turns.append((observation, said))
        return Action(said, prompt_ids, ids, tuple(response.logprobs), agent.version)


def stop_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """The tokens that end a response."""
    return frozenset(i for i in (tokenizer.eos_token_id, tokenizer.pad_token_id) if i is not None)


@dataclass(slots=True)
class Request:
    """A prompt waiting for its response. ``draw`` gives the uniform number that each token is drawn with."""

    prompt: tuple[int, ...]
    sampling: Sampling
    draw: Callable[[], float]
    future: asyncio.Future[None]
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class Engine:
    """Batched sampling. Requests made while the event loop is busy wait until it has nothing else to do."""

    def __init__(self, model: PreTrainedModel, stop: frozenset[int], max_batch_tokens: int = 1 << 16):
        self.model, self.stop, self.max_batch_tokens = model, stop, max_batch_tokens
        self._waiting: list[Request] = []
        self._known = Distributions(model.config.vocab_size)

    def forget(self) -> None:
        """Drop what was computed with earlier weights; call it whenever they change."""
        self._known.clear()

    async def generate(self, prompt: tuple[int, ...], sampling: Sampling, draw: Callable[[], float]) -> Request:
        """Draw a response; it is in the ``ids`` and ``logprobs`` of what is returned."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._flush)
        request = Request(prompt, sampling, draw, loop.create_future())
        self._waiting.append(request)
        await request.future
        return request

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for batch in self._batches([r for r in waiting if not r.future.cancelled()]):
            try:
                self._answer(batch)
                failure = None
            except Exception as error:
                failure = error
            for request in batch:
                if request.future.done():  # cancelled meanwhile, by Ctrl-C
                    continue
                if failure:
                    request.future.set_exception(failure)
                else:
                    request.future.set_result(None)

    def _batches(self, requests: list[Request]) -> list[list[Request]]:
        """Requests with equal sampling and prompts of similar length, at most ``max_batch_tokens`` when padded."""
        batches: list[list[Request]] = []
        for request in sorted(
            requests, key=lambda r: (r.sampling.temperature, r.sampling.max_new_tokens, len(r.prompt))
        ):
            last = batches[-1] if batches else None
            room = len(request.prompt) + request.sampling.max_new_tokens
            if last and last[0].sampling == request.sampling and room * (len(last) + 1) <= self.max_batch_tokens:
                last.append(request)
            else:
                batches.append([request])
        return batches

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def _answer(self, batch: list[Request]) -> None:
        if batch[0].sampling.max_new_tokens == 1:
            return self._answer_one_token(batch)
        where: dict[tuple[int, ...], int] = {}
        rows = [where.setdefault(r.prompt, len(where)) for r in batch]
        cache = DynamicCache(config=self.model.config)
        logits, mask = self._prefill(list(where), cache)
        index = torch.tensor(rows, device=logits.device)
        cache.batch_select_indices(index)
        mask, tokens = mask[index], self._draw(batch, logits[index])
        for _ in range(batch[0].sampling.max_new_tokens - 1):
            active = [i for i, r in enumerate(batch) if r.ids[-1] not in self.stop]
            if not active:
                break
            if len(active) < len(batch):
                keep = torch.tensor(active, device=logits.device)
                cache.batch_select_indices(keep)
                batch, mask, tokens = [batch[i] for i in active], mask[keep], tokens[keep]
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
            out = self.model(
                input_ids=tokens[:, None],
                attention_mask=mask,
                position_ids=mask.sum(1, keepdim=True) - 1,
                past_key_values=cache,
                use_cache=True,
            )
            tokens = self._draw(batch, out.logits[:, -1])

    def _answer_one_token(self, batch: list[Request]) -> None:
        """Responses of one token need no cache of keys and values: the distributions themselves are remembered."""
        new = list(dict.fromkeys(r.prompt for r in batch if r.prompt not in self._known))
        if new:
            self._known.add(new, self._prefill(new, None)[0])
        self._draw(batch, self._known.look_up([r.prompt for r in batch]))

    def _prefill(self, prompts: list[tuple[int, ...]], cache: DynamicCache | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits (prompts, vocabulary) of the first response token, and the attention mask (prompts, longest)."""
        ids, mask = pad_left(prompts, self.model.device)
        out = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions(mask, ids.shape[1], ids.device),
            past_key_values=cache,
            use_cache=cache is not None,
            logits_to_keep=1,
        )
        return out.logits[:, -1], torch.ones_like(ids) if mask is None else mask

    def _draw(self, batch: list[Request], logits: torch.Tensor) -> torch.Tensor:
        """Append a token to every request; ``logits`` has the shape (requests, vocabulary)."""
        temperature = batch[0].sampling.temperature
        logprobs = (logits.float() / (temperature or 1.0)).log_softmax(-1)
        if temperature:
            cumulative = logprobs.exp().cumsum(-1)
            draws = torch.tensor([r.draw() for r in batch], device=logits.device)[:, None] * cumulative[:, -1:]
            tokens = torch.searchsorted(cumulative, draws, right=True)[:, 0].clamp_(max=logits.shape[-1] - 1)
        else:
            tokens = logprobs.argmax(-1)
        chosen = logprobs.gather(1, tokens[:, None])[:, 0]
        for request, token, logprob in zip(batch, tokens.tolist(), chosen.tolist(), strict=True):
            request.ids.append(token)
            request.logprobs.append(logprob)
        return tokens


class Distributions:
    """Next-token logits of prompts that were computed since the weights last changed, within a bound on memory."""

    def __init__(self, vocabulary: int, max_elements: int = 1 << 24):
        self.capacity = max_elements // vocabulary
        self._row: dict[tuple[int, ...], int] = {}
        self._logits: list[torch.Tensor] = []

    def __contains__(self, prompt: tuple[int, ...]) -> bool:
        return prompt in self._row

    def add(self, prompts: list[tuple[int, ...]], logits: torch.Tensor) -> None:
        """Remember ``logits`` (prompts, vocabulary)."""
        for prompt in prompts:
            self._row[prompt] = len(self._row)
        self._logits.append(logits)

    def look_up(self, prompts: list[tuple[int, ...]]) -> torch.Tensor:
        """The logits of known prompts, in their order; may forget all of them afterwards to stay within bounds."""
        table = self._logits[0] if len(self._logits) == 1 else torch.cat(self._logits)
        self._logits = [table]
        found = table[torch.tensor([self._row[p] for p in prompts], device=table.device)]
        if len(self._row) > self.capacity:
            self.clear()
        return found

    def clear(self) -> None:
        """Forget everything."""
        self._row.clear()
        self._logits.clear()


def pad_left(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Token ids (rows, longest) with zeros in front of shorter rows, and the attention mask (None without padding)."""
    longest = max(map(len, rows))
    if all(len(row) == longest for row in rows):
        return torch.tensor(rows, device=device), None
    ids = torch.tensor([[0] * (longest - len(row)) + list(row) for row in rows], device=device)
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows], device=device)
    return ids, mask


def positions(mask: torch.Tensor | None, length: int, device: torch.device) -> torch.Tensor:
    """Position ids that count from 0 at each row's first real token."""
    if mask is None:
        return torch.arange(length, device=device)[None]
    return (mask.cumsum(1) - 1).clamp_(min=0)
