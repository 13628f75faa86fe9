"""GloVe: co-occurrence counts, kernel updates equal AdaGrad on the reference loss, resume and folders."""

import errno
import os
import re
import signal
from collections import defaultdict
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from keel.api.conversion import convert
from keel.api.evaluation import evaluate
from keel.api.finetuning import finetune
from keel.api.pretraining import pretrain
from keel.data.documents import Documents
from keel.data.token_store import Tokens
from keel.data.tokenizer import Tokenizer
from keel.errors import Interrupted, KeelError, UsageError
from keel.kernels import cooccurrence
from keel.kernels.cooccurrence import CELL, count_cooccurrences
from keel.kernels.word_counts import TokenSpans, count_words
from keel.model import Model
from keel.systems.glove import Cooccurrences, Glove, GloveTraining
from keel.training.counter_rng import CounterRng

SPECIALS = cast(Tokenizer, SimpleNamespace(special_ids=[0, 1, 2, 3, 4], unknown_id=1))
WORDS = 400
QUICK: dict[str, Any] = {"vocabulary": 200, "batch": 2, "width": 12, "window": 5, "threads": 1, "held_out": 0.1}


@pytest.fixture(scope="module")
def documents() -> Documents:
    """1,500 tokens of 400 words and 4 special tokens, in sentences and documents of unequal length."""
    rng = np.random.default_rng(0)
    ids = rng.choice(np.arange(1, WORDS + 5), 1500, p=(share := 1 / np.arange(1, WORDS + 5)) / share.sum())
    starts = np.concatenate([[0], np.sort(rng.choice(np.arange(1, 1500), 100, replace=False)), [1500]])
    bounds = np.append(np.arange(0, len(starts) - 1, 7), len(starts) - 1)
    tokens = SimpleNamespace(ids=ids.astype(np.uint16), starts=starts, documents=bounds, word_starts=None, units=None)
    return Documents.of(cast(Tokens, tokens))


def text_of(documents: Documents) -> TokenSpans:
    begins, stops = (documents.starts[bounds].numpy() for bounds in documents.spans.T)
    return TokenSpans(documents.ids.numpy().view(np.uint16), begins, stops)


def cells_of(documents: Documents, path: Path, **settings: Any) -> np.ndarray:
    text = text_of(documents)
    counts = count_words(*text, WORDS + 5)
    counts[:5] = 0
    count_cooccurrences(text, counts, path, **{"window": 4, "scale": 1.0, "memory": 1.0, "threads": 1, **settings})
    return np.fromfile(path, CELL)


def make(**fields: Any) -> GloveTraining:
    torch.manual_seed(0)
    system = Glove(**{"width": 7, "window": 4, "x_max": 3.0, **fields})
    return system.build_objective(system.build_encoder(WORDS + 5), SPECIALS)


def test_counts_equal_a_plain_loop(documents: Documents, tmp_path: Path) -> None:
    """1 / distance to both sides, across sentences but not documents, skipping special tokens."""
    expected: defaultdict[tuple[int, int], float] = defaultdict(float)
    ids, begins, stops = text_of(documents)
    for begin, stop in zip(begins, stops, strict=True):
        words = [int(word) for word in ids[begin:stop] if word > 4]
        for place, word in enumerate(words):
            for distance in range(1, min(4, place) + 1):
                other = words[place - distance]
                # A pair is counted once as (i, j) and once as (j, i), which for i = j is the same cell.
                expected[min(word, other), max(word, other)] += (2 if word == other else 1) / distance
    cells = cells_of(documents, tmp_path / "cells")
    found = {(int(min(a, b)), int(max(a, b))): float(count) for a, b, count in cells}
    assert len(found) == len(cells) > 2000  # each pair once
    assert found.keys() == expected.keys()
    np.testing.assert_allclose([found[pair] for pair in expected], list(expected.values()), rtol=1e-6)
    assert cells_of(documents, tmp_path / "cells", scale=3.0)["count"] == pytest.approx(3 * cells["count"])


