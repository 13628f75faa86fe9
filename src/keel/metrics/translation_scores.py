"""Scores of generated texts against references: BLEU and chrF by sacrebleu."""

from typing import Any

import numpy as np

from keel.data.examples import Examples
from keel.data.language_detection import is_unspaced
from keel.data.predictions import GeneratedPredictions
from keel.errors import KeelError
from keel.metrics.bootstrap import Score, Values, bootstrap
from keel.metrics.scores import Scores, most_confident


def score_texts(
    examples: Examples, predictions: GeneratedPredictions, losses: tuple[np.ndarray, np.ndarray] | None
) -> Scores:
    """Scores of the best text for each example against its target; `losses` are -log p and token counts of the targets
    that fit into the model."""
    references, generated = examples.values, [texts[0].text for texts in predictions.generated]
    chinese = is_unspaced("\n".join(references[:100]))
    rng = np.random.default_rng(0)

    def corpus_score(metric: Any) -> Score:
        # Both metrics are ratios of counts. sacrebleu's own bootstrap fails where a resample scores 0.
        counts = np.array(metric._extract_corpus_statistics(generated, [references]), np.int64)

        def statistics(weights: np.ndarray) -> Values:
            sums = (weights @ counts).round().tolist()
            return {"score": np.array([metric._compute_score_from_stats(row).score for row in sums])}

        return bootstrap(statistics, len(counts), rng)["score"]

    metrics = sacrebleu_metrics(chinese=chinese)
    values = {name: corpus_score(metric) for name, metric in metrics.items()}
    correct = np.array([one == two for one, two in zip(generated, references, strict=True)])
    values |= bootstrap(lambda weights: {"exact": weights @ correct / len(correct)}, len(correct), rng)
    score_note = f"sacrebleu {'; '.join(f'{name} {metric.get_signature()}' for name, metric in metrics.items())}"
    if losses is None:
        score_note += "; no loss, as every pair is too long for the model"
    else:
        sums, token_counts = losses
        values |= bootstrap(lambda weights: {"loss": weights @ sums / (weights @ token_counts)}, len(sums), rng)
        if len(sums) < len(references):
            score_note += f"; loss of {len(sums):,} of {len(references):,} pairs, the others are too long for the model"
    wrong = np.flatnonzero(~correct)
    confidence = np.exp(predictions.estimates[wrong])
    errors = most_confident(examples, wrong, confidence, generated)
    return Scores(main="bleu", values=values, count=len(references), errors=errors, note=score_note)


def sacrebleu_metrics(*, chinese: bool = False) -> dict[str, Any]:
    """BLEU and chrF; an error without sacrebleu."""
    try:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
    except ImportError:
        raise KeelError("scores of generated text need sacrebleu: pip install 'keel-nlp[eval]'") from None
    return {"bleu": BLEU(tokenize="zh" if chinese else "13a"), "chrf": CHRF()}
