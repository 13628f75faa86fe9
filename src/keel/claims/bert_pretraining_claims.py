"""Claims about how BERT is pre-trained."""

import math
from dataclasses import replace

import torch
from torch.nn import functional as F

import keel
from keel.claims.claim import Finding, Say
from keel.claims.small_models import ONE_WAY, TINY, learn_docstrings, learn_sentences, read_docstrings
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
    """92: the same steps with next sentence prediction and without, judged on hidden words and on a task of pairs."""
    docstrings = read_docstrings(say)
    apart = [docstring for docstring in docstrings if docstring.held_out]
    learned = _neighbours([docstring for docstring in docstrings if not docstring.held_out], 1600)
    losses, scores = [], []
    for name, next_sentence in (("MLM + NSP", True), ("MLM alone", False)):
        base = learn_docstrings(docstrings, next_sentence=next_sentence, say=say)
        model = keel.finetune(base, learned, task="pair", dev=None, epochs=4, batch=32, lr=5e-4)
        losses.append(_loss_of_hidden_words(base, apart))
        scores.append(keel.evaluate(model, _neighbours(apart, 1600)).values["accuracy"])
        say(f"{name}: loss of hidden words {losses[-1]:.3f}; does B follow A? accuracy {scores[-1]}")
    both, alone = scores
    figures = f"one seed; with NSP the loss of hidden words is {losses[0] - losses[1]:+.3f} (lower is better), the "
    figures += f"accuracy on pairs {both.value:.1%} against {alone.value:.1%}"
    if not both.differs_from(alone):
        return Finding(None, f"{figures}, intervals that overlap")
    return Finding(both.value > alone.value and losses[0] <= losses[1], figures)


def sees_itself(say: Say) -> Finding:
    """101: how much a word's output depends on the word itself, when no layer lets a position look at itself."""
    torch.manual_seed(0)
    vectors = torch.randn(1, 6, 16)
    others = ~torch.eye(6, dtype=torch.bool)  # every position looks at all others, never at itself
    own = []
    for layers in (1, 2, 3):
        words = vectors.clone().requires_grad_()
        mixed = words
        for _ in range(layers):  # Q and K are held still: what matters is whose content arrives, and that is V's
            mixed = F.scaled_dot_product_attention(vectors, vectors, mixed, attn_mask=others)
        (gradient,) = torch.autograd.grad(mixed[0, 2].sum(), words)
        own.append(gradient[0, 2].abs().sum().item())
        say(f"{layers} two-way layers, none looks at itself: the gradient of output 3 by word 3 is {own[-1]:.3f}")
    seen, hidden = _readout(masked=False), _readout(masked=True)
    say("a linear map of an untrained BERT's top vectors names the word at their place:")
    say(f"{seen:.0%} if the word is seen, {hidden:.0%} if it is masked")
    return Finding(
        own[0] == 0 < own[1] and seen > 0.95 > hidden,
        f"one layer can hide a word from itself (gradient {own[0]:.0f}), two cannot ({own[1]:.2f}); then the word "
        f"can be copied ({seen:.0%} without any learning), and only a mask makes it a question ({hidden:.0%})",
    )


def limits(say: Say) -> Finding:
    """102: what [MASK] costs: a word that no task has, blanks that do not know of each other; and a longest row."""
    cities = [("new", "york"), ("los", "angeles"), ("san", "diego"), ("las", "vegas")]
    sentences = [f"she lives in {first} {second} now ." for first, second in cities]
    model = learn_sentences(sentences, TINY, steps=400)
    text = "she lives in [MASK] [MASK] now ."
    first, second = (dict(found) for found in model.fill(text, top=len(model.tokenizer)))
    real = sum(first[one] * second[two] for one, two in cities)
    mixed = sum(first[one] * second[two] for one, _ in cities for _, two in cities) - real
    say(f"{text} by the product of both blanks:")
    say(f"{real:.0%} on cities that exist, {mixed:.0%} on mixtures such as 'new vegas'")
    one = dict(model.fill("she lives in new [MASK] now .", top=len(model.tokenizer))[0])["york"]
    say(f"with the first word in place the second is known: 'york' {one:.0%}")
    written = _written_cities(learn_sentences(sentences, ONE_WAY, steps=400), cities)
    say(f"a GPT as small, by the product of two next words: {written:.0%} on cities that exist")
    mask = model.tokenizer.mask_id
    pretraining = 0.8 * keel.Bert().mask_rate
    say(f"[MASK] (piece {mask}) is {pretraining:.0%} of the words in pre-training and 0% of those in any task")
    try:
        model.fill("she lives in " + "very " * 20 + "[MASK] .")
        refused = ""
    except KeelError as error:
        refused = str(error)
    say(f"a longer row than there are positions for: {refused or 'accepted'}")
    return Finding(
        mixed > 0.4 and one > 0.8 and written > 0.8 and bool(refused),
        f"two blanks filled apart give {mixed:.0%} to pairs that were never seen, where a one-way model writes "
        f"{written:.0%} cities that exist; {pretraining:.0%} of the input is a "
        "word that tasks lack, and rows are limited",
    )


def _written_cities(model: keel.Model, cities: list[tuple[str, str]]) -> float:
    """How likely a language model is to write one of these cities after "she lives in"."""
    questions = encode_continuations(
        model.tokenizer, ["she lives in"] * len(cities), [f" {one} {two}" for one, two in cities]
    )
    return sum(math.exp(each.log_prob) for each in continuation_likelihoods(next_token_model(model), questions))


def _neighbours(docstrings: list[Docstring], count: int) -> Pairs:
    """Pairs of sentences: half follow each other in a docstring, for half the second is from another docstring."""
    chosen = docstrings[:count]
    return [
        (one.sentences[0], (one if number % 2 else other).sentences[1], "follows" if number % 2 else "elsewhere")
        for number, (one, other) in enumerate(zip(chosen, chosen[1:] + chosen[:1], strict=True))
    ]


def _loss_of_hidden_words(model: keel.Model, docstrings: list[Docstring]) -> float:
    """On docstrings that no model has read, in rows of one text each, whatever rows the model was trained on."""
    assert isinstance(model.system, keel.Bert)
    assert isinstance(model.encoder, BertEncoder)
    assert model.objective is not None
    objective = replace(model.system, next_sentence=False).build_objective(model.encoder, model.tokenizer)
    objective.load_state_dict(model.objective.state_dict())
    corpus = keel.Corpus.of("\n".join(docstring.sentences) for docstring in docstrings)
    data = Documents.of(keel.Tokens.build(corpus, model.tokenizer))
    return validation_loss(data, model.system.pretraining_defaults)(objective)["mlm"]


def _readout(masked: bool) -> float:
    """How often a linear map names the word at a place from a random BERT's top vector there."""
    torch.manual_seed(0)
    encoder = keel.Bert(layers=2, width=128, max_positions=16, sequence_length=16).build_encoder(101).eval()
    words = torch.randint(1, 101, (600, 16))
    shown = words.clone()
    if masked:
        shown[:, 8] = 0  # the place that is asked for holds [MASK]
    with torch.inference_mode():
        top = encoder(TokenBatch(ids=shown, lengths=torch.full((600,), 16))).top[:, 8]
    weights = torch.linalg.lstsq(top[:400], F.one_hot(words[:400, 8], 101).float(), driver="gelsd").solution
    return ((top[400:] @ weights).argmax(1) == words[400:, 8]).float().mean().item()
