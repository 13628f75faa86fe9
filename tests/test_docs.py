"""README and docs are executed: every block runs, with small files and few steps."""

import json
import os
import re
import shlex
import shutil
import socket
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import uvicorn
from fastapi import FastAPI

from keel.systems.family_tree import SHOWN, family_tree

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "README.zh.md", *sorted((ROOT / "docs").glob("*.md"))]
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"])
TINY = "--size tiny --text.vocabulary 400 --system.sequence_length 32 --batch 8"
# Parts of the commands that are replaced, so that they run in a second on the files of `example_files`.
SHORTER = {
    "rnn wiki.txt --minutes": "rnn wiki.txt --system.width 32 --minutes",
    "--minutes 20": "--steps 3",
    "--steps 1000": "--steps 3",
    "keel.Train(minutes=20)": "keel.Train(steps=4, batch=8)",
    " --lr 5e-4 --batch 64": "",
    "nearest river": "nearest farmer",
    "bias --model models/wiki ": "bias --model models/wiki --by attention --pronouns the:a ",
    '--by masked --occupations jobs.txt --pronouns "she:he"': '--by masked --occupations jobs.txt --pronouns "the:a"',
    "bias --model models/words": "bias --model models/words --occupations jobs.txt --pronouns captain:cook",
    'occupations=["farmer", "pilot"]': 'occupations=["farmer", "pilot"], pronouns="the:a"',
    "--top 50000": "--top 300",
    '"king - man + woman"': '"farmer - pilot + the"',
    '"breakfast cereal dinner lunch"': '"farmer pilot the"',
    "elmo wiki.txt": "elmo wiki.txt --batch 8",
    "senses bank": "senses farmer",
    "gpt wiki.txt --size mini": "gpt wiki.txt --size tiny --text.vocabulary 400 --batch 4",
    "ulmfit wiki.txt --size mini": "ulmfit wiki.txt --size tiny --text.vocabulary 400 --system.bptt 32 --batch 8",
    "electra wiki.txt --size small": "electra wiki.txt --system.layers 1 --system.width 64 --batch 8",
    "bert wiki.txt --size mini": f"bert wiki.txt {TINY}",
    "chinese.txt --size mini": f"chinese.txt {TINY}",
    "--task classify": "--task classify --epochs 1",
    "--task pair": "--task pair --epochs 1",
    "--task tag": "--task tag --epochs 1",
    "--task choose --out": "--task choose --epochs 1 --out",
    "--task answer --out": "--task answer --epochs 1 --out",
    "--task seq2seq": "--task seq2seq --epochs 1",
}
# Models that a page uses and does not make: built once for all pages.
MODELS = {
    "models/wiki": f"pretrain bert wiki.txt --steps 3 {TINY}",
    "models/words": "pretrain word2vec wiki.txt --steps 3",
    "models/ngram": "pretrain ngram wiki.txt",
    "models/gpt": "pretrain gpt wiki.txt --steps 3 --size tiny --text.vocabulary 400 --batch 4",
}


TREEBANK = """\
1	the	the	DET	DT	PronType=Art	2	det	_	_
2	farmer	farmer	NOUN	NN	Number=Sing	4	nsubj	_	_
3	is	be	AUX	VBZ	Number=Sing	4	cop	_	_
4	kind	kind	ADJ	JJ	Degree=Pos	0	root	_	_

"""


