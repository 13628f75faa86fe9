"""Hugging Face model folders, read into our words and written back."""

import json
import shutil
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from keel.data.label_kinds import LABEL_KINDS, ChoiceLabel, LabelKind, Regression, SingleLabel, TagLabels, TextTarget
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError
from keel.events import OnEvent, ignore, note
from keel.formats.hf_architectures import (
    ARCHITECTURES,
    BODY,
    CHOOSING,
    CLASSIFIER,
    FOREIGN,
    PRETRAINING_HEADS,
    TAGGING,
    WORD_HEAD,
    Architecture,
    architecture_of,
)
from keel.formats.model_folder import TARGET, WEIGHTS, read_tensors, read_weights, save_folder, settle, write_tensors
from keel.systems.system import System

EXTRA = "keel.safetensors"

PURPOSES = {
    TAGGING: "token-classification",
    CHOOSING: "multiple-choice",
    CLASSIFIER: "text-classification",
    WORD_HEAD: "fill-mask",
}
"""Their words for what a model with such a part is for."""
KINDS: dict[LabelKind, str] = {TagLabels(): TAGGING, ChoiceLabel(): CHOOSING}
"""How the classes end that tell of labels of these kinds."""


@dataclass(frozen=True, kw_only=True)
class Stored:
    """What a folder holds, in our words."""

    system: System
    tokenizer: Tokenizer
    target: Tokenizer | None = None
    """Of what it writes, if that is in other pieces than what it reads."""
    vocabulary: int
    """How many ids the encoder knows."""
    tensors: dict[str, Tensor]
    """By the names that the objective and the task have for them: `encoder.` comes before the body's."""
    config: dict[str, Any]
    """All of config.json."""
    missing: tuple[str, ...]
    """Parts of a whole pre-trained model that the folder lacks."""

    @property
    def pretrained(self) -> bool:
        """Whether there is any head of pre-training, or none is needed."""
        heads = PRETRAINING_HEADS & set(architecture_of(self.system).whole)
        return not heads or not heads <= set(self.missing)

    @property
    def labels(self) -> tuple[str, ...]:
        """The classifier's labels in order, LABEL_0 and so on where they have no names; none without a classifier."""
        outputs = len(self.tensors.get("classifier.weight", ()))
        names = {str(number): str(name) for number, name in (self.config.get("id2label") or {}).items()}
        numbers = [str(number) for number in range(outputs)]
        if set(names) != set(numbers):  # left over from before the classifier was made
            return tuple(f"LABEL_{number}" for number in numbers)
        return tuple(names[number] for number in numbers)

    @property
    def label_kind(self) -> LabelKind:
        """The kind of these labels."""
        if told := _told_by(str((self.config.get("architectures") or [""])[0])):
            return next(kind for kind, suffix in KINDS.items() if suffix == told)
        kinds = {kind.problem_type: kind for kind in LABEL_KINDS.values() if kind.problem_type}
        default = Regression() if len(self.labels) == 1 else SingleLabel()
        return kinds.get(self.config.get("problem_type") or "", default)


