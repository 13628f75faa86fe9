"""Claims about the attention of trained models, each with the figure that it is about."""

from collections import Counter
from itertools import product
from typing import Any

import numpy as np
import torch

import keel
from keel.claims.claim import Say, Verdict
from keel.claims.example_texts import PARAGRAPHS, Language, model_and_language, untrained_twin
from keel.claims.measures import join_values, recorded_attention
from keel.events import pluralize
from keel.explain.attention_weights import Attention
from keel.report.attention_charts import attention_lines, head_grid
from keel.report.charts import lines

REFERENCES: dict[Language, tuple[str, tuple[str, str], str, tuple[str, str]]] = {
    "en": ("The animal didn't cross the street because it was too {}.", ("tired", "wide"), "it", ("animal", "street")),
    "zh": ("动物没有穿过街道，因为它太{}了。", ("累", "宽"), "它", ("动物", "街道")),
}
"""A text with a gap, two words for it, the pronoun, and the noun that it then stands for."""
OCCUPATIONS: dict[Language, tuple[str, tuple[str, str], tuple[str, str]]] = {
    "en": ("The {} asked the {} a question. {} said the answer was known.", ("nurse", "doctor"), ("She", "He")),
    "zh": ("{}问了{}一个问题。{}说答案已经知道了。", ("护士", "医生"), ("她", "他")),
}
FOCUSED = 0.25
"""Mean share of attention from which a head is counted among those that attend to one position."""


def head_view(say: Say, model: keel.Model | None = None) -> Verdict:
    """52: attention from "it" in every head, where the last word decides what it stands for."""
    model, language = model_and_language(model, say)
    text, endings, pronoun, nouns = REFERENCES[language]
    found: dict[tuple[str, str], Attention] = {}
    for ending, noun in product(endings, nouns):
        found[ending, noun] = _attention_between(model, text.format(ending), pronoun, noun)
    first = found[endings[0], nouns[0]]
    ((layer, head, most),) = first.strongest(first.between(), 1)
    place = first.layers.index(layer), first.heads.index(head)
    uniform = 1 / len(first.keys)
    random = _attention_between(untrained_twin(model), text.format(endings[0]), pronoun, nouns[0])
    say(f"{text.format(endings[0])} ({len(first.keys)} words with special tokens: uniform {uniform:.0%})")
    say(f"strongest head for {pronoun} - {nouns[0]}: layer {layer}, head {head}")
    for ending in endings:
        shares = ", ".join(f"{noun} {found[ending, noun].between()[place]:.0%}" for noun in nouns)
        means = ", ".join(f"{noun} {found[ending, noun].between().mean():.1%}" for noun in nouns)
        say(f"... {ending}: attention from {pronoun} in this head: {shares}; mean of all heads: {means}")
    say(f"strongest head of the same network with random weights: {nouns[0]} {random.between().max():.0%}")
    for ending in endings:
        view = found[ending, nouns[0]]
        picture = attention_lines(view.queries, view.keys, view.head(layer, head), (view.from_positions, ()))
        caption = f"Attention from {pronoun} in layer {layer}, head {head} of {view.model}: {text.format(ending)}"
        say.picture(picture, caption, f"{1 + endings.index(ending)}")
    moved = found[endings[1], nouns[0]].between()[place]
    return Verdict(
        most > 0.5,
        f"the head that attends most from {pronoun} to {nouns[0]} gives it {most:.0%} of its attention (uniform "
        f"{uniform:.0%}), and {moved:.0%} where {endings[1]} makes {pronoun} stand for {nouns[1]}",
    )


def _attention_between(model: keel.Model, text: str, from_word: str, to_word: str) -> Attention:
    return keel.attention(text, model=model, from_word=from_word, to_word=to_word, merge="words")


