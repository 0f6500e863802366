"""What a telecom customer of tau2 does for a message, and answers to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from rollenv.core.tools.backend import Answer
from rollenv.plugins.suites.tau2.phone import PhoneCustomer, requests_in

_SWITCHES = {"toggle_data": "data_enabled", "toggle_airplane_mode": "airplane_mode"}


class Phone:
    """A phone with two switches, whose data works if both are right."""

    def __init__(self) -> None:
        self.phone, self.transferred = {"data_enabled": True, "airplane_mode": False}, False

    def call(self, name: str, arguments: Mapping[str, Any], /) -> Answer:
        if key := _SWITCHES.get(name):
            self.phone[key] = not self.phone[key]
            return Answer(f"It is now {'ON' if self.phone[key] else 'OFF'}.")
        works = self.phone["data_enabled"] and not self.phone["airplane_mode"]
        return Answer("Speed test: 275.00 Mbps (Excellent)." if works else "Speed test failed: No Connection.")


def customer(phone: Phone) -> PhoneCustomer:
    told = {"reason_for_call": "Your mobile data is slow.", "known_info": "You are Ada Lee with 555-1."}
    return PhoneCustomer(told, phone)


@pytest.fixture
def backend() -> Phone:
    return Phone()


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        ("Please turn off airplane mode.", [("toggle_airplane_mode", False)]),
        ("If roaming is off, turn it on.", [("check_network_status", None), ("toggle_roaming", True)]),
        ("Is airplane mode on?", [("check_network_status", None)]),
        ("Don't turn on airplane mode.", []),
        ("I have enabled roaming on your line.", []),
        ("I will enable roaming on your line. Is that okay?", []),
        ("Did you reboot your phone?", []),
        ("Use toggle_roaming to turn it ON.", [("toggle_roaming", True)]),
        ("Please use toggle_roaming() on your phone.", [("toggle_roaming", None)]),
        ("Could you check the status bar?", [("check_status_bar", None)]),
        ("Please make sure that Data Roaming is turned on.", [("toggle_roaming", True)]),
        ("Reset your APN settings, then restart the device.", [("reset_apn_settings", None), ("reboot_device", None)]),
        ("Please run a speed test. Run the speed test now!", [("run_speed_test", None)]),
        ("1. Turn on mobile data\n2. Disable Data Saver", [("toggle_data", True), ("toggle_data_saver_mode", False)]),
        ("Please toggle Wi-Fi calling off.", [("toggle_wifi_calling", False)]),
        ("Please remove and re-insert your SIM card.", [("reseat_sim_card", None)]),
        ("Please pay the bill.", [("make_payment", None)]),
        ("What is your name and phone number?", []),
    ],
)  # fmt: skip
def test_what_a_message_asks_for(message: str, wanted: list[tuple[str, bool | None]]) -> None:
    assert [(each.name, each.on) for each in requests_in(message)] == wanted


def test_what_a_message_asks_for_with_arguments() -> None:
    (mode,) = requests_in("Please change the network mode preference to 5G.")
    assert mode.arguments == {"mode": "4g_5g_preferred"}
    granted = requests_in("Please grant the messaging app the SMS and storage permissions.")
    assert [each.arguments["permission"] for each in granted] == ["sms", "storage"]
    for message in ("Please use grant_app_permission.", "Set the network mode preference."):
        assert requests_in(message) == []


def test_a_switch_that_is_where_it_should_be_is_left_alone(backend: Phone) -> None:
    asked = customer(backend)
    assert "already on" in asked.reply("Please turn on mobile data.").text
    assert backend.phone["data_enabled"]
    assert "OFF" in asked.reply("Please toggle mobile data.").text


def test_a_customer_does_three_things_at_once(backend: Phone) -> None:
    asked = customer(backend)
    reply = asked.reply("Reboot your phone, run a speed test, turn off mobile data, and turn on airplane mode.").text
    assert "too much" in reply
    assert (backend.phone["data_enabled"], backend.phone["airplane_mode"]) == (False, False)
    assert "too much" not in asked.reply("Reboot your phone, run a speed test, and turn off mobile data.").text


def test_the_customer_answers_complains_and_leaves(backend: Phone) -> None:
    asked = customer(backend)
    assert "slow" in asked.reply("Hello! How can I help you today?").text
    assert "Ada Lee" in asked.reply("What is your name?").text
    assert asked.reply("Is it okay if I add 2 GB for $4?").text == "Yes."
    assert "do not want" in asked.reply("Do you want to change your plan?").text
    assert asked.reply("All good now.").ends
    backend.call("toggle_data", {})
    first = asked.reply("All good now.")
    assert "still" in first.text
    assert not first.ends
    assert not asked.reply("Is there anything else I can help you with?").ends
    assert asked.reply("Goodbye.").ends
    assert customer(backend).reply("YOU ARE BEING TRANSFERRED TO A HUMAN AGENT. PLEASE HOLD ON.").ends


@pytest.mark.parametrize(
    "piece", ["a ", "toggle ", "(", "reset ", "turn it ", "grant permission ", "\ud83d", "\n.", "set network "]
)
def test_long_messages_are_heard_quickly(backend: Phone, piece: str) -> None:
    assert len(customer(backend).reply(piece * 200_000).text) < 5000
