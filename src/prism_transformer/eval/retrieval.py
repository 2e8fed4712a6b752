"""Passkey and needle: whether a model finds again what it read once, by depth and by length.

``passkey``: one number stands somewhere in a text that is of no use, and is asked for at its end.
``needle``: several people keep a number each, all of them in the text, and one person's is asked
for. Written for this project, made anew each time, equal for all models.

Word counts tell nothing: the items of one length and depth come in sets that differ only in which
choice stands where, and over a set every choice is right once. So a model that does not look is
right exactly as often as chance.

Lengths are in characters, so that tokenizers are asked the same; GPT-2 has about four to a token.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle

from prism_transformer.eval.diagnostic import ClozeItem

PASSKEY, NEEDLE = "passkey", "needle"
LENGTHS = (256, 1024, 4096, 16384)
DEPTHS = (0, 25, 50, 75, 100)  # percent of the text that stands before what is asked for
CHOICES = {PASSKEY: 10, NEEDLE: 4}
SETS = {PASSKEY: 2, NEEDLE: 5}  # so many times the choices are the items: 20 of each

FILLER = (
    "Rain fell on the hills all morning.", "A boat lay by the shore.", "The road was long and dry.",
    "Somebody had left a lamp in the window.", "The bread was still warm.",
    "Two dogs slept under the table.", "Nobody had painted the fence for years.",
    "The clock in the hall was slow.", "In the evening the wind turned.",
    "A letter came, and was put aside.", "The garden had gone to seed.",
    "They spoke of the harvest and of the price of salt.",
)  # fmt: skip
PEOPLE = ("Anna", "Boris", "Clara", "David")


def task_name(task: str, length: int, depth: int) -> str:
    """What a task of one length and depth is called."""
    return f"{task}_{length}_at_{depth}"


def task_names(task: str) -> list[str]:
    """Every length at every depth."""
    return [task_name(task, length, depth) for length in LENGTHS for depth in DEPTHS]


def retrieval_items(task: str, length: int, depth: int) -> list[ClozeItem]:
    """Items of one length and depth; over each set of them every choice is right once."""
    n_choices, items = CHOICES[task], []
    for number in range(SETS[task]):
        choices = _numbers(n_choices, number)
        for turn in range(n_choices):
            if task == PASSKEY:
                facts = [f"The number to remember is {choices[turn]}."]
                question = "The number to remember is"
            else:  # who keeps which turns, what is asked does not
                owners = [choices[(turn + place) % n_choices] for place in range(n_choices)]
                pairs = zip(PEOPLE, owners, strict=True)
                facts = [f"{name} keeps the number {owned}." for name, owned in pairs]
                question = f"{PEOPLE[0]} keeps the number"
            text = _text(facts, question, length, depth, start=number)
            items.append(ClozeItem(text, choices, turn))
    return items


def _numbers(count: int, number: int) -> tuple[str, ...]:
    """Numbers of five digits, the same in every run, of which no two begin alike."""
    # 7919 has no factor in common with 10,000: its multiples come round only after all of them.
    return tuple(
        f"{1 + place % 9}{(7919 * (number * count + place + 1)) % 10_000:04d}"
        for place in range(count)
    )


def _text(facts: list[str], question: str, length: int, depth: int, start: int) -> str:
    """Filler around facts, the first of them at the depth and others evenly over the text."""
    room = length - sum(len(fact) + 1 for fact in facts) - len(question) - 1
    filler = list(_sentences(room, start))
    first = round(depth / 100 * len(filler))
    places = [first, *(len(filler) * each // len(facts) for each in range(1, len(facts)))]
    parts: list[str] = []
    for place, sentence in enumerate([*filler, ""]):
        parts += [fact for fact, where in zip(facts, places, strict=True) if where == place]
        parts += [sentence] if sentence else []
    return " ".join([*parts, question])


def _sentences(room: int, start: int) -> Iterator[str]:
    """Sentences in turn, as many as there is room for."""
    for sentence in cycle(FILLER[start:] + FILLER[:start]):
        room -= len(sentence) + 1
        if room < 0:
            return
        yield sentence
