"""What a folder or this machine holds, as names and values to print."""

import json
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

import keel
from keel.cli.console import clock
from keel.config import cache_folder, to_dict
from keel.data.label_kinds import ChoiceLabel, Regression, TextTarget
from keel.data.token_store import Tokens
from keel.errors import KeelError
from keel.explain.layer_weights import layer_weights
from keel.formats.elmo_files import is_elmo
from keel.formats.fasttext_files import is_fasttext
from keel.formats.vector_files import form_of, looks_like_vectors, read_vectors
from keel.metrics.scores import format_main_score
from keel.model import Model
from keel.tasks import Task
from keel.training.checkpoint import Checkpoints
from keel.training.plan import Train


def describe(folder: str | None) -> dict[str, Any]:
    """The facts of a model folder, a folder of tokens or a file of word vectors; of this machine if none is named."""
    if folder is None:
        return _machine()
    path = Path(folder)
    if (path / "config.json").is_file() or is_fasttext(path) or is_elmo(path):
        return _model(path)
    if (path / "index.json").is_file():
        return _tokens(path)
    if (path / "run" / "log.jsonl").is_file():
        return {"folder": str(path), "holds": "a run that is not finished", **_run(path)}
    if looks_like_vectors(path):
        return _vectors(path)
    if path.is_file():
        raise KeelError(f"{path} is no file of word vectors: name one, or a folder of a model, of a run or of tokens")
    raise KeelError(f"{path} is no folder of a model, of a run or of tokens: it has no config.json and no index.json")


def _machine() -> dict[str, Any]:
    graphics = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return {
        "keel": keel.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "tokenizers": version("tokenizers"),
        "devices": ", ".join(["cpu", *(f"cuda:{number} {name}" for number, name in enumerate(graphics))]),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cache": f"{cache_folder()} ({_megabytes(cache_folder())})",
        "default models": "none yet",
    }


def _model(path: Path) -> dict[str, Any]:
    model = Model.load(path)
    modules = [module for module in (model.encoder, model.objective, model.task) if module is not None]
    parameters = {id(weight): weight.numel() for module in modules for weight in module.parameters()}
    facts: dict[str, Any] = {
        "folder": str(path),
        "holds": "a model" if model.task is None else f"a model for {model.task.name}",
        "system": model.system.name,
        "shape": _listed(to_dict(model.system)),
        "parameters": f"{sum(parameters.values()):,}",
        "vocabulary": f"{len(model.tokenizer):,} pieces ({model.tokenizer.kind})",
        "lacks": ", ".join(model.missing) if model.task is None else "",
        "labels": _labels(model.task) if model.task else "",
        "mix": layer_weights(model).brief() if model.task and model.task.mix else "",
        "learned from": model.card.text,
        "parent": model.card.parent,
        "hardware": model.card.hardware,
        "steps": f"{model.card.steps:,} in {clock(model.card.seconds)}" if model.card.steps else "",
        **{f"score {name}": _score(value) for name, value in model.card.scores.items()},
        **_recipe(model.card.recipe),
        **_run(path),
    }
    return {name: value for name, value in facts.items() if value}


def _labels(task: Task) -> str:
    """What a task says of a text."""
    own = task.labels.tokenizer
    match task.labels.kind:
        case Regression():
            return "a number"
        case ChoiceLabel():
            return "the number of a choice"
        case TextTarget():
            return "another text" if own is None else f"another text, in {len(own):,} pieces of its own ({own.kind})"
    return ", ".join(task.labels.names)


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


def _vectors(path: Path) -> dict[str, Any]:
    said: list[str] = []
    vectors = read_vectors(path, on_event=lambda event: said.append(str(event["text"])))
    lengths = np.linalg.norm(vectors.matrix, axis=1)
    unit = bool(np.abs(lengths - 1).max() < 1e-3)
    spread = f"{lengths.min():.3g} to {lengths.max():.3g}, {lengths.mean():.3g} on average"
    facts = {
        "file": str(path),
        "holds": "word vectors",
        "format": form_of(path),
        "words": f"{len(vectors.words):,}",
        "width": vectors.matrix.shape[1],
        "lengths": "all 1: the vectors are normalised" if unit else spread,
        "first words": " ".join(vectors.words[:8]),
        "size": f"{path.stat().st_size / 1e6:,.1f} MB",
        "notes": "; ".join(said[1:]),
    }
    return {name: value for name, value in facts.items() if value}


def _run(path: Path) -> dict[str, Any]:
    """How far the run came that wrote this folder."""
    log = path / "run" / "log.jsonl"
    if not log.is_file():
        return {}
    with open(log, encoding="utf-8") as file:
        steps = [event for event in map(json.loads, file) if event.get("event") == "step"]
    saved = Checkpoints(path / "run" / "checkpoints", 1).steps()  # a run may have been stopped between two reports
    step = max([*saved, *(event["step"] for event in steps[-1:])], default=0)
    last = f"step {step:,}" + (f" of {steps[-1]['steps']:,}, " if steps else ", ") if step else ""
    ready = (path / "config.json").is_file()
    what = "may be deleted" if ready else "unfinished: run the same command again to go on"
    return {"run": f"{last}{_megabytes(path / 'run')} in {path / 'run'} ({what})"}


def _score(value: Any) -> Any:
    if isinstance(value, dict):
        return format_main_score(value)
    return f"{value:.4g}" if isinstance(value, float) else value


def _recipe(recipe: dict[str, Any]) -> dict[str, str]:
    """The settings of the run, a line for each section; those of the system are its shape."""
    sections = {f"recipe {name}": value for name, value in recipe.items() if isinstance(value, dict)}
    sections.pop("recipe system", None)
    if sections.get("recipe train", {}).get("optimizer") == "own":
        train = sections["recipe train"]
        sections["recipe train"] = {name: value for name, value in train.items() if name not in Train.GRADIENT_SETTINGS}
    alone = {name: value for name, value in recipe.items() if not isinstance(value, dict)}
    return {name: _listed(values) for name, values in {"recipe": alone, **sections}.items()}


def _listed(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _megabytes(folder: Path) -> str:
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return f"{size / 1e6:,.1f} MB"
