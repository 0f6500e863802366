"""Sequences of actions for GEM's games: good play, idle play, and every way to write an action that we thought of."""

from __future__ import annotations

import re

from rollenv import RollenvError

_BOX = re.compile(r"\\boxed\{([^{}]*)\}")
OTHER_DIGITS = str.maketrans("0123456789", "٠١٢٣٤٥٦٧٨٩")
WIDE_DIGITS = str.maketrans("0123456789", "０１２３４５６７８９")

#: Ways to write an action, from what stands in the box and what stands in another good box.
SPELLINGS = {
    "plain": lambda a, b: f"\\boxed{{{a}}}",
    "text around": lambda a, b: f"I think {b} or so.\nSo: $\\boxed{{{a}}}$. Done }}",
    "space before": lambda a, b: f"\\boxed{{ {a}}}",
    "space behind": lambda a, b: f"\\boxed{{{a} }}",
    "new lines": lambda a, b: f"\\boxed{{\n{a}\n}}",
    "upper case": lambda a, b: f"\\boxed{{{a.upper()}}}",
    "lower case": lambda a, b: f"\\boxed{{{a.lower()}}}",
    "title case": lambda a, b: f"\\boxed{{{a.title()}}}",
    "commas": lambda a, b: f"\\boxed{{{a.replace(' ', ',')}}}",
    "commas and spaces": lambda a, b: f"\\boxed{{{a.replace(' ', ', ')}}}",
    "spaces, commas": lambda a, b: f"\\boxed{{{a.replace(' ', ' , ')}}}",
    "two spaces": lambda a, b: f"\\boxed{{{a.replace(' ', '  ')}}}",
    "tabs": lambda a, b: f"\\boxed{{{a.replace(' ', chr(9))}}}",
    "lines": lambda a, b: f"\\boxed{{{a.replace(' ', chr(10))}}}",
    "hard spaces": lambda a, b: f"\\boxed{{{a.replace(' ', chr(160))}}}",
    "no spaces": lambda a, b: f"\\boxed{{{a.replace(' ', '')}}}",
    "hyphens": lambda a, b: f"\\boxed{{{a.replace(' ', '-')}}}",
    "letters apart": lambda a, b: f"\\boxed{{{' '.join(a.replace(' ', ''))}}}",
    "letters apart by tabs": lambda a, b: f"\\boxed{{{chr(9).join(a.replace(' ', ''))}}}",
    "a tab for a letter": lambda a, b: f"\\boxed{{{a[:1]}\t{a[2:]}}}",
    "leading zeros": lambda a, b: "\\boxed{" + re.sub(r"(\d+)", r"00\1", a) + "}",
    "plus signs": lambda a, b: "\\boxed{" + re.sub(r"(\d+)", r"+\1", a) + "}",
    "minus signs": lambda a, b: "\\boxed{" + re.sub(r"(\d+)", r"-\1", a) + "}",
    "fractions": lambda a, b: "\\boxed{" + re.sub(r"(\d+)", r"\1.0", a) + "}",
    "arabic digits": lambda a, b: f"\\boxed{{{a.translate(OTHER_DIGITS)}}}",
    "wide digits": lambda a, b: f"\\boxed{{{a.translate(WIDE_DIGITS)}}}",
    "superscripts": lambda a, b: f"\\boxed{{{a.replace('1', '¹').replace('2', '²')}}}",
    "long numbers": lambda a, b: "\\boxed{" + re.sub(r"(\d+)", r"\g<1>0000000000000000000000", a) + "}",
    "huge numbers": lambda a, b: "\\boxed{" + re.sub(r"(\d+)", "9" * 4301, a, count=1) + "}",
    "ends swapped": lambda a, b: "\\boxed{" + re.sub(r"(\d+ \d+) (\d+ \d+)", r"\2 \1", a) + "}",
    "zeros for a number": lambda a, b: "\\boxed{" + re.sub(r"(\d+)", "0", a) + "}",
    "one number more": lambda a, b: f"\\boxed{{{a} 1}}",
    "one word less": lambda a, b: f"\\boxed{{{a.rpartition(' ')[0]}}}",
    "brackets": lambda a, b: f"\\boxed{{[{a}]}}",
    "quotes": lambda a, b: f"\\boxed{{'{a}'}}",
    "full stop": lambda a, b: f"\\boxed{{{a}.}}",
    "other verb": lambda a, b: "\\boxed{" + re.sub(r"reveal|flag", "open", a) + "}",
    "no verb": lambda a, b: "\\boxed{" + re.sub(r"reveal |flag ", "", a) + "}",
    "dotless i": lambda a, b: f"\\boxed{{{a.replace('i', 'ı')}}}",
    "long s and kelvin": lambda a, b: f"\\boxed{{{a.lower().replace('s', 'ſ').replace('k', 'K')}}}",
    "accents": lambda a, b: f"\\boxed{{{a.replace('E', 'É').replace('e', 'é').replace('A', 'Ä')}}}",
    "fbox": lambda a, b: f"\\fbox{{{a}}}",
    "space before brace": lambda a, b: f"\\boxed {{{a}}}",
    "upper box": lambda a, b: f"\\BOXED{{{a}}}",
    "no backslash": lambda a, b: f"boxed{{{a}}}",
    "two backslashes": lambda a, b: f"\\\\boxed{{{a}}}",
    "three backslashes": lambda a, b: f"\\\\\\boxed{{{a}}}",
    "no box": lambda a, b: a,
    "tags": lambda a, b: f"<answer>{a}</answer>",
    "nothing": lambda a, b: "",
    "empty box": lambda a, b: "\\boxed{}",
    "blank box": lambda a, b: "\\boxed{ }",
    "open box": lambda a, b: f"\\boxed{{{a}",
    "then an open box": lambda a, b: f"\\boxed{{{a}}} and \\boxed{{",
    "then an open box with more": lambda a, b: f"\\boxed{{{a}}} and \\boxed{{{b}",
    "open box before": lambda a, b: f"\\boxed{{ \\boxed{{{a}}}",
    "two boxes": lambda a, b: f"\\boxed{{{b}}} no, \\boxed{{{a}}}",
    "many boxes": lambda a, b: f"\\boxed{{{b}}}" * 20 + f"\\boxed{{{a}}}",
    "then nonsense": lambda a, b: f"\\boxed{{{a}}} so \\boxed{{?}}",
    "then an empty box": lambda a, b: f"\\boxed{{{a}}} \\boxed{{}}",
    "nonsense before": lambda a, b: f"\\boxed{{?}} \\boxed{{{a}}}",
    "then a spaced box": lambda a, b: f"\\boxed{{{a}}} \\boxed{{ {b} }}",
    "then an fbox": lambda a, b: f"\\boxed{{{a}}} \\fbox{{{b}}}",
    "box in a box": lambda a, b: f"\\boxed{{\\boxed{{{a}}}}}",
    "boxes in a box": lambda a, b: f"\\boxed{{\\boxed{{{b}}} \\boxed{{{a}}} }}",
    "braces in the box": lambda a, b: f"\\boxed{{{{{a}}}}}",
    "text in the box": lambda a, b: f"\\boxed{{\\text{{{a}}}}}",
    "escaped braces": lambda a, b: f"\\boxed\\{{{a}\\}}",
    "unbalanced": lambda a, b: f"}}}} {{{{ \\boxed{{{a}}}",
    "code": lambda a, b: f"```python\nprint('\\boxed{{{b}}}')\n```\n\\boxed{{{a}}}",
}

