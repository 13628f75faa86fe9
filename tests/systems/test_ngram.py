"""N-grams: probabilities equal the formula for any memory and number of threads; bad input is refused."""

import math
import os
import random
import signal
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from keel.api.finetuning import finetune
from keel.api.pretraining import pretrain
from keel.data.corpus import Corpus
from keel.data.documents import Documents
from keel.data.token_store import Tokens
from keel.data.tokenizer import Tokenizer
from keel.errors import Interrupted, KeelError, UsageError
from keel.model import Model
from keel.systems.ngram import FALLBACK, Ngram, NgramCounting
from keel.training.counter_rng import CounterRng
from keel.training.loop import fit

START, END, UNKNOWN = "<s>", "</s>", "[UNK]"
Grams = dict[int, dict[tuple[str, ...], int]]


def made_up(count: int, seed: int = 0) -> list[list[str]]:
    """Sentences whose next word depends on the last two, some words frequent and many rare."""
    rng = random.Random(seed)
    words = [f"w{number}" for number in range(300)]
    table: dict[tuple[str, str], list[str]] = defaultdict(lambda: [words[int(300 * rng.random() ** 6)] for _ in "abc"])
    sentences = []
    for _ in range(count):
        sentence = ["w0", words[int(300 * rng.random() ** 4)]]
        for _ in range(rng.randint(0, 12)):
            after = table[sentence[-2], sentence[-1]]
            sentence.append(rng.choice(after) if rng.random() < 0.8 else words[int(300 * rng.random() ** 4)])
        sentences.append(sentence)
    return [*sentences, ["w7"], ["w7"]]


def kneser_ney_counts(sentences: list[list[str]], order: int) -> Grams:
    """Chen and Goodman's counts, literally."""
    raw: Grams = {n: Counter() for n in range(1, order + 1)}
    for sentence in sentences:
        bounded = [START, *sentence, END]
        for n in raw:
            for place in range(len(bounded) - n + 1):
                raw[n][tuple(bounded[place : place + n])] += 1
    raw[1].pop((START,))
    adjusted = dict(raw)
    for n in range(1, order):
        before: dict[tuple[str, ...], set[str]] = defaultdict(set)
        for gram in raw[n + 1]:
            before[gram[1:]].add(gram[0])
        adjusted[n] = {gram: raw[n][gram] if gram[0] == START else len(before[gram]) for gram in raw[n]}
    return adjusted


def discounts(counts: dict[tuple[str, ...], int]) -> list[float]:
    n = [sum(value == times for value in counts.values()) for times in range(5)]
    if not all(n[1:4]):
        return [0.0, *FALLBACK]
    y = n[1] / (n[1] + 2 * n[2])
    found = [k - (k + 1) * y * n[k + 1] / n[k] for k in (1, 2, 3)]
    return [0.0, *(found if min(found) > 0 else FALLBACK)]


def formula(grams: Grams, words: int) -> Callable[[tuple[str, ...], str], float]:
    """p(word | context), literally."""
    taken = {n: discounts(counts) for n, counts in grams.items()}
    followers: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for counts in grams.values():
        for gram, count in counts.items():
            followers[gram[:-1]].append(count)

    def probability(context: tuple[str, ...], word: str) -> float:
        n = len(context) + 1
        after = followers[context]
        lower = probability(context[1:], word) if context else 1 / words
        if not after:
            return lower
        count = grams[n].get((*context, word), 0)
        spared = sum(taken[n][min(value, 3)] for value in after)
        return (max(0, count - taken[n][min(count, 3)]) + spared * lower) / sum(after)

    return probability


def documents_of(sentences: list[list[str]], tokenizer: Tokenizer, folder: Path) -> Documents:
    """Each line a sentence, a document for every seven."""
    lines = [" ".join(sentence) for sentence in sentences]
    texts = ["\n".join(lines[start : start + 7]) for start in range(0, len(lines), 7)]
    return Documents.of(Tokens.build(Corpus.of(texts), tokenizer, folder), least=1)


def learn(data: Documents, tokenizer: Tokenizer, **fields: Any) -> NgramCounting:
    system = Ngram(**fields)
    objective = system.build_objective(system.build_encoder(len(tokenizer)), tokenizer)
    fit(objective, data, system.pretraining_defaults)
    return objective


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_words(f"w{number}" for number in range(300))


