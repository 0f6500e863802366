"""Shared parts of the subcommands: consoles, ``key=value`` arguments, agents by name."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from rollenv.agents import model_files
from rollenv.agents.gguf import model_at, newest_checkpoint
from rollenv.cli.options import option
from rollenv.core.arguments import checked_arguments, value_of
from rollenv.core.errors import UsageError, reads
from rollenv.core.registry import DATA
from rollenv.report.summary import duration

if TYPE_CHECKING:
    from rollenv.agents.base import Agent
    from rollenv.agents.chat import Prices
    from rollenv.envs.data.own import Questions

#: Columns of pipes and files, which have no width: tables should not be squeezed into 80 columns.
_WIDE = 180

#: Daemons may start without standard streams.
for _name, _mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
    if getattr(sys, _name) is None:
        setattr(sys, _name, open(os.devnull, _mode))  # noqa: SIM115 - for as long as the process lives


def _console(file: TextIO, **how: Any) -> Console:
    width = None if file.isatty() or "COLUMNS" in os.environ else _WIDE
    return Console(highlight=False, emoji=False, width=width, **how)  # ids and observations may have :x: in them


console = _console(sys.stdout)
error_console = _console(sys.stderr, stderr=True)
#: For progress and remarks, which -q silences.
progress_console = _console(sys.stderr, stderr=True)

#: Standard output, while --json keeps it for the result: what an environment prints goes to standard error.
_kept: list[TextIO] = []

#: Episodes played at the same time.
CONCURRENT = 256

#: Seconds between two lines of progress where there is no terminal for a bar.
TICK = 10.0


class ProgressLine:
    """The progress of one thing: a bar on a terminal, elsewhere a line now and then; -q silences both.

    Args:
        what: name of what is counted.
        every: minimum seconds between two lines.
        room: terminals with fewer columns see only numbers and the time that is left.
        least: share of the rest that must be done before a line tells the time that is left: the first of many that
            run side by side say little.
    """

    def __init__(self, what: str, total: int | None = None, every: float = TICK, room: int = 110, least: float = 0.0):
        self.what, self.total, self.every, self.least = what, total, every, least
        self._began = self._last = time.monotonic()
        self._first: int | None = None
        roomy = (BarColumn(bar_width=20), TimeElapsedColumn()) if progress_console.width >= room else ()
        self.bar = Progress(
            TextColumn("{task.description}"),
            *roomy[:1],
            MofNCompleteColumn(),
            TextColumn("{task.fields[more]}"),
            *roomy[1:],
            TextColumn("left"),
            TimeRemainingColumn(),
            console=progress_console,
            transient=True,
            disable=not progress_console.is_terminal or progress_console.quiet,
        )
        self._task = self.bar.add_task(what, total=total, more="")

    def show(self, done: int, more: str = "", always: bool = False) -> None:
        """Set the progress with a remark, and print a line if the last one is old enough, or always."""
        self.bar.update(self._task, completed=done, more=more)
        first = self._first = done if self._first is None else self._first
        now = time.monotonic()
        if progress_console.is_terminal or not (always or now - self._last >= self.every):
            return
        self._last = now
        line = f"{self.what} {done}{'' if self.total is None else f'/{self.total}'} {more}".rstrip()
        enough = first + self.least * ((self.total or 0) - first)
        if self.total and enough < done < self.total and now - self._began >= self.every:
            line += f" about {duration((now - self._began) / (done - first) * (self.total - done))} left"
        progress_console.print(line, markup=False, soft_wrap=True)


@contextlib.contextmanager
def progress(what: str, total: int | None = None, every: float = TICK) -> Iterator[Callable[..., None]]:
    """Show a :class:`ProgressLine` until the block ends, and yield its method ``show``."""
    line = ProgressLine(what, total, every)
    with line.bar:
        yield line.show


def set_output(verbose: int, quiet: bool, json: bool = False) -> None:
    """Apply -v, -q and --json: log messages on standard error, no progress, only the result on standard output."""
    progress_console.quiet = quiet
    console.stderr, console.quiet = json, json and quiet
    if json and not _kept:  # a command may call another
        _kept.append(sys.stdout)
        if sys.stdout is sys.__stdout__:  # C code and child processes print there, too
            _kept[0] = os.fdopen(os.dup(1), "w")
            os.dup2(2, 1)
        sys.stdout = sys.stderr
    elif _kept and not json:
        sys.stdout = _kept.pop()
    if verbose:
        level = logging.INFO if verbose == 1 else logging.DEBUG
        logging.basicConfig(format="%(asctime)s %(name)s: %(message)s", datefmt="%H:%M:%S")
        logging.getLogger("rollenv").setLevel(level)


AGENT_HELP = (
    "random, oracle, nop (does nothing), noisy:SHARE (an oracle with that share of random actions), constant:TEXT, "
    "replay:FILE (stored answers), local:FOLDER (a model, a run, a GGUF file, or smollm2-135m), "
    "vllm:FOLDER, chat:MODEL at --base-url (key from OPENAI_API_KEY), 'harness:NAME ARGS' "
    "(pi, codex, ...) with the model of --model, or MODULE:CLASS, an agent of your own."
)


def key_values(pairs: Iterable[str]) -> dict[str, Any]:
    """``["num_boxes=2", "rewards=ragen"]`` as keyword arguments; values are TOML, bare words are strings."""
    out: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UsageError(f"{pair!r} is not of the form key=value")
        out[key] = value_of(value)
    return out


def advice_on_epochs(rows: Sequence[Mapping[str, Any]], key: str) -> str:
    """Return what to change if the loss on held-out rows hardly fell, still fell in the second half, or rose again."""
    losses = [(row["eval/loss"], row["iteration"]) for row in rows if "eval/loss" in row]
    if len(losses) < 2:
        return ""
    (first, _), (last, end), (lowest, at) = losses[0], losses[-1], min(losses)
    half = [first, *(loss for loss, iteration in losses if iteration <= end / 2)][-1]
    told = ""
    if last > 1.02 * lowest and at:
        told = f"was lowest at iteration {at:.0f} of {end:.0f} ({lowest:.3f}): lower {key}"
    elif last > 1.02 * lowest:
        told = f"only rose ({first:.3f} to {last:.3f}): lower optimizer.lr"
    elif last > 0.98 * first:
        told = f"hardly fell ({first:.3f} to {last:.3f}): raise {key}, or optimizer.lr, unless the answers were known"
    elif last < 0.98 * half:
        told = f"still falls ({half:.3f} to {last:.3f}): raise {key}"
    return f"the loss on held-out rows {told}" if told else ""


def is_setting(text: str) -> bool:
    """Return whether an argument is ``key=value`` and no file."""
    key = text.partition("=")[0]
    return "=" in text and key.replace("_", "").replace(".", "").isalnum() and not os.path.exists(text)


def describe_data(env_id: str, kwargs: Mapping[str, Any]) -> Questions | None:
    """Say how a file of questions is read, graded and split; None for other environments."""
    if not env_id.startswith(f"{DATA}:"):
        return None
    from rollenv.envs.data.own import SETTINGS, own_questions, questions_at

    named = {name: value for name, value in kwargs.items() if name in SETTINGS and name != "instruct"}
    found = questions_at(env_id.partition(":")[2], **checked_arguments(env_id, own_questions, named))
    error_console.print(str(found), soft_wrap=True, markup=False, highlight=False)
    return found


def id_of(env: str) -> str:
    """Return the id of an environment that is named by it, or by a file or folder of questions."""
    from rollenv.envs.data.own import is_data

    return f"{DATA}:{env}" if ":" not in env and is_data(env) else env


def evaluated_data(env: str, kwargs: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the id of a file or folder of questions, and its split: the test files, or all rows without them."""
    env = id_of(env)
    if (found := describe_data(env, kwargs)) and "split" not in kwargs:
        kwargs = {**kwargs, "split": "all" if found.drawn else "test"}
        if found.drawn and found.test:
            error_console.print(f"playing all of them; split=test plays the {len(found.test)} that are held out")
    return env, kwargs


