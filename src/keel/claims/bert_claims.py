"""Claims about BERT: its pre-training, and its use."""

import math
import tempfile
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

import keel
from keel.claims.attention_claims import CAPITAL_SENTENCES
from keel.claims.claim import Say, Verdict
from keel.claims.example_texts import PARAGRAPHS
from keel.claims.measures import accuracy, batch_of, linear_probe
from keel.claims.small_models import (
    finetuned_scores,
    learn_docstrings,
    learn_sentences,
    package_sentences,
    read_docstrings,
)
from keel.data.documents import Documents
from keel.data.token_batch import TokenBatch
from keel.demo.docstrings import Docstring
from keel.explain.zero_shot import next_token_model
from keel.generation.likelihood import continuation_log_probs, encode_continuations
from keel.systems.bert import BertEncoder
from keel.systems.capabilities import MaskedLM
from keel.training.loss_totals import validation_loss

AHEAD = 3
"""Masks at the end of a text that a masked language model continues: with one alone it expects the end."""
CITIES = [("New", "York"), ("Los", "Angeles"), ("San", "Francisco"), ("Las", "Vegas"), ("Hong", "Kong"),
          ("Buenos", "Aires"), ("Tel", "Aviv"), ("Cape", "Town"), ("Santa", "Fe"), ("Rio", "Grande")]  # fmt: skip
CITY_TEXTS = (
    "She lives in [MASK] [MASK] now.", "He was born in the city of [MASK] [MASK] in 1950.",
    "The train from [MASK] [MASK] was late.", "They moved to [MASK] [MASK] last year.",
    "The mayor of [MASK] [MASK] opened the museum.",
)  # fmt: skip
Pairs = list[tuple[str, str, str]]
TOPICS = ("boat anchor sail harbour wave captain", "bread oven soup recipe cake cook",
          "judge case verdict court law witness", "rose orchard field hive tree farmer")  # fmt: skip


def two_losses(say: Say) -> Verdict:
    """92: pre-training with and without next sentence prediction: MLM loss, and accuracy on sentence pairs."""
    docstrings = read_docstrings(say)
    held_out = [docstring for docstring in docstrings if docstring.held_out]
    learned = _sentence_pairs([docstring for docstring in docstrings if not docstring.held_out], 1600)
    losses, scores = [], []
    for name, next_sentence in (("MLM + NSP", True), ("MLM only", False)):
        base = learn_docstrings(docstrings, next_sentence=next_sentence, say=say)
        model = keel.finetune(base, learned, task="pair", dev=None, epochs=4, batch=32, lr=5e-4)
        losses.append(_mlm_loss(base, held_out))
        scores.append(keel.evaluate(model, _sentence_pairs(held_out, 1600)).values["accuracy"])
        say(f"{name}: MLM loss {losses[-1]:.3f}; does B follow A? accuracy {scores[-1]}")
    both, alone = scores
    figures = (
        f"one seed; NSP changes the MLM loss by {losses[0] - losses[1]:+.3f}; accuracy on pairs {both.value:.1%} with "
        f"it, {alone.value:.1%} without"
    )
    if not both.differs_from(alone):
        return Verdict(None, f"{figures}, overlapping intervals")
    return Verdict(both.value > alone.value and losses[0] <= losses[1], figures)


