"""Writes the demo's sentence pairs: train.tsv, dev.tsv and test.tsv beside this script.

Each pair says the same thing in two wordings (paraphrase), or two things that differ in a point
or two (different): who did it to whom, whether it happened, when, where, what, how many. Both kinds
draw their wordings from the same templates, so neither a telltale word nor the number of shared
words gives the answer away; `shortcut_accuracies` measures that.

    python examples/paraphrase/generate.py             # writes the three files
    python examples/paraphrase/generate.py --check     # compares them with what it would write

Pure Python, deterministic: the same files on every machine.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

SEED = 20
PAIRS_PER_FRAME = {"train": 40, "dev": 10, "test": 10}
# Of the pairs that differ: the share with roles swapped or the opposite said; of the others, the
# share with two new fillers in place of one. With fewer of the latter a small model takes too long
# to find out that it has to compare.
STRUCTURAL_SHARE = 0.25
TWO_FILLERS_SHARE = 0.7
# How many wordings to choose from; see _draw_pair.
WORDINGS = 4
HEADER = ("sentence1", "sentence2", "label")
PARAPHRASE, DIFFERENT = "paraphrase", "different"

Pair = tuple[str, str, str]


@dataclass(frozen=True)
class Frame:
    """One kind of event: the ways to tell it, and what can be changed about it.

    slots: slot name -> fillers to draw from; slots with the same list get different fillers.
    forms: state -> wordings of it. Two states are opposites ("passed", "failed").
    swaps: slots whose exchange makes another event. fixed: slots that do not make one.
    In forms and fillers, [a|b] stands for a or b, which mean the same.
    """

    slots: dict[str, list[str]]
    forms: dict[str, list[str]]
    swaps: tuple[tuple[str, str], ...] = ()
    fixed: tuple[str, ...] = ()


NAMES = (
    "Anna Peter Maria David Laura Samuel Nora Henry Clara Victor Julia Oscar Emma Felix Alice "
    "Martin Grace Hugo Irene Walter Sophie Daniel Helen Thomas"
).split()
CITIES = "Oslo Vienna Lisbon Dublin Prague Geneva Athens Madrid Warsaw Hamburg".split()
DAYS = [f"on {day}" for day in "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()]
MONTHS = [f"in {month}" for month in "March April May June July August October November".split()]
TIMES = [
    "at [noon|midday]",
    "shortly after [dawn|sunrise]",
    "just before [dusk|sunset]",
    "in the middle of the night",
    "late in the [morning|forenoon]",
]
VEHICLES = [
    "the red [truck|lorry]",
    "the school bus",
    "the police car",
    "the [taxi|cab]",
    "the tram",
    "the ambulance",
    "the delivery van",
]

FRAMES: dict[str, Frame] = {
    "sale": Frame(
        slots={
            "buyer": NAMES,
            "seller": NAMES,
            "item": [
                "an old [bicycle|bike]",
                "a wooden boat",
                "a [used|second-hand] piano",
                "a [small|compact] camera",
                "a leather [sofa|couch]",
                "a silver [watch|wristwatch]",
            ],
            "price": [
                "[fifty|50] dollars",
                "[eighty|80] dollars",
                "[ninety|90] dollars",
                "[two hundred|200] dollars",
                "[three hundred|300] dollars",
            ],
            "day": DAYS,
        },
        forms={
            "": [
                "{buyer} [bought|purchased] {item} from {seller} for {price} {day}.",
                "{seller} sold {item} to {buyer} for {price} {day}.",
                "{day}, {seller} sold {buyer} {item} for {price}.",
                "{day}, {item} was sold to {buyer} by {seller} for {price}.",
                "{buyer} paid {seller} {price} for {item} {day}.",
            ]
        },
        swaps=(("buyer", "seller"),),
    ),
    "loan": Frame(
        slots={
            "lender": NAMES,
            "borrower": NAMES,
            "item": [
                "a [large|big] tent",
                "a good [laptop|notebook computer]",
                "a [warm|thick] coat",
                "an electric drill",
                "a canoe",
            ],
            "span": [
                "[a week|seven days]",
                "[two weeks|a fortnight]",
                "[three weeks|21 days]",
                "[two days|48 hours]",
                "[half a year|six months]",
            ],
            "month": MONTHS,
        },
        forms={
            "": [
                "{lender} lent {borrower} {item} for {span} {month}.",
                "{borrower} borrowed {item} from {lender} for {span} {month}.",
                "{month}, {lender} let {borrower} use {item} for {span}.",
                "{month}, {item} was [lent|loaned] to {borrower} by {lender} for {span}.",
            ]
        },
        swaps=(("lender", "borrower"),),
    ),
    "lesson": Frame(
        slots={
            "teacher": NAMES,
            "pupil": NAMES,
            "skill": [
                "play the violin",
                "speak Italian",
                "bake bread",
                "[repair|mend] clocks",
                "paint portraits",
                "play chess",
            ],
            "place": [
                "the village school",
                "the community centre",
                "the old library",
                "the sports club",
            ],
            "season": [f"last {season}" for season in "spring summer autumn winter".split()],
        },
        forms={
            "": [
                "{teacher} taught {pupil} [how to|to] {skill} at {place} {season}.",
                "{pupil} learned [how to|to] {skill} from {teacher} at {place} {season}.",
                "{season}, {pupil} took lessons from {teacher} at {place} and learned to {skill}.",
                "{season}, {pupil} was taught [how to|to] {skill} by {teacher} at {place}.",
            ]
        },
        swaps=(("teacher", "pupil"),),
    ),
    "match": Frame(
        slots={
            "winner": [
                f"the {team}" for team in "Falcons Rangers Comets Pirates Wolves Dolphins".split()
            ],
            "loser": [],
            "margin": [
                f"{number} points"
                for number in ("[two|2]", "[three|3]", "[seven|7]", "[twelve|a dozen]")
            ],
            "city": CITIES,
        },
        forms={
            "": [
                "{winner} [beat|defeated] {loser} by {margin} in the final in {city}.",
                "{loser} lost to {winner} by {margin} in the final in {city}.",
                "In the final in {city}, {winner} won by {margin} against {loser}.",
                "In the final in {city}, {loser} were [beaten|defeated] by {winner}, "
                "who won by {margin}.",
            ]
        },
        swaps=(("winner", "loser"),),
    ),
    "age": Frame(
        slots={
            "elder": NAMES,
            "younger": NAMES,
            "years": [
                "[a year|twelve months]",
                "[three|3] years",
                "[five|5] years",
                "[ten years|a decade]",
            ],
            "source": [
                "the family record",
                "the school register",
                "the town archive",
                "a short biography",
            ],
        },
        forms={
            "": [
                "{source} [says|states] that {elder} is {years} older than {younger}.",
                "According to {source}, {younger} is {years} younger than {elder}.",
                "According to {source}, {elder} was born {years} [before|earlier than] {younger}.",
                "{source} [says|states] that {younger} was born {years} [after|later than] "
                "{elder}.",
            ]
        },
        swaps=(("elder", "younger"),),
        fixed=("source",),
    ),
    "price": Frame(
        slots={
            "dear": [
                "the green tea",
                "the dark chocolate",
                "the apple cake",
                "the goat cheese",
                "the olive oil",
                "the rye bread",
            ],
            "cheap": [],
            "amount": [f"{number} euros" for number in ("[two|2]", "[four|4]", "[six|6]")],
            "shop": ["the station kiosk", "the farm shop", "the corner store", "the airport shop"],
        },
        forms={
            "": [
                "At {shop}, {dear} costs {amount} more than {cheap}.",
                "{cheap} costs {amount} less than {dear} at {shop}.",
                "At {shop}, {cheap} is {amount} cheaper than {dear}.",
                "{dear} is {amount} [more expensive|dearer] than {cheap} at {shop}.",
            ]
        },
        swaps=(("dear", "cheap"),),
    ),
    "order": Frame(
        slots={
            "first": [
                "the mayor opened the new bridge",
                "the committee approved the budget",
                "the band played its last song",
                "the [guests|visitors] arrived at the hotel",
                "the storm [reached|hit] the coast",
                "the [workers repaired|builders fixed] the roof",
                "the judge read the verdict",
                "the ferry left the [harbour|port]",
            ],
            "second": [],
            "day": DAYS,
        },
        forms={
            "": [
                "{day}, {first} before {second}.",
                "{day}, {second} after {first}.",
                "{day}, before {second}, {first}.",
                "{day}, after {first}, {second}.",
                "{day}, {first} and {second} [later|afterwards].",
            ]
        },
        swaps=(("first", "second"),),
    ),
    "cause": Frame(
        slots={
            "cause": [
                "the river flooded the road",
                "the main speaker [fell ill|got sick]",
                "heavy snow covered the town",
                "[the power went out|there was a power cut]",
                "[a strong wind was blowing|it was very windy]",
            ],
            "thing": ["the concert", "the wedding", "the race", "the lecture", "the market"],
            "city": CITIES,
        },
        forms={
            "off": [
                "{thing} in {city} was [cancelled|called off] because {cause}.",
                "Because {cause}, {thing} in {city} did not [take place|go ahead].",
                "{cause}, so {thing} in {city} was [cancelled|called off].",
                "{thing} in {city} did not [take place|go ahead], as {cause}.",
            ],
            "on": [
                "{thing} in {city} was not [cancelled|called off] although {cause}.",
                "Although {cause}, {thing} in {city} [took place|went ahead].",
                "{cause}, but {thing} in {city} was not [cancelled|called off].",
                "{thing} in {city} [took place|went ahead], even though {cause}.",
            ],
        },
    ),
    "job": Frame(
        slots={
            "firm": [
                "the bakery",
                "the city zoo",
                "the Grand Hotel",
                "the local newspaper",
                "the toy factory",
            ],
            "person": NAMES,
            "job": [
                "[driver|chauffeur]",
                "gardener",
                "[cook|chef]",
                "night [guard|watchman]",
                "translator",
                "designer",
            ],
            "month": MONTHS,
        },
        forms={
            "hired": [
                "{firm} hired {person} as a {job} {month}.",
                "{person} [got a job|found work] as a {job} at {firm} {month}.",
                "{month}, {person} was hired by {firm} to work as a {job}.",
                "{month}, {firm} gave {person} a job as a {job}.",
            ],
            "fired": [
                "{firm} [dismissed|fired] {person} from a job as a {job} {month}.",
                "{person} lost a job as a {job} at {firm} {month}.",
                "{month}, {person}, who worked as a {job}, was [dismissed|fired] by {firm}.",
                "{month}, {firm} took away the job that {person} had as a {job}.",
            ],
        },
    ),
    "only": Frame(
        slots={
            "person": NAMES,
            "group": ["students", "players", "trainees", "applicants", "recruits"],
            "task": [
                "the driving test",
                "the history exam",
                "the swimming test",
                "the entrance exam",
            ],
            "day": DAYS,
        },
        forms={
            "failed": [
                "All the {group} [except|apart from] {person} passed {task} {day}.",
                "{person} was the only one of the {group} who failed {task} {day}.",
                "{day}, every one of the {group} but {person} passed {task}.",
                "{day}, only {person} failed {task}, while the other {group} passed it.",
            ],
            "passed": [
                "All the {group} [except|apart from] {person} failed {task} {day}.",
                "{person} was the only one of the {group} who passed {task} {day}.",
                "{day}, every one of the {group} but {person} failed {task}.",
                "{day}, only {person} passed {task}, while the other {group} failed it.",
            ],
        },
    ),
    "crash": Frame(
        slots={
            "hitter": VEHICLES,
            "victim": VEHICLES,
            "road": [
                "Mill Street",
                "Bridge Road",
                "Station Road",
                "Harbour Street",
                "Park Avenue",
            ],
            "time": TIMES,
        },
        forms={
            "": [
                "{hitter} [ran into|crashed into] {victim} on {road} {time}.",
                "{victim} was [hit|struck] by {hitter} on {road} {time}.",
                "{time}, {hitter} [hit|struck] {victim} on {road}.",
                "On {road}, {victim} was [hit|struck] by {hitter} {time}.",
            ]
        },
        swaps=(("hitter", "victim"),),
    ),
    "rescue": Frame(
        slots={
            "helper": [
                "the young [doctor|physician]",
                "the old [sailor|seaman]",
                "the [postman|mailman]",
                "the farmer",
                "the tourist",
                "the shepherd",
            ],
            "victim": [],
            "danger": [
                "a [burning house|house on fire]",
                "a frozen lake",
                "a flooded cellar",
                "a sinking boat",
            ],
            "city": CITIES,
            "day": DAYS,
        },
        forms={
            "": [
                "{helper} [rescued|saved] {victim} from {danger} near {city} {day}.",
                "{victim} was [rescued|saved] from {danger} near {city} by {helper} {day}.",
                "{day}, {helper} pulled {victim} out of {danger} near {city}.",
                "{day}, {victim} was pulled out of {danger} near {city} by {helper}.",
            ]
        },
        swaps=(("helper", "victim"),),
    ),
    "donation": Frame(
        slots={
            "giver": [
                "the city museum",
                "the royal library",
                "the art school",
                "the university",
                "the children's hospital",
                "the national theatre",
            ],
            "taker": [],
            "number": ["[twelve|a dozen]", "[fifty|50]", "[thirty|30]", "[two|a couple of]"],
            "things": [
                "[paintings|pictures]",
                "old maps",
                "computers",
                "wooden chairs",
                "[rare|precious] books",
            ],
            "year": [f"in {year}" for year in (1985, 1992, 1998, 2003, 2011)],
        },
        forms={
            "": [
                "{giver} [donated|gave] {number} {things} to {taker} {year}.",
                "{taker} [received|got] {number} {things} from {giver} {year}.",
                "{year}, {number} {things} were [donated|given] to {taker} by {giver}.",
                "{year}, {taker} was given {number} {things} by {giver}.",
            ]
        },
        swaps=(("giver", "taker"),),
    ),
    "pursuit": Frame(
        slots={
            "front": VEHICLES,
            "back": VEHICLES,
            "place": [
                "the long tunnel",
                "the city centre",
                "the empty car park",
                "the narrow valley",
            ],
            "time": TIMES,
        },
        forms={
            "": [
                "{back} followed {front} through {place} {time}.",
                "{front} was followed through {place} by {back} {time}.",
                "{time}, {front} drove [ahead|in front] of {back} through {place}.",
                "{time}, {back} drove behind {front} through {place}.",
            ]
        },
        swaps=(("front", "back"),),
    ),
    "rule": Frame(
        slots={
            "who": ["visitors", "students", "hotel guests", "club members"],
            "act": [
                "take [photographs|pictures]",
                "park [bicycles|bikes]",
                "play loud music",
                "eat and drink",
                "use [mobile|cell] phones",
            ],
            "place": ["the east wing", "the inner courtyard", "the main hall", "the reading room"],
            "days": ["on Sundays", "on weekdays", "[at night|after dark]", "during the holidays"],
        },
        forms={
            "forbidden": [
                "{who} are not [allowed|permitted] to {act} in {place} {days}.",
                "{who} [may|must] not {act} in {place} {days}.",
                "In {place}, {who} are forbidden to {act} {days}.",
                "{days}, it is [forbidden|against the rules] for {who} to {act} in {place}.",
            ],
            "allowed": [
                "{who} are [allowed|permitted] to {act} in {place} {days}.",
                "{who} [may|can] {act} in {place} {days}.",
                "In {place}, {who} are not forbidden to {act} {days}.",
                "{days}, it is [allowed|not against the rules] for {who} to {act} in {place}.",
            ],
        },
    ),
    "success": Frame(
        slots={
            "person": NAMES,
            "friend": NAMES,
            "task": [
                "[repair|fix] the boiler",
                "open the safe",
                "find the [missing|lost] keys",
                "reach the [summit|mountain top]",
                "[finish|complete] the report",
            ],
            "day": DAYS,
        },
        forms={
            "done": [
                "{person} was able to {task} {day} with the help of {friend}.",
                "With the help of {friend}, {person} managed to {task} {day}.",
                "{day}, {person} managed to {task} when {friend} helped.",
                "{friend} helped {person}, who did not fail to {task} {day}.",
            ],
            "not done": [
                "{person} was [unable|not able] to {task} {day} with the help of {friend}.",
                "With the help of {friend}, {person} still failed to {task} {day}.",
                "{day}, {person} did not manage to {task} when {friend} helped.",
                "{friend} helped {person}, who failed to {task} {day}.",
            ],
        },
        swaps=(("person", "friend"),),
    ),
    "trend": Frame(
        slots={
            "good": ["coffee", "rice", "butter", "honey", "cheese", "fresh fish"],
            "low": ["[two|2]", "[three|3]", "[four|4]"],
            "high": ["[six|6]", "[seven|7]", "[eight|8]"],
            "month": MONTHS,
        },
        forms={
            "up": [
                "The price of {good} [rose|went up] from {low} to {high} euros {month}.",
                "{month}, the price of {good} [rose|went up] to {high} euros from {low} euros.",
                "A kilo of {good} cost {low} euros and became dearer {month}, at {high} euros.",
                "{month}, a kilo of {good} went from {low} euros to {high} euros.",
            ],
            "down": [
                "The price of {good} [fell|went down] from {high} to {low} euros {month}.",
                "{month}, the price of {good} [fell|went down] to {low} euros from {high} euros.",
                "A kilo of {good} cost {high} euros and became cheaper {month}, at {low} euros.",
                "{month}, a kilo of {good} went from {high} euros to {low} euros.",
            ],
        },
    ),
    "chore": Frame(
        slots={
            "person": NAMES,
            "chore": [
                "lock the back door",
                "feed the cat",
                "water the plants",
                "[turn|switch] off the heating",
                "[close|shut] the windows",
            ],
            "place": ["the office", "the cottage", "the [flat|apartment]", "the studio"],
            "day": DAYS,
        },
        forms={
            "done": [
                "{person} remembered to {chore} before leaving {place} {day}.",
                "Before leaving {place} {day}, {person} did not forget to {chore}.",
                "{day}, {person} left {place} without forgetting to {chore}.",
                "{day}, {person} did not [leave|go out of] {place} before remembering to {chore}.",
            ],
            "forgotten": [
                "{person} did not remember to {chore} before leaving {place} {day}.",
                "Before leaving {place} {day}, {person} forgot to {chore}.",
                "{day}, {person} left {place} without remembering to {chore}.",
                "{day}, {person} [left|went out of] {place} and forgot to {chore}.",
            ],
        },
    ),
    "choice": Frame(
        slots={
            "person": NAMES,
            "taken": [
                "the [lake house|house by the lake]",
                "the city hotel",
                "the [mountain cabin|cabin in the mountains]",
                "the beach resort",
                "the old castle",
                "the river boat",
            ],
            "left": [],
            "event": [
                "the wedding party",
                "the family reunion",
                "the summer holiday",
                "the annual meeting",
            ],
        },
        forms={
            "": [
                "{person} [chose|picked] {taken} over {left} for {event}.",
                "For {event}, {person} [chose|picked] {taken} [instead of|rather than] {left}.",
                "{person} [rejected|turned down] {left} for {event} and took {taken}.",
                "For {event}, {left} was [rejected|turned down] by {person}, who preferred "
                "{taken}.",
            ]
        },
        swaps=(("taken", "left"),),
    ),
    "trip": Frame(
        slots={
            "person": NAMES,
            "start": CITIES,
            "end": CITIES,
            "means": ["train", "bus", "ferry", "plane"],
            "month": MONTHS,
        },
        forms={
            "": [
                "{person} [travelled|went] from {start} to {end} by {means} {month}.",
                "{month}, {person} left {start} and [travelled|went] to {end} by {means}.",
                "{month}, {person} took a {means} to {end} from {start}.",
                "{person} arrived in {end} {month} after leaving {start} on a {means}.",
            ]
        },
        swaps=(("start", "end"),),
    ),
}


def pool(frame: Frame, slot: str) -> list[str]:
    """A slot's fillers; an empty list stands for those of the slot it can be swapped with."""
    if frame.slots[slot]:
        return frame.slots[slot]
    return next(frame.slots[a] for a, b in frame.swaps if b == slot)


