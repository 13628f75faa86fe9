"""Hugging Face model folders: their names for our tensors and settings, both ways, one table per architecture."""

import json
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from keel.config import from_dict, to_dict
from keel.errors import KeelError
from keel.events import OnEvent, ignore, note
from keel.formats.folder import WEIGHTS, read_tensors, read_weights, save_folder, settle, write_tensors
from keel.systems import SYSTEMS
from keel.systems.base import System
from keel.systems.bert import Bert
from keel.text.tokenizer import Tokenizer

EXTRA = "keel.safetensors"

# Our modules and theirs; `a|b|c` are parts that we keep stacked in one matrix.
BERT_MODULES = {
    "encoder.words": "bert.embeddings.word_embeddings",
    "encoder.positions": "bert.embeddings.position_embeddings",
    "encoder.segments": "bert.embeddings.token_type_embeddings",
    "encoder.norm": "bert.embeddings.LayerNorm",
    "encoder.stack.*.attention.qkv": "bert.encoder.layer.*.attention.self.query|key|value",
    "encoder.stack.*.attention.out": "bert.encoder.layer.*.attention.output.dense",
    "encoder.stack.*.attention_norm": "bert.encoder.layer.*.attention.output.LayerNorm",
    "encoder.stack.*.expand": "bert.encoder.layer.*.intermediate.dense",
    "encoder.stack.*.contract": "bert.encoder.layer.*.output.dense",
    "encoder.stack.*.output_norm": "bert.encoder.layer.*.output.LayerNorm",
    "encoder.pooler": "bert.pooler.dense",
    "transform": "cls.predictions.transform.dense",
    "norm": "cls.predictions.transform.LayerNorm",
    "bias": "cls.predictions.bias",
    "next": "cls.seq_relationship",
    "classifier": "classifier",
}
BERT_SETTINGS = {
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "positions": "max_position_embeddings",
    "segments": "type_vocab_size",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "norm_epsilon": "layer_norm_eps",
}
# The name that we write comes first.
ACTIVATIONS = {
    "gelu": ("gelu", "gelu_python"),
    "gelu_tanh": ("gelu_new", "gelu_pytorch_tanh", "gelu_fast"),
    "relu": ("relu",),
    "silu": ("silu", "swish"),
}

BODY, POOLER, CLASSIFIER = "body", "pooler", "classifier"
WORD_HEAD, NEXT_HEAD = "masked word head", "next sentence head"
BERT_PARTS = {
    "bert.pooler.": POOLER,
    "bert.": BODY,
    "cls.predictions.": WORD_HEAD,
    "cls.seq_relationship.": NEXT_HEAD,
    "classifier.": CLASSIFIER,
}
# What each class has; a folder is written as the first class that it has everything for.
BERT_CLASSES = {
    "BertForSequenceClassification": {BODY, POOLER, CLASSIFIER},
    "BertForPreTraining": {BODY, POOLER, WORD_HEAD, NEXT_HEAD},
    "BertForMaskedLM": {BODY, WORD_HEAD},
    "BertModel": {BODY, POOLER},
}
BUFFERS = re.compile(r"(.*\.)?(position_ids|token_type_ids)")


@dataclass(frozen=True, kw_only=True)
class Stored:
    """What a folder holds, in our words."""

    system: System
    tensors: dict[str, Tensor]
    """By the names that the objective and the task have for them: `encoder.` comes before the body's."""
    config: dict[str, Any]
    """All of config.json."""
    missing: tuple[str, ...]
    """Parts of a whole pre-trained model that the folder lacks."""

    @property
    def vocabulary(self) -> int:
        return len(self.tensors["encoder.words.weight"])

    @property
    def pretrained(self) -> bool:
        """Whether there is any head of pre-training."""
        return not {WORD_HEAD, NEXT_HEAD} <= set(self.missing)

    @property
    def labels(self) -> tuple[str, ...]:
        """The classifier's labels in order, LABEL_0 and so on where they have no names; none without a classifier."""
        outputs = len(self.tensors.get("classifier.weight", ()))
        names = {str(number): str(name) for number, name in (self.config.get("id2label") or {}).items()}
        numbers = [str(number) for number in range(outputs)]
        if set(names) != set(numbers):  # left over from before the classifier was made
            return tuple(f"LABEL_{number}" for number in numbers)
        return tuple(names[number] for number in numbers)


