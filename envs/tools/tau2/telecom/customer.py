"""A scripted customer with a phone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rollenv.envs.tools.tau2.customer import LEAVES, TRANSFERRED, Customer
from rollenv.envs.tools.tau2.telecom.requests import TOPICS, Request, requests_in
from rollenv.envs.tools.tau2.telecom.settings import CUSTOMER, Settings
from rollenv.envs.tools.users import Said

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

    def __init__(self, instructions: Mapping[str, Any], backend: Settings):
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
