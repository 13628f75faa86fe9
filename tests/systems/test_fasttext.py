"""fastText: hashes equal those of the original, updates equal the gradients, out-of-vocabulary words have vectors."""

from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from keel.api.finetuning import finetune
from keel.api.pretraining import pretrain
from keel.api.vectors import analogy, nearest, odd, similarity
from keel.data.documents import Documents
from keel.data.token_batch import SubwordUnits, TokenBatch
from keel.data.token_store import Tokens
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError, UsageError
from keel.kernels.fasttext_updates import hash_subwords
from keel.model import Model
from keel.systems.fasttext import FastText, FastTextEncoder, FastTextTraining
from keel.systems.word2vec import ContextWindows
from keel.training.counter_rng import CounterRng

WORDS = ["the", "aaaa", "of", "中文", "é", "running", "runner", "x", "</s>", *(f"w{n}" for n in range(50))]
QUICK: dict[str, Any] = {"vocabulary": 200, "batch": 4, "width": 16, "chunk_length": 40, "threads": 1, "buckets": 500}
QUICK["subsample"] = 1e-2  # a small text has few words


def hashed(gram: str) -> int:
    state = 2166136261
    for byte in gram.encode("utf-8", "surrogatepass"):
        state = (state ^ (byte - 256 if byte > 127 else byte) % 2**32) * 16777619 % 2**32
    return state


def grams_of(word: str, least: int, most: int) -> list[str]:
    """By Python's characters, as in the paper."""
    bracketed = f"<{word}>"
    return [
        gram
        for first in range(len(bracketed))
        for size in range(max(1, least), most + 1)
        if len(gram := bracketed[first : first + size]) == size and not (size == 1 and first in (0, len(bracketed) - 1))
    ]


def test_hashes_equal_those_of_fasttext() -> None:
    # What fastText 0.9.3 itself gives (Dictionary::getSubwords).
    grams, starts = hash_subwords(["the", "中文"], 3, 6, 2_000_000)
    assert grams.tolist() == [1151151, 409726, 1648960, 861980, 60934, 816280, 759167, 1688531, 1876513]
    assert starts.tolist() == [0, 6]


@pytest.mark.parametrize(("least", "most", "buckets"), [(3, 6, 2_000_000), (1, 2, 7), (0, 4, 100_003), (0, 0, 10)])
def test_ngrams_are_of_characters_and_hashed_by_signed_bytes(least: int, most: int, buckets: int) -> None:
    rng = np.random.default_rng(0)
    characters = list("abcxyz<>-é ßñ中文字𝛼👍🏽\u0301\x00\x7f\x80\uffff")
    words = ["".join(rng.choice(characters, size)) for size in rng.integers(1, 12, 200)] + ["a", "中", "x" * 5000]
    grams, starts = hash_subwords(words, least, most, buckets)
    found = np.split(grams, starts[1:])
    for word, buckets_of_word in zip(words, found, strict=True):
        assert buckets_of_word.tolist() == [hashed(gram) % buckets for gram in grams_of(word, least, most)]


def test_empty_and_end_of_line_have_no_ngrams() -> None:
    grams, starts = hash_subwords(["", "</s>", "a", ""], 1, 3, 10)
    assert starts.tolist() == [0, 0, 0, len(grams)]
    assert len(grams) == 1 + 2 + 1  # a, <a and a>, <a>


@pytest.fixture(scope="module")
def documents() -> Documents:
    rng = np.random.default_rng(0)
    share = 1 / np.arange(1, len(WORDS) + 5)
    ids = rng.choice(np.arange(1, len(WORDS) + 5), 3000, p=share / share.sum())
    starts = np.concatenate([[0], np.sort(rng.choice(np.arange(1, 3000), 200, replace=False)), [3000]])
    bounds = np.append(np.arange(0, len(starts) - 1, 7), len(starts) - 1)
    tokens = SimpleNamespace(ids=ids.astype(np.uint16), starts=starts, documents=bounds, word_starts=None, units=None)
    return Documents.of(cast(Tokens, tokens))


