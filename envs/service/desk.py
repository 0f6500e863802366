"""Generated service tasks at the desks of a shop and of an airline, with customers who vary."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from rollenv.core.env import ResetResult, StepResult
from rollenv.core.errors import UsageError
from rollenv.core.tools.backend import Answer, ToolError, tool
from rollenv.core.tools.calls import find_calls
from rollenv.envs.service.check import Scenario
from rollenv.envs.service.env import ScriptedPlayer, ServiceEnv, ServiceProblem
from rollenv.envs.tools.base import Informant, Move, Problem
from rollenv.envs.tools.generated import words
from rollenv.envs.tools.generated.goals import World, date_of, refuses
from rollenv.envs.tools.generated.shop import make_shop


class AirlineWorld(World):
    """Passengers and bookings."""

    def _active(self, booking_id: str) -> dict[str, Any]:
        booking = self.record("bookings", booking_id)
        if booking["status"] != "active":
            raise ToolError(f"booking {booking_id} is {booking['status']}")
        return booking

    @tool
    def find_passengers(self, name: str) -> list[dict[str, Any]]:
        """Search passengers by name; gives ids and names."""
        return self.matching("passengers", "name", name)

    @tool
    def list_bookings(self, passenger_id: str) -> list[dict[str, Any]]:
        """The bookings of a passenger: ids and routes."""
        found = self.state["bookings"].items()
        return [{"id": key, "route": one["route"]} for key, one in found if one["passenger"] == passenger_id]

    @tool
    def get_booking(self, booking_id: str) -> dict[str, Any]:
        """All data of a booking: passenger, route, date, fare, bags, status."""
        return self.record("bookings", booking_id)

    @tool
    def cancel_booking(self, booking_id: str) -> str:
        """Cancel a booking."""
        self._active(booking_id)["status"] = "cancelled"
        return f"booking {booking_id} is cancelled"

    @tool
    def change_date(self, booking_id: str, date: str) -> str:
        """Move a booking to another day, such as 2031-05-14."""
        self._active(booking_id)["date"] = str(date_of(date))
        return f"booking {booking_id} is moved"

    @tool
    def set_bags(self, booking_id: str, bags: Annotated[int, Field(ge=0, le=9)]) -> str:
        """Set the number of bags of a booking."""
        self._active(booking_id)["bags"] = bags
        return f"booking {booking_id} has {bags} bags"


def make_airline(rng: random.Random, size: int) -> AirlineWorld:
    """Generate ``size`` bookings of half as many passengers; a small airline has short names and ids."""
    small = size <= 40
    names = rng.sample(words.FIRST, size // 2) if small else words.people(rng, size // 2)
    numbers = rng.sample(range(10, 100) if small else range(1000, 9000), size)
    passengers = {f"C{number}": {"name": name} for number, name in zip(numbers, names, strict=False)}
    routes = words.pairs(rng, words.CITIES[:11], tuple(f"to {city}" for city in words.CITIES[11:]), size)
    fares, states = ("basic", "flexible"), ("active", "active", "active", "cancelled")
    bookings = {
        f"B{number}": {
            "passenger": rng.choice(list(passengers)),
            "route": route,
            "date": words.day("2031-01-01", rng.randrange(365)),
            "fare": rng.choice(fares),
            "bags": rng.randrange(3),
            "status": rng.choice(states),
        }
        for number, route in zip(numbers, routes, strict=True)
    }
    return AirlineWorld({"passengers": passengers, "bookings": bookings})


class Wish(NamedTuple):
    """Something that customers want."""

    function: str
    status: str
    asks: tuple[str, ...]
    ruled: bool = True
    """True if the desk's rule can forbid it."""
    argument: str = ""
    question: str = ""
    value: Callable[[random.Random], Any] = lambda rng: None
    """Draws what the customer withholds."""


