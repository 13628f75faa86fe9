"""N-grams: every probability is the formula's, whatever the memory; what is too small or cannot go on is said."""

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
    """Sentences whose next word hangs on the last two, some words frequent and many rare."""
    draw = random.Random(seed)
    words = [f"w{number}" for number in range(300)]
    table: dict[tuple[str, str], list[str]] = defaultdict(lambda: [words[int(300 * draw.random() ** 6)] for _ in "abc"])
    sentences = []
    for _ in range(count):
        sentence = ["w0", words[int(300 * draw.random() ** 4)]]
        for _ in range(draw.randint(0, 12)):
            after = table[sentence[-2], sentence[-1]]
            sentence.append(draw.choice(after) if draw.random() < 0.8 else words[int(300 * draw.random() ** 4)])
        sentences.append(sentence)
    return [*sentences, ["w7"], ["w7"]]


def counted(sentences: list[list[str]], order: int) -> Grams:
    """Chen and Goodman's counts, by the letter."""
    raw: Grams = {n: Counter() for n in range(1, order + 1)}
    for sentence in sentences:
        marked = [START, *sentence, END]
        for n in raw:
            for place in range(len(marked) - n + 1):
                raw[n][tuple(marked[place : place + n])] += 1
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
    """p(word | context), by the letter."""
    taken = {n: discounts(counts) for n, counts in grams.items()}
    followers: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for counts in grams.values():
        for gram, count in counts.items():
            followers[gram[:-1]].append(count)

    def chance(context: tuple[str, ...], word: str) -> float:
        n = len(context) + 1
        after = followers[context]
        lower = chance(context[1:], word) if context else 1 / words
        if not after:
            return lower
        count = grams[n].get((*context, word), 0)
        spared = sum(taken[n][min(value, 3)] for value in after)
        return (max(0, count - taken[n][min(count, 3)]) + spared * lower) / sum(after)

    return chance


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
def test_every_probability_is_the_formulas(tokenizer: Tokenizer, tmp_path: Path, order: int, size: int) -> None:
    sentences = made_up(size)
    objective = learn(documents_of(sentences, tokenizer, tmp_path / "a"), tokenizer, order=order)
    grams = counted(sentences, order)
    assert objective.encoder.sizes[1:] == [len(grams[n]) for n in range(2, order + 1)]
    chance = formula(grams, words=300 + 2)  # and the end of a sentence, and what is unknown
    for n, row in enumerate(objective.discounts.tolist(), 1):
        assert row == pytest.approx(discounts(grams[n])[1:], rel=1e-6)
    held = [*made_up(60, seed=1), ["w1", UNKNOWN, "w2", "w3", "w1"]]
    expected = 0.0
    for sentence in held:
        marked = [START, *sentence, END]
        for place in range(1, len(marked)):
            expected -= math.log(chance(tuple(marked[max(0, place - order + 1) : place]), marked[place]))
    data = documents_of(held, tokenizer, tmp_path / "b")
    batch = objective.batch(data, CounterRng(seed=0, step=0, first_example=0), range(objective.epoch_size(data)))
    assert objective.counts(batch)["ngram"] == sum(map(len, held)) + len(held)
    assert objective(batch)[0]["ngram"].item() == pytest.approx(expected, rel=1e-6)

    context = [START, *sentences[3][:3]]
    ids = [objective.bos_id if word == START else tokenizer.id_of(word) for word in context]
    scores, _ = objective.step(torch.tensor([ids]))
    assert scores[0].exp().sum().item() == pytest.approx(1, abs=1e-5)
    for word in ("w0", "w7", "w299"):
        wanted = chance(tuple(context[len(context) - order + 1 :]) if order > 1 else (), word)
        assert scores[0, tokenizer.id_of(word)].exp().item() == pytest.approx(wanted, rel=1e-5)


def test_what_is_read_step_by_step_is_what_is_read_at_once(tokenizer: Tokenizer, tmp_path: Path) -> None:
    objective = learn(documents_of(made_up(300), tokenizer, tmp_path / "a"), tokenizer, order=3)
    ids = torch.tensor([[objective.bos_id, 6, 7, objective.eos_id, 5], [objective.bos_id, 9, 8, 5, 6]])
    whole, _ = objective.step(ids)
    scores, state = objective.step(ids[:, :1])
    for place in range(1, 5):
        scores, state = objective.step(ids[:, place : place + 1], state)
    assert torch.equal(scores, whole)
    anew, _ = objective.step(torch.tensor([[objective.bos_id, 5]]))  # a sentence knows nothing of the one before
    assert torch.equal(anew[0], whole[0])
    assert scores[:, objective.bos_id].isneginf().all()


def test_memory_and_threads_change_nothing(tokenizer: Tokenizer, tmp_path: Path) -> None:
    data = documents_of(made_up(2000), tokenizer, tmp_path / "a")
    whole = learn(data, tokenizer, order=4)
    torch.set_num_threads(2)
    little = learn(data, tokenizer, order=4, memory=4e-4)
    torch.set_num_threads(1)
    assert whole.notes() == []
    assert "sorted in 2 parts, on disk" in little.notes()[0]
    for name, value in whole.state_dict().items():
        assert torch.equal(value, little.state_dict()[name]), name
    with pytest.raises(UsageError, match=r"memory is 1e-06: raise it \(system.memory"):
        learn(data, tokenizer, memory=1e-6)
    alone = learn(data, tokenizer, order=1)
    assert learn(data, tokenizer, order=1, memory=1e-6).notes() == alone.notes()  # single words are not sorted


