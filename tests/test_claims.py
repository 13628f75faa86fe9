"""Claims: every page is the output of its experiment."""

import json
import re
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import keel
from keel import claims
from keel.claims import (
    CLAIMS,
    ablation_claims,
    bert_claims,
    head_claims,
    layer_claims,
    similarity_claims,
    small_models,
    task_claims,
    write_pages,
)
from keel.claims.annotated_sentences import NOUNS, AnnotatedSentence, Relation, generate_references, read_treebank
from keel.claims.claim import Picture, Say, Verdict
from keel.claims.example_texts import Language
from keel.claims.opinion_texts import OPINIONS, generate_opinions
from keel.claims.probing_claims import mean_layer_of_gains
from keel.claims.prompt_claims import RELATIONS
from keel.cli import main
from keel.data.token_batch import TokenBatch
from keel.demo.docstrings import Docstring
from keel.errors import UsageError
from keel.events import Event, ignore
from keel.nn.encoder import Recorder
from keel.nn.transformer_blocks import TransformerBlock
from keel.report.html_page import tag

PAGES = {int(path.stem): path for path in (Path(__file__).parent.parent / "docs" / "claims").glob("[0-9]*.md")}
FIGURES = Path(__file__).parent.parent / "docs" / "claims" / "figures"
SECONDS = [number for number, claim in CLAIMS.items() if claim.minutes <= 0.2]
MINUTE = [number for number, claim in CLAIMS.items() if 0.2 < claim.minutes <= write_pages.LONGEST]


def test_every_claim_has_a_page() -> None:
    assert PAGES.keys() == CLAIMS.keys()


@pytest.mark.parametrize("number", PAGES)
def test_page_has_all_sections(number: int) -> None:
    text = PAGES[number].read_text(encoding="utf-8")
    assert PAGES[number].name == write_pages.page_name(number)
    assert text.startswith(f"# {number}. {CLAIMS[number].title}\n")
    assert f"    keel claim {number}\n" in text
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["Claim", "Experiment", "Result", "Discussion"]
    assert re.search(r"\*\*(Holds|Does not hold|Not decided)", text)
    assert write_pages.is_recorded(text) or CLAIMS[number].minutes <= write_pages.LONGEST
    assert ("minute" in text) == (CLAIMS[number].minutes > 0.2), "a page names the run time"


FALSE = (52, 55, 93)
"""Claims that do not hold: no head of the bundled model is like that of the figure, each layer has its own K and V, and
[CLS] must keep its position."""


@pytest.mark.parametrize("number", [*SECONDS, *(pytest.param(number, marks=pytest.mark.slow) for number in MINUTE)])
def test_page_is_the_output_of_its_command(number: int) -> None:
    events: list[Event] = []
    verdict = claims.run(number, on_event=events.append)
    assert verdict is not None
    if number in SECONDS:
        assert verdict.holds == (number not in FALSE)
    assert len(verdict.rows) > 1
    assert [event["text"] for event in events if event["event"] == "row"] == verdict.lines()
    assert events[0]["text"] == f"{number}. {CLAIMS[number].title}"
    page = PAGES[number].read_text(encoding="utf-8")
    if write_pages.is_recorded(page):
        return
    written = write_pages.render_page(page, number, verdict)  # with links to all figures
    assert not [*write_pages.page_differences(page, written, timed=CLAIMS[number].timed)]


def test_figures_of_pages() -> None:
    linked = [name for path in PAGES.values() for name in re.findall(r"\(figures/(.*)\)", path.read_text("utf-8"))]
    files = {path.name: path for path in FIGURES.iterdir()}
    assert sorted(linked) == sorted(files)
    for name, path in files.items():
        assert path.stat().st_size < 100_000, name
        assert ElementTree.parse(path).getroot().tag.endswith("svg")


def test_pages_are_compared_with_a_tolerance_of_numbers() -> None:
    def differences(one: str, other: str, **settings: bool) -> int:
        return len([*write_pages.page_differences(one, other, **settings)])

    assert differences("right 98% by 3e-07", "right 97% by 9e-08") == 0
    assert differences("right 98%", "right 58%") == 1
    assert differences("takes 98 ms", "takes 58 ms", timed=True) == 0
    assert differences("right 98%", "wrong 98%", timed=True) == 1
    assert differences("one\ntwo", "one") == 1


