"""tau2-bench's telecom tasks as an environment, with a scripted customer."""

from __future__ import annotations

import functools
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rollenv.core.errors import UsageError
from rollenv.core.tools.backend import ToolError, differences
from rollenv.core.tools.calls import write_calls
from rollenv.envs.tools.base import Judgement, Move, Problem, ToolEnv, UserReply, counted
from rollenv.plugins.suites.tau2 import TELECOM_NEED
from rollenv.plugins.suites.tau2.env import LEAVES, TRANSFERRED, Customer
from rollenv.plugins.suites.tau2.retail import Record, Tables
from rollenv.plugins.suites.tau2.telecom.backend import AGENT, TelecomBackend, charged
from rollenv.plugins.suites.tau2.telecom.phone import CUSTOMER, TODAY, Phone, phone_from, tables_from


class Request(NamedTuple):
    """A request to use a function of the phone."""

    name: str
    arguments: Mapping[str, Any]
    on: bool | None = None
    """Wanted setting; None for the opposite of the current one."""


class Topic(NamedTuple):
    """A topic of requests: a setting or function of the phone."""

    words: str
    check: str
    switch: str = ""
    """Function that turns it on and off."""
    key: str = ""
    """Key of the setting."""


#: The first match wins, so "Wi-Fi calling" comes before "Wi-Fi".
TOPICS = (
    Topic(r"(airplane|flight) mode", "check_network_status", "toggle_airplane_mode", "airplane_mode"),
    Topic(r"roaming", "check_network_status", "toggle_roaming", "roaming_enabled"),
    Topic(r"data[- ]sav", "check_data_restriction_status", "toggle_data_saver_mode", "data_saver_mode"),
    Topic(r"wi-?fi[- ]calling", "check_wifi_calling_status", "toggle_wifi_calling", "wifi_calling_enabled"),
    Topic(r"wi-?fi", "check_wifi_status", "toggle_wifi", "wifi_enabled"),
    Topic(r"(mobile|cellular) data\b(?! plan)", "check_network_status", "toggle_data", "data_enabled"),
    Topic(r"vpn", "check_vpn_status"),
    Topic(r"network mode|preferred network|network preference", "check_network_mode_preference"),
    Topic(r"sim\b", "check_sim_status"),
    Topic(r"apn\b", "check_apn_settings"),
    Topic(r"permissions?\b", "check_app_permissions"),
    Topic(r"apps\b", "check_installed_apps"),
    Topic(r"speed", "run_speed_test"),
    Topic(r"mms|picture message", "can_send_mms"),
    Topic(r"payment request", "check_payment_request"),
    Topic(r"status bar|icons?\b|bars\b|signal", "check_status_bar"),
    Topic(r"network|service\b|connection", "check_network_status"),
)
#: Plain words for functions that are not switches.
_WORDS = {
    "reboot_device": r"\b(reboot|restart|power[- ]cycle)\b",
    "reseat_sim_card": r"\b(re-?seat|re-?insert)\b",
    "reset_apn_settings": r"\breset\b.*\bapn\b",
    "disconnect_vpn": r"\b(disconnect|disable|(turn|switch) off)\b.*\bvpn\b|\bvpn off\b",
    "connect_vpn": r"\b(connect|enable|(turn|switch) on)\b.*\bvpn\b|\bvpn on\b",
    "make_payment": r"\b(pay|accept|approve)\b.*\b(bill|payment|request)\b",
    "grant_app_permission": r"\b(grant|allow|give|enable)\b.*\bpermissions?\b",
    "set_network_mode_preference": r"\b(set|change|switch)\b.*\b(network (mode|preference)|preferred network)",
}
#: Patterns of the names of functions, also as words: "check the status bar".
_NAMED = {name: re.compile(rf"\b{name.replace('_', r'[ _](?:(?:the|your|an?) )?')}\b") for name in CUSTOMER}
_PLAIN = {name: re.compile(pattern) for name, pattern in _WORDS.items()}
_SWITCH = re.compile(
    r"\b(toggle|turn|switch|put|set|make sure|ensure)\b|\b(enable|activate)\b|\b(disable|deactivate)\b"
)
_DIRECTION = re.compile(
    r"\b(?:turn|switch|put|set|toggle\w*|make sure|ensure)\b.*?\b(?:(on|enabled)|off|disabled)\b"
    r"(?! (?:your|the|this|that)\b)"
)
_BETWEEN = r"[,;]|\b(?:and|then|but|or)\b"
_LOOK = re.compile(r"\b(check|look|see|tell|show\w*|verify|confirm|is|are|what|which|whether|run|try|test|can you)\b")
_PAST = re.compile(r"\s*(did|have|has|had|is|are|was|were|do|does|what|which|how|why|when)\b")
_NOT = re.compile(r"\b(don.?t|do not|never|without|no need|not need|avoid|cannot|can.?t|already|you (ran|did|used))\b")
_MYSELF = re.compile(r"\b(i|we|i.ll|we.ll|i.ve|we.ve|let me|let us)\b")
_YOU = re.compile(r"\b(you to|please|(can|could|would|will) you)\b")
_MOST_READ = 5_000
_MODES = ((r"5g", "4g_5g_preferred"), (r"4g", "4g_only"), (r"3g", "3g_only"), (r"2g", "2g_only"))