def draw_event(frame: Frame, rng: random.Random) -> tuple[str, dict[str, str]]:
    """Draws a state and a filler for each slot, none of them twice."""
    fillers: dict[str, str] = {}
    for slot in frame.slots:
        free = [filler for filler in pool(frame, slot) if filler not in fillers.values()]
        fillers[slot] = rng.choice(free)
    return rng.choice(sorted(frame.forms)), fillers


def change_event(
    frame: Frame, state: str, fillers: dict[str, str], rng: random.Random
) -> tuple[str, dict[str, str]]:
    """Makes another event: roles swapped or the opposite state, or else one or two new fillers."""
    if rng.random() < STRUCTURAL_SHARE:
        opposites = [(other,) for other in sorted(frame.forms) if other != state]
        change = rng.choice([*frame.swaps, *opposites])
        if change in frame.swaps:
            a, b = change
            return state, {**fillers, a: fillers[b], b: fillers[a]}
        return change[0], fillers
    changed = dict(fillers)
    slots = [slot for slot in frame.slots if slot not in frame.fixed]
    for slot in rng.sample(slots, 2 if rng.random() < TWO_FILLERS_SHARE else 1):
        free = [
            filler
            for filler in pool(frame, slot)
            if filler not in fillers.values() and filler not in changed.values()
        ]
        changed[slot] = rng.choice(free)
    return state, changed


