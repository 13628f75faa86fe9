"""Claims about BERT's pre-training."""

import math
from dataclasses import replace

import torch
from torch.nn import functional as F

import keel
from keel.claims.claim import Finding, Say
from keel.claims.small_models import TINY, TINY_GPT, learn_docstrings, learn_sentences, read_docstrings
from keel.data.documents import Documents
from keel.data.token_batch import TokenBatch
from keel.demo.docstrings import Docstring
from keel.errors import KeelError
from keel.explain.zero_shot import next_token_model
from keel.generation.likelihood import continuation_likelihoods, encode_continuations
from keel.systems.bert import BertEncoder
from keel.training.loss_totals import validation_loss

Pairs = list[tuple[str, str, str]]


def two_losses(say: Say) -> Finding:
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
        return Finding(None, f"{figures}, overlapping intervals")
    return Finding(both.value > alone.value and losses[0] <= losses[1], figures)


def sees_itself(say: Say) -> Finding:
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
    return Finding(
        own[0] == 0 < own[1] and seen > 0.95 > hidden,
        f"one layer can hide a word from itself (gradient {own[0]:.0f}), two cannot ({own[1]:.2f}); a visible word can "
        f"simply be copied ({seen:.0%} without training), a masked one cannot ({hidden:.0%})",
    )


def limits(say: Say) -> Finding:
    """102: [MASK] mismatch, independent predictions of masked words, and the maximum length."""
    cities = [("new", "york"), ("los", "angeles"), ("san", "diego"), ("las", "vegas")]
    sentences = [f"she lives in {first} {second} now ." for first, second in cities]
    model = learn_sentences(sentences, TINY, steps=400)
    text = "she lives in [MASK] [MASK] now ."
    first, second = (dict(found) for found in model.fill(text, top=len(model.tokenizer)))
    real = sum(first[one] * second[two] for one, two in cities)
    mixed = sum(first[one] * second[two] for one, _ in cities for _, two in cities) - real
    say(f"{text}: product of the two predictions:")
    say(f"{real:.0%} on real cities, {mixed:.0%} on mixtures such as 'new vegas'")
    one = dict(model.fill("she lives in new [MASK] now .", top=len(model.tokenizer))[0])["york"]
    say(f"with the first word given, the second is predicted: 'york' {one:.0%}")
    written = _written_cities(learn_sentences(sentences, TINY_GPT, steps=400), cities)
    say(f"a GPT of the same size: {written:.0%} on real cities")
    mask = model.tokenizer.mask_id
    pretraining = 0.8 * keel.Bert().mask_rate
    say(f"[MASK] (id {mask}) is {pretraining:.0%} of the tokens in pre-training and 0% in any task")
    try:
        model.fill("she lives in " + "very " * 20 + "[MASK] .")
        refused = ""
    except KeelError as error:
        refused = str(error)
    say(f"a sequence beyond the maximum length: {refused or 'accepted'}")
    return Finding(
        mixed > 0.4 and one > 0.8 and written > 0.8 and bool(refused),
        f"two masked words predicted independently give {mixed:.0%} to pairs that do not exist, while a causal model "
        f"gives {written:.0%} to real ones; {pretraining:.0%} of the input is a token that tasks lack, and the length "
        "is limited",
    )


def _written_cities(model: keel.Model, cities: list[tuple[str, str]]) -> float:
    """Probability that a language model continues "she lives in" with one of these cities."""
    questions = encode_continuations(
        model.tokenizer, ["she lives in"] * len(cities), [f" {one} {two}" for one, two in cities]
    )
    return sum(math.exp(each.log_prob) for each in continuation_likelihoods(next_token_model(model), questions))


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
    objective = replace(model.system, next_sentence=False).build_objective(model.encoder, model.tokenizer)
    objective.load_state_dict(model.objective.state_dict())
    corpus = keel.Corpus.of("\n".join(docstring.sentences) for docstring in docstrings)
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
        top = encoder(TokenBatch(ids=shown, lengths=torch.full((600,), 16))).top[:, 8]
    weights = torch.linalg.lstsq(top[:400], F.one_hot(words[:400, 8], 101).float(), driver="gelsd").solution
    return ((top[400:] @ weights).argmax(1) == words[400:, 8]).float().mean().item()
