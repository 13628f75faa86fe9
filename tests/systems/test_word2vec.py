"""word2vec: kernel updates equal the gradients of the reference loss; resume and folders work."""

from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from keel.api.finetuning import finetune
from keel.api.pretraining import pretrain
from keel.data.documents import Documents
from keel.data.token_batch import TokenBatch
from keel.data.token_store import Tokens
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError, UsageError
from keel.model import Model
from keel.systems.word2vec import Word2vec, Word2vecTraining, alias_table
from keel.training.counter_rng import CounterRng

SPECIALS = cast(Tokenizer, SimpleNamespace(special_ids=[0, 1, 2, 3, 4], unknown_id=1))
WORDS = 60
QUICK: dict[str, Any] = {"vocabulary": 200, "batch": 4, "width": 16, "chunk_length": 40, "threads": 1}


@pytest.fixture(scope="module")
def documents() -> Documents:
    rng = np.random.default_rng(0)
    ids = rng.choice(np.arange(1, WORDS + 5), 6000, p=(share := 1 / np.arange(1, WORDS + 5)) / share.sum())
    starts = np.append(np.sort(rng.choice(np.arange(1, 6000), 400, replace=False)), 6000)
    starts = np.concatenate([[0], starts])
    bounds = np.append(np.arange(0, len(starts) - 1, 7), len(starts) - 1)
    tokens = SimpleNamespace(ids=ids.astype(np.uint16), starts=starts, documents=bounds, word_starts=None, units=None)
    return Documents.of(cast(Tokens, tokens))


def make(**fields: Any) -> Word2vecTraining:
    torch.manual_seed(0)
    system = Word2vec(**{"width": 20, "window": 3, "chunk_length": 50, "subsample": 1e-2, **fields})
    objective = system.build_objective(system.build_encoder(WORDS + 5), SPECIALS)
    with torch.no_grad():
        objective.encoder.words.weight.normal_()
        objective.contexts.normal_()
    return objective


def blocks(centers: list[int], most: int) -> list[range]:
    """Windows that are updated together: consecutive ones of different centers."""
    found = [range(0)]
    for number, center in enumerate(centers):
        if len(found[-1]) == most or center in [centers[other] for other in found[-1]]:
            found.append(range(number, number))
        found[-1] = range(found[-1].start, number + 1)
    return found