def requests_in(message: str) -> list[Request]:
    """Return the requests of a message, in order, each once."""
    found: list[Request] = []
    text = re.sub(r"\([^()\n]*\)", lambda given: given[0].replace(",", " "), message[:_MOST_READ].lower())
    for sentence in re.findall(r"[^.!?\n]+[.!?\n]?", text):
        topic = None
        clauses = [sentence] if "permission" in sentence else re.split(_BETWEEN, sentence)
        for clause in clauses:
            named = _topics(clause)
            if named:
                topic = named[0]
            if not _NOT.search(clause):
                asks = not _PAST.match(sentence) and (_YOU.search(clause) or not _MYSELF.search(clause))
                actions = list(_actions(clause, topic)) if asks else []
                found += actions or _checks(clause, named, sentence.endswith("?"))
    once: dict[tuple[str, str], Request] = {}
    for each in found:
        once.setdefault((each.name, str(each.arguments)), each)
    return list(once.values())


def _topics(clause: str) -> list[Topic]:
    """Return the topics of a clause; each word counts for one topic only."""
    left, topics = clause.replace("_", " "), []
    for topic in TOPICS:
        if re.search(rf"\b(?:{topic.words})", left):
            left = re.sub(rf"\b(?:{topic.words})", "|", left)
            topics.append(topic)
    return topics


def _actions(clause: str, topic: Topic | None) -> Iterator[Request]:
    names = [name for name in CUSTOMER if _NAMED[name].search(clause)]
    if not names:
        names = [name for name, words in _PLAIN.items() if words.search(clause)]
    for name in names:
        for arguments in _arguments(name, clause):
            yield Request(name, arguments, _direction(clause) if name.startswith("toggle") else None)
    about = _topics(clause) or ([topic] if topic and re.search(r"\bit\b", clause) else [])
    if not names and about and about[0].switch and _SWITCH.search(clause):
        yield Request(about[0].switch, {}, _direction(clause))


def _direction(clause: str) -> bool | None:
    if found := _DIRECTION.search(clause.replace("_", " ")):
        return found[1] is not None
    switched = _SWITCH.search(clause)
    return None if switched is None or switched[1] else bool(switched[2])


def _arguments(name: str, clause: str) -> list[dict[str, Any]]:
    """Return the arguments of a call; nothing if the clause does not give them."""
    app = "browser" if "browser" in clause else "messaging"
    if name == "set_network_mode_preference":
        modes = [mode for _, mode in _MODES if mode in clause] or [mode for word, mode in _MODES if word in clause]
        return [{"mode": mode} for mode in modes[:1]]
    if name == "grant_app_permission":
        wanted = [each for each in ("sms", "storage", "phone", "network") if re.search(rf"\b{each}\b", clause)]
        return [{"app_name": app, "permission": each} for each in wanted]
    if name in ("check_app_permissions", "check_app_status"):
        return [{"app_name": app}]
    return [{}]


def _checks(clause: str, topics: list[Topic], question: bool) -> list[Request]:
    if not topics or not (question or _LOOK.search(clause)):
        return []
    return [Request(topic.check, _arguments(topic.check, clause)[0]) for topic in topics]