def read(folder: Path, on_event: OnEvent = ignore, *, pickled: bool = False) -> Stored:
    """Read a folder's settings and weights, all or nothing; `pickled` also opens a .bin file, for its tensors only."""
    config = _read_config(folder)
    architecture = ARCHITECTURES[config.get("model_type", "bert")]
    stored = {architecture.todays_name(name): tensor for name, tensor in read_weights(folder, pickled).items()}
    found = {name: tensor for name, tensor in stored.items() if not architecture.buffers.fullmatch(name)}
    _check_ties(architecture, found, folder)
    named = (config.get("architectures") or [architecture.bare])[0]
    # Other tasks' heads bear the same name as the classifier of whole texts.
    foreign = {FOREIGN} if CLASSIFIER in architecture.classes.get(named, set()) else {FOREIGN, CLASSIFIER}
    if left := [name for name in found if architecture.part(name) in foreign]:
        note(on_event, f"{folder}: left out {_some(left)}, the head of a task that Keel cannot take over ({named})")
    found = {name: tensor for name, tensor in found.items() if name not in left}

    parts = {BODY, *map(architecture.part, found)}
    system, vocabulary = architecture.read_settings(config, str(folder / "config.json"), parts)
    if "keel" in config:  # we wrote it, so what it names must be there
        parts |= architecture.classes.get(named, set())
    tokenizer = Tokenizer.load(folder)
    if config.get("keel", {}).get("task", {}).get(TARGET) and not (folder / TARGET).is_dir():
        raise KeelError(f"{folder} lacks the folder {TARGET}, which holds the pieces that it writes: copy it too")
    with torch.device("meta"):
        encoder = system.build_encoder(vocabulary)
        heads = (
            system.build_objective(encoder, tokenizer)
            if parts & PRETRAINING_HEADS
            else nn.ModuleDict({"encoder": encoder})
        )
    outputs = len(found.get("classifier.weight", ()))
    shapes = {ours: tuple(tensor.shape) for ours, tensor in heads.state_dict().items()}
    shapes |= {"classifier.weight": (outputs, encoder.width), "classifier.bias": (outputs,)}
    wanted = {ours: shape for ours, shape in shapes.items() if architecture.parts_of([ours]) & parts}
    whole = {ours for ours, tensor in heads.state_dict().items() if not tensor.is_floating_point()}
    tensors = _translate(architecture, found, wanted, whole, folder)
    if "keel" in config and (folder / EXTRA).exists():
        tensors |= read_tensors(folder / EXTRA)
    held = architecture.parts_of(tensors)
    missing = tuple(part for part in architecture.whole if part not in held)
    return Stored(
        system=system,
        tokenizer=tokenizer,
        target=Tokenizer.load(folder / TARGET) if (folder / TARGET).is_dir() else None,
        vocabulary=vocabulary,
        tensors=tensors,
        config=config,
        missing=missing,
    )


