"""Text that matters for no task, for long prompts."""

from __future__ import annotations

import random

_PLACES = ("kitchen", "lobby", "car park", "bicycle shed", "reading room", "roof terrace", "post room", "gym", "cellar")
_PEOPLE = ("visitors", "cleaners", "new colleagues", "gardeners", "caterers", "painters", "interns", "neighbours")
_TIMES = ("in the morning", "on Fridays", "at weekends", "in summer", "during holidays", "after lunch", "in winter")
_SENTENCES = (
    "The {place} is open to {people} {time}.",
    "{People} leave the {place} as they found it {time}.",
    "A key to the {place} is handed out {time}.",
    "Plants in the {place} are watered {time}, except where {people} look after them.",
    "{People} may use the coffee machine next to the {place} {time}.",
    "Lights in the {place} go out by themselves {time}.",
    "Lost umbrellas are kept in the {place}, where {people} collect them {time}.",
    "The notice board of the {place} is cleared {time} by {people}.",
)


def filler(rng: random.Random, characters: int) -> str:
    """Sections of a staff handbook, without numbers or names.

    Args:
        characters: how long it is, to a sentence; empty for 0.
    """
    if not characters:
        return ""
    parts, length = ["Staff handbook, for information only:"], 0
    while length < characters:
        people = rng.choice(_PEOPLE)
        form = rng.choice(_SENTENCES)
        place, time = rng.choice(_PLACES), rng.choice(_TIMES)
        parts.append(form.format(place=place, people=people, People=people.capitalize(), time=time))
        length += len(parts[-1]) + 1
    return " ".join(parts)
