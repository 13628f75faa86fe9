"""Old model folders load: a folder with the old names of all settings gives the same predictions."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

import keel
from keel.cli import main
from keel.errors import KeelError
from keel.formats.upgrades import RENAMED_SETTINGS, RENAMED_TENSORS, RENAMED_VALUES, new_names
from keel.model import Model
from tests.golden.cases import COMMON, HELD_OUT, SYSTEM_CASES, TASK_CASES, VOCABULARY


def with_old_names(section: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Settings as an earlier version wrote them."""
    names = {new: old for old, new in RENAMED_SETTINGS.get(section, {}).items()}
    values = RENAMED_VALUES.get(section, {})
    return {
        names.get(name, name): {new: old for old, new in values.get(name, {}).items()}.get(value, value)
        if isinstance(value, str)
        else value
        for name, value in settings.items()
    }


def old_tensor_name(name: str) -> str:
    for old, new in RENAMED_TENSORS.items():
        if name.startswith(new):
            return old + name.removeprefix(new)
    return name


def make_old(folder: Path) -> dict[str, Any]:
    """Write config.json and tensors with the old names; returns Keel's fields."""
    for path in folder.glob("*.safetensors"):
        save_file({old_tensor_name(name): tensor for name, tensor in load_file(path).items()}, path)
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    ours = config["keel"]
    ours["settings"] = with_old_names(ours["system"], ours["settings"])
    if "task" in ours:
        ours["task"] = with_old_names("head", ours["task"])
    path.write_text(json.dumps(config), encoding="utf-8")
    return ours


@pytest.mark.parametrize("name", SYSTEM_CASES)
def test_an_old_folder_of_every_system_loads(name: str, tmp_path: Path) -> None:
    case = SYSTEM_CASES[name]
    model: Any = case.system
    if case.pretrain is not None:
        settings = COMMON | VOCABULARY | HELD_OUT | case.pretrain | ({"steps": 2} if "steps" in case.pretrain else {})
        model = keel.pretrain(case.system, case.corpus, out=tmp_path / "pretrained", **settings)  # pyright: ignore[reportArgumentType]
        old = make_old(tmp_path / "pretrained")
        assert not set(RENAMED_SETTINGS.get(name, {}).values()) & old["settings"].keys()
        again = Model.load(tmp_path / "pretrained")
        assert again.system == model.system
        assert again.tensors().keys() == model.tensors().keys()
    if case.finetune is not None:
        settings = COMMON | case.new | case.finetune.settings | case.finetune.columns
        settings |= {} if name == "onehot" else {"steps": 2}  # it solves for its classifier in one step
        model = keel.finetune(model, case.finetune.examples, task=case.finetune.task, out=tmp_path / "m", **settings)  # pyright: ignore[reportArgumentType]
        make_old(tmp_path / "m")
        again = Model.load(tmp_path / "m")
        assert again.system == model.system
        assert repr(again.predict(case.finetune.inputs)) == repr(model.to("cpu").predict(case.finetune.inputs))


@pytest.mark.parametrize(
    ("case", "old"),
    [
        ("tag, LSTM and characters on an RNN", "network.letters.letters.weight"),
        ("seq2seq, two vocabularies", "decoder.places.learned.weight"),
    ],
)
def test_tensors_of_an_old_folder_get_their_new_names(case: str, old: str, tmp_path: Path) -> None:
    found = TASK_CASES[case]
    assert found.finetune
    new = found.new | ({"position_encoding": "learned"} if found.system == "transformer" else {})
    settings = COMMON | new | found.finetune.settings | {"steps": 2}
    system: Any = found.system
    model = keel.finetune(system, found.finetune.examples, task=found.finetune.task, out=tmp_path / "m", **settings)  # pyright: ignore[reportArgumentType]
    make_old(tmp_path / "m")
    names = {name for path in (tmp_path / "m").glob("*.safetensors") for name in load_file(path)}
    assert old in names
    again = Model.load(tmp_path / "m")
    assert again.fingerprint() == model.fingerprint()
    assert repr(again.predict(found.finetune.inputs)) == repr(model.to("cpu").predict(found.finetune.inputs))


def test_old_names_get_an_error_with_the_new_one(
    tmp_path: Path, english_corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(KeelError, match="mask was renamed: use mask_rate"):
        keel.pretrain("bert", english_corpus, out=tmp_path / "m", mask=0.2)  # pyright: ignore[reportCallIssue]
    out = ["--out", str(tmp_path / "m")]
    assert main(["pretrain", "bert", str(english_corpus), "--system.mask", "0.2", *out]) == 2
    assert "--system.mask was renamed: use --system.mask_rate" in capsys.readouterr().err
    (tmp_path / "r.toml").write_text('[system]\nname = "bert"\nexpansion = 4.0\n')
    assert main(["pretrain", str(english_corpus), "--recipe", str(tmp_path / "r.toml"), *out]) == 2
    assert "r.toml: --system.expansion was renamed: use --system.mlp_ratio" in capsys.readouterr().err
    assert main(["finetune", "cnn", str(english_corpus), "--vocabulary", "300", *out]) == 2
    assert "--vocabulary was renamed: use --text.vocabulary" in capsys.readouterr().err
    assert main(["finetune", "transformer", "a", "b", "--task", "rewrite", *out]) == 2
    assert "--task rewrite was renamed: use --task seq2seq" in capsys.readouterr().err
    assert new_names("head_width") == ["head_dim"]


def test_label_counts_of_an_old_fasttext_folder_become_those_of_its_labels(tmp_path: Path) -> None:
    examples = [("a warm film", "good"), ("a cold film", "bad"), ("a warm story", "good"), ("it is", "fair")]
    settings: dict[str, Any] = {"width": 8, "epochs": 5, "threads": 1, "label_loss": "hierarchical", "dev": None}
    model = keel.finetune("fasttext", examples, out=tmp_path / "m", **settings)
    path = tmp_path / "m" / "config.json"
    config = json.loads(path.read_text("utf-8"))
    config["keel"]["settings"]["label_counts"] = config["keel"]["task"].pop("label_counts")
    path.write_text(json.dumps(config), "utf-8")
    again = Model.load(tmp_path / "m")
    assert again.task is not None
    assert again.task.labels.counts == (1, 1, 2)
    assert again.system == model.system
    assert repr(again.predict("a warm story")) == repr(model.to("cpu").predict("a warm story"))