@pytest.mark.parametrize(("order", "size"), [(1, 400), (2, 400), (4, 1500), (3, 4)])
def test_probabilities_equal_the_kneser_ney_formula(
    tokenizer: Tokenizer, tmp_path: Path, order: int, size: int
) -> None:
    sentences = made_up(size)
    objective = learn(documents_of(sentences, tokenizer, tmp_path / "a"), tokenizer, order=order)
    grams = kneser_ney_counts(sentences, order)
    assert objective.encoder.sizes[1:] == [len(grams[n]) for n in range(2, order + 1)]
    probability = formula(grams, words=300 + 2)  # and </s>, and the unknown word
    for n, row in enumerate(objective.discounts.tolist(), 1):
        assert row == pytest.approx(discounts(grams[n])[1:], rel=1e-6)
    held = [*made_up(60, seed=1), ["w1", UNKNOWN, "w2", "w3", "w1"]]
    expected = 0.0
    for sentence in held:
        bounded = [START, *sentence, END]
        for place in range(1, len(bounded)):
            expected -= math.log(probability(tuple(bounded[max(0, place - order + 1) : place]), bounded[place]))
    data = documents_of(held, tokenizer, tmp_path / "b")
    batch = objective.batch(data, CounterRng(seed=0, step=0, first_example=0), range(objective.epoch_size(data)))
    assert objective.counts(batch)["ngram"] == sum(map(len, held)) + len(held)
    assert objective(batch)[0]["ngram"].item() == pytest.approx(expected, rel=1e-6)

    context = [START, *sentences[3][:3]]
    ids = [objective.bos_id if word == START else tokenizer.id_of(word) for word in context]
    scores, _ = objective.step(torch.tensor([ids]))
    assert scores[0].exp().sum().item() == pytest.approx(1, abs=1e-5)
    for word in ("w0", "w7", "w299"):
        wanted = probability(tuple(context[len(context) - order + 1 :]) if order > 1 else (), word)
        assert scores[0, tokenizer.id_of(word)].exp().item() == pytest.approx(wanted, rel=1e-5)


def test_steps_equal_the_whole_sequence(tokenizer: Tokenizer, tmp_path: Path) -> None:
    objective = learn(documents_of(made_up(300), tokenizer, tmp_path / "a"), tokenizer, order=3)
    ids = torch.tensor([[objective.bos_id, 6, 7, objective.eos_id, 5], [objective.bos_id, 9, 8, 5, 6]])
    whole, _ = objective.step(ids)
    scores, state = objective.step(ids[:, :1])
    for place in range(1, 5):
        scores, state = objective.step(ids[:, place : place + 1], state)
    assert torch.equal(scores, whole)
    fresh, _ = objective.step(torch.tensor([[objective.bos_id, 5]]))  # context does not cross sentences
    assert torch.equal(fresh[0], whole[0])
    assert scores[:, objective.bos_id].isneginf().all()


def test_counts_do_not_depend_on_memory_and_threads(tokenizer: Tokenizer, tmp_path: Path) -> None:
    data = documents_of(made_up(2000), tokenizer, tmp_path / "a")
    whole = learn(data, tokenizer, order=4)
    torch.set_num_threads(2)
    little = learn(data, tokenizer, order=4, memory=4e-4)
    torch.set_num_threads(1)
    assert whole.notes() == []
    assert "sorted in 2 parts on disk" in little.notes()[0]
    for name, value in whole.state_dict().items():
        assert torch.equal(value, little.state_dict()[name]), name
    with pytest.raises(UsageError, match=r"memory is 1e-06: raise it \(memory"):
        learn(data, tokenizer, memory=1e-6)
    alone = learn(data, tokenizer, order=1)
    assert learn(data, tokenizer, order=1, memory=1e-6).notes() == alone.notes()  # unigrams are not sorted


def test_special_tokens_in_the_text_are_unknown_words(tokenizer: Tokenizer, tmp_path: Path) -> None:
    sentences = made_up(50)
    bounded = documents_of([[*sentences[0], "[SEP]", "[CLS]", "w1"], *sentences[1:]], tokenizer, tmp_path / "a")
    plain = documents_of([[*sentences[0], UNKNOWN, UNKNOWN, "w1"], *sentences[1:]], tokenizer, tmp_path / "b")
    ours, theirs = (learn(data, tokenizer, order=3).state_dict() for data in (bounded, plain))
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def test_each_step_adds_an_order_and_resume_is_bit_exact(english_corpus: Path, tmp_path: Path) -> None:
    evaluations: list[float] = []

    def on_event(event: dict[str, Any]) -> None:
        if event["event"] == "evaluation":
            evaluations.append(event["loss"])

    def stop(event: dict[str, Any]) -> None:
        if event["event"] == "step" and event["step"] == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    model = pretrain("ngram", english_corpus, out=tmp_path / "m", order=4, on_event=on_event)
    assert len(evaluations) == 5
    assert evaluations == sorted(evaluations, reverse=True)
    words = sum(number not in model.tokenizer.special_ids for number in range(len(model.tokenizer)))
    assert evaluations[0] == pytest.approx(math.log(words + 2))
    again = Model.load(tmp_path / "m")
    again.save(tmp_path / "copy")
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("m", "copy"))
    assert one == two
    assert isinstance(again.objective, NgramCounting)
    assert again.objective.estimated_orders == 4
    with pytest.raises(Interrupted):
        pretrain("ngram", english_corpus, out=tmp_path / "cut", order=4, on_event=stop)
    assert pretrain("ngram", english_corpus, out=tmp_path / "cut", order=4).fingerprint() == model.fingerprint()
    with pytest.raises(UsageError, match="ngram cannot continue pre-training"):
        pretrain(tmp_path / "m", english_corpus, out=tmp_path / "n")


