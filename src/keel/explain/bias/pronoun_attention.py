"""Attention of a pronoun to two occupations, in sentences whose pronoun may be either person (after WinoBias, Zhao et
al. 2018, and Vig 2019)."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from rich.cells import cell_len

from keel.errors import KeelError
from keel.events import OnEvent, ignore, note
from keel.explain.attention_inputs import encoder_input
from keel.explain.attention_weights import record_weights, rounded
from keel.explain.bias.bias_templates import BiasTemplates, Pair, fill_template
from keel.explain.text_tokens import TextToken
from keel.metrics.bootstrap import RESAMPLES
from keel.model import Model
from keel.tasks.sequence_to_sequence import SequenceToSequence
from keel.text_table import pad_left

STRONGEST = 5
"""Heads that are listed."""


class HeadContrast(NamedTuple):
    """How much more a head's attention goes to the occupation of the pronoun's stereotype."""

    layer: int
    head: int
    contrast: float
    low: float | None
    high: float | None
    positive: int
    """Sentences, in both orders of the occupations, with a positive contrast."""
    shares: list[list[float]]
    """[pronouns, occupations] mean attention."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PronounAttention:
    """Attention of each head from either pronoun to both occupations.

    The contrast of a head is half of [a(she, nurse) - a(she, doctor)] - [a(he, nurse) - a(he, doctor)]: what the order
    of the occupations, and the preference of the head for one of them, add to both pronouns cancels.
    """

    pronouns: Pair
    pairs: list[Pair]
    templates: int
    layers: list[int]
    heads: list[int]
    contrasts: np.ndarray  # [layers, heads]
    low: np.ndarray | None  # [layers, heads] of the 95% interval over templates and pairs; None for a single sentence
    high: np.ndarray | None
    shares: np.ndarray  # [pronouns, occupations, layers, heads] mean attention
    positive: np.ndarray  # [layers, heads] sentences with a positive contrast
    sentences: int
    """Sentences per pronoun: templates x pairs x 2 orders."""

    @property
    def decided(self) -> tuple[int, int]:
        """Heads whose interval is above 0, and below."""
        if self.low is None or self.high is None:
            return 0, 0
        return int((self.low > 0).sum()), int((self.high < 0).sum())

    def strongest(self, count: int = STRONGEST) -> list[HeadContrast]:
        """The heads with the largest absolute contrasts."""
        order = np.argsort(-np.abs(self.contrasts), axis=None, kind="stable")[:count]
        return [self._head(*divmod(int(index), len(self.heads))) for index in order]

    def _head(self, row: int, column: int) -> HeadContrast:
        return HeadContrast(
            self.layers[row],
            self.heads[column],
            float(self.contrasts[row, column]),
            None if self.low is None else float(self.low[row, column]),
            None if self.high is None else float(self.high[row, column]),
            int(self.positive[row, column]),
            self.shares[..., row, column].tolist(),
        )

    def lines(self) -> list[str]:
        """The counts of heads, and the strongest ones with the attention behind them."""
        first, second = self.pronouns
        one, other = self.pairs[0]
        count = len(self.layers) * len(self.heads)
        above, below = self.decided
        lines = [
            f"attention from {first!r} and {second!r} to two occupations such as {one} and {other}",
            f"{self.templates} templates x {len(self.pairs)} pairs x 2 orders; contrast: half of "
            f"[{first} to {one} - {first} to {other}]",
            f"- [{second} to {one} - {second} to {other}], in percent of the attention",
            "",
        ]
        if self.low is not None:
            lines.append(
                f"{above} of {count} heads have an interval above 0, {below} below (by chance: up to {0.1 * count:.0f})"
            )
            lines.append("")
        columns = [(pronoun, occupation) for pronoun in self.pronouns for occupation in (one, other)]
        widths = [max(5, cell_len(column[0]) + 3, cell_len(column[1])) for column in columns]
        left = f"{'strongest heads':15}  {'':6}  {'95% interval':>16}  {f'> 0 of {self.sentences}':>11}"
        lines.append(f"{'':{len(left)}}  {_cells([f'{column[0]} to' for column in columns], widths)}")
        lines.append(f"{left}  {_cells([column[1] for column in columns], widths)}")
        for each in self.strongest():
            low, high = each.low, each.high
            interval = "" if low is None or high is None else f"{100 * low:+.2f} to {100 * high:+.2f}"
            shares = [f"{100 * share:.1f}" for share in np.ravel(each.shares).tolist()]
            name = f"layer {each.layer} head {each.head}"
            lines.append(
                f"{name:15}  {100 * each.contrast:+6.2f}  {interval:>16}  {each.positive:11}  {_cells(shares, widths)}"
            )
        return lines

    def to_dict(self) -> dict[str, Any]:
        above, below = self.decided
        return {
            "pronouns": [*self.pronouns],
            "pairs": [list(pair) for pair in self.pairs],
            "templates": self.templates,
            "sentences": self.sentences,
            "layers": self.layers,
            "heads": self.heads,
            "contrast": rounded(self.contrasts),
            "low": None if self.low is None else rounded(self.low),
            "high": None if self.high is None else rounded(self.high),
            "positive": self.positive.tolist(),
            "shares": rounded(self.shares),
            "above": above,
            "below": below,
        }