SEND_AS_HELP = (
    "Names of settings at the endpoint; an empty one is not sent: max_tokens=max_completion_tokens,seed=. "
    "Refusals of these two are understood by themselves."
)


def sent_names(text: str) -> dict[str, str]:
    """Parse ``--send-as``."""
    pairs = [part.partition("=") for part in text.split(",") if part]
    if wrong := [key for key, equals, _ in pairs if not (key and equals)]:
        raise UsageError(f"--send-as takes pairs such as max_tokens=max_completion_tokens, not {wrong[0]!r}")
    return {key.strip(): name.strip() for key, _, name in pairs}


def print_result(result: Any, indent: int | None = 2) -> bool:
    """Print the result of a command as JSON if --json asks for it, and return whether it does.

    With --json all that is printed to :data:`console` goes to standard error.
    """
    if not console.stderr:
        return False
    text = json.dumps(result, default=_plain)
    plain = json.loads(text, parse_constant=lambda _: None)  # JSON has no NaN
    _kept[0].write(json.dumps(plain, indent=indent) + "\n")
    _kept[0].flush()
    return True


def _plain(value: Any) -> Any:
    """Return what JSON has for a value: numbers of NumPy and torch as numbers, iterators as lists, others as text."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return [*value] if isinstance(value, Iterator) else str(value)


@dataclass(frozen=True)
class AgentOptions:
    """Options of an agent; None and "" keep the agent's defaults."""

    temperature: float | None = option(min=0, help="Sampling temperature; 0 is greedy.")
    max_tokens: int | None = option(min=1, help="Maximum number of tokens per answer.")
    threads: int | None = option(min=1, help="CPU threads of a local model. Default: the idle cores, as they change.")
    precision: str = option(default="", help="bfloat16: faster matrix products of a local model on a CPU.")
    model: str = option(default="", help="Model for a harness: local:FOLDER, vllm:FOLDER or chat:MODEL at --base-url.")
    base_url: str = option(default="", help="Endpoint of a chat agent, such as http://127.0.0.1:8000/v1.")
    system: str | None = option(help="System prompt of a chat agent.")
    concurrency: int | None = option(
        "--concurrency", "-c", min=1, help="Concurrent episodes and requests. Default: 256; at an endpoint 64 and 32."
    )
    send_as: str = option(default="", metavar="KEY=NAME,...", help=SEND_AS_HELP)
    rate: float | None = option(min=0.001, help="Maximum number of requests per minute to the endpoint.")
    timeout: float | None = option(min=0.001, help="Seconds for one answer of the endpoint. Default: 120.")
    budget: float | None = option(min=0, help="Stop when the answers have cost this much; needs --prices.")
    token_budget: int | None = option(min=1, help="Stop after this many tokens, prompts included.")
    prices: str = option(default="", metavar="PROMPT,COMPLETION", help="Prices per million tokens, such as 0.15,0.60.")

    @staticmethod
    def taken_by(name: str) -> set[str]:
        """Return the options that an agent takes."""
        drawing, everything = {"temperature", "max_tokens"}, {each.name for each in dataclasses.fields(AgentOptions)}
        local = {"threads", "precision"}
        takes = {
            "chat": everything - local - {"model"},
            "harness": everything,
            "local": drawing | local,
            "vllm": drawing,
        }
        at_least = {"concurrency"}  # what a panel fixes
        return takes.get(name.partition(":")[0], drawing | {"base_url"}) | at_least

    def only(self, name: str) -> AgentOptions:
        """Return those of the options that an agent takes."""
        return AgentOptions(**{key: getattr(self, key) for key in self.taken_by(name)})

    def check(self, name: str) -> None:
        """Raise UsageError if the agent takes no option that was given."""
        taken = self.taken_by(name)
        owners = {"model": "a harness", "threads": "a local model", "precision": "a local model"}
        for key, value in vars(self).items():
            if value not in (None, "") and key not in taken:
                who = owners.get(key, "a chat agent")
                raise UsageError(f"--{key.replace('_', '-')} is for {who}, not for {name}")


