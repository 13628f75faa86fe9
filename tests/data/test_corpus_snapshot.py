import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from keel.api import pretraining
from keel.data import token_store
from keel.data.corpus import Corpus
from keel.data.token_store import Tokens
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError

TEXT = "A quiet harbour. The wind is cold.\n\nSome boats sail home. Others stay.\n"


def replaced(path: Path) -> None:
    path.write_text(TEXT.replace("quiet", "noisy"))  # of equal length


def grown(path: Path) -> None:
    with open(path, "a") as file:
        file.write("\nMore of it.\n")


def shrunk(path: Path) -> None:
    os.truncate(path, 20)


def restored(path: Path) -> None:
    replaced(path)
    path.write_text(TEXT)
    os.utime(path, (1, 1))


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for path in paths:
        path.write_text(TEXT)
    return paths


@pytest.mark.parametrize("change", [replaced, grown, shrunk, restored, Path.unlink])
def test_a_file_that_changes_after_it_was_hashed_is_refused(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None]
) -> None:
    corpus = Corpus(files)
    tokenizer = Tokenizer.train(corpus, size=200)
    encode = token_store.encode_chunks

    def change_and_encode(*arguments, **options):
        change(files[0] if change is Path.unlink else files[1])
        return list(encode(*arguments, **options))

    monkeypatch.setattr(token_store, "encode_chunks", change_and_encode)
    with pytest.raises(KeelError, match=r"[ab]\.txt( changed|: check the name)"):
        Tokens.build(corpus, tokenizer, tmp_path / "tokens", workers=1)
    assert not list((tmp_path / "tokens").glob("*.json"))
    monkeypatch.undo()
    files[0].write_text(TEXT)
    tokens = Tokens.build(corpus, tokenizer, tmp_path / "tokens", workers=1)
    assert tokens.ids.tolist() == tokenizer.encode_flat([text for part in corpus.texts() for text in part])[0].tolist()


def test_a_build_of_a_file_that_changed_meanwhile_starts_again(files: list[Path], tmp_path: Path) -> None:
    corpus = Corpus(files)
    tokenizer = Tokenizer.train(corpus, size=200)
    folder = tmp_path / "tokens"
    whole = Tokens.build(corpus, tokenizer, folder, workers=1)
    expected = whole.ids.tolist()
    source = {"settings": whole.index["settings"], "files": [[1, 2, 3], [4, 5, 6]]}
    (folder / "progress.json").write_text(json.dumps(source | {"progress": {"chunks": 1, "ids": 2}}))
    (folder / "index.json").unlink()
    (folder / "ids.bin").write_bytes(bytes(100))
    assert Tokens.build(corpus, tokenizer, folder, workers=1).ids.tolist() == expected


def test_a_tokenizer_of_a_file_that_changed_is_not_stored(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = pretraining.train_tokenizer
    monkeypatch.setattr(pretraining, "train_tokenizer", lambda *given: (grown(files[1]), train(*given))[1])
    with pytest.raises(KeelError, match=r"b\.txt changed while it was read: rerun"):
        pretraining.pretrain("word2vec", files, out=tmp_path / "model", steps=1, min_count=1)
    assert not list(tmp_path.glob("model/run/tokenizer*"))
