"""vLLM behind its HTTP endpoints, for the engine in ``vllm.py``."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import shutil
import tempfile
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import httpx

from rollenv.agents.engines.base import EngineFailed, EngineLost, TokenCounts
from rollenv.agents.engines.vllm import Piece, Prompt, Take
from rollenv.core.errors import UsageError
from rollenv.core.needs import extra
from rollenv.core.proxies import without_proxy

with extra("train", "Playing with a vLLM server"):
    from rollenv.agents.engines.adapters import Adapter, save_weights

if TYPE_CHECKING:
    import torch

    from rollenv.agents.engines.vllm_transfer import Transfer

logger = logging.getLogger(__name__)

#: Errors if a server does not respond, or responds unlike vLLM.
_NO_ANSWER = (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError, TypeError, AttributeError)

#: Timeout in seconds of the first requests, in which the server loads a model.
_SLOW = 600.0


class HttpTransport:
    """Calls a vLLM server (0.32 or later), started with :attr:`start`.

    New weights are written to a shared folder, or sent by vLLM's own API if the server has a
    ``--weight-transfer-config``. Adapters are played if the server runs with ``--enable-lora`` and
    ``VLLM_ALLOW_RUNTIME_LORA_UPDATING=1``; ``--max-loras 1`` is enough.

    Args:
        model: the folder of the saved model, which the server loads at the start.
        folder: where weights and adapters are written, on a file system that the server shares; by
            default a temporary one.
        patience: seconds to wait for a server that does not respond.
    """

    kind = "vLLM"
    start = (
        "VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --enable-scale-out "
        "--logprobs-mode processed_logprobs --generation-config vllm"
    )
    rank_hint = (
        "start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, --enable-lora and a --max-lora-rank of "
        "{rank} or more, or send merged weights (player.lora=merged)"
    )
    sleep_hint = "start it with --enable-sleep-mode, on a GPU"
    takes_pictures, on_cpu, max_rank = True, False, 0
    sample_path, resume_path, weights_path = "/inference/v1/generate", "/resume", "/weight_info"
    """Paths that sample, end a pause, and return the version of the weights."""
    versioning: ClassVar[dict[str, Any]] = {}

    def __init__(self, url: str, *, model: str | Path = "", folder: str | Path = "", patience: float = 20.0):
        self.url, self.patience = url.rstrip("/"), patience
        self.name = f"the {self.kind} server at {self.url}"
        self.no_sleep = f"{self.name} cannot sleep: {self.sleep_hint}"
        self.model = Path(model).absolute() if model else None
        self._run = f"rollenv-{secrets.token_hex(8)}"  # the server may have an earlier run's adapters
        self.folder = Path(folder or Path(tempfile.gettempdir(), self._run)).absolute()
        self._mode = 0o777 if folder else 0o700
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient]
        self._clients = weakref.WeakKeyDictionary()
        self._adapter, self._adapters, self._old_adapters = "", 0, list[str]()
        self._labelled, self._failure, self.stats = "-1", "", TokenCounts()
        self.transfer: Transfer | None = None
        self.max_context = self.first_look()

    def first_look(self) -> int:
        """Make a server ready; return the maximum length of a prompt and its response."""
        try:
            with self._blocking(_SLOW) as client:
                max_context = self.look(client)
                client.post(self.url + self.resume_path, json={})  # what paused it may have died
                return max_context
        except UsageError:
            raise
        except _NO_ANSWER as error:
            why = f"no {self.kind} server answers at {self.url} ({type(error).__name__}: {error})"
            raise UsageError(f"{why}: start it as {self.start!r}") from error

    def look(self, client: httpx.Client) -> int:
        """Load the model's folder; return the maximum length of a prompt and its response."""
        about = self.about(client, "/server_info?config_format=json")["vllm_config"]
        if about["model_config"].get("logprobs_mode") != "processed_logprobs":
            raise UsageError(
                f"{self.name} reports log-probabilities of another distribution than it samples from: "
                "start it with --logprobs-mode processed_logprobs"
            )
        self.on_cpu = about["device_config"]["device"] == "cpu"
        if self.on_cpu and about["scheduler_config"]["enable_chunked_prefill"]:
            raise UsageError(
                f"{self.name} would fail, since vLLM on CPUs does not support chunked prefill for "
                "requests with seeds: start it with --no-enable-chunked-prefill"
            )
        self.max_rank = (about.get("lora_config") or {}).get("max_lora_rank", 0)
        if about["model_config"].get("enable_sleep_mode"):
            self.no_sleep = ""
            client.post(f"{self.url}/wake_up")  # the process that put it to sleep may have died
        if self.model is not None:
            self.load(client, "/collective_rpc", _reload_from(self.model))
            client.post(f"{self.url}/reset_prefix_cache?reset_running_requests=true")
        backend = (about.get("weight_transfer_config") or {}).get("backend")
        if backend:
            from rollenv.agents.engines.vllm_transfer import Transfer

            self.transfer = Transfer(backend, self.url, about["parallel_config"]["world_size"])
        else:
            logger.info("weights go to %s through the folder %s", self.name, self.folder)
        return int(about["model_config"]["max_model_len"])

    def about(self, client: httpx.Client, path: str) -> dict[str, Any]:
        """Return what the server says of itself."""
        answer = client.get(self.url + path)
        if answer.status_code != 200:
            why = f"the server at {self.url} cannot be trained with"
            raise UsageError(f"{why}: start it as {self.start!r}")
        return dict(answer.json())

    def load(self, client: httpx.Client, path: str, body: dict[str, Any]) -> None:
        """Load the model's folder."""
        loaded = client.post(self.url + path, json=body)
        if loaded.status_code != 200:
            raise UsageError(
                f"{self.name} cannot load {self.model}: {_message(loaded.text)}. It needs a model of "
                "the same shape, in a folder that it can read"
            )

    # -- requests ------------------------------------------------------------------------------------

    async def generate(self, prompt: Prompt, parameters: dict[str, Any], take: Take) -> None:
        try:
            async with contextlib.aclosing(self.pieces(prompt, parameters)) as pieces:
                async for piece in pieces:
                    if take(piece):
                        return
            self._failure = "it ended a response before its end"
        except UsageError:  # the request's own fault
            raise
        except _NO_ANSWER as error:
            self._failure = f"{type(error).__name__}: {error}".rstrip(": ")
        raise EngineFailed(f"{self.name} failed: {self._failure}")

    async def pieces(self, prompt: Prompt, parameters: dict[str, Any]) -> AsyncGenerator[Piece]:
        """Yield the tokens of an answer as they are sampled."""
        body: dict[str, Any] = {"token_ids": prompt.tokens, "stream": True, "sampling_params": parameters}
        if self._adapter:
            body["model"] = self._adapter
        if prompt.pictures:
            parts = [{"type": "image_url", "url": picture.url} for picture in prompt.pictures]
            body |= {"content_parts": parts, "return_token_ids": True}
        async for event in self.events(body):
            choice = event["choices"][0]
            ids, logprobs = choice["token_ids"] or (), choice["logprobs"] or {"content": ()}
            numbers = [token["logprob"] for token in logprobs["content"]]
            seen = len(event.get("prompt_token_ids") or ())
            spans = spans_of(choice.get("weight_versions"))
            yield Piece(ids, numbers, choice["finish_reason"], spans, seen)

    async def events(self, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Yield the events that the server streams in answer to a request."""
        async with self.client().stream("POST", self.url + self.sample_path, json=body) as answer:
            if answer.status_code != 200:
                raise self._refused(answer.status_code, (await answer.aread()).decode())
            async for line in answer.aiter_lines():
                data = line.removeprefix("data: ")
                if data == line or data == "[DONE]":
                    continue
                event = json.loads(data)
                if "error" in event:
                    raise self._refused(event["error"].get("code", 500), data)
                yield event

    def _refused(self, status: int, text: str) -> Exception:
        refusal = self._refusal(self.sample_path, status, text)
        return refusal if status == 400 else httpx.HTTPError(str(refusal))

    # -- weights -------------------------------------------------------------------------------------

    async def weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        if self.transfer is not None:
            await asyncio.to_thread(self.transfer.send, list(weights))
        else:
            self.folder.mkdir(self._mode, parents=True, exist_ok=True)
            await asyncio.to_thread(save_weights, weights, self.folder / "model.safetensors")
            await self.read_folder()
        self._play_as("")

    async def read_folder(self) -> None:
        """Load the weights of the folder into the server."""
        await self.post("/collective_rpc", _reload_from(self.folder))

    async def adapter(self, adapter: Adapter) -> None:
        if self.model is not None and await self._label_there() != self._labelled:  # a new server
            await self.post("/collective_rpc", _reload_from(self.model))
        self.folder.mkdir(self._mode, parents=True, exist_ok=True)
        self._adapters += 1
        name, folder = f"{self._run}-{self._adapters}", self.folder / self._run / str(self._adapters)
        await asyncio.to_thread(adapter.save, folder)
        await self.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})
        self._play_as(name)
        # A request that is just ending may still need the last but one.
        shutil.rmtree(folder.with_name(str(self._adapters - 2)), ignore_errors=True)

    def _play_as(self, adapter: str) -> None:
        self._old_adapters += [self._adapter] if self._adapter else []
        self._adapter, self._failure = adapter, ""

    async def forget(self) -> None:
        while self._old_adapters:
            with contextlib.suppress(UsageError):  # a restarted server does not have it
                await self.post("/v1/unload_lora_adapter", {"lora_name": self._old_adapters.pop()})
        await self.post("/reset_prefix_cache?reset_running_requests=true")

    async def label(self, version: int) -> None:
        await self.post("/update_weight_version", {"new_version": str(version)} | self.versioning)
        self._labelled = str(version)

    async def pause(self) -> None:
        await self.post("/pause?mode=keep&clear_cache=false")

    async def go_on(self) -> None:
        await self.post(self.resume_path, {})

    async def sleep(self, level: int) -> None:
        await self.post(f"/sleep?level={level}&mode=keep")

    async def wake(self, part: str) -> None:
        await self.post(f"/wake_up?tags={part}")

    # -- the server --------------------------------------------------------------------------------

    async def health(self) -> None:
        if self._failure:
            label = await self._label_there()
            if label != self._labelled:
                raise self._lost(f"it was started again and has other weights (version {label!r})")
            self._failure = ""

    async def _label_there(self) -> str:
        end = asyncio.get_running_loop().time() + self.patience
        while True:
            try:
                answer = await self.client().get(self.url + self.weights_path, timeout=self.patience)
                answer.raise_for_status()
                return str(answer.json()["weight_version"])
            except _NO_ANSWER:
                if asyncio.get_running_loop().time() >= end:
                    raise self._lost(self._failure) from None
                await asyncio.sleep(0.5)

    async def post(self, path: str, body: dict[str, Any] | None = None) -> None:
        """Call the server.

        Raises:
            UsageError, EngineFailed, EngineLost: it refuses, fails, is gone.
        """
        try:
            answer = await self.client().post(self.url + path, json=body)
        except httpx.HTTPError as error:
            why = f"{path.partition('?')[0]}: {type(error).__name__}: {error}".rstrip(": ")
            raise self._lost(why) from error
        if answer.status_code != 200:
            raise self._refusal(path, answer.status_code, answer.text)

    def _refusal(self, path: str, status: int, text: str) -> Exception:
        why = f"{self.name} answered {path.partition('?')[0]} with {status}: {_message(text)}"
        hint = f". Start it as {self.start!r}" if status in (401, 403, 404) else ""
        return UsageError(why + hint) if 400 <= status < 500 else EngineFailed(why)

    def _lost(self, why: str) -> EngineLost:
        self._failure = why
        return EngineLost(
            f"{self.name} is lost: {why}. See its log, start it again as {self.start!r}, and continue "
            "the run from its last checkpoint with --resume"
        )

    def client(self) -> httpx.AsyncClient:
        """Return the client of this event loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            self._clients[loop] = httpx.AsyncClient(
                timeout=httpx.Timeout(None, connect=self.patience),
                limits=httpx.Limits(max_connections=None),
                mounts=without_proxy(self.url),
            )
        return self._clients[loop]

    def _blocking(self, patience: float) -> httpx.Client:
        timeout = httpx.Timeout(patience, connect=self.patience)
        return httpx.Client(timeout=timeout, mounts=without_proxy(self.url))

    def close(self) -> None:
        """Resume the server, unload its adapter and remove the files for it."""
        with contextlib.suppress(httpx.HTTPError), self._blocking(self.patience) as client:
            if self._adapter:
                client.post(f"{self.url}/v1/unload_lora_adapter", json={"lora_name": self._adapter})
            client.post(self.url + self.resume_path, json={})
        (self.folder / "model.safetensors").unlink(missing_ok=True)
        shutil.rmtree(self.folder / self._run, ignore_errors=True)
        with contextlib.suppress(OSError):  # others may use it, too
            self.folder.rmdir()
        self._adapter = ""


def spans_of(spans: Iterable[dict[str, Any]] | None) -> list[tuple[str, int, int]]:
    """Return the versions of tokens: (label, begin, end)."""
    return [(span["version"], span["start"], span["end"]) for span in spans or ()]


def _reload_from(folder: Path) -> dict[str, Any]:
    return {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}


def _message(text: str) -> str:
    """Return the message in an error's JSON."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        data = json.loads(text)
        text = data["error"]["message"] if "error" in data else data["message"]
    return text.strip()[:300]