def make(**fields: Any) -> FastTextTraining:
    torch.manual_seed(0)
    settings = {"width": 20, "window": 3, "chunk_length": 50, "subsample": 1e-2, "buckets": 97, **fields}
    system = FastText(**settings)
    tokenizer = Tokenizer.from_words(WORDS)
    objective = system.build_objective(system.build_encoder(len(tokenizer)), tokenizer)
    with torch.no_grad():
        for table in (objective.encoder.words.weight, objective.encoder.grams.weight, objective.contexts):
            table.normal_()
    return objective


@pytest.mark.parametrize("architecture", ["skipgram", "cbow"])
@pytest.mark.parametrize(("negatives", "width"), [(1, 20), (5, 32)])
def test_updates_equal_the_gradients_of_the_loss(
    documents: Documents, architecture: Any, negatives: int, width: int
) -> None:
    """Window after window, in float64: one step down the gradient of `forward`."""
    ours = make(architecture=architecture, negatives=negatives, width=width)
    theirs = deepcopy(ours).double()
    rng, lr = CounterRng(seed=1, step=3, first_example=12), 0.05
    sums, counts = ours.update(documents, rng, range(4), lr, 1)
    batch = theirs.batch(documents, rng, range(4))
    loss, predictions = 0.0, 0.0
    tables = [theirs.encoder.words.weight, theirs.encoder.grams.weight, theirs.contexts]
    for number in range(len(batch.context)):
        near, present, targets, compared, truths = (value[number : number + 1] for value in batch.tensors())
        one = ContextWindows(
            context=near, context_mask=present.double(), targets=targets, target_mask=compared.double(), labels=truths
        )
        theirs.zero_grad()
        found = theirs(one)[0]["negative"]
        found.backward()
        loss += found.item()
        predictions += theirs.counts(one)["negative"].item()
        # Each vector of a mean gets the whole gradient, as in the authors' code.
        share = (1 + theirs.subword_units.unit_counts[near[present > 0]]).sum()
        with torch.no_grad():
            for table, scale in zip(tables, (share, share, 1), strict=True):
                assert table.grad is not None
                table.sub_(lr * scale * table.grad)
    assert sums["negative"] == pytest.approx(loss, rel=1e-5)
    assert counts["negative"] == predictions > 50
    assert make(architecture=architecture, negatives=negatives).update(documents, rng, range(4), lr, 2)[1] == counts
    for mine, table in zip((ours.encoder.words.weight, ours.encoder.grams.weight, ours.contexts), tables, strict=True):
        torch.testing.assert_close(mine.double(), table, rtol=1e-4, atol=1e-5)


def test_an_empty_batch_has_no_loss() -> None:
    objective, none = make(), torch.zeros(0, 3)
    batch = ContextWindows(context=none.long(), context_mask=none, targets=none.long(), target_mask=none, labels=none)
    assert objective(batch)[0]["negative"].item() == objective.counts(batch)["negative"].item() == 0


def test_a_vector_is_the_mean_of_word_and_ngram_vectors() -> None:
    encoder, system, tokenizer = make().encoder, FastText(buckets=97), Tokenizer.from_words(WORDS)
    (ids,) = tokenizer.encode_many(["the jumping </s> [UNK]"], oov_ids=True)
    rows = system.with_subword_units(TokenBatch.pad([ids]), tokenizer)
    found = encoder.embed(rows)[0]

    def grams(word: str) -> torch.Tensor:
        return encoder.grams.weight[[hashed(gram) % 97 for gram in grams_of(word, 3, 6)]]

    known = torch.cat([encoder.words.weight[[tokenizer.id_of("the")]], grams("the")]).mean(0)
    torch.testing.assert_close(found[0], known)
    torch.testing.assert_close(found[1], grams("jumping").mean(0))
    assert found[-1].eq(0).all()  # a special token has no n-grams and a zero vector
    alone = FastText(min_n=0, max_n=0).with_subword_units(TokenBatch.pad([ids[1:2]]), tokenizer)
    assert encoder.embed(alone).eq(0).all()  # an unseen word without n-grams


def test_oov_ids_follow_the_vocabulary() -> None:
    tokenizer = Tokenizer.from_words(["the", "cat"])
    closed = tokenizer.encode_many(["The Zebra and the zebra"])[0]
    assert closed.count(tokenizer.unknown_id) == 3
    ids, again = tokenizer.encode_many(["The Zebra and the zebra", "and the cat"], oov_ids=True)
    assert ids[1] == ids[4] == len(tokenizer)
    assert [tokenizer.token_of(number) for number in ids] == ["the", "zebra", "and", "the", "zebra"]
    assert again[0] == ids[2]
    encoded = tokenizer.encode_with_offsets(["The Zebra"], oov_ids=True)[0]
    assert encoded.ids == ids[:2]
    assert len(tokenizer) == 7
    with pytest.raises(KeelError, match="no token with id 99: this tokenizer has 7 tokens"):
        tokenizer.token_of(99)


