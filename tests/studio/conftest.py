from pathlib import Path

import pytest
from fastapi.testclient import TestClient

import keel
from keel.studio.server import create_app
from keel.studio.workspace import Workspace

TEXTS = ["the old film was good", "a quiet garden", "the film , the story", "good story"]
LABELS = ["good", "bad", "good", "bad"]
BERT = keel.Bert(layers=2, width=16, head_dim=8, dropout=0.0, max_positions=64, sequence_length=64)


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with small models, a run, a comparison and data files."""
    folder = tmp_path_factory.mktemp("studio") / "project"
    folder.mkdir()
    rows = [f"{text}\t{label}" for text, label in zip(TEXTS, LABELS, strict=True)] * 8
    for name in ("train.tsv", "test.tsv"):
        (folder / name).write_text("\n".join(["text\tlabel", *rows]) + "\n", encoding="utf-8")
    once = {"steps": 2, "batch": 4, "device": "cpu"}
    documents = ["\n".join(TEXTS[start:] + TEXTS[:start]) for start in range(4)] * 4
    (folder / "corpus.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    base = keel.pretrain(BERT, folder / "corpus.txt", out=folder / "models" / "bert", **once)
    keel.finetune(base, folder / "train.tsv", out=folder / "models" / "classifier", mix=True, dev=None, **once)
    gpt = keel.Gpt(layers=1, width=16, head_dim=8, dropout=0.0, max_positions=64, sequence_length=64)
    keel.pretrain(gpt, folder / "corpus.txt", out=folder / "models" / "gpt", **once)
    keel.pretrain(keel.Word2vec(width=8), folder / "corpus.txt", out=folder / "models" / "words", min_count=1, steps=2)
    keel.compare(
        ["onehot"], train=folder / "train.tsv", test=folder / "test.tsv", seeds=1, out=folder / "report", workers=1
    )
    (folder / "models" / "damaged").mkdir()
    (folder / "models" / "damaged" / "config.json").write_text('{"model_type": "bert"}', encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def client(project: Path) -> TestClient:
    app = create_app(Workspace([project], device="cpu"), token="secret", hosts={"studio:1"})
    return TestClient(app, base_url="http://studio:1", headers={"Authorization": "Bearer secret"})
