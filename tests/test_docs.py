"""What README and docs show is what happens: every block runs, with small files and few steps."""

import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "README.zh.md", *sorted((ROOT / "docs").glob("*.md"))]
SHORTER = {
    "--minutes 20": "--steps 3",
    "--steps 1000": "--steps 3",
    "nearest river": "nearest farmer",
    '"king - man + woman"': '"farmer - pilot + the"',
    '"breakfast cereal dinner lunch"': '"farmer pilot the"',
    "elmo wiki.txt": "elmo wiki.txt --batch 8",
    "senses bank": "senses farmer",
    "gpt wiki.txt --size mini": "gpt wiki.txt --size tiny --text.vocabulary 400 --batch 4",
    "ulmfit wiki.txt --size mini": "ulmfit wiki.txt --size tiny --text.vocabulary 400 --system.bptt 32",
    "--size mini": "--size tiny --text.vocabulary 400 --system.length 32",
    "--task classify": "--task classify --epochs 1",
    "--task pair": "--task pair --epochs 1",
    "--task tag": "--task tag --epochs 1",
    "--out models/quiz": "--epochs 1 --out models/quiz",
    "--task rewrite": "--task rewrite --epochs 1",
}


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory, english_corpus: Path) -> Path:
    """A folder with the files that the pages speak of."""
    folder = tmp_path_factory.mktemp("desk")
    for name in ("wiki.txt", "company.txt"):
        (folder / name).write_bytes(english_corpus.read_bytes())
    rows = ["the farmer is kind\tgood", "the pilot was late\tbad"] * 20
    for name in ("train.tsv", "test.tsv"):
        (folder / name).write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    pairs = ["the farmer is kind\tthe farmer is nice\tsame", "the pilot was late\tit rained\tother"] * 20
    (folder / "pairs.tsv").write_text("sentence1\tsentence2\tlabel\n" + "\n".join(pairs) + "\n")
    (folder / "names.conll").write_text("the O\nfarmer B-PER\nis O\nkind O\n\nthe O\npilot B-PER\nleft O\n\n" * 10)
    quiz = ['{"context": "the farmer is", "choices": ["kind", "a pilot", "late"], "label": 0}'] * 20
    (folder / "quiz.jsonl").write_text("\n".join(quiz) + "\n")
    for name, count in (("train", 20), ("val", 5)):
        for side, words in (("en", "a dog runs"), ("de", "Ein Hund rennt.")):
            (folder / f"{name}.{side}").write_text(f"{words}\n" * count)
    (folder / "uses.txt").write_text("the farmer is late\nthe kind farmer\na farmer and a pilot\n")
    choices = '{"question": "the farmer is", "choices": ["kind", "late"], "label": 0}\n'
    (folder / "french.tsv").write_text("good night\tbonne nuit\nmorning\tmatin\n")
    (folder / "questions.jsonl").write_text(choices * 3)
    (folder / "new.txt").write_text("the farmer is late\nthe pilot is kind\n")
    return folder


@pytest.fixture(scope="module")
def _old_bert(desk: Path) -> None:
    """A model as it was saved before safetensors."""
    import torch
    from transformers import BertConfig, BertForPreTraining

    folder = desk / "old-bert"
    folder.mkdir()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c"]
    config = BertConfig(
        vocab_size=len(words), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64
    )
    model = BertForPreTraining(config)
    config.architectures = ["BertForPreTraining"]
    config.save_pretrained(folder)
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")


@pytest.fixture(scope="module")
def _published_elmo(desk: Path, write_elmo: Callable[[Path], None]) -> None:
    write_elmo(desk / "elmo_2x4096")


@pytest.mark.slow
@pytest.mark.usefixtures("_old_bert", "_published_elmo")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_run(
    page: Path, desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from keel.cli import main

    text = page.read_text(encoding="utf-8")
    place = (desk / page.stem).resolve()
    place.mkdir()
    for path in desk.iterdir():
        if path != place and (path.is_file() or path.name in ("old-bert", "elmo_2x4096")):
            (place / path.name).symlink_to(path)
    monkeypatch.chdir(place)
    scope: dict[str, object] = {}
    for language, block in re.findall(r"```(sh|python)\n(.*?)```", text, re.DOTALL):
        if language == "python":
            exec(compile(block, page.name, "exec"), scope)  # the page is the program
            continue
        for line in block.splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["keel"]:
                for long, short in SHORTER.items():
                    line = line.replace(long, short)
                code = main(shlex.split(line, comments=True)[1:])
                said = capsys.readouterr()
                assert code == 0, f"{line}\n{said.out}\n{said.err}"
            elif words:
                assert words[0] in ("make", "torchrun"), f"{page.name}: nothing runs {line!r}"


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    shown = {
        word for page in PAGES for word in re.findall(r"^make (\w+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert shown <= targets
    assert {"demo", "test", "check"} <= targets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert link.startswith("http") or os.path.exists(page.parent / link), f"{page.name} links to {link}"
