"""``rollenv eval``"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rollenv.agents.gguf import newest_checkpoint
from rollenv.cli import completion
from rollenv.cli.common import (
    AgentOptions,
    console,
    error_console,
    evaluated_data,
    key_values,
    make_agent,
    percent,
    print_result,
    print_table,
)
from rollenv.cli.playing import EvalFolder, PlayOptions, TaskOptions, playing, tasks_before, totals
from rollenv.core.errors import UnknownEnv, UsageError, did_you_mean
from rollenv.core.version import __version__

if TYPE_CHECKING:
    from rollenv.agents.base import Agent
    from rollenv.panels import Panel
    from rollenv.rollout.evaluate import Evaluation
    from rollenv.rollout.types import Trajectory
    from rollenv.trainers.config.run import AnyPrompt

PROMPT_HELP = (
    "Prompt setting for local:FOLDER, as in a recipe: examples=5, template='{state}', chat=false, "
    "stop='[\"\\n\"]'; or a recipe, to use its prompt. May be repeated."
)

#: Descriptions of the kinds of failures.
_FAILURES = {
    "agent": "the agent or its endpoint gave no answer",
    "reward": "the reward could not be computed",
    "episode": "the episode took too long",
    "user": "the player of the user broke the rules; not graded",
    "raised": "the environment raised an error",
    "wrong": "the environment returned what it may not",
    "hung": "the environment hung",
    "lost": "the environment's worker was lost",
    "differs": "the environment did not replay the same",
    "unknown": "failed",
}


def command(
    env: str = typer.Argument(
        help="Environment id; see `rollenv list`. Or a file or folder of questions, or a panel (`rollenv panel list`).",
        autocompletion=completion.ids,
    ),
    settings: list[str] = typer.Argument(
        None, metavar="[ID|KEY=VALUE]...", help="Further environments, and arguments of all of them."
    ),
    n: str = typer.Option(
        "",
        "-n",
        metavar="N|all",
        help="Number of tasks, or all of a data set; with --resume it may grow. Default: all of a data set, else 100.",
    ),
    prompt: list[str] = typer.Option(None, "--prompt", metavar="KEY=VALUE|RECIPE", help=PROMPT_HELP),
    wrappers: str = typer.Option("", "--wrappers", help="Wrappers around the environment, such as python_tool,concat."),
    tokenizer: str = typer.Option("", "--tokenizer", help="Tokenizer folder for chat wrappers. Default: the model's."),
    *,
    tasks: TaskOptions,
    play: PlayOptions,
    options: AgentOptions,
) -> None:
    """Play seeded tasks and report success, pass@k and pass^k with their 95 % intervals.

    A panel fixes the tasks and how they are played; its results carry its hash, and `rollenv panel verify` checks them.

    Several ids are played one after the other, each in its own folder below --out, with a table of all.

    The exit code is 1 if the agent or its endpoint failed in an episode, or if most episodes failed for any reason.
    """
    from rollenv.core.registry import named_wrappers
    from rollenv.core.wrappers.factory import with_tokenizer
    from rollenv.rollout.workers.factory import other_python

    elsewhere = other_python(play.workers)
    ids = list(dict.fromkeys([env, *(text for text in settings or () if "=" not in text)]))
    given = key_values(text for text in settings or () if "=" in text)
    agent, seed = tasks.agent, tasks.seed or 0
    panel, k, options = tasks.panel(env, options, {"-n": n, "--wrappers": wrappers, **dict.fromkeys(settings or (), 1)})
    if prompt and not agent.startswith("local:"):
        raise UsageError(f"--prompt is for a model in this process, --agent local:FOLDER, not {agent}")
    model = model_of(agent)
    tokenizer = tokenizer or (str(newest_checkpoint(Path(model))) if model else "")
    around = with_tokenizer(named_wrappers(wrappers), tokenizer)
    if panel:
        plans = [_Plan(panel.name, {}, play, len(panel.members), panel)]
    else:
        try_each = len(ids) > 1 and not elsewhere and "://" not in play.workers
        plans = _plans(_places(ids, play.out), given, n, play, try_each=try_each)
    form = None
    if prompt:
        from rollenv.trainers.config import load_prompt

        form = load_prompt(prompt)
    optional: dict[str, Any] = {
        "policy": options.model,
        "wrappers": around,
        "max_tokens": options.max_tokens,
        "system": options.system,
        "prompt": prompt,
    }
    common = {"agent": agent, "k": k, "seed": seed, "temperature": options.temperature}
    common |= {name: value for name, value in optional.items() if value}
    results, every = zip(*_played(plans, common, options, form, around), strict=True)
    if len(results) > 1:
        _print_all(results, agent)
    print_result(every if len(every) > 1 else every[0])
    if any(r.failures.get("agent") or r.failed > len(r.trajectories) / 2 for r in results):
        raise typer.Exit(1)


@dataclasses.dataclass(frozen=True)
class _Plan:
    """One environment's part of an evaluation."""

    env: str
    kwargs: dict[str, Any]
    play: PlayOptions
    n: int
    panel: Panel | None = None

    @property
    def env_ids(self) -> list[str]:
        """The ids of its environments."""
        return [part.env for part in self.panel.parts] if self.panel else [self.env]

    @property
    def native(self) -> bool:
        """True if an environment leaves the form of calls to the endpoint or the chat template."""
        played = [part.kwargs for part in self.panel.parts] if self.panel else [self.kwargs]
        return any(kwargs.get("calls") == "native" for kwargs in played)

    def evaluate(
        self, player: Agent, k: int, seed: int, around: dict[str, dict[str, Any]], opened: dict[str, Any]
    ) -> Evaluation:
        """Play its tasks.

        Args:
            around: the wrappers.
            opened: what :func:`playing` yields.
        """
        from rollenv.rollout.evaluate import evaluate

        if self.panel:
            return evaluate(player, self.env, tasks=self.panel.tasks(), k=k, **opened)
        return evaluate(player, self.env, self.kwargs, n=self.n, k=k, seed=seed, wrappers=around, **opened)

    def about(self, common: dict[str, Any]) -> dict[str, Any]:
        """Return what the numbers are of."""
        fixed = {"panel": self.panel.identity, "rollenv": __version__} if self.panel else {}
        return {"env": self.env, "kwargs": self.kwargs, "n": self.n, **common, **fixed}

    def begin(self, common: dict[str, Any], model: str) -> EvalFolder | None:
        """Begin or continue the folder."""
        from rollenv.rollout.fingerprints import model_fingerprint, row_fingerprints

        if self.play.out is None:
            return None
        rows = [] if self.panel else row_fingerprints(self.env, self.kwargs, self.n)  # a panel has its own hash
        prints = {"rows": rows, "model": model_fingerprint(model)}
        return self.play.begin(self.about(common) | {k: v for k, v in prints.items() if v})


