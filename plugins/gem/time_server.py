"""GEM's sample MCP server: six tools about dates and times. ``python -m rollenv.plugins.gem.time_server --help``"""

from __future__ import annotations

import argparse
import calendar
import re
from datetime import datetime, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from rollenv.core.needs import extra

#: The directives of a format.
_TOKENS = {"YYYY": "%Y", "YY": "%y", "MM": "%m", "DD": "%d", "HH": "%H", "mm": "%M", "ss": "%S", "A": "%p"}
_TOKEN = re.compile("|".join([*_TOKENS, "h"]))


def _zone(name: str | None) -> tzinfo | None:
    return ZoneInfo(name) if name else datetime.now().astimezone().tzinfo


def _moment(text: str | None, zone: str | None = None) -> datetime:
    if not text:
        return datetime.now(_zone(zone))
    return datetime.fromisoformat(text.strip().replace(" ", "T")).replace(tzinfo=_zone(zone))


def current_time(format: str = "YYYY-MM-DD HH:mm:ss", timezone: str | None = None) -> str:
    """The current date and time, in a format of YYYY, MM, DD, HH or h, mm, ss and A, in an IANA time zone."""
    now = _moment(None, timezone)
    return _TOKEN.sub(lambda m: str(now.hour % 12 or 12) if m[0] == "h" else now.strftime(_TOKENS[m[0]]), format)


def relative_time(time: str) -> str:
    """Return the span between a time, such as 2025-03-23 12:30:00, and now, in words."""
    seconds = int((_moment(time) - _moment(None)).total_seconds())
    size, unit = abs(seconds), "seconds"
    for step, name in ((60, "minutes"), (60, "hours"), (24, "days"), (30, "months"), (12, "years")):
        if size < step:
            break
        size, unit = size // step, name
    return f"in {size} {unit}" if seconds > 0 else f"{size} {unit} ago"


def days_in_month(date: str | None = None) -> str:
    """The number of days in the month of a date, such as 2025-03-23; by default of this month."""
    moment = _moment(date)
    return str(calendar.monthrange(moment.year, moment.month)[1])


def get_timestamp(time: str) -> str:
    """The Unix time in milliseconds of a local time, such as 2025-03-23 12:30:00.000."""
    return str(int(_moment(time).timestamp() * 1000))


def convert_time(sourceTimezone: str, targetTimezone: str, time: str) -> str:
    """A time of one IANA time zone in another."""
    return _moment(time, sourceTimezone).astimezone(_zone(targetTimezone)).strftime("%Y-%m-%d %H:%M:%S")


def get_week_year(date: str | None = None) -> str:
    """The number of the week and the ISO week of a date; by default of today."""
    moment = _moment(date)
    return f"week: {int(moment.strftime('%W'))}, isoWeek: {moment.isocalendar().week}"


TOOLS = (current_time, relative_time, days_in_month, get_timestamp, convert_time, get_week_year)


def server() -> Any:
    """The server, for the MCP SDK to run.

    Raises:
        MissingExtra: without the SDK.
    """
    with extra("tools", "An MCP server"):
        from mcp.server import MCPServer
    made = MCPServer("mcp-time-server")
    for tool in TOOLS:
        made.tool()(tool)
    return made


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return server()


def main() -> None:
    """Serve, as the arguments say."""
    parser = argparse.ArgumentParser(description="An MCP server with six tools about dates and times.")
    parser.add_argument("--transport", choices=["stdio", "http", "streamable-http"], default="streamable-http")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8081)
    parser.add_argument("--path", default="/time-mcp")
    parser.add_argument("--log-level", choices=["DEBUG", "INFO", "WARNING", "ERROR"], default="INFO")
    args = parser.parse_args()
    if args.transport == "stdio":
        server().run("stdio")
    else:
        server().run("streamable-http", host=args.host, port=args.port, streamable_http_path=args.path)


if __name__ == "__main__":
    main()