def test_little_memory_gives_the_same_file_and_too_little_is_refused(
    documents: Documents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = cells_of(documents, tmp_path / "cells")
    with pytest.raises(UsageError, match="raise it") as refused:
        cells_of(documents, tmp_path / "cells", memory=1e-6)
    least = re.search(r"memory=(\S+)\)", str(refused.value))
    assert least
    passes = []
    index = cooccurrence._index_positions
    monkeypatch.setattr(cooccurrence, "_index_positions", lambda *given: passes.append(given) or index(*given))
    monkeypatch.setattr(cooccurrence, "BUFFER", 100)
    np.testing.assert_array_equal(cells_of(documents, tmp_path / "cells", memory=float(least[1]), threads=2), whole)
    assert len(passes) > 1
    np.testing.assert_array_equal(cells_of(documents, tmp_path / "cells", threads=2), whole)


@pytest.mark.parametrize("width", [7, 30])
def test_updates_are_adagrad_on_the_loss(documents: Documents, width: int) -> None:
    """Pair after pair, in float64: torch's own AdaGrad on the gradient of `forward`."""
    ours = make(width=width)
    theirs = deepcopy(ours).double()
    rng, lr = CounterRng(seed=1, step=3, first_example=0), 0.05
    batch = theirs.batch(documents, rng, range(1))
    # lr g / sqrt(1 + sum of (lr g)^2) is g / sqrt(1 / lr^2 + sum of g^2).
    adagrad = torch.optim.Adagrad([theirs.centers, theirs.contexts], lr=1.0, initial_accumulator_value=lr**-2, eps=0.0)
    biases = {theirs.centers: width, theirs.contexts: width + 1}
    for table, column in biases.items():
        adagrad.state[table]["sum"][:, column] = 1.0  # their learning lr is 1
    losses = 0.0
    for number in range(600):
        pair = [value[number : number + 1] for value in batch.tensors()]
        adagrad.zero_grad()
        loss = theirs(Cooccurrences(centers=pair[0], contexts=pair[1], counts=pair[2].double()))[0]["squares"]
        loss.backward()
        losses += loss.item()
        adagrad.step()
        with torch.no_grad():
            theirs.centers[:, width + 1] = theirs.contexts[:, width] = 1.0
    sums, _, counts = learn_first(ours, documents, rng, 600, lr)
    assert sums == pytest.approx(losses, rel=1e-5)
    assert counts == 600
    for mine, other, summed in (
        (ours.centers, theirs.centers, ours.center_sums),
        (ours.contexts, theirs.contexts, ours.context_sums),
    ):
        torch.testing.assert_close(mine.double(), other, rtol=1e-4, atol=1e-6)
        squares, column = adagrad.state[other]["sum"], biases[other]
        torch.testing.assert_close(summed.double()[:, column], squares[:, column], rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(summed.double()[:, :width], lr**2 * squares[:, :width], rtol=1e-4, atol=1e-6)


def learn_first(objective: GloveTraining, documents: Documents, rng: CounterRng, updates: int, lr: float) -> Any:
    """Update by as many first cells of the first example as give that many updates."""
    from keel.kernels.glove_updates import update_glove

    cells = objective._cells(documents)[objective._chunk_starts(documents, rng, range(1))[0] :]
    made = np.cumsum(np.where(cells["first"] == cells["second"], 1, 2))
    length = int(np.flatnonzero(made == updates)[0]) + 1
    tables = (objective.centers, objective.contexts, objective.center_sums, objective.context_sums)
    arrays = [table.detach().numpy() for table in tables]
    width, system = objective.encoder.width, objective.system
    chunk_starts = np.zeros(1, np.int64)
    return update_glove(cells, chunk_starts, length, width, system.x_max, system.alpha, np.float32(lr), *arrays)


def test_a_step_updates_each_pair_in_both_directions(documents: Documents) -> None:
    objective = make()
    rng = CounterRng(seed=1, step=0, first_example=0)
    batch = objective.batch(documents, rng, range(1))
    again = deepcopy(objective)
    sums, counts = objective.update(documents, rng, range(1), 0.05, 1)
    assert counts["squares"] == pytest.approx(objective.counts(batch)["squares"].item(), rel=1e-6)
    assert counts["pairs"] == len(batch.counts)
    assert (sums["squares"], *counts.values()) == learn_first(again, documents, rng, len(batch.counts), 0.05)
    assert torch.equal(objective.centers, again.centers)
    pairs = set(zip(batch.centers.tolist(), batch.contexts.tolist(), strict=True))
    assert len(pairs) == len(batch.counts)
    assert pairs == {(second, first) for first, second in pairs}


def test_scores_approach_log_counts(documents: Documents) -> None:
    objective = make(width=30)
    for step in range(200):
        objective.update(documents, CounterRng(seed=0, step=step, first_example=step), range(1), 0.2, 1)
    batch = objective.batch(documents, CounterRng(seed=0, step=0, first_example=0), range(1))
    with torch.no_grad():
        scores = (objective.centers[batch.centers] * objective.contexts[batch.contexts]).sum(1)
    assert np.corrcoef(scores, batch.counts.log())[0, 1] > 0.95


def test_no_overflow_at_huge_learning_rates(documents: Documents) -> None:
    objective = make(x_max=1e-3)
    before = objective.centers.detach().clone()
    counts: dict[str, float] = {}
    for step in range(20):
        sums, counts = objective.update(documents, CounterRng(seed=0, step=step, first_example=step), range(1), 1e6, 1)
        assert np.isfinite(sums["squares"])
    moved = (objective.centers.detach() - before).abs().max().item()
    assert 0.1 < moved < 20 * counts["pairs"]


def test_one_thread_is_bit_exact_and_counts_are_cached(
    english_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = pretrain("glove", english_corpus, out=tmp_path / "a", epochs=2, **QUICK)
    monkeypatch.setattr(cooccurrence, "count_cooccurrences", None)
    two = pretrain("glove", english_corpus, out=tmp_path / "b", epochs=2, **QUICK)
    assert torch.equal(one.encoder.state_dict()["words.weight"], two.encoder.state_dict()["words.weight"])
    many = pretrain("glove", english_corpus, out=tmp_path / "c", epochs=2, **{**QUICK, "threads": 2})  # pyright: ignore[reportArgumentType]
    assert many.card.scores["squares"] == pytest.approx(one.card.scores["squares"], rel=0.05)


def test_train_save_load_and_finetune(english_corpus: Path, tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    model = pretrain("glove", english_corpus, out=tmp_path / "m", epochs=60, on_event=events.append, **QUICK)
    held = [event["loss"] for event in events if event["event"] == "evaluation"]
    assert held[-1] < 0.5 * held[0]
    again = Model.load(tmp_path / "m")
    assert again.system == model.system
    objective = cast(GloveTraining, again.objective)
    published = (objective.centers + objective.contexts)[:, :12].detach()
    assert torch.equal(cast(Any, again.encoder).words.weight, published)
    assert not published[again.tokenizer.special_ids].any()

    convert(tmp_path / "m", tmp_path / "m.txt")
    (tmp_path / "pairs.tsv").write_text("sailor\tcaptain\t9\nsailor\tcook\t1\nsailor\tanchor\t5\n")
    assert evaluate(tmp_path / "m.txt", tmp_path / "pairs.tsv") == evaluate(again, tmp_path / "pairs.tsv")
    examples = [("the farmer is good", "good"), ("the judge was bad", "bad")] * 10
    tuned = finetune(again, examples, dev=None, epochs=20, lr=0.1)
    assert str(tuned.predict("the judge was bad").label) == "bad"
    more = pretrain(tmp_path / "m", english_corpus, out=tmp_path / "n", steps=1, threads=1, held_out=0.1)
    assert more.card.scores["loss"] == pytest.approx(model.card.scores["loss"], rel=0.2)  # it continued from there


def test_resume_is_bit_exact(english_corpus: Path, tmp_path: Path) -> None:
    settings = {**QUICK, "epochs": 8, "log_every": 1}

    def stop(event: dict[str, Any]) -> None:
        if event["event"] == "step" and event["step"] == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        pretrain("glove", english_corpus, out=tmp_path / "cut", on_event=stop, **settings)
    cut = pretrain("glove", english_corpus, out=tmp_path / "cut", **settings)
    whole = pretrain("glove", english_corpus, out=tmp_path / "whole", **settings)
    assert cut.objective is not None
    assert whole.objective is not None
    for name, value in whole.objective.state_dict().items():
        assert torch.equal(cut.objective.state_dict()[name], value), name


def test_minutes_become_a_plan_of_steps(english_corpus: Path, tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    pretrain("glove", english_corpus, out=tmp_path / "m", minutes=0.01, on_event=events.append, **QUICK)
    assert any(event["event"] == "plan" for event in events)


def test_bad_input_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one.txt").write_text("word word word word\n" * 20)
    with pytest.raises(KeelError, match="no two different words"):
        pretrain("glove", tmp_path / "one.txt", out=tmp_path / "m", epochs=1, **QUICK)
    (tmp_path / "apart.txt").write_text("\n\n".join(["left left left", "right right"] * 20))
    with pytest.raises(KeelError, match="no two different words"):
        pretrain("glove", tmp_path / "apart.txt", out=tmp_path / "m", overwrite=True, epochs=1, **QUICK)
    (tmp_path / "two.txt").write_text("\n\n".join(["left right", "right left left"] * 20))
    for name, value in {"window": 0, "x_max": 0.0, "alpha": -1.0, "memory": 0.0, "width": 0}.items():
        with pytest.raises(UsageError, match=f"{name} must"):
            Glove(**{name: value})
    with pytest.raises(UsageError, match=r"counting co-occurrences takes at least .* GiB"):
        pretrain("glove", tmp_path / "two.txt", out=tmp_path / "m", overwrite=True, epochs=1, memory=1e-7, **QUICK)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setenv("KEEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cooccurrence.os, "fsync", full)
    two = Documents.of(cast(Tokens, SimpleNamespace(
        ids=np.array([5, 6, 7], np.uint16), starts=np.array([0, 3]), documents=np.array([0, 1]),
        word_starts=None, units=None,
    )))  # fmt: skip
    with pytest.raises(KeelError, match="is full"):
        make().epoch_size(two)
    assert not list((tmp_path / "cache" / "cooccurrences").iterdir())
