"""README and docs are executed: every block runs, with small files and few steps."""

import json
import re
import shlex
import shutil
import socket
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import uvicorn
from fastapi import FastAPI

from keel.systems.family_tree import SHOWN, family_tree

ROOT = Path(__file__).parent.parent
CHINESE_PAGES = [ROOT / "README.zh.md", *sorted((ROOT / "docs" / "zh").glob("*.md"))]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *CHINESE_PAGES]
# README.zh.md runs the same command.
SLOW = [ROOT / "docs" / "zh" / "compare.md"]
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"])
TINY = "--size tiny --text.vocabulary 400 --system.sequence_length 32 --batch 8"
# Parts of the commands that are replaced, so that they run in a second on small files.
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
    "--system.layers 12 --system.width 384": "--system.layers 1 --system.width 64 --batch 8",
    "ernie chinese.txt --size small": f"ernie chinese.txt {TINY}",
    "bert wiki.txt --size mini": f"bert wiki.txt {TINY}",
    "chinese.txt --size mini": f"chinese.txt {TINY}",
    "--task classify": "--task classify --epochs 1",
    "--task pair": "--task pair --epochs 1",
    "--task tag": "--task tag --epochs 1",
    "--task choose --out": "--task choose --epochs 1 --out",
    "--task answer --out": "--task answer --epochs 1 --out",
    "train.en train.de --": "train.en train.de --epochs 1 --",
    "train.en train.zh --": "train.en train.zh --epochs 1 --",
    "couplets.tsv --size tiny": "couplets.tsv --size tiny --epochs 1",
    "--system.width 64 --system.dropout 0 --steps 200": "--system.width 64 --system.dropout 0 --steps 20",
    # Bundled encoders are fine-tuned by the commands alone, in one epoch.
    "fasttext english --train": "fasttext models/wiki --train",
    "english-words english --train": "english-words models/wiki --train",
    "chinese-words chinese --train": "chinese-words models/wiki --train",
    'keel.finetune("english", ': 'keel.finetune("english-words", ',
    'keel.finetune("chinese", ': 'keel.finetune("chinese-words", ',
    "word2vec msra/train.txt": "word2vec msra/train.txt --head.network_width 16 --window-ngrams 1000",
    # Chinese pages; `chinese` itself is fine-tuned in README.zh.md.
    "ernie wiki.txt --size mini": f"ernie wiki.txt {TINY}",
    "en:english.txt zh:wiki.txt --size mini": f"en:english.txt zh:wiki.txt {TINY}",
    "bias --model chinese": "bias --model chinese --occupations jobs.txt",
    **{
        f"finetune chinese {data}": f"finetune models/wiki {data}"
        for data in ("chnsenticorp", "msra", "ocnli", "pku", "cmrc2018")
    },
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
def english_files(tmp_path_factory: pytest.TempPathFactory, english_corpus: Path) -> Path:
    """A folder with the files that the English pages name."""
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


CAPITALS = (("北京", "中国"), ("东京", "日本"), ("巴黎", "法国"), ("罗马", "意大利"))
REVIEWS = (
    ("1", "房间很干净，早餐也好吃。"),
    ("0", "房间太小，服务员很冷淡。"),
    ("1", "下次还来。"),
    ("0", "电池不耐用。"),
)
MSRA = "李 B-PER\n华 I-PER\n住 O\n在 O\n杭 B-LOC\n州 I-LOC\n。 O\n\n船 O\n长 O\n修 O\n理 O\n帆 O\n船 O\n。 O\n\n"
SEGMENTED = "船长  在  早上  修理  帆船  。\n李华  住  在  杭州  。\n律师  阅读  合同  。\n"
PASSAGE = "李华一九九八年搬到了杭州，在那里开了一家书店。"


