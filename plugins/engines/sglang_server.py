"""SGLang servers, by their native ``/generate``, for the engine in ``vllm.py``."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import httpx

from rollenv.agents.engines.vllm import Piece, Prompt
from rollenv.agents.engines.vllm_http import HttpTransport, spans_of
from rollenv.core.errors import UsageError


class SGLangTransport(HttpTransport):
    """Calls an SGLang server (newer than 0.5.23), started with :attr:`start`.

    It is vLLM's transport with other paths: weights are loaded from a shared folder. Meanwhile
    running requests are retracted, and their tokens are computed again afterwards. Adapters are
    merged. Seeds take effect if the server runs with ``--enable-deterministic-inference``.
    """

    kind, takes_pictures, rank_hint = "SGLang", False, "set player.lora=merged"
    start = "python -m sglang.launch_server --model-path MODEL --incremental-streaming-output"
    sample_path, resume_path, weights_path = "/generate", "/continue_generation", "/model_info"
    sleep_hint = "leave out player.sleep"
    versioning = {"abort_all_requests": False}

    def look(self, client: httpx.Client) -> int:
        """Load the model's folder; return the maximum length of a prompt and its response."""
        about = self.about(client, "/server_info")
        self._pieces_differ = bool(about.get("incremental_streaming_output"))
        if self.model is not None:
            paused = client.post(f"{self.url}/pause_generation", json={"mode": "retract"})
            paused.raise_for_status()
            self.load(client, "/update_weights_from_disk", {"model_path": str(self.model)})
        return int(about["max_req_input_len"])

    async def pause(self) -> None:
        await self.post("/pause_generation", {"mode": "retract"})

    async def read_folder(self) -> None:
        """Load the weights of the folder into the server."""
        how = {"model_path": str(self.folder), "keep_pause": True}
        await self.post("/update_weights_from_disk", how)

    async def forget(self) -> None:
        """Do nothing: the server clears its cache when weights change."""

    async def pieces(self, prompt: Prompt, parameters: dict[str, Any]) -> AsyncGenerator[Piece]:
        """Yield the tokens of an answer as they are sampled."""
        narrows = parameters["top_p"] < 1 or parameters["top_k"] or parameters["min_p"]
        if parameters["temperature"] and narrows:
            raise UsageError(
                "SGLang reports log-probabilities before top_p, top_k and min_p, so its responses "
                "with these settings cannot be trained on: leave them out"
            )
        structure = parameters.get("structured_outputs", {})
        sampling = {
            "temperature": parameters["temperature"],
            "max_new_tokens": parameters["max_tokens"],
            "sampling_seed": parameters["seed"] or 0,
            "stop_token_ids": parameters["stop_token_ids"],
            "no_stop_trim": True,
        }
        for ours, theirs in (("json", "json_schema"), ("grammar", "ebnf")):
            if ours in structure:
                sampling[theirs] = structure[ours]
        body = {"input_ids": prompt.tokens, "sampling_params": sampling}
        have = 0
        async for event in self.events(body | {"return_logprob": True, "stream": True}):
            about = event["meta_info"]
            ids, rows = event["output_ids"][have:], about["output_token_logprobs"][have:]
            if [token for _, token, *_ in rows] != ids:
                raise ValueError(f"log-probabilities {rows!r:.60} are not of the tokens {ids!r:.60}")
            have += 0 if self._pieces_differ else len(ids)
            finish = (about["finish_reason"] or {}).get("type")
            spans = about.get("weight_versions") if finish else ()
            yield Piece(ids, [logprob for logprob, *_ in rows], finish, spans_of(spans))
