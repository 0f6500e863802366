"""tau2-bench's retail tasks as an environment, with scripted customers or ones played by a model."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollenv.core.env import StepResult
from rollenv.core.errors import UsageError
from rollenv.core.tools.backend import Change, differences
from rollenv.core.tools.calls import write_calls
from rollenv.envs.service.users import STOP, ChatUser, clean
from rollenv.envs.tools.base import Call, Judgement, Problem, ToolEnv, User, UserReply, counted
from rollenv.plugins.suites.tau2 import NEED
from rollenv.plugins.suites.tau2.retail import RetailBackend, Tables

#: Second person to first, longest first.
_PERSONS = (
    ("you are", "I am"), ("you're", "I'm"), ("you have", "I have"), ("you've", "I've"), ("you'd", "I'd"),
    ("you'll", "I'll"), ("you were", "I was"), ("yourself", "myself"), ("yours", "mine"), ("your", "my"),
    ("to you", "to me"), ("for you", "for me"), ("tell you", "tell me"), ("you", "I"),
)  # fmt: skip
_PERSON = re.compile("|".join(rf"\b{old}\b" for old, _ in _PERSONS), re.IGNORECASE)
_CONFIRM = (
    "confirm",
    "(yes",
    "yes/no",
    "proceed",
    "go ahead",
    "is that correct",
    "is this correct",
    "would you like me",
)
_ASKS = ("please provide", "please tell", "please share", "could you", "can you", "let me know", "may i have")
LEAVES = ("anything else", "with something else", "further assistance")
TRANSFERRED = "transferred to a human"


def in_first_person(text: str) -> str:
    """Return the first-person form of ``You are ...``."""
    forms = dict(_PERSONS)

    def changed(match: re.Match[str]) -> str:
        word = forms[match[0].lower()]
        start = match.start()
        begins = start == 0 or text[:start].rstrip()[-1:] in (".", "!", "?")
        return word[0].upper() + word[1:] if begins else word

    return _PERSON.sub(changed, text)


class Customer(User):
    """A scripted customer that follows the instructions of a task.

    A message without a question ends the conversation, as do the transfer to a human and the question whether there is
    anything else.

    Args:
        instructions: ``reason_for_call``, ``known_info``, ``unknown_info`` and ``task_instructions`` of the task.
    """

    def __init__(self, instructions: Mapping[str, Any]):
        super().__init__()
        self.parts = {key: in_first_person(str(value or "").strip(" .\n")) for key, value in instructions.items()}

    @property
    def opening(self) -> str:
        """Return the customer's first message."""
        return f"Hello. {self.parts['reason_for_call']}."

    def reply(self, message: str) -> UserReply:
        """Answer a message of the agent."""
        text = message.lower()
        if TRANSFERRED in text:
            return UserReply("", ends=True)
        if "?" not in text and not self.asked(text):
            return UserReply("", ends=True)
        if any(phrase in text for phrase in LEAVES):
            more = self.confirms(text)
            return UserReply("Yes. That is all." if more else "No, that is all. Thank you.", ends=not more)
        self.state["questions"] = self.state.get("questions", 0) + 1
        # Reply with the facts about the customer that the message asks for.
        known = self.parts.get("known_info", "")
        answers = []
        if any(word in text for word in ("your name", "zip", "identity", "verify", "authenticate", "user id")):
            answers.append(f"{known}.")
        if re.search(r"\bemail", text):
            emails = re.findall(r"[\w.+-]+@[\w.-]+\w", known)
            missing = self.parts.get("unknown_info") or "I do not have my email address"
            answers.append(f"My email is {emails[0]}." if emails else f"{missing}.")
            answers += [f"{known}."] if not emails and f"{known}." not in answers else []
        if "reason" in text and (reason := re.search(r"no longer needed|by mistake", self._everything().lower())):
            answers.append("It is no longer needed." if reason[0].startswith("no") else "I ordered it by mistake.")
        if self.confirms(text) and not answers:
            return UserReply("Yes.")
        return UserReply(" ".join(answers) or self._everything())

    @staticmethod
    def confirms(text: str) -> bool:
        """Return whether a message, in lower case, asks for a yes."""
        return any(phrase in text for phrase in _CONFIRM)

    @classmethod
    def asked(cls, text: str) -> bool:
        """Return whether a message, in lower case, is a request without a question mark."""
        return cls.confirms(text) or any(phrase in text for phrase in _ASKS)

    def _everything(self) -> str:
        parts = (self.parts["reason_for_call"], self.parts.get("known_info"), self.parts.get("task_instructions"))
        return " ".join(f"{part}." for part in parts if part)


