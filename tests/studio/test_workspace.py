import gzip
import shutil
from pathlib import Path

import numpy as np
import pytest

from keel.errors import KeelError
from keel.formats.bundled_models import bundled_models
from keel.formats.stored_model import Vectors
from keel.formats.vector_files import write_vectors
from keel.formats.vector_lines import Layout
from keel.model import Model
from keel.studio import workspace as module
from keel.studio.listings import Kind, NotFound
from keel.studio.model_listing import describe
from keel.studio.workspace import Workspace

ROWS = "text\tlabel\na\tx\n"


def ids(workspace: Workspace, kind: Kind) -> set[str]:
    """The ids of a listing, without bundled models."""
    return {each.id for each in workspace.entries(kind) if not each.bundled}


def write(path: Path, text: str = ROWS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_folders_of_the_same_name_have_ids_of_their_own(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a/data", "a/data-2", "b/data", "a/data", "c/data")]
    for folder in folders:
        write(folder / "train.tsv", str(folder.relative_to(tmp_path)))
    workspace = Workspace(folders)
    contents = {each.id: each.path.read_text(encoding="utf-8") for each in workspace.entries("file")}
    assert contents == {
        "data/train.tsv": "a/data",
        "data-2/train.tsv": "a/data-2",
        "data-3/train.tsv": "b/data",
        "data-4/train.tsv": "c/data",
    }
    place = f"{tmp_path}/b/data/train.tsv:2"
    assert workspace.without_paths({"where": [place]}) == {"where": ["data-3/train.tsv:2"]}


def test_a_folder_with_the_name_of_a_bundled_model_is_listed_too(project: Path, tmp_path: Path) -> None:
    shutil.copytree(project / "models" / "bert", tmp_path / "chinese")
    workspace = Workspace([tmp_path / "chinese"], device="cpu")
    assert ids(workspace, "model") == {"chinese-2"}
    assert workspace.find("model", "chinese").bundled
    assert workspace.model("chinese-2").system.name == "bert"


def test_links_out_of_the_folder_are_not_followed(tmp_path: Path) -> None:
    write(tmp_path / "secret.tsv")
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "link.tsv").symlink_to(tmp_path / "secret.tsv")
    (tmp_path / "project" / "up").symlink_to(tmp_path)
    assert Workspace([tmp_path / "project"]).entries("file") == []


def test_a_linked_model_is_listed_if_its_target_is_in_the_folders(project: Path, tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    shutil.copytree(project / "models" / "bert", root / "kept" / "bert")
    shutil.copytree(project / "models" / "bert", elsewhere)
    (root / "latest").symlink_to(root / "kept" / "bert")
    (root / "away").symlink_to(elsewhere)
    (root / "loop").symlink_to(root)
    (root / "nothing").symlink_to(tmp_path / "absent")
    workspace = Workspace([root], device="cpu")
    assert ids(workspace, "model") == {"root/kept/bert", "root/latest"}
    assert workspace.model("root/latest").system.name == "bert"
    listed = {each["id"]: each for each in workspace.models()}
    assert "outside" in listed["root/away"]["error"]
    assert listed["root/away"]["can"] == []
    assert not listed["root/latest"]["error"]
    for id in ("root/away", "root/away/config.json", "root/loop/latest", "root/latest/run", "root/nothing"):
        with pytest.raises(NotFound):
            workspace.find("model", id)


def test_an_id_is_found_without_a_listing_if_it_is_in_the_listing(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for name in ("a.tsv", "b/c.csv", "1/2/3/4/5/deepest.tsv", "1/2/3/4/5/6/deeper.tsv", ".git/x.tsv", "m/run/x.tsv"):
        write(root / name)
    write(tmp_path / "secret.tsv")
    write(root / "model" / "config.json", "{}")
    write(root / "model" / "vocab.txt", "a")
    (root / "link").symlink_to(tmp_path)
    (root / "link.tsv").symlink_to(tmp_path / "secret.tsv")
    workspace = Workspace([root])
    listed = {"root/a.tsv", "root/b/c.csv", "root/1/2/3/4/5/deepest.tsv"}
    assert ids(workspace, "file") == listed
    assert {workspace.find("file", id).path for id in listed} == {each.path for each in workspace.entries("file")}
    absent = [path.relative_to(tmp_path).as_posix() for path in root.rglob("*") if path.is_file()]
    odd = ["root/../secret.tsv", "root/link/secret.tsv", "root/./a.tsv", "root//a.tsv", "root/b/../a.tsv", "a.tsv", ""]
    for id in {*absent, *odd, "root/\0", "root/" + "x" * 5000, "root/a.tsv/b", "root/\udc80"} - listed:
        with pytest.raises(NotFound):
            workspace.find("file", id)


def test_new_files_are_listed_soon_and_found_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = Workspace([tmp_path])
    assert ids(workspace, "file") == set()
    new = f"{tmp_path.name}/new.tsv"
    write(tmp_path / "new.tsv")
    assert workspace.find("file", new).path == tmp_path / "new.tsv"
    assert ids(workspace, "file") == set()  # the listing is new enough
    monkeypatch.setattr(module, "FRESH", -1.0)
    assert ids(workspace, "file") == {new}


def test_every_suffix_that_keel_reads_is_listed(tmp_path: Path) -> None:
    vectors = Vectors([f"word{number}" for number in range(30)], np.ones((30, 4), np.float32))
    layouts: dict[str, Layout] = {"a.vec": "text", "b.bin": "binary", "c.glove": "glove", "d.txt": "text"}
    for name, layout in layouts.items():
        write_vectors(tmp_path / name, vectors, layout=layout)
    (tmp_path / "e.vec.gz").write_bytes(gzip.compress((tmp_path / "a.vec").read_bytes()))
    (tmp_path / "f.VEC").write_bytes((tmp_path / "a.vec").read_bytes())
    data = ["train.TSV", "train.csv.gz", "corpus.txt", "corpus.txt.xz", "a.ndjson", "b.conllu", "c.parquet"]
    for name in data:
        write(tmp_path / name, "a text of two lines\nand no vectors\n")
    write(tmp_path / "noise.bin", "no model")
    workspace, name = Workspace([tmp_path]), tmp_path.name
    assert ids(workspace, "model") == {
        f"{name}/{each}" for each in ("a.vec", "b.bin", "c.glove", "d.txt", "e.vec.gz", "f.VEC")
    }
    assert ids(workspace, "file") == {f"{name}/{each}" for each in data}
    facts = {each["id"]: each for each in workspace.models()}
    for id in ids(workspace, "model"):
        assert facts[id]["error"] == ""
        assert facts[id]["parameters"] == 4 * facts[id]["vocabulary"] > 4 * 29
        assert facts[id]["can"] == describe(workspace.model(id))["can"]


def test_models_are_listed_without_loading_them(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = Workspace([project], device="cpu")
    paths = {each.id: each.path for each in workspace.entries("model") if each.path.name != "damaged"}
    assert len(paths) > len(bundled_models())
    loaded = {id: describe(Model.load(path, device="cpu")) for id, path in paths.items()}

    def refuse(*_: object, **__: object) -> None:
        raise KeelError("a model was read")

    monkeypatch.setattr(Model, "load", refuse)
    listed = {each["id"]: each for each in workspace.models()}
    for id, facts in loaded.items():
        assert {name: listed[id][name] for name in facts} == facts, id
    monkeypatch.setattr(Model, "outline", refuse)
    again = {each["id"]: each for each in workspace.models() if each["id"] in paths}  # nothing has changed
    assert again == {id: listed[id] for id in paths}


def test_parts_of_a_sentence_transformers_folder_are_no_models(project: Path, tmp_path: Path) -> None:
    shutil.copytree(project / "models" / "bert", tmp_path / "mini")
    write(tmp_path / "mini" / "modules.json", "[]")
    write(tmp_path / "mini" / "1_Pooling" / "config.json", "{}")
    (found,) = (each for each in Workspace([tmp_path / "mini"], device="cpu").models() if not each["bundled"])
    assert (found["id"], found["error"]) == ("mini", "")
