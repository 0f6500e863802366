"""A scripted customer with a phone, and the requests that they understand."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from rollenv.envs.tools.problem import Said
from rollenv.envs.tools.tau2.customer import LEAVES, TRANSFERRED, Customer
from rollenv.envs.tools.tau2.telecom.phone import CUSTOMER, Phone


class Request(NamedTuple):
    """A function of the phone to use."""

    name: str
    arguments: Mapping[str, Any]
    on: bool | None = None
    """The setting to switch to; None for the opposite of the present one."""


class Topic(NamedTuple):
    """Something on the phone."""

    words: str
    check: str
    switch: str = ""
    """The function that turns it on and off."""
    key: str = ""
    """Of the setting."""


#: The first that fits is taken, so that "Wi-Fi calling" is not taken for "Wi-Fi".
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
#: Names of functions, also as words: "check the status bar".
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
            topic = named[0] if named else topic
            if not _NOT.search(clause):
                asks = not _PAST.match(sentence) and (_YOU.search(clause) or not _MYSELF.search(clause))
                actions = list(_actions(clause, topic)) if asks else []
                found += actions or _checks(clause, named, sentence.endswith("?"))
    once: dict[tuple[str, str], Request] = {}
    for each in found:
        once.setdefault((each.name, str(each.arguments)), each)
    return list(once.values())


def _topics(clause: str) -> list[Topic]:
    """Return the topics of a clause; a place in it is about one thing."""
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
    return [{"app_name": app}] if name in ("check_app_permissions", "check_app_status") else [{}]


def _checks(clause: str, topics: list[Topic], question: bool) -> list[Request]:
    if not topics or not (question or _LOOK.search(clause)):
        return []
    return [Request(topic.check, _arguments(topic.check, clause)[0]) for topic in topics]


#: How often a customer says that it still does not work, before they give up.
_COMPLAINTS = 2
#: How much a customer does for one message.
_AT_ONCE = 3
_TOO_MUCH = "That is too much at once. I have done no more than this."
_KEYS = {topic.switch: topic.key for topic in TOPICS if topic.switch}
_WHO = re.compile(r"\b(name|number|who|identity|verify|where|abroad|travel\w*|location|country|home)\b")
_AGREES = re.compile(r"\b(okay|ok|agree|do you want|would you like|(?<!how )(?<!what )(may|shall|should|can) i)\b")
#: What works, by a word of the reason for the call: the function that shows it, and how its result then reads.
_AIMS = (
    ("mms", "can_send_mms", r" can send"),
    ("mobile data", "run_speed_test", r"\(Excellent\)"),
    ("", "check_status_bar", r"📶"),
)


class PhoneCustomer(Customer):
    """Does on the phone what a message asks for, and reads out the result.

    A function is asked for by its name or in plain words ("please turn off airplane mode"). After a message that asks
    for nothing the customer looks whether the phone works now. If it does, they leave, else they say so, and leave
    when that has happened twice. A transfer ends the conversation.
    """

    def __init__(self, instructions: Mapping[str, Any], backend: Phone):
        super().__init__(instructions)
        self.backend = backend
        reason = self.parts["reason_for_call"].lower()
        self.aim = next((check, works) for word, check, works in _AIMS if word in reason)

    def reply(self, message: str) -> Said:
        """Answer a message of the agent."""
        text = message.lower()
        if TRANSFERRED in text or self.backend.state["transferred"]:
            return Said("", ends=True)
        if wanted := requests_in(message):
            done = [self._done(each) for each in wanted[:_AT_ONCE]]
            return Said("\n".join([*done, *([_TOO_MUCH] if len(wanted) > _AT_ONCE else [])]))
        asks = "?" in text or self.asked(text)
        if not asks or any(phrase in text for phrase in LEAVES):
            return self._leaving()
        if "plan" in text and re.search(r"\b(change|switch|upgrade)\b", text):
            return Said("I do not want to change my plan, but I would pay for 2 GB more.")
        if _WHO.search(text):
            return Said(f"{self.parts['known_info']}.")
        if "how much" in text or "how many" in text:
            return Said("2 GB.")
        return Said(
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

    def _leaving(self) -> Said:
        check, works = self.aim
        shown = self._call(check)
        if re.search(works, shown):
            return Said("It works now. Thank you.", ends=True)
        said = self.told["complaints"] = self.told.get("complaints", 0) + 1
        return Said(f"It still does not work. {shown}", ends=said > _COMPLAINTS)