_ROLE = (
    "You play a customer who talks with a shop's service. Stay in the role, write one short message at a time, tell "
    "only what is asked for and only what your instructions say; say that you do not know anything else. When your "
    f"request has been dealt with, or you are transferred, write {STOP} and nothing else.\n\nYour instructions:\n"
)


class ChatCustomer(User):
    """A customer played by a model behind an endpoint; :attr:`state` has the conversation.

    Args:
        base_url: URL before ``/chat/completions``. The key is ``OPENAI_API_KEY``, if it is set.
        patience: timeout of each of three tries, in seconds.
    """

    def __init__(self, instructions: Mapping[str, Any], model: str, base_url: str, patience: float = 120.0):
        super().__init__()
        self.player = ChatUser(model, base_url, patience)
        self.role = _ROLE + json.dumps(dict(instructions), ensure_ascii=False)
        self.state["heard"] = []

    def reply(self, message: str) -> UserReply:
        """Get the customer's reply to a message of the agent from the endpoint.

        Raises:
            CustomerFailed: the endpoint did not answer.
        """
        heard: list[dict[str, str]] = [*self.state["heard"], {"role": "user", "content": clean(message)}]
        text = self.player.act([{"role": "system", "content": self.role}, *heard])
        self.state["heard"] = [*heard, {"role": "assistant", "content": text}]
        return UserReply(text.replace(STOP, "").strip(), ends=STOP in text)


SPLITS = ("base", "train", "test")


class RetailEnv(ToolEnv):
    """A customer service with a policy: orders are cancelled, changed, returned and exchanged (tau2-bench, retail).

    A task is solved if its final database is that of the published actions. If these change nothing (11 of the 114
    tasks), the agent must also find the right customer, give the answers that the task lists, and transfer the customer
    if and only if the published actions do. ``info["metrics"]["db"]`` compares only the databases.

    Args:
        split: ``base`` (all), ``train`` or ``test``, as published.
        told: require the answers that a task lists in all tasks.
        user: ``script``, or ``chat:MODEL`` for a language model, whose episodes are not reproducible, whatever the
            spec declares for the default.
        base_url: URL of the endpoint for ``chat:MODEL``.
    """

    def __init__(
        self, *, split: str = "base", told: bool = False, user: str = "script", base_url: str = "", **settings: Any
    ):
        if split not in SPLITS:
            raise UsageError(f"split={split!r} is unknown; choose from {', '.join(SPLITS)}")
        if user != "script" and not str(user).startswith("chat:"):
            raise UsageError(f"user={user!r} is unknown; it is 'script' or 'chat:MODEL'")
        self.part, self.strict, self.user, self.base_url = split, told, user, base_url
        folder = NEED.found()
        self.path = folder / "db.json"
        self.shop = tables_of(self.path)
        self.policy = (folder / "policy.md").read_text(encoding="utf-8")
        self.rows = tasks_of(folder / "tasks.json", folder / "split_tasks.json", split)
        self.tasks = len(self.rows)
        if user != "script":
            self._chat({}, "")  # validates the settings early
        super().__init__(**settings)

    def problem(self, key: int) -> Problem:
        row = self.rows[key]
        instructions = row["user_scenario"]["instructions"]
        customer = Customer(instructions)
        backend = RetailBackend(self.shop)
        # The published actions, after finding the customer and before telling the answers.
        changed, done = _wanted(self.path, _gold(row))
        calls = [call for call, worked in zip(gold_calls(row), done, strict=True) if worked]
        if not any(changed.values()) and not any(name.startswith("find_user_id") for name, _ in calls):
            user = self.shop["users"][customer_of(self.shop, row)]
            arguments = {**user["name"], "zip": user["address"]["zip"]}
            calls = [("find_user_id_by_name_zip", arguments), *calls]
        answers = row["evaluation_criteria"]["communicate_info"] or ()
        return Problem(
            question=customer.opening,
            backend=backend,
            plan=[*([call] for call in calls), f"Done. {' '.join(answers)}".strip()],
            name=row["id"],
            answers=answers,
            user=customer if self.user == "script" else self._chat(instructions, customer.opening),
            policy=self.policy,
            category="writes" if any(changed.values()) else "reads",
        )

    def _chat(self, instructions: Mapping[str, Any], opening: str) -> User:
        chat = ChatCustomer(instructions, self.user.removeprefix("chat:"), self.base_url)
        chat.state["heard"].append({"role": "assistant", "content": opening})
        return chat

    def judge(self, problem: Problem) -> Judgement:
        row, data = self.rows[self.key], problem.backend.data()
        wanted = _wanted(self.path, _gold(row))[0]
        right = data["changed"] == wanted
        answered = self.answered(problem)
        success = right and (all(answered) or not self.strict)
        if not any(wanted.values()):
            gold_transfers = any(name == "transfer_to_human_agents" for name, _ in gold_calls(row))
            found = customer_of(self.shop, row) in data["found"]
            success = right and found and all(answered) and data["transferred"] == gold_transfers
        before = self._before(problem, wanted, data)
        aims = differences(before, _over(before, wanted))
        met, aside = counted(differences(before, _over(before, data["changed"])), aims)
        return Judgement(success, met / len(aims) if aims else float(success), aside)

    def answered(self, problem: Problem) -> list[bool]:
        """Return whether each answer was given; commas in numbers are ignored, as upstream."""
        text = "\n".join(self.messages).lower().replace(",", "")
        return [answer.lower() in text for answer in problem.answers]

    def changes(self) -> list[Change]:
        """Return the changes of the episode so far, field by field."""
        data = self.current.backend.data()
        before = self._before(self.current, data["changed"])
        start = {"found": [], "transferred": False}
        now = {name: data[name] for name in start}
        return differences({**before, **start}, {**_over(before, data["changed"]), **now})

    def _before(self, problem: Problem, *changed: Mapping[str, Any]) -> dict[str, Any]:
        """Return the initial versions of the records in any of the changes."""
        each = [data.get("changed", data) for data in changed]
        return {name: {key: records[key] for c in each for key in c[name]} for name, records in self.shop.items()}

    def _after(self, ended: bool, valid: bool, info: dict[str, Any]) -> StepResult:
        *result, info = super()._after(ended, valid, info)
        if "metrics" in info:
            wanted = _wanted(self.path, _gold(self.rows[self.key]))[0]
            answers = self.answered(self.current)
            info["metrics"]["db"] = float(self.current.backend.data()["changed"] == wanted)
            info["metrics"]["told"] = sum(answers) / len(answers) if answers else 1.0
        return (*result, info)  # type: ignore[return-value]

    def sample_random_action(self) -> str:
        """Return a lookup of something that exists."""
        rng = self.action_rng
        if rng.random() < 0.1:
            return self.closing()
        table, function = rng.choice((("users", "user"), ("orders", "order"), ("products", "product")))
        key = rng.choice(list(self.shop[table]))
        return write_calls([(f"get_{function}_details", {f"{function}_id": key})], self.calls)