@pytest.fixture(scope="module")
def example_files(tmp_path_factory: pytest.TempPathFactory, english_corpus: Path) -> Path:
    """A folder with the files that the pages name."""
    folder = tmp_path_factory.mktemp("docs")
    text = english_corpus.read_text(encoding="utf-8")
    (folder / "wiki.txt").write_text(text, encoding="utf-8")
    (folder / "company.txt").write_text("\n\n".join(text.split("\n\n")[:40]), encoding="utf-8")
    rows = ["the farmer is kind\tgood", "the pilot was late\tbad"] * 20
    for name in ("train.tsv", "test.tsv"):
        (folder / name).write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    (folder / "glue" / "RTE").mkdir(parents=True)
    inferences = [f"{n}\tthe farmer is kind {n}\tit rained\t{('', 'not_')[n % 2]}entailment" for n in range(20)]
    for name in ("train.tsv", "dev.tsv"):
        (folder / "glue" / "RTE" / name).write_text(
            "index\tsentence1\tsentence2\tlabel\n" + "\n".join(inferences) + "\n"
        )
    pairs = ["the farmer is kind\tthe farmer is nice\tsame", "the pilot was late\tit rained\tother"] * 20
    (folder / "pairs.tsv").write_text("sentence1\tsentence2\tlabel\n" + "\n".join(pairs) + "\n")
    (folder / "names.conll").write_text("the O\nfarmer B-PER\nis O\nkind O\n\nthe O\npilot B-PER\nleft O\n\n" * 10)
    for name in ("en-train.conllu", "en-test.conllu"):
        (folder / name).write_text(TREEBANK * 15)
    spans = [("the farmer is late", [4, 10], "person"), ("a field", [2, 7], "thing")]
    rows = [json.dumps({"text": text, "span1": span, "label": label}) for text, span, label in spans]
    (folder / "senses.jsonl").write_text("\n".join(rows * 10) + "\n")
    quiz = ['{"context": "the farmer is", "choices": ["kind", "a pilot", "late"], "label": 0}'] * 20
    (folder / "quiz.jsonl").write_text("\n".join(quiz) + "\n")
    question = {"question": "who is kind?", "answers": [{"text": "farmer", "answer_start": 4}]}
    articles = [
        {"title": f"{n}", "paragraphs": [{"context": "the farmer is kind", "qas": [{"id": f"{n}", **question}]}]}
        for n in range(20)
    ]
    (folder / "questions.json").write_text(json.dumps({"data": articles}))
    for name, count in (("train", 20), ("val", 5)):
        for side, words in (("en", "a dog runs"), ("de", "Ein Hund rennt.")):
            (folder / f"{name}.{side}").write_text(f"{words}\n" * count)
    (folder / "jobs.txt").write_text("farmer\npilot\n")
    (folder / "uses.txt").write_text("the farmer is late\nthe kind farmer\na farmer and a pilot\n")
    choices = '{"question": "the farmer is", "choices": ["kind", "late"], "label": 0}\n'
    (folder / "french.tsv").write_text("good night\tbonne nuit\nmorning\tmatin\n")
    (folder / "questions.jsonl").write_text(choices * 3)
    german = [f"Der Bauer {number} wohnt im Tal. Er sieht das Feld." for number in range(40)]
    (folder / "german.txt").write_text("\n\n".join(german) + "\n", encoding="utf-8")
    (folder / "chinese.txt").write_text("农夫住在山谷里。他看见了船。\n\n" * 40, encoding="utf-8")
    (folder / "german.tsv").write_text("good night\tgute Nacht\nmorning\tMorgen\na boat\tein Boot\n", encoding="utf-8")
    rows = ["der Bauer ist nett\tgood", "der Pilot kam spät\tbad"] * 20
    for name in ("train_de.tsv", "test_de.tsv"):
        (folder / name).write_text("text\tlabel\n" + "\n".join(rows) + "\n", encoding="utf-8")
    (folder / "new.txt").write_text("the farmer is late\nthe pilot is kind\n")
    return folder


@pytest.fixture(scope="module")
def build(example_files: Path, write_elmo: Callable[[Path], None]) -> Callable[[str], Path]:
    """Build a model folder that a page uses, once."""

    def build_once(name: str) -> Path:
        folder = example_files / name
        if not folder.exists():
            if name == "old-bert":
                _write_old_bert(folder)
            elif name == "elmo_2x4096":
                write_elmo(folder)
            else:
                from keel.cli import main

                with pytest.MonkeyPatch.context() as patch:
                    patch.chdir(example_files)
                    assert main([*MODELS[name].split(), "--out", name, "--quiet"]) == 0
        return folder

    return build_once