#: Number of complaints before a customer gives up.
_COMPLAINTS = 2
#: Maximum number of actions of a customer for one message.
_AT_ONCE = 3
_TOO_MUCH = "That is too much at once. I have done no more than this."
_KEYS = {topic.switch: topic.key for topic in TOPICS if topic.switch}
_WHO = re.compile(r"\b(name|number|who|identity|verify|where|abroad|travel\w*|location|country|home)\b")
_AGREES = re.compile(r"\b(okay|ok|agree|do you want|would you like|(?<!how )(?<!what )(may|shall|should|can) i)\b")
#: Signs of success, by a word of the reason for the call: the function that shows it, and a pattern of its result.
_AIMS = (
    ("mms", "can_send_mms", r" can send"),
    ("mobile data", "run_speed_test", r"\(Excellent\)"),
    ("", "check_status_bar", r"📶"),
)


class PhoneCustomer(Customer):
    """A scripted customer who carries out requests on the phone and reports the results.

    Functions are requested by name or in plain words ("please turn off airplane mode"). After a message without a
    request, the customer checks whether the phone works. If it does, they leave; else they complain, and leave after
    the second complaint. A transfer ends the conversation.
    """

    def __init__(self, instructions: Mapping[str, Any], backend: Phone):
        super().__init__(instructions)
        self.backend = backend
        reason = self.parts["reason_for_call"].lower()
        self.aim = next((check, works) for word, check, works in _AIMS if word in reason)

    def reply(self, message: str) -> UserReply:
        """Answer a message of the agent."""
        text = message.lower()
        if TRANSFERRED in text or self.backend.state["transferred"]:
            return UserReply("", ends=True)
        if wanted := requests_in(message):
            done = [self._done(each) for each in wanted[:_AT_ONCE]]
            return UserReply("\n".join([*done, *([_TOO_MUCH] if len(wanted) > _AT_ONCE else [])]))
        asks = "?" in text or self.asked(text)
        if not asks or any(phrase in text for phrase in LEAVES):
            check, works = self.aim
            shown = self._call(check)
            if re.search(works, shown):
                return UserReply("It works now. Thank you.", ends=True)
            complaints = self.state["complaints"] = self.state.get("complaints", 0) + 1
            return UserReply(f"It still does not work. {shown}", ends=complaints > _COMPLAINTS)
        if "plan" in text and re.search(r"\b(change|switch|upgrade)\b", text):
            return UserReply("I do not want to change my plan, but I would pay for 2 GB more.")
        if _WHO.search(text):
            return UserReply(f"{self.parts['known_info']}.")
        if "how much" in text or "how many" in text:
            return UserReply("2 GB.")
        return UserReply(
            "Yes."
            if self.confirms(text) or _AGREES.search(text)
            else f"{self.parts['reason_for_call']}. {self.parts['known_info']}."
        )

    def _done(self, request: Request) -> str:
        key = _KEYS.get(request.name)
        if key and request.on is not None and self.backend.phone[key] == request.on:
            return f"It is already {'on' if request.on else 'off'}. {self._call('check_status_bar')}"
        return self._call(request.name, request.arguments)

    def _call(self, name: str, arguments: Mapping[str, Any] | None = None) -> str:
        return self.backend.call(name, arguments or {}, CUSTOMER).text


Row = Mapping[str, Any]
#: Changes of the phone by the actions that set up a task, and whether it then searches for a network.
_PHONE: dict[str, tuple[Record, bool]] = {
    "turn_airplane_mode_on": ({"airplane_mode": True}, True),
    "turn_data_off": ({"data_enabled": False}, True),
    "turn_roaming_on": ({"roaming_enabled": True}, True),
    "turn_roaming_off": ({"roaming_enabled": False}, True),
    "turn_data_saver_mode_on": ({"data_saver_mode": True}, False),
    "unseat_sim_card": ({"sim_card_missing": True}, True),
    "break_vpn": ({"vpn_connected": True, "vpn_performance": "poor"}, False),
    "simulate_network_search": ({}, True),
}


@functools.lru_cache(maxsize=4)
def rows_of(folder: Path) -> Sequence[Row]:
    """Return the tasks of the small set, in the order of the file; cached, read-only."""
    rows: Sequence[Row] = json.loads((folder / "tasks_small.json").read_text(encoding="utf-8"))
    return rows