def pronoun_attention(model: Model, templates: BiasTemplates, on_event: OnEvent = ignore) -> PronounAttention:
    """Record the attention of each sentence, pronoun, pair of occupations and order, one after the other."""
    if isinstance(model.task, SequenceToSequence):
        raise KeelError(f"{model.title} is a seq2seq model: use one that reads text, such as bert or gpt")
    first = encoder_input(model, (templates.attention_sentences[0], ""), "none", on_event)
    layers, heads = [*range(1, first.layers + 1)], [*range(1, first.heads + 1)]
    unknown = model.tokenizer.unknown_id if model.tokenizer.has_special_token("unk") else -1
    pairs = [
        pair for pair in templates.attention_pairs if all(unknown not in model.tokenizer.encode(w).ids for w in pair)
    ]
    if not pairs:
        raise KeelError("the model knows no pair of occupations: give others with --templates FILE.toml")
    if len(pairs) < len(templates.attention_pairs):
        note(on_event, f"{len(pairs)} of {len(templates.attention_pairs)} pairs of occupations are known to the model")
    sentences = templates.attention_sentences
    # [templates, pairs, orders, pronouns, occupations, layers, heads]
    found = np.empty((len(sentences), len(pairs), 2, 2, 2, len(layers), len(heads)), np.float32)
    for i, template in enumerate(sentences):
        for j, pair in enumerate(pairs):
            for order, (one, other) in enumerate((pair, pair[::-1])):
                for k, pronoun in enumerate(templates.pronouns):
                    filled = fill_template(template, {"first": one, "second": other, "pronoun": pronoun})
                    given = encoder_input(model, (filled.text, ""), "none", on_event)
                    weights = record_weights(model, given, layers, heads)  # [layers, heads, queries, keys]
                    queries = _inside(given.queries, filled.spans["pronoun"])
                    positions = [_inside(given.keys, filled.spans[name]) for name in ("first", "second")]
                    if not queries or not all(positions):
                        raise KeelError(f"{filled.text!r:.80} is longer than the model reads: use shorter templates")
                    for number, keys in enumerate(positions):
                        occupation = number if order == 0 else 1 - number
                        share = weights[:, :, queries][..., keys].sum(-1).mean(-1)
                        found[i, j, order, k, occupation] = share
    difference = found[..., 0, :, :] - found[..., 1, :, :]  # [templates, pairs, orders, pronouns, layers, heads]
    contrast = (difference[:, :, :, 0] - difference[:, :, :, 1]) / 2
    by_pair = contrast.mean(2).astype(np.float64)  # [templates, pairs, layers, heads]
    bounds = _intervals(by_pair)
    return PronounAttention(
        pronouns=templates.pronouns,
        pairs=pairs,
        templates=len(sentences),
        layers=layers,
        heads=heads,
        contrasts=by_pair.mean((0, 1)),
        low=None if bounds is None else bounds[0],
        high=None if bounds is None else bounds[1],
        shares=found.mean((0, 1, 2), dtype=np.float64),
        positive=(contrast > 0).sum((0, 1, 2)),
        sentences=contrast.shape[0] * contrast.shape[1] * 2,
    )


def _intervals(by_pair: np.ndarray) -> np.ndarray | None:
    """[2, ...] bounds of the mean of [templates, pairs, ...]: templates and pairs are resampled (Owen 2007),
    as a preference for the words of one pair does not show one for stereotypes."""
    if max(by_pair.shape[:2]) < 2:
        return None
    rng = np.random.default_rng(0)
    templates, pairs = (rng.multinomial(count, np.full(count, 1 / count), RESAMPLES) for count in by_pair.shape[:2])
    means = np.einsum(
        "st,tp...,sp->s...", templates / by_pair.shape[0], by_pair, pairs / by_pair.shape[1], optimize=True
    )
    return np.quantile(means, (0.025, 0.975), axis=0)


def _cells(texts: list[str], widths: list[int]) -> str:
    return "  ".join(map(pad_left, texts, widths))


def _inside(tokens: list[TextToken], span: tuple[int, int]) -> list[int]:
    """Indices of the tokens of the text that overlap these characters."""
    return [
        number for number, each in enumerate(tokens) if each.text == 0 and each.start < span[1] and each.end > span[0]
    ]