def _played(
    plans: Sequence[_Plan],
    common: dict[str, Any],
    options: AgentOptions,
    form: AnyPrompt | None,
    around: dict[str, dict[str, Any]],
) -> Iterator[tuple[Evaluation, dict[str, Any]]]:
    """Play the plans one after the other, and yield what came of each with the numbers that were written.

    Args:
        common: settings of all of them, the agent among them.
        form: the prompt of a model in this process, if it was given.
        around: the wrappers.
    """
    from rollenv.core.registry import spec

    agent, k = common["agent"], common["k"]
    # another evaluation in a folder is refused before a model is loaded
    folders = [plan.begin(common, model_of(options.model or agent)) for plan in plans]
    answer_tokens = max(spec(env_id).answer_tokens for plan in plans for env_id in plan.env_ids)
    player: Agent | None = None
    for plan, folder in zip(plans, folders, strict=True):
        if player is None or not model_of(agent):  # a model is loaded once; others count what each evaluation cost
            player = make_agent(agent, options, native=plan.native, answer_tokens=answer_tokens)
        if form:
            _set_prompt(player, form, plan.env_ids[0], plan.kwargs, around)
        with playing(plan.env, plan.n * k, player, options, plan.play, folder, plan.panel) as opened:
            result = plan.evaluate(player, k, common["seed"], around, opened)
        numbers = plan.play.save({**plan.about(common), **result.to_dict(), **totals(player)}, plan.panel)
        _print(result, agent)
        plan.play.tell()
        yield result, numbers


