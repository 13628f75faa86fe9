"""Every verb that reads a file, with every kind of file that it cannot read."""

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., tuple[int, str, str]]

VERBS = {
    "pretrain": ["pretrain", "word2vec", "FILE", "--steps", "1", "--out", "new"],
    "continue": ["pretrain", "base", "FILE", "--steps", "1", "--out", "new"],
    "finetune": ["finetune", "base", "FILE", "--steps", "1", "--out", "new"],
    "tag": ["finetune", "base", "FILE", "--task", "tag", "--steps", "1", "--out", "new"],
    "choose": ["finetune", "base", "FILE", "--task", "choose", "--steps", "1", "--out", "new"],
    "dev": ["finetune", "base", "train.tsv", "--dev", "FILE", "--steps", "1", "--out", "new"],
    "predict": ["predict", "tuned", "FILE"],
    "evaluate": ["evaluate", "tuned", "FILE"],
    "perplexity": ["evaluate", "NGRAM", "FILE"],
    "choices": ["evaluate", "NGRAM", "FILE", "--by", "choices"],
    "check": ["check", "FILE"],
    "embed": ["embed", "FILE", "--model", "base"],
    "generate": ["generate", "FILE", "--model", "NGRAM"],
    "nearest": ["nearest", "boat", "--in", "FILE", "--model", "base"],
    "senses": ["senses", "boat", "--in", "FILE", "--model", "base"],
    "clusters": ["clusters", "FILE", "--model", "base"],
    "map": ["map", "base", "--in", "FILE", "--out", "new.html"],
    "recipe": ["pretrain", "bert", "train.tsv", "--recipe", "FILE", "--out", "new"],
    "info": ["info", "FILE"],
    "model": ["predict", "FILE", "train.tsv"],
    "convert": ["convert", "FILE", "new.vec"],
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_bad_file_gets_one_sentence(
    verb: str, run: Run, folder: Path, ngram: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    contents = {
        "empty.txt": b"",
        "empty.csv": b"",
        "blank.txt": b"\n \n",
        "latin.txt": "le café était fermé\n".encode("cp1252") * 5,
        "binary.txt": bytes(range(256)) * 20,
        "short.txt.gz": gzip.compress(b"some words\n" * 500)[:40],
        "bad.parquet": b"PAR1 and more",
        "bad.jsonl": b"{\n",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    paths = [*(tmp_path / name for name in ("folder", "pipe", *contents, "missing.txt")), Path("/dev/null")]
    if verb not in ("info", "model", "convert"):
        paths.append(folder / "tuned")  # a model instead of a text
    for path in paths:
        if verb in ("generate", "recipe") and path.stem in ("empty", "blank", "bad"):
            continue  # an empty prompt or recipe is sound, and a prompt may look like JSON
        words = [{"FILE": str(path), "NGRAM": str(ngram)}.get(word, word) for word in VERBS[verb]]
        code, out, err = run(*words)
        assert code in (1, 2), (path, out, err)
        assert "Traceback" not in err, path
        assert "bug in Keel" not in err, (path, err)
        sentence = out if verb == "check" and out else err.splitlines()[-1]
        assert path.name in sentence or "empty" in sentence or "there is no file" in sentence, sentence
        assert not (folder / "new" / "config.json").exists()
