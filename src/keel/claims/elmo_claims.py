"""Claims about ELMo and its two language models."""

from itertools import combinations
from random import Random

import numpy as np
import torch

import keel
from keel.claims.claim import Say, Verdict
from keel.claims.measures import accuracy, linear_probe, max_difference, word_vectors
from keel.claims.small_models import TINY, TINY_ELMO, TINY_SKIPGRAM, learn_topics, pretrain_tiny
from keel.data.documents import Documents
from keel.data.token_batch import TokenBatch
from keel.systems.elmo import ElmoBatch, ElmoEncoder, ElmoPretraining
from keel.training.counter_rng import CounterRng

BANKS = (
    "have you paid that money to the bank yet ?",
    "it is safest to deposit your money in the bank .",
    "the victim was found lying dead on the river bank .",
    "they stood on the river bank to fish .",
    "the hospital has its own blood bank .",
)
"""Five sentences from arXiv 1902.06006."""
WORDS: dict[str, tuple[str, tuple[int, ...]]] = {
    "money": ("money loan cash credit coins debt", (0, 1)),
    "river": ("river water mud reeds flood stream", (2, 3)),
    "blood": ("blood plasma donor serum ward nurse", (4,)),
}
"""Words of each sense of "bank", and the sentences above with that sense."""
TEMPLATES = ("the {} at the bank goes with {} .", "the bank has {} and {} .", "{} and {} belong to the bank .")


def five_banks(say: Say) -> Verdict:
    """23: three senses of "bank" by word2vec's and ELMo's vectors."""
    texts, truth = _new_sentences()
    found = []
    for name, model in _models().items():
        compared = keel.senses("bank", list(BANKS), model=model)
        for line in compared.lines()[1:]:
            say(f"{name}: {line}")
        found.append((compared.cosines.min(), accuracy(linear_probe(word_vectors(model, texts, "bank"), truth))))
        say(f"{name}: accuracy of a linear probe for three senses of 'bank' in new sentences: {found[-1][1]:.0%}")
    (same, static), (cosine, contextual) = found
    return Verdict(
        same > 0.9999 > cosine and static < 0.4 and contextual > 0.75,
        f"word2vec gives all five banks the same vector (cosine {same:.2f}), ELMo different ones (down to "
        f"{cosine:.2f}); in new sentences a probe finds the sense in {static:.0%} and {contextual:.0%}",
    )


def three_tokens(say: Say) -> Verdict:
    """24: the vectors of one word in three sentences, for each layer."""
    model = _random_elmo()
    texts = [BANKS[0], BANKS[2], BANKS[4]]
    found = []
    for layer in range(3):
        vectors = word_vectors(model, texts, "bank", layer)
        found.append(min(max_difference(one, other) for one, other in combinations(vectors, 2)))
        say(f"layer {layer}: smallest difference between the vectors of 'bank' in three sentences: {found[-1]:.2g}")
    return Verdict(
        found[0] == 0 < min(found[1:]),
        f"the character CNN gives every 'bank' the same vector (difference {found[0]:.0f}); from the first LSTM on, "
        f"each token has its own ({found[1]:.2f}, {found[2]:.2f})",
    )


def two_stacks(say: Say) -> Verdict:
    """63: gradients of each direction's loss with respect to the LSTMs of both directions."""
    objective, streams = _objective_and_batch()
    layers = [layer.get_parameter("recurrent") for layer in objective.encoder.stack]
    mine, other, sums = [], [], []
    for direction, name in enumerate(("next", "previous")):
        *gradients, ends = torch.autograd.grad(objective(streams)[0][name], [*layers, objective.output])
        mine += [gradient[direction].abs().max().item() for gradient in gradients]
        other += [gradient[1 - direction].abs().max().item() for gradient in gradients]
        sums.append(ends)
    say(f"largest gradient of a direction's loss in its own LSTMs: {max(mine):.2g}")
    say(f"largest gradient in the LSTMs of the other direction: {max(other):.2g}")
    losses, _ = objective(streams)
    (total,) = torch.autograd.grad(losses["next"] + losses["previous"], [objective.output])
    gap = ((total - sums[0] - sums[1]).abs().max() / total.abs().max()).item()
    say(f"gradient of the summed loss against the sum of the gradients: relative difference {gap:.0e}")
    return Verdict(
        max(other) == 0 < min(mine) and gap < 1e-5,
        "two unidirectional stacks, neither of which gets a gradient from the other's loss; their losses are added",
    )


