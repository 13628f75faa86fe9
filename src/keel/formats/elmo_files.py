"""Published ELMo models: options.json and weights.hdf5, as AllenNLP and bilm-tf write them."""

from collections.abc import Callable
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from keel.config import from_dict
from keel.data.folder_json import read_json
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError
from keel.events import OnEvent, ignore
from keel.formats.stored_model import Format, StoredModel
from keel.nn.meta_device import meta_device
from keel.systems.elmo import EMPTY, Elmo

CLIP = (int, float, NoneType)
OPTIONS, WEIGHTS = "*options.json", "*weights.hdf5"
OPTIONS_SCHEMA: dict[Any, Any] = {
    "lstm": {"projection_dim": int, "dim": int, "n_layers": int, **dict.fromkeys(("cell_clip", "proj_clip"), CLIP)},
    "char_cnn": {"filters": [[int]], "embedding": {"dim": int}, "max_characters_per_token": int},
}
GATES = (0, 2, 3, 1)
"""Our order of the LSTM gates in theirs, which is i, g, f, o."""
MAX_RATIO = 2000
"""Size of an array in memory and in the file: compression makes no more of numbers."""


def is_elmo(folder: str | Path) -> bool:
    """Whether this is a folder of published ELMo files."""
    folder = Path(folder)
    foreign = not folder.is_dir() or (folder / "config.json").exists()
    return not foreign and any((*folder.glob(OPTIONS), *folder.glob(WEIGHTS)))


def read(folder: Path, on_event: OnEvent = ignore, *, pickled: bool = False) -> StoredModel:
    """Read a published ELMo; it has no vocabulary: words are separated by whitespace and read as characters."""
    system = _read_options(_one(folder, OPTIONS))
    tokenizer = Tokenizer.from_whitespace_words([])
    with meta_device():
        encoder = system.build_encoder(len(tokenizer))
    found = _read_weights(_one(folder, WEIGHTS), system)
    tensors = {f"encoder.{name}": found[name].contiguous() for name in encoder.state_dict()}
    return StoredModel(system=system, tokenizer=tokenizer, vocab_size=len(tokenizer), tensors=tensors)


