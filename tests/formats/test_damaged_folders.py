"""Damaged and hostile model folders end in one sentence that names the file, and read nothing outside the folder."""

import json
import random
import resource
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

from keel.data.corpus import Corpus
from keel.data.examples import Labels
from keel.data.label_kinds import SingleLabel, TagLabels
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError
from keel.formats.architectures import ARCHITECTURES
from keel.model import Model
from keel.systems import SYSTEMS
from keel.systems.bert import Bert
from keel.systems.system import System
from keel.tasks import TASKS

TEXT = "the sailor repairs the boat and the baker serves bread to the judge"
SMALL: dict[str, Any] = {
    "layers": 1,
    "width": 8,
    "head_dim": 4,
    "hidden_size": 8,
    "max_positions": 16,
    "sequence_length": 16,
    "buckets": 50,
    "cell_size": 8,
    "character_filters": (2, 2),
    "highway_layers": 1,
    "decoder_layers": 1,
    "filters": 2,
    "hidden": 4,
    "attention_dim": 8,
    "max_characters": 10,
    "order": 2,
    "classes": 4,
}
VALUES: list[Any] = [
    *(None, True, -1, 0, 3, 1 << 31, 1 << 63, 10**30, 1e308, float("nan"), 0.5, "x", "", [], {}, [[]], [None]),
    *({"a": [1]}, "bert", "mean", [1, "x"]),
]
CASES = 320


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(Corpus.of([TEXT] * 4), kind="wordpiece", size=60)


def tiny(name: str, **settings: Any) -> System:
    kind = SYSTEMS[name]
    return kind(**{each.name: SMALL[each.name] for each in fields(kind) if each.name in SMALL} | settings)


@pytest.fixture(scope="module")
def folders(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A folder of every architecture, and of BERT with tasks."""
    root = tmp_path_factory.mktemp("folders")
    systems = {name: tiny(name) for name in SYSTEMS}
    systems |= {variant: tiny("bert", variant=variant) for variant in ("roberta", "distilbert")}
    systems["sink"] = tiny("gpt", sink=True)
    systems["sandwich"] = tiny("modernbert", sandwich_norm=True)
    for name, system in systems.items():
        with torch.device("cpu"):
            encoder = system.build_encoder(len(tokenizer))
        Model(system=system, encoder=encoder, tokenizer=tokenizer).save(root / name)
    assert {json.loads((root / name / "config.json").read_text())["model_type"] for name in systems} == {*ARCHITECTURES}
    bert = tiny("bert")
    for task, kind, head in (
        ("classify", SingleLabel(), {"network": "lstm", "network_width": 4}),
        ("tag", TagLabels(), {}),
    ):
        encoder = bert.build_encoder(len(tokenizer))
        made = TASKS[task](bert, encoder, tokenizer, Labels(kind=kind, names=("a", "b"), counts=(2, 2)), **head)
        Model(system=bert, encoder=encoder, tokenizer=tokenizer, task=made).save(root / task)
    return sorted(root.iterdir())


def locations(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """All locations in plain data, from the top."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(location for key, item in inner for location in locations(item, (*path, key)))]


def mutate(value: Any, rng: random.Random) -> Any:
    """A copy in which one value is another, or lacks."""
    copy = json.loads(json.dumps(value))
    *way, last = rng.choice(locations(copy)[1:])
    target = copy
    for key in way:
        target = target[key]
    if rng.random() < 0.15:
        del target[last]
    else:
        target[last] = rng.choice(VALUES)
    return copy


def load(folder: Path) -> str:
    """Load a model; returns the message if it is refused."""
    try:
        model = Model.load(folder)
        repr(model)
        model.to_stored()
    except KeelError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_mutated_files_end_in_a_sentence_or_load(name: str, folders: list[Path]) -> None:
    rng = random.Random(1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(CASES if name == "config.json" else 60):
        path = folders[number % len(folders)] / name
        whole = path.read_text()
        changed = mutate(json.loads(whole), rng)
        path.write_text(json.dumps(changed))
        try:
            assert "\n" not in load(path.parent)
        except BaseException as error:
            error.add_note(f"{path.parent.name}: {json.dumps(changed)}")
            raise
        finally:
            path.write_text(whole)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # kB


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "", "[]", "1", '"x"', "\udcff", "9" * 10_000])
@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "tokenizer.json"])
def test_what_is_no_such_json_is_named(name: str, text: str, folders: list[Path]) -> None:
    folder = next(each for each in folders if each.name == "classify")
    whole = (folder / name).read_text()
    (folder / name).write_bytes(text.encode(errors="surrogateescape"))
    try:
        with pytest.raises(KeelError) as caught:
            Model.load(folder)
    finally:
        (folder / name).write_text(whole)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


