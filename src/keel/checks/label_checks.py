"""Checks of labelled examples."""

from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import numpy as np

from keel.checks.check_report import Finding
from keel.data.answer_spans import GoldAnswers
from keel.data.examples import Example, Examples
from keel.data.label_cleaning import describe_variants, has_mergeable_labels, label_variants
from keel.data.label_kinds import MultiLabel, SingleLabel, SpanLabel, TagLabels, TextTarget, label_names
from keel.errors import KeelError
from keel.events import pluralize
from keel.model import MAX_UNKNOWN, Model
from keel.tasks.task import Task

BATCH = 32
MIN_EXAMPLES = 5
"""Examples per class below which there is a warning."""

CLEANING = "--clean (finetune) or --fix (check)"
PERHAPS_MISSING = {"none", "null", "na", "n/a", "unknown", "?"}
"""Labels, in lower case, that may mean no label."""


def label_facts(examples: Examples, model: Model | None) -> dict[str, Any]:
    """Facts about one labelled file."""
    unit = (examples.kind and examples.kind.unit) or ("text" if examples[0].second is None else "pair",)
    what = pluralize(len(examples), *unit)
    if numbers := {len(choices) for choices in examples.choices} - {0}:
        what += f" with {' to '.join(map(str, sorted({min(numbers), max(numbers)})))} choices"
    facts: dict[str, Any] = {"contents": f"{what}{'' if examples.kind else ' without labels'}"}
    if examples.kind and (statistics := examples.kind.statistics(examples)):
        facts["labels"] = statistics
    lengths, unit = _lengths(examples, model), "tokens" if model else "characters"
    facts[f"{unit} in each"] = _spread(lengths)
    targets = np.zeros_like(lengths)
    if isinstance(examples.kind, TextTarget):
        targets = _target_lengths(examples, model)
        facts[f"{unit} in targets"] = _spread(targets)
    if model is not None:
        limit = model.system.max_length
        handling = "truncated on the left" if examples[0].choices else "split into windows"
        handling = "excluded from training" if isinstance(examples.kind, TextTarget) else handling
        facts["too long"] = f"{(np.maximum(lengths, targets) > limit).mean():.1%} above {limit}, {handling}"
    mixed, sorted_ = _padding(np.random.default_rng(0).permutation(lengths)), _padding(np.sort(lengths))
    facts["padding"] = f"{mixed:.0%} of shuffled batches of {BATCH}, {sorted_:.0%} when sorted by length as in training"
    return facts


def label_findings(examples: Examples, model: Model | None, task: type[Task] | None = None) -> Iterator[Finding]:
    """Problems within one file, including tokens unknown to the model; with a `task` the file must have labels."""
    if model is not None and (unknown := model.unknown_share(examples)) > MAX_UNKNOWN:
        what = f"{unknown:.1%} of the tokens are unknown to the model"
        yield Finding("warning", examples.source, what, "use a model pre-trained on such text")
    bare = [example for example in examples if not example.text.strip() or example.second == ""]
    empty = [example for example in bare if not example.choices]  # a context may be empty
    if empty:
        what = f"{pluralize(len(empty), 'text is', 'texts are')} empty, first here"
        yield Finding("warning", empty[0].location, what, f"fill them in, or drop them with {_cleaning(examples)}")
    yield from _class_findings(examples, task)
    yield from _variant_findings(examples)
    yield from _duplicate_findings(examples)
    yield from _id_findings(examples)


def findings_between(files: list[Examples]) -> Iterator[Finding]:
    """Overlap and unknown labels between files; the first is the training file."""
    for one, two in combinations(files, 2):
        seen, keys = {key: index for index, key in enumerate(one.text_keys())}, two.text_keys()
        both = [index for index, key in enumerate(keys) if key in seen]
        if both:
            share = f"{len(both):,} of its {len(two):,} texts ({len(both) / len(two):.1%}) are also in {one.source}"
            example = f"for example, {one.locations[seen[keys[both[0]]]]}"
            remedy = "scores on them measure memorisation, so drop them from one file"
            yield Finding("warning", two.locations[both[0]], f"{share} ({example})", remedy)
    for other in files[1:]:
        unknown = [example for example in other if not {*files[0].names}.issuperset(example.names)]
        if unknown and isinstance(files[0].kind, SingleLabel | MultiLabel):
            what = pluralize(len(unknown), "example has", "examples have")
            where = f"that is not in {files[0].source}, first here ({unknown[0].label!r})"
            cause = f"{what} a label {where}; no prediction for them is right"
            yield Finding("warning", unknown[0].location, cause, "correct it, or add it to the training file")


def _class_findings(examples: Examples, task: type[Task] | None) -> Iterator[Finding]:
    try:
        _ = task.label_schema(examples) if task else examples.labels
    except KeelError as error:
        yield Finding.of("error" if examples.kind or task else "warning", str(error), examples.source)
        return
    if examples.kind is not None and not examples.kind.has_classes:
        return
    counts = _counts(examples)
    rare = [name for name, count in counts.items() if count < MIN_EXAMPLES]
    if rare:
        what = pluralize(len(rare), "label has", "labels have")
        cause = f"{what} fewer than {MIN_EXAMPLES} examples, such as {rare[0]!r}"
        yield Finding("warning", examples.source, cause, "collect more examples, or merge labels")
    name, count = counts.most_common(1)[0]
    if not isinstance(examples.kind, TagLabels) and count > 0.9 * len(examples):
        cause = f"{count / len(examples):.0%} of the examples are {name!r}"
        yield Finding("warning", examples.source, cause, "use F1 and Matthews correlation, not accuracy")


