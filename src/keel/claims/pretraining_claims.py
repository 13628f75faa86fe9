"""Claims about pre-training: its amount of text, and whether the masked language model alone relates two texts."""

from dataclasses import replace
from itertools import pairwise
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import keel
from keel.claims.answer_claims import CITIES, NAMES, VERBS
from keel.claims.bert_claims import Pairs
from keel.claims.claim import Say, Verdict
from keel.claims.small_models import NO_DROPOUT, finetuned_scores, pretrain_tiny, read_docstrings
from keel.data.documents import Documents
from keel.demo.docstrings import training_texts
from keel.training.loss_totals import validation_loss

CORPORA = {"GPT": {"BooksCorpus": 800}, "BERT": {"BooksCorpus": 800, "English Wikipedia": 2500}}
"""Millions of words, as the BERT paper states them (Devlin et al. 2018, section 3.1 and appendix A.4)."""
BATCHES = {"GPT": 32_000, "BERT": 128_000}
"""Words of a batch; both are trained for a million steps (the same appendix)."""
SMALL = keel.Bert(
    **NO_DROPOUT, layers=2, width=64, head_dim=32, max_positions=32, sequence_length=32, pair_objective="none"
)
TRAIN: dict[str, Any] = {"steps": 300, "batch": 32, "lr": 3e-3, "warmup": 0.1}
OBJECTIVES = {"MLM only": "segments", "MLM + NSP": "nsp", "MLM + SOP": "sop"}


def size_of_corpora(say: Say) -> Verdict:
    """100: published amounts of text, and the loss of one small BERT on 1, 4 and 16 times the text at equal steps."""
    totals = {name: sum(parts.values()) for name, parts in CORPORA.items()}
    for name, parts in CORPORA.items():
        named = " + ".join(f"{part} {size:,}" for part, size in parts.items())
        say(f"{name}: {named} = {totals[name]:,} million words, read in a million steps of {BATCHES[name]:,} words")
    docstrings = read_docstrings(say)
    texts = training_texts(docstrings)
    held_out = [docstring.text for docstring in docstrings if docstring.held_out][:500]
    losses = []
    with TemporaryDirectory() as folder:
        keel.Tokenizer.train(keel.Corpus.of(texts[:4000]), size=2000).save(folder)
        for times in (1, 4, 16):
            part = texts[: 200 * times]
            model = pretrain_tiny(SMALL, part, say, **TRAIN, tokenizer=folder)
            losses.append(_validation_loss(model, held_out))
            words = sum(len(text.split()) for text in part)
            say(
                f"{times} times the text ({words:,} words), {TRAIN['steps']} steps: loss on other texts "
                f"{losses[-1]:.3f}"
            )
    ratio = totals["BERT"] / totals["GPT"]
    return Verdict(
        ratio > 1,
        f"by publication BERT has {ratio:.1f} times the text of GPT and reads "
        f"{BATCHES['BERT'] / BATCHES['GPT']:.0f} times as many words; four times the text at equal steps changes the "
        "loss of a small BERT by " + ", then ".join(f"{after - before:+.2f}" for before, after in pairwise(losses)),
    )


def _validation_loss(model: keel.Model, texts: list[str]) -> float:
    assert model.objective is not None
    data = Documents.of(keel.Tokens.build(keel.Corpus.of(texts), model.tokenizer))
    return validation_loss(data, model.system.pretraining_defaults)(model.objective)["mlm"]


def relations_of_sentences(say: Say) -> Verdict:
    """131: are two sentences about one person? Models pre-trained with and without a loss for pairs, on few labels."""
    random = Random(0)
    documents = ["\n".join(_about(random.choice(NAMES), 2, random)) for _ in range(3000)]
    train, test = _relation(100, random), _relation(600, random)
    say(f"are two sentences about one person? {len(train)} labels, {len(test)} test pairs")
    scores: dict[str, keel.Score] = {}
    for name, objective in OBJECTIVES.items():
        system = replace(SMALL, pair_objective=objective, mask_rate=0.25)
        base = pretrain_tiny(system, documents, say, **TRAIN | {"steps": 600})
        methods: dict[str, tuple[keel.Model, dict[str, Any]]] = {
            f"{name}, frozen": (base, {"freeze": True}),
            f"{name}, fine-tuned": (base, {"epochs": 10, "lr": 1e-3, "batch": 16}),
        }
        found = finetuned_scores(methods, train, test, say, task="pair", dev=None, threads=1)
        scores |= dict(zip(methods, found, strict=True))
    alone, both = scores["MLM only, fine-tuned"], scores["MLM + NSP, fine-tuned"]
    figures = f"fine-tuned, {alone.value:.1%} after MLM alone and {both.value:.1%} after MLM and NSP"
    if not both.differs_from(alone):
        return Verdict(False if (alone.low or 0) > 0.9 else None, figures)
    return Verdict(both.value > alone.value, figures)


def _about(name: str, count: int, random: Random) -> list[str]:
    """Sentences about one person."""
    verbs = random.sample(VERBS, count)
    return [f"{name} {verb} {random.choice(CITIES)}" for verb in verbs]


def _relation(count: int, random: Random) -> Pairs:
    found = []
    for number in range(count):
        one, other = random.sample(NAMES, 2)
        first = _about(one, 1, random)[0]
        second = _about(one if number % 2 else other, 1, random)[0]
        found.append((first, second, "same" if number % 2 else "different"))
    return found
