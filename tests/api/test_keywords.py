"""The keywords that editors complete are the fields of the settings dataclasses.

`python -m tests.api.test_keywords` rewrites src/keel/api/keywords.py after a field has changed.
"""

import json
from collections.abc import Iterable
from dataclasses import fields
from inspect import signature
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import keel.api
from keel.api.settings import TextSettings, VocabularySettings
from keel.data.examples import Columns
from keel.generation.beam_search import BeamSearch
from keel.generation.sampling import Sampling
from keel.systems import SYSTEMS
from keel.tasks.head_settings import HeadSettings
from keel.training.plan import Train

FILE = Path(keel.api.__file__).with_name("keywords.py")
NOT_SET_BY_USERS = {"label_counts", "shared_vocabulary"}
SETTINGS = {
    "TrainKeywords": (Train,),
    "TextKeywords": (TextSettings,),
    "VocabularyKeywords": (VocabularySettings,),
    "ColumnKeywords": (Columns,),
    "HeadKeywords": (HeadSettings,),
    "SamplingKeywords": (Sampling,),
    "BeamSearchKeywords": (BeamSearch,),
    "SystemKeywords": tuple(SYSTEMS.values()),
}
VERBS = '''

class DecodingKeywords(SamplingKeywords, total=False):
    """Settings of sampling and of beam search."""

    beams: int | None
    length_penalty: float | None


class GenerateKeywords(DecodingKeywords, total=False):
    """Keywords of `generate`."""

    tokens: int
    stop: str | Sequence[str]
    trace: str | Path | None
    on_text: Callable[[str], object]
    on_event: OnEvent


class TranslateKeywords(BeamSearchKeywords, total=False):
    """Keywords of `translate`."""

    by_pattern: str | Path | Iterable[tuple[str, str]] | None
    tokens: int | None
    cut: bool
    trace: str | Path | None
    on_event: OnEvent


class PretrainKeywords(TrainKeywords, TextKeywords, SystemKeywords, total=False):
    """Keywords of `pretrain`."""

    size: str


class FinetuneKeywords(TrainKeywords, ColumnKeywords, HeadKeywords, VocabularyKeywords, SystemKeywords, total=False):
    """Keywords of `finetune`."""

    size: str


class PredictKeywords(ColumnKeywords, BeamSearchKeywords, total=False):
    """Keywords of `predict`."""


class EvaluateKeywords(ColumnKeywords, BeamSearchKeywords, total=False):
    """Keywords of `evaluate`."""

    stride: int | None
    dedup: Literal["none", "lines", "documents"]
    sentences: Literal["auto", "split", "lines", "none"]
'''


def written(annotation: Any) -> str:
    """An annotation as source text, without its bounds."""
    if get_origin(annotation) is Annotated:
        return written(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return f"Literal[{', '.join(json.dumps(each) for each in get_args(annotation))}]"
    if get_origin(annotation) in (Union, UnionType):
        return " | ".join(map(written, get_args(annotation)))
    if get_origin(annotation) is tuple:
        return f"tuple[{', '.join('...' if each is ... else written(each) for each in get_args(annotation))}]"
    return "None" if annotation is NoneType else annotation.__name__


def keywords(settings: Iterable[type]) -> dict[str, str]:
    """The fields of dataclasses with their annotations; those of several classes are united."""
    found: dict[str, list[str]] = {}
    for each in settings:
        hints = get_type_hints(each, include_extras=True)
        for field in fields(each):
            if field.init and field.name not in NOT_SET_BY_USERS:
                found.setdefault(field.name, []).append(written(hints[field.name]))
    return {name: " | ".join(dict.fromkeys(types)) for name, types in found.items()}


def render() -> str:
    """The module of keywords as source text."""
    lines = [
        '"""Keywords of verbs, for editors and type checkers: the fields of the settings dataclasses.',
        "",
        "Written by `python -m tests.api.test_keywords`; a test compares it with the dataclasses.",
        '"""',
        "",
        "from collections.abc import Callable, Iterable, Sequence",
        "from pathlib import Path",
        "from typing import Literal, TypedDict",
        "",
        "from keel.events import OnEvent",
    ]
    for name, settings in SETTINGS.items():
        what = "any system" if len(settings) > 1 else f"`{settings[0].__name__}`"
        lines += ["", "", f"class {name}(TypedDict, total=False):", f'    """Fields of {what}."""', ""]
        lines += [f"    {field}: {annotation}" for field, annotation in keywords(settings).items()]
    return "\n".join(lines) + "\n" + VERBS


def test_the_keywords_are_the_fields_of_the_dataclasses() -> None:
    from keel.api import keywords as module

    for name, settings in SETTINGS.items():
        found = {field: written(hint) for field, hint in get_type_hints(getattr(module, name)).items()}
        assert found == {
            field: written(eval(text, dict(vars(module)))) for field, text in keywords(settings).items()
        }, f"{name} differs: run python -m tests.api.test_keywords"


def test_verbs_take_settings_as_objects_and_as_keywords() -> None:
    for verb, objects in {
        keel.pretrain: {"train", "text"},
        keel.finetune: {"train", "columns", "head", "text"},
        keel.evaluate: {"columns", "search"},
        keel.predict: {"columns", "search"},
        keel.perplexity: {"text"},
    }.items():
        assert objects <= signature(verb).parameters.keys()


if __name__ == "__main__":
    FILE.write_text(render(), encoding="utf-8")
