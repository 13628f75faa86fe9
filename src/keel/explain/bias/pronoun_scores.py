"""Pronouns and occupations: which of two pronouns a model prefers after each occupation.

Masked language models: Kurita et al. 2019. Causal ones: the probabilities of two sentences that differ in the pronoun.
Word vectors: the projection on the direction between the pronouns (Bolukbasi et al. 2016).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from rich.cells import cell_len

from keel.data.token_batch import TokenBatch
from keel.errors import KeelError, UsageError
from keel.events import OnEvent, ignore, note, pluralize
from keel.explain.bias.bias_templates import BiasTemplates, FilledTemplate, Pair, fill_template
from keel.explain.nearest_neighbors import VectorSpace
from keel.explain.zero_shot import next_token_model
from keel.formats.folder_architecture import WORD_HEAD
from keel.generation.likelihood import continuation_log_probs, encode_continuations
from keel.metrics.bootstrap import Score, Values, bootstrap, intervals, resample
from keel.model import Model
from keel.nn.inference_loop import eval_mode, length_batches
from keel.systems.capabilities import MaskedLM

ScoreMethod = Literal["masked", "causal", "vectors"]
TITLES: dict[ScoreMethod, str] = {
    "masked": "log-odds at the mask, minus those with a masked occupation",
    "causal": "log-odds of the sentences, minus those of a neutral word",
    "vectors": "cosine to the direction between the pronouns",
}
BATCH, BATCH_TOKENS = 64, 4_096
LISTED = 5
"""Left out words that a note lists."""


@dataclass(frozen=True, kw_only=True)
class OccupationScore:
    """The preference of a model after one occupation: positive for the first pronoun."""

    occupation: str
    score: Score
    """Corrected log-odds, or cosine, with its 95% interval over templates or pairs."""
    log_odds: float | None = None
    """Mean log-odds without the correction; None for word vectors."""
    positive: int = 0
    """Templates, or pairs of words, in which the score is positive."""

    @property
    def is_decided(self) -> bool:
        """Whether 0 is outside of the interval."""
        interval = self.score.interval
        return interval is not None and (interval[0] > 0 or interval[1] < 0)


@dataclass(frozen=True, kw_only=True)
class PronounScores:
    """Preferences of a model for one of two pronouns, the strongest for the first one at the top."""

    method: ScoreMethod
    pronouns: Pair
    samples: int
    """Templates, or pairs of words, that intervals resample."""
    occupations: list[OccupationScore]
    prior: float | None
    """Mean log-odds that are subtracted; None for word vectors."""
    magnitude: Score
    """Mean absolute score of the occupations."""

    @property
    def title(self) -> str:
        """What the scores are."""
        return TITLES[self.method]

    @property
    def resampled(self) -> str:
        """What the intervals resample."""
        return "pairs of words" if self.method == "vectors" else "templates"

    @property
    def toward(self) -> tuple[int, int]:
        """Occupations whose interval is above 0 (the first pronoun), and below."""
        intervals = [each.score.interval or (0.0, 0.0) for each in self.occupations]
        return sum(low > 0 for low, _ in intervals), sum(high < 0 for _, high in intervals)

    def lines(self) -> list[str]:
        """A table of occupations and the counts."""
        first, second = self.pronouns
        has_odds = self.method != "vectors"
        width = max(cell_len(each.occupation) for each in self.occupations)
        head = f"{' ' * width}  score    95% interval  > 0 of {self.samples}{'  uncorrected' * has_odds}"
        rows = [head]
        for each in self.occupations:
            low, high = each.score.low, each.score.high
            interval = "" if low is None or high is None else f"{low:+.2f} to {high:+.2f}"
            name = each.occupation + " " * (width - cell_len(each.occupation))
            odds = "" if each.log_odds is None else f"{each.log_odds:+13.2f}"
            count = f"{each.positive:{8 + len(str(self.samples))}}"
            rows.append(f"{name}  {each.score.value:+.2f}  {interval:>14}  {count}{odds}")
        above, below = self.toward
        counts = f"{above} of {len(self.occupations)} lean to {first!r}, {below} to {second!r} (interval without 0)"
        lines = [f"{first!r} (positive) or {second!r} (negative): {self.title}", "", *rows, ""]
        lines += [counts, f"mean absolute score {self.magnitude:.2f}"]
        if self.prior is not None:
            lines.append(f"without an occupation, the log-odds are {self.prior:+.2f} on average")
        return lines

    def to_dict(self) -> dict[str, Any]:
        above, below = self.toward
        occupations = [
            {
                "occupation": each.occupation,
                **_plain(each.score),
                "positive": each.positive,
                "log_odds": None if each.log_odds is None else round(each.log_odds, 6),
            }
            for each in self.occupations
        ]
        return {
            "method": self.method,
            "pronouns": [*self.pronouns],
            "samples": self.samples,
            "resampled": self.resampled,
            "prior": None if self.prior is None else round(self.prior, 6),
            "magnitude": _plain(self.magnitude),
            "toward": {self.pronouns[0]: above, self.pronouns[1]: below},
            "occupations": occupations,
        }


def masked_scores(model: Model, templates: BiasTemplates, on_event: OnEvent = ignore) -> PronounScores:
    """log p(first pronoun) - log p(second) at the mask of each template, minus the same where the tokens of the
    occupation are masked too."""
    if not isinstance(model.objective, MaskedLM) or WORD_HEAD in model.missing:
        raise KeelError("this model has no masked language model head: use a pre-trained bert, or another --by")
    first, second = templates.pronouns
    occupations = _known_occupations(model, templates, on_event)
    inputs: list[list[int]] = []
    positions: list[int] = []
    ids: list[tuple[int, int]] = []
    for occupation in occupations:
        for template in templates.sentences:
            filled = [fill_template(template, {"occupation": occupation, "pronoun": word}) for word in (first, second)]
            sequence, place, pair = _mask_pronoun(model, filled, templates.pronouns)
            start, end = filled[0].spans["occupation"]
            offsets = model.tokenizer.encode(filled[0].text).offsets
            inside = [number for number, (a, b) in enumerate(offsets) if a < end and b > start]
            masked = [model.tokenizer.mask_id if number in inside else id for number, id in enumerate(sequence)]
            for each in (sequence, masked):
                built = model.system.build_inputs(model.tokenizer, each)
                inputs.append(built.ids)
                positions.append(built.first_start + place)
                ids.append(pair)
    odds = _mask_log_odds(model, inputs, positions, ids)
    given, prior = odds.reshape(len(occupations), len(templates.sentences), 2).transpose(2, 0, 1)
    return _template_scores("masked", templates.pronouns, occupations, given, prior)


def causal_scores(model: Model, templates: BiasTemplates, on_event: OnEvent = ignore) -> PronounScores:
    """log P(sentence with the first pronoun) - log P(with the second) for each template, minus the same with a neutral
    word in the place of the occupation."""
    language_model = next_token_model(model)
    occupations = _known_occupations(model, templates, on_event)
    texts = [
        fill_template(template, {"occupation": occupation, "pronoun": pronoun}).text
        for occupation in (*occupations, templates.neutral)
        for template in templates.sentences
        for pronoun in templates.pronouns
    ]
    questions = encode_continuations(model.tokenizer, [""] * len(texts), texts)
    log_probs = continuation_log_probs(language_model, questions, on_event=on_event)
    odds = log_probs.reshape(len(occupations) + 1, len(templates.sentences), 2)
    odds = odds[..., 0] - odds[..., 1]
    return _template_scores("causal", templates.pronouns, occupations, odds[:-1], odds[-1:])


def vector_scores(space: VectorSpace, templates: BiasTemplates, on_event: OnEvent = ignore) -> PronounScores:
    """Cosine of each occupation to the direction she - he of Bolukbasi et al. 2016, here the mean of such differences
    of unit vectors over all `gender_pairs`."""
    occupations = [word for word in templates.occupations if space.known_directions([word]).any()]
    _report_left_out(templates.occupations, occupations, on_event)
    pairs = [pair for pair in templates.gender_pairs if space.known_directions(pair).any(1).all()]
    if not pairs:
        shown = ", ".join(":".join(pair) for pair in templates.gender_pairs[:LISTED])
        raise KeelError(f"the vectors know no pair of words for a direction ({shown}): give others with --pronouns")
    if len(pairs) < len(templates.gender_pairs):
        note(on_event, f"{len(pairs)} of {len(templates.gender_pairs)} pairs of words have vectors")
    one, other = (space.directions([pair[side] for pair in pairs]).astype(np.float64) for side in (0, 1))
    units = space.directions(occupations).astype(np.float64)
    differences = one - other
    if not differences.any():
        raise KeelError("the words of the pairs have equal vectors, so there is no direction between them")

    products, lengths = differences @ units.T, differences @ differences.T

    def statistics(weights: np.ndarray) -> Values:
        squares = np.einsum("sp,pq,sq->s", weights, lengths, weights)
        return {"cosine": weights @ products / np.sqrt(np.maximum(squares, 1e-24))[:, None]}

    values = resample(statistics, len(pairs))["cosine"]  # [1 + samples, occupations]
    found = [
        OccupationScore(
            occupation=occupation,
            score=intervals({"cosine": values[:, number]}, len(pairs))["cosine"],
            positive=int((products[:, number] > 0).sum()),
        )
        for number, occupation in enumerate(occupations)
    ]
    magnitude = intervals({"magnitude": np.abs(values).mean(1)}, len(pairs))["magnitude"]
    return _ordered("vectors", pairs[0], len(pairs), found, None, magnitude)


def _template_scores(
    method: ScoreMethod, pronouns: Pair, occupations: Sequence[str], given: np.ndarray, prior: np.ndarray
) -> PronounScores:
    """Scores of log-odds [occupations, templates] with priors of the same or one row."""
    corrected = given - prior
    templates = corrected.shape[1]

    def means(values: np.ndarray) -> Callable[[np.ndarray], Values]:
        return lambda weights: {"score": weights @ values / weights.sum(1)}

    found = [
        OccupationScore(
            occupation=occupation,
            score=bootstrap(means(corrected[number]), templates)["score"],
            log_odds=float(given[number].mean()),
            positive=int((corrected[number] > 0).sum()),
        )
        for number, occupation in enumerate(occupations)
    ]

    def absolute(weights: np.ndarray) -> Values:
        return {"magnitude": np.abs(weights @ corrected.T / weights.sum(1, keepdims=True)).mean(1)}

    magnitude = bootstrap(absolute, templates)["magnitude"]
    return _ordered(method, pronouns, templates, found, float(prior.mean()), magnitude)


def _ordered(
    method: ScoreMethod,
    pronouns: Pair,
    samples: int,
    found: list[OccupationScore],
    prior: float | None,
    magnitude: Score,
) -> PronounScores:
    occupations = sorted(found, key=lambda each: -each.score.value)
    return PronounScores(
        method=method, pronouns=pronouns, samples=samples, occupations=occupations, prior=prior, magnitude=magnitude
    )


def _known_occupations(model: Model, templates: BiasTemplates, on_event: OnEvent) -> list[str]:
    """The occupations without unknown tokens; unknown pronouns are refused."""
    tokenizer = model.tokenizer
    unknown = tokenizer.unknown_id if tokenizer.has_special_token("unk") else -1
    for pronoun in templates.pronouns:
        if unknown in tokenizer.encode(pronoun).ids:
            raise KeelError(f"the model does not know the pronoun {pronoun!r}: choose others with --pronouns")
    known = [word for word in templates.occupations if unknown not in tokenizer.encode(word).ids]
    _report_left_out(templates.occupations, known, on_event)
    return known


def _report_left_out(given: Sequence[str], known: Sequence[str], on_event: OnEvent) -> None:
    left_out = [word for word in given if word not in known]
    shown = ", ".join(left_out[:LISTED]) + (", ..." if len(left_out) > LISTED else "")
    if not known:
        raise KeelError(f"the model knows none of the occupations ({shown}): give others with --occupations FILE")
    if left_out:
        note(on_event, f"{pluralize(len(left_out), 'occupation')} left out, as unknown to the model: {shown}")


def _mask_pronoun(
    model: Model, filled: Sequence[FilledTemplate], pronouns: Pair
) -> tuple[list[int], int, tuple[int, int]]:
    """Ids of a sentence with the pronoun masked, the position of the mask, and the ids of both pronouns there."""
    one, other = (model.tokenizer.encode(each.text).ids for each in filled)
    different = [number for number, (a, b) in enumerate(zip(one, other, strict=False)) if a != b]
    if len(one) != len(other) or len(different) != 1:
        what = f"{pronouns[0]!r} and {pronouns[1]!r} are not one token each in {filled[0].text!r:.80}"
        raise UsageError(f"{what}: choose others with --pronouns, or --by causal with a causal language model")
    (place,) = different
    if len(one) > model.system.max_text_length(model.tokenizer):
        raise KeelError(
            f"{filled[0].text!r:.80} has {len(one)} tokens, more than the model reads: use shorter templates"
        )
    return [*one[:place], model.tokenizer.mask_id, *one[place + 1 :]], place, (one[place], other[place])


@torch.inference_mode()
def _mask_log_odds(
    model: Model, inputs: list[list[int]], positions: list[int], ids: list[tuple[int, int]]
) -> np.ndarray:
    """[inputs] log p(first id) - log p(second id) at a position of each input."""
    objective = model.objective
    assert isinstance(objective, MaskedLM)
    found = np.empty(len(inputs))
    lengths = np.array([*map(len, inputs)], np.int64)
    with eval_mode(objective):
        for index in length_batches(lengths, BATCH, BATCH_TOKENS):
            batch = TokenBatch.pad([inputs[number] for number in index]).to(model.device)
            slots = torch.tensor([[positions[number]] for number in index], device=model.device)
            pairs = torch.tensor([ids[number] for number in index], device=model.device)
            logits = objective.masked_logits(batch, slots)[:, 0].gather(1, pairs).double()
            found[index] = (logits[:, 0] - logits[:, 1]).cpu().numpy()
    return found


def _plain(score: Score) -> dict[str, float | None]:
    values = {"score": score.value, "low": score.low, "high": score.high}
    return {name: None if value is None else round(value, 6) for name, value in values.items()}
