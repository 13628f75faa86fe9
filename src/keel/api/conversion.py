"""Conversion between file formats of models and word vectors."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from keel.config import Doc
from keel.events import OnEvent, ignore
from keel.formats.registry import check_output, output_format, read_model
from keel.model_card import Card

__all__ = ["convert"]


def convert(
    source: str | Path,
    out: str | Path,
    *,
    overwrite: Annotated[bool, Doc("Replace an existing OUT.")] = False,
    on_event: OnEvent = ignore,
) -> None:
    """Convert a model to a Keel folder, and compare what is read back with the source.

    `source` is a Hugging Face folder (pickled weights too), a fastText or ELMo model or a word vector file. If `out`
    ends in the suffix of a vector file (.txt, .vec, .bin, ...), word vectors are written; a fastText model as .bin.
    """
    check_output(out)
    stored = read_model(source, on_event, pickled=True)
    if not stored.readme:
        card = Card(title=Path(source).resolve().name)
        stored = replace(stored, readme=card.render(stored))
    target = output_format(out, stored.system)
    assert target.write is not None
    target.write(Path(out), stored, overwrite)
