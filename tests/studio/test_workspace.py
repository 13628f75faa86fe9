from pathlib import Path

from keel.studio.workspace import Workspace


def test_folders_of_the_same_name_have_ids_of_their_own(tmp_path: Path) -> None:
    for parent in ("a", "b"):
        (tmp_path / parent / "data").mkdir(parents=True)
        (tmp_path / parent / "data" / "train.tsv").write_text(f"text\tlabel\n{parent}\tx\n", encoding="utf-8")
    workspace = Workspace([tmp_path / "a" / "data", tmp_path / "b" / "data", tmp_path / "a" / "data"])
    files = workspace.listings().files
    assert {id: entry.path.read_text(encoding="utf-8")[11] for id, entry in files.items()} == {
        "data/train.tsv": "a",
        "data-2/train.tsv": "b",
    }
    place = f"{tmp_path}/b/data/train.tsv:2"
    assert workspace.without_paths({"where": [place]}) == {"where": ["data-2/train.tsv:2"]}


def test_links_out_of_the_folder_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret.tsv").write_text("text\tlabel\n", encoding="utf-8")
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "link.tsv").symlink_to(tmp_path / "secret.tsv")
    (tmp_path / "project" / "up").symlink_to(tmp_path)
    assert Workspace([tmp_path / "project"]).listings().files == {}
