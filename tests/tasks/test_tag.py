"""Every word gets its tag, whatever the encoder, however it is split into subwords and however long the sentence is."""

import json
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from keel.api.evaluation import evaluate
from keel.api.finetuning import finetune
from keel.api.inference import predict
from keel.checks import check
from keel.config import replace
from keel.data.corpus import Corpus
from keel.data.examples import Columns, Examples
from keel.data.input_windows import windows_with_context
from keel.data.predictions import EntitySpan
from keel.data.tagged_sentences import read_tagged_sentences
from keel.data.tokenizer import Tokenizer
from keel.errors import Interrupted, KeelError, UsageError
from keel.formats.vector_files import Vectors
from keel.model import Model
from keel.systems.bert import Bert
from keel.systems.word2vec import Word2vec
from keel.tasks.tag import TokenClassification
from keel.training.counter_rng import CounterRng
from keel.training.loop import fit
from keel.training.plan import Train
from tests.golden import texts
from tests.tasks.task_sample import TaskSample

SAMPLE = TaskSample(
    examples=texts.tagged(48),
    inputs=["the cook burns the soup .", "around noon a pilot"],
    bad_input=[["Rome", 3]],
    file="data.conll",
    row=lambda example: "".join(f"{word} {tag}\n" for word, tag in zip(*example, strict=True)),
    bad_rows=["Rome B-LOC", "is", "old O", ""],
    main_score="entity_f1",
)

TINY = {"layers": 1, "width": 32, "head_dim": 16, "max_positions": 64, "sequence_length": 64}
CITIES, PEOPLE = ["oslo", "lima", "cairo"], ["anna", "boris", "chen"]
OTHERS = ["goes", "to", "meets", "and", "in", "the", "evening", "unquestionably"]


def sentences(count: int, seed: int = 0, longest: int = 12) -> Examples:
    """People have two names, of which the second could be anybody's; places follow one another without a word."""
    rng = random.Random(seed)
    found: list[tuple[list[str], list[str]]] = []
    for _ in range(count):
        words: list[str] = []
        tags: list[str] = []
        length = rng.randint(3, longest)
        while len(words) < length:
            more, kinds = rng.choice(
                [
                    ([rng.choice(OTHERS)], ["O"]),
                    ([rng.choice(CITIES)], ["B-LOC"]),
                    ([rng.choice(PEOPLE), rng.choice(OTHERS)], ["B-PER", "I-PER"]),
                ]
            )
            words, tags = words + more, tags + kinds
        found.append((words, tags))
    return read_tagged_sentences(found)


@pytest.fixture(scope="session")
def subwords() -> Tokenizer:
    """Some words are whole, others are split into subwords."""
    text = " ".join([*CITIES, *PEOPLE, "goes to meets and in the evening"])
    return Tokenizer.train(Corpus.of([*[text] * 8, "q u e s t i o n a b l y"]), kind="wordpiece", size=100)


@pytest.fixture
def make(subwords: Tokenizer) -> Callable[..., TokenClassification]:
    def make(examples: Examples, **settings: Any) -> TokenClassification:
        torch.manual_seed(0)
        system = replace(Bert(dropout=0.0, attention_dropout=0.0), **TINY)
        return TokenClassification(system, system.build_encoder(len(subwords)), subwords, examples.labels, **settings)

    return make


@pytest.mark.parametrize("settings", [{}, {"crf": True}, {"crf": True, "frozen": True}], ids=str)
def test_tags_are_learned(make: Callable[..., TokenClassification], settings: dict[str, Any]) -> None:
    examples = sentences(150)
    task = make(examples, **settings)
    before = {name: value.clone() for name, value in task.encoder.state_dict().items()}
    train = Train(steps=120, batch=16, lr=5e-3, device="cpu")
    fit(task, task.encode_examples(examples, batch_size=16), train)
    scores = task.score(examples, task.predict(examples))
    assert scores.main == "entity_f1"
    assert scores.main_value > (0.6 if settings.get("frozen") else 0.8)
    moved = any(not torch.equal(value, before[name]) for name, value in task.encoder.state_dict().items())
    assert moved is not settings.get("frozen", False)