def sees_itself(say: Say) -> Verdict:
    """101: gradient of a position's output with respect to its own word, if no layer attends to itself."""
    torch.manual_seed(0)
    vectors = torch.randn(1, 6, 16)
    others = ~torch.eye(6, dtype=torch.bool)  # every position attends to all others
    own = []
    for layers in (1, 2, 3):
        words = vectors.clone().requires_grad_()
        mixed = words
        for _ in range(layers):  # Q and K are fixed: only V carries content
            mixed = F.scaled_dot_product_attention(vectors, vectors, mixed, attn_mask=others)
        (gradient,) = torch.autograd.grad(mixed[0, 2].sum(), words)
        own.append(gradient[0, 2].abs().sum().item())
        say(f"{layers} bidirectional layers without self: gradient of output 3 with respect to word 3: {own[-1]:.3f}")
    seen, hidden = _readout(masked=False), _readout(masked=True)
    say("linear probe of an untrained BERT's output for the word at its position:")
    say(f"accuracy {seen:.0%} for visible words, {hidden:.0%} for masked ones")
    return Verdict(
        own[0] == 0 < own[1] and seen > 0.95 > hidden,
        f"one layer can hide a word from itself (gradient {own[0]:.0f}), two cannot ({own[1]:.2f}); a visible word can "
        f"simply be copied ({seen:.0%} without training), a masked one cannot ({hidden:.0%})",
    )


def limits(say: Say) -> Verdict:
    """102: independent predictions of masked words, generation by a masked model, [MASK], and the maximum length."""
    masked, causal = keel.Model.load("english"), keel.Model.load("english-gpt")
    product, chained, written = np.mean([_city_shares(masked, causal, text) for text in CITY_TEXTS], 0)
    pairs = f"{len(CITIES)} first and {len(CITIES)} second words of cities in {len(CITY_TEXTS)} texts"
    say(f"{pairs}, share of the {len(CITIES)} real pairs:")
    say(f"english, product of the predictions for two masks: {product:.1%} (uniform {1 / len(CITIES):.0%})")
    say(f"english, first word, then the second with the first in its place: {chained:.1%}; english-gpt: {written:.1%}")
    bits = _bits_per_byte(masked, causal)
    for name, value in bits.items():
        say(f"{name}: {value:.2f} bits per byte")
    shown = 0.8 * keel.Bert().mask_rate
    say(f"[MASK] is {shown:.0%} of the tokens in the pre-training of BERT and 0% in any task")
    try:
        masked.fill("very " * masked.system.max_length + "[MASK] .")
        refused = ""
    except keel.KeelError as error:
        refused = str(error)
    say(f"a sequence beyond the maximum length: {refused or 'accepted'}")
    _, left, gpt = bits.values()
    return Verdict(
        product < 0.5 < min(chained, written) and left > gpt and bool(refused),
        f"two masked words predicted independently give {1 - product:.0%} to pairs that do not exist, while the same "
        f"model gives {chained:.0%} to real ones word by word; as a generator, with the left context alone, it has "
        f"{left:.2f} bits per byte, english-gpt {gpt:.2f}",
    )


def _city_shares(masked: keel.Model, causal: keel.Model, text: str) -> tuple[float, float, float]:
    """The probability of real pairs among all pairs of a first and a second word: product, chain rule, causal model."""
    firsts, seconds = zip(*CITIES, strict=True)
    many = len(masked.tokenizer)
    first, second = (dict(found) for found in masked.fill(text, top=many))
    product = np.outer([first[each] for each in firsts], [second[each] for each in seconds])
    after = [dict(masked.fill(text.replace("[MASK]", each, 1), top=many)[0]) for each in firsts]
    chained = np.array([[first[one] * found[two] for two in seconds] for one, found in zip(firsts, after, strict=True)])
    names = [f" {one} {two}" for one in firsts for two in seconds]
    queried = encode_continuations(causal.tokenizer, [text.partition(" [MASK]")[0]] * len(names), names)
    written = np.exp(continuation_log_probs(next_token_model(causal), queried)).reshape(product.shape)
    one, two, three = (float(np.trace(each) / each.sum()) for each in (product, chained, written))
    return one, two, three


