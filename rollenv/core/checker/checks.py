"""The conformance suite behind :func:`check_env` and ``rollenv check``: one function for each promised property.

A check is handed a :class:`Subject` and returns if the property holds. It raises :class:`Broken` with what happened and
what to change if it does not, and :class:`NotApplicable` if the environment does not promise it.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import pickle
import random
import time
import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium.utils.env_checker

from rollenv.core.checker.digests import NotApplicable, TwinProcess, digest, expect_same, play, traces_of
from rollenv.core.checker.hostile import HOSTILE_ACTIONS
from rollenv.core.checker.players import check_players
from rollenv.core.checker.process import changes, generators, resources, surroundings
from rollenv.core.checker.results import expect_info, expect_step
from rollenv.core.env import Env
from rollenv.core.env_spec import EnvSpec
from rollenv.core.errors import Broken, EpisodeOver, Unsolvable, UsageError, describe
from rollenv.core.registry import spec

#: Seconds within which closed resources must be released.
_GRACE = 2.0

#: Maximum actions until an episode must end.
_LONGEST = 5000

#: A seed as large as those of training.
_LARGE_SEED = 2**47 + 1

#: Actions for environments that cannot sample their own.
_PLAIN_ACTIONS = ("\\boxed{1}", "up", "\\boxed{a}", "<answer>left</answer>", "0", "\\boxed{1 1}")


@dataclass(frozen=True)
class Finding:
    """The outcome of one check: ``ok`` is None if the property is not promised."""

    name: str
    ok: bool | None
    detail: str = ""


@dataclass(frozen=True)
class Subject:
    """An environment to check, and the number of seeds and steps."""

    make: Callable[[], Env]
    spec: EnvSpec | None
    abilities: frozenset[str]
    episodes: int
    twin_process: TwinProcess
    before: dict[str, Any] = field(default_factory=surroundings)

    @property
    def nondeterministic(self) -> bool:
        """True if two episodes with the same seed may differ."""
        return self.spec is not None and self.spec.nondeterministic

    def needs(self, ability: str) -> None:
        if ability not in self.abilities:
            raise NotApplicable(f"{ability!r} is not among its declared abilities")


def check_env(
    env: str | EnvSpec | Env | Callable[[], Env],
    *,
    abilities: Sequence[str] | None = None,
    episodes: int = 20,
) -> list[Finding]:
    """Check every property that an environment promises, and raise if any is broken.

    Args:
        env: an id, a spec, an instance that came from :func:`rollenv.make`, or a function that builds one.
        abilities: abilities to check; by default those of its spec.
        episodes: number of seeded episodes for the checks of oracle and random actions.

    Raises:
        Broken: with one line for each broken property.
    """
    findings = run_checks(env, abilities=abilities, episodes=episodes)
    broken = [f"  {f.name}: {f.detail}" for f in findings if f.ok is False]
    if broken:
        name = env.id if isinstance(env, EnvSpec) else str(env)
        raise Broken(f"{name} breaks {len(broken)} of {len(CHECKS)} properties:\n" + "\n".join(broken))
    return findings


def run_checks(
    env: str | EnvSpec | Env | Callable[[], Env],
    abilities: Collection[str] | None = None,
    episodes: int = 20,
    twin_process: TwinProcess | None = None,
    watch: Callable[[str], None] = lambda name: None,
) -> list[Finding]:
    """Run every check like :func:`check_env`, but return the findings instead of raising.

    Args:
        env: id, spec, environment, or a function that builds one.
        abilities: to check; by default those that the spec declares.
        twin_process: the second process to compare with; by default a new one.
        watch: called with the name of each check before it runs.

    Raises:
        Broken: a second environment cannot be built.
    """
    env_spec = _spec_of(env)
    make: Any = env
    if env_spec:
        make = env_spec.make
    elif isinstance(env, Env) and env.own_spec:
        make = env.spawn
    if not callable(make):
        raise Broken(f"{env!r} has no spec; pass a function that builds it instead")
    promised = env.own_spec if isinstance(env, Env) else env_spec
    if abilities is None and promised:
        abilities = promised.abilities
    declared = frozenset(abilities or ())
    if twin_process is None:
        with TwinProcess() as twin_process:
            return run_checks(env, abilities, episodes, twin_process, watch)
    subject, at = Subject(make, env_spec, declared, episodes, twin_process), "it cannot be made"
    try:
        with contextlib.closing(subject.make()) as env_made:
            for seed in (*range(episodes), _LARGE_SEED):  # what fails here would be the finding of many checks
                at = f"reset({seed}) failed"
                env_made.reset(seed)
    except (Exception, SystemExit) as error:
        return cannot(f"{at}: {describe(error)}")
    return [_run(name, check, subject, watch) for name, check in CHECKS.items()]


@functools.cache
def _kept_twin() -> TwinProcess:
    return TwinProcess()


def checks_in_helper(env_spec: EnvSpec, episodes: int) -> list[Finding]:
    """Run :func:`run_checks` in a :class:`~rollenv.core.checker.digests.HelperProcess`, reusing its twin process."""
    return run_checks(env_spec, None, episodes, _kept_twin())


def cannot(why: str) -> list[Finding]:
    """Return the findings on an environment that could not be checked."""
    return [Finding(name, False if name == "types" else None, why) for name in CHECKS]


def _run(name: str, check: Callable[[Subject], None], subject: Subject, watch: Callable[[str], None]) -> Finding:
    watch(name)
    try:
        check(subject)
    except NotApplicable as reason:
        return Finding(name, None, str(reason))
    except Broken as broken:
        return Finding(name, False, str(broken))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # any exception of the environment is the finding, SystemExit too
        return Finding(name, False, f"raised {describe(error)}")
    return Finding(name, True)


def _spec_of(env: str | EnvSpec | Env | Callable[[], Env]) -> EnvSpec | None:
    if isinstance(env, str):
        return spec(env)
    # `spec` of a wrapper made by hand is the inner one's
    found = env._rollenv_own_spec if isinstance(env, Env) else env
    return found if isinstance(found, EnvSpec) else None


# -- traces ----------------------------------------------------------------------------------------------------------


def _actions(subject_env: Env, can_sample: bool, seed: int, n: int) -> list[str]:
    """A sequence of actions that depends only on the seed."""
    if not can_sample:
        return [random.Random(seed + i).choice(_PLAIN_ACTIONS) for i in range(n)]
    subject_env.reset(seed)
    return [subject_env.sample_random_action() for _ in range(n)]


def _sequences(subject: Subject, seeds: int = 3, length: int = 12) -> list[tuple[int, list[str]]]:
    """Actions for some seeds, for the last one the expert's: solving a task may leave something."""
    env, out = subject.make(), []
    for seed in (*range(seeds - 1), _LARGE_SEED):
        out.append((seed, _actions(env, "random_action" in subject.abilities, seed, length)))
    env.reset(_LARGE_SEED)
    with contextlib.suppress(Exception):  # without an expert, or when it has won
        for turn in range(length):
            out[-1][1][turn] = env.oracle_action()
            env.step(out[-1][1][turn])
    env.close()
    return out