def write(
    folder: Path, system: System, vocabulary: int, tensors: Mapping[str, Tensor], config: Mapping[str, Any]
) -> str:
    """Write settings and weights into an empty folder as one of their classes, and say what that is for.

    What the class does not have goes into a file beside its own.
    """
    architecture = architecture_of(system)
    parts = architecture.parts_of(tensors) - architecture.untrained(system)
    task = config.get("keel", {}).get("task", {})
    kind = LABEL_KINDS.get(task.get("kind", ""))
    wanted = "" if kind is None else KINDS.get(kind, "")
    # A network between body and classifier, or another summary of a text, is in no class of theirs.
    if {"pool", "mix", "orders"} & task.keys() or any(ours.startswith("network.") for ours in tensors):
        parts -= {CLASSIFIER}
    classes = {name: needed for name, needed in architecture.classes.items() if _told_by(name) == wanted}
    named = next((name for name, needed in classes.items() if needed <= parts), architecture.bare)
    theirs: dict[str, Tensor] = {}
    extra: dict[str, Tensor] = {}
    for ours, tensor in tensors.items():
        if architecture.parts_of([ours]) & architecture.classes[named]:
            names = architecture.theirs(ours)
            theirs |= zip(names, architecture.turned(ours, tensor).chunk(len(names)), strict=True)
        else:
            extra[ours] = tensor
    if named == architecture.bare:
        theirs = {name.removeprefix(architecture.prefix): tensor for name, tensor in theirs.items()}
    write_tensors(folder / WEIGHTS, theirs)
    if extra:
        write_tensors(folder / EXTRA, extra)
    settings = architecture.write_settings(system, vocabulary)
    keel = {**settings.pop("keel"), **config.get("keel", {})}
    whole = {"architectures": [named], **settings, **config, "keel": keel}
    (folder / "config.json").write_text(json.dumps(whole, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    if isinstance(kind, TextTarget):
        return "text2text-generation"
    held = {*architecture.classes[named], _told_by(named)}
    usual = "text-generation" if named.endswith("LMHeadModel") and not task else "feature-extraction"
    return next((PURPOSES[part] for part in PURPOSES if part in held), usual)


def convert(source: Path, target: Path, *, overwrite: bool = False, on_event: OnEvent = ignore) -> Stored:
    """Write another's folder, pickled weights too, as one of ours, and read that again to see that nothing changed."""
    stored = read(source, on_event, pickled=True)
    kept = (
        "id2label",
        "label2id",
        "problem_type",
        "classifier_dropout",
        "pad_token_id",
        "bos_token_id",
        "eos_token_id",
    )
    config = {name: stored.config[name] for name in kept if name in stored.config}
    if stored.labels:
        config |= label_settings(stored.labels)
    kind = stored.label_kind
    ours = {"name": kind.default_task, "kind": kind.name} if kind in KINDS else None
    if task := stored.config.get("keel", {}).get("task", ours):
        config["keel"] = {"task": task}

    def fill(folder: Path) -> None:
        write(folder, stored.system, stored.vocabulary, stored.tensors, config)
        stored.tokenizer.save(folder)
        if stored.target:
            stored.target.save(folder / TARGET)
        if (source / "README.md").exists():  # the authors' own card, with their licence
            shutil.copyfile(source / "README.md", folder / "README.md")
        copy = read(folder)
        if copy.system != stored.system or copy.tensors.keys() != stored.tensors.keys():
            raise KeelError(f"{source}: could not be written as a Keel folder without loss; nothing was kept")
        for name, tensor in stored.tensors.items():
            if not torch.equal(tensor, copy.tensors[name]):
                raise KeelError(f"{source}: {name} came back changed from the new folder; nothing was kept")

    save_folder(target, fill, overwrite=overwrite)
    return stored


def _told_by(named: str) -> str:
    """The end of a class's name, if it tells what the labels are."""
    return next((suffix for suffix in KINDS.values() if named.endswith(suffix)), "")


def label_settings(labels: Iterable[str], problem_type: str = "") -> dict[str, Any]:
    """The labels of a task, and their kind if it is given, as in config.json."""
    names = list(labels) or ["LABEL_0"]
    return {
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
        **({"problem_type": problem_type} if problem_type else {}),
    }


def _read_config(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        fault = "is a file" if folder.exists() else "does not exist"
        raise KeelError(f"{folder} {fault}: give the path of a model folder")
    settle(folder)
    path = folder / "config.json"
    if not path.is_file():
        raise KeelError(f"{folder} is no model folder: it has no config.json")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise KeelError(f"{path} cannot be read ({error}): get it again") from None
    if not isinstance(config, dict):
        raise KeelError(f"{path} is not a model's configuration: get it again")
    kind = str(config.get("model_type", "bert"))
    if kind not in ARCHITECTURES:
        raise KeelError(f"{path}: Keel does not read models of type {kind!r}; it reads {', '.join(ARCHITECTURES)}")
    return config


def _check_ties(architecture: Architecture, found: dict[str, Tensor], folder: Path) -> None:
    """Take away the copies that a tied head comes with, if they are copies."""
    for copy, original in architecture.ties.items():
        tensor = found.pop(copy, None)
        if tensor is not None and not torch.equal(found.setdefault(original, tensor), tensor):
            name = architecture.system.__name__
            what = f"{copy} differs from {original}; Keel's {name} uses one for both and cannot hold this model"
            raise KeelError(f"{folder}: {what}")


def _translate(
    architecture: Architecture,
    found: Mapping[str, Tensor],
    shapes: Mapping[str, tuple[int, ...]],
    whole: Collection[str],
    folder: Path,
) -> dict[str, Tensor]:
    """Our tensors of these shapes made from theirs, every one of which must be of use; an empty one may be any length.

    Those named in `whole` are integers.
    """
    sources = {ours: architecture.theirs(ours) for ours in shapes}
    wanted = {name for names in sources.values() for name in names}
    if lacking := sorted(wanted - found.keys()):
        raise KeelError(f"{folder}: the weights lack {_some(lacking)}; get the file again")
    if unknown := sorted(found.keys() - wanted):
        raise KeelError(
            f"{folder}: the weights hold {_some(unknown)}, which {architecture.system.__name__} does not have; "
            "Keel cannot read this model"
        )
    tensors = {}
    for ours, (first, *rest) in shapes.items():
        for name in sources[ours]:
            tensor = architecture.turned(ours, found[name])
            shape = (first // len(sources[ours]) or len(tensor), *rest)
            if tensor.shape != shape or tensor.is_floating_point() == (ours in whole):
                raise KeelError(
                    f"{folder}: {name} holds {_describe(tensor.shape)} values of {tensor.dtype}, but config.json asks "
                    f"for {_describe(shape)} numbers; the two files are not of one model"
                )
        # Half precision is for keeping; we compute from full.
        kind = torch.int32 if ours in whole else torch.float32
        tensors[ours] = torch.cat([architecture.turned(ours, found[name]).to(kind) for name in sources[ours]])
    return tensors


def _describe(shape: Iterable[int]) -> str:
    return "x".join(map(str, shape))


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more tensors" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
