"""Claims about contextual vectors, ELMo and its two language models."""

from itertools import combinations

import numpy as np
import torch

import keel
from keel.claims.claim import Say, Verdict
from keel.claims.measures import max_difference, mean_score, word_vectors
from keel.claims.small_models import TINY, TINY_ELMO
from keel.data.documents import Documents
from keel.data.token_batch import TokenBatch
from keel.explain.nearest_neighbors import unit_vectors
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
SAME, OTHER = ((0, 1), (2, 3)), ((0, 2), (0, 3), (0, 4), (1, 2), (1, 3), (1, 4), (2, 4), (3, 4))
"""Pairs of these sentences with one sense, and with two."""
NEW = {
    "money": (
        "She opened a savings account at the bank.", "The bank refused to lend him any more cash.",
        "Thieves robbed the bank and fled with the cash.", "He owes the bank a large sum of interest.",
        "Our bank charges a fee for each payment.", "The clerk at the bank counted the notes twice.",
        "My salary is paid into the bank every month.", "The bank lowered its interest on mortgages.",
    ),
    "river": (
        "We sat on the bank and watched the boats drift past.", "The stream overflowed its bank after the storm.",
        "Reeds grew along the bank of the canal.", "He pulled the canoe up on the bank.",
        "Ducks were nesting on the muddy bank.", "The swimmer reached the opposite bank at last.",
        "A path follows the left bank of the Rhine.", "Cattle came down the bank to drink water.",
    ),
    "blood": (
        "Nurses carried plasma from the bank to the operating room.",
        "Her donated blood was kept in the bank for a month.", "Doctors asked the bank for blood of a rare group.",
        "The clinic's bank of frozen plasma was nearly empty.",
        "Donors gave blood so that the bank would not run out before the operation.",
        "Every donation to the bank is tested for infections.",
        "The surgeon ordered four units of blood from the bank.",
        "A shortage of donors left the bank without rare blood types.",
    ),
}  # fmt: skip
"""Sentences by the sense of "bank", written for this experiment."""


def five_banks(say: Say, model: keel.Model | None = None) -> Verdict:
    """23: three senses of "bank" by static vectors, and by each layer of an encoder."""
    static, model = keel.Model.load("english-words"), model or keel.Model.load("english")
    same = keel.senses("bank", list(BANKS), model=static).cosines.min()
    say(f"english-words: lowest cosine of two banks in five sentences {same:.2f}")
    for line in keel.senses("bank", list(BANKS), model=model).lines():
        say(line)
    texts = [text for each in NEW.values() for text in each]
    around = unit_vectors(static.encode([text.replace("bank", "") for text in texts]))[0]
    bag = _sense_accuracy(around @ around.T)
    say("layer  lowest cosine of one sense  highest of two senses  clusters  sense of 'bank' in new sentences")
    separated = []
    for layer in model.encoder.layer_numbers:
        found = keel.senses("bank", list(BANKS), model=model, layer=layer)
        one, two = (np.array([found.cosines[pair] for pair in pairs]) for pairs in (SAME, OTHER))
        groups = "".join(found.group_name(use) for use in range(len(BANKS)))
        score = _sense_accuracy(keel.senses("bank", texts, model=model, layer=layer).cosines)
        separated.append(one.min() > two.max() and (score.low or 0) > 1 / len(NEW))
        say(f"{layer:5}  {one.min():27.2f}  {two.max():21.2f}  {groups:8}  {score:.0%}")
    say(f"mean of the word vectors around 'bank' instead: {bag:.0%}")
    layers, count = len(separated) - 1, sum(separated[1:])
    return Verdict(
        same > 0.9999 and count > layers / 2,
        f"static vectors give all five banks the same vector (cosine {same:.2f}); in {count} of {layers} layers banks "
        f"of one sense are nearer than those of two, and the senses of {len(texts)} new sentences are found more often "
        "than by chance",
    )


def _sense_accuracy(cosines: np.ndarray) -> keel.Score:
    """How often a sentence of `NEW` has the highest mean cosine to the other ones of its sense."""
    senses = np.repeat(range(len(NEW)), [*map(len, NEW.values())])
    others = np.where(np.eye(len(senses), dtype=bool), np.nan, cosines)
    means = [np.nanmean(others[:, senses == sense], 1) for sense in range(len(NEW))]
    return mean_score((np.argmax(means, 0) == senses).astype(float))


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