@pytest.mark.parametrize("length", [{"minutes": 20}, {"steps": 2}, {"epochs": 5}, {"epochs": 0.5}])
def test_count_based_systems_refuse_minutes_steps_and_epochs(
    english_corpus: Path, tmp_path: Path, length: dict[str, Any]
) -> None:
    for name in ("ngram", "onehot", "wordclass"):
        with pytest.raises(UsageError, match=f"^{name} is count-based .* once: leave out {next(iter(length))}$"):
            pretrain(name, english_corpus, out=tmp_path / name, **length)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("batch", [7, 1000])
def test_all_orders_are_counted_whatever_the_batch(english_corpus: Path, tmp_path: Path, batch: int) -> None:
    model = pretrain("ngram", english_corpus, out=tmp_path / "m", order=3, epochs=1, batch=batch)
    assert isinstance(model.objective, NgramCounting)
    assert model.objective.estimated_orders == 3


def test_chinese_words_and_characters(chinese_corpus: Path, tmp_path: Path) -> None:
    for kind in ("words", "characters"):
        model = pretrain("ngram", chinese_corpus, out=tmp_path / kind, tokenizer=kind, order=3, vocabulary=500)
        assert model.card.scores["ngram"] < 0.5 * math.log(len(model.tokenizer))


def test_finetuning_and_encoding_are_refused(english_corpus: Path, tmp_path: Path) -> None:
    model = pretrain("ngram", english_corpus, out=tmp_path / "m", order=2)
    examples = [("a sailor", "who"), ("an anchor", "what")] * 5
    for base in (model, "ngram"):
        with pytest.raises(KeelError, match="ngram has no word vectors to fine-tune"):
            finetune(base, examples, dev=None)
    with pytest.raises(KeelError, match="ngram has no word vectors"):
        model.encode("the sailor")


def test_small_corpora_use_fallback_discounts(tmp_path: Path) -> None:
    events: list[str] = []
    pretrain(
        "ngram", Corpus.of(["a b c", "a b d"]), out=tmp_path / "m", order=2, held_out=0.0,
        on_event=lambda event: events.append(str(event.get("text"))),
    )  # fmt: skip
    assert any("too small to estimate the discounts of 2-grams: using 0.5, 1 and 1.5" in text for text in events)
    with pytest.raises(KeelError, match="fewer than two frequent enough words"):
        pretrain("ngram", Corpus.of(["word word word"] * 9), out=tmp_path / "one")
    with pytest.raises(UsageError, match="order must be 1 or more, not 0"):
        Ngram(order=0)
    for memory in (0.0, 1e-10, math.inf):
        with pytest.raises(UsageError, match="memory must be"):
            Ngram(order=1, memory=memory)


def test_a_damaged_table_is_refused(english_corpus: Path, tmp_path: Path) -> None:
    from keel.formats.model_folder import read_tensors, write_tensors

    pretrain("ngram", english_corpus, out=tmp_path / "m", order=2)
    tensors = {name: value.clone() for name, value in read_tensors(tmp_path / "m" / "model.safetensors").items()}
    assert tensors["ngram.words"].dtype == torch.int32
    words = tensors["ngram.words"]
    write_tensors(tmp_path / "m" / "model.safetensors", tensors | {"ngram.words": words.float()})
    with pytest.raises(KeelError, match=rf"ngram\.words is {len(words)} of float32, but config\.json needs"):
        Model.load(tmp_path / "m")
    write_tensors(tmp_path / "m" / "model.safetensors", tensors | {"ngram.words": words[:-3].clone()})
    with pytest.raises(KeelError, match="not of one model"):
        Model.load(tmp_path / "m")


@pytest.mark.slow
def test_wikitext_perplexity_equals_that_of_lmplz(data_dir: Path, tmp_path: Path) -> None:
    """Its perplexity for these sentences, by lmplz of KenLM 0.3.0 (benchmarks/ngram.py): 190.3035."""
    from keel.data.text_files import open_text
    from keel.explain.perplexity import perplexity

    folder = data_dir / "tasks" / "wikitext2"
    words = {word for _, line in open_text(folder / "train.txt.xz") for word in line.split()}
    Tokenizer.from_whitespace_words(sorted(words)).save(tmp_path / "words")
    model = pretrain(
        "ngram", folder / "train.txt.xz", out=tmp_path / "m", tokenizer=str(tmp_path / "words"), held_out=0.0
    )
    found = perplexity(model, Corpus(folder / "test.txt.xz"))
    assert found.values["ngram per token"].value == pytest.approx(190.3035, rel=1e-4)
    assert found.unknown == 0
    assert np.isfinite(found.main_value)
