"""Looking inside a model: attention, and which words made a prediction."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Unpack
from xml.etree.ElementTree import Element

import numpy as np

from keel.api.keywords import ColumnKeywords
from keel.api.model_loading import ModelSource, default_model, load_model
from keel.api.settings import Source, merge_settings, route_settings
from keel.config import Doc, Ge, Le, enforces_bounds
from keel.data.examples import Columns
from keel.data.parallel_text import read_aligned
from keel.data.text_inputs import require_text
from keel.errors import UsageError
from keel.events import OnEvent, ignore, pluralize
from keel.explain.attention_weights import Attention, AttentionKind, attention_weights
from keel.explain.attributions.prediction_scores import Baseline
from keel.explain.attributions.word_attributions import STEPS, Explanation, Method, attribute_words
from keel.explain.sentence_retrieval import Retrieval, retrieve_translations
from keel.explain.text_tokens import Merge
from keel.report.attention_charts import attention_lines, head_grid, head_matrix, head_numbers
from keel.report.attention_page import HeadWeights, attention_page
from keel.report.attribution_figure import (
    ColouredText,
    ColouredWord,
    coloured_paragraphs,
    coloured_picture,
    ranking_chart,
    signed_bars,
    stacked,
)
from keel.report.charts import lines
from keel.report.html_page import Page, is_page, picture_file, write_figures, write_picture
from keel.text_vectors import PooledOutput

BY = (
    "Method. gradients: integrated gradients on the input embeddings; occlusion: change of the score without the word; "
    "auto: gradients, and occlusion for bags of words (onehot, fastText's classifier)."
)
BASELINE = (
    "Stand-in for an absent word: the embedding of a special token, or a zero vector; auto: mask for BERT and its "
    "descendants, pad for heads that normalize vectors, else zero."
)
STEPS_HELP = (
    "Integration steps (Gauss-Legendre rule), computed in batches; 4 or 16 times as many where the completeness "
    "error is above 2%."
)

__all__ = ["attention", "explain_prediction", "retrieval"]


@enforces_bounds
def attention(
    text: str,
    second: str = "",
    *,
    model: ModelSource | None = None,
    kind: Annotated[
        AttentionKind | Literal["auto"],
        Doc(
            "Self-attention of the encoder, masked self-attention of the decoder, or cross-attention; auto: "
            "cross-attention of an encoder-decoder, else self-attention."
        ),
    ] = "auto",
    layer: Annotated[int | tuple[int, ...], Doc("Layers to record, from 1, such as 3 or 1,2; -1: the last one.")] = (),
    head: Annotated[int | tuple[int, ...], Doc("Heads to record, from 1, such as 3 or 1,2.")] = (),
    merge: Annotated[
        Merge, Doc("Merge subwords into words; Chinese text into words, with characters into single characters.")
    ] = "none",
    from_word: Annotated[str, Doc("The word that attends: its attention in every head.")] = "",
    to_word: Annotated[str, Doc("The word that is attended to.")] = "",
    out: Annotated[str | Path | None, Doc("Write a figure: .svg, .pdf, .png or .html.")] = None,
    on_event: OnEvent = ignore,
) -> Attention:
    """Attention weights of a text, or a pair of texts, in all layers and heads; by default, of the bundled encoder.

    `weights` [layers, heads, queries, keys] equal the attentions of transformers. Layers and heads count from 1:
    `layer=3` is the third block; only the given ones are recorded. Of an encoder-decoder, `second` is the target text,
    by default the model's own output, and `kind` is "encoder", "decoder" or "cross" (the default). With `merge`,
    weights of subwords are summed for the word that is attended to, and averaged for the word that attends. `from_word`
    and `to_word` name two words (or tokens such as "[SEP]"), which `between()` follows through all heads.
    """
    path = None if out is None else picture_file(out)
    require_text(text, "the text")
    require_text(second, "the second text")
    known = load_model(model or default_model("encoder", f"{text} {second}", on_event), on_event)
    found = attention_weights(
        known,
        text,
        second,
        kind=kind,
        layers=(layer,) if isinstance(layer, int) else layer,
        heads=(head,) if isinstance(head, int) else head,
        merge=merge,
        from_word=require_text(from_word, "the word that attends"),
        to_word=require_text(to_word, "the word that is attended to"),
        on_event=on_event,
    )
    if path is not None:
        write_attention(path, found)
    return found


class TokenShares(NamedTuple):
    """The share of attention that a token gets in every head."""

    token: str
    shares: np.ndarray  # [layers, heads]
    uniform: float
    """The share if attention were uniform."""


def write_attention(path: str | Path, found: Attention) -> Path:
    """Write an .html page of all heads, or a picture: of the two named words in all heads, of one named word (the mean
    over the heads), of the only head, or of all heads."""
    path = picture_file(path)
    tokens = [TokenShares("the first token", found.first_token_shares, found.uniform_shares[0])]
    if found.separators:
        separator = found.keys[found.separators[0]]
        tokens.append(TokenShares(separator, found.separator_shares, found.uniform_shares[1]))
    titles = [
        [
            f"layer {layer}, head {head}: " + ", ".join(f"{each.shares[i, j]:.0%} to {each.token}" for each in tokens)
            for j, head in enumerate(found.heads)
        ]
        for i, layer in enumerate(found.layers)
    ]
    if is_page(path):
        return _attention_page(found, tokens, titles).write(path)
    name, picture = _attention_picture(found, titles)
    return write_picture(path, picture, f"Attention in {found.model}: {name}")


def _attention_picture(found: Attention, titles: Sequence[Sequence[str]]) -> tuple[str, Element]:
    """What the picture shows, and the picture."""
    layers, heads = found.layers, found.heads
    one_head = f"layer {layers[0]}, head {heads[0]}"
    count = len(layers) * len(heads)
    if found.from_word and found.to_word:
        return f"from {found.from_word!r} to {found.to_word!r}", head_numbers(layers, heads, found.between())
    if found.from_word or found.to_word:
        word = f"from {found.from_word!r}" if found.from_word else f"to {found.to_word!r}"
        chosen = found.from_positions, found.to_positions
        picture = attention_lines(found.queries, found.keys, found.weights.mean((0, 1)), chosen)
        return f"{word}, {f'mean of {count} heads' if count > 1 else one_head}", picture
    if count == 1:
        return one_head, head_matrix(found.queries, found.keys, found.weights[0, 0])
    return "all heads", head_grid(layers, heads, found.weights, titles)


def _attention_page(found: Attention, tokens: Sequence[TokenShares], titles: Sequence[Sequence[str]]) -> Page:
    layers, heads = found.layers, found.heads
    figures = [
        (
            f"Attention to {each.token}",
            head_numbers(layers, heads, each.shares),
            f"Share of attention that {each.token} gets, in percent: the mean over all other tokens. "
            f"Uniform attention would be {each.uniform:.1%}.",
        )
        for each in tokens
    ]
    if found.from_word and found.to_word:
        words = f"Attention from {found.from_word!r} to {found.to_word!r}"
        picture = head_numbers(layers, heads, found.between())
        figures.insert(0, (words, picture, f"{words} in every head, in percent."))
    sizes = f"{pluralize(len(layers), 'layer')}, {pluralize(len(heads), 'head')} each"
    what = "tokens" if found.merge == "none" else "words"
    over = f"{len(found.queries)} target and {len(found.keys)} source" if found.kind == "cross" else len(found.keys)
    lead = f"{found.title[0].upper()}{found.title[1:]}: {sizes}, {over} {what}."
    view = HeadWeights(found.queries, found.keys, layers, heads, found.weights, titles, found.kind == "cross")
    return attention_page(f"Attention in {found.model}", lead, view, figures)


@enforces_bounds
def retrieval(
    model: ModelSource,
    pairs: Source,
    *,
    center: Annotated[
        bool, Doc("Subtract the mean vector of each language, which removes what languages differ in.")
    ] = False,
    pool: Annotated[PooledOutput, Doc("Pooling over tokens.")] = "mean",
    sample: Annotated[int, Ge(0), Doc("Pairs to compare, a seeded sample; 0: all.")] = 1000,
    seed: Annotated[int, Ge(0), Doc("Random seed of the sample.")] = 0,
    out: Annotated[
        str | Path | None, Doc("Write the curve over layers as a figure: .svg, .pdf, .png or .html.")
    ] = None,
    columns: Columns | None = None,
    on_event: OnEvent = ignore,
    **settings: Unpack[ColumnKeywords],
) -> Retrieval:
    """Retrieval of translations in every layer: how often the nearest sentence of the other language, by cosine
    similarity among all given ones, is the right one, in both directions.

    `pairs` has a sentence and its translation in each row (a table, a list of pairs), or is two parallel files.
    """
    path = None if out is None else picture_file(out)
    (roles,) = route_settings(merge_settings(settings, columns=columns), Columns())
    read = read_aligned(pairs, roles, on_event)
    found = retrieve_translations(
        load_model(model, on_event), read, center=center, pool=pool, sample=sample, seed=seed, on_event=on_event
    )
    if path is not None:
        centered = ", mean-centred by language" if found.centered else ""
        caption = f"Accuracy@1 among {found.count:,} sentences by cosine similarity{centered}; best: {found.best.name}."
        chart = lines(found.curves(), across="layer", upward="accuracy@1")
        write_figures(path, f"{found.model}: retrieval of translations", [(chart, caption)])
    return found


@enforces_bounds
def explain_prediction(
    text: str,
    second: str | None = None,
    *,
    model: ModelSource,
    by: Annotated[Method, Doc(BY)] = "auto",
    label: Annotated[str, Doc("Label or tag to explain; default: the predicted one.")] = "",
    word: Annotated[
        str, Doc("For tags: the word whose tag is explained, or its number; default: the first that is not O.")
    ] = "",
    baseline: Annotated[Baseline, Doc(BASELINE)] = "auto",
    steps: Annotated[int, Ge(1), Le(1_000), Doc(STEPS_HELP)] = STEPS,
    curves: Annotated[
        bool, Doc("Deletion and insertion curves: how well the attributions rank the words, against random orders.")
    ] = False,
    chinese_words: Annotated[bool, Doc("Chinese by words (jieba) instead of characters.")] = False,
    out: Annotated[
        str | Path | None, Doc("Write the coloured text, bars and curves as a figure: .svg, .pdf, .png or .html.")
    ] = None,
    on_event: OnEvent = ignore,
) -> Explanation:
    """The words that made a prediction: classes of a text or pair, the tag of a word, or the answer to a question.

    `second` is the second text of a pair; for answers, `text` is the passage and `second` the question. The
    attributions of integrated gradients sum to the score (log-odds) of the prediction minus that of the input without
    its words; this completeness is checked, and its error is part of the result. Subwords are summed to words. The cost
    is `steps` passes forward and backward, more where the error is large, or a forward pass per word for occlusion;
    `curves` add at most 882 forward passes.
    """
    path = None if out is None else picture_file(out)
    require_text(text, "the text")
    if second is not None:
        require_text(second, "the second text")
    if not text.strip():
        raise UsageError("the text is empty: give one with words to explain its prediction")
    found = attribute_words(
        load_model(model, on_event), text, second, by=by, label=label, word=word, baseline=baseline, steps=steps,
        curves=curves, chinese_words=chinese_words, on_event=on_event,
    )  # fmt: skip
    if path is not None:
        write_explanation(path, found)
    return found


def coloured_texts(found: Explanation) -> list[ColouredText]:
    """The texts with the attributions of their words, for figures."""
    several = len(found.texts) > 1
    return [
        ColouredText(
            f"{name}" if several else "",
            text,
            [ColouredWord(each.start, each.end, each.attribution) for each in found.words if each.text == number],
        )
        for number, (name, text) in enumerate(found.texts)
    ]


def write_explanation(path: str | Path, found: Explanation) -> Path:
    """Write the coloured text, the bars of the strongest words and the curves to an .html page or a picture."""
    texts = coloured_texts(found)
    title = f"Why {found.prediction}?"
    chance = "" if found.probability is None else f", probability {found.probability:.3f}"
    lead = f"{found.model}{chance}; {found.target} {found.score:.3f}"
    colours = "Blue words speak for the prediction, orange ones against it."
    bars, caption = signed_bars(texts), f"Strongest words. {'; '.join([*found.check(), found.cost()])}."
    charts = []
    if (curves := found.curves) is not None:
        upward = "probability of the prediction" if found.probability is not None else found.target
        for name, curve, random, text in zip(
            ("deleted", "inserted"),
            (curves.deletion, curves.insertion),
            (curves.random_deletion, curves.random_insertion),
            curves.lines(),
            strict=True,
        ):
            chart = ranking_chart(curves.shares, curve, random, across=f"words {name} (%)", upward=upward)
            charts.append((f"Words {name} by attribution", chart, text))
    if not is_page(path):
        parts = [(f"{found.prediction}{chance}", coloured_picture(texts)), (found.target, bars)]
        return write_picture(Path(path), stacked([*parts, *((name, chart) for name, chart, _ in charts)]), title)
    page = Page(title, lead)
    page.add(coloured_paragraphs(texts))
    page.text(colours)
    page.figure(bars, caption)
    for _, chart, text in charts:
        page.figure(chart, text)
    return page.write(Path(path))
