"""Looking inside a model: attention."""

from pathlib import Path
from typing import Annotated, Literal

from keel.api.model_loading import ModelSource, default_model, load_model
from keel.config import Doc
from keel.data.text_inputs import require_text
from keel.events import OnEvent, ignore, pluralize
from keel.explain.attention_weights import Attention, AttentionKind, attention_weights
from keel.explain.text_tokens import Merge
from keel.report.attention_charts import head_grid, head_matrix, head_numbers
from keel.report.attention_page import HeadWeights, attention_page
from keel.report.html_page import picture_file, tag, write_picture

__all__ = ["attention"]


def attention(
    text: str,
    second: str = "",
    *,
    model: ModelSource | None = None,
    kind: Annotated[
        AttentionKind | Literal["auto"],
        Doc("Attention of the encoder, of the decoder (masked), or of the decoder to the source; auto: what there is."),
    ] = "auto",
    layer: Annotated[int | tuple[int, ...], Doc("Layers to record, from 1, such as 3 or 1,2; -1: the last one.")] = (),
    head: Annotated[int | tuple[int, ...], Doc("Heads to record, from 1, such as 3 or 1,2.")] = (),
    merge: Annotated[
        Merge, Doc("Merge subwords into words; Chinese into words, or with characters character by character.")
    ] = "none",
    from_word: Annotated[str, Doc("The word that attends: its attention in every head.")] = "",
    to_word: Annotated[str, Doc("The word that is attended to.")] = "",
    out: Annotated[str | Path | None, Doc("Write a figure, .svg or .html.")] = None,
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


def write_attention(path: str | Path, found: Attention) -> Path:
    """Write an .html page of all heads, or an .svg file: of the two named words in all heads, of the only head, or of
    all heads."""
    path = picture_file(path)
    layers, heads = found.layers, found.heads
    numbers = [("the first token", found.first_token_shares, found.uniform_shares[0])]
    if found.separators:
        numbers.append((found.keys[found.separators[0]], found.separator_shares, found.uniform_shares[1]))
    titles = [
        [
            f"layer {layer}, head {head}: " + ", ".join(f"{shares[i, j]:.0%} to {name}" for name, shares, _ in numbers)
            for j, head in enumerate(heads)
        ]
        for i, layer in enumerate(layers)
    ]
    named = bool(found.from_word and found.to_word)
    words = f"from {found.from_word!r} to {found.to_word!r}"
    if path.suffix.lower() == ".svg":
        if named:
            name, picture = words, head_numbers(layers, heads, found.between())
        elif found.weights.shape[:2] == (1, 1):
            name = f"layer {layers[0]}, head {heads[0]}"
            picture = head_matrix(found.queries, found.keys, found.weights[0, 0])
        else:
            name, picture = "all heads", head_grid(layers, heads, found.weights, titles)
        picture.insert(0, tag("title", f"Attention in {found.model}: {name}"))
        return write_picture(path, picture)
    figures = [
        (
            f"Attention to {name}",
            head_numbers(layers, heads, shares),
            f"Share of attention that {name} gets, in percent: the mean over all other tokens. "
            f"Uniform attention would be {uniform:.1%}.",
        )
        for name, shares, uniform in numbers
    ]
    if named:
        caption = f"Attention {words} in every head, in percent."
        figures.insert(0, (f"Attention {words}", head_numbers(layers, heads, found.between()), caption))
    sizes = f"{pluralize(len(layers), 'layer')}, {pluralize(len(heads), 'head')} each"
    what = "tokens" if found.merge == "none" else "words"
    over = f"{len(found.queries)} target and {len(found.keys)} source" if found.kind == "cross" else len(found.keys)
    lead = f"{found.title[0].upper()}{found.title[1:]}: {sizes}, {over} {what}."
    view = HeadWeights(found.queries, found.keys, layers, heads, found.weights, titles, found.kind == "cross")
    return attention_page(f"Attention in {found.model}", lead, view, figures).write(path)
