"""The tokenizer of a pre-training run: trained on its corpus, or loaded from a folder."""

import hashlib
from pathlib import Path

from keel.api.run_folder import TOKENIZER
from keel.api.settings import TextSettings
from keel.config import replace, to_dict
from keel.data.corpus import Corpus
from keel.data.tokenizer import Tokenizer
from keel.data.tokenizer_training import OFTEN, language_of
from keel.events import OnEvent, note
from keel.systems.system import System
from keel.training.checkpoint import write_folder


def corpus_tokenizer(
    corpus: Corpus, text: TextSettings, system: System, seed: int, run: Path | None, report: OnEvent
) -> Tokenizer:
    """Train or load the tokenizer; one that an earlier attempt of the same run has trained is reused."""
    if text.tokenizer == "auto":
        text = replace(text, tokenizer=system.default_tokenizer)
    bpe_count = 0 if text.tokenizer != "bpe" or text.vocabulary or text.min_count else OFTEN
    explicit = " asked" if text.tokenizer == "bpe" and not bpe_count else ""
    min_count = text.min_count or (system.default_min_count if text.tokenizer == "words" else 0)
    text = replace(text, vocabulary=text.vocabulary or system.default_vocab_size, min_count=min_count)
    # The key is that of earlier versions, so that their runs find their tokenizer.
    key = hashlib.blake2b(f"{to_dict(text)} {seed} {corpus.fingerprint()}{explicit}".encode()).hexdigest()[:12]
    stored = run and run / f"{TOKENIZER}{key}"
    if stored and stored.is_dir():
        return Tokenizer.load(stored)
    if text.tokenizer in ("auto", "wordpiece", "bpe", "words", "characters"):
        tokenizer = Tokenizer.train(
            corpus,
            kind=text.tokenizer,
            size=text.vocabulary,
            lowercase={"auto": system.default_lowercase, "yes": True, "no": False}[text.lowercase],
            min_count=text.min_count or bpe_count,
            phrases=text.phrases,
            sample=text.sample,
            seed=seed,
            on_event=report,
        )
        if bpe_count:
            rare = f" (merges that occur {bpe_count} times or more)" if len(tokenizer) < text.vocabulary else ""
            note(report, f"vocabulary: {len(tokenizer):,} tokens{rare}; change with --text.vocabulary")
            if language_of(corpus) == "zh":
                what = "byte-level tokens may hold several characters, or a part of one"
                note(report, f"the text looks like Chinese: {what}; change with --text.tokenizer characters")
    else:
        tokenizer = Tokenizer.load(text.tokenizer)
    if stored:
        write_folder(stored, tokenizer.save)
    return tokenizer