class Desk(NamedTuple):
    """A kind of service: its world, functions, rule, and what customers want."""

    make: Callable[[random.Random, int], World]
    people: str
    table: str
    find: str
    listing: str
    get: str
    rule: str
    forbids: Callable[[Mapping[str, Any]], bool]
    thing: Callable[[Mapping[str, Any], Mapping[str, Any]], str]
    wishes: Sequence[Wish]


DESKS = {
    "shop": Desk(
        make_shop, "customers", "orders", "find_customers", "list_orders", "get_order",
        "An order with a discount is neither cancelled nor refunded.", lambda order: bool(order["discount"]),
        lambda state, order: str(state["products"][order["product"]]["name"]),
        (
            Wish("cancel_order", "pending", ("I do not want the {} any more.", "Please cancel my {}.")),
            Wish("refund_order", "delivered", ("I want my money back for the {}.", "Please refund the {}.")),
            Wish("change_address", "pending", ("Send my {} to another address.", "My {} goes to the wrong place."),
                 False, "address", "What is the new address?", words.address),
        ),
    ),
    "airline": Desk(
        make_airline, "passengers", "bookings", "find_passengers", "list_bookings", "get_booking",
        "A booking with the fare basic is neither cancelled nor moved.", lambda booking: booking["fare"] == "basic",
        lambda state, booking: str(booking["route"]),
        (
            Wish("cancel_booking", "active", ("I cannot fly from {}.", "Please cancel my flight from {}.")),
            Wish("change_date", "active", ("I want to fly from {} on another day.", "Please move my flight from {}."),
                 True, "date", "What is the new date?", lambda rng: words.day("2032-01-01", rng.randrange(365))),
            Wish("set_bags", "active", ("I bring more bags on the flight from {}.", "Change my bags from {}."), False,
                 "bags", "How many bags?", lambda rng: rng.randint(3, 9)),
        ),
    ),
}  # fmt: skip
_PERSONAS = {
    "plain": "{}", "polite": "Good day. {} Thank you.", "hurried": "Quickly please: {}",
    "chatty": "It has been a long week. {} I hope that is fine.", "upset": "I am not happy. {}",
}  # fmt: skip
_POLICY = (
    "You work at the desk of {}. Ask for the customer's name if they do not give it, look at what the request is "
    'about, and ask for what is missing. {} What the rule forbids is not done: say "I cannot". A message with a '
    "question mark is a question; any other ends the conversation."
)


@dataclass
class DeskProblem(ServiceProblem):
    """A generated service task."""

    refused: bool = False


