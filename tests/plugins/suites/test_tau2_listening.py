"""What a telecom customer of tau2 does for a message, and answers to it."""

from __future__ import annotations

import pytest
from telecom_company import call, company, customer

from rollenv.plugins.suites.tau2.telecom.backend import TelecomBackend
from rollenv.plugins.suites.tau2.telecom.env import requests_in


@pytest.fixture
def backend() -> TelecomBackend:
    return company()


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


def test_a_switch_that_is_where_it_should_be_is_left_alone(backend: TelecomBackend) -> None:
    asked = customer(backend)
    assert "already on" in asked.reply("Please turn on mobile data.").text
    assert backend.online()
    assert "OFF" in asked.reply("Please toggle mobile data.").text


def test_a_customer_does_three_things_at_once(backend: TelecomBackend) -> None:
    asked = customer(backend)
    reply = asked.reply("Reboot your phone, run a speed test, turn off mobile data, and turn on airplane mode.").text
    assert "too much" in reply
    assert (backend.phone["data_enabled"], backend.phone["airplane_mode"]) == (False, False)
    assert "too much" not in asked.reply("Reboot your phone, run a speed test, and turn off mobile data.").text


def test_the_customer_answers_complains_and_leaves(backend: TelecomBackend) -> None:
    asked = customer(backend)
    assert "slow" in asked.reply("Hello! How can I help you today?").text
    assert "Ada Lee" in asked.reply("What is your name?").text
    assert asked.reply("Is it okay if I add 2 GB for $4?").text == "Yes."
    assert "do not want" in asked.reply("Do you want to change your plan?").text
    assert asked.reply("All good now.").ends
    call(backend, "toggle_data")
    first = asked.reply("All good now.")
    assert "still" in first.text
    assert not first.ends
    assert not asked.reply("Is there anything else I can help you with?").ends
    assert asked.reply("Goodbye.").ends
    assert customer(backend).reply("YOU ARE BEING TRANSFERRED TO A HUMAN AGENT. PLEASE HOLD ON.").ends


@pytest.mark.parametrize(
    "piece", ["a ", "toggle ", "(", "reset ", "turn it ", "grant permission ", "\ud83d", "\n.", "set network "]
)
def test_long_messages_are_heard_quickly(backend: TelecomBackend, piece: str) -> None:
    assert len(customer(backend).reply(piece * 200_000).text) < 5000