# -- the checks ------------------------------------------------------------------------------------------------------


def check_types(subject: Subject) -> None:
    """``reset``, ``step`` and ``render`` (before a reset too) return what the contract says, a mark per picture."""
    env = subject.make()
    try:
        rendered = env.render()
    except Exception as error:
        raise Broken(
            f"render() before the first reset() raised {describe(error)}; rollenv shows an environment "
            'before it is played, so return a str there too, such as ""'
        ) from error
    if not isinstance(rendered, str):
        raise Broken(f"render() before the first reset() returned {type(rendered).__name__}; return a str")
    for seed, actions in _sequences(subject):
        result: Any = env.reset(seed)
        if not (isinstance(result, tuple) and len(result) == 2):
            raise Broken(f"reset() returned {type(result).__name__}; return (observation, info)")
        if not isinstance(result[0], str) or not isinstance(result[1], dict):
            kinds = ", ".join(type(part).__name__ for part in result)
            raise Broken(f"reset() returned ({kinds}); return (str, dict)")
        expect_info(*result)
        for action in actions:
            observation, _, terminated, truncated, info = expect_step(env.step(action))
            expect_info(observation, info)
            if terminated and truncated:
                raise Broken("a step was both terminated (the task ended) and truncated (a limit did); set one of them")
            if terminated or truncated:
                if env.players == 1 and not isinstance(info.get("success", False), bool):
                    raise Broken(f"info['success'] is {info['success']!r}; make it a bool")
                break
    env.close()


def check_seeds(subject: Subject) -> None:
    """Equal seeds give equal episodes, also for the resets without a seed that follow, and in interleaved instances."""
    _deterministic(subject)
    one, two = subject.make(), subject.make()
    for seed, actions in _sequences(subject):
        first, second = play(one, actions, seed), play(one, actions)
        expect_same(first, play(two, actions, seed), f"two instances, both reset with seed {seed}")
        expect_same(second, play(two, actions), f"two instances after seed {seed}, at the next reset without a seed")
        one.reset(seed)
        two.reset(seed + 1)
        beside = [*first[:1], *play(one, actions, reset=False)]
        expect_same(beside, first, f"seed {seed}, with another episode begun beside it, and alone")
    one.close()
    two.close()