class DeskEnv(ServiceEnv):
    """The desk of a shop or an airline: a customer wants one thing, which a rule may forbid.

    Customers differ in persona and phrasing, and in what they say before they are asked. A task is solved if the final
    state is right, the agent has looked at what the request is about, and the last message refuses if and only if the
    rule forbids the request.

    Args:
        desk: ``shop`` or ``airline``.
        size: number of records, 4 to 500.
        brief: show in one line what the customer has said, in plain words, the last call and its result, with values
            as they are written in calls; for tiny models.
    """

    def __init__(
        self, *, desk: str = "shop", size: int = 12, brief: bool = False, max_turns: int = 12, **settings: Any
    ):
        if desk not in DESKS:
            raise UsageError(f"desk={desk!r} is unknown; choose from {', '.join(DESKS)}")
        if type(size) is not int or not 4 <= size <= 500 or not isinstance(brief, bool):
            raise UsageError(
                f"size is a whole number from 4 to 500 and brief true or false; got {size!r} and {brief!r}"
            )
        self.desk, self.size, self.brief = desk, size, brief
        super().__init__(max_turns=max_turns, **settings)

    def problem(self, key: int) -> Problem:
        rng, desk = random.Random(key), DESKS[self.desk]
        fits: list[str] = []
        while not fits:
            world, wish = desk.make(rng, self.size), rng.choice(desk.wishes)
            refused = wish.ruled and rng.random() < 0.5
            records = world.state[desk.table]
            fits = [key for key, one in records.items()
                    if one["status"] == wish.status and (not wish.ruled or desk.forbids(one) == refused)]  # fmt: skip
        chosen = rng.choice(fits)
        owner_field, item = desk.people.removesuffix("s"), {f"{desk.table.removesuffix('s')}_id": chosen}
        owner = records[chosen][owner_field]
        name, persona = world.state[desk.people][owner]["name"], "plain" if self.brief else rng.choice(list(_PERSONAS))
        told, asks = rng.random() < 0.5, rng.choice(wish.asks).format(desk.thing(world.state, records[chosen]))
        as_written = repr if self.brief else str
        facts: list[tuple[Sequence[str], str]] = [(("name", "who"), f"I am {as_written(name)}.")]
        act = (wish.function, item)
        if wish.argument:
            value = wish.value(rng)
            facts.append(((wish.argument,), f"The {wish.argument}: {as_written(value)}."))
            act = (wish.function, item | {wish.argument: value})
        plan: list[Move] = [] if told else ["What is your name?"]
        plan += [[(desk.find, {"name": name})], [(desk.listing, {f"{owner_field}_id": owner})], [(desk.get, item)]]
        if not refused:
            plan += [wish.question] if wish.argument else []
            plan += [[act]]
        says = _PERSONAS[persona].format
        user = Informant([(keys, says(answer)) for keys, answer in facts])
        opening = says(f"{facts[0][1]} {asks}" if told else asks)
        return DeskProblem(
            question="",
            backend=world,
            plan=[*plan, "I cannot do that." if refused else "Done."],
            name=str(key),
            policy=_POLICY.format("an airline" if self.desk == "airline" else "a shop", desk.rule),
            tools=[desk.find, desk.listing, desk.get, *(wish.function for wish in desk.wishes)],
            category=f"{wish.function}{' refused' * refused}",
            scenario=Scenario(asks, " ".join(answer for _, answer in facts), persona, calls=[act]),
            script=lambda backend: ScriptedPlayer(user, opening),
            refused=refused,
        )

    def answered(self, problem: Problem) -> list[bool]:
        last = self.messages[-1] if self.messages else ""
        return [self.looked, refuses(last) == problem.refused]  # type: ignore[attr-defined]

    def _call(self, name: str, arguments: dict[str, Any]) -> Answer:
        answer = super()._call(name, arguments)
        wanted = self.scenario.calls[-1][1].items()
        self.looked |= name == DESKS[self.desk].get and not answer.failed and arguments.items() <= wanted
        return answer

    def _brief_line(self) -> str:
        said = [each["content"] for each in self.heard if each["role"] == "assistant"]
        return " > ".join([" ".join(said), *self.done])

    def _fresh(self) -> None:
        super()._fresh()
        self.done: list[str] = []
        self.looked = False

    def _reset(self, options: dict[str, Any]) -> ResetResult:
        observation, info = super()._reset(options)
        return self._brief_line() if self.brief and not self.mover else observation, info

    def _step(self, action: str) -> StepResult:
        shown, reward, terminated, truncated, info = super()._step(action)
        if "tool_responses" in info:
            calls = self.current.backend.schemas(self.current.tools)
            made = [[call.name, *call.arguments.values()] for call in find_calls(action, self.calls, calls)[0]]
            self.done = [
                _values(each)[:500] for pair in zip(made, info["tool_responses"], strict=True) for each in pair
            ]
        return self._brief_line() if self.brief and not self.mover else shown, reward, terminated, truncated, info

    _KEPT = (*ServiceEnv._KEPT, "done", "looked")


def _values(data: Any) -> str:
    """Return the values of a call or a result, as they are written in Python."""
    if isinstance(data, str) and data[:1] in ("[", "{"):
        with contextlib.suppress(ValueError):
            return _values(json.loads(data))
    if isinstance(data, Mapping):
        data = list(data.values())
    return " ".join(map(_values, data)) if isinstance(data, list) else repr(data)
