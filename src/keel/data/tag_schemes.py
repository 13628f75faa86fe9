"""Tagging schemes of entities (BIO, BIOES, BMES and others), interpreted as conlleval does."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Literal, NamedTuple

import torch
from torch import Tensor

AllowedTransitions = tuple[Tensor, Tensor, Tensor]
"""Which tags may start a sentence [tags], follow another tag [tags, tags] and end a sentence [tags]."""


Scheme = Literal["none", "BIO1", "BIO", "BIOES", "BMES"]
"""BIO1 (IOB1) has a B only between adjacent entities of one type; BMES may lack O."""

OUTSIDE = "O"
EQUIVALENT = {"M": "I", "L": "E", "U": "S", "W": "S"}
"""Prefixes of BMES, BILOU and BMEWO for I, E and S."""
FOREIGN = "ESMLUW"
"""Prefixes that BIO lacks."""
PREFIXES = {"BIO1": "BI", "BIO": "BI", "BIOES": "BIES", "BMES": "BMES"}


class Entity(NamedTuple):
    """An entity of the words from `start` up to `end`."""

    type: str
    start: int
    end: int


class TagParts(NamedTuple):
    """The prefix and type of a tag: "B-LOC" is B of LOC, "B" is B without a type."""

    prefix: str
    type: str


NO_ENTITY = TagParts(OUTSIDE, "")


def parse_tag(tag: str) -> TagParts:
    """The parts of a tag, with the prefixes I, E and S whatever the scheme."""
    prefix, _, kind = tag.partition("-")
    return TagParts(EQUIVALENT.get(prefix, prefix), kind)


def extract_entities(tags: Sequence[str]) -> list[Entity]:
    """The entities of a tag sequence of any scheme; invalid sequences are interpreted as conlleval does."""
    found: list[Entity] = []
    start, before = -1, NO_ENTITY
    for number, tag in enumerate(chain(map(parse_tag, tags), [NO_ENTITY])):
        if start >= 0 and (before.prefix in "ES" or tag.prefix in "BSO" or tag.type != before.type):
            found.append(Entity(before.type, start, number))
            start = -1
        if start < 0 and tag.prefix != OUTSIDE:
            start = number
        before = tag
    return found


def write_tags(found: Iterable[Entity], length: int, scheme: Scheme) -> list[str]:
    """The tags of a sentence with these entities, in a scheme."""
    tags = [OUTSIDE] * length
    last = Entity("", -1, -1)
    for entity in found:
        start, end = entity.start, entity.end
        if scheme in ("BIOES", "BMES"):
            prefixes = "S" if end - start == 1 else "B" + PREFIXES[scheme][1] * (end - start - 2) + "E"
        else:
            touches = last.end == start and last.type == entity.type
            prefixes = ("B" if scheme == "BIO" or touches else "I") + "I" * (end - start - 1)
        tags[start:end] = [f"{prefix}-{entity.type}" if entity.type else prefix for prefix in prefixes]
        last = entity
    return tags


def is_entity_tag(tag: str) -> bool:
    """Whether a tag has the form of an entity tag of some scheme."""
    prefix, dash, kind = tag.partition("-")
    return prefix in (OUTSIDE, *"BIESMLUW") and not (prefix == OUTSIDE and dash) and not (dash and not kind)


def has_few_other_tags(sentences: Iterable[Sequence[str]]) -> bool:
    """Whether a few tags are not entity tags, though most others are; O is not counted: plain tags have it too."""
    counts = Counter(is_entity_tag(tag) for tags in sentences for tag in tags if tag != OUTSIDE)
    return 0 < counts[False] * 4 <= counts[True]


def has_few_foreign_prefixes(sentences: Iterable[Sequence[str]]) -> bool:
    """Whether a few tags have prefixes that BIO lacks, though most entities end as in BIO.

    Where only single words have an S, and no single word has a B or I, the prefixes are intended.
    """
    sentences = list(sentences)
    prefixes = Counter(tag.partition("-")[0] for tags in sentences for tag in tags)
    foreign = sum(prefixes[prefix] for prefix in FOREIGN)
    if not 0 < foreign * 4 <= prefixes["B"] + prefixes["I"]:
        return False
    sizes = [
        each.end - each.start
        for tags in sentences
        for each in extract_entities(tags)
        if tags[each.end - 1].partition("-")[0] in ("B", "I")
    ]
    return foreign * 4 <= len(sizes) and (1 in sizes or any(prefixes[prefix] for prefix in "EML"))


def detect_scheme(sentences: Iterable[Sequence[str]]) -> Scheme:
    """The scheme of these tags; "none" for others, such as parts of speech."""
    prefixes: set[str] = set()
    bare = True
    b_starts = i_starts = 0
    for tags in sentences:
        before = NO_ENTITY
        for tag in tags:
            if not is_entity_tag(tag):
                return "none"
            prefix, _, kind = tag.partition("-")
            prefixes.add(prefix)
            bare = bare and not kind
            here = parse_tag(tag)
            is_start = before.prefix == OUTSIDE or before.type != here.type
            b_starts += here.prefix == "B" and is_start
            i_starts += here.prefix == "I" and is_start
            before = here
    if not prefixes - {OUTSIDE}:
        return "none"
    if "M" in prefixes or (bare and "I" not in prefixes and prefixes & {*"ES"}):
        return "BMES"
    if prefixes & {*"ESLUW"}:
        return "BIOES"
    return "BIO1" if i_starts > b_starts else "BIO"  # published files have a few errors


def invalid_transitions(tags: Sequence[str], scheme: Scheme) -> Iterator[int]:
    """Indices of tags that may not follow their predecessor; the tag count where the last may not end a sentence."""
    if scheme in ("none", "BIO1"):
        return
    parts = [NO_ENTITY, *map(parse_tag, tags), NO_ENTITY]
    for number, (before, tag) in enumerate(pairwise(parts)):
        if not _may_follow(before, tag, scheme):
            yield number


def allowed_transitions(names: Sequence[str], scheme: Scheme) -> AllowedTransitions | None:
    """The allowed transitions between these tags; None for schemes without constraints."""
    if scheme in ("none", "BIO1"):
        return None
    tags = list(map(parse_tag, names))
    starts = torch.tensor([_may_follow(NO_ENTITY, tag, scheme) for tag in tags])
    steps = torch.tensor([[_may_follow(before, tag, scheme) for tag in tags] for before in tags])
    ends = torch.tensor([_may_follow(tag, NO_ENTITY, scheme) for tag in tags])
    return starts, steps, ends


def _may_follow(before: TagParts, tag: TagParts, scheme: Scheme) -> bool:
    """Whether a tag may follow another; start and end of a sentence count as O."""
    opened = before.prefix in ("B", "I")
    if tag.prefix in ("I", "E"):
        return opened and before.type == tag.type
    return not (opened and scheme in ("BIOES", "BMES"))


def complete_tags(names: Iterable[str], scheme: Scheme) -> set[str]:
    """These tags and the other tags of their types in the scheme."""
    names = set(names)
    if scheme == "none":
        return names
    types = {parse_tag(name).type for name in names if name != OUTSIDE}
    prefixes = PREFIXES[scheme]
    made = {f"{prefix}-{kind}" if kind else prefix for kind in types for prefix in prefixes}
    return made | ({OUTSIDE} if scheme != "BMES" or types != {""} or OUTSIDE in names else set())
