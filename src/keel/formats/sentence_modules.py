"""sentence-transformers folders: the modules after the encoder, which make a sentence embedding of token vectors."""

import json
from dataclasses import replace
from pathlib import Path
from types import NoneType
from typing import Any

from keel.data.folder_json import AGAIN, read_json
from keel.errors import KeelError
from keel.events import OnEvent, note
from keel.nn.pooling import SentencePooling

MODULES, POOLING, INPUTS = "modules.json", "1_Pooling", "sentence_bert_config.json"
TYPES = "sentence_transformers.models"
# By Keel's name: the flag in older files, which is what Keel writes, and the mode in newer ones.
MODES = {
    "mean": ("pooling_mode_mean_tokens", "mean"),
    "max": ("pooling_mode_max_tokens", "max"),
    "first": ("pooling_mode_cls_token", "cls"),
    "last": ("pooling_mode_lasttoken", "lasttoken"),
}


def read_sentence_pooling(folder: Path, on_event: OnEvent) -> SentencePooling | None:
    """The pooling and normalisation of a sentence-transformers folder; None for any other folder."""
    if not (path := folder / MODULES).is_file():
        return None
    modules = read_json(path, [{"type": str, "path": str}])
    pooling, normalize = None, False
    for number, module in enumerate(modules):
        if lacking := {"type", "path"} - module.keys():
            raise KeelError(f"{path}: [{number}] lacks {min(lacking)!r}: {AGAIN}")
        match module["type"].rpartition(".")[2]:
            case "Transformer":
                continue
            case "Pooling":
                pooling = _read_mode(folder / Path(module["path"]).name / "config.json", on_event)
            case "Normalize":
                normalize = True
            case other:
                note(on_event, f"{path}: left out the module {other}, which Keel does not have: embeddings differ")
    return None if pooling is None else _with_inputs(SentencePooling(pooling, normalize), folder / INPUTS)


def _with_inputs(pooling: SentencePooling, path: Path) -> SentencePooling:
    """The pooling with its maximum length and its lowercasing of texts, if the folder defines them."""
    if not path.is_file():
        return pooling
    config = read_json(path, {"max_seq_length": (int, NoneType), "do_lower_case": (bool, NoneType)})
    longest = config.get("max_seq_length") or 0
    if longest < 0:
        raise KeelError(f"{path}: max_seq_length must be a number of tokens, not {longest}: {AGAIN}")
    return replace(pooling, max_tokens=longest, lowercase=bool(config.get("do_lower_case")))


def _read_mode(path: Path, on_event: OnEvent) -> Any:
    config = read_json(path)
    used = {name for name in config if name.startswith("pooling_mode_") and config[name] is True}
    used |= {config["pooling_mode"]} if isinstance(config.get("pooling_mode"), str) else set()
    for ours, names in MODES.items():
        if used and used <= {*names}:
            return ours
    what = f"{path}: Keel does not have the pooling {' + '.join(sorted(used)) or 'of this file'}"
    note(on_event, f"{what}: sentence embeddings are the mean of the tokens instead")
    return "mean"


def sentence_module_files(pooling: SentencePooling, width: int) -> dict[str, str]:
    """The files, by name, from which sentence-transformers reads the pooling."""
    names = ["Transformer", "Pooling", *(["Normalize"] if pooling.normalize else [])]
    modules = [
        {"idx": number, "name": str(number), "path": f"{number}_{name}" if number else "", "type": f"{TYPES}.{name}"}
        for number, name in enumerate(names)
    ]
    config = {"word_embedding_dimension": width, **{flag: ours == pooling.pool for ours, (flag, _) in MODES.items()}}
    inputs = {"max_seq_length": pooling.max_tokens or None, "do_lower_case": pooling.lowercase}
    return {
        MODULES: json.dumps(modules, indent=2) + "\n",
        INPUTS: json.dumps(inputs, indent=2) + "\n",
        f"{POOLING}/config.json": json.dumps(config, indent=2) + "\n",
    }
