"""Keywords of verbs for editors and type checkers, in keywords.pyi: the fields of the settings dataclasses.

`python -m keel.api.keywords` updates keywords.pyi after a field has changed; a test compares it with the dataclasses.
"""

import json
from dataclasses import fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from keel.api.settings import SWEPT, TextSettings, VocabularySettings
from keel.data.examples import Columns
from keel.generation.beam_search import BeamSearch
from keel.generation.sampling import Sampling
from keel.systems import SYSTEMS
from keel.tasks.head_settings import HeadSettings
from keel.training.plan import Train

STUB = Path(__file__).with_suffix(".pyi")
SETTINGS = {
    "TrainKeywords": [Train],
    "SweptTrainKeywords": [Train],
    "TextKeywords": [TextSettings],
    "VocabularyKeywords": [VocabularySettings],
    "ColumnKeywords": [Columns],
    "HeadKeywords": [HeadSettings],
    "SamplingKeywords": [Sampling],
    "BeamSearchKeywords": [BeamSearch],
    "SystemKeywords": [*SYSTEMS.values()],
}
START, END = "# Fields of settings, generated.\n", "# Keywords of verbs.\n"
"""Lines of keywords.pyi between which the fields stand."""


def __getattr__(name: str) -> type:
    """At run time the keywords of a verb are a dict."""
    if name.endswith("Keywords"):
        return dict
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def render() -> str:
    """The text of keywords.pyi with the current fields; the annotations of a field of several systems are united."""
    before, _, rest = STUB.read_text(encoding="utf-8").partition(START)
    classes: list[str] = []
    for name, settings in SETTINGS.items():
        found: dict[str, dict[str, None]] = {}
        for each in settings:
            hints = get_type_hints(each, include_extras=True)
            for field in fields(each):
                if field.init and field.name not in each.folder_only:
                    found.setdefault(field.name, {})[_source_text(hints[field.name])] = None
        if name == "SweptTrainKeywords":
            for field in SWEPT:
                (annotation,) = found[field]
                found[field][f"Sequence[{annotation}]"] = None
        lines = [f"    {field}: {' | '.join(annotations)}\n" for field, annotations in found.items()]
        classes.append(f"class {name}(TypedDict, total=False):\n{''.join(lines)}\n")
    return "".join([before, START, *classes, END, rest.partition(END)[2]])


def _source_text(annotation: Any) -> str:
    """An annotation without its bounds."""
    if get_origin(annotation) is Annotated:
        return _source_text(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return f"Literal[{', '.join(json.dumps(each) for each in get_args(annotation))}]"
    if get_origin(annotation) in (Union, UnionType):
        return " | ".join(map(_source_text, get_args(annotation)))
    if get_origin(annotation) is tuple:
        return f"tuple[{', '.join('...' if each is ... else _source_text(each) for each in get_args(annotation))}]"
    return "None" if annotation is NoneType else annotation.__name__


if __name__ == "__main__":
    STUB.write_text(render(), encoding="utf-8")
