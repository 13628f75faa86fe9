"""The tokenizer of a pre-training run: trained on its corpus, or loaded from a folder."""

import hashlib
from pathlib import Path

from keel.api.run_folder import TOKENIZER
from keel.api.settings import TextSettings
from keel.config import replace, to_dict
from keel.data.corpus import Corpus
from keel.data.tokenizer import Tokenizer
from keel.data.tokenizer_training import TokenizerSettings, train_tokenizer
from keel.events import OnEvent
from keel.systems.system import System
from keel.training.checkpoint import write_folder


def corpus_tokenizer(
    corpus: Corpus, text: TextSettings, system: System, seed: int, run: Path | None, report: OnEvent
) -> Tokenizer:
    """Train or load the tokenizer; one that an earlier attempt of the same run has trained is reused."""
    if text.tokenizer == "auto":
        text = replace(text, tokenizer=system.default_tokenizer)
    frequent_pairs = text.tokenizer == "bpe" and not text.vocabulary and not text.min_count
    explicit = " asked" if text.tokenizer == "bpe" and not frequent_pairs else ""
    min_count = text.min_count or (system.default_min_count if text.tokenizer == "words" else 0)
    text = replace(text, vocabulary=text.vocabulary or system.default_vocab_size, min_count=min_count)
    # The key is that of earlier versions, so that their runs find their tokenizer.
    key = hashlib.blake2b(f"{to_dict(text)} {seed} {corpus.fingerprint()}{explicit}".encode()).hexdigest()[:12]
    stored = run and run / f"{TOKENIZER}{key}"
    if stored and stored.is_dir():
        return Tokenizer.load(stored)
    if text.tokenizer in ("auto", "wordpiece", "bpe", "words", "characters"):
        settings = TokenizerSettings(
            kind=text.tokenizer,
            vocab_size=text.vocabulary,
            lowercase={"auto": system.default_lowercase, "yes": True, "no": False}[text.lowercase],
            min_count=text.min_count,
            frequent_pairs=frequent_pairs,
            phrases=text.phrases,
            sample=text.sample,
            seed=seed,
        )
        tokenizer = train_tokenizer(corpus, settings, report)
    else:
        tokenizer = Tokenizer.load(text.tokenizer)
    if stored:
        write_folder(stored, tokenizer.save)
    return tokenizer
