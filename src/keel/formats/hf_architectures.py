"""All architectures of model folders: those that Hugging Face has, and one for each other system."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from keel.config import from_dict, to_dict
from keel.errors import KeelError
from keel.formats.architecture import (
    BODY,
    CHOOSING,
    CLASSIFIER,
    OBJECTIVE_HEAD,
    TAGGING,
    TASK_LAYERS,
    Architecture,
)
from keel.formats.hf_bert import BERT
from keel.formats.hf_gpt2 import GPT2
from keel.systems import SYSTEMS
from keel.systems.bert import Bert
from keel.systems.gpt import Gpt
from keel.systems.system import System


@dataclass(frozen=True, kw_only=True)
class KeelArchitecture(Architecture):
    """A system that Hugging Face does not have: tensors keep our names, with the system's for the encoder."""

    def theirs(self, ours: str) -> tuple[str, ...]:
        return (f"{self.system.name}.{ours.removeprefix('encoder.')}" if ours.startswith("encoder.") else ours,)

    def part(self, theirs: str) -> str:
        if theirs.startswith(f"{self.system.name}."):
            return BODY
        if theirs.startswith(("crf.", "mix.", "network.", "decoder.")):
            return TASK_LAYERS
        return CLASSIFIER if theirs.startswith("classifier.") else OBJECTIVE_HEAD

    def current_name(self, theirs: str) -> str:
        return theirs


def _keel_architecture(system: type[System]) -> KeelArchitecture:
    def read(config: Mapping[str, Any], where: str, parts: set[str]) -> tuple[System, int]:
        vocab_size = config.get("vocab_size")
        if type(vocab_size) is not int or vocab_size < 1:
            raise KeelError(f"{where}: vocab_size must be a whole number above 0, not {vocab_size!r}")
        return from_dict(system, config.get("keel", {}).get("settings", {}), where), vocab_size

    def write(system: System, vocab_size: int) -> dict[str, Any]:
        keel = {"system": system.name, "settings": to_dict(system)}
        return {"model_type": system.name, "vocab_size": vocab_size, "keel": keel}

    name = system.__name__
    return KeelArchitecture(
        system=system,
        modules={},
        prefix="",
        parts={},
        classes={
            f"{name}ForSequenceClassification": {BODY, CLASSIFIER},
            f"{name}{TAGGING}": {BODY, CLASSIFIER},
            f"{name}{CHOOSING}": {BODY, CLASSIFIER},
            f"{name}ForPreTraining": {BODY, OBJECTIVE_HEAD},
            f"{name}Model": {BODY},
        },
        bare=f"{name}Model",
        whole=(OBJECTIVE_HEAD,),
        ties={},
        old_names={},
        buffers=re.compile(r"(?!)"),
        read_settings=read,
        write_settings=write,
    )


ARCHITECTURES: dict[str, Architecture] = {
    "bert": BERT,
    "gpt2": GPT2,
    **{name: _keel_architecture(system) for name, system in SYSTEMS.items() if not issubclass(system, Bert | Gpt)},
    "gpt": replace(_keel_architecture(Gpt), whole=()),  # the softmax is tied to the embeddings
}
"""By the `model_type` of config.json."""


def architecture_of(system: System) -> Architecture:
    """The architecture that a system is written as."""
    able = [one for one in ARCHITECTURES.values() if isinstance(system, one.system) and one.holds(system)]
    # A descendant may be written otherwise than its ancestor.
    return next((one for one in able if one.system is type(system)), able[0])
