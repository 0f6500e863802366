"""Proxies that the environment names (``http_proxy`` and others): servers on this machine are reached without them."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass


def is_local(url: str) -> bool:
    """Return whether a URL is of this machine by its name or address, as Go decides it."""
    host = _host(url)
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified


def without_proxy(url: str) -> dict[str, None]:
    """Return ``mounts`` for a client of httpx, which reach the host of the URL directly if it is this machine."""
    host = _host(url)
    if not is_local(url):
        return {}
    return {f"all://[{host}]" if ":" in host else f"all://{host}": None}


def proxy_of(url: str) -> str:
    """Return the proxy through which a URL is reached, without its login; empty if there is none."""
    if is_local(url) or proxy_bypass(_host(url)):
        return ""
    proxies = getproxies()
    proxy = proxies.get(urlsplit(url).scheme) or proxies.get("all", "")
    return re.sub(r"//[^/]*@", "//", proxy)


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:  # an address without its bracket
        return ""