def _write_old_bert(folder: Path) -> None:
    """A folder of BERT from before safetensors."""
    import torch
    from transformers import BertConfig, BertForPreTraining

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


def _shorten(block: str) -> str:
    for long, short in SHORTER.items():
        block = block.replace(long, short)
    return block


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_run(
    page: Path,
    example_files: Path,
    build: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from keel.cli import main

    blocks = re.findall(r"```(sh|python|console)\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    folder = (example_files / page.name).resolve()
    (folder / "models").mkdir(parents=True)
    for path in example_files.iterdir():
        if path.is_file() or path.name == "glue":
            (folder / path.name).symlink_to(path)
    code = "".join(block for _, block in blocks)
    for name in (*MODELS, "old-bert", "elmo_2x4096"):
        if re.search(rf"\b{name}\b", code) and f"--out {name}\n" not in re.sub(r" *#.*", "", code):
            shutil.copytree(build(name), folder / name)
    monkeypatch.chdir(folder)
    monkeypatch.setattr("uvicorn.Server.run", _open_studio)
    monkeypatch.setattr("webbrowser.open", lambda address: True)
    scope: dict[str, object] = {}
    for language, block in blocks:
        if language == "python":
            exec(compile(_shorten(block), page.name, "exec"), scope)  # the page is the program
            continue
        for line, shown in _commands(block, language):
            words = shlex.split(line, comments=True)
            if words[:1] == ["keel"]:
                code = main(shlex.split(_shorten(line), comments=True)[1:])
                output = capsys.readouterr()
                assert code == 0, f"{line}\n{output.out}\n{output.err}"
                assert shown is None or _agree(output.out, shown), f"{line} prints\n{output.out}"
            elif words[:2] == ["pip", "install"]:
                assert set(re.findall(r"\w+", "".join(re.findall(r"\[(.*?)\]", line)))) <= EXTRAS, line
            elif words:
                assert words[0] in ("make", "torchrun"), f"{page.name}: nothing runs {line!r}"


def _commands(block: str, language: str) -> list[tuple[str, str | None]]:
    """Each command of a block; of a console block, with the output that is shown below it."""
    if language == "sh":
        return [(line, None) for line in block.splitlines()]
    return [(command, shown) for command, _, shown in (part.partition("\n") for part in block.split("$ ")[1:])]


def _agree(printed: str, shown: str) -> bool:
    """Whether an output is the one on the page: equal words, numbers within 2%, as other machines round otherwise."""
    words, expected = printed.split(), shown.split()
    return len(words) == len(expected) and all(map(_equal, words, expected))


def _equal(word: str, expected: str) -> bool:
    try:
        return float(word.rstrip("%")) == pytest.approx(float(expected.rstrip("%")), rel=0.02)
    except ValueError:
        return word == expected


def _open_studio(server: uvicorn.Server, sockets: list[socket.socket]) -> None:
    """In place of serving until Ctrl-C: one request for the page."""
    from fastapi.testclient import TestClient

    assert isinstance(server.config.app, FastAPI)
    host, port = sockets[0].getsockname()
    with TestClient(server.config.app, base_url=f"http://{host}:{port}") as client:
        assert "<html" in client.get("/").text


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    shown = {
        word for page in PAGES for word in re.findall(r"^make ([\w-]+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert shown <= targets
    assert {"demo", "check", "test-fast", "test", "test-all"} <= targets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert link.startswith("http") or os.path.exists(page.parent / link), f"{page.name} links to {link}"


def test_layer_diagram_is_true() -> None:
    """CONTRIBUTING shows the layers that import-linter checks."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    diagram = re.search(r"<!-- layers -->\n```\n(.*?)```", page, re.DOTALL)
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = next(c["layers"] for c in settings["tool"]["importlinter"]["contracts"] if c["id"] == "layers")
    assert diagram
    assert diagram[1].splitlines() == [re.sub(r"[()]", "", layer) for layer in layers]


def test_family_tree_is_current() -> None:
    assert SHOWN.findall((ROOT / "README.md").read_text(encoding="utf-8")) == [family_tree()]