def _plans(
    places: Sequence[tuple[str, Path | None]], given: dict[str, Any], n: str, play: PlayOptions, *, try_each: bool
) -> list[_Plan]:
    from rollenv.core.registry import spec
    from rollenv.panels import panels

    plans = []
    for named, out in places:
        try:
            env, kwargs = evaluated_data(named, given)
            if try_each:
                spec(env).make(**kwargs).close()  # settings that it does not take, and data that is missing
            number = _number_of_tasks(env, kwargs, n, out if play.resume else None)
        except UnknownEnv as error:
            if len(places) == 1 and ":" not in named and (near := did_you_mean(named, panels())):
                raise UnknownEnv(f"there is no panel {named!r}; {near} And {error}") from error
            raise
        plans.append(_Plan(env, kwargs, dataclasses.replace(play, out=out), number))
    return plans


def _places(ids: Sequence[str], out: Path | None) -> list[tuple[str, Path | None]]:
    """Return the folder of each id; of several, one for each below ``out``."""
    if out is None or len(ids) == 1:
        return [(named, out) for named in ids]
    found: dict[str, str] = {}
    for named in ids:
        folder = re.sub(r"[^\w.-]+", "-", named).strip("-.")[-100:] or "questions"
        if folder in found:
            raise UsageError(f"{found[folder]} and {named} would share the folder {out / folder}: evaluate them apart")
        found[folder] = named
    return [(named, out / folder) for folder, named in found.items()]


def _print_all(results: Sequence[Evaluation], agent: str) -> None:
    """Print a row for each environment, and the mean of their success rates."""
    rows = [[r.env_id, str(r.n), percent(r.success, r.low, r.high), f"{r.reward:.6g}", str(r.failed)] for r in results]
    graded = [r.success for r in results if r.failed < len(r.trajectories)]
    rows.append([f"mean of {len(graded)}", "", f"{100 * sum(graded) / max(1, len(graded)):.1f} %", "", ""])
    console.print(f"all played by {agent}", markup=False, style="bold")
    print_table(["environment", "tasks", "success (95 %)", "reward", "failed"], rows)


def _set_prompt(
    player: Agent, form: AnyPrompt, env: str, kwargs: dict[str, Any], around: dict[str, dict[str, Any]]
) -> None:
    """Set the prompt of a local model; examples come from the training split if there is one."""
    from rollenv.core.registry import spec
    from rollenv.trainers.config.tasks import EnvConfig
    from rollenv.trainers.prompts import prompt_of

    training = {**kwargs, "split": "train"}
    own = EnvConfig(id=env, kwargs=training if spec(env).accepts(training) else kwargs, wrappers=around)
    player.prompt = prompt_of(form, own)  # type: ignore[attr-defined]
    if form.stop:
        player.sampling = dataclasses.replace(player.sampling, stop=tuple(form.stop))  # type: ignore[attr-defined]


def _number_of_tasks(env: str, kwargs: dict[str, Any], n: str, continued: Path | None) -> int:
    """Return the number of tasks for -n; without it, a continued evaluation keeps its number."""
    from rollenv.core.registry import spec
    from rollenv.rollout.evaluate import tasks_of

    if n == "all" and not spec(env).indexed:
        raise UsageError(f"{env} draws its tasks from the seed, without end; say how many with -n, as in -n 100")
    if n not in ("", "all") and not (n.isascii() and n.isdecimal() and int(n) > 0):
        raise UsageError(f"-n is a number of tasks from 1, or all, not {n!r}")
    number = int(n) if n.isdecimal() else None
    if not n and continued is not None:
        number = tasks_before(continued)
    return len(tasks_of(env, kwargs, number))