def _bits_per_byte(masked: keel.Model, causal: keel.Model) -> dict[str, float]:
    """Bits per byte of the later half of paragraphs: each word given both sides, or given what is on its left."""
    assert isinstance(masked.objective, MaskedLM)
    tokenizer, mask = masked.tokenizer, masked.tokenizer.mask_id
    nats, size = np.zeros(3), 0
    for text in PARAGRAPHS["en"]:
        start = text.index(" ", len(text) // 2)
        context, rest = (tokenizer.encode(part).ids for part in (text[:start], text[start:]))
        ids, scored = context + rest, range(len(context), len(context + rest))
        with_right = [[*ids[:position], mask, *ids[position + 1 :]] for position in scored]
        without_right = [[*ids[:position], *[mask] * AHEAD] for position in scored]
        for number, inputs in enumerate((with_right, without_right)):
            built = [masked.system.build_inputs(tokenizer, each).ids for each in inputs]
            shift = built[0].index(mask) - scored[0]
            batch = TokenBatch.pad(built)
            positions = torch.tensor([[position + shift] for position in scored])
            with torch.inference_mode():
                logits = masked.objective.eval().masked_logits(batch, positions)[:, 0, : len(tokenizer)]
            targets = torch.tensor(rest)
            nats[number] += F.cross_entropy(logits.float(), targets, reduction="sum").item()
        queried = encode_continuations(causal.tokenizer, [text[:start]], [text[start:]])
        nats[2] -= continuation_log_probs(next_token_model(causal), queried).sum()
        size += len(text[start:].encode())
    names = "english, one word masked, both sides seen", "english, the words on the left alone", "english-gpt"
    return dict(zip(names, (nats / size / math.log(2)).tolist(), strict=True))


def symmetric_pairs(say: Say) -> Verdict:
    """95: a symmetric task, trained on (a, b) and tested on (a, b) and (b, a)."""
    random = Random(0)
    system = keel.Bert(
        layers=2, width=64, head_dim=32, max_positions=32, sequence_length=16, pair_objective="none", dropout=0.0
    )
    base = learn_sentences([_about(topic, random) for topic in TOPICS * 100], system, steps=300)
    learned, test = _same_topic(2000, random), _same_topic(500, random)
    wanted = [label for _, _, label in test]
    scores, agreements = [], []
    for name, parent in (("with segments", base), ("without segments", _without_segments(base))):
        model = keel.finetune(parent, learned, task="pair", dev=None, epochs=8, batch=32, lr=1e-3)
        there = [found.label for found in model.predict([(one, two) for one, two, _ in test])]
        back = [found.label for found in model.predict([(two, one) for one, two, _ in test])]
        scores.append((_agreement(there, wanted), _agreement(back, wanted)))
        agreements.append(_agreement(there, back))
        say(f"{name}: accuracy on (a, b) {scores[-1][0]:.1%}, on (b, a) {scores[-1][1]:.1%}")
        say(f"{name}: same prediction in both orders: {agreements[-1]:.1%}")
    gap = abs(scores[0][0] - scores[0][1])
    figures = f"with segments, swapping the texts changes the accuracy by {100 * gap:.1f} points, and "
    figures += f"{agreements[0]:.0%} of the predictions agree ({agreements[1]:.0%} without segments)"
    if min(map(min, scores)) < 0.6:  # the task was not learned
        return Verdict(None, f"the task was not learned; {figures}")
    return Verdict(gap < 0.03, figures)


def frozen_or_tuned(say: Say) -> Verdict:
    """109: the same labels with a frozen encoder, with fine-tuning, and from scratch."""
    docstrings = read_docstrings(say)
    base = learn_docstrings(docstrings, next_sentence=True, say=say)
    train, test = package_sentences(docstrings, 60, say)
    methods: dict[str, tuple[keel.Model, dict[str, Any]]] = {
        "frozen encoder, trained head": (base, {"freeze": True, "epochs": 40, "lr": 3e-3}),
        "fine-tuned": (base, {}),
        "from scratch": (base, {"from_scratch": True}),
    }
    frozen, fine, scratch = finetuned_scores(methods, train, test, say, dev=None, batch=16, epochs=20, lr=1e-3)
    return Verdict(
        all(score.low is not None and score.low > 0.1 for score in (frozen, fine)),
        f"both are above chance (10%): frozen {frozen.value:.1%}, fine-tuned {fine.value:.1%}; without pre-training "
        f"{scratch.value:.1%}",
    )


def two_lines(say: Say) -> Verdict:
    """112: load a model folder, then encode sentences and words."""
    system = keel.Bert(layers=2, width=64, max_positions=32, sequence_length=10, pair_objective="none")
    sentences = CAPITAL_SENTENCES
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "model"
        learn_sentences(sentences, system, steps=20).save(folder)
        model = keel.Model.load(folder)
        vectors, words = model.encode(sentences), model.encode(sentences[0], pool="none")
    say("model = keel.Model.load(folder)")
    say('vectors, words = model.encode(sentences), model.encode(sentences[0], pool="none")')
    say(f"vectors: {vectors.shape}, one per sentence; words: {words.vectors.shape}, one per token")
    say(f"tokens: {', '.join(words.tokens)}")
    return Verdict(
        vectors.shape == (len(sentences), 64) and words.vectors.shape == (len(words.tokens), 64),
        "the second line returns sentence vectors and contextual word vectors",
    )


def _sentence_pairs(docstrings: list[Docstring], count: int) -> Pairs:
    """Sentence pairs: in half of them the second sentence follows the first, in half it is from another docstring."""
    chosen = docstrings[:count]
    return [
        (one.sentences[0], (one if number % 2 else other).sentences[1], "follows" if number % 2 else "elsewhere")
        for number, (one, other) in enumerate(zip(chosen, chosen[1:] + chosen[:1], strict=True))
    ]


def _mlm_loss(model: keel.Model, docstrings: list[Docstring]) -> float:
    """MLM loss on held-out docstrings in single-segment inputs, however the model was trained."""
    assert isinstance(model.system, keel.Bert)
    assert isinstance(model.encoder, BertEncoder)
    assert model.objective is not None
    objective = replace(model.system, pair_objective="none").build_objective(model.encoder, model.tokenizer)
    objective.load_state_dict(model.objective.state_dict())
    corpus = keel.Corpus.of(docstring.text for docstring in docstrings)
    data = Documents.of(keel.Tokens.build(corpus, model.tokenizer))
    return validation_loss(data, model.system.pretraining_defaults)(objective)["mlm"]


def _readout(masked: bool) -> float:
    """Accuracy of a linear probe for the word at a position, on a random BERT's output."""
    torch.manual_seed(0)
    encoder = keel.Bert(layers=2, width=128, max_positions=16, sequence_length=16).build_encoder(101).eval()
    words = torch.randint(1, 101, (600, 16))
    shown = words.clone()
    if masked:
        shown[:, 8] = 0  # [MASK]
    with torch.inference_mode():
        return accuracy(linear_probe(encoder(batch_of(shown)).top[:, 8], words[:, 8], slice(400)))


def _same_topic(count: int, random: Random) -> Pairs:
    """Pairs of texts, half of them about the same topic."""
    pairs = []
    for number in range(count):
        one, other = random.sample(TOPICS, 2)
        second = one if number % 2 else other
        pairs.append((_about(one, random), _about(second, random), "same" if number % 2 else "different"))
    return pairs


def _about(topic: str, random: Random) -> str:
    return " ".join(random.sample(topic.split(), 4))


def _agreement(predicted: list[str], wanted: list[str]) -> float:
    """Share of equal elements."""
    return sum(mine == other for mine, other in zip(predicted, wanted, strict=True)) / len(predicted)


def _without_segments(model: keel.Model) -> keel.Model:
    """The same weights in a BERT with one segment type."""
    assert isinstance(model.system, keel.Bert)
    system = replace(model.system, segment_types=1)
    encoder = system.build_encoder(len(model.tokenizer))
    weights = model.encoder.state_dict()
    encoder.load_state_dict(weights | {"segments.weight": weights["segments.weight"][:1]})
    return keel.Model(system=system, encoder=encoder, tokenizer=model.tokenizer)