def tell(form: str, fillers: dict[str, str], rng: random.Random) -> str:
    """Fills one wording in, draws among its [a|b], and starts it with a capital letter."""
    text = form.format(**fillers)
    text = re.sub(r"\[([^]]*)\]", lambda match: rng.choice(match[1].split("|")), text)
    return text[0].upper() + text[1:]


def generate(seed: int = SEED) -> dict[str, list[Pair]]:
    """Makes all pairs: split -> (sentence1, sentence2, label), half of each label.

    The splits share the frames; no set of fillers, and so no sentence, is in two pairs.
    """
    rng = random.Random(seed)
    splits: dict[str, list[Pair]] = {split: [] for split in PAIRS_PER_FRAME}
    for frame in FRAMES.values():
        used: set[frozenset[str]] = set()
        for split, count in PAIRS_PER_FRAME.items():
            for number in range(count):
                label = (PARAPHRASE, DIFFERENT)[number % 2]
                splits[split].append(_draw_pair(frame, label, used, rng))
    for pairs in splits.values():
        rng.shuffle(pairs)
    return splits


def _draw_pair(frame: Frame, label: str, used: set[frozenset[str]], rng: random.Random) -> Pair:
    while True:
        state, fillers = draw_event(frame, rng)
        state2, fillers2 = state, fillers
        if label == DIFFERENT:
            state2, fillers2 = change_event(frame, state, fillers, rng)
        events = {frozenset(fillers.values()), frozenset(fillers2.values())}
        if not events & used:
            break
    used |= events
    form = rng.choice(frame.forms[state])
    first = tell(form, fillers, rng)
    others = [other for other in frame.forms[state2] if other != form]
    seconds = [tell(rng.choice(others), fillers2, rng) for _ in range(WORDINGS)]
    # A paraphrase takes the wording that shares the fewest words, another event the one that
    # shares the most: else the changed fillers would show in the overlap.
    choose = min if label == PARAPHRASE else max
    return first, choose(seconds, key=lambda second: overlap(first, second)), label