def all_heads(say: Say, model: keel.Model | None = None) -> Verdict:
    """122: all layers and heads of a sentence, and the position that each head attends to most."""
    model, language = model_and_language(model, say)
    text, endings, _, _ = REFERENCES[language]
    view = keel.attention(text.format(endings[0]), model=model)
    titles = [[f"layer {layer}, head {head}" for head in view.heads] for layer in view.layers]
    caption = f"All layers and heads of {view.model}: {text.format(endings[0])} Rows attend to columns."
    say.picture(head_grid(view.layers, view.heads, view.weights, titles), caption)
    ends = (view.keys[0], view.keys[-1]) if view.separators else ("the first token", "the last token")
    names = [ends[0], ends[1], "itself", "the token before", "the token after"]
    shares = _position_shares(model, PARAGRAPHS[language])
    say(f"mean share of attention over {len(PARAGRAPHS[language])} paragraphs, mean over the heads of a layer")
    say("layer  " + "  ".join(names))
    for number, row in enumerate(shares.mean(2).T, 1):
        say(f"{number:5}  " + "  ".join(f"{share:{len(name)}.0%}" for name, share in zip(names, row, strict=True)))
    kinds = {"trained": _head_kinds(shares, names)}
    kinds["random"] = _head_kinds(_position_shares(untrained_twin(model), PARAGRAPHS[language]), names)
    count = view.weights.shape[0] * view.weights.shape[1]
    for weights, counted in kinds.items():
        most = ", ".join(f"{number} to {name}" for name, number in counted.most_common())
        say(
            f"{weights} weights: heads with at least {FOCUSED:.0%} of their attention on one such position: {most or 0}"
        )
    focused = kinds["trained"].total()
    return Verdict(
        len(kinds["trained"]) >= 3 and not kinds["random"],
        f"heads differ: {focused} of {count} attend mainly to one position, of {len(kinds['trained'])} kinds, the "
        f"others spread their attention; with random weights {kinds['random'].total()} do",
    )


def _position_shares(model: keel.Model, texts: tuple[str, ...]) -> np.ndarray:
    """[5, layers, heads] mean attention to the first and last token, to a token itself, to the one before and after."""
    found = []
    for text in texts:
        weights = keel.attention(text, model=model).weights
        inner = np.arange(1, weights.shape[-1] - 1)
        keys = np.zeros_like(inner), np.full_like(inner, weights.shape[-1] - 1), inner, inner - 1, inner + 1
        found.append([weights[:, :, inner, key].mean(-1) for key in keys])
    return np.mean(found, 0)


def _head_kinds(shares: np.ndarray, names: list[str]) -> Counter[str]:
    """Number of heads by the position that they mainly attend to."""
    best, most = shares.argmax(0), shares.max(0)
    return Counter(names[index] for index in best[most >= FOCUSED])


def pronoun_and_occupation(say: Say, model: keel.Model) -> Verdict:
    """85: attention from She and He to nurse and doctor, in both orders, and the head that separates them most."""
    model, language = model_and_language(model, say)
    text, people, pronouns = OCCUPATIONS[language]
    leads: list[float] = []
    for order in (people, people[::-1]):
        found: dict[str, list[Attention]] = {
            pronoun: [_attention_between(model, text.format(*order, pronoun), pronoun, person) for person in people]
            for pronoun in pronouns
        }
        shares = np.array([[each.between() for each in found[pronoun]] for pronoun in pronouns])
        for one, (pronoun, person) in enumerate(zip(pronouns, people, strict=True)):
            mine, others = shares[one, one].mean(), shares[1 - one, one].mean()
            leads.append(float(mine - others))
            say(f"{' ... '.join(order)}: to {person} from {pronoun} {mine:.2%}, from {pronouns[1 - one]} {others:.2%}")
        change = shares[0, 0] - shares[0, 1] - shares[1, 0] + shares[1, 1]  # [layers, heads]
        row, column = map(int, np.unravel_index(change.argmax(), change.shape))
        parts = [
            f"from {pronoun} "
            + " and ".join(f"{shares[n, m, row, column]:.0%} to {who}" for m, who in enumerate(people))
            for n, pronoun in enumerate(pronouns)
        ]
        say(f"  layer {row + 1}, head {column + 1}: {'; '.join(parts)}")
    for pronoun, (view, _) in found.items():
        picture = attention_lines(view.queries, view.keys, view.weights[row, column], (view.from_positions, ()))
        caption = f"Attention from {pronoun} in layer {row + 1}, head {column + 1} of {view.model}."
        say.picture(picture, caption, f"{1 + pronouns.index(pronoun)}")
    agreeing = sum(lead > 0 for lead in leads)
    return Verdict(
        agreeing == len(leads),
        f"{people[0]} gets more attention from {pronouns[0]} than from {pronouns[1]}, or {people[1]} more from "
        f"{pronouns[1]}, in {agreeing} of {len(leads)} comparisons: by {100 * np.mean(leads):.2f} points, the "
        "mean of all heads",
    )


