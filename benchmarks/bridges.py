"""Seconds per command or turn of each bridge beside the framework's own environment, in one run; and its size.

Each bridge is measured in the framework's environment, ``.bench/NAME`` (``make peers``). A bridge is a line of
:data:`BRIDGES` and, where the framework has something of its own to compare with, a function: it yields
:class:`Pair`, whose two calls are timed in turns.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import ROOT, header, save, table


@dataclass(frozen=True)
class Pair:
    """Two calls that do the same, each ``times`` steps long."""

    what: str
    ours: Callable[[], Any]
    own: Callable[[], Any]
    own_name: str
    times: int = 1


@dataclass(frozen=True)
class Bridge:
    """A bridge: what is measured, and what it is made of.

    Attributes:
        name: of its environment in ``.bench`` and of its suite.
        package: as pip knows it.
        adapter: its file in ``plugins/adapters``.
        pairs: yields what is timed; None where there is nothing to compare with.
    """

    name: str
    package: str
    adapter: str
    pairs: Callable[[ExitStack], Iterator[Pair]] | None = None


def inspect_pairs(stack: ExitStack) -> Iterator[Pair]:
    import asyncio

    from inspect_ai import eval
    from inspect_ai.model import ModelOutput, ModelUsage, get_model
    from inspect_ai.solver import solver
    from inspect_ai.util._sandbox.local import LocalSandboxEnvironment

    from rollenv.plugins.adapters.inspect_ai import BoxConfig, BoxEnvironment, rollenv_task

    local = LocalSandboxEnvironment()
    stack.callback(local.directory.cleanup)
    for name, config in (("sandbox", BoxConfig()), ("machine", BoxConfig(machine=True))):
        box = BoxEnvironment.start(config)
        stack.callback(box.box.kill)
        run = {one: (lambda one=one: asyncio.run(one.exec(["echo", "x"], concurrency=False))) for one in (box, local)}
        yield Pair(f"a command in a {name}", run[box], run[local], "its `local` sandbox (no isolation)")

    @solver
    def talk(turns: int) -> Any:
        async def solve(state: Any, generate: Any) -> Any:
            for _ in range(turns):
                state = await generate(state)
            return state

        return solve

    said = ModelOutput.from_content("mockllm/model", r"\boxed{1}")
    said.usage = ModelUsage()
    model, turns = get_model("mockllm/model", custom_outputs=lambda *_: said), 20
    logs = stack.enter_context(tempfile.TemporaryDirectory())
    settings = {"model": model, "log_dir": logs, "display": "none", "log_level": "error"}
    game = rollenv_task("game:GuessTheNumber-v0-hard", episodes=1, max_turns=turns, env={"max_turns": turns})
    yield Pair(
        "a turn of a game, in an evaluation",
        lambda: eval(game, **settings),
        lambda: eval(game, solver=talk(turns), **settings),
        "a solver without an environment",
        turns,
    )


def smolagents_pairs(stack: ExitStack) -> Iterator[Pair]:
    from smolagents import ChatMessage, CodeAgent, LocalPythonExecutor, LogLevel, Model
    from smolagents.models import MessageRole

    from rollenv.plugins.adapters.smolagents import BoxExecutor

    class Scripted(Model):
        def generate(self, messages: Any, **_: Any) -> ChatMessage:
            step = sum(message.role == MessageRole.ASSISTANT for message in messages)
            code = f"x = {step} * 2\nprint(x)" if step < steps - 1 else "final_answer(x)"
            return ChatMessage(role=MessageRole.ASSISTANT, content=f"<code>\n{code}\n</code>")

    steps = 10
    executors = [stack.enter_context(BoxExecutor()), LocalPythonExecutor([])]

    def play(executor: Any) -> None:
        agent = CodeAgent(tools=[], model=Scripted(), executor=executor, verbosity_level=LogLevel.OFF)
        agent.run("count", max_steps=steps)

    own = "its `local` executor (an interpreter in Python)"
    yield Pair("a step of an agent", lambda: play(executors[0]), lambda: play(executors[1]), own, steps)
    loop = "total = 0\nfor i in range(20_000):\n    total += i % 7\ntotal"
    yield Pair("a loop of 20,000 turns", lambda: executors[0](loop), lambda: executors[1](loop), own)


def deepagents_pairs(stack: ExitStack) -> Iterator[Pair]:
    from deepagents.backends.local_shell import LocalShellBackend

    from rollenv.plugins.adapters.deepagents import BoxBackend
    from rollenv.sandbox import Sandbox

    folder = stack.enter_context(tempfile.TemporaryDirectory())
    local = LocalShellBackend(root_dir=folder, inherit_env=True)
    own = "its `LocalShellBackend` (no isolation)"
    for name, box in (("machine", BoxBackend()), ("sandbox", BoxBackend(Sandbox.create()))):
        stack.enter_context(box)
        yield Pair(f"a command in a {name}", lambda b=box: b.execute("echo x"), lambda: local.execute("echo x"), own)
        files = (lambda b=box: b.write("/tmp/x.txt", "x"), lambda: local.write(f"{folder}/x.txt", "x"))
        yield Pair(f"writing a file in a {name}", *files, own)


#: A game of as many turns as one likes, and a reply that does not end it.
GUESS, WRONG = "game:GuessTheNumber-v0-hard", r"\boxed{0}"


def trl_pairs(stack: ExitStack) -> Iterator[Pair]:
    from rollenv.plugins.adapters.trl import environment

    class Empty:
        def reset(self, **_: Any) -> str:
            return "Guess."

        def step(self, action: str) -> str:
            return "Wrong."

    turns = 20

    def play(env: Any) -> None:
        env.reset(seed=3)
        for _ in range(turns):
            env.step(WRONG)

    ours, own = environment(GUESS, max_turns=turns)(), Empty()
    yield Pair("a turn of a game, without TRL's loop", lambda: play(ours), lambda: play(own), "an empty class", turns)


def skyrl_pairs(stack: ExitStack) -> Iterator[Pair]:
    import skyrl_gym

    from rollenv.plugins.adapters import skyrl

    skyrl.register()
    turns = 20
    given = {
        "rollenv": {"env_id": GUESS, "kwargs": {"max_turns": turns}, "seed": 3},
        "gsm8k_multi_turn": {"reward_spec": {"ground_truth": "1"}, "max_turns": turns},
    }

    def play(name: str) -> None:
        env, over = skyrl_gym.make(name, env_config={}, extras=given[name]), False
        env.init([{"role": "user", "content": "Play."}])
        while not over:
            over = env.step(WRONG)["done"]
        env.close()

    plays = [lambda name=name: play(name) for name in given]
    yield Pair("a turn, an episode of 20 with its making", *plays, "its `gsm8k_multi_turn`", turns)


def nemo_pairs(stack: ExitStack) -> Iterator[Pair]:
    from unittest.mock import MagicMock

    from fastapi.testclient import TestClient
    from nemo_gym.base_resources_server import BaseResourcesServerConfig
    from nemo_gym.server_utils import ServerClient
    from resources_servers.blackjack.app import BlackjackEnv

    from rollenv.plugins.adapters.nemo_gym import RollenvConfig, RollenvServer

    where: dict[str, Any] = {"host": "", "port": 0, "entrypoint": "", "name": "x"}
    client = MagicMock(spec=ServerClient)
    ours = RollenvServer(config=RollenvConfig(**where, env_id=GUESS), server_client=client)
    own = BlackjackEnv(config=BaseResourcesServerConfig(**where, domain="games"), server_client=client)
    text = {"type": "output_text", "annotations": []}
    message = {"id": "m", "type": "message", "role": "assistant", "status": "completed"}
    told = {"id": "r", "created_at": 1, "model": "stub", "object": "response"}
    told |= {"parallel_tool_calls": False, "tool_choice": "auto", "tools": []}
    row = {"responses_create_params": {"input": [{"role": "user", "content": "Play."}]}, "seed": 3}

    def episode(server: Any, reply: str) -> Callable[[], None]:
        talk = TestClient(server.setup_webserver())
        said = told | {"output": [message | {"content": [text | {"text": reply}]}]}

        def play() -> None:
            talk.post("/reset", json=row).raise_for_status()
            talk.post("/step", json=row | {"response": said}).raise_for_status()

        return play

    plays = (episode(ours, WRONG), episode(own, "<action>stand</action>"))
    yield Pair("a reset and a turn, over its server", *plays, "its `blackjack` server")


def verl_pairs(stack: ExitStack) -> Iterator[Pair]:
    import asyncio

    import hydra
    from omegaconf import OmegaConf
    from transformers import PreTrainedTokenizerFast
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap
    from verl.utils.dataset.rl_dataset import RLHFDataset
    from verl.workers.rollout.replica import TokenOutput

    from rollenv.agents.tiny.model import build_tokenizer

    raw = build_tokenizer(["guess the number higher lower than user assistant"] * 3, 400)
    special = {"eos_token": "<|im_end|>", "extra_special_tokens": ["<|im_start|>"]}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw.backend_tokenizer, **special)
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    answer = tokenizer.encode(WRONG, add_special_tokens=False)

    class Server:
        async def generate(self, **_: Any) -> TokenOutput:
            return TokenOutput(token_ids=[*answer, tokenizer.eos_token_id], log_probs=[-1.0] * (len(answer) + 1))

    runner = stack.enter_context(asyncio.Runner())
    asyncio.set_event_loop(runner.get_loop())  # which a loop of verl's takes when it is made

    def loop(target: str, **settings: Any) -> Callable[[], Any]:
        multi = {"max_assistant_turns": None}
        rollout = {"prompt_length": 2000, "response_length": 9000, "multi_turn": multi}
        config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}, "data": {}})
        made = hydra.utils.instantiate(
            config={"_target_": f"{target}AgentLoop", **settings},
            trainer_config=DictConfigWrap(config=config),
            server_manager=Server(),
            tokenizer=tokenizer,
            processor=None,
            dataset_cls=RLHFDataset,
            data_config=DictConfigWrap(config.data),
            hf_model_type="qwen2",
        )
        prompt = [{"role": "user", "content": "Play."}]
        return lambda: runner.run(made.run({}, raw_prompt=prompt, seed=3))

    ours = loop("rollenv.plugins.adapters.verl.Rollenv", env_id=GUESS, env_kwargs={"max_turns": 1})
    own = loop("verl.experimental.agent_loop.single_turn_agent_loop.SingleTurn")
    yield Pair("an episode of one turn, the model left out", ours, own, "its `single_turn_agent`, no environment")


def tinker_pairs(stack: ExitStack) -> Iterator[Pair]:
    import asyncio

    from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
    from tinker_cookbook.recipes.multiplayer_rl.guess_number.env import MAX_TURNS, GuessNumberEnv
    from tinker_cookbook.renderers import get_renderer
    from tinker_cookbook.rl.message_env import EnvFromMessageEnv
    from tinker_cookbook.rl.rollouts import do_single_rollout
    from tinker_cookbook.tokenizer_utils import get_tokenizer

    from rollenv.agents.tiny.model import build_tokenizer
    from rollenv.plugins.adapters.tinker import RollenvMessages
    from rollenv.rollout.types import Task

    folder = stack.enter_context(tempfile.TemporaryDirectory())
    build_tokenizer(["Guess: a number higher or lower than 5", "User: Assistant:"] * 3, 400).save_pretrained(folder)
    tokenizer = get_tokenizer(folder)
    renderer = get_renderer("role_colon", tokenizer)

    class Says(TokenCompleter):
        def __init__(self, text: str):
            self.text = text

        async def __call__(self, model_input: Any, stop: Any, *, max_tokens: int | None = None) -> TokensWithLogprobs:
            ids = tokenizer.encode(f" {self.text}{stop[0]}")
            return TokensWithLogprobs(ids, [-0.5] * len(ids))

    task = Task(GUESS, 3, {"max_turns": MAX_TURNS})

    def ours() -> None:
        messages = RollenvMessages(task)
        asyncio.run(do_single_rollout(Says(WRONG), EnvFromMessageEnv(renderer, messages)))
        messages.close()

    def own() -> None:
        asyncio.run(do_single_rollout(Says("Guess: 0"), GuessNumberEnv(7, renderer)))

    yield Pair("a turn of guessing, with its making", ours, own, "its `guess_number` recipe", MAX_TURNS)


BRIDGES = (
    Bridge("trl", "trl", "trl.py", trl_pairs),
    Bridge("verifiers", "verifiers", "verifiers.py"),
    Bridge("verl", "verl", "verl.py", verl_pairs),
    Bridge("skyrl", "skyrl-gym", "skyrl.py", skyrl_pairs),
    Bridge("nemo", "nemo-gym", "nemo_gym.py", nemo_pairs),
    Bridge("tinker", "tinker-cookbook", "tinker.py", tinker_pairs),
    Bridge("inspect", "inspect_ai", "inspect_ai.py", inspect_pairs),
    Bridge("smolagents", "smolagents", "smolagents.py", smolagents_pairs),
    Bridge("deepagents", "deepagents", "deepagents.py", deepagents_pairs),
    Bridge("harbor", "harbor", "harbor.py"),
)


def measure(bridge: Bridge, rounds: int) -> dict[str, Any]:
    """The version, and medians of seconds; runs in the framework's environment."""
    import importlib.metadata

    rows = []
    with ExitStack() as stack:
        for pair in bridge.pairs(stack) if bridge.pairs else ():
            seconds: dict[str, list[float]] = {"ours": [], "own": []}
            for one in [*[("ours", pair.ours), ("own", pair.own)] * (rounds + 1)]:
                started = time.perf_counter()
                one[1]()
                seconds[one[0]].append((time.perf_counter() - started) / pair.times)
            middle = {name: statistics.median(times[1:]) for name, times in seconds.items()}
            rows.append({"what": pair.what, "own_name": pair.own_name, **middle})
    return {"version": importlib.metadata.version(bridge.package), "rows": rows}


