"""The changes that a customer can make on the phone."""

from __future__ import annotations

from typing import Literal

from rollenv.envs.tools.tau2.telecom.phone import Phone
from rollenv.tools.backend import ToolError, tool


class Settings(Phone):
    """The settings that a customer can see and change."""

    def _now(self, text: str) -> str:
        return f"{text}\n{self.check_status_bar()}"

    def _switch(self, key: str, name: str, searches: bool = False) -> str:
        self.phone[key] = not self.phone[key]
        if searches:
            self.search_network()
        return self._now(f"{name} is now {'ON' if self.phone[key] else 'OFF'}.")

    @tool
    def toggle_airplane_mode(self) -> str:
        """Switch airplane mode on or off. On, it ends every connection."""
        self.phone.update({"wifi_connected": False, "wifi_signal_strength": "none"})
        if not self.phone["airplane_mode"]:
            self.phone.update({"vpn_connected": False, "vpn_performance": ""})
        return self._switch("airplane_mode", "Airplane Mode", searches=True)

    @tool
    def toggle_data(self) -> str:
        """Switch mobile data on or off."""
        return self._switch("data_enabled", "Mobile Data", searches=True)

    @tool
    def toggle_roaming(self) -> str:
        """Switch data roaming, for use abroad, on or off."""
        return self._switch("roaming_enabled", "Data Roaming", searches=True)

    @tool
    def toggle_data_saver_mode(self) -> str:
        """Switch Data Saver, which slows down data, on or off."""
        return self._switch("data_saver_mode", "Data Saver Mode")

    @tool
    def toggle_wifi(self) -> str:
        """Switch Wi-Fi on or off."""
        if self.phone["airplane_mode"]:
            return self._now("Wi-Fi cannot be changed while Airplane Mode is ON.")
        return self._switch("wifi_enabled", "Wi-Fi")

    @tool
    def toggle_wifi_calling(self) -> str:
        """Switch calls over Wi-Fi on or off."""
        return self._switch("wifi_calling_enabled", "Wi-Fi Calling")

    @tool
    def set_network_mode_preference(self, mode: Literal["4g_5g_preferred", "4g_only", "3g_only", "2g_only"]) -> str:
        """Choose the networks that the phone uses.

        Args:
            mode: 4g_5g_preferred is the fastest.
        """
        self.phone["network_mode_preference"] = mode
        self.search_network()
        return self._now(f"Preferred Network Mode is now {mode}.")

    @tool
    def reseat_sim_card(self) -> str:
        """Take the SIM card out and put it in again."""
        self.phone["sim_card_missing"] = False
        self.search_network()
        return self._now("The SIM card is in its place.")

    @tool
    def reset_apn_settings(self) -> str:
        """Go back to the company's access point settings; it needs a reboot."""
        self.phone["active_apn_settings"]["reset_at_reboot"] = True
        return self._now("The APN settings will be reset at the next reboot.")

    @tool
    def connect_vpn(self) -> str:
        """Connect to the VPN."""
        if self.phone["vpn_connected"]:
            return self._now("The VPN is already connected.")
        self.phone.update({"vpn_connected": True, "vpn_performance": "excellent"})
        return self._now("The VPN is connected.")

    @tool
    def disconnect_vpn(self) -> str:
        """Disconnect from the VPN."""
        if not self.phone["vpn_connected"]:
            return self._now("There is no VPN to disconnect.")
        self.phone.update({"vpn_connected": False, "vpn_performance": ""})
        return self._now("The VPN is disconnected.")

    @tool
    def grant_app_permission(self, app_name: str, permission: str) -> str:
        """Allow an app to do something.

        Args:
            app_name: such as 'messaging'.
            permission: sms, storage, phone or network.
        """
        permissions = self.permissions(app_name)
        if permission.lower() not in permissions:
            raise ToolError(f"there is no permission {permission[:100]!r}; there are {', '.join(permissions)}")
        permissions[permission.lower()] = True
        return self._now(f"The app {app_name} now has the permission {permission.lower()}.")

    @tool
    def reboot_device(self) -> str:
        """Restart the phone."""
        settings = self.phone["active_apn_settings"]
        if settings["reset_at_reboot"]:
            fresh = {"apn_name": "internet", "mms_apn": "mms", "mmsc_url": "http://mms.carrier.com/mms/wapenc"}
            settings |= {**fresh, "reset_at_reboot": False}
        self.search_network()
        return self._now("The phone has restarted.")

    @tool
    def make_payment(self) -> str:
        """Pay the bill for which there is a payment request."""
        bill = self.asked_to_pay()
        if bill is None:
            return "There is no payment request."
        bill["status"] = "Paid"
        return f"Paid {bill['total_due']} USD for bill {bill['bill_id']}."


#: The customer's functions.
CUSTOMER = tuple(Settings.functions())
