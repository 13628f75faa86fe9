"""Figures of networks, tasks and inputs, from the configurations of systems and models."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NamedTuple

from keel.api.model_loading import ModelSource, default_model, load_model
from keel.config import Doc
from keel.data.text_inputs import require_text
from keel.errors import UsageError
from keel.events import OnEvent, ignore
from keel.explain.input_view import input_view, segment_name
from keel.model import Model
from keel.report.figures.convolution_figures import draw_cnn, draw_window
from keel.report.figures.figure import Figure, model_name
from keel.report.figures.input_figure import draw_input
from keel.report.figures.network_figures import draw_block, draw_networks
from keel.report.figures.recurrent_figure import draw_unrolled
from keel.report.figures.size_figures import draw_family_tree, draw_sizes
from keel.report.figures.task_figures import draw_gpt_inputs, draw_heads, draw_task_families
from keel.report.html_page import picture_file, write_figures

__all__ = ["figure"]


class FigureKind(NamedTuple):
    """A figure: what it shows, how it is built, and which of model, text and second it depends on."""

    summary: str
    build: Callable[..., Figure]
    options: tuple[str, ...] = ()


def _input_figure(model: Model, text: str, second: str = "") -> Figure:
    view = input_view(model, text, second)
    found = draw_input(
        view.tokens,
        view.ids,
        None if view.segments is None else [*map(segment_name, view.segments)],
        view.special,
        tables=view.tables,
        position_encoding=view.position_encoding,
        left_out=view.left_out,
        name=model_name(model),
    )
    return replace(found, details={"input": view.to_dict()})


FIGURES = {
    "rnn": FigureKind("A recurrent network, unrolled over time", draw_unrolled, ("model", "text")),
    "cnn": FigureKind("The layers of a CNN for text", draw_cnn, ("model", "text")),
    "window": FigureKind("What one word sees: CNN, RNN and self-attention", draw_window, ("model", "text")),
    "block": FigureKind("One Transformer block of BERT or GPT, with its sizes", draw_block, ("model",)),
    "networks": FigureKind("The networks of ELMo, GPT and BERT side by side", draw_networks, ("model",)),
    "input": FigureKind("Token, segment and position embeddings of a text", _input_figure, ("model", "text", "second")),
    "heads": FigureKind("Task heads on BERT: classes, pairs, tags, answers", draw_heads, ("model",)),
    "gpt-inputs": FigureKind("Inputs of GPT for each task", draw_gpt_inputs, ("model",)),
    "tasks": FigureKind("Families of tasks, and the systems that support them", draw_task_families),
    "sizes": FigureKind("Published sizes: layers, width, heads and parameters", draw_sizes, ("model",)),
    "family": FigureKind("Family tree of all systems", draw_family_tree),
}
"""The figures by name."""


def figure(
    name: str,
    *,
    model: ModelSource | None = None,
    text: Annotated[str, Doc("Text to show (input, rnn, cnn, window).")] = "",
    second: Annotated[str, Doc("Second text of a pair (input).")] = "",
    out: Annotated[str | Path | None, Doc("Write the figure: .svg, .pdf, .png or .html.")] = None,
    on_event: OnEvent = ignore,
) -> Figure:
    """A diagram by name, in `out` as a picture: `keel figure` lists them.

    With `model`, it shows that model's layers, width and heads instead of published ones.
    """
    path = None if out is None else picture_file(out)
    kind = FIGURES.get(name)
    if kind is None:
        raise UsageError(f"there is no figure {name!r}: choose one of {', '.join(FIGURES)}")
    given = {"model": model, "text": require_text(text), "second": require_text(second, "the second text")}
    for option, value in given.items():
        if value and option not in kind.options:
            raise UsageError(f"figure {name} does not depend on {option}: leave it out")
    if name == "input":
        if not text.strip():
            raise UsageError("figure input needs a text: give one with text")
        given["model"] = model or default_model("encoder", text, on_event)
    arguments = {option: value for option, value in given.items() if value}
    if "model" in arguments:
        arguments["model"] = load_model(arguments["model"], on_event)  # pyright: ignore[reportArgumentType]
    found = kind.build(**arguments)
    if path is not None:
        write_figures(path, found.title, [(found.picture, found.caption)], layout="broad")
    return found
