"""Model folders: Hugging Face's, and Keel's, which are Hugging Face folders with Keel's own fields under one key."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any

import torch
from torch import Tensor, nn

from keel.config import to_dict
from keel.data.folder_json import NUMBER, read_json
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError
from keel.events import OnEvent, ignore, note
from keel.formats import model_folder
from keel.formats.architectures import ARCHITECTURES, architecture_of, folder_architecture
from keel.formats.folder_architecture import BODY, CLASSIFIER, FOREIGN, PRETRAINING_HEADS, Architecture
from keel.formats.model_folder import TARGET
from keel.formats.sentence_modules import read_sentence_pooling, sentence_module_files
from keel.formats.stored_model import (
    CLASS_SUFFIXES,
    LABEL_COUNTS,
    Format,
    StoredModel,
    label_settings,
    refusing_impossible_networks,
)
from keel.formats.transformers_classes import KEEL_TYPE, class_of, model_type_of
from keel.formats.upgrades import upgrade_config, upgrade_tensor_name
from keel.nn.meta_device import meta_device
from keel.systems import SYSTEMS
from keel.systems.system import System

EXTRA = "keel.safetensors"
"""Tensors that transformers has no place for."""
CARD: dict[str, Any] = {
    **dict.fromkeys(("title", "parent", "text", "hardware", "command", "data_fingerprint"), str),
    "steps": int,
    "seconds": NUMBER,
    "scores": dict,
    "recipe": {"train": {"optimizer": str}},
}
CONFIG: dict[Any, Any] = {
    "model_type": str,
    "architectures": ([str], NoneType),
    "id2label": ({...: (str, int)}, NoneType),
    "problem_type": (str, NoneType),
    "layer_types": ([str], NoneType),
    "rope_parameters": (dict, NoneType),
    "keel": {
        "system": str,
        "settings": dict,
        "task": {
            "name": str,
            "kind": str,
            LABEL_COUNTS: [int],
            TARGET: bool,
            "temperature": NUMBER,
            "null_threshold": NUMBER,
            "extra_length": int,
        },
        "card": CARD,
    },
}
"""What Keel reads of config.json besides the settings of a network, which have their own checks."""
FOREIGN_FIELDS = (
    *("id2label", "label2id", "problem_type", "classifier_dropout"),
    *("pad_token_id", "bos_token_id", "eos_token_id"),
)
"""Fields of another's config.json that are copied to a converted folder."""


def read(folder: Path, on_event: OnEvent = ignore, *, pickled: bool = False, values: bool = True) -> StoredModel:
    """Read a folder's settings and weights, all or nothing; `pickled` also reads the tensors of a .bin file. Without
    `values`, tensors have names and shapes only, from the headers of the files."""
    config = _read_config(folder)
    architecture = folder_architecture(config)
    weights = model_folder.read_weights(folder, pickled, values=values)
    names = {name: architecture.current_name(upgrade_tensor_name(name)) for name in weights}
    # A class's own name for a tensor comes last, before one of the body that it does not use.
    stored = {names[name]: weights[name] for name in sorted(weights, key=lambda name: names[name] != name)}
    found = {name: tensor for name, tensor in stored.items() if not re.fullmatch(architecture.buffers, name)}
    _drop_tied(architecture, found, folder)
    named = (config.get("architectures") or [architecture.bare])[0]
    # Heads of other tasks have the same name as the classifier.
    foreign = {FOREIGN} if CLASSIFIER in architecture.classes.get(named, set()) else {FOREIGN, CLASSIFIER}
    left = [name for name in found if architecture.part(name) in foreign and "keel" not in config]
    if left:
        note(on_event, f"{folder}: left out {_shortened(left)}, the head of a task that Keel does not have ({named})")
    found = {name: tensor for name, tensor in found.items() if name not in left}

    parts = {BODY, *map(architecture.part, found)}
    system, vocab_size = architecture.read_settings(config, str(folder / "config.json"), parts)
    if "keel" in config:  # we wrote it, so every part of its class must be there
        parts |= architecture.classes.get(named, set())
    tokenizer = Tokenizer.load(folder)
    if config.get("keel", {}).get("task", {}).get(TARGET) and not (folder / TARGET).is_dir():
        raise KeelError(f"{folder} lacks the folder {TARGET}, the tokenizer of generated text: copy the whole folder")
    with meta_device(), refusing_impossible_networks(folder / "config.json"):
        encoder = system.build_encoder(vocab_size)
        network: nn.Module = nn.ModuleDict({"encoder": encoder})
        if parts & PRETRAINING_HEADS:
            network = system.build_objective(encoder, tokenizer)
        outputs = len(found.get(architecture.theirs("classifier.weight")[0], ()))
        classifier = {"classifier.weight": torch.empty(outputs, encoder.width), "classifier.bias": torch.empty(outputs)}
    complete = network.state_dict() | classifier
    wanted = {ours: tensor for ours, tensor in complete.items() if architecture.parts_of([ours]) & parts}
    tensors = _translate(architecture, found, wanted, folder)
    if "keel" in config and (folder / EXTRA).exists():
        read_file = model_folder.read_tensors if values else model_folder.read_outlines
        extra = read_file(folder / EXTRA)
        tensors |= {upgrade_tensor_name(name): tensor for name, tensor in extra.items()}
    readme = folder / "README.md"
    return StoredModel(
        system=system,
        tokenizer=tokenizer,
        target_tokenizer=Tokenizer.load(folder / TARGET) if (folder / TARGET).is_dir() else None,
        vocab_size=vocab_size,
        tensors=tensors,
        config=config,
        sentence_pooling=read_sentence_pooling(folder, on_event),
        readme=readme.read_text(encoding="utf-8", errors="replace") if readme.is_file() else "",
    )