@functools.lru_cache(maxsize=4)
def _given(folder: Path) -> tuple[Tables, Record]:
    company, user = (tomllib.loads((folder / name).read_text(encoding="utf-8")) for name in ("db.toml", "user_db.toml"))
    return tables_from(company), phone_from(user)


def backend_of(folder: Path, key: int) -> TelecomBackend:
    """Return the company and the phone at the start of a task."""
    return _start(folder, key).twin()


@functools.lru_cache(maxsize=64)
def _start(folder: Path, key: int) -> TelecomBackend:
    backend = TelecomBackend(*_given(folder))
    for action in rows_of(folder)[key]["initial_state"]["initialization_actions"]:
        # These actions break something.
        name = action["func_name"]
        given = action["arguments"]
        phone = backend.phone
        if name in _PHONE:
            changes, searches = _PHONE[name]
            phone |= changes
            if searches:
                backend.search_network()
        elif name in ("set_user_info", "set_user_location"):
            backend.state["caller"] |= given
        elif name == "lock_sim_card":
            phone["sim_card_status"] = f"locked_{given['mode']}"
            backend.search_network()
        elif name == "break_apn_settings":
            phone["active_apn_settings"]["apn_name"] = "broken"
            backend.search_network()
        elif name == "break_apn_mms_setting":
            phone["active_apn_settings"]["mmsc_url"] = ""
        elif name == "set_wifi_calling":
            phone |= {"wifi_calling_enabled": given["enabled"], "wifi_calling_mms_over_wifi": given["mms_over_wifi"]}
        elif name == "remove_app_permission":
            phone["app_statuses"][given["app_name"]]["permissions"][given["permission"]] = False
        elif name == "set_data_usage":
            backend.of_customer(given["customer_id"], "line", given["line_id"])["data_used_gb"] = given["data_used_gb"]
        elif name == "suspend_line_for_overdue_bill":
            _suspend(backend, **given)
        elif (answer := backend.call(name, given)).failed:
            raise ToolError(f"a task cannot be set up: {answer.text}")
    return backend


@functools.lru_cache(maxsize=64)
def goal_of(folder: Path, key: int) -> Mapping[str, Any]:
    """Return the state after the published actions of a task; cached, read-only."""
    backend = backend_of(folder, key)
    for action in rows_of(folder)[key]["evaluation_criteria"]["actions"]:
        backend.call(action["name"], action["arguments"])
    return backend.data()


def _suspend(backend: TelecomBackend, customer_id: str, line_id: str, new_bill_id: str, contract_ended: bool) -> None:
    line = backend.of_customer(customer_id, "line", line_id)
    price = backend.record(line["plan_id"])["price_per_month"]
    dates = {"period_start": "2025-01-01", "period_end": "2025-01-31", "issue_date": "2025-01-01"}
    owed = {"total_due": price, "due_date": "2025-01-15", "status": "Overdue"}
    items = [charged(f"Charge for line {line_id}", price)]
    bill = {"bill_id": new_bill_id, "customer_id": customer_id, **dates, **owed, "line_items": items}
    backend.state["bills"][new_bill_id] = bill
    backend.record(customer_id)["bill_ids"].append(new_bill_id)
    line |= {"status": "Suspended", "suspension_start_date": TODAY}
    if contract_ended:
        line["contract_end_date"] = "2025-01-31"


def checks_of(backend: TelecomBackend, row: Row) -> list[bool]:
    """Return whether each condition of a task's final state holds."""
    wanted = row["evaluation_criteria"]
    held = [
        _holds(backend, each["func_name"], each["arguments"]) == each["assert_value"]
        for each in wanted["env_assertions"]
    ]
    # In the tasks that are judged by actions, the only required action is the transfer.
    if "ACTION" in wanted["reward_basis"]:
        return [*held, backend.state["transferred"]]
    return held