def shared_ends(say: Say) -> Verdict:
    """64: character embeddings and softmax are shared by both directions."""
    objective, streams = _objective_and_batch()
    shared = {"character embeddings": objective.encoder.characters.weight, "softmax": objective.output}
    losses, _ = objective(streams)
    largest = {}
    for loss in losses:
        gradients = torch.autograd.grad(objective(streams)[0][loss], [*shared.values()])
        for name, gradient in zip(shared, gradients, strict=True):
            largest[name, loss] = gradient.abs().max().item()
            say(f"{name}: largest gradient of the loss '{loss}' {largest[name, loss]:.2g}")
    both = (losses["next"] + losses["previous"]).item() / streams.targets[:, 0].numel()
    uniform = 2 * np.log(objective.encoder.vocab_size)
    say(f"joint loss per word before training {both:.2f}; of a uniform distribution {uniform:.2f}")
    return Verdict(
        min(largest.values()) > 0 and abs(both - uniform) < 0.3 * uniform,
        "character embeddings and softmax get gradients from both directions, the LSTMs from one each: the joint "
        "likelihood of the source",
    )


def one_side_each(say: Say) -> Verdict:
    """73: which part of a word's vector changes with the words on its right, in ELMo and in BERT."""
    model = _random_elmo()
    texts = ["the river bank to fish", "the river bank yet"]
    one, other = model.encode(texts, pool="none")
    position = one.tokens.index("bank")
    moved = np.abs(one.vectors[position] - other.vectors[position])
    half = len(moved) // 2
    forwards, backwards = float(moved[:half].max()), float(moved[half:].max())
    changed = f"the forward half of its vector changes by {forwards:.2g}, the backward half by {backwards:.2g}"
    say(f"other words after 'bank': {changed}")
    torch.manual_seed(0)
    encoder = TINY.build_encoder(len(model.tokenizer)).eval()
    inputs = [TINY.build_inputs(model.tokenizer, ids).ids for ids in model.tokenizer.encode_many(texts)]
    with torch.no_grad():
        top = encoder(TokenBatch.pad(inputs)).top[:, position + 1]
    still = int(((top[0] - top[1]).abs() < 1e-6).sum())
    say(f"unchanged dimensions of BERT's vector: {still} of {top.shape[1]}")
    return Verdict(
        forwards == 0 < backwards and still == 0,
        "each half of ELMo's vector depends on one side only, and concatenation is all that joins them; in BERT every "
        "dimension depends on both sides",
    )


def _models() -> dict[str, keel.Model]:
    """Both models, trained on the same texts, each about one sense of "bank"."""
    random = Random(0)
    texts = []
    for _ in range(150):
        for sense, (_, own) in WORDS.items():
            sentences = [_sentence(sense, random) for _ in range(4)]
            sentences.insert(random.randrange(4), BANKS[random.choice(own)])
            texts.append("\n".join(sentences))
    return {"word2vec": pretrain_tiny(TINY_SKIPGRAM, texts, epochs=3), "ELMo": learn_topics(texts)}


def _sentence(sense: str, random: Random) -> str:
    return random.choice(TEMPLATES).format(*random.sample(WORDS[sense][0].split(), 2))


def _new_sentences() -> tuple[list[str], torch.Tensor]:
    """Sixty sentences per sense, and their senses."""
    random = Random(1)
    return [_sentence(sense, random) for sense in WORDS for _ in range(60)], torch.arange(3).repeat_interleave(60)


def _random_elmo() -> keel.Model:
    """An untrained ELMo: only its architecture matters."""
    tokenizer = keel.Tokenizer.train(keel.Corpus.of([*BANKS]), kind="words", size=100)
    torch.manual_seed(0)
    encoder = TINY_ELMO.build_encoder(len(tokenizer))
    return keel.Model(system=TINY_ELMO, encoder=encoder.eval(), tokenizer=tokenizer)


def _objective_and_batch() -> tuple[ElmoPretraining, ElmoBatch]:
    model = _random_elmo()
    assert isinstance(model.encoder, ElmoEncoder)
    objective = TINY_ELMO.build_objective(model.encoder, model.tokenizer).train()
    documents = Documents.of(keel.Tokens.build(keel.Corpus.of([*BANKS]), model.tokenizer))
    return objective, objective.batch(documents, CounterRng(seed=0, step=0, first_example=0, batch_size=4), range(4))