def _one(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        fault = f"several ({found[0].name}, {found[1].name})" if found else "none"
        raise KeelError(f"{folder}: an ELMo folder has one {pattern.lstrip('*')}, this one has {fault}")
    return found[0]


def _read_options(path: Path) -> Elmo:
    options = read_json(path, OPTIONS_SCHEMA)
    try:
        lstm, characters = options["lstm"], options["char_cnn"]
        windows = [window for window, _ in characters["filters"]]
        values = {
            "width": lstm["projection_dim"],
            "cell_size": lstm["dim"],
            "layers": lstm["n_layers"],
            "residual": lstm.get("use_skip_connections", False),
            "cell_clip": float(lstm.get("cell_clip") or 0),
            "projection_clip": float(lstm.get("proj_clip") or 0),
            "max_characters": characters["max_characters_per_token"],
            "character_dim": characters["embedding"]["dim"],
            "character_filters": [count for _, count in characters["filters"]],
            "highway_layers": characters.get("n_highway") or 0,
            "activation": characters["activation"],
            "bos_token": True,
        }
    except KeyError as error:
        raise KeelError(f"{path}: the options lack {error}: give the options.json of an ELMo model") from None
    except (ValueError, TypeError, OverflowError) as error:
        raise KeelError(f"{path} is no valid ELMo options file ({error}): download it again") from None
    if windows != [*range(1, len(windows) + 1)]:
        raise KeelError(f"{path}: filter widths are {windows}; Keel's ELMo supports 1, 2, 3, ... characters only")
    return from_dict(Elmo, values, str(path))


def _read_weights(path: Path, system: Elmo) -> dict[str, Tensor]:
    """The encoder's tensors, from every array of the file."""
    try:
        import h5py
    except ImportError:
        raise KeelError(f"{path}: hdf5 files need h5py: pip install keel-nlp[data]") from None
    try:
        with h5py.File(path) as file:
            arrays: set[str] = set()
            file.visititems(lambda name, item: arrays.add(name) if isinstance(item, h5py.Dataset) else None)

            def get(name: str, *shape: int) -> Tensor:
                _refuse_links(h5py, file, name, path)
                if name not in file:
                    raise KeelError(f"{path}: the weights lack {name}; the options belong to another model")
                values: Any = file[name]
                if (actual := getattr(values, "shape", ())) != shape:
                    what = f"{name} is {_times(actual)}, but the options need {_times(shape)}"
                    raise KeelError(f"{path}: {what}; the two files belong to different models")
                if values.external or values.is_virtual or values.id.get_storage_size() * MAX_RATIO < values.nbytes:
                    raise KeelError(f"{path}: {name} is not stored in this file: download it again")
                arrays.discard(name)
                array = np.asarray(values, np.float32)
                if not np.isfinite(array).all():
                    raise KeelError(f"{path}: {name} contains NaN or infinity: download it again")
                return torch.from_numpy(array)

            found = _character_cnn(get, system) | _stacks(get, system)
            if arrays:
                what = f"contains {min(arrays)}, which the options do not describe"
                raise KeelError(f"{path} {what}; the two files belong to different models")
            return found
    except OSError as error:
        what = "is no valid hdf5 file, it is truncated or damaged: download it again"
        raise KeelError(f"{path} {what} ({error})") from None


def _refuse_links(h5py: Any, file: Any, name: str, path: Path) -> None:
    """Refuse a link on the way to an array: it may lead to another file."""
    parts = name.split("/")
    for end in range(1, len(parts) + 1):
        link = file.get("/".join(parts[:end]), getlink=True)
        if link is not None and not isinstance(link, h5py.HardLink):
            raise KeelError(f"{path}: {'/'.join(parts[:end])} is a link, which Keel does not follow: download it again")


def _character_cnn(get: Callable[..., Tensor], system: Elmo) -> dict[str, Tensor]:
    tensors = {"characters.weight": get("char_embed", EMPTY + 1, system.character_dim)}
    for number, count in enumerate(system.character_filters):
        weight = get(f"CNN/W_cnn_{number}", 1, number + 1, system.character_dim, count)
        tensors[f"filters.windows.{number}.weight"] = weight[0].permute(2, 1, 0)
        tensors[f"filters.windows.{number}.bias"] = get(f"CNN/b_cnn_{number}", count)
    total = sum(system.character_filters)
    for number in range(system.highway_layers):
        weights = [get(f"CNN_high_{number}/W_{half}", total, total).T for half in ("carry", "transform")]
        biases = [get(f"CNN_high_{number}/b_{half}", total) for half in ("carry", "transform")]
        tensors[f"highways.{number}.weight"], tensors[f"highways.{number}.bias"] = torch.cat(weights), torch.cat(biases)
    tensors["project.weight"] = get("CNN_proj/W_proj", total, system.width).T
    tensors["project.bias"] = get("CNN_proj/b_proj", system.width)
    return tensors


def _stacks(get: Callable[..., Tensor], system: Elmo) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    width, cells = system.width, system.cell_size

    def ordered(gates: Tensor) -> Tensor:
        return torch.cat([gates.chunk(4, -1)[number] for number in GATES], -1)

    for number in range(system.layers):
        cell = [f"RNN_{direction}/RNN/MultiRNNCell/Cell{number}/LSTMCell" for direction in (0, 1)]
        whole = torch.stack([ordered(get(f"{name}/W_0", 2 * width, 4 * cells)) for name in cell])
        bias = torch.stack([ordered(get(f"{name}/B", 4 * cells)) for name in cell])
        bias[:, cells : 2 * cells] += 1.0  # the forget bias, which TensorFlow's cell adds at run time
        tensors[f"stack.{number}.into"], tensors[f"stack.{number}.recurrent"] = whole.split(width, 1)
        tensors[f"stack.{number}.bias"] = bias
        tensors[f"stack.{number}.projection"] = torch.stack([get(f"{name}/W_P_0", cells, width) for name in cell])
    return tensors


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "no array"


ELMO = Format(name="ELMo folder", detect=is_elmo, read=read, system=lambda path: Elmo)
