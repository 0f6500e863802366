"""The company's records and the customer's phone, with the customer's functions."""

from __future__ import annotations

import copy
from typing import Any, Literal

from rollenv.core.tools.backend import Backend, ToolError, tool
from rollenv.plugins.suites.tau2.retail import Record, Tables

#: The current date in the policy.
TODAY = "2025-02-25"
#: Tables by the first letter of ids.
TABLES = {"C": "customers", "L": "lines", "B": "bills", "D": "devices", "P": "plans"}


class Records(Backend):
    """The records, the caller's phone (``phone``), and the caller's identity and position (``caller``).

    Args:
        tables: the initial records. Plans and devices never change and are shared; the rest is copied.
    """

    def __init__(self, tables: Tables, phone: Record):
        own = {name: copy.deepcopy(dict(tables[name])) for name in ("customers", "lines", "bills")}
        caller = {"name": "", "phone_number": "", "abroad": False}
        super().__init__({**own, "phone": copy.deepcopy(phone), "caller": caller, "transferred": False})
        self.shared = {name: tables[name] for name in ("devices", "plans")}

    def record(self, key: str) -> Record:
        """Return a record by its id."""
        table = TABLES.get(key[:1], "")
        found = (self.shared if table in self.shared else self.state).get(table, {}).get(key)
        if found is None:
            raise ToolError(f"there is no record with the id {key[:100]!r}")
        return found

    def of_customer(self, customer_id: str, table: str, key: str) -> Record:
        """Return a line or a bill of a customer. ``table``: ``line`` or ``bill``."""
        if key not in self._customer(customer_id)[f"{table}_ids"]:
            raise ToolError(f"customer {customer_id} has no {table} {key[:100]!r}")
        return self.record(key)

    def _customer(self, customer_id: str) -> Record:
        if customer_id not in self.state["customers"]:
            raise ToolError(f"there is no customer with the id {customer_id[:100]!r}")
        return self.state["customers"][customer_id]  # type: ignore[no-any-return]

    def customer_with(self, phone_number: str) -> Record | None:
        """Return the customer with a number, their own or one of their lines'; only digits are compared."""
        wanted = _digits(phone_number)
        for customer in self.state["customers"].values():
            lines = [self.record(key) for key in customer["line_ids"]]
            if wanted and wanted in [_digits(each["phone_number"]) for each in (customer, *lines)]:
                return customer  # type: ignore[no-any-return]
        return None

    def bills_of(self, customer: Record, status: str) -> list[Record]:
        """Return the bills of a customer with a status, such as ``Overdue``."""
        bills = [self.record(key) for key in customer["bill_ids"]]
        return [bill for bill in bills if bill["status"] == status]

    # -- what follows for the phone ------------------------------------------------------------------------------------

    @property
    def line(self) -> Record:
        """The line of the phone."""
        number = self.state["caller"]["phone_number"]
        return next(line for line in self.state["lines"].values() if line["phone_number"] == number)

    def used_up(self) -> bool:
        """Return whether the line has no data left."""
        line = self.line
        limit = self.record(line["plan_id"])["data_limit_gb"] + line["data_refueling_gb"]
        return bool(line["data_used_gb"] >= limit)

    def asked_to_pay(self) -> Record | None:
        """The bill for which the customer has a payment request."""
        customer = self.customer_with(self.state["caller"]["phone_number"])
        waiting = self.bills_of(customer, "Awaiting Payment") if customer else []
        return waiting[0] if waiting else None


def tables_from(data: dict[str, list[Record]]) -> Tables:
    """Convert the lists of ``db.toml`` to tables by id."""
    return {name: {record[f"{name[:-1]}_id"]: record for record in data[name]} for name in TABLES.values()}


def phone_from(data: dict[str, Any]) -> Record:
    """Return the phone of ``user_db.toml``, with the defaults that the file omits."""
    phone = copy.deepcopy(data["device"])
    phone["active_apn_settings"] = {"reset_at_reboot": False, **phone["active_apn_settings"]}
    return {"vpn_performance": "", **phone}


def _digits(text: str) -> str:
    return "".join(each for each in text if each in "0123456789")


#: Signal strength and range of speeds (Mbps) of each network at the customer's position.
_NETWORKS = {
    "2G": ("poor", 0.1, 0.4),
    "3G": ("fair", 1.0, 5.0),
    "4G": ("good", 10.0, 100.0),
    "5G": ("excellent", 50.0, 500.0),
}
#: Factor on the speed by signal strength.
_SHARES = {"none": 0.0, "poor": 0.2, "fair": 0.5, "good": 0.8, "excellent": 1.0}
_BARS = {
    "none": "📵 No Signal",
    "poor": "📶¹ Poor",
    "fair": "📶² Fair",
    "good": "📶³ Good",
    "excellent": "📶⁴ Excellent",
}
#: Names of speeds by upper bound in Mbps.
_SPEEDS = ((1, "Very Poor"), (5, "Poor"), (25, "Fair"), (100, "Good"))
MODES = {"4g_5g_preferred": "5G", "4g_only": "4G", "3g_only": "3G", "2g_only": "2G"}


class Phone(Records):
    """A phone's settings, which a customer can see and change."""

    @property
    def phone(self) -> Record:
        """The settings."""
        return self.state["phone"]  # type: ignore[no-any-return]

    # -- how it behaves ------------------------------------------------------------------------------------------------

    def sim(self) -> str:
        """Return the state of the SIM card."""
        if self.phone["sim_card_missing"]:
            return "missing"
        return str(self.phone["sim_card_status"])

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
        """Return the speed of mobile data in Mbps, and its name."""
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
        """Return whether MMS can be sent, which works neither over Wi-Fi nor over 2G."""
        phone, allowed = self.phone, self.phone["app_statuses"]["messaging"]["permissions"]
        over_wifi = phone["wifi_calling_enabled"] and phone["wifi_calling_mms_over_wifi"]
        carried = self.online() and phone["network_technology_connected"] != "2G" and not over_wifi
        return bool(carried and phone["active_apn_settings"]["mmsc_url"] and allowed["storage"] and allowed["sms"])

    def status_bar(self) -> str:
        """Return the icons at the top of the screen."""
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
        if self.phone["wifi_enabled"]:
            return f"Wi-Fi is ON but {connected}."
        return "Wi-Fi is OFF."

    @tool
    def check_wifi_calling_status(self) -> str:
        """Look whether calls go over Wi-Fi."""
        return f"Wi-Fi Calling is {_on(self.phone['wifi_calling_enabled'])}."

    @tool
    def check_vpn_status(self) -> str:
        """Look whether a VPN is connected, and how well it performs."""
        performance = self.phone["vpn_performance"]
        if self.phone["vpn_connected"]:
            return f"VPN is ON and connected. Performance: {performance}."
        return "VPN is OFF."

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
        if self.online():
            return f"Speed test: {speed:.2f} Mbps ({name})."
        return f"Speed test failed: {name}."

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
        """Return the permissions of an app."""
        apps = self.phone["app_statuses"]
        if app_name not in apps:
            raise ToolError(f"there is no app {app_name[:100]!r}; there are {', '.join(apps)}")
        return apps[app_name]["permissions"]  # type: ignore[no-any-return]

    # -- changing ------------------------------------------------------------------------------------------------------

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


def _on(value: bool) -> str:
    return "ON" if value else "OFF"


#: The customer's functions.
CUSTOMER = tuple(Phone.functions())