def _variant_findings(examples: Examples) -> Iterator[Finding]:
    """Labels that differ only by case, whitespace or ".0", and those that may mean no label."""
    if not has_mergeable_labels(examples):
        return
    counts = dict(zip(examples.names, examples.label_counts, strict=True))
    variants = label_variants(counts)
    if variants:
        rows = sum(counts[name] for name in variants)
        what = pluralize(rows, "row has a label that differs", "rows have labels that differ")
        cause = f"{what} from a more frequent one only by case, spaces or .0 ({describe_variants(variants)})"
        yield Finding("warning", _first_with(examples, {*variants}), cause, f"merge them with {CLEANING}")
    for name in examples.names:
        if name.strip().lower() in PERHAPS_MISSING:
            cause = f"{pluralize(counts[name], 'row has', 'rows have')} the label {name!r}, first here"
            yield Finding("note", _first_with(examples, {name}), cause, "drop them if it means a missing label")


def _first_with(examples: Examples, names: set[str]) -> str:
    """Where the first example with one of these labels was read."""
    return next(examples.locations[index] for index, it in enumerate(examples.values) if names & {*label_names(it)})


def _duplicate_findings(examples: Examples) -> Iterator[Finding]:
    seen: dict[str, int] = {}
    same_label: list[tuple[int, int]] = []
    other_label: list[tuple[int, int]] = []
    for index, key in enumerate(examples.text_keys()):
        before = seen.setdefault(key, index)
        if before != index:
            same = examples.values[before] == examples.values[index]
            (same_label if same else other_label).append((before, index))
    if other_label:
        one, two = (examples[index] for index in other_label[0])
        if isinstance(examples.kind, TextTarget):  # a text has several translations
            forms = "duplicate source has another target", "duplicate sources have other targets"
            what = pluralize(len(other_label), *forms)
            yield Finding("note", two.location, f"{what} (for example, of {one.location})")
        else:
            what = pluralize(len(other_label), "duplicate text has another label", "duplicate texts have other labels")
            labels = f"here {_shown_label(two)}, in {one.location} {_shown_label(one)}"
            remedy = "correct the wrong one"
            if isinstance(examples.kind, SpanLabel):  # annotators choose different spans
                remedy = "give both answers to one question"
            yield Finding("warning", two.location, f"{what} ({labels})", remedy)
    if same_label:
        one, two = (examples.locations[index] for index in same_label[0])
        what = pluralize(len(same_label), "duplicate example", "duplicate examples")
        yield Finding("note", two, f"{what} (for example, of {one})", f"drop the copies with {_cleaning(examples)}")


def _id_findings(examples: Examples) -> Iterator[Finding]:
    """Ids that several questions have: the files of predicted answers have one answer for each id."""
    seen: set[str] = set()
    again = [each for each in examples if each.id in seen or (each.id and seen.add(each.id))]
    if again:
        what = pluralize(len(again), "question has the id of another", "questions have the ids of others")
        cause = f"{what}, first here ({again[0].id!r})"
        yield Finding(
            "warning", again[0].location, cause, "give each its own id, by which predict --out writes answers"
        )


def _cleaning(examples: Examples) -> str:
    """What drops rows: questions have no table that --fix could write."""
    return "--clean (finetune)" if isinstance(examples.kind, SpanLabel) else CLEANING


def _shown_label(example: Example) -> str:
    return repr(str(example.label) if isinstance(example.label, GoldAnswers) else example.label)


def _counts(examples: Examples) -> Counter[str]:
    return Counter(name for example in examples for name in example.names)


def _lengths(examples: Examples, model: Model | None) -> np.ndarray:
    """Input lengths in tokens, special tokens included; without a model in characters."""
    texts = [example.text for example in examples]
    seconds = [example.second or max(example.choices, key=len, default="") for example in examples]
    if model is None:
        return np.array([len(one) + len(two) for one, two in zip(texts, seconds, strict=True)])
    single = examples[0].second is None and not examples[0].choices
    special_tokens = len(model.system.build_inputs(model.tokenizer, [], None if single else []).ids)
    text_lengths, second_lengths = (model.tokenizer.encode_flat(each)[1] for each in (texts, seconds))
    return text_lengths + second_lengths + special_tokens


def _target_lengths(examples: Examples, model: Model | None) -> np.ndarray:
    """Target lengths, end token included."""
    if model is None:
        return np.array([len(value) for value in examples.values])
    tokenizer = (model.task and model.task.labels.tokenizer) or model.tokenizer
    return tokenizer.encode_flat(examples.values)[1] + 1


def _spread(lengths: np.ndarray) -> dict[str, int]:
    median, most = np.quantile(lengths, (0.5, 0.95)).astype(int).tolist()
    return {"median": median, "95% below": most, "longest": int(lengths.max())}


def _padding(lengths: np.ndarray) -> float:
    """Share of padding in batches in this order."""
    starts = np.arange(0, len(lengths), BATCH)
    rows = np.diff(np.append(starts, len(lengths)))
    return 1 - lengths.sum() / max(1, (np.maximum.reduceat(lengths, starts) * rows).sum())
