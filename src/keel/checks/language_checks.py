"""Checks of text in several languages: their shares, and how well a vocabulary fits each."""

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from keel.checks.check_report import Finding, LanguageShare
from keel.checks.corpus_checks import CorpusFacts
from keel.data.corpus import Corpus
from keel.data.language_detection import LANGUAGE_NAMES, detect_language, is_unspaced
from keel.data.language_mix import repeats_per_epoch, smoothed_shares
from keel.data.tokenizer import Tokenizer
from keel.data.tokenizer_training import TokenizerSettings, train_tokenizer
from keel.events import OnEvent

SAMPLE = 20_000_000
"""Bytes of text that a vocabulary is trained on for a check; rare subwords differ a little from those of a run."""
WORD = re.compile(r"\w+|[^\w\s]")
"""Words and punctuation."""
MANY_REPEATS = 20
"""Repeats in an epoch from which a language has too little text for its share."""
MAX_UNKNOWN = 0.01


def shared_tokenizer(corpus: Corpus, vocabulary: int, smoothing: float, on_event: OnEvent) -> Tokenizer:
    """A tokenizer of all languages, as pre-training trains it, of less text."""
    return train_tokenizer(
        corpus, TokenizerSettings(vocab_size=vocabulary, language_smoothing=smoothing, sample=SAMPLE), on_event
    )


def language_shares(
    texts: Mapping[str, Sequence[CorpusFacts]], smoothing: float, tokenizer: Tokenizer | None
) -> list[LanguageShare]:
    """The shares of languages, and with a tokenizer the tokens per word of each."""
    sizes = [sum(each.bytes for each in parts) for parts in texts.values()]
    figures = np.array(sizes) / sum(sizes), smoothed_shares(sizes, smoothing), repeats_per_epoch(sizes, smoothing)
    found: list[LanguageShare] = []
    for (language, parts), size, *shares in zip(
        texts.items(), sizes, *(each.tolist() for each in figures), strict=True
    ):
        sample = [document for each in parts for document in each.sample]
        unspaced = is_unspaced("\n".join(sample[:100]))
        fertility = unknown = None
        if tokenizer is not None:
            ids, _ = tokenizer.encode_flat(sample)
            units = sum(len("".join(text.split())) if unspaced else len(WORD.findall(text)) for text in sample)
            fertility = len(ids) / max(1, units)
            unknown = float((ids == tokenizer.unknown_id).mean()) if tokenizer.has_special_token("unk") else 0.0
        found.append(
            LanguageShare(
                language=language, bytes=size, share=shares[0], sampled=shares[1], repeats=shares[2],
                fertility=fertility, unit="character" if unspaced else "word", unknown=unknown,
            )
        )  # fmt: skip
    return found


def language_findings(
    texts: Mapping[str, Sequence[CorpusFacts]], languages: Sequence[LanguageShare]
) -> Iterator[Finding]:
    """Languages with little text for their share, and text that looks like another language."""
    for each in languages:
        if each.repeats >= MANY_REPEATS:
            what = f"the text of this language is repeated {each.repeats:.0f} times in an epoch"
            yield Finding("warning", each.language, what, "give more text, or raise --text.language_smoothing")
        if (each.unknown or 0.0) > MAX_UNKNOWN:
            what = f"{each.unknown:.1%} of the tokens are unknown"
            yield Finding("warning", each.language, what, "use a larger --text.vocabulary, or give more text")
        for part in texts[each.language]:
            language = detect_language("\n".join(part.sample[:100]))
            if language in LANGUAGE_NAMES and each.language in LANGUAGE_NAMES and language != each.language:
                what = f"looks like {LANGUAGE_NAMES[language]}, and is named {each.language}"
                yield Finding("warning", part.name, what, "check the language before the file")