def check_replay(subject: Subject) -> None:
    """A new instance given the same seed and actions plays the same episode, regardless of what happened before."""
    _deterministic(subject)
    for seed, actions in _sequences(subject):
        with contextlib.closing(subject.make()) as used, contextlib.closing(subject.make()) as fresh:
            play(used, actions[:3], seed + 100)
            play(used, actions, seed)
            again, first = play(used, actions, seed), play(fresh, actions, seed)
            expect_same(again, first, f"a used and a fresh instance, seed {seed}")


def check_processes(subject: Subject) -> None:
    """Another process, with another hash seed, sees the same episodes."""
    _deterministic(subject)
    if subject.spec is None:
        raise NotApplicable("it has no spec, so no other process can build it")
    sequences = _sequences(subject)
    here = traces_of(subject.spec, sequences)
    there = subject.twin_process.traces(subject.spec, sequences)
    for (seed, _), a, b in zip(sequences, here, there, strict=True):
        what = f"this process and another one, seed {seed} (is hash() of a string, a set's order or the clock used?)"
        expect_same(a, b, what)


def _deterministic(subject: Subject) -> None:
    if subject.nondeterministic:
        raise NotApplicable("it is declared nondeterministic")


def check_global_rng(subject: Subject) -> None:
    """Neither ``random`` nor ``numpy.random`` nor torch's generator is used, and their state does not matter."""
    sequences = _sequences(subject)
    found = generators()
    saved = [state() for state, _, _ in found]
    try:
        traces = []
        for global_seed in (1, 2):
            for _, _, seed_it in found:
                seed_it(global_seed)
            before = [digest(state()) for state, _, _ in found]
            with contextlib.closing(subject.make()) as env:
                traces.append([play(env, actions, seed) for seed, actions in sequences])
            if [digest(state()) for state, _, _ in found] != before:
                raise Broken("it draws from or seeds the process's random, numpy.random or torch; use self.np_random")
        if not subject.nondeterministic:
            for a, b in zip(*traces, strict=True):
                expect_same(a, b, "the same seed under two states of the global generators")
    finally:
        for (_, restore, _), state in zip(found, saved, strict=True):
            restore(state)


def check_over(subject: Subject) -> None:
    """Stepping before ``reset`` or after the end raises :class:`EpisodeOver`."""
    env = subject.make()
    _expect_over(env, "before the first reset()")
    can_sample = "random_action" in subject.abilities
    env.reset(0)
    for turn in range(_LONGEST):
        result = env.step(env.sample_random_action() if can_sample else _PLAIN_ACTIONS[turn % len(_PLAIN_ACTIONS)])
        if result[2] or result[3]:
            _expect_over(env, "after the episode had ended")
            env.reset(1)
            env.step(env.sample_random_action() if can_sample else _PLAIN_ACTIONS[0])
            env.close()
            return
    raise Broken(f"no episode ended within {_LONGEST} actions; give it a limit of turns and return truncated=True")


def _expect_over(env: Env, when: str) -> None:
    with contextlib.suppress(EpisodeOver):
        env.step("x")
        raise Broken(f"step() {when} did not raise EpisodeOver; implement _reset() and _step() and let Env guard them")


