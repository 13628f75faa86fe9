"""Scores as lines of text: values, a table of labels, confusions and errors."""

from collections.abc import Iterator
from typing import Any

from keel.explain.vector_benchmarks import Analogies
from keel.localization import Verbatim, gettext_noop, translate, translated
from keel.metrics.scores import LabelSuspects, PredictionError, Scores
from keel.text_table import aligned_lines, cut_characters

SHOWN_ERRORS = 5
LONGEST_SLICE = 40
"""Characters of a slice's name; the rest of a longer value is not shown."""
LARGEST_CONFUSION = 12
"""Labels up to which the confusion matrix is printed; of more, the most frequent confusions."""
SHOWN_CONFUSIONS = 10
SHOWN_LABELS = 30


def score_lines(scores: Scores) -> Iterator[str]:
    """All scores of an evaluation as text."""
    if isinstance(scores, Analogies):
        yield from map(str, scores.sections)
    yield str(scores)
    if scores.calibration_error is not None and scores.suspects is None:
        yield f"expected calibration error {scores.calibration_error:.3f} (difference of confidence and accuracy)"
    if scores.slices:
        head, rows = scores.slice_rows()
        yield f"\n{translate(f'by {scores.sliced_by}')}"
        rows = [["", *translated(head[1:])], *([_shortened(row[0]), *row[1:]] for row in rows)]
        yield from map(Verbatim, aligned_lines(rows))
    if scores.suspects is not None:
        yield from _suspect_lines(scores.suspects)
        return
    if len(scores.by_label) > 1:
        yield from _label_lines(scores)
    if scores.confusion:
        yield from _confusion_lines(scores)
    if scores.errors:
        yield "\nmost confident errors"
    for error in scores.errors[:SHOWN_ERRORS]:
        yield _error_line(error, translate("predicted as"), error.predicted or translate("an empty text"))


def _shortened(name: str) -> str:
    return cut_characters(name, LONGEST_SLICE)


def _suspect_lines(suspects: LabelSuspects) -> Iterator[str]:
    """Likely label errors instead of the errors of the model, which are mostly the same examples."""
    shown = f", the {len(suspects.found)} most likely" if suspects.total > len(suspects.found) else ""
    yield f"\nlikely label errors: {suspects.total:,} of {suspects.count:,} labels{shown}"
    for each in suspects.found:
        yield _error_line(each, translate("is rather"), each.predicted or translate("no label"))


def _error_line(error: PredictionError, relation: str, predicted: Any) -> str:
    texts = error.text if error.second is None else f"{error.text} | {error.second}"
    return Verbatim(f"{error.where}: {error.label} {relation} {predicted} ({error.confidence:.2f}): {texts[:100]}")


def _label_lines(scores: Scores) -> Iterator[str]:
    """Precision, recall, F1 and support of each label; of many labels, of those with the lowest F1."""
    rows = scores.label_rows()
    unit = "entity type" if scores.main == "entity_f1" else "label"
    title = f"by {unit}"
    if len(rows) > SHOWN_LABELS:
        shown = f"the {SHOWN_LABELS} of {len(rows)} {gettext_noop(unit)}s with the lowest F1"
        title = f"{shown} (all of them with --json or --out)"
        rows = sorted(rows, key=lambda row: (float(row[3]), -int(row[4])))[:SHOWN_LABELS]
    yield f"\n{title}"
    yield from map(Verbatim, aligned_lines([["", *translated(("precision", "recall", "F1", "support"))], *rows]))


def _confusion_lines(scores: Scores) -> Iterator[str]:
    assert scores.confusion is not None
    if len(scores.names) <= LARGEST_CONFUSION:
        yield "\nconfusion matrix (rows: true labels, columns: predicted labels)"
        rows = [[name, *map(str, counts)] for name, counts in zip(scores.names, scores.confusion, strict=True)]
        yield from map(Verbatim, aligned_lines([["", *scores.names], *rows]))
    elif scores.confused:
        yield "\nmost frequent confusions"
    for pair in scores.confused[:SHOWN_CONFUSIONS] if len(scores.names) > LARGEST_CONFUSION else ():
        yield f"{pair.label} predicted as {pair.predicted}: {pair.count:,} of {pair.support:,}"