@pytest.mark.parametrize("architecture", ["skipgram", "cbow"])
@pytest.mark.parametrize(
    ("loss", "negatives", "width", "window"),
    [("negative", 5, 20, 3), ("negative", 1, 32, 3), ("negative", 7, 20, 1), ("hierarchical", 5, 20, 3)],
)
def test_updates_equal_the_gradients_of_the_loss(
    documents: Documents, architecture: Any, loss: Any, negatives: int, width: int, window: int
) -> None:
    """Block after block of windows, in float64: one step down the gradient of `forward`."""
    ours = make(architecture=architecture, loss=loss, negatives=negatives, width=width, window=window)
    theirs = deepcopy(ours).double()
    rng, lr = CounterRng(seed=1, step=3, first_example=12), 0.05
    total = predictions = given = counted = 0.0
    for row in range(4):
        sums, counts = ours.update(documents, rng, range(row, row + 1), lr, 1)
        given, counted = given + sums[loss], counted + counts[loss]
        batch = theirs.batch(documents, rng, range(row, row + 1))
        for numbers in blocks(batch.targets[:, 0].tolist(), theirs.block):
            changes = [torch.zeros_like(theirs.encoder.words.weight), torch.zeros_like(theirs.contexts)]
            for number in numbers:
                one = batch.slice_examples(range(number, number + 1))
                theirs.zero_grad()
                found = theirs(one)[0][loss]
                found.backward()
                total += found.item()
                predictions += theirs.counts(one)[loss].item()
                # Each word of a mean gets the whole gradient, as in the authors' code.
                share = one.context_mask.sum() if architecture == "cbow" else 1.0
                assert theirs.encoder.words.weight.grad is not None
                assert theirs.contexts.grad is not None
                changes[0] += share * theirs.encoder.words.weight.grad
                changes[1] += theirs.contexts.grad
            with torch.no_grad():
                theirs.encoder.words.weight.sub_(lr * changes[0])
                theirs.contexts.sub_(lr * changes[1])
    assert given == pytest.approx(total, rel=1e-6)
    assert counted == predictions > 50
    torch.testing.assert_close(ours.encoder.words.weight.double(), theirs.encoder.words.weight, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.contexts.double(), theirs.contexts, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("score", [0.0, 3.0, -3.0, 40.0, -40.0, 200.0, -200.0])
def test_losses_are_accurate_for_extreme_scores(documents: Documents, score: float) -> None:
    objective = make(subsample=0.0)
    with torch.no_grad():
        objective.encoder.words.weight.fill_(0.0)[:, 0] = 1.0
        objective.contexts.fill_(0.0)[:, 0] = score
    rng = CounterRng(seed=1, step=0, first_example=0)
    expected = objective(objective.batch(documents, rng, range(3)))[0]["negative"].item()
    sums, _ = objective.update(documents, rng, range(3), 0.0, 1)
    assert sums["negative"] == pytest.approx(expected, rel=1e-5)


def test_windows_stay_inside_sentences_and_skip_special_tokens(documents: Documents) -> None:
    objective = make(subsample=0.0, window=4, chunk_length=6000)
    batch = objective.batch(documents, CounterRng(seed=0, step=0, first_example=0), range(1))
    ids, starts = documents.read(torch.arange(6000)).tolist(), documents.starts.tolist()
    near = {
        (ids[a], ids[b])
        for begin, stop in pairwise(starts)
        for kept in [[place for place in range(begin, stop) if ids[place] > 4]]
        for i, a in enumerate(kept)
        for b in kept[max(0, i - 4) : i + 5]
        if a != b
    }
    rows = zip(batch.targets[:, 0].tolist(), batch.context.tolist(), batch.context_mask.tolist(), strict=True)
    seen = {(center, word) for center, words, there in rows for word, real in zip(words, there, strict=True) if real}
    assert len(seen) > 100
    assert seen <= near
    assert batch.targets[:, 0].min() > 4


def test_subsampling_keeps_rare_words() -> None:
    from keel.systems.word2vec import sampling_tables

    counts = np.array([0, 1_000_000, 10_000, 10])
    keep = sampling_tables(counts, 1e-3, 0.75).keep / 2**32
    share = counts / counts.sum()
    assert keep[0] == 0
    assert keep[1] == pytest.approx((1e-3 / share[1]) ** 0.5 + 1e-3 / share[1], rel=1e-6)
    assert keep[3] == 1


def test_alias_table_follows_the_weights() -> None:
    weights = np.array([0.0, 1.0, 2.0, 5.0, 0.5])
    probabilities, others = alias_table(weights)
    found = np.zeros(5)
    for place, (probability, other) in enumerate(zip(probabilities, others, strict=True)):
        found[place] += probability / 5
        found[other] += (1 - probability) / 5
    np.testing.assert_allclose(found, weights / weights.sum(), atol=1e-12)


def test_one_thread_is_bit_exact_and_two_reach_the_same_loss(english_corpus: Path, tmp_path: Path) -> None:
    one, two = (pretrain("word2vec", english_corpus, out=tmp_path / name, epochs=2, **QUICK) for name in "ab")
    assert torch.equal(one.encoder.state_dict()["words.weight"], two.encoder.state_dict()["words.weight"])
    events: list[dict[str, Any]] = []
    many = {**QUICK, "threads": 2}
    pretrain("word2vec", english_corpus, out=tmp_path / "c", epochs=2, on_event=events.append, **many)
    assert any("threads=1" in event.get("text", "") for event in events)


def test_train_save_load_and_finetune(english_corpus: Path, tmp_path: Path) -> None:
    model = pretrain("word2vec", english_corpus, out=tmp_path / "m", epochs=1, **QUICK)
    again = Model.load(tmp_path / "m")
    assert again.system == model.system
    assert again.objective is not None
    examples = [("the farmer is good", "good"), ("the pilot was bad", "bad")] * 10
    for freeze in (False, True):
        tuned = finetune(again, examples, dev=None, epochs=30, lr=0.1, freeze=freeze)
        tuned.save(tmp_path / f"t{freeze}")
        assert str(Model.load(tmp_path / f"t{freeze}").predict("the pilot was bad").label) == "bad"
    assert again.encode(["the farmer", "the pilot"]).shape == (2, 16)


def test_resume_is_bit_exact(english_corpus: Path, tmp_path: Path) -> None:
    import os
    import signal

    from keel.errors import Interrupted

    settings = {**QUICK, "epochs": 2, "log_every": 1}

    def stop(event: dict[str, Any]) -> None:
        if event["event"] == "step" and event["step"] == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        pretrain("word2vec", english_corpus, out=tmp_path / "cut", on_event=stop, **settings)
    cut = pretrain("word2vec", english_corpus, out=tmp_path / "cut", **settings)
    whole = pretrain("word2vec", english_corpus, out=tmp_path / "whole", **settings)
    assert torch.equal(cut.encoder.state_dict()["words.weight"], whole.encoder.state_dict()["words.weight"])


def test_a_text_is_the_mean_of_its_words() -> None:
    encoder = make().encoder
    rows = TokenBatch.pad([[5, 6, 7], [8]])
    found = encoder.pooled_features(rows)
    weights = encoder.words.weight
    torch.testing.assert_close(found, torch.stack([weights[[5, 6, 7]].mean(0), weights[8]]))


def test_the_huffman_tree_stays_with_its_vectors(english_corpus: Path, tmp_path: Path) -> None:
    """Continued pre-training on text with other frequent words must not reassign the vectors of nodes."""
    first = pretrain("word2vec", english_corpus, out=tmp_path / "a", epochs=1, loss="hierarchical", **QUICK)
    (tmp_path / "other.txt").write_text("the pilot was bad and the farmer was good\n\n" * 200)
    settings = {name: QUICK[name] for name in ("batch", "threads", "chunk_length")}
    second = pretrain(tmp_path / "a", tmp_path / "other.txt", out=tmp_path / "b", epochs=1, **settings)
    assert isinstance(first.objective, Word2vecTraining)
    assert isinstance(second.objective, Word2vecTraining)
    assert first.objective.counts_of_tree.sum() > 0
    assert torch.equal(first.objective.counts_of_tree, second.objective.counts_of_tree)


def test_only_training_documents_are_counted(documents: Documents) -> None:
    some, _ = Documents.split_held_out(documents, 0.5, seed=0)
    objective = make(loss="hierarchical")
    objective.setup(some)
    counts = objective.counts_of_tree
    positions = np.concatenate([np.arange(*documents.starts[span].tolist()) for span in some.spans])
    expected = np.bincount(documents.read(torch.from_numpy(positions)).numpy(), minlength=WORDS + 5)
    expected[SPECIALS.special_ids] = 0
    assert counts.tolist() == expected.tolist()


def test_a_new_dataset_at_the_address_of_a_freed_one_is_read_again() -> None:
    objective = make(subsample=0.0)
    for word in range(5, 45):  # each is freed before the next one is made, which then often has the same id
        ids = np.full(60, word, np.uint16)
        ids[::2] += 1
        tokens = SimpleNamespace(
            ids=ids, starts=np.array([0, 60]), documents=np.array([0, 1]), word_starts=None, units=None
        )
        data = Documents.of(cast(Tokens, tokens))
        batch = objective.batch(data, CounterRng(seed=0, step=0, first_example=0), range(1))
        del data
        assert set(batch.context[batch.context_mask > 0].tolist()) <= {word, word + 1}


def test_bad_input_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("word word word word\n" * 20)
    with pytest.raises(KeelError, match="fewer than two frequent enough words"):
        pretrain("word2vec", tmp_path / "one.txt", out=tmp_path / "m", epochs=1, **QUICK)
    with pytest.raises(UsageError, match="window must be 1 or more"):
        Word2vec(window=0)
    with pytest.raises(UsageError, match="subsample"):
        Word2vec(subsample=-1.0)