def make_agent(
    name: str, options: AgentOptions | None = None, *, native: bool = False, answer_tokens: int = 64
) -> Agent:
    """Make an agent from its name on the command line.

    Args:
        name: name of the agent, as :data:`AGENT_HELP` explains it.
        options: options from the command line.
        native: whether the environment's tools are passed to the endpoint, or to the chat template of a model that was
            saved without a form of prompts.
        answer_tokens: the limit of answers of a model that was saved without one, unless an option says it.

    Raises:
        UsageError: for an unknown name, or an option that it does not take.
    """
    from rollenv.agents.by_name import agent_named

    options = options or AgentOptions()
    kind, _, argument = name.partition(":")
    if agent := agent_named(name):
        options.check(name)
        return agent
    if not argument:
        raise UsageError(f"there is no agent {name!r}; it is one of {AGENT_HELP}")
    options.check(name)
    if kind == "harness":
        return _harness_agent(argument, options)
    if kind == "chat":
        return _chat_agent(name, options, native)
    return _model_agent(kind, os.path.expanduser(argument), options, answer_tokens, native)


def _chat_agent(name: str, options: AgentOptions, native: bool) -> Agent:
    from rollenv.agents.chat import Budget, ChatAgent
    from rollenv.agents.chat.endpoint import Patience

    if not options.base_url:
        raise UsageError(f"{name} needs --base-url, such as https://api.openai.com/v1 or http://127.0.0.1:8000/v1")
    if options.budget is not None and not options.prices:
        raise UsageError("--budget needs --prices, to know what an answer costs; --token-budget needs none")
    return ChatAgent(
        name.partition(":")[2],
        options.base_url,
        temperature=options.temperature,
        max_tokens=options.max_tokens,
        system=options.system,
        tools="env" if native else None,
        concurrency=options.concurrency or 32,
        requests_per_minute=options.rate,
        patience=Patience(options.timeout) if options.timeout else None,
        prices=_prices(options.prices),
        budget=Budget(options.budget, options.token_budget),
        names=sent_names(options.send_as),
    )


