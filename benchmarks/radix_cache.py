"""What finding keys and values by content is worth: groups of episodes of several turns, on four engines in one run.

All tasks share a system prompt; the members of a group share their task's text; every turn adds an answer and an
observation to the history, which is the next prompt. The answers have given lengths, so every engine draws as many
tokens. Two ways to start: all episodes at once, and so many at a time, where members of a group come after each other.

The engines are this tree's, the one of the commit ``--before`` (which kept caches by session, and computed equal
prompts once if they waited together), transformers' continuous batching and vLLM (from .bench/vllm, if it is there).
Each has a process of its own, which waits while the others play; the rounds take turns. The bound is what a cache
that forgets nothing would have to compute.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from common import ROOT, header, save, table

VLLM = ROOT / ".bench" / "vllm" / "bin" / "python"
VOCABULARY = 2048
_MARK = "\x01"

WAYS = {
    "before": "LocalEngine before, caches by session",
    "local": "LocalEngine, radix tree",
    "transformers": "transformers' continuous batching",
    "vllm": "vLLM",
}


@dataclass(frozen=True)
class Scene:
    """The workload. Lengths are in tokens."""

    tasks: int
    group_size: int
    turns: int
    at_once: int
    """Concurrent episodes."""
    system: int = 128
    shortest: int = 256
    """Minimum length of the first prompt; ``longest`` is the maximum."""
    longest: int = 1024
    answers: tuple[int, int] = (16, 64)
    observation: int = 32

    def episodes(self) -> list[Episode]:
        """Return the episodes, group by group."""
        rng = random.Random(0)
        system = words(rng, self.system)
        starts = [
            system + words(rng, rng.randint(self.shortest, self.longest) - self.system) for _ in range(self.tasks)
        ]
        return [Episode(self, starts[n // self.group_size], n) for n in range(self.tasks * self.group_size)]


@dataclass
class Episode:
    """A history of tokens that grows turn by turn."""

    scene: Scene
    history: tuple[int, ...]
    number: int
    said: list[tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=list)
    """Prompts and answers."""

    def __post_init__(self) -> None:
        self.rng = random.Random(self.number)
        self.lengths = [self.rng.randint(*self.scene.answers) for _ in range(self.scene.turns)]

    @property
    def wanted(self) -> int:
        """The length of the next answer; 0 after the last."""
        return self.lengths[len(self.said)] if len(self.said) < len(self.lengths) else 0

    def take(self, answer: Sequence[int]) -> None:
        """The answer and an observation go into the history."""
        assert len(answer) == self.wanted
        self.said.append((self.history, tuple(answer)))
        self.history += tuple(answer) + words(self.rng, self.scene.observation)


def words(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(rng.choices(range(1, VOCABULARY), k=count))


def bound(episodes: list[Episode]) -> int:
    """Tokens of prompts that nothing before them computed, neither as a prompt nor while it drew an answer."""
    seen: set[int] = set()
    computed = 0
    for episode in episodes:
        for prompt, answer in episode.said:
            prefix = 0
            for place, token in enumerate(prompt + answer[:-1]):
                prefix = hash((prefix, token))
                computed += place < len(prompt) and prefix not in seen
                seen.add(prefix)
    return computed


# -- in the process of an engine ---------------------------------------------------------------------------------------


class Player:
    """Plays a scene with a fresh cache; :meth:`play` returns how many prompt tokens went through the model."""

    def __init__(self) -> None:
        import torch
        from transformers import Qwen2Config, Qwen2ForCausalLM

        torch.set_num_threads(1)
        torch.manual_seed(0)
        config = Qwen2Config(
            vocab_size=VOCABULARY, hidden_size=256, num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=4,
            intermediate_size=768, max_position_embeddings=2048, tie_word_embeddings=True, eos_token_id=None,
            bos_token_id=None,
        )  # fmt: skip
        self.model = Qwen2ForCausalLM(config).eval()

    def play(self, episodes: list[Episode], at_once: int) -> int:
        from rollenv.agents.engines.local import LocalEngine

        engine = LocalEngine(self.model, frozenset())
        self.with_engine(engine, episodes, at_once)
        return engine.stats.computed

    def with_engine(self, engine: Any, episodes: list[Episode], at_once: int) -> None:
        from rollenv.agents.engines.base import Sampling

        left = iter(episodes)

        async def player() -> None:
            for episode in left:
                while episode.wanted:
                    sampling = Sampling(1.0, episode.wanted)
                    answer = await engine.generate(episode.history, sampling, episode.rng, session=episode.number)
                    episode.take(answer.ids)
                engine.release(episode.number)

        async def players() -> None:
            await asyncio.gather(*(player() for _ in range(at_once)))

        asyncio.run(players())

    def __call__(self, scene: Scene) -> dict[str, float]:
        episodes = scene.episodes()
        wall, processor = time.perf_counter(), time.process_time()
        computed = self.play(episodes, scene.at_once)
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
        drawn = sum(len(answer) for e in episodes for _, answer in e.said)
        prompted = sum(len(prompt) for e in episodes for prompt, _ in e.said)
        return {
            "wall": wall,
            "processor": processor,
            "computed": computed,
            "drawn": drawn,
            "prompted": prompted,
            "bound": bound(episodes),
        }


class Transformers(Player):
    """With the manager of continuous batching, which shares whole blocks of prefixes. Its start is not counted.

    Sizes are given because those that it finds for a CPU take more memory than there is.
    """

    def __call__(self, scene: Scene) -> dict[str, float]:
        from transformers import ContinuousBatchingConfig, GenerationConfig
        from transformers.generation.continuous_batching import cache

        self.shared = 0
        search = cache.PagedAttentionCache.search_prefix_match

        def count(*args: Any, **kwargs: Any) -> int:
            found: int = search(*args, **kwargs)
            self.shared += found
            return found

        config = GenerationConfig(do_sample=True, temperature=1.0, top_k=0, eos_token_id=-1, pad_token_id=0)
        blocks = ContinuousBatchingConfig(page_size=32, num_blocks=4096, max_batch_tokens=1024)
        with self.model.continuous_batching_context_manager(
            config, continuous_batching_config=blocks, warmup=False
        ) as self.manager:
            self.manager.add_request([1, 2, 3], request_id="warm-up", max_new_tokens=2)
            self.manager.get_result(timeout=120)
            cache.PagedAttentionCache.search_prefix_match = count
            try:
                return super().__call__(scene)
            finally:
                cache.PagedAttentionCache.search_prefix_match = search

    def play(self, episodes: list[Episode], at_once: int) -> int:
        left, names, playing = iter(episodes), itertools.count(), {}
        ready = list(itertools.islice(left, at_once))
        while ready or playing:
            for episode in ready:
                name = str(next(names))
                playing[name] = episode
                self.manager.add_request(list(episode.history), request_id=name, max_new_tokens=episode.wanted)
            result = self.manager.get_result(timeout=120)
            episode = playing.pop(result.request_id)
            episode.take(result.generated_tokens)
            ready = [episode] if episode.wanted else list(itertools.islice(left, 1))
        return sum(len(prompt) for e in episodes for prompt, _ in e.said) - self.shared


class VLLM_(Player):
    """With vLLM in this process; new weights empty its cache."""

    def __init__(self) -> None:
        super().__init__()
        from rollenv.agents.engines.vllm import VLLMEngine
        from rollenv.agents.engines.vllm_local import LocalTransport

        with tempfile.TemporaryDirectory() as folder:
            self.model.save_pretrained(folder)
            how = {"dtype": "float32", "enforce_eager": True, "block_size": 32, "max_num_batched_tokens": 1 << 14}
            self.engine = VLLMEngine(LocalTransport(folder, **how), frozenset())

    def __call__(self, scene: Scene) -> dict[str, float]:
        asyncio.run(self.engine.update_weights(self.model.state_dict().items()))
        return super().__call__(scene)

    def play(self, episodes: list[Episode], at_once: int) -> int:
        before = self.engine.stats.prompted - self.engine.stats.reused
        self.with_engine(self.engine, episodes, at_once)
        return self.engine.stats.prompted - self.engine.stats.reused - before


def serve(way: str) -> None:
    """Play the scenes that come in, one a line."""
    player = {"vllm": VLLM_, "transformers": Transformers}.get(way, Player)()
    print(_MARK + "{}", flush=True)
    for line in sys.stdin:
        scene = json.loads(line)
        print(_MARK + json.dumps(player(Scene(**scene | {"answers": tuple(scene["answers"])}))), flush=True)


# -- in the process that measures --------------------------------------------------------------------------------------


class Worker:
    """An engine in a process of its own."""

    def __init__(self, way: str, tree: Path):
        python = str(VLLM) if way == "vllm" else sys.executable
        more = {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
        more |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_LOGGING_LEVEL": "ERROR"}
        command = [python, __file__, "--serve", way]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, env=os.environ | more, stdin=pipe, stdout=pipe, text=True)
        self._answer()

    def play(self, scene: Scene) -> dict[str, float]:
        assert self.process.stdin
        print(json.dumps(asdict(scene)), file=self.process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, float]:
        assert self.process.stdout
        for line in self.process.stdout:
            if line.startswith(_MARK):
                answer: dict[str, float] = json.loads(line.removeprefix(_MARK))
                return answer
        raise ChildProcessError(f"its process ended with {self.process.wait()}")

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(60)


@contextlib.contextmanager
def checked_out(commit: str) -> Iterator[Path | None]:
    """The sources of a commit, in a folder; None where git does not have it."""
    command = ["git", "-C", str(ROOT), "archive", commit, "rollenv", "agents", "envs", "sandbox", "trainers"]
    done = subprocess.run(command, capture_output=True, check=False) if commit else None
    with tempfile.TemporaryDirectory() as folder:
        if done and done.returncode == 0:
            with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
                archive.extractall(folder, filter="tar")
        yield Path(folder) if done and done.returncode == 0 else None


def compare(workers: dict[str, Worker], scene: Scene, rounds: int) -> str:
    """A table of the median round of every engine; those that fail are removed from ``workers``."""
    text = ""
    played: dict[str, list[dict[str, float]]] = {way: [] for way in workers}
    for number, way in itertools.product(range(rounds), list(workers)):
        if way in workers and (number == 0 or way != "transformers"):
            try:
                played[way].append(workers[way].play(scene))
            except ChildProcessError as error:
                text += f"Not there: {WAYS[way]}; {error}.\n\n"
                del workers[way], played[way]
    rows, base = [], 0.0
    for way, results in played.items():
        middle = {key: statistics.median(result[key] for result in results) for key in results[0]}
        rate = middle["drawn"] / middle["processor"]
        base = base or rate
        computed, bounded = f"{middle['computed']:.0f}", f"{middle['computed'] / middle['bound']:.2f}"
        rates = f"{middle['drawn'] / middle['wall']:.0f}", f"{rate:.0f}", f"{rate / base:.2f}"
        seconds = f"{middle['wall']:.2f}", f"{middle['processor']:.2f}"
        rows.append((WAYS[way], computed, bounded, *rates, *seconds))
    any_way = next(iter(played.values()))[0]
    about = (
        f"{scene.tasks} tasks x {scene.group_size} members, {scene.turns} turns, {scene.at_once} at a time: "
        f"{any_way['prompted']:.0f} prompt tokens, {any_way['bound']:.0f} of them unique (the bound), "
        f"{any_way['drawn']:.0f} drawn\n\n"
    )
    head = ("engine", "computed", "computed/bound", "drawn/s", "drawn/processor s", "ratio", "wall s", "processor s")
    return text + about + table(head, rows) + "\n"


def options_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--at-once", type=int, nargs="*", default=(64, 12), help="episodes that play at the same time")
    parser.add_argument("--short", type=int, default=1000, help="prompts of 8 tokens, each for itself")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--before", default="e269f74", help="commit of the engine to compare with")
    parser.add_argument("--only", nargs="*", choices=WAYS, default=tuple(WAYS))
    parser.add_argument("--serve", choices=WAYS, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = options_of()
    if options.serve:
        return serve(options.serve)
    text = header() + "\nA model of 5.2 M parameters, float32, one thread for each engine, which play in turns; "
    text += (
        f"medians of {options.rounds} rounds (of transformers' slow one only the first). The ratio is that of tokens "
    )
    text += "drawn per second of processor time.\n\n"
    with checked_out(options.before) as old:
        trees = {way: old if way == "before" else ROOT for way in options.only}
        missing = [way for way, tree in trees.items() if not tree or (way == "vllm" and not VLLM.exists())]
        workers = {way: Worker(way, tree) for way, tree in trees.items() if tree and way not in missing}
        for worker in workers.values():
            worker.play(Scene(2, 2, 2, 4))  # a first call of a model takes longer
        for at_once in options.at_once:
            scene = Scene(options.tasks, options.group_size, options.turns, at_once)
            text += compare(workers, scene, options.rounds)
        if options.short:  # nothing can be shared: what the bookkeeping costs
            scene = Scene(options.short, 1, 1, 64, system=0, shortest=8, longest=8, answers=(4, 4))
            text += compare({way: workers[way] for way in workers if way in ("before", "local")}, scene, options.rounds)
        for worker in workers.values():
            worker.close()
    for way in missing:
        text += f"Not there: {WAYS[way]}.\n"
    save("radix_cache", text)


if __name__ == "__main__":
    main()