def read(folder: Path, on_event: OnEvent = ignore, *, pickled: bool = False) -> Stored:
    """Read a folder's settings and weights, all or nothing; `pickled` also opens a .bin file, for its tensors only."""
    config = _read_config(folder)
    found = _in_todays_names(read_weights(folder, pickled))
    _check_ties(found, folder)
    named = (config.get("architectures") or ["BertModel"])[0]
    # Other tasks' heads bear the same name as the classifier of whole texts.
    heads = ("qa_outputs.",) if named == "BertForSequenceClassification" else ("qa_outputs.", "classifier.")
    if foreign := [name for name in found if name.startswith(heads)]:
        note(on_event, f"{folder}: left out {_some(foreign)}, the head of a task that Keel cannot take over ({named})")
    found = {name: tensor for name, tensor in found.items() if name not in foreign}

    parts = {BODY, *map(_part, found)}
    system, vocabulary = _read_bert(config, folder, next_sentence=NEXT_HEAD in parts or WORD_HEAD not in parts)
    if "keel" in config:  # we wrote it, so what it names must be there
        parts |= BERT_CLASSES.get(named, set())
    shapes = _shapes(system, vocabulary, len(found.get("classifier.weight", ())))
    part_of = {name: _part(_theirs(name)[0]) for name in shapes}
    tensors = _translate(found, {name: shape for name, shape in shapes.items() if part_of[name] in parts}, folder)
    if "keel" in config and (folder / EXTRA).exists():
        tensors |= read_tensors(folder / EXTRA)
    held = {part_of.get(name) for name in tensors}
    missing = tuple(part for part in (POOLER, WORD_HEAD, NEXT_HEAD) if part not in held)
    return Stored(system=system, tensors=tensors, config=config, missing=missing)


