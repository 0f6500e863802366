"""The scripted customer of tau2's telecom, who carries out requests on a phone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from rollenv.core.tools.backend import Answer
from rollenv.envs.tools.base import UserReply
from rollenv.plugins.suites.tau2.env import LEAVES, TRANSFERRED, Customer

#: Functions of the phone that messages are read for.
CUSTOMER = (
    "can_send_mms", "check_apn_settings", "check_app_permissions", "check_app_status",
    "check_data_restriction_status", "check_installed_apps", "check_network_mode_preference", "check_network_status",
    "check_payment_request", "check_sim_status", "check_status_bar", "check_vpn_status", "check_wifi_calling_status",
    "check_wifi_status", "connect_vpn", "disconnect_vpn", "grant_app_permission", "make_payment", "reboot_device",
    "reseat_sim_card", "reset_apn_settings", "run_speed_test", "set_network_mode_preference", "toggle_airplane_mode",
    "toggle_data", "toggle_data_saver_mode", "toggle_roaming", "toggle_wifi", "toggle_wifi_calling",
)  # fmt: skip


class Phone(Protocol):
    """A phone as its customer sees it."""

    @property
    def phone(self) -> Mapping[str, Any]:
        """The settings, by name."""

    @property
    def transferred(self) -> bool:
        """The agent has transferred the customer to a human."""

    def call(self, name: str, arguments: Mapping[str, Any], /) -> Answer:
        """Use a function of the phone."""


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
        if TRANSFERRED in text or self.backend.transferred:
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
        return self.backend.call(name, arguments or {}).text
