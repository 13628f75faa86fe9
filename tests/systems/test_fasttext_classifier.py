"""fastText's classifier: kernel updates equal the gradients of the reference loss; resume and folders work."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from keel.api.evaluation import evaluate
from keel.api.finetuning import finetune
from keel.api.pretraining import pretrain
from keel.data.collation import EncodedExamples
from keel.data.examples import read_examples
from keel.data.label_kinds import ChoiceLabel, Regression
from keel.data.tokenizer import Tokenizer
from keel.errors import Interrupted, KeelError, UsageError
from keel.model import Model
from keel.systems.fasttext import FastText
from keel.systems.fasttext_classifier import CANDIDATE_LRS, BagTraining, label_log_probs, label_tree
from keel.tasks.classify import TextClassification
from keel.training.counter_rng import CounterRng

TEXTS = [
    ("a warm and funny film", "good"), ("dull , slow and cold", "bad"), ("not funny at all", "bad"),
    ("warm at last", "good"), ("it is what it is", "so-so"), ("", "so-so"), ("unheardof wordz", "bad"),
]  # fmt: skip
WORDS = sorted({word for text, _ in TEXTS for word in text.split()} - {"unheardof", "wordz"})
QUICK: dict[str, Any] = {"dev": None, "width": 8, "threads": 1, "lr": 0.5, "epochs": 40}
LOSSES = ["softmax", "hierarchical", "negative", "one-vs-all"]


def prepared(examples: list[tuple[str, Any]], **fields: Any) -> tuple[BagTraining, EncodedExamples]:
    torch.manual_seed(0)
    read = read_examples(examples, pair=False)
    system = FastText(**{"width": 20, "supervised": True, "min_n": 2, "max_n": 3, "buckets": 50, **fields})
    system = system.finetuning_policy.adapt_system(read.labels.kind, labels_texts=True, frozen=False)
    tokenizer = Tokenizer.from_whitespace_words(["</s>", *WORDS])
    task = TextClassification(system, system.build_encoder(len(tokenizer)), tokenizer, read.labels)
    training = system.finetuning_policy.custom_update(task)
    assert isinstance(training, BagTraining)
    tables: list[Any] = [task.encoder.words, task.encoder.grams, task.classifier]
    for table in tables:
        torch.nn.init.normal_(table.weight)
    return training, task.encode_examples(read)


@pytest.mark.parametrize(
    ("labels", "fields"),
    [
        *(("one", {"label_loss": loss}) for loss in LOSSES),
        ("one", {"word_ngrams": 3, "max_n": 0, "min_n": 0, "width": 16}),
        ("several", {"word_ngrams": 2}),
    ],
)
def test_updates_equal_the_gradients_of_the_loss(labels: str, fields: dict[str, Any]) -> None:
    """Text after text, in float64: one step down the gradient of `forward`."""
    examples: list[tuple[str, Any]] = list(TEXTS)
    if labels == "several":
        examples = [(text, (label, "any")) for text, label in TEXTS]
    ours, data = prepared(examples, **fields)
    theirs = deepcopy(ours).double()
    rng, lr = CounterRng(seed=3, step=2, first_example=4), 0.05
    sums, counts = ours.update(data, rng, range(9), lr, 1)
    loss = 0.0
    for row in range(9):
        batch = theirs.batch(data, rng, range(row, row + 1))
        theirs.zero_grad()
        found = theirs(batch)[0]["loss"]
        found.backward()
        loss += found.item()
        with torch.no_grad():
            for parameter in theirs.parameters():
                if parameter.grad is not None:
                    parameter.sub_(lr * parameter.grad)
    assert sums["loss"] == pytest.approx(loss, rel=1e-5)
    assert counts["loss"] == 9
    for name, parameter in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name].double(), parameter, rtol=1e-4, atol=1e-5)


def test_bags_equal_those_of_fasttext() -> None:
    """Words, character n-grams, the end-of-line token and word n-grams, by a plain copy of its rules."""

    def hashed(word: str) -> int:
        state = 2166136261
        for byte in word.encode():
            state = (state ^ (byte - 256 if byte > 127 else byte)) & 0xFFFFFFFF
            state = state * 16777619 & 0xFFFFFFFF
        return state

    def signed(number: int) -> int:
        return number - (1 << 32) if number >> 31 else number

    tokenizer = Tokenizer.from_whitespace_words(["</s>", "电影", "好"])
    system = FastText(width=4, supervised=True, min_n=1, max_n=2, buckets=97, word_ngrams=3)
    texts = ["好 电影 unseen", "__label__x 好\t\t好", "", "好 </s> 电影"]
    expected = []
    for text in texts:
        words, line = [], []
        for word in [*text.split(), "</s>"]:
            if word.startswith("__label__"):
                continue
            words.append(signed(hashed(word)))
            if tokenizer.id_of(word) != tokenizer.unknown_id:
                line.append(("word", tokenizer.id_of(word)))
            bracketed = f"<{word}>" if word != "</s>" else ""
            for first in range(len(bracketed)):
                for n in (1, 2):
                    if first + n <= len(bracketed) and not (n == 1 and first in (0, len(bracketed) - 1)):
                        line.append(("gram", hashed(bracketed[first : first + n]) % 97))
            if word == "</s>":
                break
        for first in range(len(words)):
            state = words[first] & (1 << 64) - 1
            for after in words[first + 1 : first + 3]:
                state = (state * 116049371 + after) & (1 << 64) - 1
                line.append(("gram", state % 97))
        expected.append(sorted(line))
    encoded = tokenizer.encode_many(texts, oov_ids=True)
    ids = np.array([number for row in encoded for number in row], np.int32)
    starts = np.cumsum([0, *map(len, encoded)])
    positions, starts, units = system.finetuning_policy.subword_inputs(ids, starts, tokenizer)
    bounds = [*units.unit_starts.tolist(), len(units.unit_ids)]
    for row, line in enumerate(expected):
        found = []
        for position in positions[starts[row] : starts[row + 1]].tolist():
            found += [("word", int(units.word_ids[position]))] if units.word_ids[position] >= 0 else []
            found += [("gram", int(part)) for part in units.unit_ids[bounds[position] : bounds[position + 1]]]
        assert sorted(found) == line


def test_the_label_tree_equals_that_of_fasttext() -> None:
    """Ties: the last label comes first, and a node before a leaf; the lighter branch is the negative one."""
    tree = label_tree((4, 2, 2, 2))
    assert tree.nodes.tolist() == [[2, 0, 0], [2, 1, 0], [2, 1, 0], [2, 1, 0]]
    assert tree.signs.tolist() == [[-1, 0, 0], [1, -1, 0], [1, 1, 1], [1, 1, -1]]
    scores = torch.randn(5, 7)
    torch.testing.assert_close(label_log_probs(scores, label_tree((9, 5, 5, 3, 2, 1, 1))).exp().sum(1), torch.ones(5))


@pytest.mark.parametrize("loss", LOSSES)
def test_train_save_load_and_finetune(tmp_path: Path, loss: str) -> None:
    model = finetune("fasttext", TEXTS * 5, out=tmp_path / "m", label_loss=loss, word_ngrams=2, buckets=100, **QUICK)  # pyright: ignore[reportArgumentType]
    assert model.predict("not funny at all").label == "bad"
    again = Model.load(tmp_path / "m")
    assert again.system == model.system
    texts = [text for text, _ in TEXTS] + ["an unseen text"]
    assert again.predict(texts) == model.predict(texts)
    assert evaluate(again, TEXTS[:5]).main_value == 1.0


def test_multi_label_works_and_regression_is_refused() -> None:
    several = [(text, [label, *(["short"] if len(text) < 18 else ["long"])]) for text, label in TEXTS]
    model = finetune("fasttext", several * 5, **QUICK)
    assert {found.label for found in model.predict("warm at last")} == {"good", "short"}
    with pytest.raises(UsageError, match="regression: use labels='single'"):
        finetune("fasttext", [("one one", 1.25), ("two two", 2.5)] * 20, labels="regression", **QUICK)


def test_finetuning_a_pretrained_model(english_corpus: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "vocabulary": 200,
        "batch": 4,
        "width": 8,
        "chunk_length": 40,
        "threads": 1,
        "buckets": 50,
        "subsample": 0.0,
    }
    pretrain("fasttext", english_corpus, out=tmp_path / "m", epochs=1, **settings)
    examples = [("the farmer is good", "good"), ("the pilot was bad", "bad")] * 10
    for freeze in (False, True):
        tuned = finetune(tmp_path / "m", examples, dev=None, epochs=40, lr=0.5, freeze=freeze, threads=1)
        tuned.save(tmp_path / f"t{freeze}")
        assert Model.load(tmp_path / f"t{freeze}").predict("the pilots were bad").label == "bad"
    with pytest.raises(UsageError, match="keel finetune"):
        pretrain(tmp_path / "tFalse", english_corpus, out=tmp_path / "n", threads=1, epochs=1)


def test_resume_is_bit_exact_with_one_thread(tmp_path: Path) -> None:
    import os
    import signal

    settings: dict[str, Any] = {**QUICK, "batch": 7, "label_loss": "negative", "log_every": 1}

    def stop(event: dict[str, Any]) -> None:
        if event["event"] == "step" and event["step"] == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        finetune("fasttext", TEXTS, out=tmp_path / "cut", on_event=stop, **settings)
    cut = finetune("fasttext", TEXTS, out=tmp_path / "cut", **settings)
    whole = finetune("fasttext", TEXTS, out=tmp_path / "whole", **settings)
    assert cut.tensors().keys() == whole.tensors().keys()
    for name, tensor in cut.tensors().items():
        assert torch.equal(tensor, whole.tensors()[name])
    settings["label_loss"] = "softmax"
    with pytest.raises(UsageError, match="label_loss"):
        finetune("fasttext", TEXTS, out=tmp_path / "cut", **settings)


def test_an_autotuned_run_resumes_bit_for_bit(tmp_path: Path) -> None:
    import os
    import signal

    def stop(event: dict[str, Any]) -> None:
        if event["event"] == "step" and event["step"] == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    examples, settings = noisy_examples(150, 1), {"threads": 1, "log_every": 1}
    with pytest.raises(Interrupted):
        finetune("fasttext", examples, out=tmp_path / "cut", on_event=stop, **settings)  # pyright: ignore[reportArgumentType]
    cut = finetune("fasttext", examples, out=tmp_path / "cut", **settings)  # pyright: ignore[reportArgumentType]
    whole = finetune("fasttext", examples, **settings)  # pyright: ignore[reportArgumentType]
    assert cut.card.recipe["train"]["lr"] == whole.card.recipe["train"]["lr"]
    for name, tensor in cut.tensors().items():
        assert torch.equal(tensor, whole.tensors()[name])


def test_two_threads_reach_the_same_predictions() -> None:
    model = finetune("fasttext", TEXTS * 5, **{**QUICK, "threads": 2})  # pyright: ignore[reportArgumentType]
    assert model.predict("warm and funny").label == "good"


def test_bad_input_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeelError, match="only one class"):
        finetune("fasttext", [("a b", "x"), ("c", "x")], **QUICK)
    with pytest.raises(KeelError, match="did not occur in training"):
        finetune("fasttext", TEXTS, **{**QUICK, "dev": [("a film", "new")]})  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match=r"^freeze .* a new fasttext has none: give a model folder"):
        finetune("fasttext", TEXTS, freeze=True, dev=None)
    with pytest.raises(UsageError, match="buckets must be 1 or more"):
        FastText(buckets=0)
    (tmp_path / "train.txt").write_text("__label__a one two\n__label__b three\n" * 3)
    assert finetune("fasttext", tmp_path / "train.txt", **QUICK).label_names == ("a", "b")


def test_epochs_lr_and_buckets_follow_the_data_unless_given() -> None:
    rng = np.random.default_rng(0)
    examples = [(" ".join(rng.choice(["a", "b", "c", "d", "e"], 4)), str(number % 2)) for number in range(100)]
    train = finetune("fasttext", examples, dev=None, threads=1, autotune=False).card.recipe["train"]
    assert (train["epochs"], train["lr"]) == (100, 1.0)
    model = finetune("fasttext", examples, dev=None, threads=1, epochs=2, lr=0.1, buckets=3000)
    train = model.card.recipe["train"]
    assert (train["epochs"], train["lr"]) == (2, 0.1)
    assert model.system.buckets == 3000  # pyright: ignore[reportAttributeAccessIssue]
    new = finetune("fasttext", examples, dev=None, threads=1, steps=3)
    assert new.card.recipe["train"]["epochs"] == 0
    assert isinstance(new.system, FastText)
    assert new.system.word_ngrams == 2
    assert new.system.buckets == 128, "four for each of 25 bigrams of 5 words, and of 5 with the end of the line"
    policy = new.system.finetuning_policy
    assert policy.fit_to_size(1_000_000) == {"epochs": 5, "lr": 0.5}
    assert policy.by_data_size.keys() == policy.fit_to_size(10).keys()


def noisy_examples(count: int, informative: float) -> list[tuple[str, str]]:
    """Texts of rare words, with a word for the label in a share of them; two thirds are "yes"."""
    rng = np.random.default_rng(1)
    found = []
    for number in range(count):
        words = [f"w{word}" for word in rng.integers(0, 400, 8)]
        label = "yes" if rng.random() < 2 / 3 else "no"
        found.append((" ".join([*words, f"is{label}", str(number)] if rng.random() < informative else words), label))
    return found


@pytest.mark.parametrize("texts", [600, 1900])
def test_autotune_does_not_learn_noise(texts: int) -> None:
    """Where texts do not tell their labels, the most frequent one is predicted; fixed settings fit the noise."""
    examples = noisy_examples(texts + 1000, 0)
    train, test = examples[:texts], [text for text, _ in examples[texts:]]
    plain = finetune("fasttext", train, dev=None, threads=1, autotune=False)
    assert {each.label for each in plain.predict(test)} == {"yes", "no"}
    tuned = finetune("fasttext", train, threads=1)
    assert sum(each.label == "yes" for each in tuned.predict(test)) > 980
    assert tuned.card.recipe["train"]["lr"] < min(CANDIDATE_LRS), "divided, since there are more epochs"


def ordered_examples(count: int) -> list[tuple[str, str]]:
    """Texts of the same words, where only the order of two tells the label."""
    rng = np.random.default_rng(2)
    found = []
    for number in range(count):
        words = [f"w{word}" for word in rng.integers(0, 30, 4)]
        pair = ["not", "good"] if number % 2 else ["good", "not"]
        found.append((" ".join([*words, *pair, str(number)]), str(number % 2)))
    return found


def test_autotune_chooses_word_ngrams() -> None:
    """Bigrams where the order of words matters; words alone, as if they had been asked for, where it does not."""
    events: list[dict[str, Any]] = []
    bigrams = finetune("fasttext", ordered_examples(200), threads=1, on_event=events.append).system
    assert isinstance(bigrams, FastText)
    assert bigrams.word_ngrams == 2
    assert bigrams.buckets > 0
    assert any("word_ngrams 2, chosen by cross-validation" in str(event) for event in events)
    examples = noisy_examples(300, 0.5)
    model, words = (finetune("fasttext", examples, threads=1, **given) for given in ({}, {"word_ngrams": 1}))  # pyright: ignore[reportArgumentType]
    assert isinstance(model.system, FastText)
    assert (model.system.word_ngrams, model.system.ngram_vectors) == (1, 0)
    assert model.system == words.system
    assert model.card.recipe == words.card.recipe
    for name, tensor in words.tensors().items():
        assert torch.equal(tensor, model.tensors()[name])


def test_word_ngrams_that_cannot_be_chosen_are_two() -> None:
    several = [(text, [label]) for text, label in noisy_examples(60, 1)]
    settings: dict[str, Any] = {"dev": None, "threads": 1}
    for model in (
        finetune("fasttext", noisy_examples(60, 1), epochs=2, **settings),
        finetune("fasttext", several, labels="multi", epochs=2, **settings),
        finetune("fasttext", noisy_examples(60, 1), autotune=False, epochs=2, **settings),
    ):
        assert isinstance(model.system, FastText)
        assert model.system.word_ngrams == 2
    with pytest.raises(UsageError, match="word_ngrams 0 is for a new classifier"):
        FastText(word_ngrams=0)


def test_autotune_learns_on_all_texts_and_scores_folds() -> None:
    train = noisy_examples(150, 1)
    events: list[dict[str, Any]] = []
    model = finetune("fasttext", train, threads=1, on_event=events.append)
    assert model.card.text.startswith("150 examples"), "none are held out by default"
    folds = model.card.scores["cross-validation"]
    assert len(folds["values"]) == 3
    assert folds["mean"] > 0.9
    lr = model.card.recipe["train"]["lr"]
    ngrams = model.system.word_ngrams  # pyright: ignore[reportAttributeAccessIssue]
    chosen = f"learning rate {lr:g}, word_ngrams {ngrams}, chosen by cross-validation"
    assert any(chosen in str(event) for event in events)
    again = finetune("fasttext", train, threads=1)
    for name, tensor in again.tensors().items():
        assert torch.equal(tensor, model.tensors()[name])
    assert finetune("fasttext", train, threads=2).card.recipe["train"]["lr"] == lr, "the choice is deterministic"
    several = [(text, [label]) for text, label in train]
    assert "cross-validation" not in finetune("fasttext", several, labels="multi", threads=1).card.scores


def test_given_lr_or_epochs_are_the_published_updates() -> None:
    train = noisy_examples(60, 1)
    given: dict[str, Any] = {"dev": None, "threads": 1, "lr": 0.5, "epochs": 5}
    plain = finetune("fasttext", train, autotune=False, **given)
    model = finetune("fasttext", train, **given)
    assert "cross-validation" not in model.card.scores
    assert model.system == plain.system
    for name, tensor in plain.tensors().items():
        assert torch.equal(tensor, model.tensors()[name])
    with pytest.raises(UsageError, match="autotune chooses the learning rate"):
        finetune("fasttext", train, autotune=True, **given)


def test_rates_are_factors_of_the_learning_rate_of_rows() -> None:
    """The kernel's update equals the gradient's with a learning rate for each row, higher for rare words."""
    ours, data = prepared(TEXTS, word_ngrams=2, autotune=True)
    ours.setup(data)
    torch.nn.init.normal_(ours.task.classifier.weight)
    encoder = ours.task.encoder
    rates = {"task.encoder.words.weight": ours.rates.inputs, "task.encoder.grams.weight": ours.rates.grams}
    ids = [ours.task.tokenizer.id_of(word) for word in ("slow", "and", "</s>")]
    assert rates["task.encoder.words.weight"][ids[0]] > rates["task.encoder.words.weight"][ids[1]]
    assert rates["task.encoder.words.weight"][ids[1]] > rates["task.encoder.words.weight"][ids[2]] > 0
    assert len(ours.rates.grams) == len(encoder.grams.weight)
    theirs, rng, lr = deepcopy(ours).double(), CounterRng(seed=3, step=2, first_example=4), 0.05
    ours.update(data, rng, range(9), lr, 1)
    for row in range(9):
        theirs.zero_grad()
        theirs(theirs.batch(data, rng, range(row, row + 1)))[0]["loss"].backward()
        with torch.no_grad():
            for name, parameter in theirs.named_parameters():
                if parameter.grad is not None:
                    factor = torch.from_numpy(rates[name]).double()[:, None] if name in rates else 1.0
                    parameter.sub_(lr * factor * parameter.grad)
    for name, parameter in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name].double(), parameter, rtol=1e-4, atol=1e-5)


def test_unseen_ngrams_rarely_share_a_vector_with_seen_ones() -> None:
    rng = np.random.default_rng(0)
    texts = [" ".join(f"w{word}" for word in rng.integers(0, 300, 10)) for _ in range(300)]
    examples = [(text, str(number % 2)) for number, text in enumerate(texts[:200])]
    model = finetune("fasttext", examples, dev=None, threads=1, epochs=1)
    encoder: Any = model.encoder
    trained = (encoder.grams.weight != 0).any(1).float().mean()
    assert 0 < trained < 0.3


def test_labels_without_classes_are_refused_before_training() -> None:
    policy = FastText().finetuning_policy
    for kind in (Regression(), ChoiceLabel()):
        with pytest.raises(UsageError, match="freeze"):
            policy.adapt_system(kind, labels_texts=True, frozen=False)