def edited_tokenizer(folder: Path, change: Callable[[dict[str, Any]], object], tokenizer: Tokenizer) -> Path:
    tokenizer.save(folder)
    rules = json.loads((folder / "tokenizer.json").read_text())
    change(rules)
    (folder / "tokenizer.json").write_text(json.dumps(rules))
    return folder


def test_an_id_beyond_all_tokens_is_refused_before_memory_is_allocated(tmp_path: Path, tokenizer: Tokenizer) -> None:
    folder = edited_tokenizer(tmp_path, lambda rules: rules["model"]["vocab"].update(odd=1 << 31), tokenizer)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(KeelError, match="2,147,483,648"):
        Tokenizer.load(folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


def test_panics_of_the_tokenizers_library_are_errors(tmp_path: Path, tokenizer: Tokenizer) -> None:
    charsmap = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    bad = edited_tokenizer(tmp_path / "charsmap", lambda rules: rules.update(normalizer=charsmap), tokenizer)
    with pytest.raises(KeelError):
        Tokenizer.load(bad).encode("a text")
    split = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    slow = edited_tokenizer(tmp_path / "split", lambda rules: rules.update(pre_tokenizer=split), tokenizer)
    for encode in (Tokenizer.encode_many, Tokenizer.encode_with_offsets):
        with pytest.raises(KeelError):
            encode(Tokenizer.load(slow), ["a" * 40 + "!"])


def test_an_elmo_folder_reads_no_other_file(tmp_path: Path, write_elmo: Callable[[Path], None]) -> None:
    h5py = pytest.importorskip("h5py")
    for number, kind in enumerate(("external link", "soft link", "group", "external storage")):
        folder = tmp_path / str(number)
        write_elmo(folder)
        other = tmp_path / f"other{number}.hdf5"
        other.write_bytes((folder / "tiny_weights.hdf5").read_bytes())
        Model.load(folder)
        with h5py.File(folder / "tiny_weights.hdf5", "r+") as file:
            name = "CNN" if kind == "group" else "char_embed"
            del file[name]
            if kind == "external storage":
                file.create_dataset(name, (261, 2), "float32", external=[(str(other), 0, 4 * 522)])
            else:
                file[name] = h5py.SoftLink("/x") if kind == "soft link" else h5py.ExternalLink(str(other), name)
        with pytest.raises(KeelError, match=name):
            Model.load(folder)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (lambda options: options["lstm"].update(dim="6"), "lstm.dim"),
        (lambda options: options["lstm"].update(n_layers=1 << 31), "layers"),
        (lambda options: options["lstm"].update(projection_dim=-4), "width"),
        (lambda options: options["char_cnn"].update(filters=[[1]]), "options"),
        (lambda options: options["char_cnn"].update(filters={"1": 3}), "char_cnn.filters"),
        (lambda options: options.update(lstm=[]), "lstm"),
        (lambda options: options["lstm"].update(cell_clip=10**400), "options"),
    ],
)
def test_options_of_elmo_are_checked(
    change: Callable[[dict[str, Any]], object], key: str, tmp_path: Path, write_elmo: Callable[[Path], None]
) -> None:
    write_elmo(tmp_path / "m")
    path = tmp_path / "m/tiny_options.json"
    options = json.loads(path.read_text())
    change(options)
    path.write_text(json.dumps(options))
    with pytest.raises(KeelError, match=key):
        Model.load(tmp_path / "m")


def test_the_wrong_key_is_named(tokenizer: Tokenizer, tmp_path: Path) -> None:
    system = Bert(**{each.name: SMALL[each.name] for each in fields(Bert) if each.name in SMALL})
    Model(system=system, encoder=system.build_encoder(len(tokenizer)), tokenizer=tokenizer).save(tmp_path / "m")
    path = tmp_path / "m/config.json"
    config = json.loads(path.read_text())
    for change, key in (
        ({"keel": []}, "keel"),
        ({"keel": {"card": {"steps": "many"}}}, "keel.card.steps"),
        ({"keel": {"card": {"recipe": {"train": []}}}}, "keel.card.recipe.train"),
        ({"id2label": {"0": []}}, "id2label.0"),
        ({"architectures": [1]}, r"architectures\[0\]"),
        ({"hidden_size": 1 << 40}, "hidden_size"),
        ({"num_hidden_layers": 1 << 20}, "layers"),
        ({"keel": {"settings": {"mlp_ratio": 1e30}}}, "mlp_ratio"),
    ):
        path.write_text(json.dumps(config | change))
        with pytest.raises(KeelError, match=rf"config\.json.*{key}"):
            Model.load(tmp_path / "m")