@pytest.fixture(scope="module")
def chinese_files(tmp_path_factory: pytest.TempPathFactory, chinese_corpus: Path, english_corpus: Path) -> Path:
    """A folder with the files that the Chinese pages name, in the formats of the published data sets."""
    folder = tmp_path_factory.mktemp("docs-zh")

    def write(name: str, text: str, encoding: str = "utf-8") -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding=encoding)

    def as_json(rows: Sequence[object]) -> str:
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)

    text = chinese_corpus.read_text(encoding="utf-8")
    documents = text.split("\n\n")
    write("wiki.txt", "".join(f"{city}是{country}的首都。\n\n" * 10 for city, country in CAPITALS) + text)
    write("company.txt", "\n\n".join(documents[:12]) + "\n")
    write("gb18030.txt", "\n\n".join(documents[:40]) + "\n", "gb18030")
    write("english.txt", "\n\n".join(english_corpus.read_text(encoding="utf-8").split("\n\n")[:60]) + "\n")
    write("names.txt", "王老师\n张医生\n植物学家\n")
    write("jobs.txt", "护士\n医生\n")
    write("new.txt", "房间很干净。\n电池太小。\n")
    write("uses.txt", "他们沿着河边往前行走。\n这件事还是行不通。\n这家银行今天不营业。\n")
    for name in ("train", "test"):
        write(f"{name}.tsv", "text\tlabel\n" + "".join(f"{review}\t{label}\n" for label, review in REVIEWS * 6))
    for name in ("train", "dev", "test"):
        rows = "".join(f"{label}\t{review}\n" for label, review in REVIEWS * 6)
        write(f"chnsenticorp/{name}.tsv", "label\ttext_a\n" + rows)
    write("english.tsv", "text\tlabel\n" + "a clean room\t1\na cold waiter\t0\n" * 10)
    write("phrases.tsv", "晚安\tgood night\n早晨\tmorning\n一条船\ta boat\n")
    pairs = [
        ("李华在睡觉", "李华醒着", "contradiction"),
        ("李华在跑步", "李华在运动", "entailment"),
        ("下雨了", "天冷", "-"),
    ]
    for name in ("train.50k", "dev"):
        rows = [
            {"sentence1": one, "sentence2": two, "label": label, "id": n} for n, (one, two, label) in enumerate(pairs)
        ]
        write(f"ocnli/{name}.json", as_json(rows * 8))
    write("pairs.tsv", "sentence1\tsentence2\tlabel\n" + "怎么退货\t如何退货\t1\n怎么退货\t几点开门\t0\n" * 10)
    for name in ("train", "test"):
        write(f"msra/{name}.txt", MSRA * 10)
    write("pku/pku_training.utf8", SEGMENTED * 8)
    write("pku/pku_test_gold.utf8", SEGMENTED)
    question = {"question": "李华搬到了哪里？", "answers": [{"text": "杭州", "answer_start": PASSAGE.index("杭州")}]}
    for name in ("train", "dev"):
        passages = [{"id": f"{n}", "context": PASSAGE, "qas": [{"id": f"{n}_0", **question}]} for n in range(12)]
        articles = [{"id": "", "title": "", "paragraphs": [passage]} for passage in passages]
        write(f"cmrc2018/{name}.json", json.dumps({"version": "v1.0", "data": articles}, ensure_ascii=False))
    quiz = {"question": "船长早上修理什么？", "choices": ["帆船", "面包", "合同"], "label": 0}
    for name in ("quiz", "questions"):
        write(f"{name}.jsonl", as_json([quiz] * 12))
    similar = "".join(f"{city}\t{country}\t{8 - n}\n" for n, (city, country) in enumerate(CAPITALS))
    analogies = "".join(f"北京 中国 {city} {country}\n" for city, country in CAPITALS[1:])
    for name, content in (
        ("wordsim/240", similar),
        ("wordsim/297", similar),
        ("CA8/semantic", f": capital\n{analogies}"),
    ):
        write(f"{name}.txt", content)
    write("CA8/morphological.txt", f": A\n{analogies}")
    shutil.copy(ROOT / "docs" / "zh" / "couplets.tsv", folder)
    write("couplets.txt", "白日依山尽\n明月松间照\n")
    write("train.en", "the farmer is kind\nthe pilot was late\n" * 6)
    write("train.zh", "农民很和善。\n领航员迟到了。\n" * 6)
    return folder


@pytest.fixture(scope="module")
def build(write_elmo: Callable[[Path], None]) -> Callable[[Path, str], Path]:
    """Build a model folder that a page uses beside its files, once."""

    def build_once(files: Path, name: str) -> Path:
        folder = files / name
        if not folder.exists():
            if name == "old-bert":
                _write_old_bert(folder)
            elif name == "elmo_2x4096":
                write_elmo(folder)
            else:
                from keel.cli import main

                with pytest.MonkeyPatch.context() as patch:
                    patch.chdir(files)
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


def _page_id(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.slow) if page in SLOW else page for page in PAGES], ids=_page_id
)
def test_blocks_run(
    page: Path,
    build: Callable[[Path, str], Path],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from keel.cli import main

    blocks = re.findall(r"```(sh|python|console)\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    files: Path = request.getfixturevalue("chinese_files" if page in CHINESE_PAGES else "english_files")
    built = (*MODELS, "old-bert", "elmo_2x4096")
    for path in files.iterdir():
        if path.name not in {Path(name).parts[0] for name in built}:
            (tmp_path / path.name).symlink_to(path)
    code = _shorten("".join(block for _, block in blocks))
    for name in built:
        if re.search(rf"\b{name}\b", code) and f"--out {name}\n" not in re.sub(r" *#.*", "", code):
            shutil.copytree(build(files, name), tmp_path / name)
    monkeypatch.chdir(tmp_path)
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


@pytest.mark.parametrize("page", PAGES, ids=_page_id)
def test_links_lead_somewhere(page: Path) -> None:
    for link, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]+))?\)", page.read_text(encoding="utf-8")):
        if link.startswith("http"):
            continue
        target = page.parent / link if link else page
        assert target.exists(), f"{page.name} links to {link}"
        assert not anchor or anchor in _anchors(target), f"{page.name} links to {link}#{anchor}"


def _anchors(page: Path) -> set[str]:
    """Anchors of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [page for page in CHINESE_PAGES if page.parent.name == "zh"], ids=_page_id)
def test_chinese_page_is_listed(page: Path) -> None:
    """README.zh names every Chinese page."""
    assert f"]({page.relative_to(ROOT).as_posix()}" in (ROOT / "README.zh.md").read_text(encoding="utf-8")


def test_layer_diagram_is_true() -> None:
    """CONTRIBUTING shows the layers that import-linter checks."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    diagram = re.search(r"<!-- layers -->\n```\n(.*?)```", page, re.DOTALL)
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = next(c["layers"] for c in settings["tool"]["importlinter"]["contracts"] if c["id"] == "layers")
    assert diagram
    assert diagram[1].splitlines() == [re.sub(r"[()]", "", layer) for layer in layers]


def test_family_tree_is_current() -> None:
    for name in ("README.md", "README.zh.md"):
        assert SHOWN.findall((ROOT / name).read_text(encoding="utf-8")) == [family_tree()], name
