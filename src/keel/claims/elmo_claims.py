"""Claims about words in their context: ELMo and its two language models."""

import tempfile
from pathlib import Path
from random import Random

import numpy as np
import torch

import keel
from keel.claims.claim import Finding, Say
from keel.claims.small_models import learn_words
from keel.data.documents import Documents
from keel.data.token_batch import TokenBatch
from keel.data.token_store import Tokens
from keel.systems.elmo import ElmoBatch, ElmoPretraining
from keel.training.counter_rng import CounterRng

TINY_ELMO = keel.Elmo(
    width=32,
    cell_size=64,
    character_dim=8,
    character_filters=(16, 16, 16),
    highway_layers=1,
    bptt=10,
    softmax_samples=0,
    dropout=0.0,
)
BANKS = (
    "have you paid that money to the bank yet ?",
    "it is safest to deposit your money in the bank .",
    "the victim was found lying dead on the river bank .",
    "they stood on the river bank to fish .",
    "the hospital has its own blood bank .",
)
"""The five sentences of the source (after arXiv 1902.06006)."""
WORDS: dict[str, tuple[str, tuple[int, ...]]] = {
    "money": ("money loan cash credit coins debt", (0, 1)),
    "river": ("river water mud reeds flood stream", (2, 3)),
    "blood": ("blood plasma donor serum ward nurse", (4,)),
}
"""What belongs to each kind of bank, and which of the sentences above are about it."""
FRAMES = ("the {} at the bank goes with {} .", "the bank has {} and {} .", "{} and {} belong to the bank .")


def five_banks(say: Say) -> Finding:
    """23: which of three banks is it? By the vector of "bank" in a sentence, word2vec's and ELMo's."""
    texts, truth = _new_sentences()
    right, cosines = {}, {}
    for name, model in _models().items():
        found = keel.senses("bank", list(BANKS), model=model)
        for line in found.lines()[1:]:
            say(f"{name}: {line}")
        cosines[name] = found.cosines.min()
        vectors = np.array([it.vectors[it.tokens.index("bank")] for it in model.encode(texts, pool="none")])
        right[name] = _told_apart(vectors, truth)
        say(f"{name}: a linear rule on the vector of 'bank' names {right[name]:.0%} of three senses in new sentences")
    return Finding(
        cosines["word2vec"] > 0.9999 > cosines["ELMo"] and right["word2vec"] < 0.4 and right["ELMo"] > 0.75,
        f"to word2vec all five banks are one vector (cosine {cosines['word2vec']:.2f}), to ELMo each is another (down "
        f"to {cosines['ELMo']:.2f}); in new sentences one vector names {right['word2vec']:.0%} of three senses, ELMo's "
        f"{right['ELMo']:.0%}",
    )


def three_tokens(say: Say) -> Finding:
    """24: the vector of one word in three sentences, layer by layer."""
    model = _untaught()
    texts = [BANKS[0], BANKS[2], BANKS[4]]
    apart = []
    for layer in range(3):
        vectors = [it.vectors[it.tokens.index("bank")] for it in model.encode(texts, layer=layer, pool="none")]
        apart.append(min(float(np.abs(vectors[a] - vectors[b]).max()) for a, b in ((0, 1), (0, 2), (1, 2))))
        say(f"layer {layer}: the vectors of 'bank' in three sentences differ by {apart[-1]:.2g} or more")
    return Finding(
        apart[0] == 0 < min(apart[1:]),
        f"letters give every bank the same vector (difference {apart[0]:.0f}); from the first LSTM on each token has "
        f"its own ({apart[1]:.2f}, {apart[2]:.2f})",
    )


def two_stacks(say: Say) -> Finding:
    """63: which weights learn from which direction's loss."""
    objective, streams = _learning()
    layers = [layer.get_parameter("recurrent") for layer in objective.encoder.stack]
    mine, other, sums = [], [], []
    for direction, name in enumerate(("next", "previous")):
        *gradients, ends = torch.autograd.grad(objective(streams)[0][name], [*layers, objective.output])
        mine += [gradient[direction].abs().max().item() for gradient in gradients]
        other += [gradient[1 - direction].abs().max().item() for gradient in gradients]
        sums.append(ends)
    say(f"the loss of a direction moves its own LSTMs (largest gradient {max(mine):.2g})")
    say(f"and those of the other direction by {max(other):.2g}")
    losses, _ = objective(streams)
    (total,) = torch.autograd.grad(losses["next"] + losses["previous"], [objective.output])
    gap = ((total - sums[0] - sums[1]).abs().max() / total.abs().max()).item()
    say(f"the gradient of the added losses is the sum of theirs, to {gap:.0e}")
    return Finding(
        max(other) == 0 < min(mine) and gap < 1e-5,
        "two one-way stacks, of which neither learns anything from the other's loss; their losses are added",
    )


