"""Entities and the tags that say where they are: BIO and its relatives, read as conlleval reads them."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Literal, NamedTuple

import torch
from torch import Tensor

AllowedTransitions = tuple[Tensor, Tensor, Tensor]
"""Which tags may start [tags], follow another [tags, tags] and end [tags]."""


Scheme = Literal["none", "BIO1", "BIO", "BIOES", "BMES"]
"""How tags show where an entity starts and ends; BIO1 has a B only where two of one type meet, BMES no O of its own."""

OUTSIDE = "O"
ALIKE = {"M": "I", "L": "E", "U": "S", "W": "S"}
"""What other schemes call the inside, the end and an entity of one word: BMES, BILOU, BMEWO."""
FOREIGN = "ESMLUW"
"""Letters that BIO lacks."""
LETTERS = {"BIO1": "BI", "BIO": "BI", "BIOES": "BIES", "BMES": "BMES"}


class Entity(NamedTuple):
    """The words from `start` up to `end`, and what they are."""

    type: str
    start: int
    end: int


class TagParts(NamedTuple):
    """A tag in its two parts: "B-LOC" is B of LOC, "B" is B of nothing; what has no such form is outside."""

    place: str
    type: str


def parse_tag(tag: str) -> TagParts:
    """A tag in parts, the inside, the end and a single word called I, E and S whatever the scheme."""
    place, _, kind = tag.partition("-")
    return TagParts(ALIKE.get(place, place), kind)


def extract_entities(tags: Sequence[str]) -> list[Entity]:
    """The entities that tags speak of, broken ones too: as conlleval reads them, of any scheme."""
    found: list[Entity] = []
    start, before = -1, TagParts(OUTSIDE, "")
    for number, tag in enumerate(chain(map(parse_tag, tags), [TagParts(OUTSIDE, "")])):
        inside = start >= 0
        if inside and (before.place in "ES" or tag.place in "BSO" or tag.type != before.type):
            found.append(Entity(before.type, start, number))
            start = -1
        if start < 0 and tag.place != OUTSIDE:
            start = number
        before = tag
    return found


def write_tags(found: Iterable[Entity], length: int, scheme: Scheme) -> list[str]:
    """The tags of a sentence with these entities."""
    tags = [OUTSIDE] * length
    last = Entity("", -1, -1)
    for entity in found:
        start, end = entity.start, entity.end
        if scheme in ("BIOES", "BMES"):
            inner = LETTERS[scheme][1] if scheme == "BMES" else "I"
            letters = "S" if end - start == 1 else "B" + inner * (end - start - 2) + "E"
        else:
            touches = last.end == start and last.type == entity.type
            letters = ("B" if scheme == "BIO" or touches else "I") + "I" * (end - start - 1)
        tags[start:end] = [f"{letter}-{entity.type}" if entity.type else letter for letter in letters]
        last = entity
    return tags


def is_entity_tag(tag: str) -> bool:
    """Whether a tag has the form of one that says where an entity is."""
    place, dash, kind = tag.partition("-")
    return place in (OUTSIDE, *"BIESMLUW") and not (place == OUTSIDE and dash) and not (dash and not kind)


def has_few_other_tags(sentences: Iterable[Sequence[str]]) -> bool:
    """Whether a few tags are of no scheme, though nearly all others are; O says nothing, as plain tags have it."""
    counts = Counter(is_entity_tag(tag) for tags in sentences for tag in tags if tag != OUTSIDE)
    return 0 < counts[False] * 4 <= counts[True]


def has_few_foreign_letters(sentences: Iterable[Sequence[str]]) -> bool:
    """Whether a few tags have a letter that BIO lacks, though nearly all entities end as in BIO.

    Where that is the S of single words alone, and none of these is a B or I, the letters are meant so.
    """
    sentences = list(sentences)
    letters = Counter(tag.partition("-")[0] for tags in sentences for tag in tags)
    foreign = sum(letters[letter] for letter in FOREIGN)
    if not 0 < foreign * 4 <= letters["B"] + letters["I"]:
        return False
    sizes = [
        each.end - each.start
        for tags in sentences
        for each in extract_entities(tags)
        if tags[each.end - 1].partition("-")[0] in ("B", "I")
    ]
    return foreign * 4 <= len(sizes) and (1 in sizes or any(letters[letter] for letter in "EML"))


def detect_scheme(sentences: Iterable[Sequence[str]]) -> Scheme:
    """The scheme that these tags follow; "none" where they are no tags of entities, such as parts of speech."""
    places: set[str] = set()
    bare = True
    b_starts = i_starts = 0
    for tags in sentences:
        before = TagParts(OUTSIDE, "")
        for tag in tags:
            if not is_entity_tag(tag):
                return "none"
            place, _, kind = tag.partition("-")
            places.add(place)
            bare = bare and not kind
            here = parse_tag(tag)
            fresh = before.place == OUTSIDE or before.type != here.type
            b_starts += here.place == "B" and fresh
            i_starts += here.place == "I" and fresh
            before = here
    if not places - {OUTSIDE}:
        return "none"
    if "M" in places or (bare and "I" not in places and places & {*"ES"}):
        return "BMES"
    if places & {*"ESLUW"}:
        return "BIOES"
    return "BIO1" if i_starts > b_starts else "BIO"  # published files have a few slips


def invalid_transitions(tags: Sequence[str], scheme: Scheme) -> Iterator[int]:
    """The places of tags that cannot stand where they stand; the number of all where the last cannot end a sentence."""
    if scheme in ("none", "BIO1"):
        return
    follows = _follows(scheme)
    parts = [TagParts(OUTSIDE, ""), *map(parse_tag, tags), TagParts(OUTSIDE, "")]
    for number, (before, tag) in enumerate(pairwise(parts)):
        if not follows(before, tag):
            yield number


def allowed_transitions(names: Sequence[str], scheme: Scheme) -> AllowedTransitions | None:
    """Which of these tags may start, follow one another and end; None where anything goes."""
    if scheme in ("none", "BIO1"):
        return None
    follows, outside = _follows(scheme), TagParts(OUTSIDE, "")
    tags = list(map(parse_tag, names))
    starts = torch.tensor([follows(outside, tag) for tag in tags])
    steps = torch.tensor([[follows(before, tag) for tag in tags] for before in tags])
    ends = torch.tensor([follows(tag, outside) for tag in tags])
    return starts, steps, ends


def _follows(scheme: Scheme) -> Callable[[TagParts, TagParts], bool]:
    """Whether a tag may follow another; the start and the end of a sentence count as outside."""
    closes = scheme in ("BIOES", "BMES")

    def follows(before: TagParts, tag: TagParts) -> bool:
        opened = before.place in ("B", "I")
        if tag.place in ("I", "E"):
            return opened and before.type == tag.type
        return not (closes and opened)

    return follows


def complete_tags(names: Iterable[str], scheme: Scheme) -> set[str]:
    """These tags and the others of their types, which a text of the same scheme may have."""
    names = set(names)
    if scheme == "none":
        return names
    types = {parse_tag(name).type for name in names if name != OUTSIDE}
    letters = LETTERS[scheme]
    made = {f"{letter}-{kind}" if kind else letter for kind in types for letter in letters}
    return made | ({OUTSIDE} if scheme != "BMES" or types != {""} or OUTSIDE in names else set())