def attention_sink(say: Say, model: keel.Model | None = None) -> Verdict:
    """86: attention to the first token and to [SEP] in every layer, of texts of some 60 tokens."""
    if model is not None:
        return _sinks_by_layer(say, model, "")
    encoder, causal = (_sinks_by_layer(say, keel.Model.load(name), name) for name in ("english", "english-gpt"))
    return Verdict(causal.holds, f"english-gpt: {causal.figures}; english: {encoder.figures}")


def _sinks_by_layer(say: Say, model: keel.Model, name: str) -> Verdict:
    model, language = model_and_language(model, say)
    views = [keel.attention(text, model=model) for text in PARAGRAPHS[language]]
    shares = {"the first token": np.mean([view.first_token_shares.mean(1) for view in views], 0)}
    if views[0].separators:
        shares = {views[0].keys[0]: shares["the first token"]}
        shares[views[0].keys[-1]] = np.mean([view.separator_shares.mean(1) for view in views], 0)
    heads = np.mean([view.first_token_shares for view in views], 0)
    uniform = float(np.mean([view.uniform_shares[0] for view in views]))
    if isinstance(model.system, keel.Gpt):
        values = np.mean([_value_lengths(model, text) for text in PARAGRAPHS[language]], 0)
        say(f"{name}: length of the first token's values, relative to the others, by layer: {join_values(values)}")
    for index, most in enumerate(heads.max(1)):
        found = [f"{key} {each[index]:.1%}" for key, each in shares.items()]
        found[0] += f" (most in one head {most:.0%})"
        say(f"{name} layer {index + 1}: {', '.join(found)}".strip())
    curves = {key: [*enumerate((100 * each).tolist(), 1)] for key, each in shares.items()}
    caption = (
        f"Share of attention, the mean over the heads of each layer of {views[0].model}, to {' and to '.join(shares)}; "
        f"uniform attention would be {uniform:.1%}."
    )
    say.picture(lines(curves, across="layer", upward="% of the attention"), caption, name)
    if isinstance(model.system, keel.Gpt):
        before, after = np.mean([_shares_after_start(model, text) for text in PARAGRAPHS[language]], 0)
        say(f"{name} with a start token before the text: {before:.1%} to it, {after:.1%} to the token after it".strip())
    large = int((heads >= FOCUSED).sum())
    means = ", ".join(f"{key} {each.mean():.1%}" for key, each in shares.items())
    return Verdict(
        large >= heads.size / 4,
        f"{large} of {pluralize(heads.size, 'head')} have at least {FOCUSED:.0%} of their attention on the first token "
        f"(uniform {uniform:.1%}); in the mean of all heads {means}",
    )


def _value_lengths(model: keel.Model, text: str) -> list[float]:
    """For each layer of a GPT, the length of the first token's value vectors divided by the mean of the others'."""
    output, seen = recorded_attention(model, model.tokenizer.encode(text).ids)
    blocks: list[Any] = model.encoder.blocks()
    found = []
    with torch.no_grad():
        for block, inputs, weights in zip(blocks, output.layers, seen, strict=False):
            value = block.attention.qkv(block.attention_norm(inputs))[0].chunk(3, -1)[2]
            lengths = value.unflatten(-1, (len(weights), -1)).norm(dim=-1)  # [time, heads]
            found.append(float((lengths[0] / lengths[1:].mean(0)).mean()))
    return found


def _shares_after_start(model: keel.Model, text: str) -> tuple[float, float]:
    """Mean attention of all later tokens to the start token of a GPT and to the token after it."""
    _, seen = recorded_attention(model, [model.tokenizer.end_id, *model.tokenizer.encode(text).ids])
    late = torch.stack(seen)[:, :, 2:]
    return float(late[..., 0].mean()), float(late[..., 1].mean())
