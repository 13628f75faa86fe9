"""Scores of generated texts against references: BLEU and chrF by sacrebleu."""

from typing import Any

import numpy as np

from keel.data.examples import Examples
from keel.data.predictions import GeneratedPredictions
from keel.data.sentence_splitting import detect_language
from keel.errors import KeelError
from keel.metrics.scores import ERRORS, PredictionError, Scores, intervals, resamples


def score_texts(
    examples: Examples, predictions: GeneratedPredictions, losses: tuple[np.ndarray, np.ndarray] | None
) -> Scores:
    """Scores of the best text for each example against its target; `losses` are -log p and token counts of the targets
    that fit into the model."""
    references, generated = examples.values, [texts[0].text for texts in predictions.generated]
    chinese = detect_language("\n".join(references[:100])) == "zh"
    rng = np.random.default_rng(0)
    values, signatures = {}, []
    for name, metric in sacrebleu_metrics(chinese=chinese).items():
        # Both are ratios of counts. sacrebleu's own bootstrap fails where a resample scores 0.
        counts = np.array(metric._extract_corpus_statistics(generated, [references]), np.int64)
        sums = np.concatenate([weights @ counts for weights in resamples(len(counts), rng)])
        values[name] = np.array([metric._compute_score_from_stats(row).score for row in sums.round().tolist()])
        signatures.append(f"{name} {metric.get_signature()}")
    correct = np.array([one == two for one, two in zip(generated, references, strict=True)])
    values["exact"] = np.concatenate([weights @ correct / len(correct) for weights in resamples(len(correct), rng)])
    score_note = f"sacrebleu {'; '.join(signatures)}"
    if losses is None:
        score_note += "; no loss, as every pair is too long for the model"
    else:
        sums, token_counts = losses
        values["loss"] = np.concatenate(
            [weights @ sums / (weights @ token_counts) for weights in resamples(len(sums), rng)]
        )
        if len(sums) < len(references):
            score_note += f"; loss of {len(sums):,} of {len(references):,} pairs, the others are too long for the model"
    wrong = np.flatnonzero(~correct)
    most_confident = wrong[np.argsort(-predictions.estimates[wrong], kind="stable")[:ERRORS]].tolist()
    errors = [
        PredictionError(
            where=examples[number].location,
            text=examples.texts[number],
            second=None,
            label=references[number],
            predicted=generated[number],
            confidence=float(np.exp(predictions.estimates[number])),
        )
        for number in most_confident
    ]
    return Scores(
        main="bleu",
        values=intervals(values, len(references)),
        count=len(references),
        errors=errors,
        note=score_note,
    )


def sacrebleu_metrics(*, chinese: bool = False) -> dict[str, Any]:
    """BLEU and chrF; an error without sacrebleu."""
    try:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
    except ImportError:
        raise KeelError("scores of generated text need sacrebleu: pip install 'keel-nlp[eval]'") from None
    return {"bleu": BLEU(tokenize="zh" if chinese else "13a"), "chrf": CHRF()}
