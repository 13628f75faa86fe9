"""Figures of networks, tasks and inputs, from the configurations of systems and models."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NamedTuple

from keel.api.model_loading import ModelSource, default_model, load_model
from keel.api.unit_finding import read_units, recorded_units
from keel.config import Doc
from keel.data.masking_units import MaskingUnits
from keel.data.text_inputs import require_text
from keel.errors import UsageError
from keel.events import OnEvent, ignore, note
from keel.explain.input_view import input_view, segment_name
from keel.explain.unit_view import unit_view
from keel.model import Model
from keel.report.figures.convolution_figures import draw_cnn, draw_window
from keel.report.figures.figure import Figure
from keel.report.figures.input_figure import draw_input
from keel.report.figures.network_figures import draw_block, draw_networks
from keel.report.figures.recurrent_figure import draw_unrolled
from keel.report.figures.size_figures import draw_family_tree, draw_sizes
from keel.report.figures.task_figures import draw_gpt_inputs, draw_heads, draw_task_families
from keel.report.figures.unit_figure import draw_units
from keel.report.html_page import picture_file, write_figures
from keel.systems.bert import Bert
from keel.systems.cnn import Cnn
from keel.systems.elmo import Elmo
from keel.systems.gpt import Gpt
from keel.systems.rnn import Rnn
from keel.systems.system import System
from keel.systems.transformer import Transformer
from keel.systems.ulmfit import Ulmfit

__all__ = ["figure"]


class FigureKind(NamedTuple):
    """A figure: what it shows, how it is built, which of model, text and second it depends on, and whose models."""

    summary: str
    build: Callable[..., Figure]
    options: tuple[str, ...] = ()
    systems: tuple[type[System], ...] = ()
    """Systems, with those that descend from them, whose models it shows."""


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
        name=model.title,
    )
    return replace(found, details={"input": view.to_dict()})


def _unit_figure(model: Model, text: str, units: MaskingUnits) -> Figure:
    view = unit_view(model, text, units)
    levels = [(each.name, each.sizes, each.units, each.masked, each.shown) for each in view.by_level]
    found = draw_units(view.tokens, levels, mask_rate=view.mask_rate, left_out=view.left_out, name=model.title)
    return replace(found, details={"units": view.to_dict()})


UNIT_SOURCES = ("phrases", "entities", "entity_model")
"""Options of the figure of units."""
FIGURES = {
    "rnn": FigureKind("A recurrent network, unrolled over time", draw_unrolled, ("model", "text"), (Rnn, Ulmfit)),
    "cnn": FigureKind("The layers of a CNN for text", draw_cnn, ("model", "text"), (Cnn,)),
    "window": FigureKind("What one word sees: CNN, RNN and self-attention", draw_window, ("model", "text"), (Cnn,)),
    "block": FigureKind("One Transformer block of BERT or GPT, with its sizes", draw_block, ("model",), (Bert, Gpt)),
    "networks": FigureKind(
        "The networks of ELMo, GPT and BERT side by side", draw_networks, ("model",), (Elmo, Gpt, Bert)
    ),
    "input": FigureKind(
        "Token, segment and position embeddings of a text",
        _input_figure,
        ("model", "text", "second"),
        (Bert, Gpt, Transformer),
    ),
    "units": FigureKind(
        "Words, phrases and entities that ERNIE masks as a whole",
        _unit_figure,
        ("model", "text", "phrases", "entities", "entity_model"),
        (Bert,),
    ),
    "heads": FigureKind("Task heads on BERT: classes, pairs, tags, answers", draw_heads, ("model",), (Bert,)),
    "gpt-inputs": FigureKind("Inputs of GPT for each task", draw_gpt_inputs, ("model",), (Gpt,)),
    "tasks": FigureKind("Families of tasks, and the systems that support them", draw_task_families),
    "sizes": FigureKind("Published sizes: layers, width, heads and parameters", draw_sizes, ("model",), (System,)),
    "family": FigureKind("Family tree of all systems", draw_family_tree),
}
"""The figures by name."""


def figure(
    name: str,
    *,
    model: ModelSource | None = None,
    text: Annotated[str, Doc("Text to show (input, units, rnn, cnn, window).")] = "",
    second: Annotated[str, Doc("Second text of a pair (input).")] = "",
    phrases: Annotated[str | Path, Doc("File of phrases, one per line (units); default: run/phrases.txt.")] = "",
    entities: Annotated[str | Path, Doc("File of names, one per line (units); default: that of pre-training.")] = "",
    entity_model: Annotated[str | Path, Doc("Tagging model (units); default: that of pre-training.")] = "",
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
    given |= {"phrases": phrases, "entities": entities, "entity_model": entity_model}
    for option, value in given.items():
        if value and option not in kind.options:
            raise UsageError(f"figure {name} does not depend on {option}: leave it out")
    if name in ("input", "units"):
        if not text.strip():
            raise UsageError(f"figure {name} needs a text: give one with --text")
        given["model"] = model or default_model("encoder", text, on_event)
    arguments = {option: value for option, value in given.items() if value}
    if "model" in arguments:
        arguments["model"] = load_model(arguments["model"], on_event)  # pyright: ignore[reportArgumentType]
    if name == "units":
        named = {option: str(arguments.pop(option)) for option in UNIT_SOURCES if option in arguments}
        arguments["units"] = _units(arguments["model"], model, named, on_event)
    found = kind.build(**arguments)
    if path is not None:
        write_figures(path, found.title, [(found.picture, found.caption)], layout="broad")
    return found


def _units(model: Model, source: ModelSource | None, named: dict[str, str], on_event: OnEvent) -> MaskingUnits:
    """The units by these files and models; those that are not named are those of the model's pre-training."""
    recorded = recorded_units(model, Path(source) if isinstance(source, str | Path) else None)
    for option in [each for each in recorded if each not in named]:
        path, shown = recorded[option], option.replace("_", " ")
        if Path(path).exists():
            note(on_event, f"{shown}: {path}, of the model's pre-training")
        else:
            del recorded[option]
            flag = f"--{option.replace('_', '-')}"
            note(on_event, f"{path}, the {shown} of the model's pre-training, is not there: give it by {flag}")
    return read_units(**dict.fromkeys(UNIT_SOURCES, "") | recorded | named, on_event=on_event)
