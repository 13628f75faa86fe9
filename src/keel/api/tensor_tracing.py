"""Looking inside a model: every tensor of a text, from token ids to output."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from keel.api.model_loading import ModelSource, default_model, load_model
from keel.config import Doc, Ge, Le, enforces_bounds
from keel.data.text_inputs import require_text
from keel.events import OnEvent, ignore
from keel.explain.trace.model_tracing import trace_tensors
from keel.explain.trace.tensor_trace import TensorTrace
from keel.report.html_page import is_page, picture_file, write_picture
from keel.report.tensor_figure import overview_figure
from keel.report.tensor_page import tensor_page

__all__ = ["trace"]


@enforces_bounds
def trace(
    text: str,
    second: str = "",
    *,
    model: ModelSource | None = None,
    also: Annotated[
        Sequence[str], Doc("Further text of the same batch, padded to the longest; may be repeated.", repeated=True)
    ] = (),
    tokens: Annotated[
        int | None,
        Ge(0),
        Le(100),
        Doc("Tokens to decode: after a text (default: 4), or of a target at most (default: 20)."),
    ] = None,
    out: Annotated[
        str | Path | None, Doc("Write a page to step through, .html, or an overview, .svg, .pdf or .png.")
    ] = None,
    on_event: OnEvent = ignore,
) -> TensorTrace:
    """Every tensor of a text, or a pair of texts, from token ids to output; by default, of the bundled encoder.

    Each has its name, shape, meaning, formula and exact `values`: `found.tensor("query", layer=3).values` is [batch,
    heads, queries, head_dim]. A masked word is predicted, as by `fill`; a fine-tuned model makes its prediction; a
    language model reads the text and decodes `tokens` tokens, each a step that shows its KV cache or its recurrent
    state; of an encoder-decoder, `second` is the target, by default the most probable tokens. The network computes in
    fp32, and nothing else of it changes. `generate` has a trace of another kind: how each token was chosen.
    """
    path = None if out is None else picture_file(out)
    texts = [require_text(text, "the text"), *(require_text(each, "a further text") for each in also)]
    require_text(second, "the second text")
    known = load_model(model or default_model("encoder", " ".join([*texts, second]), on_event), on_event)
    found = trace_tensors(known, text, second, also=texts[1:], tokens=tokens, on_event=on_event)
    if path is not None:
        write_trace_figure(path, found)
    return found


def write_trace_figure(path: str | Path, found: TensorTrace) -> Path:
    """Write an .html page to step through, or the overview as a picture."""
    path, data = picture_file(path), found.to_dict()
    return tensor_page(data).write(path) if is_page(path) else write_picture(path, overview_figure(data))
