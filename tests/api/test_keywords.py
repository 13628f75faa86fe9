"""The keywords that editors complete are the fields of the settings dataclasses."""

from inspect import signature

import keel
from keel.api import keywords


def test_the_stub_is_current() -> None:
    found = keywords.STUB.read_text(encoding="utf-8")
    assert found == keywords.render(), "keywords.pyi is outdated: run python -m keel.api.keywords"


def test_verbs_take_settings_as_objects_and_as_keywords() -> None:
    for verb, objects in {
        keel.pretrain: {"train", "text"},
        keel.finetune: {"train", "columns", "head", "text"},
        keel.evaluate: {"columns", "search"},
        keel.predict: {"columns", "search"},
        keel.perplexity: {"text"},
    }.items():
        assert objects <= signature(verb).parameters.keys()