def save(folder: Path, stored: StoredModel, *, overwrite: bool = False, check: bool = False) -> None:
    """Write a model folder, all or nothing; `check` reads it back before it takes its place."""

    def fill(stage: Path) -> None:
        _write(stage, stored)
        if check:
            _compare(stored, read(stage), folder)

    model_folder.save_folder(folder, fill, overwrite=overwrite)


def convert(folder: Path, stored: StoredModel, overwrite: bool = False) -> None:
    """Write another's model as a Keel folder, and compare what is read back."""
    config = {name: stored.config[name] for name in FOREIGN_FIELDS if name in stored.config}
    if stored.labels:
        config |= label_settings(stored.labels)
    kind = stored.label_kind
    ours = {"name": kind.default_task, "kind": kind.name} if kind in CLASS_SUFFIXES else None
    if task := stored.task or ours:
        config["keel"] = {"task": task}
    save(folder, replace(stored, config=config), overwrite=overwrite, check=True)


def _write(folder: Path, stored: StoredModel) -> None:
    """Write all files into an empty folder; tensors that the class does not have go to their own file."""
    architecture, named = architecture_of(stored.system), class_of(stored)
    theirs: dict[str, Tensor] = {}
    extra: dict[str, Tensor] = {}
    for ours, tensor in stored.tensors.items():
        if architecture.parts_of([ours]) & architecture.classes[named]:
            names = [architecture.name_in_class(name, named) for name in architecture.theirs(ours)]
            theirs |= zip(names, architecture.to_theirs(ours, tensor).chunk(len(names)), strict=True)
        else:
            extra[ours] = tensor
    if named == architecture.bare:
        theirs = {name.removeprefix(architecture.prefix): tensor for name, tensor in theirs.items()}
    model_folder.write_tensors(folder / model_folder.WEIGHTS, theirs)
    if extra:
        model_folder.write_tensors(folder / EXTRA, extra)
    settings = architecture.write_settings(stored.system, stored.vocab_size)
    ids = {name: getattr(stored.tokenizer, f"{token}_id") for name, token in architecture.special_tokens.items()}
    keel = {**settings.pop("keel"), **stored.config.get("keel", {})}
    settings |= {**ids, "architectures": [named], "model_type": model_type_of(stored)}
    config = {**settings, **stored.config, "keel": keel}
    (folder / "config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    stored.tokenizer.save(folder)
    if stored.target_tokenizer is not None:
        stored.target_tokenizer.save(folder / TARGET)
    files = {"README.md": stored.readme, **stored.extra_files}
    if stored.sentence_pooling is not None:
        files |= sentence_module_files(stored.sentence_pooling, to_dict(stored.system).get("width", 0))
    for name, text in files.items():
        if text:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")


def _compare(stored: StoredModel, copy: StoredModel, folder: Path) -> None:
    if copy.system != stored.system or copy.tensors.keys() != stored.tensors.keys():
        raise KeelError(f"{folder}: this model cannot be written as a Keel folder without loss; nothing was written")
    for name, tensor in stored.tensors.items():
        if not torch.equal(tensor, copy.tensors[name]):
            raise KeelError(f"{folder}: {name} differs when it is read back; nothing was written")


def _read_config(folder: Path) -> dict[str, Any]:
    """The config.json of a folder of a known type, with today's names."""
    if not folder.is_dir():
        fault = "is a file" if folder.exists() else "does not exist"
        raise KeelError(f"{folder} {fault}: give the path of a model folder")
    model_folder.finish_interrupted_save(folder)
    if not (path := folder / "config.json").is_file():
        raise KeelError(f"{folder} is not a model folder: it has no config.json")
    config = read_json(path, CONFIG)
    config["model_type"] = kind = _architecture_name(config)
    if kind not in ARCHITECTURES:
        raise KeelError(f"{path}: Keel does not read models of type {kind!r}; it reads {', '.join(ARCHITECTURES)}")
    return upgrade_config(config)


def _architecture_name(config: Mapping[str, Any]) -> str:
    return str(config.get("model_type", "bert")).removeprefix(KEEL_TYPE)


def _drop_tied(architecture: Architecture, found: dict[str, Tensor], folder: Path) -> None:
    """Remove the copies of tied tensors, after comparing them with the originals."""
    for copy, original in architecture.ties.items():
        tensor = found.pop(copy, None)
        if tensor is None or found.setdefault(original, tensor).is_meta:
            continue
        if not torch.equal(found[original], tensor):
            what = f"{copy} differs from {original}; Keel's {architecture.system.__name__} ties the two"
            raise KeelError(f"{folder}: {what} and cannot hold this model")


def _translate(
    architecture: Architecture, found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], folder: Path
) -> dict[str, Tensor]:
    """Our tensors, shaped as those of `wanted`, from theirs, all of which must be used; length 0 may be any length."""
    sources = {ours: architecture.theirs(ours) for ours in wanted}
    names = {name for several in sources.values() for name in several}
    if lacking := sorted(names - found.keys()):
        raise KeelError(f"{folder}: the weights lack {_shortened(lacking)}; download or copy the file again")
    if unknown := sorted(found.keys() - names):
        what = f"the weights hold {_shortened(unknown)}, which {architecture.system.__name__} does not have"
        raise KeelError(f"{folder}: {what}; Keel cannot read this model")
    tensors = {}
    for ours, model in wanted.items():
        parts = {name: architecture.to_ours(ours, found[name]) for name in sources[ours]}
        for name, tensor in parts.items():
            shape = (len(model) // len(parts) or len(tensor), *model.shape[1:])
            if tensor.is_meta and not tensor.numel():  # a quantised matrix, whose number of columns is not stored
                parts[name] = tensor = tensor.new_empty(shape)
            if tensor.shape != shape or tensor.is_floating_point() != model.is_floating_point():
                needed = "floating-point numbers" if model.is_floating_point() else "integers"
                what = f"{name} is {_describe(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"
                what += f", but config.json needs {_describe(shape)} of {needed}"
                raise KeelError(f"{folder}: {what}; the two files belong to different models")
        # Half precision is a storage format; weights are fp32.
        dtype = torch.float32 if model.is_floating_point() else torch.int32
        tensors[ours] = torch.cat([tensor.to(dtype) for tensor in parts.values()])
    return tensors


def _describe(shape: Iterable[int]) -> str:
    return "x".join(map(str, shape))


def _shortened(names: list[str]) -> str:
    more = f" and {len(names) - 3} more tensors" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _config_of(path: Path) -> dict[str, Any]:
    """The config.json of any folder; empty if there is none, or a damaged one."""
    try:
        return read_json(path / "config.json", CONFIG)
    except KeelError:
        return {}


def is_keel_folder(path: Path) -> bool:
    """Whether this is a model folder that Keel wrote."""
    return "keel" in _config_of(path)


def _system_of(path: Path) -> type[System]:
    config = _config_of(path)
    name = config.get("keel", {}).get("system")
    return SYSTEMS.get(name) or ARCHITECTURES.get(_architecture_name(config), ARCHITECTURES["bert"]).system


def folder_settings(folder: Path) -> System:
    """The settings of a folder's model, without reading its weights."""
    config = _read_config(folder)
    return folder_architecture(config).read_settings(config, str(folder / "config.json"), {BODY})[0]


def recorded_optimizer(folder: Path) -> str:
    """The optimizer of a folder's last training, "" if it is unknown."""
    return _config_of(folder).get("keel", {}).get("card", {}).get("recipe", {}).get("train", {}).get("optimizer", "")


OUTLINE = partial(read, values=False)
KEEL_FOLDER = Format(
    name="Keel folder", detect=is_keel_folder, read=read, outline=OUTLINE, write=convert, system=_system_of
)
HUGGINGFACE_FOLDER = Format(
    name="Hugging Face folder",
    detect=lambda path: (path / "config.json").is_file() and not is_keel_folder(path),
    read=read,
    outline=OUTLINE,
    system=_system_of,
)
