"""The customer's phone: what it shows, and how its radio behaves."""

from __future__ import annotations

from rollenv.envs.tools.tau2.store import Record
from rollenv.envs.tools.tau2.telecom.records import Records
from rollenv.tools.backend import ToolError, tool

#: How strong each network is where the customer is, and the speeds in Mbps between which it works.
_NETWORKS = {
    "2G": ("poor", 0.1, 0.4),
    "3G": ("fair", 1.0, 5.0),
    "4G": ("good", 10.0, 100.0),
    "5G": ("excellent", 50.0, 500.0),
}
#: The share of the speed that a signal leaves.
_SHARES = {"none": 0.0, "poor": 0.2, "fair": 0.5, "good": 0.8, "excellent": 1.0}
_BARS = {
    "none": "📵 No Signal",
    "poor": "📶¹ Poor",
    "fair": "📶² Fair",
    "good": "📶³ Good",
    "excellent": "📶⁴ Excellent",
}
#: Upper ends of the speeds in Mbps that have a name.
_SPEEDS = ((1, "Very Poor"), (5, "Poor"), (25, "Fair"), (100, "Good"))
MODES = {"4g_5g_preferred": "5G", "4g_only": "4G", "3g_only": "3G", "2g_only": "2G"}


class Phone(Records):
    """The readable state of a phone."""

    @property
    def phone(self) -> Record:
        """The settings."""
        return self.state["phone"]  # type: ignore[no-any-return]

    # -- how it behaves ------------------------------------------------------------------------------------------------

    def sim(self) -> str:
        """The state of the SIM card."""
        return "missing" if self.phone["sim_card_missing"] else str(self.phone["sim_card_status"])

    def search_network(self) -> None:
        """Connect to the network that the settings and the line allow."""
        phone = self.phone
        settings_work = not phone["airplane_mode"] and phone["active_apn_settings"]["apn_name"] != "broken"
        served = self.sim() == "active" and settings_work and self.line["status"] == "Active"
        technology = MODES[phone["network_mode_preference"]] if served else "none"
        phone["network_connection_status"] = "connected" if served else "no_service"
        phone["network_technology_connected"] = technology
        phone["network_signal_strength"] = _NETWORKS[technology][0] if served else "none"

    def online(self) -> bool:
        """Return whether mobile data works."""
        phone = self.phone
        served = phone["network_connection_status"] == "connected" and phone["network_signal_strength"] != "none"
        roams = phone["roaming_enabled"] and self.line["roaming_enabled"]
        allowed = phone["data_enabled"] and (roams or not self.state["caller"]["abroad"]) and not self.used_up()
        return bool(served and not phone["airplane_mode"] and allowed)

    def speed(self) -> tuple[float, str]:
        """Mbps of mobile data, and what such a speed is called."""
        phone = self.phone
        if not self.online():
            return 0.0, "No Connection"
        share = _SHARES[phone["network_signal_strength"]]
        share *= 0.1 if phone["vpn_connected"] and phone["vpn_performance"] == "poor" else 1.0
        share *= 0.2 if phone["data_saver_mode"] else 1.0
        _, slowest, fastest = _NETWORKS[phone["network_technology_connected"]]
        speed = round((slowest + fastest) / 2 * share, 2)
        return speed, next((name for limit, name in _SPEEDS if speed < limit), "Excellent")

    def sends_mms(self) -> bool:
        """Return whether pictures can be sent. The company has no MMS over Wi-Fi, nor over 2G."""
        phone, allowed = self.phone, self.phone["app_statuses"]["messaging"]["permissions"]
        over_wifi = phone["wifi_calling_enabled"] and phone["wifi_calling_mms_over_wifi"]
        carried = self.online() and phone["network_technology_connected"] != "2G" and not over_wifi
        return bool(carried and phone["active_apn_settings"]["mmsc_url"] and allowed["storage"] and allowed["sms"])

    def status_bar(self) -> str:
        """The icons at the top of the screen."""
        phone, technology = self.phone, self.phone["network_technology_connected"]
        if phone["airplane_mode"]:
            icons = ["✈️ Airplane Mode"]
        else:
            connected = technology != "none"
            icons = [_BARS[phone["network_signal_strength"]], *([technology] if connected else [])]
            data = connected and phone["data_enabled"]
            icons.append("📱 Data Enabled" if data else "📵 Data Disabled")
            icons += ["🔽 Data Saver"] if data and phone["data_saver_mode"] else []
        icons += ["📡 Enabled"] if phone["wifi_connected"] else []
        icons += ["🔒 VPN Connected"] if phone["vpn_connected"] else []
        return " | ".join([*icons, f"🔋 {phone['battery_level']}%"])

    # -- looking -------------------------------------------------------------------------------------------------------

    @tool
    def check_status_bar(self) -> str:
        """Read the icons at the top of the screen: signal, network, mobile data, Wi-Fi, VPN and battery."""
        return f"Status Bar: {self.status_bar()}"

    @tool
    def check_network_status(self) -> str:
        """Look at the connections: airplane mode, SIM card, signal, type of network, mobile data, roaming, Wi-Fi."""
        phone = self.phone
        shown = {
            "Airplane Mode": _on(phone["airplane_mode"]),
            "SIM Card Status": self.sim(),
            "Cellular Connection": phone["network_connection_status"],
            "Cellular Signal": phone["network_signal_strength"],
            "Cellular Network Type": phone["network_technology_connected"],
            "Mobile Data Enabled": "Yes" if phone["data_enabled"] else "No",
            "Data Roaming Enabled": "Yes" if phone["roaming_enabled"] else "No",
            "Wi-Fi Radio": _on(phone["wifi_enabled"]),
            "Wi-Fi Connected": "Yes" if phone["wifi_connected"] else "No",
        }
        return "\n".join(f"{name}: {value}" for name, value in shown.items())

    @tool
    def check_network_mode_preference(self) -> str:
        """Look which networks the phone is set to use."""
        return f"Network Mode Preference: {self.phone['network_mode_preference']}"

    @tool
    def check_sim_status(self) -> str:
        """Look whether the SIM card works, is missing or is locked."""
        shown = {"active": "active and working", "missing": "missing: there is none in the phone"}
        return f"The SIM card is {shown.get(self.sim(), 'locked with a PIN code')}."

    @tool
    def check_data_restriction_status(self) -> str:
        """Look whether Data Saver limits the use of data."""
        return f"Data Saver mode is {_on(self.phone['data_saver_mode'])}."

    @tool
    def check_apn_settings(self) -> str:
        """Look at the access point for mobile data and at the address for picture messages."""
        settings = self.phone["active_apn_settings"]
        return f"Current APN Name: {settings['apn_name']}\nMMSC URL: {settings['mmsc_url'] or 'Not Set'}"

    @tool
    def check_wifi_status(self) -> str:
        """Look whether Wi-Fi is on and connected."""
        connected = "connected" if self.phone["wifi_connected"] else "not connected to any network"
        return f"Wi-Fi is ON but {connected}." if self.phone["wifi_enabled"] else "Wi-Fi is OFF."

    @tool
    def check_wifi_calling_status(self) -> str:
        """Look whether calls go over Wi-Fi."""
        return f"Wi-Fi Calling is {_on(self.phone['wifi_calling_enabled'])}."

    @tool
    def check_vpn_status(self) -> str:
        """Look whether a VPN is connected, and how well it performs."""
        performance = self.phone["vpn_performance"]
        return f"VPN is ON and connected. Performance: {performance}." if self.phone["vpn_connected"] else "VPN is OFF."

    @tool
    def check_installed_apps(self) -> str:
        """List the apps."""
        return f"These apps are installed: {', '.join(self.phone['app_statuses'])}."

    @tool
    def check_app_permissions(self, app_name: str) -> str:
        """Look what an app may do.

        Args:
            app_name: such as 'messaging'.
        """
        allowed = [name for name, granted in self.permissions(app_name).items() if granted]
        return f"The app {app_name} has these permissions: {', '.join(allowed) or 'none'}."

    @tool
    def check_app_status(self, app_name: str) -> str:
        """Look at the details of an app.

        Args:
            app_name: such as 'messaging'.
        """
        return f"The app {app_name} is installed. {self.check_app_permissions(app_name)}"

    @tool
    def run_speed_test(self) -> str:
        """Measure the speed of the internet connection."""
        speed, name = self.speed()
        return f"Speed test failed: {name}." if not self.online() else f"Speed test: {speed:.2f} Mbps ({name})."

    @tool
    def can_send_mms(self) -> str:
        """Try whether the messaging app can send pictures."""
        return f"The messaging app {'can' if self.sends_mms() else 'cannot'} send MMS messages."

    @tool
    def check_payment_request(self) -> str:
        """Look whether there is a request to pay a bill."""
        bill = self.asked_to_pay()
        if bill is None:
            return "There is no payment request."
        return f"There is a payment request for bill {bill['bill_id']} of {bill['total_due']} USD."

    def permissions(self, app_name: str) -> dict[str, bool]:
        """Return the permissions of an app.

        Raises:
            ToolError: there is no such app.
        """
        apps = self.phone["app_statuses"]
        if app_name not in apps:
            raise ToolError(f"there is no app {app_name[:100]!r}; there are {', '.join(apps)}")
        return apps[app_name]["permissions"]  # type: ignore[no-any-return]


def _on(value: bool) -> str:
    return "ON" if value else "OFF"
