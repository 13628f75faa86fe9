"""How near written texts are to those that were wanted: BLEU and chrF, as sacrebleu counts them."""

import json
from typing import Any

import numpy as np

from keel.errors import KeelError
from keel.tasks.examples import Examples
from keel.tasks.metrics import ERRORS, RESAMPLES, Mistake, Score, Scores, intervals, resamples
from keel.tasks.predictions import RewritePredictions
from keel.text.sentences import detect_language


def score_texts(examples: Examples, predictions: RewritePredictions, losses: np.ndarray, pieces: np.ndarray) -> Scores:
    """Scores of the best text for each example against its target; `losses` are -log p of targets of so many `pieces`,
    where the model can take them."""
    wanted, written = examples.values, [texts[0].text for texts in predictions.found]
    chinese = detect_language("\n".join(wanted[:100])) == "zh"
    values, signatures = {}, []
    for name, metric in _metrics(chinese).items():
        found = metric.corpus_score(written, [wanted], n_bootstrap=RESAMPLES)
        told = json.loads(found.format(width=9, signature=str(metric.get_signature()), is_json=True))
        mean, spread = told.get("confidence_mean", found.score), told.get("confidence_var", 0.0)
        values[name] = Score(value=found.score, low=max(0.0, mean - spread), high=min(100.0, mean + spread))
        signatures.append(f"{name} {told['signature']}")
    right = np.array([one == two for one, two in zip(written, wanted, strict=True)])
    random = np.random.default_rng(0)
    exact = np.concatenate([weights @ right / len(right) for weights in resamples(len(right), random)])
    loss = np.concatenate([weights @ losses / (weights @ pieces) for weights in resamples(len(losses), random)])
    values |= intervals({"exact": exact, "loss": loss})
    wrong = np.flatnonzero(~right)
    surest = wrong[np.argsort(-predictions.estimates[wrong], kind="stable")[:ERRORS]].tolist()
    errors = [
        Mistake(
            where=examples[number].where,
            text=examples.texts[number],
            second=None,
            label=wanted[number],
            predicted=written[number],
            sureness=float(np.exp(predictions.estimates[number])),
        )
        for number in surest
    ]
    remark = f"sacrebleu's {'; '.join(signatures)}"
    return Scores(main="bleu", values=values, count=len(wanted), errors=errors, remark=remark)


def _metrics(chinese: bool) -> dict[str, Any]:
    try:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
    except ImportError:
        raise KeelError("scores of written text need sacrebleu: pip install 'keel-nlp[eval]'") from None
    return {"bleu": BLEU(tokenize="zh" if chinese else "13a"), "chrf": CHRF()}