def test_marks_written_in_a_text_are_unknown_words(tokenizer: Tokenizer, tmp_path: Path) -> None:
    sentences = made_up(50)
    marked = documents_of([[*sentences[0], "[SEP]", "[CLS]", "w1"], *sentences[1:]], tokenizer, tmp_path / "a")
    plain = documents_of([[*sentences[0], UNKNOWN, UNKNOWN, "w1"], *sentences[1:]], tokenizer, tmp_path / "b")
    ours, theirs = (learn(data, tokenizer, order=3).state_dict() for data in (marked, plain))
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def test_each_step_adds_an_order_and_the_folder_comes_back_the_same(english_corpus: Path, tmp_path: Path) -> None:
    evaluations: list[float] = []

    def hear(event: dict[str, Any]) -> None:
        if event["event"] == "evaluation":
            evaluations.append(event["loss"])

    def stop(event: dict[str, Any]) -> None:
        if event["event"] == "step" and event["step"] == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    model = pretrain("ngram", english_corpus, out=tmp_path / "m", order=4, on_event=hear)
    assert len(evaluations) == 5
    assert evaluations == sorted(evaluations, reverse=True)
    words = sum(number not in model.tokenizer.special_ids for number in range(len(model.tokenizer)))
    assert evaluations[0] == pytest.approx(math.log(words + 2))
    again = Model.load(tmp_path / "m")
    again.save(tmp_path / "copy")
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("m", "copy"))
    assert one == two
    assert isinstance(again.objective, NgramCounting)
    assert again.objective.learned == 4
    with pytest.raises(Interrupted):
        pretrain("ngram", english_corpus, out=tmp_path / "cut", order=4, on_event=stop)
    assert pretrain("ngram", english_corpus, out=tmp_path / "cut", order=4).fingerprint() == model.fingerprint()
    with pytest.raises(UsageError, match="cannot learn more: start anew"):
        pretrain(tmp_path / "m", english_corpus, out=tmp_path / "n")


@pytest.mark.parametrize("length", [{"minutes": 20}, {"steps": 2}, {"epochs": 5}, {"epochs": 0.5}])
def test_how_long_to_count_is_not_for_the_user_to_say(
    english_corpus: Path, tmp_path: Path, length: dict[str, Any]
) -> None:
    for name in ("ngram", "onehot", "wordclass"):
        with pytest.raises(UsageError, match=f"{name} counts all of a text once.*: leave out --{next(iter(length))}$"):
            pretrain(name, english_corpus, out=tmp_path / name, **length)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("batch", [7, 1000])
def test_all_orders_are_counted_whatever_the_batch(english_corpus: Path, tmp_path: Path, batch: int) -> None:
    model = pretrain("ngram", english_corpus, out=tmp_path / "m", order=3, epochs=1, batch=batch)
    assert isinstance(model.objective, NgramCounting)
    assert model.objective.learned == 3


def test_chinese_words_and_characters(chinese_corpus: Path, tmp_path: Path) -> None:
    for kind in ("words", "characters"):
        model = pretrain("ngram", chinese_corpus, out=tmp_path / kind, tokenizer=kind, order=3, vocabulary=500)
        assert model.card.scores["ngram"] < 0.5 * math.log(len(model.tokenizer))


def test_what_has_no_vectors_says_so(english_corpus: Path, tmp_path: Path) -> None:
    model = pretrain("ngram", english_corpus, out=tmp_path / "m", order=2)
    examples = [("a sailor", "who"), ("an anchor", "what")] * 5
    for base in (model, "ngram"):
        with pytest.raises(KeelError, match="ngram counts words and has no vectors that a task could learn from"):
            finetune(base, examples, dev=None)
    with pytest.raises(KeelError, match="ngram has no vectors: it counts words"):
        model.encode("the sailor")


def test_a_text_that_is_too_small_is_told(tmp_path: Path) -> None:
    said: list[str] = []
    pretrain(
        "ngram", Corpus.of(["a b c", "a b d"]), out=tmp_path / "m", order=2, held_out=0.0,
        on_event=lambda event: said.append(str(event.get("text"))),
    )  # fmt: skip
    assert any("too small to tell what to take from the counts of 2-grams: 0.5, 1 and 1.5" in text for text in said)
    with pytest.raises(KeelError, match="fewer than two words"):
        pretrain("ngram", Corpus.of(["word word word"] * 9), out=tmp_path / "one")
    with pytest.raises(UsageError, match="order must be 1 or more, not 0"):
        Ngram(order=0)
    for memory in (0.0, 1e-10, math.inf):
        with pytest.raises(UsageError, match="memory must be a number of GiB that makes a byte or more, not"):
            Ngram(order=1, memory=memory)


def test_a_damaged_table_is_refused(english_corpus: Path, tmp_path: Path) -> None:
    from keel.formats.model_folder import read_tensors, write_tensors

    pretrain("ngram", english_corpus, out=tmp_path / "m", order=2)
    tensors = {name: value.clone() for name, value in read_tensors(tmp_path / "m" / "model.safetensors").items()}
    assert tensors["ngram.words"].dtype == torch.int32
    words = tensors["ngram.words"]
    write_tensors(tmp_path / "m" / "model.safetensors", tensors | {"ngram.words": words.float()})
    with pytest.raises(KeelError, match=r"ngram\.words holds .* values of torch\.float32"):
        Model.load(tmp_path / "m")
    write_tensors(tmp_path / "m" / "model.safetensors", tensors | {"ngram.words": words[:-3].clone()})
    with pytest.raises(KeelError, match="not of one model"):
        Model.load(tmp_path / "m")


@pytest.mark.slow
def test_wikitext_gives_what_lmplz_gives(data_dir: Path, tmp_path: Path) -> None:
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
    assert found.values["ngram by token"].value == pytest.approx(190.3035, rel=1e-4)
    assert found.unknown == 0
    assert np.isfinite(found.main_value)