def test_the_first_subword_represents_a_word(make: Callable[..., TokenClassification], subwords: Tokenizer) -> None:
    examples = read_tagged_sentences([(["anna", "unquestionably", "oslo"], ["B-PER", "O", "B-LOC"]), (["to"], ["O"])])
    task = make(examples).eval()
    data = task.encode_examples(examples)
    ids = [subwords.encode_words([word])[0] for word in examples[0].words]
    assert len(ids[1]) > 3
    rows = data.padded_batch(np.array([1, 0]))
    selection, numbers = data.select_tokens(np.array([1, 0]), rows)
    assert selection is not None
    assert rows.ids[1, : rows.lengths[1]].tolist() == [subwords.cls_id, *ids[0], *ids[1], *ids[2], subwords.sep_id]
    firsts = np.cumsum([1, *map(len, ids)])[:3]
    assert selection.positions[1].tolist() == (firsts + rows.ids.shape[1]).tolist()
    assert selection.counts.tolist() == [1, 3]
    assert numbers.tolist() == [[3, -1, -1], [0, 1, 2]]
    top = task.encoder(rows).top
    torch.testing.assert_close(task.select_features(rows, selection)[1], top[1, torch.from_numpy(firsts)])


def test_packed_rows_say_the_same(make: Callable[..., TokenClassification], monkeypatch: pytest.MonkeyPatch) -> None:
    for kernel in ("attention", "gelu", "layer_norm"):  # their twins: the kernels have tests of their own
        monkeypatch.setattr(f"keel.kernels.{kernel}.triton_usable", lambda x: False)
    examples = sentences(5)
    task = make(examples, crf=True).eval()
    data = task.encode_examples(examples)
    index = np.array([3, 0, 4])
    losses = []
    for rows in (data.padded_batch(index), data.packed_batch(index)):
        selection, numbers = data.select_tokens(index, rows)
        assert selection is not None
        assert data.targets is not None
        response = task.predict_logits(task.select_features(rows, selection), selection)
        losses.append(task.example_losses(response, data.targets[numbers], selection))
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("room", [4, 10, 31, 62, 1000])
def test_windows_ask_about_every_word_once_and_fit(room: int) -> None:
    rng = random.Random(room)
    for count in (0, 1, 5, 40, 200):
        sizes = [rng.randint(1, max(1, min(9, room // 2))) for _ in range(count)]
        spans = windows_with_context(sizes, room)
        assert [number for _, mine in spans for number in mine] == list(range(count))
        for span, mine in spans:
            assert sum(sizes[number] for number in span) <= room
            assert {*mine} <= {*span}
    for span, mine in windows_with_context([1] * 5000, room)[1:-1]:  # tagged words have neighbours on both sides
        assert span.start <= mine.start - room // 9
        assert mine.stop <= span.stop - room // 9


def test_long_sentences_are_tagged_to_the_end(make: Callable[..., TokenClassification]) -> None:
    examples = sentences(6, longest=200)
    task = make(examples, crf=True)
    torch.nn.init.normal_(task.classifier.weight)
    messages: list[str] = []
    data = task.encode_examples(examples, on_event=lambda event: messages.append(event["text"]))
    assert data.lengths.max() <= 64
    assert len(data) > len(examples) + 3
    assert "each word is tagged once" in messages[0]
    together: Any = task.predict(examples)
    assert [len(answer.tags) for answer in map(together.__getitem__, range(6))] == [len(e.words) for e in examples]
    for number in range(len(examples)):
        alone: Any = task.predict(examples[number : number + 1], batch=1)[0]
        assert alone.tags == together[number].tags
        assert alone.probabilities == pytest.approx(together[number].probabilities, abs=1e-4)


def test_words_without_tokens_and_very_long_words_become_unknown(make: Callable[..., TokenClassification]) -> None:
    task = make(sentences(5))
    messages: list[str] = []
    odd = read_tagged_sentences([["anna", "\u200d", "e" * 5000, "=" * 5000, "oslo"], ["\x07"]])
    found: Any = task.predict(odd, on_event=lambda event: messages.append(event["text"]))
    assert [len(answer) for answer in (found[0].tags, found[1].tags)] == [5, 1]
    assert "2 words, such as" in messages[0]
    assert task.encode_examples(odd, labelled=False).lengths.max() <= 64


def test_a_word_tokenizer_looks_up_whole_words() -> None:
    tokenizer = Tokenizer.from_words(["1996-08-22", "u.s.", "the", "anglo", "french"])
    known, unknown = tokenizer.id_of("1996-08-22"), tokenizer.unknown_id
    found = tokenizer.encode_words(["1996-08-22", "U.S.", "Anglo-French", "zebra"])
    assert found == [[known], [tokenizer.id_of("u.s.")], [found[2][0], unknown, found[2][2]], [unknown]]
    assert found[2][0] == tokenizer.id_of("anglo")
    (beyond,) = tokenizer.encode_words(["Anglo-French"], oov_ids=True)[0]
    assert beyond >= len(tokenizer)
    assert tokenizer.token_of(beyond) == "anglo-french"
    assert tokenizer.encode_words(["the", "\ud800x"], oov_ids=True)[0] == [tokenizer.id_of("the")]  # half a character


def test_the_whole_path(tmp_path: Path, subwords: Tokenizer) -> None:
    system = replace(Bert(dropout=0.0, attention_dropout=0.0), **TINY)
    base = Model(system=system, encoder=system.build_encoder(len(subwords)), tokenizer=subwords)
    path = tmp_path / "train.conll"
    lines = [
        "\n".join(map(" ".join, zip(example.words, example.names, strict=True))) + "\n" for example in sentences(80)
    ]
    path.write_text("\n".join(lines))
    settings: dict[str, Any] = {"task": "tag", "crf": True, "epochs": 8, "lr": 5e-3, "device": "cpu", "dev": "20%"}
    model = finetune(base, path, out=tmp_path / "m", seeds=2, test=path, folds=2, **settings)
    assert set(model.card.scores) == {"folds", "dev", "dev_seeds", "test", "test_seeds"}
    assert model.card.scores["test"]["main"] == "entity_f1"
    assert set(model.card.scores["test"]["by_label"]) == {"LOC", "PER"}
    again = Model.load(tmp_path / "m")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    assert (config["model_type"], config["architectures"]) == ("keel-bert", ["BertModel"])  # theirs has no CRF
    one, two = evaluate(model, path), evaluate(again, path, out=tmp_path / "scores")
    assert one == two
    assert (tmp_path / "scores" / "confusion.tsv").read_text().startswith("true \\ predicted\tLOC\tPER\tO\n")
    answer = again.predict("Anna and lima, oslo")
    assert answer.words == ("Anna", "and", "lima", ",", "oslo")
    assert answer.entities[-1] == EntitySpan(15, 19, "LOC", "oslo")
    assert again.predict(("anna", "goes", "oslo")).entities[-1].start == 10
    assert [each.tags for each in again.predict([["oslo"], ["lima", "oslo"]])] == [("B-LOC",), ("B-LOC", "B-LOC")]
    assert again.predict("").tags == ()
    (tmp_path / "new.txt").write_text("anna goes to oslo\n")
    record = next(predict(again, tmp_path / "new.txt"))
    assert record["words"] == ["anna", "goes", "to", "oslo"]
    assert record["entities"][-1] == {"start": 13, "end": 17, "label": "LOC", "text": "oslo"}
    assert "gold" not in record
    assert next(predict(again, path))["gold"] == list(sentences(1)[0].names)
    settings["crf"] = False  # another run than that of the folder
    with pytest.raises(UsageError, match="crf"):
        finetune(base, path, out=tmp_path / "m", seeds=2, test=path, folds=2, **settings)


def test_a_stopped_run_resumes_to_the_same_bits(tmp_path: Path) -> None:
    def stop(event: dict[str, Any]) -> None:
        if event["event"] == "step" and event["step"] == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    settings: dict[str, Any] = {"task": "tag", "crf": True, "network": "lstm", "network_width": 4, "characters": "cnn"}
    settings |= {"width": 4, "steps": 8, "batch": 4, "log_every": 1, "threads": 1, "device": "cpu", "dev": None}
    whole = finetune("word2vec", sentences(20), out=tmp_path / "whole", **settings)
    with pytest.raises(Interrupted):
        finetune("word2vec", sentences(20), out=tmp_path / "cut", on_event=stop, **settings)
    again = finetune("word2vec", sentences(20), out=tmp_path / "cut", **settings)
    assert "crf.transitions" in whole.tensors()
    for name, value in whole.tensors().items():
        assert torch.equal(again.tensors()[name], value), name


@pytest.mark.gpu
def test_a_gpu_predicts_the_same(make: Callable[..., TokenClassification]) -> None:
    examples = sentences(40, longest=100)
    task = make(examples, crf=True).eval()
    torch.nn.init.normal_(task.classifier.weight)
    task.precision = "fp32"
    expected = task.predict(examples).estimates
    data = task.encode_examples(examples, batch_size=8)
    losses = []
    for device in ("cpu", "cuda"):
        task.to(device)
        batch = task.batch(data, CounterRng(seed=1, step=0, first_example=0), range(8)).to(device)
        losses.append(float(task(batch)[0]["loss"].detach()))
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)
    assert task.predict(examples).estimates == pytest.approx(expected, abs=2e-2)


def test_transformers_reads_the_tagger_and_keel_reads_theirs(
    tmp_path: Path, subwords: Tokenizer, make: Callable[..., TokenClassification]
) -> None:
    from transformers import AutoModelForTokenClassification

    examples = sentences(4)
    task = make(examples).eval()
    torch.nn.init.normal_(task.classifier.weight)
    model = Model(system=task.system, encoder=task.encoder, tokenizer=subwords, task=task)
    model.save(tmp_path / "ours")
    theirs = AutoModelForTokenClassification.from_pretrained(tmp_path / "ours").eval()
    rows = task.encode_examples(examples).padded_batch(np.array([0]))
    with torch.inference_mode():
        logits = theirs(input_ids=rows.ids).logits
        torch.testing.assert_close(task.classifier(task.encoder(rows).top), logits, rtol=1e-4, atol=1e-4)
    assert theirs.config.id2label[0] == "B-LOC"
    theirs.save_pretrained(tmp_path / "theirs")
    subwords.save(tmp_path / "theirs")
    back = Model.load(tmp_path / "theirs")
    assert isinstance(back.task, TokenClassification)
    assert back.predict(examples[0].words) == model.predict(examples[0].words)


def test_parts_of_speech_are_scored_by_accuracy_and_unheard_tags_are_errors() -> None:
    pairs = [(["the", "dog", "barks"], ["DET", "NOUN", "VERB"]), (["a", "cat", "sleeps"], ["DET", "NOUN", "VERB"])]
    model = finetune("word2vec", pairs * 10, task="tag", dev=None, epochs=30, lr=0.05, batch=4, width=8, device="cpu")
    scores = evaluate(model, pairs)
    assert (scores.main, scores.main_value) == ("accuracy", 1.0)
    assert scores.names == ("DET", "NOUN", "VERB")
    odd = evaluate(model, [(["the", "dog", "barks"], ["DET", "NOUN", "X"])])
    assert odd.main_value == pytest.approx(2 / 3)
    assert "1 word has a tag that did not occur in training, such as 'X' in the sentence at item 0" in str(odd)
    assert (odd.errors[0].label, odd.errors[0].predicted, odd.errors[0].text) == ("X", "VERB", "the dog [barks]")
    assert model.predict("the cat").entities == []
    assert isinstance(model.task, TokenClassification)
    with pytest.raises(KeelError, match=r"item 0 of the list: the tag 'X' .* correct it, or train with it"):
        model.task.encode_examples(read_tagged_sentences([(["the"], ["X"])]))
    with pytest.raises(KeelError, match="no tags to compare with"):
        evaluate(model, [["the", "dog"]])
    with pytest.raises(UsageError, match="a text or a list of its words"):
        model.predict([7])


def test_entities_are_scored_whatever_the_scheme_of_the_file() -> None:
    pairs = [(["in", "new", "york"], ["O", "B-LOC", "I-LOC"]), (["rome", "is", "old"], ["B-LOC", "O", "O"])]
    model = finetune("word2vec", pairs * 10, task="tag", dev=None, epochs=30, lr=0.05, batch=4, width=8, scheme="BIOES")
    assert "E-LOC" in model.label_names
    assert evaluate(model, pairs).values["accuracy"].value == 1.0
    assert evaluate(model, pairs, scheme="BIOES").main_value == 1.0
    assert "such as 'NEW' in" in str(evaluate(model, [(["rome", "is", "old"], ["B-NEW", "O", "O"])]))
    half = evaluate(model, [(["in", "new", "york"], ["O", "B-LOC", "B-LOC"])])
    assert (half.values["recall"].value, half.values["accuracy"].value) == (0.0, pytest.approx(1 / 3))
    plain, message = [(["rome", "is"], ["NOUN", "VERB"])], "item 0 of the list: 'NOUN' is not a BIO"
    with pytest.raises(KeelError, match=f"{message}ES tag"):
        evaluate(model, plain)
    with pytest.raises(KeelError, match=f"{message} tag, .* label_column"):
        finetune("word2vec", pairs * 10, task="tag", dev=plain, epochs=1, width=8)


def test_a_text_is_cut_into_words(tmp_path: Path) -> None:
    (tmp_path / "cut.txt").write_text("我 在 北京 工作\n他 在 上海\n" * 20, encoding="utf-8")
    characters = [*"我他在北京上海工作"]
    vectors = np.random.default_rng(0).standard_normal((len(characters), 8), np.float32)
    settings: dict[str, Any] = {"epochs": 30, "lr": 0.05, "batch": 4, "device": "cpu"}
    base = Model.of_vectors(Vectors(characters, vectors))
    finetune(base, tmp_path / "cut.txt", task="tag", crf=True, dev=None, out=tmp_path / "m", **settings)
    model = Model.load(tmp_path / "m")
    assert model.label_names == ("B", "E", "M", "S")
    answer = model.predict("他在北京, 我在")
    assert answer.segmented_words[:3] == ["他", "在", "北京"]
    assert "".join(answer.segmented_words) == "他在北京,我在"
    assert repr(answer) == f"TaggedText('他在北京, 我在', {answer.segmented_words})"
    assert model.predict("在北 京").segmented_words == ["在", "北", "京"]  # whitespace ends a word
    given = model.predict(("在", "北", "京", "10"))
    assert (given.segmented_words[:2], given.to_dict()["text"]) == (["在", "北京"], "在北京10")
    assert model.predict("").to_dict()["segmented"] == []
    mixed = model.predict("在ABC10")
    assert mixed.words == tuple("在ABC10"), "a tag for each character, as in training"
    (tmp_path / "new.txt").write_text("在北京\n", encoding="utf-8")
    record = next(predict(model, tmp_path / "new.txt"))
    assert (record["segmented"], record["words"]) == (["在", "北京"], ["在", "北", "京"])


@pytest.mark.parametrize(
    ("first", "second", "learned"),
    [
        ("O B-LOC L-LOC", "U-LOC O O", "B-LOC E-LOC I-LOC O S-LOC"),  # BILOU
        ("B-LOC M-LOC E-LOC", "W-LOC O O", "B-LOC E-LOC M-LOC O S-LOC"),  # BMEWO
        ("O B E", "S O O", "B E M O S"),
    ],
)
def test_tags_of_every_scheme_that_is_recognised_are_learned(first: str, second: str, learned: str) -> None:
    pairs = [(["in", "new", "york"], first.split()), (["rome", "is", "old"], second.split())]
    settings: dict[str, Any] = {"epochs": 30, "lr": 0.05, "batch": 4, "width": 8, "device": "cpu"}
    model = finetune("word2vec", pairs * 10, task="tag", crf=True, dev="20%", **settings)
    assert model.label_names == tuple(learned.split())
    assert evaluate(model, pairs).main_value == 1.0
    assert model.predict("rome is old").tags[0][0] == "S"
    assert "segmented" not in model.predict("rome is old").to_dict()


@pytest.mark.parametrize("more", [{}, {"crf": True}, {"network": "lstm", "network_width": 4, "characters": "cnn"}])
def test_a_frozen_tagger_has_nothing_to_say_about_nothing(subwords: Tokenizer, more: dict[str, Any]) -> None:
    system = replace(Bert(dropout=0.0, attention_dropout=0.0), **TINY)
    base = Model(system=system, encoder=system.build_encoder(len(subwords)), tokenizer=subwords)
    model = finetune(base, sentences(8), task="tag", freeze=True, dev=None, epochs=1, device="cpu", **more)
    assert model.predict("").tags == ()
    assert [answer.tags for answer in model.predict(["", []])] == [(), ()]
    found = model.predict([[], ["anna", "oslo"], "", ["lima"]])
    assert [len(answer.tags) for answer in found] == [0, 2, 0, 1]
    assert found[1] == model.predict(("anna", "oslo"))


def test_only_tags_have_a_chain() -> None:
    with pytest.raises(UsageError, match="crf is for task='tag', not for classify"):
        finetune("onehot", [("a b", "x"), ("c d", "y")], crf=True)


def test_columns_can_be_chosen_for_every_file_of_a_run(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("a DET O\ncat NOUN B-X\n\nthe DET O\ndog NOUN B-X\n" * 4)
    words = finetune(Word2vec(width=4), path, task="tag", test=path, dev=None, label_column="2", epochs=1)
    assert words.label_names == ("DET", "NOUN")
    assert TokenClassification.read_examples(path, Columns(label_column="3")).labels.names == ("B-X", "I-X", "O")


def test_finetune_and_check_report_nul_bytes_alike(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"a O\nc\0at B-X\n\nthe O\ndog B-X\n\n" + b"a O\ndog B-X\n\n" * 4)
    messages: list[str] = []
    settings: dict[str, Any] = {"task": "tag", "dev": None, "epochs": 1, "device": "cpu"}
    finetune(Word2vec(width=4), path, on_event=lambda event: messages.append(event.get("text", "")), **settings)
    (warning,) = [found for found in check([path], task="tag").findings if "NUL" in found.cause]
    assert warning.where == f"{path}:2"
    assert f"{warning.where}: {warning.cause}" in messages
    path.write_bytes(b"a\0\0 O\0\n\nb\0 B-X\n")
    with pytest.raises(KeelError, match=r"a\.txt is not text \(it holds NUL bytes\)") as error:
        finetune(Word2vec(width=4), path, **settings)
    (finding,) = check([path], task="tag").findings
    assert str(error.value) == f"{finding.where} {finding.cause}"


@pytest.mark.parametrize("system", ["word2vec", "fasttext", "cnn"])
def test_a_new_model_has_a_token_for_each_tagged_chinese_character(system: str) -> None:
    examples = read_tagged_sentences(texts.segmented(40))
    model = finetune(system, examples, task="tag", steps=1, dev=None, progress=False)
    characters = [*dict.fromkeys(word for each in examples for word in each.words)]
    encoded = zip(characters, model.tokenizer.encode_words(characters), strict=True)
    assert [word for word, ids in encoded if ids in ([], [model.tokenizer.unknown_id])] == []