def apart(bridge: Bridge, rounds: int) -> dict[str, Any] | None:
    """:func:`measure` in the framework's environment; None where there is none."""
    python = ROOT / ".bench" / bridge.name / "bin" / "python"
    if not python.exists():
        return None
    with tempfile.TemporaryDirectory() as tree:
        Path(tree, "rollenv").symlink_to(ROOT / "rollenv")
        command = [str(python), __file__, "--rounds", str(rounds), "--measure", bridge.name]
        env = os.environ | {"PYTHONPATH": tree, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=600)
    results = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not results:
        raise SystemExit(f"{bridge.name} could not be measured: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(results[-1].removeprefix("RESULT "))
    return found


def lines_of_code(path: Path) -> int:
    """Lines with code: no comments, docstrings and empty lines."""
    text = path.read_text()
    lines = {n for n, line in enumerate(text.splitlines(), 1) if line.strip() and not line.strip().startswith("#")}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--only", nargs="*", choices=[bridge.name for bridge in BRIDGES])
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        (bridge,) = (one for one in BRIDGES if one.name == given.measure)
        print("RESULT " + json.dumps(measure(bridge, given.rounds)))
        sys.exit()
    sizes, times, missing = [], [], []
    for bridge in BRIDGES:
        if given.only and bridge.name not in given.only:
            continue
        found = apart(bridge, given.rounds)
        adapter = ROOT / "rollenv" / "bridges" / bridge.adapter
        suite = f"tests/plugins/adapters/{bridge.name}_suite.py"
        version = found["version"] if found else "not installed"
        sizes.append((bridge.package, version, f"plugins/adapters/{bridge.adapter}", lines_of_code(adapter), suite))
        missing += [] if found else [bridge.name]
        for row in found["rows"] if found else ():
            ours, own = row["ours"], row["own"]
            seconds = (f"{1000 * ours:.3g} ms", f"{1000 * own:.3g} ms", f"{ours / own:.2f}")
            times.append((bridge.package, row["what"], *seconds, row["own_name"]))
    about = f"Medians of {given.rounds} rounds, the two sides in turns; one call before does not count.\n"
    about += f"The cores are shared with other work: load average {os.getloadavg()[0]:.1f} at the end.\n"
    if missing:
        about += f"Not measured, for `make peers` has not been run: {', '.join(missing)}.\n"
    listed = table(("framework", "version", "adapter", "lines of code", "suite"), sizes)
    timed = table(("framework", "what", "rollenv", "its own", "ratio", "its own is"), times)
    save("bridges", f"{header()}\n{about}\n{timed}\n{listed}")


if __name__ == "__main__":
    main()