def test_write_pages_replaces_title_and_result(tmp_path: Path) -> None:
    path = tmp_path / "041.md"
    path.write_text(
        "# old title\n\n## Claim\n\nText.\n\n## Result\n\nold\n\n## Discussion\n\nMore.\n", encoding="utf-8"
    )
    write_pages.main(["41", "--folder", str(tmp_path)])
    text = path.read_text(encoding="utf-8")
    assert text.startswith(f"# 41. {CLAIMS[41].title}\n\n## Claim\n\nText.\n\n## Result\n\n```text\n   d ")
    assert text.endswith("\n\n## Discussion\n\nMore.\n")
    assert "old title" not in text
    assert "\nold\n" not in text
    path.write_text("# 41. no result\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"041\.md needs one section"):
        write_pages.main(["41", "--folder", str(tmp_path)])


def test_results_of_several_models_are_in_one_page(tmp_path: Path) -> None:
    page = "# 41. title\n\n## Claim\n\n## Result\n\nold\n\n## Discussion\n\nMore.\n"
    one, two, other = (Verdict(True, figures, ("a row",)) for figures in ("first", "second", "third"))
    other = replace(other, pictures=(Picture("grid", tag("svg"), "All heads."),))
    for verdict, recorded in ((one, ""), (one, "MiniLM (BERT)"), (two, "MiniLM (BERT)"), (other, "chinese"), (two, "")):
        page = write_pages.render_page(page, 41, verdict, recorded)
    result = page.partition("## Result\n")[2].partition("## Discussion")[0]
    assert re.findall(r"\*\*Holds\*\*: (\w+)|^### (.*)$", result, re.MULTILINE) == [
        ("second", ""), ("", "Recorded with MiniLM (BERT)"), ("second", ""),
        ("", "Recorded with chinese"), ("third", ""),
    ]  # fmt: skip
    assert "(figures/041-chinese-grid.svg)\n\nAll heads.\n" in result
    assert not write_pages.is_recorded(page)
    assert write_pages.is_recorded(page.replace("## Result\n", "## Result\n\nRecorded: one GPU.\n"))
    with pytest.raises(SystemExit):
        write_pages.main(["41", "--folder", str(tmp_path), "--model", "chinese"])


@pytest.mark.parametrize(
    ("wrong", "holds"),
    [
        ({"parts of speech": (0, 60), "senses": (60, 0)}, True),
        ({"parts of speech": (0, 60), "senses": (2, 1)}, None),  # a difference of one answer is not significant
        ({"parts of speech": (0, 60), "senses": (0, 60)}, False),
    ],
)
def test_layers_must_differ_significantly(
    wrong: dict[str, tuple[int, int]], holds: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = {name: layer_claims.WordTask([], [], [number % 4 // 2 for number in range(600)]) for name in wrong}

    def features(_: object, question: layer_claims.WordTask) -> torch.Tensor:
        signs = 2.0 * torch.tensor(question.answers) - 1
        found = torch.stack([torch.ones(600), signs, signs], 1)
        mistaken = next(wrong[name] for name, each in tasks.items() if each is question)
        for layer, count in enumerate(mistaken, 1):
            found[1 : 2 * count : 2, layer] *= -1  # test examples
        return found[..., None] + torch.randn(600, 3, 4, generator=torch.Generator().manual_seed(0)) / 100

    monkeypatch.setattr(layer_claims, "_model_and_tasks", lambda: (None, tasks))
    monkeypatch.setattr(layer_claims, "_features", features)
    verdict = layer_claims.which_layer(Say(ignore))
    assert verdict.holds is holds
    assert "layer 1 is 20.0 (15.7 to 24.7) points above layer 2 in parts of speech" in verdict.figures
    if holds is False:
        assert "layer 2 is 20.0 (15.7 to 24.7) points below layer 1 in senses" in verdict.figures


def results(scores: dict[str, tuple[float, ...]], items: int = 1000) -> SimpleNamespace:
    """A comparison of systems by their accuracy on each test set, with two seeds."""
    random = np.random.default_rng(0)
    columns = tuple(range(len(next(iter(scores.values())))))
    cells = {}
    for row, accuracies in scores.items():
        for column, accuracy in zip(columns, accuracies, strict=True):
            right = random.random((2, items)) < accuracy
            score = keel.Score(value=right.mean(), low=0.0, high=1.0)
            result = SimpleNamespace(by_item=right.mean(0), by_seed=right.mean(1).tolist())
            cells[row, column] = SimpleNamespace(row=row, score=score, result=result)
    return SimpleNamespace(rows=tuple(scores), columns=columns, cell=lambda row, column: cells[row, column])


@pytest.mark.parametrize(
    ("network", "bert", "holds"),
    [
        ((0.8, 0.6), (0.8, 0.79), True),
        ((0.8, 0.6), (0.8, 0.6), None),  # both lose
        ((0.8, 0.79), (0.8, 0.6), False),  # BERT loses more
        ((0.6, 0.8), (0.6, 0.8), False),  # the other data set is easier
    ],
)
def test_loss_on_another_data_set(
    network: tuple[float, float], bert: tuple[float, float], holds: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_claims, "read_docstrings", lambda say: [])
    monkeypatch.setattr(task_claims, "pretrained_by_demo", lambda docstrings, say: {"word2vec": "w", "bert": "b"})
    monkeypatch.setattr(task_claims, "_summaries", lambda docstrings, held_out, count: [])
    found = results({"cnn": network, "bert": bert})
    monkeypatch.setattr(task_claims, "stored_comparison", lambda *args, **settings: found)
    verdict = claims.run(118)
    assert verdict is not None
    assert verdict.holds is holds, verdict.figures
    assert len(verdict.rows) == 3


def test_the_interval_of_a_loss_accounts_for_few_seeds() -> None:
    """Two seeds whose losses are 10 and 30 points: the interval is nearly that of Student's t with one degree."""
    found = results({"cnn": (0.5, 0.5)}, items=100_000)
    for column, seeds in enumerate([[0.8, 0.9], [0.7, 0.6]]):
        found.cell("cnn", column).result.by_seed = seeds
    loss = task_claims._loss(found, "cnn")  # pyright: ignore[reportArgumentType]
    assert loss.high - loss.value == pytest.approx(0.1 * stats.t.ppf(0.975, 1), rel=0.01)
    assert loss.value - loss.low == pytest.approx(loss.high - loss.value)


@pytest.mark.parametrize(
    ("better", "holds"), [(["bert", "bert"], True), (["bert", ""], None), (["bert", "onehot"], False)]
)
def test_bert_must_be_ahead_of_every_system(
    better: list[str], holds: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = results({"onehot": (0.5, 0.5), "bert": (0.5, 0.5)})
    pairs = [SimpleNamespace(first="onehot", second="bert", better=each) for each in better]
    other = SimpleNamespace(first="onehot", second="word2vec", better="onehot")  # not about BERT
    found.tests = lambda column: [pairs[column], other]
    found.ranking = lambda column: [found.cell(row, column) for row in found.rows]
    monkeypatch.setattr(task_claims, "read_docstrings", lambda say: [])
    monkeypatch.setattr(task_claims, "pretrained_by_demo", lambda docstrings, say: {"word2vec": "w", "bert": "b"})
    monkeypatch.setattr(task_claims, "package_sentences", lambda docstrings, count, say: ([], []))
    monkeypatch.setattr(task_claims, "_summaries", lambda docstrings, held_out, count: [])
    monkeypatch.setattr(task_claims, "stored_comparison", lambda *args, **settings: found)
    verdict = claims.run(117)
    assert verdict is not None
    assert verdict.holds is holds
    assert f"ahead in {better.count('bert')} and behind in {better.count('onehot')}" in verdict.figures


def test_a_comparison_with_a_failed_cell_is_no_result(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    failed = [SimpleNamespace(row="fasttext", error="out of memory")]
    monkeypatch.setenv("KEEL_CACHE", str(tmp_path))
    monkeypatch.setattr(keel, "compare", lambda *_, **__: SimpleNamespace(failed=lambda: failed))
    with pytest.raises(keel.KeelError, match=r"fasttext.*out of memory"):
        small_models.stored_comparison("some", ["fasttext"], Say(ignore), train=[], test=[])
    failed.clear()
    assert small_models.stored_comparison("some", ["fasttext"], Say(ignore), train=[], test=[])


def test_first_sentences_are_in_one_split() -> None:
    docstrings = [
        Docstring("torch", (f"Return number {n}.", f"It is {n}.", "More.")) for n in range(60)
    ] + [Docstring("torch", ("Return it.", f"Twice {n}.")) for n in range(60)]  # fmt: skip
    train = task_claims._summaries(docstrings, held_out=False, count=15)
    test = task_claims._summaries(docstrings, held_out=True, count=10)
    assert {kind for text, kind in train if text.startswith("Return")} == {"first"}
    assert {kind for text, kind in train if text.startswith(("It is", "Twice"))} == {"later"}
    assert not {text for text, _ in train} & {text for text, _ in test}
    assert "Return it." not in dict(train + test)


def test_models_are_cached_by_text_and_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    learned: list[Path] = []

    def pretrain(system: keel.Bert, corpus: keel.Corpus, *, out: Path, **_: object) -> None:
        learned.append(out)
        out.mkdir(parents=True)
        (out / "config.json").write_text("{}")

    monkeypatch.setattr(keel, "pretrain", pretrain, raising=False)
    monkeypatch.setattr(keel.Model, "load", lambda folder: folder)
    events: list[Event] = []
    say = Say(events.append)
    texts = [[Docstring("numpy", (f"Sentence {n} of {name}.", "Another one.")) for n in range(9)] for name in "ab"]
    first = small_models.learn_docstrings(texts[0], next_sentence=True, say=say)
    assert small_models.learn_docstrings(texts[0], next_sentence=True, say=say) == first == learned[-1]
    small_models.learn_docstrings(texts[1], next_sentence=True, say=say)
    small_models.learn_docstrings(texts[0], next_sentence=False, say=say)
    monkeypatch.setattr(small_models, "SMALL", replace(small_models.SMALL, width=64))
    small_models.learn_docstrings(texts[0], next_sentence=True, say=say)
    assert len(learned) == len(set(learned)) == 4
    assert len(events) == 4
    assert not say.rows, "progress is not part of the result"


def test_ngram_orders(monkeypatch: pytest.MonkeyPatch, english_corpus: Path) -> None:
    texts = english_corpus.read_text(encoding="utf-8").split("\n\n")
    docstrings = [Docstring("numpy", tuple(text.splitlines())) for text in texts]
    monkeypatch.setattr("keel.claims.language_model_claims.read_docstrings", lambda say: docstrings)
    verdict = claims.run(27)
    assert verdict is not None
    assert [row.split(":")[0] for row in verdict.rows] == [f"order {order}" for order in range(1, 6)]
    assert "possible" in verdict.rows[0]


def tiny_bert(words: str) -> keel.Model:
    torch.manual_seed(0)
    system = keel.Bert(layers=2, width=16, head_dim=8, max_positions=32, sequence_length=32)
    tokenizer = keel.Tokenizer.from_words(words.split())
    return keel.Model(system=system, encoder=system.build_encoder(len(tokenizer)).eval(), tokenizer=tokenizer)


class FixedAttention(nn.Module):
    """Stands in for an encoder: head 1 attends to the token before, head 2 to the token after, head 3 to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, batch: TokenBatch, *, record: Recorder) -> None:
        length = batch.ids.shape[1]
        shifted = [torch.eye(length).roll(shift, 1) for shift in (-1, 1, 0)]
        record("attention", 0, torch.stack(shifted).expand(len(batch.ids), -1, -1, -1))


def test_heads_are_scored_by_the_word_they_attend_to_most() -> None:
    model = tiny_bert("a b c d e")
    model.encoder = FixedAttention()  # pyright: ignore[reportAttributeAccessIssue]
    sentences = [
        AnnotatedSentence([*"abcde"], [Relation("next", 0, 1), Relation("next", 3, 4), Relation("far", 4, 0)]),
        AnnotatedSentence([*"abc"], [Relation("next", 0, 2)]),
        AnnotatedSentence(["a"], [Relation("next", 0, 0)]),  # too short for a relation
    ]
    found = head_claims.relation_hits(model, sentences)
    assert found.counts == {"next": 3, "far": 1}
    assert found.heads["next"].tolist() == [[[0, 2, 0]], [[2, 0, 0]]]  # [directions, layers, heads]
    assert found.heads["far"].sum() == 0
    offsets = found.offsets["next"][0]
    assert offsets[head_claims.OFFSETS.index(1)] == 2
    assert offsets[head_claims.OFFSETS.index(2)] == 1


def test_attention_between_words_of_several_tokens() -> None:
    model = keel.Model.load("chinese")
    words = ["昨天", "老师", "找到", "了", "照片"]
    ((number, weights),) = head_claims.word_attention(model, [words])
    view = keel.attention("".join(words), model=model)
    groups = [[1, 2], [3, 4], [5, 6], [7], [8, 9]]
    expected = [[view.weights[:, :, i][..., j].sum(-1).mean(-1) for j in groups] for i in groups]
    assert number == 0
    np.testing.assert_allclose(weights, np.moveaxis(np.array(expected), (0, 1), (2, 3)), atol=1e-6)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_pronouns_agree_with_one_noun_only(language: Language) -> None:
    first, second = (generate_references(language, 50, half, Random(0)) for half in (0, 1))
    nouns = [{each.words[noun] for each in half for noun in each.nouns} for half in (first, second)]
    assert not nouns[0] & nouns[1]
    for each in first + second:
        kinds = [
            next(kind for kind, known in NOUNS[language].items() if each.words[n] in known.split()) for n in each.nouns
        ]
        assert each.words[each.pronoun] == kinds[each.antecedent] != kinds[1 - each.antecedent]
    assert sum(each.antecedent for each in first) == 25


def test_treebank_of_a_claim(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no file \*dev\*\.conllu.*dev and test files"):
        read_treebank(tmp_path, "dev")
    lines = [
        "# text",
        "1\tdogs\t_\tN\t_\t_\t2\tnsubj:pass\t_\t_",
        "1.1\tx" + "\t_" * 8,
        "2\tbark\t_\tV\t_\t_\t0\troot\t_\t_",
    ]
    (tmp_path / "x-dev.conllu").write_text("\n".join([*lines, "3\t!\t_\tP\t_\t_\t2\tpunct\t_\t_", "", *lines[1:]]))
    one, two = read_treebank(tmp_path, "dev")
    assert one == AnnotatedSentence(["dogs", "bark", "!"], [Relation("nsubj", 0, 1)])
    assert two.words == ["dogs", "bark"]
    with pytest.raises(UsageError, match="give data FOLDER with a treebank"):
        claims.run(128, model=tiny_bert("a b"))


def test_claims_about_bert_refuse_other_models() -> None:
    system = keel.Gpt(layers=1, width=16, head_dim=16, max_positions=64, sequence_length=64)
    tokenizer = keel.Tokenizer.from_words(["a", "b"])
    model = keel.Model(system=system, encoder=system.build_encoder(len(tokenizer)).eval(), tokenizer=tokenizer)
    for number in (44, 51, 87, 94):
        with pytest.raises(UsageError, match="the model is gpt: choose bert or electra"):
            claims.run(number, model=model)


def test_opinions_of_the_test_have_words_of_their_own() -> None:
    texts = [generate_opinions(60, half, Random(half)) for half in (0, 1)]
    words = [{phrase.split()[1] for text, _ in each for phrase in text.split(" , ")} for each in texts]
    assert not words[0] & words[1]
    positive = OPINIONS["positive"].split()
    for text, label in texts[0]:
        count = sum(phrase.split()[1] in positive for phrase in text.split(" , "))
        assert (count == 2) == (label == "positive")


def test_claims_on_reviews_need_their_files(tmp_path: Path) -> None:
    for number in (132, 136):
        with pytest.raises(UsageError, match="give data FOLDER"):
            claims.run(number, model=tiny_bert("a b"))
        with pytest.raises(UsageError, match=r"has no file train\.tsv.*: use data"):
            claims.run(number, model=tiny_bert("a b"), data=tmp_path)
    with pytest.raises(UsageError, match="give data FOLDER with squad"):
        claims.run(141, model=tiny_bert("a b"))


def test_triples_of_two_similarities() -> None:
    pairs = [["king", "queen"], ["man", "woman"]]
    both = {"king": (1, 0, 1, 0), "queen": (1, 0, 0, 1), "man": (0, 1, 1, 0), "woman": (0, 1, 0, 1)}
    assert similarity_claims._triples(pairs, {word: np.array(each) for word, each in both.items()}).tolist() == [1] * 4
    one = {word: np.array([each[0], each[1]]) for word, each in both.items()}
    assert similarity_claims._triples(pairs, one).tolist() == [0] * 4


def test_a_skipped_sublayer_leaves_the_residual_connection() -> None:
    block = tiny_bert("a b").encoder.blocks()[0]
    assert isinstance(block, TransformerBlock)
    vectors = torch.randn(1, 3, 16)
    with torch.no_grad(), ablation_claims._skipped([block.attention, block.contract]):
        skipped = block(vectors, None)
        torch.testing.assert_close(skipped, block.output_norm(block.attention_norm(vectors)))
    with torch.no_grad():
        assert not torch.allclose(block(vectors, None), skipped)


def test_list_of_claims() -> None:
    messages: list[str] = []
    assert claims.run(on_event=lambda event: messages.append(event["text"])) is None
    for number, claim in CLAIMS.items():
        assert any(str(number) in line and claim.title in line for line in messages)
    for number, time in ((1, "seconds"), (19, "half a minute"), (31, "1 minute"), (59, "2 minutes")):
        assert any(line.startswith(f"{number:4} ") and line.endswith(f"({time})") for line in messages)


def test_model_card_names_word2vec() -> None:
    assert small_models.pretrain_tiny(keel.Word2vec(width=4), ["a bank"] * 9, epochs=1).card.title == "word2vec"


def test_unknown_number_suggests_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"nearest is 6 \(.*`keel claim` lists"):
        claims.run(7)


def test_claim_accepts_a_model(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"omit model \(accepted by .*69.*107.*\)"):
        claims.run(41, model=tmp_path)
    with pytest.raises(UsageError, match=r"omit data \(accepted by .*69.*107.*\)"):
        claims.run(41, data=tmp_path)
    system = keel.Rnn(width=8, layers=2, dropout=0.0)
    tokenizer = keel.Tokenizer.from_words(["the", "dog", "barks", "a", "bank"])
    model = keel.Model(system=system, encoder=system.build_encoder(len(tokenizer)).eval(), tokenizer=tokenizer)
    with pytest.raises(UsageError, match="give data FOLDER"):
        claims.run(69, model=model)
    with pytest.raises(UsageError, match=r"has no file \*train\*\.conllu"):
        claims.run(69, model=model, data=tmp_path)
    (tmp_path / "ud_english_ewt").mkdir()
    tagged = {"The": "DET", "dog": "NOUN", "barks": "VERB"}
    words = [f"{number}\t{word}\t_\t{tag}" + "\t_" * 6 for number, (word, tag) in enumerate(tagged.items(), 1)]
    (tmp_path / "ud_english_ewt" / "en-train.conllu").write_text("\n".join(["# a comment", *words, "\n"]) * 40)
    (tmp_path / "wic" / "train").mkdir(parents=True)
    (tmp_path / "wic" / "train" / "train.data.txt").write_text("bank\tN\t1-2\tthe bank\tthe dog bank\n" * 40)
    (tmp_path / "wic" / "train" / "train.gold.txt").write_text("T\nF\nT\nT\n" * 10)
    verdict = claims.run(69, model=model, data=tmp_path)
    assert verdict is not None
    assert verdict.rows[0].startswith("parts of speech: weights ")
    assert verdict.rows[1].startswith("senses: weights ")


def test_contradictory_spans_of_a_given_model(tmp_path: Path) -> None:
    system = keel.Bert(layers=1, width=16, head_dim=16, max_positions=32, sequence_length=32)
    tokenizer = keel.Tokenizer.from_words(["anna", "ben", "lives", "in", "oslo", "rome", "where", "?"])
    model = keel.Model(system=system, encoder=system.build_encoder(len(tokenizer)).eval(), tokenizer=tokenizer)
    with pytest.raises(UsageError, match="give data FOLDER with squad"):
        claims.run(107, model=model)
    with pytest.raises(UsageError, match=r"has no file dev-v2\.0"):
        claims.run(107, model=model, data=tmp_path)
    passage = "anna lives in oslo"
    questions = [
        {"question": "where anna ?", "id": "{}-1", "answers": [{"text": "oslo", "answer_start": 14}]},
        {"question": "where ben ?", "id": "{}-2", "answers": [], "is_impossible": True},
    ]
    articles = [{"title": str(n), "paragraphs": [{"context": passage, "qas": questions}]} for n in range(8)]
    (tmp_path / "squad").mkdir()
    (tmp_path / "squad" / "dev-v2.0.json").write_text(json.dumps({"version": "v2.0", "data": articles}))
    verdict = claims.run(107, model=model, data=tmp_path)
    assert verdict is not None
    assert verdict.rows[0] == "8 training questions; 4 test questions, 2 of them without an answer"
    assert [row.partition(":")[0] for row in verdict.rows if row.startswith("trained")] == [
        "trained on answerable questions, seed 0",
        "trained on all questions, seed 0",
    ]


@pytest.mark.parametrize("number", [80, 81, 82, 83, 84])
@pytest.mark.usefixtures("_small_gpt")
def test_claims_about_generation(number: int) -> None:
    verdict = claims.run(number)
    assert verdict is not None
    assert len(verdict.rows) > 2
    assert re.search(r"\d", verdict.figures)


@pytest.fixture
def _small_gpt(monkeypatch: pytest.MonkeyPatch, english_corpus: Path, tmp_path: Path) -> None:
    """An almost untrained GPT in place of the experiments' model."""
    texts = english_corpus.read_text(encoding="utf-8").replace("\n\n", "\0").replace("\n", " ").split("\0")
    docstrings = [Docstring("numpy", tuple(re.split(r"(?<=[.?!]) ", text))) for text in texts]
    system = replace(small_models.SMALL_GPT, layers=1, width=16, head_dim=16, max_positions=512, sequence_length=512)
    model = keel.pretrain(system, english_corpus, out=tmp_path / "m", vocabulary=600, steps=2, batch=2, device="cpu")
    monkeypatch.setattr("keel.claims.generation_claims.read_docstrings", lambda say: docstrings)
    monkeypatch.setattr("keel.claims.generation_claims.pretrain_gpt", lambda docstrings, say: model)
    monkeypatch.setattr(keel.Model, "load", lambda name: model)


def test_examples_in_the_prompt_of_an_untrained_model() -> None:
    torch.manual_seed(0)
    system = keel.Gpt(layers=1, width=16, head_dim=16, max_positions=64, sequence_length=64)
    words = {word for pairs in RELATIONS.values() for pair in pairs.split(", ") for word in pair.split()}
    tokenizer = keel.Tokenizer.from_words([*sorted(words), "=", ";"])
    encoder = system.build_encoder(len(tokenizer))
    model = keel.Model(
        system=system, encoder=encoder, tokenizer=tokenizer, objective=system.build_objective(encoder, tokenizer).eval()
    )
    verdict = claims.run(145, model=model)
    assert verdict is not None
    assert not verdict.holds
    assert [row.partition(":")[0] for row in verdict.rows] == ["k = 0", "k = 1", "k = 2", "k = 4", "k = 4"]


def test_masks_are_predicted_independently() -> None:
    models = keel.Model.load("english"), keel.Model.load("english-gpt")
    product, chained, written = bert_claims._city_shares(*models, bert_claims.CITY_TEXTS[0])
    assert 0.1 < product < 0.5 < 0.9 < min(chained, written) <= 1


def test_pages_of_claims_and_their_index(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["claim", "41", "--out", str(tmp_path / "my page.html")]) == 0
    assert "Holds" in capsys.readouterr().out
    page = (tmp_path / "my page.html").read_text(encoding="utf-8")
    assert "variance of q·k" in page
    (tmp_path / "other.html").write_text("<html></html>")
    assert main(["claim", "--out", str(tmp_path / "index.html")]) == 0
    index = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert index.count("<tr>") == len(CLAIMS) + 1
    assert index.count('href="my%20page.html"') == index.count("href=") == 1
    assert index.count("Holds: ") == 1
    capsys.readouterr()
    assert main(["claim", "41", "--out", "page.pdf"]) == 2
    assert "must end in .html" in capsys.readouterr().err


def test_mean_layer_of_gains() -> None:
    assert mean_layer_of_gains(0.5, [0.5, 0.7, 0.6, 0.8]) == pytest.approx((1 * 0.2 + 3 * 0.1) / 0.3)
    assert mean_layer_of_gains(0.5, [1.0, 1.0]) == 0.0
    assert mean_layer_of_gains(0.5, [0.4, 0.3]) == 0.0


def test_layers_by_task_need_data_that_the_model_reads(tmp_path: Path) -> None:
    for data, part in ((None, "give data FOLDER"), (tmp_path, "has no files")):
        with pytest.raises(UsageError, match=part):
            claims.run(121, model=tiny_bert("a b"), data=data)