def shared_ends(say: Say) -> Finding:
    """64: letters and softmax are one for both directions."""
    objective, streams = _learning()
    shared = {"the letters": objective.encoder.characters.weight, "the softmax": objective.output}
    losses, _ = objective(streams)
    largest = {}
    for loss in losses:
        gradients = torch.autograd.grad(objective(streams)[0][loss], [*shared.values()])
        for name, gradient in zip(shared, gradients, strict=True):
            largest[name, loss] = gradient.abs().max().item()
            say(f"{name}: largest gradient {largest[name, loss]:.2g} by the loss of {loss} words")
    both = (losses["next"] + losses["previous"]).item() / streams.targets[:, 0].numel()
    chance = 2 * np.log(objective.encoder.vocab_size)
    say(f"both directions together cost {both:.2f} a word before learning; a guess among all words {chance:.2f}")
    return Finding(
        min(largest.values()) > 0 and abs(both - chance) < 0.3 * chance,
        "letters and softmax learn from both directions, the LSTMs between from one each: the joint likelihood of the "
        "source",
    )


def one_side_each(say: Say) -> Finding:
    """73: what of a word's vector changes with the words on its right, by ELMo and by BERT."""
    model = _untaught()
    texts = ["the river bank to fish", "the river bank yet"]
    one, other = model.encode(texts, pool="none")
    place = one.tokens.index("bank")
    moved = np.abs(one.vectors[place] - other.vectors[place])
    half = len(moved) // 2
    forwards, backwards = float(moved[:half].max()), float(moved[half:].max())
    say(f"another word after 'bank': the forward half of its vector moves by {forwards:.2g}, the backward half by "
        f"{backwards:.2g}")  # fmt: skip
    torch.manual_seed(0)
    bert = keel.Bert(
        layers=1, width=32, head_dim=32, max_positions=16, sequence_length=10, next_sentence=False, dropout=0.0
    )
    encoder = bert.build_encoder(len(model.tokenizer)).eval()
    with torch.no_grad():
        rows = TokenBatch.pad(
            [bert.build_inputs(model.tokenizer, ids).ids for ids in model.tokenizer.encode_many(texts)]
        )
        top = encoder(rows).top[:, place + 1]
    still = int(((top[0] - top[1]).abs() < 1e-6).sum())
    say(f"of the {top.shape[1]} numbers of BERT's vector {still} stay as they are")
    return Finding(
        forwards == 0 < backwards and still == 0,
        "each half of ELMo's vector knows one side alone, and only laying them side by side joins the two; in BERT "
        "every number knows both",
    )


def _models() -> dict[str, keel.Model]:
    """Both have read the same texts, of which each is about one kind of bank."""
    random = Random(0)
    texts = []
    for _ in range(150):
        for sense, (_, own) in WORDS.items():
            sentences = [_sentence(sense, random) for _ in range(4)]
            sentences.insert(random.randrange(4), BANKS[random.choice(own)])
            texts.append("\n".join(sentences))
    with tempfile.TemporaryDirectory() as folder:
        elmo = keel.pretrain(
            TINY_ELMO, keel.Corpus.of(texts), out=Path(folder) / "m", held_out=0.0, steps=400, batch=16, lr=1e-2,
            warmup=5, min_count=1, evaluate_every=0, device="cpu", threads=1,
        )  # fmt: skip
    return {"word2vec": learn_words(texts, keel.Word2vec(width=16, window=4, subsample=0.0), epochs=3), "ELMo": elmo}


def _sentence(sense: str, random: Random) -> str:
    return random.choice(FRAMES).format(*random.sample(WORDS[sense][0].split(), 2))


def _new_sentences() -> tuple[list[str], np.ndarray]:
    """Sixty of each kind, and the kind of each."""
    random = Random(1)
    return [_sentence(sense, random) for sense in WORDS for _ in range(60)], np.repeat(np.arange(3), 60)


def _told_apart(vectors: np.ndarray, truth: np.ndarray) -> float:
    """How many a linear rule names rightly that was learned from every second one."""
    inputs = np.c_[vectors - vectors.mean(0), np.ones(len(vectors))]
    known = np.arange(len(vectors)) % 2 == 0
    weights = np.linalg.lstsq(inputs[known], np.eye(3)[truth[known]], rcond=1e-3)[0]
    return float(((inputs[~known] @ weights).argmax(1) == truth[~known]).mean())


def _untaught() -> keel.Model:
    """How it is built is asked, not what it has learned."""
    torch.manual_seed(0)
    tokenizer = keel.Tokenizer.train(keel.Corpus.of([*BANKS]), kind="words", size=100)
    encoder = TINY_ELMO.build_encoder(len(tokenizer))
    return keel.Model(system=TINY_ELMO, encoder=encoder.eval(), tokenizer=tokenizer)


def _learning() -> tuple[ElmoPretraining, ElmoBatch]:
    corpus = keel.Corpus.of([*BANKS])
    tokenizer = keel.Tokenizer.train(corpus, kind="words", size=100)
    torch.manual_seed(0)
    objective = TINY_ELMO.build_objective(TINY_ELMO.build_encoder(len(tokenizer)), tokenizer)
    documents = Documents.of(Tokens.build(corpus, tokenizer))
    return objective, objective.batch(documents, CounterRng(seed=0, step=0, first_example=0, batch_size=4), range(4))