def model_of(agent: str) -> str:
    """Return the folder of an agent's model; empty for other agents."""
    kind, _, argument = agent.partition(":")
    return argument if kind in ("local", "vllm") else ""


def _print(result: Evaluation, agent: str) -> None:
    console.print(f"{result.env_id} played by {agent}", markup=False, style="bold")
    tasks = str(result.n) if result.k == 1 else f"{result.n} × {result.k}"
    numbers = [tasks, percent(result.success, result.low, result.high), str(result.wrong), str(result.failed)]
    numbers += [f"{result.reward:.6g}", f"{result.turns:.1f}", f"{result.seconds:.1f}"]
    of = "episodes " if result.k > 1 else ""
    print_table(["tasks", "success (95 %)", f"{of}wrong", f"{of}failed", "reward", "turns", "seconds"], [numbers])
    if result.k > 1:
        rows = [[str(j), percent(*result.pass_at[j]), percent(*result.pass_all[j])] for j in result.pass_at]
        print_table(["k", "pass@k: one of k (95 %)", "pass^k: all k (95 %)"], rows)
    if result.repeats:
        over = percent(result.success, result.tasks_low, result.tasks_high)
        console.print(f"{result.distinct} different tasks among {result.n}; over tasks {over}")
    if not result.success and any(t.reward > 0 for t in result.trajectories):
        console.print("rewards, but no success: an environment may never say `success` in its info", soft_wrap=True)
    if any(t.record.get("seats") for t in result.trajectories):
        success = "success is how often one of them, in turn another, wins against the others"
        told = f"{agent} takes all seats: {success}; `rollenv arena` compares agents"
        console.print(told, markup=False, soft_wrap=True)
    print_answers(result.trajectories, agent)
    if result.failed:
        print_failures(result.trajectories, result.failures)


def print_answers(trajectories: Sequence[Trajectory], agent: str) -> None:
    """Print how many answers were empty, and how many were cut."""
    turns = [turn for t in trajectories for turn in t.turns if turn.finish != "forfeit"]
    if lost := [t.error for t in trajectories if t.complete and t.error]:
        console.print(f"{len(lost)} games ended by a failure; the first: {lost[0]}", markup=False, soft_wrap=True)
    if full := sum(t.status == "truncated" and not t.turns for t in trajectories):
        console.print(f"{full} episodes had no turn: their first prompt leaves no room for an answer in the context")
    if empty := sum(not turn.text.strip() for turn in turns):
        console.print(f"{empty} of {len(turns)} answers were empty")
    if cut := sum(turn.finish == "length" for turn in turns):
        ours = model_of(agent) or agent.startswith(("chat:", "harness:"))
        advice = "raise --max-tokens" if ours else "raise the agent's limit"
        console.print(f"{cut} of {len(turns)} answers were cut at the limit of tokens: {advice}")


def print_failures(trajectories: Sequence[Trajectory], failures: Mapping[str, int]) -> None:
    """Print the number of failures of each kind, and the first error of each."""
    failed = sum(failures.values())
    also, style = ", not graded: with --out, --resume plays them again", ""
    if failed > len(trajectories) / 2:
        part = "all" if failed == len(trajectories) else "most"
        also, style = f": {part} of them, so this says little about success", "bold red"
    error_console.print(f"{failed} episodes failed{also}", style=style)
    for kind, number in sorted(failures.items(), key=lambda each: -each[1]):
        first = next(t for t in trajectories if t.status == "failed" and (t.failure or "unknown") == kind)
        what = _FAILURES.get(kind, kind)
        error_console.print(f"  {number} {what}; the first: {first.error}", markup=False, soft_wrap=True)
