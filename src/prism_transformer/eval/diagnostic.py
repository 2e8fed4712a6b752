"""A small diagnostic for language models: minimal pairs and cloze items, written for this project.

Word counts cannot tell the sides apart. Over each phenomenon every word occurs as often in
acceptable as in unacceptable sentences, and over each four cloze items every choice is right once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

PAIRS_EACH = 50

# Tables of words: the first row names the columns, as templates use them, the others fill them.
# All of a table's rows fit every template that uses it. Tables that meet in a template have
# different lengths, so that going through them side by side makes ever new combinations.
TABLES: tuple[tuple[str, ...], ...] = (
    (
        "person/people", "doctor/doctors", "teacher/teachers", "farmer/farmers",
        "student/students", "lawyer/lawyers", "singer/singers", "nurse/nurses",
        "writer/writers", "driver/drivers", "baker/bakers", "painter/painters",
        "pilot/pilots", "artist/artists",
    ),
    (
        "other/others", "guard/guards", "neighbor/neighbors", "guest/guests", "child/children",
        "soldier/soldiers", "woman/women", "merchant/merchants", "boy/boys", "sailor/sailors",
        "man/men", "tourist/tourists", "girl/girls",
    ),
    (
        "is/are/tired", "is/are/very tired", "knows/know/the answer", "wants/want/to leave",
        "has/have/a good plan", "needs/need/some help", "was/were/late again",
        "loves/love/the new song", "seems/seem/happy", "owns/own/a boat",
        "speaks/speak/very softly", "hopes/hope/to win",
    ),
    ("near", "near", "behind", "next to", "in front of", "beside"),
    (
        "gate/gates", "gate/gates", "tree/trees", "car/cars", "table/tables", "door/doors",
        "bench/benches", "window/windows", "wall/walls", "truck/trucks",
    ),
    ("house/houses", "house/houses", "garden/gardens", "church/churches", "shop/shops"),
    # Past and participle are alike; none takes a bare infinitive ("saw the guards leave").
    ("met", "met", "thanked", "visited", "called", "followed", "paid", "greeted"),
    (
        "chair/chairs", "chair/chairs", "box/boxes", "bag/bags", "book/books", "cup/cups",
        "lamp/lamps", "plate/plates", "clock/clocks", "basket/baskets", "blanket/blankets",
    ),
    ("moved", "moved", "sold", "cleaned", "bought", "carried", "borrowed", "dropped"),
    ("kitchen", "kitchen", "garage", "hall", "bedroom", "office", "shop", "library"),
    # Gendered nouns: singular "themselves" is bad after these even for who says it of a doctor.
    (
        "man_/men_/woman_/women_", "man/men/woman/women", "boy/boys/girl/girls",
        "king/kings/queen/queens", "uncle/uncles/aunt/aunts",
        "prince/princes/princess/princesses", "brother/brothers/sister/sisters",
        "husband/husbands/wife/wives", "nephew/nephews/niece/nieces",
        "grandfather/grandfathers/grandmother/grandmothers", "father/fathers/mother/mothers",
        "son/sons/daughter/daughters",
    ),
    (
        "waiter/waitress", "waiter/waitress", "policeman/policewoman", "monk/nun",
        "gentleman/lady", "actor/actress",
    ),
    (
        "blamed/mistake", "blamed/for the mistake", "saw/in the mirror", "hurt/in the kitchen",
        "introduced/to the guests", "taught/to swim", "bought/a new coat",
        "hid/behind the door", "locked/in the room", "dried/with a towel",
    ),
    # Verbs that cannot do without an object, and verbs that cannot have one.
    (
        "fixed/roof", "fixed/roof", "described/painting", "destroyed/statue", "carried/box",
        "mentioned/letter", "damaged/fence", "wore/coat", "discovered/cave", "brought/cake",
    ),
    (
        "slept", "slept", "arrived", "smiled", "laughed", "sneezed", "yawned", "fainted",
        "coughed",
    ),
    ("noon", "before noon", "after lunch", "at midnight", "during the storm", "before breakfast"),
    ("we_know", "we know", "they forgot", "she remembers", "he knows", "you learned", "we noticed"),
    # No verb whose forms vary between speakers ("has forgot", "has hid", "sung" for "sang").
    (
        "eat/ate/eaten/bread", "eat/ate/eaten/bread", "write/wrote/written/letter",
        "break/broke/broken/plate", "take/took/taken/money", "drive/drove/driven/truck",
        "choose/chose/chosen/winner", "steal/stole/stolen/ring", "throw/threw/thrown/ball",
        "draw/drew/drawn/map", "tear/tore/torn/paper", "wear/wore/worn/hat",
        "shake/shook/shaken/bottle",
    ),
    ("hungry", "hungry", "angry", "busy", "thirsty", "nervous", "lonely", "polite", "sleepy"),
    (
        "found/eggs", "bought/bread", "found/eggs", "written/letters", "made/tea", "read/books",
        "brought/food", "heard/music", "sold/flowers", "won/prizes", "made/friends",
    ),
    (
        "seen_the_sea", "seen the sea", "worked on a farm", "told a lie", "won a prize",
        "missed a train", "ridden a horse", "been to the city", "played the piano",
        "slept in a tent",
    ),
    (
        "read/book", "read/book", "visited/museum", "answered/question", "cleaned/room",
        "paid/bill", "won/game", "solved/puzzle", "kept/promise", "passed/test",
    ),
    ("he/him", "he/him", "she/her", "they/them", "we/us"),
    ("horse", "horse", "cow", "donkey", "goat", "pig", "camel", "bear"),
    ("dog", "dog", "cat", "rabbit", "fox", "wolf", "monkey"),
    (
        "old/older", "old/older", "young/younger", "fast/faster", "slow/slower", "loud/louder",
        "strong/stronger", "smart/smarter", "quick/quicker", "calm/calmer", "clean/cleaner",
        "wild/wilder",
    ),
    (
        "where/will/sleep", "where/will/sleep tonight", "why/has/left the house",
        "how/can/open the box", "what/should/cook for dinner", "where/has/hidden the key",
        "why/is/crying", "how/will/pay the bill", "what/can/sell at the market",
        "why/should/wait outside",
    ),
    ("apples", "apples", "eggs", "potatoes", "onions", "carrots", "lemons", "cherries", "nuts"),
    (
        "milk", "milk", "bread", "rice", "sugar", "butter", "flour", "meat", "water", "salt",
        "honey",
    ),
    ("hoped", "hoped", "decided", "agreed", "promised", "wanted"),
    ("enjoyed", "enjoyed", "avoided", "suggested", "considered"),
    (
        "clean/cleaning/room", "clean/cleaning/the room", "paint/painting/the fence",
        "wash/washing/the dishes", "write/writing/a poem", "cook/cooking/the soup",
        "read/reading/the book", "play/playing/the game", "drive/driving/the truck",
        "sing/singing/the song",
    ),
)  # fmt: skip

# [acceptable|unacceptable]: what differs between the two sentences of a pair. A group of templates
# shares one choice of words: what is good in one template is bad in its mirror, hence the balance.
# Groups of one only change the order of words. All groups of a phenomenon are of one size.
PHENOMENA: dict[str, tuple[tuple[str, ...], ...]] = {
    "subject_verb_agreement": (
        ("The {person} [{is}|{are}] {tired}.", "The {people} [{are}|{is}] {tired}."),
    ),
    # Here and below every noun between subject and verb has the number that the subject has not.
    "agreement_across_prepositional_phrase": (
        ("The {person} {near} the {gates} [{is}|{are}] {tired}.",
         "The {people} {near} the {gate} [{are}|{is}] {tired}."),
    ),
    "agreement_across_relative_clause": (
        ("The {person} who {met} the {others} [{is}|{are}] {tired}.",
         "The {people} who {met} the {other} [{are}|{is}] {tired}."),
        ("The {person} that the {others} {met} [{is}|{are}] {tired}.",
         "The {people} that the {other} {met} [{are}|{is}] {tired}."),
    ),
    "agreement_across_long_distance": (
        ("The {person} who {met} the {others} {near} the {gates} across from the old {houses} "
         "[{is}|{are}] {tired}.",
         "The {people} who {met} the {other} {near} the {gate} across from the old {house} "
         "[{are}|{is}] {tired}."),
    ),
    "coordination_agreement": (
        ("The {person} and the {other} [{are}|{is}] {tired}.",
         "The {person} {near} the {other} [{is}|{are}] {tired}."),
    ),
    "there_is_number": (
        ("There [is|are] a {chair} in the {kitchen}.",
         "There [are|is] many {chairs} in the {kitchen}."),
        ("There [was|were] a {chair} in the {kitchen}.",
         "There [were|was] several {chairs} in the {kitchen}."),
    ),
    "determiner_noun_agreement": (
        ("The {person} {moved} this [{chair}|{chairs}] yesterday.",
         "The {person} {moved} these [{chairs}|{chair}] yesterday."),
        ("The {person} {moved} that old [{chair}|{chairs}] yesterday.",
         "The {person} {moved} those old [{chairs}|{chair}] yesterday."),
    ),
    "count_and_mass_nouns": (
        ("The {person} did not buy [many|much] {apples}.",
         "The {person} did not buy [much|many] {milk}."),
        ("There were not [many|much] {apples} left for the {person}.",
         "There was not [much|many] {milk} left for the {person}."),
    ),
    "reflexive_number": (
        ("The {man_} {blamed} [himself|themselves] {mistake}.",
         "The {men_} {blamed} [themselves|himself] {mistake}."),
        ("The {woman_} {blamed} [herself|themselves] {mistake}.",
         "The {women_} {blamed} [themselves|herself] {mistake}."),
    ),
    "reflexive_gender": (
        ("The {man_} {blamed} [himself|herself] {mistake}.",
         "The {woman_} {blamed} [herself|himself] {mistake}."),
    ),
    "reflexive_across_relative_clause": (
        ("The {man_} who {met} the {waitress} {blamed} [himself|herself] {mistake}.",
         "The {woman_} who {met} the {waiter} {blamed} [herself|himself] {mistake}."),
    ),
    "pronoun_case": (
        ("Yesterday [{he}|{him}] {met} the {person}.",
         "Yesterday the {person} {met} [{him}|{he}]."),
        ("The {person} smiled because [{he}|{him}] won the game.",
         "The {person} smiled at [{him}|{he}] during the game."),
    ),
    "npi_licensing_negation": (
        ("The {person} is [|not ]{hungry}, but the {other} has [not |]{found} any {eggs}.",),
    ),
    "npi_negation_scope": (
        ("The {person} who has [|not ]{met} the {others} has [not |]{found} any {eggs}.",),
        ("The {person} who has [|not ]{met} the {others} has [not |]ever {seen_the_sea}.",),
    ),
    "npi_licensing_quantifier": (
        ("So far [no|every] {person} has ever {read} [every|no] {book}.",),
        ("In this town [no|every] {other} has ever {read} [every|no] {book}.",),
    ),
    "so_or_neither": (
        ("The {person} has not {seen_the_sea}, and [neither|so] has the {other}.",
         "The {person} has often {seen_the_sea}, and [so|neither] has the {other}."),
        ("The {person} was not {hungry}, and [neither|so] was the {other}.",
         "The {person} was very {hungry}, and [so|neither] was the {other}."),
    ),
    "verb_argument_structure": (
        ("The {person} [{fixed}|{slept}] the {roof} {noon}.",
         "The {person} [{slept}|{fixed}] {noon}."),
    ),
    "infinitive_or_gerund": (
        ("The {person} [{hoped}|{enjoyed}] to {clean} {room}.",
         "The {person} [{enjoyed}|{hoped}] {cleaning} {room}."),
    ),
    "auxiliary_verb_form": (
        ("The {person} has [{eaten}|{eat}] the {bread}.",
         "The {person} will [{eat}|{eaten}] the {bread}."),
    ),
    "irregular_past": (
        ("The {person} [{ate}|{eaten}] the {bread} {noon}.",
         "The {person} had [{eaten}|{ate}] the {bread} {noon}."),
    ),
    "wh_gap": (
        ("{we_know} [what|that] the {person} {fixed} {noon}.",
         "{we_know} [that|what] the {person} {fixed} the {roof} {noon}."),
    ),
    "subject_auxiliary_inversion": (
        ("{where} [{will} the {person}|the {person} {will}] {sleep}?",
         "Everyone knows {where} [the {person} {will}|{will} the {person}] {sleep}."),
    ),
    "comparative_than": (
        ("The {horse} is [{older}|{old}] than the {dog}.",
         "The {horse} is as [{old}|{older}] as the {dog}."),
        ("The {horse} was much [{older}|{old}] than the {dog}.",
         "The {horse} was almost as [{old}|{older}] as the {dog}."),
    ),
    "word_order": (
        ("The [{hungry} {person}|{person} {hungry}] {met} the {others}.",),
        ("The {person} [{ate} the {bread}|the {bread} {ate}] {noon}.",),
        ("The {person} {met} the {others} [{near} the {gate}|the {gate} {near}].",),
        ("The {person} was [very {hungry}|{hungry} very] {noon}.",),
    ),
}  # fmt: skip

# A context with a gap, then four rows of what fills the gap and what comes next (the same, where
# one word is written). The four answers are the choices of all four items.
CLOZE: tuple[tuple[str, ...], ...] = (
    ("The opposite of {} is", "hot/cold", "big/small", "wet/dry", "early/late"),
    ("The opposite of {} is", "up/down", "good/bad", "day/night", "left/right"),
    ("The day after {} is", "Monday/Tuesday", "Wednesday/Thursday", "Friday/Saturday",
     "Saturday/Sunday"),
    ("The month after {} is", "January/February", "April/May", "July/August",
     "November/December"),
    ("After {} comes", "winter/spring", "spring/summer", "summer/autumn", "autumn/winter"),
    ("Let us count: {},", "one, two, three/four", "four, five, six/seven",
     "seven, eight, nine/ten", "eight, nine, ten/eleven"),
    ("We say the alphabet: {},", "a, b, c/d", "f, g, h/i", "m, n, o/p", "w, x, y/z"),
    ("{} is", "One plus one/two", "Two plus two/four", "Three plus three/six",
     "Five plus five/ten"),
    ("One dog, two dogs; one {}, two", "cat/cats", "house/houses", "child/children", "foot/feet"),
    ("Today I walk, and yesterday I walked. Today I {}, and yesterday I", "go/went", "see/saw",
     "eat/ate", "write/wrote"),
    ("Boy is to girl as {} is to", "man/woman", "father/mother", "uncle/aunt", "king/queen"),
    ("The {} is my", "mother of my father/grandmother", "brother of my mother/uncle",
     "sister of my father/aunt", "son of my aunt/cousin"),
    ("The color of {} is", "grass/green", "snow/white", "blood/red", "coal/black"),
    ("We heard the {}", "dog/bark", "lion/roar", "duck/quack", "cat/meow"),
    ("If you look for {}, go to the", "trees/forest", "fish/sea", "books/library",
     "sick people/hospital"),
    ("{} with the", "He cut the paper/scissors", "She unlocked the door/key",
     "He wrote his name/pen", "She hit the nail/hammer"),
    ("{}, so she", "It began to rain/opened her umbrella", "It was dark/turned on the lamp",
     "It was cold/put on her coat", "She was hungry/ate some bread"),
    ("{} by the", "The bread was baked/baker", "The plane was flown/pilot",
     "The lesson was taught/teacher", "The bad tooth was pulled/dentist"),
    ("The city of {} is in", "Paris/France", "Rome/Italy", "London/England", "Tokyo/Japan"),
    ("{}", "Once upon a/time", "Thank you very/much", "Happy birthday to/you",
     "Ladies and/gentlemen"),
    ("{} looked in the mirror and saw", "My brother/himself", "My sister/herself",
     "My parents/themselves", "We/ourselves"),
    ("{} stayed at home in the evening, because all day long", "My uncle/he", "My aunt/she",
     "My parents/they", "My wife and I/we"),
    # Copying: a name is given early and needed late, alone or among others.
    ("My best friend is called {}. We went to the market, bought some fruit and walked home in "
     "the rain. The name of my best friend is", "Peter", "Anna", "David", "Mary"),
    ("Tom has the key, Lucy has the map, James has the lamp and Sarah has the rope. It is late, "
     "and we want to go home. The one who has the {} is", "key/Tom", "map/Lucy", "lamp/James",
     "rope/Sarah"),
    ("The cup is red, the box is blue, the door is green and the hat is yellow. The color of the "
     "{} is", "cup/red", "box/blue", "door/green", "hat/yellow"),
    ("Say it again: {}", "cat dog cow pig cat dog cow/pig", "dog cow pig cat dog cow pig/cat",
     "cow pig cat dog cow pig cat/dog", "pig cat dog cow pig cat dog/cow"),
)  # fmt: skip


@dataclass(frozen=True)
class ClozeItem:
    """A context, what could follow it after one space, and which of these does."""

    text: str
    choices: tuple[str, ...]
    answer: int


def minimal_pairs() -> dict[str, list[tuple[str, str]]]:
    """Fifty pairs of an acceptable and an unacceptable sentence for each phenomenon."""
    return {name: list(_pairs(groups)) for name, groups in PHENOMENA.items()}


def cloze_items() -> list[ClozeItem]:
    """Contexts with four choices each; every position is right equally often."""
    items = []
    for frame, *rows in CLOZE:
        cells = [(row.split("/")[0], row.split("/")[-1]) for row in rows]
        choices = tuple(answer for _, answer in cells)
        for position, (gap, _) in enumerate(cells):
            items.append(ClozeItem(_capital(frame.replace("{}", gap)), choices, position))
    return items


def _pairs(groups: tuple[tuple[str, ...], ...]) -> Iterator[tuple[str, str]]:
    """Each group's templates in turn, filled with one choice of words after another."""
    n_frames = PAIRS_EACH // len(groups[0])
    for frame in range(n_frames):
        words = _words(frame)
        for template in groups[frame * len(groups) // n_frames]:
            yield _sentence(template, words, side=1), _sentence(template, words, side=2)


def _words(frame: int) -> dict[str, str]:
    """One row of every table, by the names of its columns."""
    words: dict[str, str] = {}
    for names, *rows in TABLES:
        row = rows[frame % len(rows)]
        words.update(zip(names.split("/"), row.split("/"), strict=True))
    return words


def _sentence(template: str, words: dict[str, str], side: int) -> str:
    chosen = re.sub(r"\[([^|]*)\|([^\]]*)\]", rf"\{side}", template)
    return _capital(chosen.format_map(words))


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
