"""Files of labelled examples, before anything is learned from them."""

from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import numpy as np

from keel.checks.check_report import Finding
from keel.data.examples import NAMELESS, Example, Examples
from keel.errors import KeelError
from keel.events import counted
from keel.model import MAX_UNKNOWN, Model
from keel.tasks.task import Task

BATCH = 32
FEW = 5
"""A class with fewer examples is hardly learned."""


def facts_of(examples: Examples, model: Model | None) -> dict[str, Any]:
    """What one file holds."""
    units = {"tags": ("sentence",), "text": ("source with its target", "sources with their targets")}
    unit = units.get(examples.kind or "") or ("text" if examples[0].second is None else "pair",)
    what = counted(len(examples), *unit)
    if numbers := {len(choices) for choices in examples.choices} - {0}:
        what += f" with {' to '.join(map(str, sorted({min(numbers), max(numbers)})))} choices"
    facts: dict[str, Any] = {"holds": f"{what}{'' if examples.kind else ' without labels'}"}
    if examples.kind == "number":
        values = [example.label for example in examples if isinstance(example.label, float)]
        facts["labels"] = {"from": min(values), "to": max(values), "mean": sum(values) / len(values)}
    elif examples.kind == "choice":
        counts = Counter(example.label for example in examples)
        facts["labels"] = {f"choice {number}": count for number, count in sorted(counts.items())}
    elif examples.kind and examples.kind != "text":
        counts = _counts(examples)
        facts["labels"] = dict(counts.most_common(20))
        if len(counts) > 20:
            facts["labels"]["and others"] = len(counts) - 20
    lengths, unit = _lengths(examples, model)
    facts[f"{unit} in each"] = _spread(lengths)
    targets = np.zeros_like(lengths)
    if examples.kind == "text":
        targets = _target_lengths(examples, model)
        facts[f"{unit} in targets"] = _spread(targets)
    if model is not None:
        longest = model.system.max_length
        how = "read from their end on" if examples[0].choices else "read in windows"
        how = "left out of what is learned" if examples.kind == "text" else how
        facts["too long"] = f"{(np.maximum(lengths, targets) > longest).mean():.1%} above {longest}, {how}"
    mixed, sorted_ = _padding(np.random.default_rng(0).permutation(lengths)), _padding(np.sort(lengths))
    facts["padding"] = f"{mixed:.0%} of batches of {BATCH} in any order, {sorted_:.0%} sorted by length as Keel does"
    return facts


def findings_of(examples: Examples, model: Model | None, task: type[Task] | None = None) -> Iterator[Finding]:
    """What is wrong or odd within one file, and what of it a model cannot read; what a task is to be learned from must
    have labels."""
    if model is not None and (unknown := model.unknown_share(examples)) > MAX_UNKNOWN:
        what = f"{unknown:.1%} of the pieces are unknown to the model"
        yield Finding("warning", examples.source, what, "take a model that learned from such text")
    empty = [example for example in examples if not example.text.strip() or example.second == ""]
    if empty:
        what = f"{counted(len(empty), 'text is', 'texts are')} empty, the first here"
        yield Finding("warning", empty[0].location, what, "fill in or drop them")
    yield from _about_classes(examples, task)
    yield from _about_copies(examples)


def findings_between(files: list[Examples]) -> Iterator[Finding]:
    """What two files share that they should not; the first is taken for what is learned from."""
    for one, two in combinations(files, 2):
        seen = {_key(example): example for example in one}
        both = [example for example in two if _key(example) in seen]
        if both:
            share = f"{len(both):,} of its {len(two):,} texts ({len(both) / len(two):.1%}) stand in {one.source} too"
            place = f"the first here and in {seen[_key(both[0])].location}"
            remedy = "a score on them shows memory, so drop them from one file"
            yield Finding("warning", both[0].location, f"{share}, {place}", remedy)
    for other in files[1:]:
        unknown = [example for example in other if not {*files[0].names}.issuperset(example.names)]
        if unknown and files[0].kind in ("one", "several"):
            first = f"the first here ({unknown[0].label!r})"
            what = counted(len(unknown), "example has", "examples have")
            cause = f"{what} a label that {files[0].source} lacks, {first}"
            yield Finding("error", unknown[0].location, cause, "correct it, or train with it")


