"""Models for experiments: tiny ones trained on a few sentences, small ones on the demo's text."""

import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import keel
from keel import demo
from keel.claims.claim import Say
from keel.config import cache_folder, to_dict
from keel.demo.docstrings import Docstring, balanced, collect_docstrings, labelled_sentences, training_texts
from keel.events import ignore
from keel.systems.system import System

NO_DROPOUT: dict[str, Any] = {"dropout": 0.0, "attention_dropout": 0.0}
Examples = list[tuple[str, str]]
_TINY: dict[str, Any] = {"layers": 1, "width": 32, "head_dim": 32, "max_positions": 16, "sequence_length": 10}
_SMALL: dict[str, Any] = {"layers": 2, "width": 128, "head_dim": 32, "max_positions": 128}
TINY = keel.Bert(**_TINY, **NO_DROPOUT, pair_objective="none", mask_rate=0.3)
SMALL = keel.Bert(**_SMALL, **NO_DROPOUT, sequence_length=64)
SMALL_GPT = keel.Gpt(**_SMALL, **NO_DROPOUT, sequence_length=128)
TINY_ELMO = keel.Elmo(
    width=32, cell_size=64, character_dim=8, character_filters=(16, 16, 16), highway_layers=1, bptt=10,
    softmax_samples=0, dropout=0.0,
)  # fmt: skip
TINY_SKIPGRAM = keel.Word2vec(width=16, window=4, subsample=0.0)


def pretrain_tiny(system: System, texts: Sequence[str], say: Say | None = None, **settings: Any) -> keel.Model:
    """Pre-train on all of these texts with words as tokens, if not set otherwise; the folder is temporary."""
    settings = {"tokenizer": "words", "held_out": 0.0, "evaluate_every": 0, "device": "cpu", "threads": 1} | settings
    corpus, on_event = keel.Corpus.of(texts), say.on_event if say else ignore
    with tempfile.TemporaryDirectory() as folder:
        return keel.pretrain(system, corpus, out=f"{folder}/{system.name}", on_event=on_event, **settings).to("cpu")


def learn_sentences(sentences: list[str], system: System, steps: int) -> keel.Model:
    """A tiny model of a few sentences."""
    return pretrain_tiny(system, sentences, steps=steps, batch=32, lr=3e-3)


def learn_topics(texts: list[str]) -> keel.Model:
    """A tiny ELMo of short texts."""
    return pretrain_tiny(TINY_ELMO, texts, steps=400, batch=16, lr=1e-2, warmup=5, min_count=1)


def read_docstrings(say: Say) -> list[Docstring]:
    """The demo's text, cached."""
    return collect_docstrings(cache_folder() / "claims", say.progress)


def package_sentences(
    docstrings: list[Docstring], labels: int, say: Say, condition: str = ""
) -> tuple[Examples, Examples]:
    """(sentence, package) of ten packages for training, `labels` of each, and 60 of each held out for the test."""
    train = balanced(labelled_sentences(docstrings, held_out=False), labels)
    test = balanced(labelled_sentences(docstrings, held_out=True), 60)
    say(f"which of ten packages is a sentence from? {len(train)} labels{condition}, {len(test)} test sentences")
    return train, test


def finetuned_scores(
    methods: Mapping[str, tuple[Any, dict[str, Any]]],
    train: Sequence[Any],
    test: Sequence[Any],
    say: Say,
    **settings: Any,
) -> list[keel.Score]:
    """Accuracies of several starting points, each with its own settings, after fine-tuning on the same examples."""
    scores = []
    for name, (start, own) in methods.items():
        model = keel.finetune(start, train, **settings | own)
        scores.append(keel.evaluate(model, test).values["accuracy"])
        say(f"{name}: accuracy {scores[-1]:.1%}")
    return scores


def learn_docstrings(docstrings: list[Docstring], *, next_sentence: bool, say: Say) -> keel.Model:
    """Pre-train a small BERT on this text, or load it from the cache."""
    settings = {"vocabulary": 4000, "held_out": 0.05, "batch": 32, "lr": 1e-3, "beta2": 0.98}
    system = replace(SMALL, pair_objective="nsp" if next_sentence else "none")
    corpus = keel.Corpus.of(training_texts(docstrings))
    return _cached(system, corpus, settings, say, "MLM and NSP" if next_sentence else "MLM only")


def pretrain_gpt(docstrings: list[Docstring], say: Say) -> keel.Model:
    """Pre-train a small GPT on this text, one sentence per line, or load it from the cache."""
    settings = {"vocabulary": 2000, "held_out": 0.02, "batch": 8, "lr": 2e-3, "device": "cpu"}
    corpus = keel.Corpus.of(training_texts(docstrings), sentences="none")
    return _cached(SMALL_GPT, corpus, settings, say, "causal language modelling")


def _cached(system: System, corpus: keel.Corpus, settings: dict[str, Any], say: Say, what: str) -> keel.Model:
    settings = settings | {"steps": 600, "warmup": 0.1, "evaluate_every": 0}
    identity = json.dumps([corpus.fingerprint(), to_dict(system), settings], sort_keys=True)
    name = f"{system.name}-{hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()}"
    folder = cache_folder() / "claims" / name
    if not (folder / "config.json").exists():
        say.progress(f"pre-training with {what} for {settings['steps']} steps")
        keel.pretrain(system, corpus, out=folder, on_event=say.on_event, **settings)
    return keel.Model.load(folder)


def pretrained_by_demo(docstrings: list[Docstring], say: Say) -> dict[str, Path]:
    """Folders of the demo's word2vec and BERT, pre-trained on this text once: some minutes on two cores."""
    corpus = keel.Corpus.of(training_texts(docstrings))
    folder = cache_folder() / "claims" / f"demo-{corpus.fingerprint()[:16]}"
    demo.pretrain_vectors(corpus, folder, say.on_event)
    demo.pretrain_bert(corpus, folder, say.on_event)
    return {name: folder / name for name in ("word2vec", "bert")}


def stored_comparison(name: str, rows: Sequence[str | Path], say: Say, **settings: Any) -> keel.Comparison:
    """A comparison whose cells are kept in the cache; the path of its report is shown as progress.

    A failed cell ends the experiment: a row with fewer seeds than the others has another interval.
    """
    out = cache_folder() / "claims" / name
    found = keel.compare(rows, out=out, on_event=say.on_event, **settings)
    if failed := found.failed():
        raise keel.KeelError(f"{failed[0].row} has no result of some seeds ({failed[0].error}): rerun the claim")
    say.progress(f"report: {out / 'report.html'}")
    return found


def picture_path(name: str) -> Path:
    """File of an experiment's picture."""
    folder = cache_folder() / "claims"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name
