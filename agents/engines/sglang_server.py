"""An engine that samples with an SGLang server, by its native ``/generate``: tokens in, tokens out."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import Any

import httpx

from rollenv.agents.engines.base import Ids, Response, Sampling
from rollenv.agents.engines.vllm_server import ServerEngine, _Request
from rollenv.core.errors import UsageError

#: The command that starts a server for training.
START = "python -m sglang.launch_server --model-path MODEL --incremental-streaming-output"


class SGLangEngine(ServerEngine):
    """Samples with an SGLang server (newer than 0.5.23), started with :data:`START`.

    It is a :class:`ServerEngine` with SGLang's paths: weights are loaded from a shared folder
    (``/update_weights_from_disk``). Meanwhile running requests are retracted, and their tokens are computed again
    afterwards. Adapters are merged. Seeds take effect if the server runs with ``--enable-deterministic-inference``.
    """

    kind, start = "SGLang", START
    sample_path, resume_path, weights_path = "/generate", "/continue_generation", "/model_info"
    _versioning = {"abort_all_requests": False}

    async def generate(self, prompt: Ids, sampling: Sampling, rng: random.Random, *, session: int = -1) -> Response:
        """See :meth:`ServerEngine.generate`."""
        if sampling.temperature and (sampling.top_p < 1 or sampling.top_k or sampling.min_p):
            raise UsageError(
                "SGLang reports log-probabilities before top_p, top_k and min_p, so its responses with these settings "
                "cannot be trained on: leave them out"
            )
        return await super().generate(prompt, sampling, rng, session=session)

    async def suspend(self) -> None:
        """Retract all requests of the server; new ones wait."""
        await self._post("/pause_generation", {"mode": "retract"})
        self._suspended = True

    def check_sleep(self) -> None:
        """Raise UsageError: it cannot free its memory for a trainer."""
        raise UsageError("an SGLang server does not sleep; leave out player.sleep")

    def check_rank(self, rank: int) -> None:
        """Raise UsageError for adapters, which must be merged."""
        if rank:
            raise UsageError("an SGLang server gets merged weights: set player.lora=merged")

    async def _read_folder(self) -> None:
        await self._post("/update_weights_from_disk", {"model_path": str(self.folder), "keep_pause": True})

    async def _forget(self) -> None:
        """Do nothing: the server clears its cache when weights change."""

    def _look(self, client: httpx.Client) -> int:
        answer = client.get(f"{self.url}/server_info")
        if answer.status_code != 200:
            raise UsageError(f"the server at {self.url} cannot be trained with: start it as {START!r}")
        about = answer.json()
        self._pieces_differ = bool(about.get("incremental_streaming_output"))
        if self.model is not None:
            client.post(f"{self.url}/pause_generation", json={"mode": "retract"}).raise_for_status()
            self._load(client, "/update_weights_from_disk", {"model_path": str(self.model)})
        return int(about["max_req_input_len"])

    def _body(self, request: _Request) -> dict[str, Any]:
        sampling = request.sampling
        parameters = {
            "temperature": sampling.temperature,
            "max_new_tokens": request.limit - len(request.response.ids),
            "sampling_seed": request.rng.getrandbits(48),
            "stop_token_ids": sorted(self.stop),
            "no_stop_trim": True,
        }
        if sampling.structured:
            parameters |= {"json_schema": sampling.schema} if sampling.schema else {"ebnf": sampling.grammar}
        tokens = [*request.prompt, *request.response.ids]
        return {"input_ids": tokens, "sampling_params": parameters, "return_logprob": True, "stream": True}

    async def _choices(self, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        have = 0
        async for piece in self._pieces(body):
            about = piece["meta_info"]
            ids, logprobs = piece["output_ids"][have:], about["output_token_logprobs"][have:]
            if [token for _, token, *_ in logprobs] != ids:
                raise ValueError(f"the log-probabilities {logprobs!r:.60} do not belong to the tokens {ids!r:.60}")
            have += 0 if self._pieces_differ else len(ids)
            yield {
                "token_ids": ids,
                "logprobs": {"content": [{"logprob": logprob} for logprob, *_ in logprobs]},
                "finish_reason": (about["finish_reason"] or {}).get("type"),
                "weight_versions": about.get("weight_versions") if about["finish_reason"] else None,
            }