def check_indexed(subject: Subject) -> None:
    """Numbered tasks can be chosen: each number gives one task for every seed, and other numbers are errors."""
    if subject.spec is None or not subject.spec.indexed:
        raise NotApplicable("it does not declare numbered tasks")
    env = subject.make()
    n = env.num_tasks()
    if type(n) is not int or n < 1:
        raise Broken(f"num_tasks() returned {n!r}; return a positive int")
    for index in {0, n // 2, n - 1}:
        first, again = (env.reset(seed, options={"index": index})[0] for seed in (1, 2))
        if first != again:
            raise Broken(f"the task {index} differs with the seed; options={{'index': i}} names one task")
    for wrong in (-1, n):
        with contextlib.suppress(UsageError):
            env.reset(0, options={"index": wrong})
            raise Broken(f"there are {n} tasks, but index {wrong} was not refused with a UsageError")
    env.close()


def check_options(subject: Subject) -> None:
    """``reset`` refuses an option that it does not know."""
    with contextlib.closing(subject.make()) as env, contextlib.suppress(UsageError):
        env.reset(0, options={"no_such_option": 1})
        raise Broken("reset(options={'no_such_option': 1}) was accepted; name the known ones in reset_options")


def check_state(subject: Subject) -> None:
    """``get_state`` is JSON, and ``set_state`` on another instance continues exactly, the next resets included."""
    subject.needs("state")
    for seed, actions in _sequences(subject):
        for cut in (0, 1, 4, 9):
            env, other = subject.make(), subject.make()
            env.reset(seed)
            over = any(result[2] or result[3] for result in map(env.step, actions[:cut]))
            if not over:
                other.reset(seed + 7)
                rest = actions[cut:]
                can_sample = "random_action" in subject.abilities
                where = f"seed {seed}, turn {cut}"
                state = json.loads(json.dumps(env.get_state()))
                other.set_state(state)
                if digest(other.get_state()) != digest(state):
                    raise Broken(f"get_state() after set_state() differs from what was set ({where})")
                both = f"an original and its restored copy ({where}; Env adds its random streams to _get_state)"
                if "state_key" in subject.abilities and env.state_key() != other.state_key():
                    raise Broken(f"{both} have other state keys; get_state() must hold all that an episode depends on")
                if can_sample and any(env.sample_random_action() != other.sample_random_action() for _ in range(3)):
                    raise Broken(f"{both} sample other actions; draw from self.action_rng")
                expect_same(play(env, rest, reset=False), play(other, rest, reset=False), both)
                expect_same(play(env, rest), play(other, rest), f"the resets after {both}")
            env.close()
            other.close()
            if over:
                break


def check_spawn(subject: Subject) -> None:
    """``spawn(same_state=True)`` copies and shares nothing; ``spawn()`` gives a fresh environment of the same kind."""
    subject.needs("spawn")
    for seed, actions in _sequences(subject):
        env, witness = subject.make(), subject.make()
        env.reset(seed)
        witness.reset(seed)
        twin = env.spawn(same_state=True)
        expected = play(witness, actions, reset=False)
        expect_same(play(twin, actions, reset=False), expected, f"a spawned twin and its original, seed {seed}")
        what = f"an environment before and after its twin played, seed {seed}"
        expect_same(play(env, actions, reset=False), expected, what)
        what = f"the next resets of an environment and its twin, seed {seed}"
        expect_same(play(env, actions), play(twin, actions), what)
        if subject.spec is not None:
            fresh = env.spawn()
            expect_same(play(fresh, actions, seed), play(env, actions, seed), f"a fresh spawn, seed {seed}")
            fresh.close()
        for e in (env, witness, twin):
            e.close()


def check_random_actions(subject: Subject) -> None:
    """Sampled actions always parse, follow the seed, and do not change the episode."""
    subject.needs("random_action")
    env = subject.make()
    for seed in range(subject.episodes):
        env.reset(seed)
        for turn in range(500):
            action = env.sample_random_action()
            result = env.step(action)
            if result[4].get("valid") is False:
                raise Broken(
                    f"the sampled action {action[:80]!r} did not parse (seed {seed}, turn {turn + 1}): {result[0][:99]}"
                )
            if result[2] or result[3]:
                break
    for seed, actions in _sequences(subject):
        if _actions(env, True, seed, 5) != _actions(env, True, seed, 5):
            raise Broken(f"the sampled actions differ between two resets with seed {seed}; draw from self.action_rng")
        plain = play(env, actions, seed)
        env.reset(seed)
        env.sample_random_action()
        again = play(env, actions, reset=False)
        if not subject.nondeterministic:
            expect_same(plain[1:], again, "with and without sampling; draw from self.action_rng")
    env.close()


def check_oracle(subject: Subject) -> None:
    """The oracle wins (``info["success"]``), or with several players gets to the end, as often as the spec promises.

    One loss says nothing of a promise of 95 % before 20 episodes are played; if need be, so many are.
    """
    subject.needs("oracle")
    env, lost, seed = subject.make(), list[int](), 0
    promised = subject.spec.oracle_success if subject.spec else 0.99
    most = max(subject.episodes, round(1 / max(0.01, 1 - promised)) if promised < 1 else 0)
    may_lose = round((1 - promised) * most, 6)
    while seed < (most if lost else subject.episodes) and len(lost) <= may_lose:
        env.reset(seed)
        for _ in range(10_000):
            try:
                result = env.step(env.oracle_action())
            except Unsolvable:
                result = ("", 0.0, True, False, {"success": False})
            if result[2] or result[3]:
                break
        if "success" not in result[4]:
            raise Broken(f"the last step of seed {seed} has no info['success']")
        if result[4]["success"] is False:
            lost.append(seed)
        seed += 1
    env.close()
    if len(lost) > may_lose:
        share = 1 - len(lost) / seed
        raise Broken(f"the oracle won {share:.0%} of {seed} episodes, not {promised:.0%}; it lost seeds {lost[:5]}")


def check_state_key(subject: Subject) -> None:
    """Equal keys render the same, and what renders the same in one episode has equal keys; seeds may differ unseen."""
    subject.needs("state_key")
    look_of: dict[str, str] = {}
    env = subject.make()
    for seed, actions in _sequences(subject, seeds=5, length=40):
        key_of: dict[str, str] = {}
        env.reset(seed)
        for action in (None, *actions):
            if action is not None:
                result = env.step(action)
                if result[2] or result[3]:
                    break
            key, look = env.state_key(), env.render()
            if (env.state_key(), env.render()) != (key, look):
                raise Broken("called twice without a step between, state_key() or render() gives two texts")
            if look and key_of.setdefault(look, key) != key:
                mover = "; render() of a game names the player to move" if env.players > 1 else ""
                raise Broken(
                    f"states of one episode that render the same have the keys {key_of[look]!r} and {key!r}{mover}:\n"
                    f"{look}"
                )
            if look_of.setdefault(key, look) != look:
                raise Broken(f"the key {key!r} belongs to two states:\n{look_of[key]}\n{look}")
    env.close()


def check_hostile(subject: Subject) -> None:
    """Empty, huge, binary, injected and malformed actions get an answer, never an exception."""
    env = subject.make()
    env.reset(0)
    for action in HOSTILE_ACTIONS:
        what = f"an action of {len(action):,} characters, {action[:60]!r},"
        try:
            result = env.step(action)
        except Exception as error:
            raise Broken(f"{what} raised {describe(error)[:200]}") from error
        if len(expect_step(result)[0]) > 200_000:
            raise Broken(f"{what} came back in an observation of {len(result[0])} characters")
        if result[2] or result[3]:
            env.reset(0)
    env.close()


def check_leaks(subject: Subject) -> None:
    """Soon after ``close()``, called twice, the process is as before: no thread, open file or child is left."""
    subject.make().close()  # objects that are loaded once and kept do not count
    before = resources()
    for seed, actions in _sequences(subject, seeds=2):
        env = subject.make()
        play(env, actions, seed)
        env.close()
        env.close()
    del env
    gc.collect()
    ends = time.monotonic() + _GRACE
    while left := {what: n - before[what] for what, n in resources().items() if n > before[what]}:
        if time.monotonic() > ends:
            what, n = next(iter(left.items()))
            raise Broken(f"{n} {what} left after close()")
        time.sleep(0.02)
    if changed := changes(subject.before, surroundings()):
        raise Broken(f"it changes what others in its process use: {', '.join(changed)}")


def check_spec(subject: Subject) -> None:
    """The spec can be pickled, and builds an equal environment afterwards."""
    if subject.spec is None or not isinstance(subject.spec.entry_point, str):
        raise NotApplicable("it has no spec, or its entry point is a callable, not a 'module:name' string")
    if (copy := pickle.loads(pickle.dumps(subject.spec))) != subject.spec:
        raise Broken("the spec is not equal to its pickled copy; keep its kwargs plain data")
    copy.make().close()


def check_gymnasium(subject: Subject) -> None:
    """Gymnasium's own checker passes without warnings about what rollenv can decide."""
    env = subject.make()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            gymnasium.utils.env_checker.check_env(env, skip_render_check=True)
        except Exception as error:
            raise Broken(f"gymnasium's check_env: {error}") from error
    texts = [text for w in caught if "WARN: " in (text := str(w.message))]  # others are the environment's own
    decided = ("render", "unwrapped version", "precision lowered")
    messages = [text for text in texts if not any(x in text for x in decided)]
    env.close()
    if messages:
        plain = messages[0].removeprefix("\x1b[33mWARN: ").removesuffix("\x1b[0m")
        raise Broken(f"gymnasium's check_env warns: {plain}")


CHECKS: dict[str, Callable[[Subject], None]] = {
    "types": check_types,
    "seeds": check_seeds,
    "replay": check_replay,
    "processes": check_processes,
    "global rng": check_global_rng,
    "over": check_over,
    "options": check_options,
    "indexed": check_indexed,
    "state": check_state,
    "spawn": check_spawn,
    "random actions": check_random_actions,
    "oracle": check_oracle,
    "players": check_players,
    "state key": check_state_key,
    "hostile": check_hostile,
    "leaks": check_leaks,
    "spec": check_spec,
    "gymnasium": check_gymnasium,
}