def _holds(backend: TelecomBackend, name: str, given: Mapping[str, Any]) -> bool:
    match name:
        case "assert_mobile_data_status":
            return backend.online() == bool(given["expected_status"])
        case "assert_internet_speed":
            speed, called = backend.speed()
            return bool(speed >= given["expected_speed"]) and called.lower() == given["expected_desc"].lower()
        case "assert_can_send_mms":
            return backend.sends_mms() == bool(given["expected_status"])
        case "assert_service_status":
            return bool(backend.phone["network_connection_status"] == given["expected_status"])
        case "assert_no_overdue_bill":
            bill = backend.state["bills"].get(given["overdue_bill_id"])
            return bill is None or bill["status"] == "Paid"
        case "assert_data_refueling_amount":
            line = backend.of_customer(given["customer_id"], "line", given["line_id"])
            return bool(abs(line["data_refueling_gb"] - given["expected_amount"]) < 1e-6)
    raise ValueError(f"the tasks have an assertion that is not known here: {name}")


SUPPORT = ("manual", "workflow")
_TRANSFER = "transfer_to_human_agents"
_ON_HOLD = "YOU ARE BEING TRANSFERRED TO A HUMAN AGENT. PLEASE HOLD ON."


class TelecomEnv(ToolEnv):
    """A company's technical support: a customer's phone has no service, slow data or no MMS (tau2-bench, telecom).

    The agent's functions change the company's records; the customer changes the phone on request. A task is solved if
    its published assertions hold at the end; two of the 20 also require a transfer. As upstream, only the final state
    counts: an immediate transfer solves these two, and requesting every repair without any diagnosis solves 14 others,
    most of them with ``side_effects``.

    The customer is scripted; a language model cannot play them yet.

    Args:
        support: text on technical support in the policy: ``manual`` or ``workflow``.
    """

    def __init__(self, *, support: str = "manual", **settings: Any):
        if support not in SUPPORT:
            raise UsageError(f"support={support!r} is unknown; choose from {', '.join(SUPPORT)}")
        self.folder = TELECOM_NEED.found()
        texts = {"main_policy": "main_policy.md", "tech_support_policy": f"tech_support_{support}.md"}
        parts = [(tag, (self.folder / name).read_text(encoding="utf-8").strip()) for tag, name in texts.items()]
        self.policy = "\n".join(f"<{tag}>\n{text}\n</{tag}>" for tag, text in parts)
        self.rows = rows_of(self.folder)
        self.tasks = len(self.rows)
        super().__init__(**settings)

    def problem(self, key: int) -> Problem:
        row, backend = self.rows[key], backend_of(self.folder, key)
        customer = PhoneCustomer(row["user_scenario"]["instructions"], backend)
        # The published actions: calls for the agent's, requests for the customer's.
        moves: list[Move] = []
        for action in row["evaluation_criteria"]["actions"]:
            if action["requestor"] == "user":
                moves.append(_asking(action["name"], action["arguments"]))
            else:
                moves.append([(action["name"], dict(action["arguments"]))])
        ends = any(action["name"] == _TRANSFER for action in row["evaluation_criteria"]["actions"])
        return Problem(
            question=customer.opening,
            backend=backend,
            plan=[*moves, _ON_HOLD if ends else "Done."],
            name=row["id"],
            goal=goal_of(self.folder, key),
            user=customer,
            policy=self.policy,
            tools=AGENT,
            category=row["id"].partition("]")[0].strip("["),
        )

    def judge(self, problem: Problem) -> Judgement:
        row, start, now = self.rows[self.key], problem.start, problem.backend.data()
        broken = [not held for held in checks_of(backend_of(self.folder, self.key), row)]
        held = checks_of(problem.backend, row)  # type: ignore[arg-type]
        mended = sum(was and is_so for was, is_so in zip(broken, held, strict=True))
        _, aside = counted(differences(start, now), differences(start, problem.wanted))
        return Judgement(all(held), mended / sum(broken), aside)

    def sample_random_action(self) -> str:
        """Return a lookup of records, or a request to check the phone."""
        rng = self.action_rng
        if rng.random() < 0.1:
            return self.closing()
        if rng.random() < 0.5:
            return _asking(rng.choice([name for name in CUSTOMER if name.startswith("check") and "app" not in name]))
        state = self.current.backend.data()
        key = rng.choice([key for table in ("customers", "lines", "bills") for key in state[table]])
        return write_calls([("get_details_by_id", {"id": key})], self.calls)


def _asking(name: str, arguments: Mapping[str, Any] | None = None) -> str:
    written = ", ".join(f"{key}={value!r}" for key, value in (arguments or {}).items())
    return f"Please use {name}({written}) on your phone."
