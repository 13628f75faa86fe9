"""Models for experiments: tiny ones trained on a few sentences, small ones on the demo's text."""

import hashlib
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import keel
from keel.claims.claim import Say
from keel.config import cache_folder, to_dict
from keel.demo.docstrings import Docstring, collect_docstrings
from keel.events import ignore
from keel.systems.gpt import Gpt
from keel.systems.system import System

TINY = keel.Bert(
    layers=1,
    width=32,
    head_dim=32,
    max_positions=16,
    sequence_length=10,
    next_sentence=False,
    dropout=0,
    attention_dropout=0,
    mask_rate=0.3,
)
TINY_GPT = Gpt(
    layers=1, width=32, head_dim=32, max_positions=16, sequence_length=10, dropout=0.0, attention_dropout=0.0
)
SMALL = keel.Bert(
    layers=2, width=128, head_dim=32, max_positions=128, sequence_length=64, dropout=0.0, attention_dropout=0.0
)

SMALL_GPT = Gpt(
    layers=2, width=128, head_dim=32, max_positions=128, sequence_length=128, dropout=0.0, attention_dropout=0.0
)


def learn_sentences(sentences: list[str], system: System, steps: int) -> keel.Model:
    """Pre-train a tiny model on a few sentences, with words as tokens."""
    with tempfile.TemporaryDirectory() as folder:
        return keel.pretrain(
            system,
            keel.Corpus.of(sentences),
            out=Path(folder) / "model",
            tokenizer="words",
            held_out=0.0,
            steps=steps,
            batch=32,
            lr=3e-3,
            evaluate_every=0,
        )


def learn_words(
    documents: list[str], system: keel.Word2vec, *, epochs: int, tokenizer: str = "words", say: Say | None = None
) -> keel.Model:
    """Train word vectors with one thread, which is deterministic."""
    with tempfile.TemporaryDirectory() as folder:
        return keel.pretrain(
            system,
            keel.Corpus.of(documents),
            out=Path(folder) / system.name,
            tokenizer=tokenizer,
            held_out=0.0,
            epochs=epochs,
            threads=1,
            on_event=say.on_event if say else ignore,
        )


def read_docstrings(say: Say) -> list[Docstring]:
    """The demo's text, cached."""
    return collect_docstrings(cache_folder() / "claims", say.progress)


def learn_docstrings(docstrings: list[Docstring], *, next_sentence: bool, say: Say, steps: int = 600) -> keel.Model:
    """Pre-train a small BERT on this text, or load it from the cache."""
    system = replace(SMALL, next_sentence=next_sentence)
    corpus = keel.Corpus.of("\n".join(docstring.sentences) for docstring in docstrings if not docstring.held_out)
    settings: dict[str, Any] = {
        "vocabulary": 4000,
        "held_out": 0.05,
        "steps": steps,
        "batch": 32,
        "lr": 1e-3,
        "warmup": 0.1,
        "beta2": 0.98,
        "evaluate_every": 0,
    }
    return _cached("bert", system, corpus, settings, say, "MLM and NSP" if next_sentence else "MLM only")


def pretrain_gpt(docstrings: list[Docstring], say: Say, steps: int = 600) -> keel.Model:
    """Pre-train a small GPT on this text, one sentence per line, or load it from the cache."""
    texts = ["\n".join(docstring.sentences) for docstring in docstrings if not docstring.held_out]
    settings: dict[str, Any] = {
        "vocabulary": 2000, "held_out": 0.02, "steps": steps, "batch": 8, "lr": 2e-3, "warmup": 0.1, "device": "cpu",
        "evaluate_every": 0,
    }  # fmt: skip
    return _cached(
        "gpt", SMALL_GPT, keel.Corpus.of(texts, sentences="none"), settings, say, "causal language modelling"
    )


def _cached(
    name: str, system: System, corpus: keel.Corpus, settings: dict[str, Any], say: Say, what: str
) -> keel.Model:
    identity = json.dumps([corpus.fingerprint(), to_dict(system), settings], sort_keys=True)
    folder = cache_folder() / "claims" / f"{name}-{hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()}"
    if not (folder / "config.json").exists():
        say.progress(f"pre-training with {what} for {settings['steps']} steps")
        keel.pretrain(system, corpus, out=folder, on_event=say.on_event, **settings)
    return keel.Model.load(folder)


def picture_folder() -> Path:
    """Folder of the experiments' pictures."""
    folder = cache_folder() / "claims"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
