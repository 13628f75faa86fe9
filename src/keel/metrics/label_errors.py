"""Likely label errors, ranked: confident learning (Northcutt, Jiang and Chuang 2021).

The threshold t_j of a label is the mean probability of j among the examples with that label. An example is a suspect if
its most probable label j is not the given one, and p(j) >= t_j; suspects are ranked by p(j) - p(given label).
"""

import numpy as np

from keel.data.examples import Examples
from keel.data.label_kinds import LabelKind, MultiLabel, SingleLabel, TagLabels
from keel.data.predictions import Predictions, TagPredictions
from keel.metrics.bootstrap import safe_ratio
from keel.metrics.scores import LabelSuspects, prediction_errors
from keel.metrics.tagging_scores import tag_errors, tags_in_scheme


def supports_label_errors(kind: LabelKind) -> bool:
    """Whether labels are classes or tags, of which the wrong ones can be found."""
    return isinstance(kind, SingleLabel | MultiLabel | TagLabels)


def find_label_errors(examples: Examples, predictions: Predictions, most: int) -> LabelSuspects:
    """At most `most` likely label errors; the model should not have been trained on the examples."""
    if isinstance(predictions, TagPredictions):
        return _suspect_tags(examples, predictions, most)
    if isinstance(predictions.labels.kind, SingleLabel):
        confidence, margin = _suspect_labels(predictions.estimates, predictions.labels.targets(examples).numpy())
        named = [predictions.labels.names[number] for number in predictions.estimates.argmax(1)]
    else:
        assert isinstance(predictions.labels.kind, MultiLabel)
        confidence, margin = _suspect_label_sets(
            predictions.estimates, predictions.labels.targets(examples).numpy() > 0
        )
        names = np.array(predictions.labels.names, dtype=object)
        named = [tuple(names[row].tolist()) for row in predictions.decide()]
    ranked = _ranked(margin, confidence)
    found = prediction_errors(examples, ranked[:most], named)
    return LabelSuspects(found=found, total=len(ranked), count=len(examples))


def _ranked(margin: np.ndarray, confidence: np.ndarray) -> list[tuple[int, float]]:
    """Indices and confidences of the suspects, whose margin is not NaN, the largest margin first."""
    order = np.argsort(-margin, kind="stable")[: np.count_nonzero(margin == margin)]
    return [*zip(order.tolist(), confidence[order].tolist(), strict=True)]


def _suspect_labels(estimates: np.ndarray, given: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[examples] the probability of the most probable label, and its margin over the given one, NaN for no suspect."""
    rows, best = np.arange(len(given)), estimates.argmax(1)
    of_given = estimates[rows, given]
    classes = estimates.shape[1]
    thresholds = safe_ratio(np.bincount(given, of_given, classes), np.bincount(given, minlength=classes))
    confidence = estimates[rows, best]
    suspect = (best != given) & (confidence >= thresholds[best])
    return confidence, np.where(suspect, confidence - of_given, np.nan)


def _suspect_label_sets(estimates: np.ndarray, given: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same for the label of each example that is most likely to be missing, or to be there by mistake."""
    present = safe_ratio((estimates * given).sum(0), given.sum(0))
    absent = safe_ratio((estimates * ~given).sum(0), (~given).sum(0))
    suspect = np.where(given, estimates <= absent, estimates >= present)
    chance = np.where(suspect, np.where(given, 1 - estimates, estimates), -1.0)
    worst = chance.max(1)
    return worst, np.where(worst >= 0.5, 2 * worst - 1, np.nan)


def _suspect_tags(examples: Examples, predictions: TagPredictions, most: int) -> LabelSuspects:
    """Words with another tag than the given one, at least as confident as the model is where that tag is given."""
    names = np.array(predictions.labels.names, dtype=object)
    given = np.array([tag for tags in tags_in_scheme(examples, predictions.labels.names) for tag in tags], dtype=object)
    predicted, confidence = names[predictions.tag_ids], predictions.estimates
    agrees = predicted == given
    sums = np.bincount(predictions.tag_ids[agrees], confidence[agrees], len(names))
    thresholds = safe_ratio(sums, np.bincount(predictions.tag_ids[agrees], minlength=len(names)))
    suspect = ~agrees & (confidence >= thresholds[predictions.tag_ids])
    ranked = _ranked(np.where(suspect, confidence, np.nan), confidence)
    found = tag_errors(examples, predictions, given, ranked[:most])
    return LabelSuspects(found=found, total=len(ranked), count=len(given))