def write(folder: Path, system: System, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
    """Write settings and weights into an empty folder as one of their classes; what that class lacks goes beside it."""
    assert isinstance(system, Bert)
    parts = {_part(name) for ours in tensors for name in _theirs(ours)}
    if not system.next_sentence:
        parts.discard(NEXT_HEAD)
    named = next((name for name, needed in BERT_CLASSES.items() if needed <= parts), "BertModel")
    theirs: dict[str, Tensor] = {}
    extra: dict[str, Tensor] = {}
    for ours, tensor in tensors.items():
        names = _theirs(ours)
        if names and _part(names[0]) in BERT_CLASSES[named]:
            theirs |= zip(names, tensor.chunk(len(names)), strict=True)
        else:
            extra[ours] = tensor
    if named == "BertModel":
        theirs = {name.removeprefix("bert."): tensor for name, tensor in theirs.items()}
    write_tensors(folder / WEIGHTS, theirs)
    if extra:
        write_tensors(folder / EXTRA, extra)
    settings = _write_bert(system, len(tensors["encoder.words.weight"]))
    keel = {**settings.pop("keel"), **config.get("keel", {})}
    whole = {"architectures": [named], **settings, **config, "keel": keel}
    (folder / "config.json").write_text(json.dumps(whole, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def convert(source: Path, target: Path, *, overwrite: bool = False, on_event: OnEvent = ignore) -> Stored:
    """Write another's folder, pickled weights too, as one of ours, and read that again to see that nothing changed."""
    stored = read(source, on_event, pickled=True)
    tokenizer = Tokenizer.load(source)
    kept = ("id2label", "label2id", "problem_type", "classifier_dropout", "pad_token_id")
    config = {name: stored.config[name] for name in kept if name in stored.config}
    if stored.labels:
        config |= label_settings(stored.labels)

    def fill(folder: Path) -> None:
        write(folder, stored.system, stored.tensors, config)
        tokenizer.save(folder)
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


def label_settings(labels: Iterable[str]) -> dict[str, Any]:
    """Labels as their config.json has them."""
    names = list(labels)
    return {
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
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
    kind = config.get("model_type", "bert")
    if kind != "bert":
        raise KeelError(f"{path}: Keel does not read models of type {kind!r}; it reads bert")
    return config


def _in_todays_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Their names as they are now and with the prefix `bert.`, without buffers."""
    renamed = {}
    for name, tensor in tensors.items():
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        if name.startswith(("embeddings.", "encoder.", "pooler.")):
            name = f"bert.{name}"
        if not BUFFERS.fullmatch(name):
            renamed[name] = tensor
    return renamed


def _check_ties(found: dict[str, Tensor], folder: Path) -> None:
    """Take away the copies that a tied head comes with, if they are copies."""
    ties = {"decoder.weight": "bert.embeddings.word_embeddings.weight", "decoder.bias": "cls.predictions.bias"}
    for copy, original in ties.items():
        tensor = found.pop(f"cls.predictions.{copy}", None)
        if tensor is not None and not torch.equal(found.setdefault(original, tensor), tensor):
            raise KeelError(
                f"{folder}: cls.predictions.{copy} differs from {original}; Keel's BERT uses one for both "
                "and cannot hold this model"
            )


def _theirs(ours: str) -> tuple[str, ...]:
    """Their names for the parts of one of our tensors; none if they have nothing like it."""
    if ours in BERT_MODULES:
        return (BERT_MODULES[ours],)
    module, _, parameter = ours.rpartition(".")
    number = re.search(r"(?<=\.)\d+(?=\.)", module)
    path = BERT_MODULES.get(module if number is None else f"{module[: number.start()]}*{module[number.end() :]}")
    if path is None:
        return ()
    if number is not None:
        path = path.replace("*", number[0])
    stem = path[: path.rfind(".") + 1]
    return tuple(f"{stem}{last}.{parameter}" for last in path.removeprefix(stem).split("|"))


def _part(theirs: str) -> str:
    return next((part for prefix, part in BERT_PARTS.items() if theirs.startswith(prefix)), "unknown")


def _shapes(system: Bert, vocabulary: int, outputs: int) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        encoder = system.encoder(vocabulary)
    width = system.width
    return {f"encoder.{name}": tuple(tensor.shape) for name, tensor in encoder.state_dict().items()} | {
        "transform.weight": (width, width),
        "transform.bias": (width,),
        "norm.weight": (width,),
        "norm.bias": (width,),
        "bias": (vocabulary,),
        "next.weight": (2, width),
        "next.bias": (2,),
        "classifier.weight": (outputs, width),
        "classifier.bias": (outputs,),
    }


def _translate(found: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], folder: Path) -> dict[str, Tensor]:
    """Our tensors of these shapes made from theirs, every one of which must be of use."""
    sources = {ours: _theirs(ours) for ours in shapes}
    wanted = {name for names in sources.values() for name in names}
    if lacking := sorted(wanted - found.keys()):
        raise KeelError(f"{folder}: the weights lack {_some(lacking)}; get the file again")
    if unknown := sorted(found.keys() - wanted):
        raise KeelError(
            f"{folder}: the weights hold {_some(unknown)}, which BERT does not have; Keel cannot read this model"
        )
    tensors = {}
    for ours, (first, *rest) in shapes.items():
        shape = (first // len(sources[ours]), *rest)
        for name in sources[ours]:
            if (tensor := found[name]).shape != shape or not tensor.is_floating_point():
                raise KeelError(
                    f"{folder}: {name} holds {_describe(tensor.shape)} values of {tensor.dtype}, but config.json asks "
                    f"for {_describe(shape)} numbers; the two files are not of one model"
                )
        # Half precision is for keeping; we compute from full.
        tensors[ours] = torch.cat([found[name].float() for name in sources[ours]])
    return tensors


def _describe(shape: Iterable[int]) -> str:
    return "x".join(map(str, shape))


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more tensors" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _read_bert(config: Mapping[str, Any], folder: Path, *, next_sentence: bool) -> tuple[Bert, int]:
    """The system that a configuration describes, and the size of its vocabulary."""
    where = f"{folder / 'config.json'}"
    for name, only in {
        "position_embedding_type": "absolute",
        "is_decoder": False,
        "add_cross_attention": False,
    }.items():
        if config.get(name) not in (None, only):
            raise KeelError(f"{where}: {name} is {config[name]!r}; Keel's BERT has only {only!r}")
    if config.get("pruned_heads"):
        raise KeelError(f"{where}: this model has pruned heads, which Keel's BERT cannot hold")
    activation = config.get("hidden_act", "gelu")
    known = {theirs: ours for ours, names in ACTIVATIONS.items() for theirs in names}
    if activation not in known:
        raise KeelError(f"{where}: hidden_act is {activation!r}; Keel knows {', '.join(known)}")
    base = Bert()
    sizes = {
        "vocab_size": 30_522,
        "hidden_size": base.width,
        "num_attention_heads": base.heads,
        "intermediate_size": base.hidden,
        "max_position_embeddings": base.positions,
    }
    for name, default in sizes.items():
        sizes[name] = config.get(name, default)
        if type(sizes[name]) is not int or sizes[name] < 1:
            raise KeelError(f"{where}: {name} must be a whole number above 0, not {sizes[name]!r}")
    vocabulary, width, heads, hidden, positions = sizes.values()
    if width % heads:
        raise KeelError(f"{where}: hidden_size {width} is no multiple of num_attention_heads {heads}")
    keel = config.get("keel", {})
    if keel.get("system", "bert") not in SYSTEMS:
        raise KeelError(f"{where}: there is no system {keel['system']!r}; it needs a newer Keel")
    values = {ours: config.get(theirs, getattr(base, ours)) for ours, theirs in BERT_SETTINGS.items()} | {
        "head_width": width // heads,
        "expansion": hidden / width,
        "activation": known[activation],
        "length": positions,
        "next_sentence": next_sentence,
    }
    system = from_dict(SYSTEMS[keel.get("system", "bert")], values | keel.get("settings", {}), where)
    assert isinstance(system, Bert)
    return system, vocabulary


def _write_bert(system: Bert, vocabulary: int) -> dict[str, Any]:
    values = to_dict(system)
    settings = {theirs: values.pop(ours) for ours, theirs in BERT_SETTINGS.items()}
    del values["head_width"]
    return {
        "model_type": "bert",
        "vocab_size": vocabulary,
        "num_attention_heads": system.heads,
        "intermediate_size": system.hidden,
        "hidden_act": ACTIVATIONS[values.pop("activation")][0],
        **settings,
        "keel": {"system": system.name, "settings": values},
    }
