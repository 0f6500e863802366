"""An engine that samples with a vLLM server: tokens in, tokens out, over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import random
import secrets
import shutil
import tempfile
import weakref
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import httpx

from rollenv.agents.engines.base import (
    SLEEPERS,
    Decode,
    EngineFailed,
    EngineLost,
    Ids,
    Response,
    Sampling,
    TokenCounts,
    check_base,
    ends_with_stop,
    room_for,
    versions_of,
)
from rollenv.core.errors import UsageError
from rollenv.core.needs import extra
from rollenv.core.pictures import is_picture_token
from rollenv.core.proxies import without_proxy

with extra("train", "Playing with a vLLM server"):
    from rollenv.agents.engines.adapters import Adapter, save_weights, saved_weights

if TYPE_CHECKING:
    import torch

    from rollenv.agents.engines.vllm_transfer import Transfer

logger = logging.getLogger(__name__)

#: The command that starts a server for training.
START = (
    "VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --enable-scale-out --logprobs-mode processed_logprobs "
    "--generation-config vllm"
)


#: Errors if a server does not respond, or responds unlike vLLM.
_NO_ANSWER = (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError, TypeError, AttributeError)

#: Timeout in seconds of the first requests, in which the server loads a model.
_SLOW = 600.0


@dataclass(slots=True, eq=False)
class _Request:
    """A prompt and its response so far."""

    prompt: Ids
    sampling: Sampling
    limit: int
    rng: random.Random
    response: Response = field(default_factory=Response)
    stream: asyncio.Task[bool] | None = None


class ServerEngine:
    """Samples with a vLLM server (0.32 or later), started with :data:`START`.

    Responses are read token by token, so that tokens before a failure are not lost. New weights are written to a shared
    folder, or sent by vLLM's own API if the server has a ``--weight-transfer-config``. vLLM pauses running requests
    while weights change (its pause mode "keep"); then their keys and values are computed again.

    An adapter is loaded under a new name for every update if the server runs with ``--enable-lora`` and
    ``VLLM_ALLOW_RUNTIME_LORA_UPDATING=1``; running requests continue with the newest, so ``--max-loras 1`` is enough.
    Other servers get the weights with the adapter merged.

    Args:
        model: the folder of the saved model, which the server loads at the start.
        folder: folder for weights and adapters, on a file system that the server shares; by default a temporary one.
        patience: seconds to wait for a server that does not respond.
    """

    kind, start = "vLLM", START
    sample_path, resume_path, weights_path = "/inference/v1/generate", "/resume", "/weight_info"
    """Paths that sample, end a pause, and return the version of the weights."""
    _versioning: ClassVar[dict[str, Any]] = {}

    def __init__(
        self,
        url: str,
        stop: frozenset[int],
        *,
        model: str | Path = "",
        decode: Decode | None = None,
        folder: str | Path = "",
        patience: float = 20.0,
        key: str = "",
    ):
        self.url, self.stop, self._decode = url.rstrip("/"), stop, decode
        self.model, self.patience = Path(model).absolute() if model else None, patience
        self._name = f"rollenv-{secrets.token_hex(4)}"  # adapters of an earlier run may still be on the server
        self._temporary = not folder
        self.folder = Path(folder or Path(tempfile.gettempdir()) / f"rollenv-weights-{secrets.token_hex(8)}").absolute()
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient]
        self._clients = weakref.WeakKeyDictionary()
        self._live: list[_Request] = []
        self._adapter, self._updates = "", 0
        self.version, self._server_version, self._failure = 0, -1, ""
        self._suspended, self._lost_weights = False, False
        self._asleep: list[str] = []
        self.stats = TokenCounts()
        self._can_sleep, self._rank, self.on_cpu = False, 0, False
        self.transfer: Transfer | None = None
        self.max_context = self._first_look()

    # -- what sessions call ------------------------------------------------------------------------------------------

    async def generate(self, prompt: Ids, sampling: Sampling, rng: random.Random, *, session: int = -1) -> Response:
        """Sample a response (see :class:`rollenv.agents.engines.base.Engine`)."""
        prompt, limit = room_for(prompt, sampling, self.max_context, decodes=self._decode is not None)
        if any(map(is_picture_token, prompt)):
            raise UsageError(
                f"a {self.kind} server takes no pictures beside token ids: play it as an endpoint (chat:MODEL), or the "
                "model in this process (local:MODEL, vllm:MODEL)"
            )
        request = _Request(prompt, sampling, limit, random.Random(rng.getrandbits(48)))
        self._live.append(request)
        try:
            while not await self._until_moved(request):
                pass
        finally:
            self._live.remove(request)
        return request.response

    def release(self, session: int) -> None:
        """Do nothing: vLLM's prefix cache drops the least recently used entries."""

    @property
    def active(self) -> int:
        """Number of waiting or running requests."""
        return len(self._live)

    def close(self) -> None:
        """Resume the server, unload its adapter and remove the files for it."""
        with contextlib.suppress(httpx.HTTPError), self._blocking(self.patience) as client:
            if self._adapter:
                client.post(f"{self.url}/v1/unload_lora_adapter", json={"lora_name": self._adapter})
            client.post(self.url + self.resume_path, json={})
        (self.folder / "model.safetensors").unlink(missing_ok=True)
        shutil.rmtree(self.folder if self._temporary else self.folder / self._name, ignore_errors=True)
        self._adapter = ""

    # -- new weights -------------------------------------------------------------------------------------------------

    async def suspend(self) -> None:
        """Pause all requests of the server; new ones wait."""
        await self._post("/pause?mode=keep&clear_cache=false")
        self._suspended = True

    async def update_weights(self, weights: Iterable[tuple[str, torch.Tensor]] | Adapter | None = None) -> None:
        """Send all weights of the model, by their names in transformers, or an adapter."""
        if weights is None:
            raise UsageError(
                f"{self.kind} keeps its own model: pass the trained model's named weights to update_weights()"
            )
        adapter = weights if isinstance(weights, Adapter) and self._rank else None
        if adapter:
            check_base(self._lost_weights)
            self.check_rank(max([adapter.config["r"], *(adapter.config.get("rank_pattern") or {}).values()]))
        was_running = not self._suspended
        await self.suspend()
        if "weights" in self._asleep:
            await self._wake_up("weights")
        self._updates += 1
        if adapter:
            await self._adapt(adapter)
        else:
            await self._reload(weights)
        self._lost_weights = False
        await self._forget()
        self.version, self._failure = self.version + 1, ""
        if was_running:
            await self.resume()

    async def resume(self) -> None:
        """Resume the server; unfinished responses continue after their tokens."""
        if self._lost_weights:
            raise UsageError("vLLM lost its weights in a sleep of level 2: call update_weights() before resume()")
        for part in tuple(self._asleep):
            await self._wake_up(part)
        await self._send_version()
        await self._post(self.resume_path, {})
        self._suspended = False

    async def sleep(self, level: int = 1) -> None:
        """Free the server's accelerator memory (see :class:`rollenv.agents.engines.base.RestingEngine`)."""
        self.check_sleep()
        await self._post(f"/sleep?level={level}&mode=keep")
        self._suspended, self._asleep, self._lost_weights = True, list(SLEEPERS), level == 2

    async def _wake_up(self, part: str) -> None:
        """Allocate the memory of a part again, once: vLLM fails on memory that it has already."""
        await self._post(f"/wake_up?tags={part}")
        self._asleep.remove(part)

    def check_sleep(self) -> None:
        """Raise UsageError if the server cannot :meth:`sleep`."""
        if not self._can_sleep:
            raise UsageError(f"the vLLM server at {self.url} cannot sleep: start it with --enable-sleep-mode, on a GPU")

    def check_rank(self, rank: int) -> None:
        """Raise UsageError if the server does not support adapters of a rank."""
        if self._rank < rank:
            raise UsageError(
                f"the vLLM server at {self.url} plays no adapters of rank {rank}: start it with "
                f"VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, --enable-lora and a --max-lora-rank of {rank} or more, or send "
                "merged weights (player.lora=merged)"
            )

    async def _reload(self, weights: Iterable[tuple[str, torch.Tensor]] | Adapter) -> None:
        if isinstance(weights, Adapter):
            if self.model is None:
                raise UsageError("an adapter can be merged with a saved model only: pass model=FOLDER")
            weights = weights.merged(saved_weights(self.model))
        if self.transfer is not None:
            await asyncio.to_thread(self.transfer.send, list(weights))
        else:
            self._make_folder()
            await asyncio.to_thread(save_weights, weights, self.folder / "model.safetensors")
            await self._read_folder()
        await self._play_as("")

    def _make_folder(self) -> None:
        self.folder.mkdir(0o700 if self._temporary else 0o777, parents=True, exist_ok=True)

    async def _forget(self) -> None:
        """Clear the server's cache, and recompute keys and values of running requests."""
        await self._post("/reset_prefix_cache?reset_running_requests=true")

    async def _read_folder(self) -> None:
        """Load the weights of the folder into the server."""
        await self._post("/collective_rpc", _reload_from(self.folder))

    async def _adapt(self, adapter: Adapter) -> None:
        if self.model is not None and await self._label() != str(self._server_version):  # it may have been restarted
            await self._post("/collective_rpc", _reload_from(self.model))
        self._make_folder()
        name, folder = f"{self._name}-{self._updates}", self.folder / self._name / str(self._updates)
        await asyncio.to_thread(adapter.save, folder)
        await self._post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})
        await self._play_as(name)
        for older in sorted(folder.parent.iterdir(), key=lambda path: int(path.name))[:-2]:
            shutil.rmtree(older)  # a request that is just ending may still need the last but one

    async def _play_as(self, adapter: str) -> None:
        """Set or remove the adapter, and send running requests again, since vLLM does not change their adapter."""
        before, self._adapter = self._adapter, adapter
        if before == adapter:
            return
        for request in self._live:
            if request.stream is not None:
                request.stream.cancel()
        if before:
            with contextlib.suppress(UsageError):  # a restarted server does not have it
                await self._post("/v1/unload_lora_adapter", {"lora_name": before})

    # -- requests ----------------------------------------------------------------------------------------------------

    async def _until_moved(self, request: _Request) -> bool:
        """Sample until the response is complete; return False if the request must be sent again."""
        request.stream = stream = asyncio.ensure_future(self._draw(request))
        try:
            await asyncio.wait({stream})
        except asyncio.CancelledError:
            stream.cancel()
            raise
        return not stream.cancelled() and stream.result()

    async def _draw(self, request: _Request) -> bool:
        await self._check_server()
        if request.sampling.structured:
            request.response = Response()
        sent = len(request.response.ids)
        try:
            async for choice in self._choices(self._body(request)):
                if self._take(request, choice, sent):
                    return True
        except _NO_ANSWER as error:
            self._failure = f"{type(error).__name__}: {error}".rstrip(": ")
        why = self._failure or "it ended a response before its end"
        raise EngineFailed(f"the {self.kind} server at {self.url} failed: {why}", request.response)

    def _take(self, request: _Request, choice: dict[str, Any], sent: int) -> bool:
        """Add the tokens of a piece; return whether the response is complete."""
        response, (ids, logprobs) = request.response, _tokens(choice)
        self.stats.prompted += 0 if response.ids else len(request.prompt)
        self.stats.drawn += len(ids)
        response.ids += ids
        response.logprobs += logprobs
        response.versions += [self.version] * len(ids)
        spans = choice.get("weight_versions")  # sent with the last tokens, for all tokens of the request
        if spans and all(span["version"].isdecimal() for span in spans):
            stretches = ((span["version"], span["start"], span["end"]) for span in spans)
            response.versions[sent:] = versions_of(stretches, len(response.ids) - sent, self.version)
        texts, finish = request.sampling.stop, choice["finish_reason"]
        at_text = bool(ids and texts and self._decode and ends_with_stop(response.ids, texts, self._decode))
        if at_text or finish in ("stop", "length"):
            response.finish = "stop" if at_text or response.ids[-1] in self.stop else "length"
            return True
        if finish:
            self._failure = f"it ended a response with {finish!r}"
        return False

    def _body(self, request: _Request) -> dict[str, Any]:
        sampling = request.sampling
        parameters: dict[str, Any] = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "max_tokens": request.limit - len(request.response.ids),
            "seed": request.rng.getrandbits(48) if sampling.temperature else None,
            "stop_token_ids": sorted(self.stop),
            "logprobs": 0,
            "detokenize": False,
        }
        if sampling.structured:
            followed = {"json": sampling.schema, "grammar": sampling.grammar}
            parameters["structured_outputs"] = {kind: text for kind, text in followed.items() if text}
        tokens = [*request.prompt, *request.response.ids]
        model = {"model": self._adapter} if self._adapter else {}
        return {"token_ids": tokens, "stream": True, "sampling_params": parameters, **model}

    async def _choices(self, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Yield the pieces of an answer as they are sampled, in vLLM's form."""
        async for piece in self._pieces(body):
            yield piece["choices"][0]

    async def _pieces(self, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        async with self._client().stream("POST", self.url + self.sample_path, json=body) as answer:
            if answer.status_code != 200:
                raise self._refusal(self.sample_path, answer.status_code, (await answer.aread()).decode())
            async for line in answer.aiter_lines():
                data = line.removeprefix("data: ")
                if data == line or data == "[DONE]":
                    continue
                piece = json.loads(data)
                if "error" in piece:
                    raise self._refusal(self.sample_path, piece["error"].get("code", 500), data)
                yield piece

    # -- the server ----------------------------------------------------------------------------------------------------

    def _first_look(self) -> int:
        """Load the model's folder into the server; return the maximum number of tokens of a prompt and its response."""
        try:
            with self._blocking(_SLOW) as client:
                max_context = self._look(client)
                client.post(self.url + self.resume_path, json={})  # the process that paused it may have died
                return max_context
        except _NO_ANSWER as error:
            raise UsageError(
                f"no {self.kind} server answers at {self.url} ({type(error).__name__}: {error}): start it as "
                f"{self.start!r}"
            ) from error

    def _look(self, client: httpx.Client) -> int:
        answer = client.get(f"{self.url}/server_info?config_format=json")
        if answer.status_code != 200:
            raise UsageError(f"the server at {self.url} cannot be trained with: start it as {START!r}")
        about: dict[str, Any] = answer.json()["vllm_config"]
        if about["model_config"].get("logprobs_mode") != "processed_logprobs":
            raise UsageError(
                f"the vLLM server at {self.url} reports log-probabilities of another distribution than it samples "
                "from: start it with --logprobs-mode processed_logprobs"
            )
        self.on_cpu = about["device_config"]["device"] == "cpu"
        if self.on_cpu and about["scheduler_config"]["enable_chunked_prefill"]:
            raise UsageError(
                f"the vLLM server at {self.url} would fail, since vLLM on CPUs does not support chunked prefill for "
                "requests with seeds: start it with --no-enable-chunked-prefill"
            )
        self._can_sleep = bool(about["model_config"].get("enable_sleep_mode"))
        self._rank = (about.get("lora_config") or {}).get("max_lora_rank", 0)
        if self._can_sleep:
            client.post(f"{self.url}/wake_up")  # the process that put it to sleep may have died
        if self.model is not None:
            self._load(client, "/collective_rpc", _reload_from(self.model))
            client.post(f"{self.url}/reset_prefix_cache?reset_running_requests=true")
        self.transfer = self._transfer(about)
        return int(about["model_config"]["max_model_len"])

    def _load(self, client: httpx.Client, path: str, body: dict[str, Any]) -> None:
        """Load the model's folder."""
        loaded = client.post(self.url + path, json=body)
        if loaded.status_code != 200:
            raise UsageError(
                f"the {self.kind} server at {self.url} cannot load {self.model}: {_message(loaded.text)}. It needs a "
                "model of the same shape, in a folder that it can read"
            )

    def _blocking(self, patience: float) -> httpx.Client:
        timeout = httpx.Timeout(patience, connect=self.patience)
        return httpx.Client(headers=self._headers, timeout=timeout, mounts=without_proxy(self.url))

    def _transfer(self, about: dict[str, Any]) -> Transfer | None:
        """Create vLLM's own weight transfer, if the server was started with one."""
        backend = (about.get("weight_transfer_config") or {}).get("backend")
        if not backend:
            logger.info("weights go to the vLLM server at %s through the folder %s", self.url, self.folder)
            return None
        from rollenv.agents.engines.vllm_transfer import Transfer

        return Transfer(backend, self.url, about["parallel_config"]["world_size"])

    async def _check_server(self) -> None:
        """Wait for a server that failed, and check that it still has the weights."""
        if self._failure:
            label = await self._label()
            if label != str(self._server_version):
                raise self._lost(f"it was started again and has other weights (version {label!r})")
            self._failure = ""
        if not self._suspended:
            await self._send_version()

    async def _label(self) -> str:
        end = asyncio.get_running_loop().time() + self.patience
        while True:
            try:
                answer = await self._client().get(self.url + self.weights_path, timeout=self.patience)
                answer.raise_for_status()
                return str(answer.json()["weight_version"])
            except _NO_ANSWER:
                if asyncio.get_running_loop().time() >= end:
                    raise self._lost(self._failure) from None
                await asyncio.sleep(0.5)

    async def _send_version(self) -> None:
        """Set the version with which the server labels its tokens."""
        if self._server_version != self.version:
            version = self.version
            await self._post("/update_weight_version", {"new_version": str(version)} | self._versioning)
            self._server_version = version

    async def _post(self, path: str, body: dict[str, Any] | None = None) -> None:
        try:
            answer = await self._client().post(self.url + path, json=body)
        except httpx.HTTPError as error:
            raise self._lost(f"{path.partition('?')[0]}: {type(error).__name__}: {error}".rstrip(": ")) from error
        if answer.status_code != 200:
            raise self._refusal(path, answer.status_code, answer.text)

    def _refusal(self, path: str, status: int, text: str) -> Exception:
        why = f"the {self.kind} server at {self.url} answered {path.partition('?')[0]} with {status}: {_message(text)}"
        hint = f". Start it as {self.start!r}" if status in (401, 403, 404) else ""
        return UsageError(why + hint) if 400 <= status < 500 else EngineFailed(why)

    def _lost(self, why: str) -> EngineLost:
        self._failure = why
        return EngineLost(
            f"the {self.kind} server at {self.url} is lost: {why}. See its log, start it again as {self.start!r}, and "
            "continue the run from its last checkpoint with --resume"
        )

    def _client(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            timeout, limits = httpx.Timeout(None, connect=self.patience), httpx.Limits(max_connections=None)
            self._clients[loop] = httpx.AsyncClient(
                headers=self._headers, timeout=timeout, limits=limits, mounts=without_proxy(self.url)
            )
        return self._clients[loop]


def _reload_from(folder: Path) -> dict[str, Any]:
    return {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}


def _tokens(choice: dict[str, Any]) -> tuple[list[int], list[float]]:
    """Return the tokens of a piece of an answer, and their log-probabilities."""
    ids = list(choice["token_ids"] or ())
    logprobs = [float(token["logprob"]) for token in choice["logprobs"]["content"]] if ids else []
    if len(ids) != len(logprobs) or {*map(type, ids)} - {int} or not all(map(math.isfinite, logprobs)):
        raise ValueError(f"the log-probabilities {logprobs!r:.60} do not belong to the tokens {ids!r:.60}")
    return ids, logprobs


def _message(text: str) -> str:
    """Return the message in an error's JSON."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        data = json.loads(text)
        text = data["error"]["message"] if "error" in data else data["message"]
    return text.strip()[:300]