#: Characters of random edits.
NOISE = "\\{} ,.-+0129aAcCuUpP\n\tıſK٣²boxed"


def inner(action):
    """What stands in the box of an action that the environment made itself."""
    return _BOX.search(action)[1]


def good(env, random, clever):
    """What a player could put into the box: an expert's move, a random one, one that cannot be carried out."""
    if clever and random.random() < 0.8:
        try:
            return inner(env.oracle_action())
        except RollenvError:
            pass
    move = inner(env.sample_random_action())
    if random.random() < 0.1:
        numbers = str(random.choice([0, 1, 7, 99, 1000]))
        move = re.sub(r"\d+", numbers, move, count=1) if random.random() < 0.8 else move[: random.randint(1, 9)]
    return move


def edited(text, random):
    """The text with one to three characters taken out or put in."""
    for _ in range(random.randint(1, 3)):
        at = random.randint(0, len(text))
        text = text[:at] + (random.choice(NOISE) if random.random() < 0.6 else "") + text[at + random.randint(0, 1) :]
    return text


def action(env, random, clever, oddity, played):
    """The next action of a sequence.

    Args:
        clever: whether good moves are mostly the expert's.
        oddity: the chance of an odd spelling.
        played: the actions so far; some are played again.
    """
    draw = random.random()
    if played and draw < 0.08:
        again = random.choice(played)
        return SPELLINGS["ends swapped"](inner(again), "") if draw < 0.03 and _BOX.search(again) else again
    if env.turn_count + 1 == env.max_turns and random.random() < 0.5:
        oddity = 0.9  # the last turn has rules of its own
    move, other = good(env, random, clever), good(env, random, False)
    if random.random() >= oddity:
        return SPELLINGS["plain"](move, other)
    if draw > 0.8:
        return edited(SPELLINGS["plain"](move, other), random)
    return SPELLINGS[random.choice(list(SPELLINGS))](move, other)