def _about_classes(examples: Examples, task: type[Task] | None) -> Iterator[Finding]:
    try:
        _ = task.label_schema(examples) if task else examples.labels
    except KeelError as error:
        yield Finding.of("error" if examples.kind or task else "warning", str(error), examples.source)
        return
    if examples.kind in NAMELESS:
        return
    counts = _counts(examples)
    rare = [name for name, count in counts.items() if count < FEW]
    if rare:
        cause = f"{counted(len(rare), 'label has', 'labels have')} fewer than {FEW} examples, such as {rare[0]!r}"
        yield Finding("warning", examples.source, cause, "collect more of them, or merge labels")
    name, count = counts.most_common(1)[0]
    if examples.kind != "tags" and count > 0.9 * len(examples):
        cause = f"{count / len(examples):.0%} of the examples are {name!r}"
        yield Finding("warning", examples.source, cause, "judge by F1 and Matthews, not by accuracy")


def _about_copies(examples: Examples) -> Iterator[Finding]:
    seen: dict[tuple[str, str | None], Example] = {}
    alike: list[tuple[Example, Example]] = []
    unlike: list[tuple[Example, Example]] = []
    for example in examples:
        before = seen.setdefault(_key(example), example)
        if before is not example:
            (alike if before.label == example.label else unlike).append((before, example))
    if unlike:
        one, two = unlike[0]
        if examples.kind == "text":  # a text may well be put in several ways
            what = counted(len(unlike), "source comes", "sources come")
            yield Finding("note", two.location, f"{what} again with another target, here that of {one.location}")
            unlike = []
    if unlike:
        one, two = unlike[0]
        labels = f"here {two.label!r} and in {one.location} {one.label!r}"
        what = counted(len(unlike), "text comes", "texts come")
        yield Finding("warning", two.location, f"{what} again with another label, {labels}", "decide which")
    if alike:
        one, two = alike[0]
        what = counted(len(alike), "example comes", "examples come")
        yield Finding("note", two.location, f"{what} again, here that of {one.location}", "drop the copies")


def _counts(examples: Examples) -> Counter[str]:
    return Counter(name for example in examples for name in example.names)


def _key(example: Example) -> tuple[str, str | None]:
    second = " | ".join(example.choices) or example.second
    return " ".join(example.text.split()), second and " ".join(second.split())


def _lengths(examples: Examples, model: Model | None) -> tuple[np.ndarray, str]:
    firsts = [example.text for example in examples]
    seconds = [example.second or max(example.choices, key=len, default="") for example in examples]
    if model is None:
        return np.array([len(one) + len(two) for one, two in zip(firsts, seconds, strict=True)]), "characters"
    alone = examples[0].second is None and not examples[0].choices
    marks = len(model.system.build_inputs(model.tokenizer, [], None if alone else []).ids)
    _, of_firsts = model.tokenizer.encode_flat(firsts)
    _, of_seconds = model.tokenizer.encode_flat(seconds)
    return of_firsts + of_seconds + marks, "tokens"


def _target_lengths(examples: Examples, model: Model | None) -> np.ndarray:
    """Of each target, with the mark that closes it."""
    if model is None:
        return np.array([len(value) for value in examples.values])
    tokenizer = (model.task and model.task.labels.tokenizer) or model.tokenizer
    return tokenizer.encode_flat(examples.values)[1] + 1


def _spread(lengths: np.ndarray) -> dict[str, int]:
    median, most = np.quantile(lengths, (0.5, 0.95)).astype(int).tolist()
    return {"median": median, "95% below": most, "longest": int(lengths.max())}


def _padding(lengths: np.ndarray) -> float:
    """The share of padding in batches of rows in this order."""
    starts = np.arange(0, len(lengths), BATCH)
    rows = np.diff(np.append(starts, len(lengths)))
    return 1 - lengths.sum() / max(1, (np.maximum.reduceat(lengths, starts) * rows).sum())
