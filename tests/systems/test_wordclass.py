"""Brown clusters: every merge is the best by brute force; resume and folders work as in every system."""

import os
import signal
from itertools import combinations, pairwise
from math import log
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from keel.api.pretraining import pretrain
from keel.api.vectors import nearest
from keel.data.documents import Documents
from keel.data.token_batch import TokenBatch
from keel.data.token_store import Tokens
from keel.data.tokenizer import Tokenizer
from keel.errors import Interrupted, KeelError, UsageError
from keel.kernels import brown_clustering as kernel
from keel.model import Model
from keel.systems.wordclass import Wordclass, WordclassEncoder, count_bigrams
from keel.training.counter_rng import CounterRng

SPECIALS = cast(Tokenizer, SimpleNamespace(special_ids=[0, 1, 2, 3, 4], unknown_id=1, token_of=str))
QUICK: dict[str, Any] = {"vocabulary": 200, "classes": 8, "batch": 20}


def make_documents(words: int, tokens: int, seed: int) -> Documents:
    rng = np.random.default_rng(seed)
    share = 1 / np.arange(1, words + 5)
    ids = rng.choice(np.arange(1, words + 5), tokens, p=share / share.sum())
    ids[1::2] = np.where(rng.random(len(ids[1::2])) < 0.6, ids[::2][: len(ids[1::2])] // 3 + 5, ids[1::2])
    starts = np.concatenate([[0], np.sort(rng.choice(np.arange(1, tokens), tokens // 15, replace=False)), [tokens]])
    bounds = np.append(np.arange(0, len(starts) - 1, 7), len(starts) - 1)
    made = SimpleNamespace(ids=ids.astype(np.uint16), starts=starts, documents=bounds, word_starts=None, units=None)
    return Documents.of(cast(Tokens, made))


def bigrams_of(documents: Documents) -> dict[tuple[int, int], int]:
    ids = documents.read(torch.arange(int(documents.starts[-1]))).tolist()
    found: dict[tuple[int, int], int] = {}
    for first, last in documents.spans.tolist():
        for begin, stop in pairwise(documents.starts[first : last + 1].tolist()):
            for pair in pairwise(ids[begin:stop]):
                if min(pair) > 4:
                    found[pair] = found.get(pair, 0) + 1
    return found


def information(bigrams: dict[tuple[int, int], int], class_of: dict[int, int]) -> float:
    """Average mutual information of adjacent classes; words without a class count in the margins."""
    total = sum(bigrams.values())
    left: dict[int, int] = {}
    right: dict[int, int] = {}
    both: dict[tuple[int, int], int] = {}
    for (v, w), count in bigrams.items():
        if v in class_of:
            left[class_of[v]] = left.get(class_of[v], 0) + count
        if w in class_of:
            right[class_of[w]] = right.get(class_of[w], 0) + count
        if v in class_of and w in class_of:
            pair = class_of[v], class_of[w]
            both[pair] = both.get(pair, 0) + count
    return sum(n / total * log(n * total / (left[a] * right[b])) for (a, b), n in both.items())


@pytest.mark.parametrize(("words", "tokens", "size", "seed"), [(40, 3000, 6, 0), (70, 1500, 12, 1), (25, 400, 2, 2)])
def test_merges_equal_brute_force(words: int, tokens: int, size: int, seed: int) -> None:
    documents = make_documents(words, tokens, seed)
    bigrams = bigrams_of(documents)
    total = sum(bigrams.values())
    corpus = count_bigrams(documents, words + 5, [0, 1, 2, 3, 4])
    number = len(corpus.order)
    assert corpus.after_counts.sum() == total == corpus.before_counts.sum()
    slots, alive = np.full(number, -1), np.zeros(size + 1, bool)
    joint, shared = np.zeros((size + 1, size + 1), np.int64), np.full((size + 1, size + 1), kernel.NOT_A_PAIR)
    turned = joint.copy()
    class_of: dict[int, int] = {}
    merged = 0
    for row in range(number + size - 1):
        merges = np.full((1, 3), -1.0)
        known = kernel.n_log_n_table(50)  # larger counts are computed directly
        kernel.merge_classes(row, row + 1, number, *corpus[2:], slots, joint, turned, shared, alive, known, merges)
        if row < number:
            word = int(corpus.order[row])
            class_of[word] = next(slot for slot in range(size + 1) if slot not in class_of.values())
        if row < size:
            assert merges[0, 0] == -1
            continue
        kept, gone = merges[0, :2].astype(int).tolist()
        before = information(bigrams, class_of)
        losses = {
            (x, y): before - information(bigrams, {word: x if slot == y else slot for word, slot in class_of.items()})
            for x, y in combinations(sorted(set(class_of.values())), 2)
        }
        loss = losses[min(kept, gone), max(kept, gone)]
        assert loss == pytest.approx(min(losses.values()), abs=1e-10)
        assert merges[0, 2] / total == pytest.approx(loss, abs=1e-10)
        class_of = {word: kept if slot == gone else slot for word, slot in class_of.items()}
        merged += 1
        assert [class_of[int(word)] for word in corpus.order[: row + 1]] == slots[: row + 1].tolist()
    assert merged == number - 1
    assert len(set(class_of.values())) == 1
    assert joint.sum() == total  # counts are preserved


def test_paths_and_vectors_are_those_of_the_tree() -> None:
    encoder = WordclassEncoder(8, 3)
    encoder.classes.copy_(torch.tensor([3, 3, 3, 3, 3, 0, 1, 2]))
    encoder.counts.copy_(torch.tensor([0, 0, 0, 0, 0, 9, 7, 5]))
    encoder.merges.copy_(torch.tensor([[2, 0], [1, 3]]))  # (2, 0) is node 3; the root joins 1 and 3
    encoder.build_vectors()
    assert encoder.paths == [""] * 5 + ["11", "0", "10"]
    assert encoder.word_embeddings()[5:].tolist() == [[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 1]]
    assert not encoder.word_embeddings()[:5].any()
    assert encoder.extra_files(SPECIALS) == {"classes.tsv": "0\t6\t7\n10\t7\t5\n11\t5\t9\n"}
    rows = TokenBatch.pad([[5, 6, 7], [1, 7], []])
    torch.testing.assert_close(encoder.pooled_features(rows), encoder.pool_features(encoder(rows), rows))
    torch.testing.assert_close(encoder.pooled_features(rows)[1], torch.tensor([0, 0, 0.5, 0.5]))


def test_the_loss_is_that_of_the_class_bigram_model() -> None:
    documents = make_documents(30, 2000, 3)
    objective = Wordclass(classes=5).build_objective(WordclassEncoder(35, 5), SPECIALS)
    objective.update(documents, CounterRng(seed=0, step=0, first_example=0), range(60), 1.0, 1)
    probabilities = torch.zeros(35, 35, dtype=torch.float64)
    for v in range(5, 35):
        for w in range(5, 35):
            one = objective.batch(documents, CounterRng(seed=0, step=0, first_example=0), range(1))
            before, words, present = (value[:1, :1].clone() for value in one.tensors())
            before[:], words[:], present[:] = v, w, 1
            probabilities[v, w] = (
                objective(type(one)(before=before, words=words, present=present))[0]["bigram"].neg().exp()
            )
    classed = objective.encoder.classes < 5
    assert classed.sum() > 20
    following = objective.following.double() + 1
    v = int(torch.nonzero(classed)[0])
    within = following[int(objective.encoder.classes[v])]
    assert probabilities[v][classed].sum() == pytest.approx(float(within[:5].sum() / within.sum()))
    batch = objective.batch(documents, CounterRng(seed=0, step=0, first_example=0), range(5))
    assert objective.counts(batch)["bigram"] == sum(bigrams_of(documents).values()) - _cut(documents)


def _cut(documents: Documents) -> int:
    """Bigrams across the border of two examples."""
    ids = documents.read(torch.arange(documents.size)).tolist()
    starts = set(documents.starts.tolist())
    return sum(ids[place - 1] > 4 and ids[place] > 4 and place not in starts for place in range(1000, 2000, 1000))


def test_similar_words_share_a_class_and_classes_tsv_lists_them(english_corpus: Path, tmp_path: Path) -> None:
    model = pretrain("wordclass", english_corpus, out=tmp_path / "m", **QUICK)
    again = Model.load(tmp_path / "m")
    assert isinstance(again.encoder, WordclassEncoder)
    assert again.encoder.paths == cast(WordclassEncoder, model.encoder).paths
    lines = [line.split("\t") for line in (tmp_path / "m" / "classes.tsv").read_text().splitlines()]
    paths = {word: bits for bits, word, _ in lines}
    assert len(set(paths.values())) == 8
    assert lines == sorted(lines, key=lambda line: (line[0], -int(line[2])))
    assert paths["boat"] == paths["anchor"] == paths["hive"]
    assert paths["sailor"] == paths["judge"]
    assert paths["paints"] == paths["signs"]
    assert len({paths["boat"], paths["sailor"], paths["paints"]}) == 3
    assert {found.word for found in nearest("boat", model=again, top=5)} <= {
        word for word, bits in paths.items() if bits == paths["boat"]
    }
    assert model.card.scores["bigram"] < log(60)
    with pytest.raises(UsageError, match="keel pretrain wordclass"):
        pretrain(tmp_path / "m", english_corpus, out=tmp_path / "n")


def test_resume_gives_the_same_classes(english_corpus: Path, tmp_path: Path) -> None:
    def stop(event: dict[str, Any]) -> None:
        if event["event"] == "step" and event["step"] == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        pretrain("wordclass", english_corpus, out=tmp_path / "cut", on_event=stop, **QUICK)
    cut = pretrain("wordclass", english_corpus, out=tmp_path / "cut", **QUICK)
    whole = pretrain("wordclass", english_corpus, out=tmp_path / "whole", **QUICK)
    assert cut.objective is not None
    assert whole.objective is not None
    other = cut.objective.state_dict()
    for name, value in whole.objective.state_dict().items():
        assert torch.equal(value, other[name]), name


def test_a_new_dataset_at_the_address_of_a_freed_one_is_counted_again() -> None:
    objective = Wordclass(classes=3).build_objective(WordclassEncoder(20, 3), SPECIALS)
    for tokens in range(300, 700, 10):  # each is freed before the next one is made, which then often has the same id
        data = make_documents(10, tokens, seed=0)
        _, total = objective.update(data, CounterRng(seed=0, step=0, first_example=0), range(0), 1.0, 1)
        assert total["lost"] == count_bigrams(data, 20, SPECIALS.special_ids).after_counts.sum()
        del data


def test_bad_input_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("word word word word\n" * 20)
    with pytest.raises(KeelError, match=r"1 distinct words, too few for 8 classes: .* fewer classes"):
        pretrain("wordclass", tmp_path / "one.txt", out=tmp_path / "m", **QUICK)
    assert not (tmp_path / "m" / "config.json").exists()
    with pytest.raises(UsageError, match="classes must be 2 or more"):
        Wordclass(classes=1)
