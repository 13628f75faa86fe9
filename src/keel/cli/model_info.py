"""Facts about a model, a run, tokens, a word vector file or this machine, for `keel info`."""

import json
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

import keel
from keel.api.settings import TextSettings, VocabularySettings
from keel.config import cache_folder, to_dict
from keel.data.token_store import Tokens
from keel.errors import KeelError
from keel.explain.layers.layer_weights import layer_weights
from keel.formats.bundled_models import bundled_models, locate
from keel.formats.registry import find_format
from keel.formats.stored_model import Format
from keel.model import Model
from keel.report.console import clock
from keel.systems.system import SOLVED
from keel.training.checkpoint import Checkpoints
from keel.training.plan import Train


def describe(folder: str | None) -> dict[str, Any]:
    """Describe a path in any format; without one, this machine."""
    if folder is None:
        return _machine()
    path = locate(folder)
    if found := find_format(path):
        return _vectors(path, found) if found.read_vectors else _model(path, found.name)
    if (path / "index.json").is_file():
        return _tokens(path)
    if (path / "run" / "log.jsonl").is_file():
        return {"folder": str(path), "holds": "an unfinished run", **_run(path)}
    if path.is_file():
        raise KeelError(f"{path} is no word vector file: give one, or a folder of a model, a run or tokens")
    raise KeelError(f"{path} is no folder of a model, a run or tokens: it has no config.json and no index.json")


def _machine() -> dict[str, Any]:
    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return {
        "keel": keel.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "tokenizers": version("tokenizers"),
        "devices": ", ".join(["cpu", *(f"cuda:{number} {name}" for number, name in enumerate(gpus))]),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cache": f"{cache_folder()} ({_megabytes(cache_folder())})",
        "bundled models": ", ".join(bundled_models()),
    }


def _model(path: Path, format: str) -> dict[str, Any]:
    model = Model.load(path, device="cpu")
    modules = [module for module in (model.encoder, model.objective, model.task) if module is not None]
    parameters = {id(weight): weight.numel() for module in modules for weight in module.parameters()}
    facts: dict[str, Any] = {
        "folder": str(path),
        "holds": "a model" if model.task is None else f"a model for {model.task.name}",
        "format": format,
        "system": model.system.name,
        "shape": _listed(to_dict(model.system)),
        "parameters": f"{sum(parameters.values()):,}",
        "vocabulary": f"{len(model.tokenizer):,} tokens ({model.tokenizer.kind})",
        "lacks": ", ".join(model.missing) if model.task is None else "",
        "labels": model.task.labels.kind.describe(model.task.labels) if model.task else "",
        "scalar mix": layer_weights(model).brief() if model.task and model.task.mix else "",
        "training data": model.card.text,
        "parent": model.card.parent,
        "hardware": model.card.hardware,
        "steps": f"{model.card.steps:,} in {clock(model.card.seconds)}" if model.card.steps else "",
        **{f"score {name}": text for name, text in model.card.score_texts().items()},
        "command": model.card.command,
        "not default": _listed(_differences(model)),
        **_recipe(model.card.recipe),
        **_run(path),
    }
    return {name: value for name, value in facts.items() if value}


def _tokens(path: Path) -> dict[str, Any]:
    tokens = Tokens.open(path)
    return {
        "folder": str(path),
        "holds": "tokens",
        "tokens": f"{len(tokens):,}",
        "sentences": f"{len(tokens.starts) - 1:,}",
        "documents": f"{len(tokens.documents) - 1:,}",
        "unknown": f"{tokens.unknown_share:.2%}",
        "size": _megabytes(path),
    }


def _vectors(path: Path, format: Format) -> dict[str, Any]:
    assert format.read_vectors is not None
    notes: list[str] = []
    vectors = format.read_vectors(path, lambda event: notes.append(str(event["text"])))
    lengths = np.linalg.norm(vectors.matrix, axis=1)
    unit = bool(np.abs(lengths - 1).max() < 1e-3)
    spread = f"{lengths.min():.3g} to {lengths.max():.3g}, {lengths.mean():.3g} mean"
    facts = {
        "file": str(path),
        "holds": "word vectors",
        "format": format.name,
        "words": f"{len(vectors.words):,}",
        "width": vectors.matrix.shape[1],
        "norms": "all 1 (normalised)" if unit else spread,
        "first words": " ".join(vectors.words[:8]),
        "size": f"{path.stat().st_size / 1e6:,.1f} MB",
        "notes": "; ".join(notes[1:]),
    }
    return {name: value for name, value in facts.items() if value}


def _run(path: Path) -> dict[str, Any]:
    """The progress of the run that wrote this folder."""
    log = path / "run" / "log.jsonl"
    if not log.is_file():
        return {}
    with open(log, encoding="utf-8") as file:
        steps = [event for event in map(json.loads, file) if event.get("event") == "step"]
    # A run may have been interrupted between two log lines.
    saved = Checkpoints(path / "run" / "checkpoints", 1).steps()
    step = max([*saved, *(event["step"] for event in steps[-1:])], default=0)
    last = f"step {step:,}" + (f" of {steps[-1]['steps']:,}, " if steps else ", ") if step else ""
    ready = (path / "config.json").is_file()
    state = "may be deleted" if ready else "unfinished: rerun the command to resume"
    return {"run": f"{last}{_megabytes(path / 'run')} in {path / 'run'} ({state})"}


def _recipe(recipe: dict[str, Any]) -> dict[str, str]:
    """The settings of the run, a line per section; those of the system are shown as its shape."""
    sections = {f"recipe {name}": value for name, value in recipe.items() if isinstance(value, dict)}
    sections.pop("recipe system", None)
    if sections.get("recipe train", {}).get("optimizer") == "own":
        train = sections["recipe train"]
        sections["recipe train"] = {name: value for name, value in train.items() if name not in Train.GRADIENT_SETTINGS}
    alone = {name: value for name, value in recipe.items() if not isinstance(value, dict)}
    return {name: _listed(values) for name, values in {"recipe": alone, **sections}.items()}


def _differences(model: Model) -> dict[str, Any]:
    """The settings of the run that differ from the defaults of system and task."""
    task = model.task
    train = model.system.pretraining_defaults if task is None else task.finetuning_defaults(model.system, task.frozen)
    if model.card.recipe.get("freeze") and model.card.recipe.get("train", {}).get("optimizer") == "own":
        train = SOLVED
    defaults = {"system": to_dict(type(model.system)()), "train": to_dict(train)}
    defaults["text"] = to_dict(TextSettings().resolve(model.system)) if task is None else to_dict(VocabularySettings())
    found: dict[str, Any] = {}
    for section, known in defaults.items():
        given = model.card.recipe.get(section, {})
        found |= {name: value for name, value in given.items() if name in known and value != known[name]}
    return found


def _listed(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _megabytes(folder: Path) -> str:
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return f"{size / 1e6:,.1f} MB"
