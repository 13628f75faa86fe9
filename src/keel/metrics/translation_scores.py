"""How near written texts are to those that were wanted: BLEU and chrF, as sacrebleu counts them."""

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
    """Scores of the best text for each example against its target; `losses` are -log p of those targets that the model
    can take, and of how many pieces each."""
    wanted, written = examples.values, [texts[0].text for texts in predictions.generated]
    chinese = detect_language("\n".join(wanted[:100])) == "zh"
    random = np.random.default_rng(0)
    values, signatures = {}, []
    for name, metric in sacrebleu_metrics(chinese=chinese).items():
        # Both are ratios of counts. Its own resampling breaks off where one of the samples scores nothing.
        counts = np.array(metric._extract_corpus_statistics(written, [wanted]), np.int64)
        sums = np.concatenate([weights @ counts for weights in resamples(len(counts), random)])
        values[name] = np.array([metric._compute_score_from_stats(row).score for row in sums.round().tolist()])
        signatures.append(f"{name} {metric.get_signature()}")
    right = np.array([one == two for one, two in zip(written, wanted, strict=True)])
    exact = np.concatenate([weights @ right / len(right) for weights in resamples(len(right), random)])
    values["exact"] = exact
    remark = f"sacrebleu's {'; '.join(signatures)}"
    if losses is None:
        remark += "; there is no loss, as every pair is too long for the model"
    else:
        sums, pieces = losses
        values["loss"] = np.concatenate(
            [weights @ sums / (weights @ pieces) for weights in resamples(len(sums), random)]
        )
        if len(sums) < len(wanted):
            remark += f"; the loss is of {len(sums):,} of {len(wanted):,} pairs, the others are too long for the model"
    wrong = np.flatnonzero(~right)
    surest = wrong[np.argsort(-predictions.estimates[wrong], kind="stable")[:ERRORS]].tolist()
    errors = [
        PredictionError(
            where=examples[number].location,
            text=examples.texts[number],
            second=None,
            label=wanted[number],
            predicted=written[number],
            confidence=float(np.exp(predictions.estimates[number])),
        )
        for number in surest
    ]
    return Scores(
        main="bleu",
        values=intervals(values, len(wanted)),
        count=len(wanted),
        errors=errors,
        note=remark,
    )


def sacrebleu_metrics(*, chinese: bool = False) -> dict[str, Any]:
    """What scores texts, by name; without sacrebleu that is refused."""
    try:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
    except ImportError:
        raise KeelError("scores of written text need sacrebleu: pip install 'keel-nlp[eval]'") from None
    return {"bleu": BLEU(tokenize="zh" if chinese else "13a"), "chrf": CHRF()}