def words(sentence: str) -> set[str]:
    return set(re.findall(r"[\w']+", sentence.lower()))


def overlap(first: str, second: str) -> float:
    """The share of all words that both sentences have (Jaccard index), 0 to 1."""
    a, b = words(first), words(second)
    return len(a & b) / len(a | b)


def shortcut_accuracies(pairs: Iterable[Pair]) -> dict[str, float]:
    """What the best rule without understanding scores on `pairs`, fitted to them (0 to 1).

    word: the label by one word: whether it is in sentence 1, in sentence 2, in both, in either
    or in one only; the best of all words and all five. overlap: the label by whether the shared
    part of all words (Jaccard index) exceeds the best threshold.
    """
    pairs = list(pairs)
    sets = [(words(a), words(b), label == PARAPHRASE) for a, b, label in pairs]
    positives = sum(label for _, _, label in sets)

    def best(counts: dict[object, list[int]]) -> int:
        # A rule marks [negatives, positives]; either side of it may be called a paraphrase.
        return max(
            max(p + len(sets) - positives - n, n + positives - p) for n, p in counts.values()
        )

    by_word: dict[object, list[int]] = {}
    for a, b, label in sets:
        for place, found in enumerate((a, b, a & b, a | b, a ^ b)):
            for word in found:
                by_word.setdefault((place, word), [0, 0])[label] += 1
    overlaps = [(overlap(a, b), label == PARAPHRASE) for a, b, label in pairs]
    by_threshold: dict[object, list[int]] = {}
    for threshold in sorted({share for share, _ in overlaps}):
        above = [label for share, label in overlaps if share >= threshold]
        by_threshold[threshold] = [len(above) - sum(above), sum(above)]
    return {"word": best(by_word) / len(sets), "overlap": best(by_threshold) / len(sets)}


def render(pairs: Iterable[Pair]) -> str:
    return "".join("\t".join(row) + "\n" for row in [HEADER, *pairs])


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the demo's sentence pairs.")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if the files would change"
    )
    args = parser.parse_args()
    folder = Path(__file__).resolve().parent
    splits = generate()
    for split, pairs in splits.items():
        path = folder / f"{split}.tsv"
        if not args.check:
            path.write_text(render(pairs), encoding="utf-8", newline="\n")
        elif not path.exists() or path.read_text(encoding="utf-8") != render(pairs):
            print(f"{path} is not what this script writes; run it without --check.")
            return 1
        print(f"{path.name}: {len(pairs)} pairs")
    accuracies = shortcut_accuracies(pair for pairs in splits.values() for pair in pairs)
    print(f"best single-word rule {accuracies['word']:.3f}, overlap {accuracies['overlap']:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