def _harness_agent(name: str, options: AgentOptions) -> Agent:
    from rollenv.agents.gateway.endpoint import Upstream
    from rollenv.agents.gateway.policy import PolicyModel
    from rollenv.agents.harness.agent import HarnessAgent

    args: list[str] = []
    if not name.startswith("command:"):
        try:
            name, *args = shlex.split(name)
        except ValueError as error:
            raise UsageError(f"harness:{name}: cannot split the arguments as a shell does: {error}") from None
    kind, _, model = options.model.partition(":")
    if kind not in ("local", "vllm", "chat") or not model:
        raise UsageError(f"harness:{name} needs --model local:FOLDER, vllm:FOLDER, or chat:MODEL with --base-url")
    agent: Any = make_agent(options.model, dataclasses.replace(options, model=""), answer_tokens=1024)
    if kind != "chat":
        return HarnessAgent(PolicyModel(agent, client_sampling=options.temperature is None), name, args=args)
    keys = ("temperature", "max_tokens")
    body = {key: value for key, value in agent.body.items() if key in keys}
    return HarnessAgent(Upstream(agent.endpoint, model, body=body), name, args=args)


def _prices(text: str) -> Prices | None:
    from rollenv.agents.chat import Prices

    if not text:
        return None
    with reads(f"--prices are for a million tokens, PROMPT,COMPLETION or PROMPT,COMPLETION,CACHED, not {text!r}"):
        prompt, completion, *cached = map(float, text.split(","))
        prices = Prices(prompt, completion, *cached)
    return prices


def has_saved_prompt(model: str) -> bool:
    """Return whether a model was saved by rollenv, with the form of its prompts."""
    from rollenv.agents.prompts.session import AGENT_FILE

    return Path(newest_checkpoint(Path(model).expanduser()), AGENT_FILE).exists()


def knows_tools(model: str) -> bool:
    """Return whether a model's chat template describes functions."""
    from rollenv.agents.tokenizer import tokenizer_at

    return "tools" in str(tokenizer_at(model).chat_template)


def _model_agent(kind: str, argument: str, options: AgentOptions, answer_tokens: int, native: bool) -> Agent:
    named = {"temperature": options.temperature, "max_new_tokens": options.max_tokens}
    override: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    folder = model_at(argument)
    model_files.loading(folder)  # before anything large is imported
    formless = not has_saved_prompt(folder)  # then the whole episode is a chat, as such models know it
    if formless:
        override.setdefault("max_new_tokens", answer_tokens)
    from rollenv.agents.prompts import ChatPrompt

    if kind == "vllm":
        from rollenv.agents.prompts.session import saved_format
        from rollenv.agents.vllm import VLLMAgent

        prompt, sampling = saved_format(folder, **override, routes=False)
        if isinstance(prompt, ChatPrompt):
            chat = {"system": prompt.system or None, "examples": prompt.examples, **prompt.template_args}
            return VLLMAgent.load(folder, None, sampling, chat=chat)
        return VLLMAgent.load(folder, prompt, sampling, chat={"tools": "env"} if formless and native else None)
    from rollenv.agents.engines.cpu_threads import CpuThreads
    from rollenv.agents.local import LocalAgent

    agent = LocalAgent.load(folder, **override)
    if formless and agent.tokenizer.chat_template:
        agent.prompt = ChatPrompt(tools="template" if native else "text")
    agent.engine.threads = CpuThreads(options.threads or 0)
    if options.precision:
        agent.engine.set_precision(options.precision)
    return agent


def percent(success: float, low: float, high: float) -> str:
    """Format a success rate with its interval."""
    return f"{100 * success:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def print_tables(tables: Iterable[Mapping[str, Any]], most: int = 20) -> None:
    """Print tables of texts as a page has them: title, and rows with a head; without rows, nothing.

    Args:
        most: maximum number of rows of each.
    """
    for each in tables:
        head, *rows = each["rows"]
        if rows:
            console.print(each["title"], style="bold", markup=False, soft_wrap=True)
        print_table(head, rows[:most])
        if len(rows) > most:
            console.print(f"and {len(rows) - most} more")


def print_table(head: Sequence[str], rows: Iterable[Sequence[object]], *, ids: bool = False) -> None:
    """Print a table; without rows, nothing.

    Args:
        head: names of the columns; none for rows alone.
        rows: cells as they are, or texts with styles.
        ids: cut the first column on narrow terminals instead of breaking its lines.
    """
    from rich.table import Table

    rows = list(rows)
    if not rows:
        return
    table = Table(show_header=any(head), box=None, padding=(0, 1 if any(head) else 2, 0, 0))
    for number, name in enumerate(head or [""] * len(rows[0])):
        cut = ids and not number
        table.add_column(escape(name), min_width=1, no_wrap=cut, overflow="ellipsis" if cut else "fold")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else escape(str(cell)) for cell in row))
    console.print(table)