def _over(before: Mapping[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the records with changes applied."""
    return {name: {**records, **changed[name]} for name, records in before.items()}


def gold_calls(row: Mapping[str, Any]) -> list[Call]:
    """Return the published actions of a task."""
    return [(action["name"], dict(action["arguments"])) for action in row["evaluation_criteria"]["actions"] or ()]


@functools.lru_cache(maxsize=4)
def _cached(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def tables_of(path: Path) -> Tables:
    """Return the tables of ``db.json``; cached, read-only."""
    found: Tables = _cached(path)
    return found


@functools.lru_cache(maxsize=8)
def tasks_of(path: Path, splits: Path, split: str) -> Sequence[Mapping[str, Any]]:
    """Return the tasks of a split, in the order of the file."""
    wanted = set(_cached(splits)[split])
    return [row for row in _cached(path) if row["id"] in wanted]


def _gold(row: Mapping[str, Any]) -> str:
    return json.dumps(gold_calls(row))


@functools.lru_cache(maxsize=512)
def _wanted(path: Path, calls: str) -> tuple[Mapping[str, Any], list[bool]]:
    """Return the changed records after calls, and whether each call worked: some of the published ones fail.

    The calls are a text, so that the result can be cached.
    """
    backend = RetailBackend(tables_of(path))
    worked = [not backend.call(name, arguments).failed for name, arguments in json.loads(calls)]
    return backend.data()["changed"], worked


def customer_of(shop: Tables, row: Mapping[str, Any]) -> str:
    """Return the id of a task's customer, from the published actions, else from the instructions."""
    backend = RetailBackend(shop)
    for name, arguments in gold_calls(row):
        if name.startswith("find_user_id"):
            backend.call(name, arguments)
    if backend.state["found"]:
        return str(backend.state["found"][-1])
    known = str(row["user_scenario"]["instructions"]["known_info"])
    words = set(re.findall(r"\w+", known))
    for key, user in shop["users"].items():
        full = {user["name"]["first_name"], user["name"]["last_name"], user["address"]["zip"]}
        if key in words or full <= words:
            return key
    return ""