def test_subword_units_are_selected_word_by_word() -> None:
    whole = SubwordUnits(
        word_ids=torch.tensor([5, -1, 6]), unit_ids=torch.tensor([1, 2, 3, 4, 5]), unit_starts=torch.tensor([0, 2, 2])
    )
    part = whole.index_select(torch.tensor([2, 1, 0]))
    assert part.word_ids.tolist() == [6, -1, 5]
    assert part.unit_ids.tolist() == [3, 4, 5, 1, 2]
    assert part.unit_starts.tolist() == [0, 3, 3]


def test_train_save_load_and_finetune(english_corpus: Path, tmp_path: Path) -> None:
    model = pretrain("fasttext", english_corpus, out=tmp_path / "m", epochs=1, **QUICK)
    again = Model.load(tmp_path / "m")
    assert again.system == model.system
    assert isinstance(again.encoder, FastTextEncoder)
    space = again.vector_space()
    place = space.words.index("farmer")
    np.testing.assert_allclose(again.encode("farmer"), space.matrix[place], rtol=1e-5)
    # An out-of-vocabulary word is near those that share its n-grams.
    assert "farmer" in [found.word for found in nearest("farmerish", model=again, top=5)]
    assert similarity("farmer", "farmerish", model=again) > 0.3
    assert len(analogy("farmerish - farmer + pilot", model=again, top=3)) == 3
    assert len(odd("farmer farmerish pilot", model=again)) == 3
    assert np.isfinite(again.encode("the " + "x" * 100_000)).all()
    assert again.encode(["farmerish"], pool="none")[0].tokens == ["farmerish"]
    examples = [("the farmer is good", "good"), ("the pilotlike was bad", "bad")] * 10
    for freeze in (False, True):
        tuned = finetune(again, examples, dev=None, epochs=30, lr=0.1, freeze=freeze)
        tuned.save(tmp_path / f"t{freeze}")
        assert str(Model.load(tmp_path / f"t{freeze}").predict("pilotlikes bad").label) == "bad"


def test_only_units_of_the_examples_are_updated(english_corpus: Path, tmp_path: Path) -> None:
    model = pretrain("fasttext", english_corpus, out=tmp_path / "m", epochs=1, **QUICK)
    assert isinstance(model.encoder, FastTextEncoder)
    tuned = finetune(model, [("farmer", "a"), ("unheardof", "b")] * 5, dev=None, epochs=2, lr=0.1)
    assert isinstance(tuned.encoder, FastTextEncoder)
    changed = tuned.encoder.grams.weight.ne(model.encoder.grams.weight).any(1).nonzero().flatten().tolist()
    updated_buckets = {hashed(gram) % 500 for word in ("farmer", "unheardof") for gram in grams_of(word, 3, 6)}
    assert set(changed) == updated_buckets
    words = tuned.encoder.words.weight.ne(model.encoder.words.weight).any(1).nonzero().flatten().tolist()
    assert words == [model.tokenizer.id_of("farmer")]


def test_resume_is_bit_exact(english_corpus: Path, tmp_path: Path) -> None:
    settings = {**QUICK, "steps": 8, "schedule": "constant"}
    whole = pretrain("fasttext", english_corpus, out=tmp_path / "whole", **settings)
    pretrain("fasttext", english_corpus, out=tmp_path / "cut", **{**settings, "steps": 3})  # pyright: ignore[reportArgumentType]
    cut = pretrain("fasttext", english_corpus, out=tmp_path / "cut", **settings)
    for name, value in whole.encoder.state_dict().items():
        assert torch.equal(cut.encoder.state_dict()[name], value)


def test_invalid_settings_are_refused() -> None:
    with pytest.raises(UsageError, match="min_n must be between 0 and max_n"):
        FastText(min_n=4, max_n=3)
    with pytest.raises(UsageError, match="buckets must be 1 or more"):
        FastText(buckets=0)
