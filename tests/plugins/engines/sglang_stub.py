"""An SGLang server as far as its native endpoints go: names, types and answers are those of version 0.5.23's source.

It draws with a real model, so that what it says can be trained on; the weights come from the folders that it is told.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

#: The keys of each request, from ``srt/managers/io_struct.py`` and ``srt/sampling/sampling_params.py``; those that
#: are of other kinds of requests (pictures, adapters, disaggregation) are left out.
KEYS = {
    "/generate": {"rid", "input_ids", "sampling_params", "return_logprob", "logprob_start_len", "stream"},
    "sampling_params": {
        *("max_new_tokens", "stop_token_ids", "temperature", "top_p", "top_k", "min_p", "ignore_eos"),
        *("skip_special_tokens", "no_stop_trim", "sampling_seed", "n", "json_schema", "ebnf"),
    },
    "/update_weights_from_disk": {"model_path", "load_format", "weight_version", "keep_pause", "flush_cache"},
    "/pause_generation": {"mode"},
    "/continue_generation": {"torch_empty_cache"},
    "/update_weight_version": {"new_version", "abort_all_requests"},
}


class SGLangStub:
    """The server; ``url`` is where, ``asked`` what it was asked."""

    def __init__(self, incremental=True, context=200, finish=None):
        self.incremental, self.context, self.finish = incremental, context, finish
        self.model, self.version, self.asked = None, "default", []
        self.going, self.lock = threading.Event(), threading.Lock()
        self.going.set()
        self.drawn = threading.Event()
        """Set when a response has its first token."""
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"stub": self}))
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.going.set()
        self.server.shutdown()
        self.server.server_close()

    def load(self, folder):
        """``/update_weights_from_disk``: the first folder is a model's, later ones have weights alone."""
        with self.lock:
            if self.model is None:
                self.model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()
            else:
                self.model.load_state_dict(load_file(Path(folder) / "model.safetensors"), strict=False)

    def pieces(self, body):
        """What ``/generate`` streams."""
        given, settings = body["input_ids"], body["sampling_params"]
        torch_rng = torch.Generator().manual_seed(settings["sampling_seed"] % 2**31)
        ids, logprobs, spans = [], [], []
        while True:
            self.going.wait()
            with self.lock, torch.no_grad():
                logits = self.model(torch.tensor([given + ids])).logits[0, -1].float()
                logprob = torch.log_softmax(logits / (settings["temperature"] or 1.0), -1)
                token = int(torch.multinomial(logprob.exp(), 1, generator=torch_rng))
                token = token if settings["temperature"] else int(logits.argmax())
                if not spans or spans[-1]["version"] != self.version:
                    spans.append({"version": self.version, "start": len(ids), "end": 0})
            ids, logprobs = [*ids, token], [*logprobs, [float(logprob[token]), token, None]]
            spans[-1]["end"] = len(ids)
            end = {"type": "stop", "matched": token} if token in settings["stop_token_ids"] else None
            end = end or ({"type": "length", "length": len(ids)} if len(ids) == settings["max_new_tokens"] else None)
            end = end or (self.finish and {"type": self.finish, "message": "gone"})
            about = {"id": "1", "finish_reason": end, "weight_version": self.version, "weight_versions": spans}
            shown = slice(-1 if self.incremental else 0, None)
            yield {
                "text": None,
                "output_ids": ids[shown],
                "meta_info": about | {"output_token_logprobs": logprobs[shown]},
            }
            self.drawn.set()
            if end:
                return


class _Handler(BaseHTTPRequestHandler):
    stub: SGLangStub

    def log_message(self, *_):
        pass

    def do_GET(self):
        stub = self.stub
        if self.path == "/server_info":
            told = {"max_req_input_len": stub.context, "incremental_streaming_output": stub.incremental}
            self.answer(200, told | {"version": "0.5.23"})
        elif self.path == "/model_info":
            self.answer(200, {"model_path": "model", "weight_version": stub.version})
        else:
            self.answer(200 if self.path == "/health" else 404, {})

    def do_POST(self):
        stub, body = self.stub, json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        stub.asked.append((self.path, body))
        unknown = body.keys() - KEYS.get(self.path, set())
        unknown |= body.get("sampling_params", {}).keys() - KEYS["sampling_params"]
        if unknown or self.path not in KEYS:
            self.answer(400, {"error": {"message": f"{self.path} has no {unknown}", "code": 400}})
        elif self.path == "/generate":
            self.send_response(200)
            self.end_headers()
            for piece in stub.pieces(body):
                self.wfile.write(b"data: " + json.dumps(piece).encode() + b"\n\n")
            self.wfile.write(b"data: [DONE]\n\n")
        else:
            self.control(body)

    def control(self, body):
        stub = self.stub
        if self.path == "/pause_generation":
            assert body["mode"] in ("abort", "retract", "in_place")
            stub.going.clear()
        elif self.path == "/continue_generation":
            stub.going.set()
        elif self.path == "/update_weight_version":
            stub.version = body["new_version"]
        elif stub.going.is_set():
            self.answer(400, {"success": False, "message": "requests are still running or queued"})
            return
        else:
            try:
                stub.load(body["model_path"])
            except OSError as error:
                self.answer(400, {"success": False, "message": str(error), "num_paused_requests": 0})
                return
        self.answer(200, {"success": True, "message": "done"})

    def answer(self, status, told):
        data = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
