"""Claims about what single attention heads of a trained model do: relations between words, and pronouns.

Clark et al. 2019: a head is scored by how often the word that it attends to most, from a word, is the one that stands
in a relation to it; the best head is chosen on other sentences than those of the test.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

import keel
from keel.claims.annotated_sentences import (
    NOUNS,
    AnnotatedSentence,
    Reference,
    generate_dependencies,
    generate_references,
    read_treebank,
)
from keel.claims.claim import Say, Verdict
from keel.claims.example_texts import model_and_language, untrained_twin
from keel.claims.measures import mean_score
from keel.data.token_batch import TokenBatch
from keel.nn.inference_loop import eval_mode
from keel.report.attention_charts import attention_lines
from keel.report.charts import heat_map
from keel.systems.capabilities import LanguageModelSystem

BATCH = 16
OFFSETS = [offset for offset in range(-6, 7) if offset]
"""Distances in words of the baseline."""
LEAST = 100
"""Occurrences in the test sentences of a relation that is scored."""
ARROWS = "><"
"""From the dependent to its head, and from the head to its dependent."""
RESOLVED = 0.75
"""Accuracy, midway between chance and certainty, above which a head resolves pronouns."""


def word_attention(model: keel.Model, sentences: Sequence[Sequence[str]]) -> Iterator[tuple[int, np.ndarray]]:
    """(index, weights [layers, heads, words, words]) of sentences that the model can read as a whole: the attention to
    a word is the sum over its tokens, the attention from a word the mean; special tokens are left out."""
    system, tokenizer = model.system, model.tokenizer
    alone = isinstance(system, LanguageModelSystem)
    room = system.max_length if alone else system.max_text_length(tokenizer, pair=False)
    encoded = [tokenizer.encode_words(list(words)) for words in sentences]
    counts = [sum(map(len, each)) for each in encoded]
    readable = [n for n, each in enumerate(encoded) if len(each) > 1 and all(each) and counts[n] <= room]
    readable.sort(key=lambda n: counts[n])
    for start in range(0, len(readable), BATCH):
        batch = readable[start : start + BATCH]
        flat = [[id for word in encoded[n] for id in word] for n in batch]
        inputs = [] if alone else [system.build_inputs(tokenizer, ids) for ids in flat]
        given = TokenBatch.pad([each.ids for each in inputs] or flat, [each.segments for each in inputs] or None)
        weights = _recorded_weights(model, given)
        for position, n in enumerate(batch):
            first = 0 if alone else inputs[position].first_start
            first += weights.shape[-1] - given.ids.shape[1]  # a sink before the first token
            sizes = [len(word) for word in encoded[n]]
            inside = slice(first, first + counts[n])
            starts = np.cumsum([0, *sizes[:-1]])
            to_words = np.add.reduceat(weights[position][..., inside, inside], starts, -1)
            yield n, np.add.reduceat(to_words, starts, -2) / np.array(sizes)[:, None]


def _recorded_weights(model: keel.Model, batch: TokenBatch) -> np.ndarray:
    """[batch, layers, heads, queries, keys] attention weights."""
    seen: list[Tensor] = []
    with torch.inference_mode(), eval_mode(model.encoder):
        model.encoder(batch.to(model.device), record=lambda name, layer, value: seen.append(value))
    return torch.stack(seen, 1).float().cpu().numpy()


class RelationHits(NamedTuple):
    """How often the word attended to most is the related one, by relation."""

    counts: dict[str, int]
    heads: dict[str, np.ndarray]  # [directions, layers, heads]
    offsets: dict[str, np.ndarray]  # [directions, offsets]: the word at a fixed distance


def relation_hits(model: keel.Model, sentences: Sequence[AnnotatedSentence]) -> RelationHits:
    """The hits of all heads and of all distances: from the dependent to its head, and from the head to it."""
    counts: dict[str, int] = {}
    heads: dict[str, np.ndarray] = {}
    offsets: dict[str, np.ndarray] = {}
    distances = np.array(OFFSETS)
    for number, weights in word_attention(model, [each.words for each in sentences]):
        words = np.arange(weights.shape[-1])
        weights[..., words, words] = 0.0  # attention to itself is no relation
        most = np.where(weights.max(-1) > 0, weights.argmax(-1), -1)  # [layers, heads, words]; -1: no other word
        for name, dependent, head in sentences[number].relations:
            hits = np.stack([most[..., dependent] == head, most[..., head] == dependent])
            near = np.stack([dependent + distances == head, head + distances == dependent])
            counts[name] = counts.get(name, 0) + 1
            heads[name] = heads.get(name, 0) + hits
            offsets[name] = offsets.get(name, 0) + near
    return RelationHits(counts, heads, offsets)


def relations_of_heads(say: Say, model: keel.Model | None = None, data: Path | None = None) -> Verdict:
    """128: the best head for each relation, chosen on one half of the sentences and scored on the other."""
    model, language = model_and_language(model, say)
    if data is not None:
        halves = [read_treebank(data, split) for split in ("dev", "test")]
    elif language == "zh":
        halves = [generate_dependencies(400, Random(half)) for half in range(2)]
    else:
        what = "without data, sentences are generated in Chinese, which this model does not read"
        raise keel.UsageError(f"{what}: give --data FOLDER with a treebank (CoNLL-U)")
    say(f"{len(halves[0]):,} sentences to choose heads and distances, {len(halves[1]):,} for the test")
    chosen, test = (relation_hits(model, half) for half in halves)
    twin = untrained_twin(model)
    chosen_untrained, untrained = (relation_hits(twin, half) for half in halves)
    names = sorted(name for name in test.counts if test.counts[name] >= LEAST and name in chosen.counts)
    names.sort(key=lambda name: -test.counts[name])
    if not names:
        raise keel.UsageError(f"no relation occurs {LEAST} times in the test file: use --data with a larger treebank")
    single = np.mean([(chosen.heads[name] / chosen.counts[name]).max(0) for name in names], 0)
    layer, head = _best(single)
    say("relation   count  best head  accuracy  fixed distance  one head for all  random weights")
    winners: dict[str, tuple[int, ...]] = {}
    found: list[list[float]] = []
    for name in names:
        winners[name] = best = _best(chosen.heads[name])
        nearest, random = _best(chosen.offsets[name]), _best(chosen_untrained.heads[name])
        same = int(chosen.heads[name][:, layer, head].argmax()), layer, head
        hits = (
            test.heads[name][best],
            test.offsets[name][nearest],
            test.heads[name][same],
            untrained.heads[name][random],
        )
        found.append([float(each) / test.counts[name] for each in hits])
        own, fixed, one, twins = found[-1]
        distance = f"({ARROWS[nearest[0]]} {OFFSETS[nearest[1]]:+})"
        by_distance = f"{fixed:7.1%} {distance:>6}"
        others = f"{by_distance}  {one:16.1%}  {twins:14.1%}"
        say(f"{name:10} {test.counts[name]:5}  {_name_head(best):>9}  {own:8.1%}  {others}")
    means = np.mean(found, 0)
    say(f"mean              {'':>9}  {means[0]:8.1%}  {means[1]:7.1%} {'':>6}  {means[2]:16.1%}  {means[3]:14.1%}")
    say("2-4 >: layer 2, head 4, from the dependent to its head; <: from the head to its dependent")
    columns = sorted({winner[1:] for winner in winners.values()})
    accuracies = [
        [test.heads[name][winners[name][0]][place] / test.counts[name] for place in columns] for name in names
    ]
    grid = heat_map([f"{row + 1}-{column + 1}" for row, column in columns], names, np.array(accuracies))
    caption = "Accuracy of the heads (columns) that are the best one for some relation (rows); darker is more."
    say.picture(grid, caption)
    leads = [mean_score(np.array([row[0] - row[column] for row in found])) for column in (1, 2, 3)]
    return Verdict(
        all((lead.low or 0) > 0 for lead in leads),
        f"{len(columns)} different heads are the best ones for {len(names)} relations, with an accuracy of "
        f"{means[0]:.0%}; the best single head for all reaches {means[2]:.0%}, a fixed distance {means[1]:.0%}, heads "
        f"of the network with random weights {means[3]:.0%}",
    )


def _best(hits: np.ndarray) -> tuple[int, ...]:
    """Indices of the largest value."""
    return tuple(map(int, np.unravel_index(int(hits.argmax()), hits.shape)))


def _name_head(best: tuple[int, ...]) -> str:
    direction, layer, head = best
    return f"{layer + 1}-{head + 1} {ARROWS[direction]}"


def pronouns_of_heads(say: Say, model: keel.Model | None = None) -> Verdict:
    """126: whether a pronoun attends more to the noun that it stands for, in the head chosen on other sentences."""
    model, language = model_and_language(model, say)
    halves = [generate_references(language, 400, half, Random(half)) for half in range(2)]
    say(f"{len(halves[0])} sentences to choose a head, {len(halves[1])} with other nouns for the test, such as")
    joint = " " if language == "en" else ""
    for each in halves[1][:2]:
        say(f"  {joint.join(each.words)} ({each.words[each.pronoun]}: {each.words[each.nouns[each.antecedent]]})")
    first = np.mean([each.antecedent == 0 for each in halves[1]])
    say(f"always the first noun: {first:.1%}; always the nearest noun: {1 - first:.1%}")
    right: dict[str, np.ndarray] = {}
    best: dict[str, tuple[int, ...]] = {}
    for name, network in (("trained", model), ("random", untrained_twin(model))):
        chosen, right[name] = (_resolved(network, half) for half in halves)  # [sentences, layers, heads]
        best[name] = layer, head = _best(chosen.mean(0))
        score = mean_score(right[name][:, layer, head].astype(float))
        say(f"{name} weights: layer {layer + 1}, head {head + 1} is right in {score:.1%}")
    layer, head = best["trained"]
    mine = right["trained"][:, layer, head]
    for pronoun in NOUNS[language]:
        own = np.array([each.words[each.pronoun] == pronoun for each in halves[1]])
        order = np.array([each.antecedent for each in halves[1]])
        parts = [f"{mine[own & (order == n)].mean():.0%} where it is the {('first', 'second')[n]}" for n in range(2)]
        say(f"  {pronoun}: {mine[own].mean():.1%} of {own.sum()}; {', '.join(parts)}")
    example = halves[1][0]
    ((_, weights),) = word_attention(model, [example.words])
    picture = attention_lines(example.words, example.words, weights[layer, head], ([example.pronoun], ()))
    say.picture(picture, f"Attention from the pronoun in layer {layer + 1}, head {head + 1}, special tokens left out.")
    score, other = mean_score(mine.astype(float)), right["random"][:, best["random"][0], best["random"][1]].mean()
    low, baseline = score.low or 0.0, max(first, 1 - first)
    return Verdict(
        low > RESOLVED or (None if low > baseline else False),
        f"in layer {layer + 1}, head {head + 1} the pronoun attends more to its antecedent than to the other noun in "
        f"{score:.1%} of the sentences (nearest or first noun {baseline:.0%}, best head of random weights {other:.0%})",
    )


def _resolved(model: keel.Model, references: Sequence[Reference]) -> np.ndarray:
    """[sentences, layers, heads] whether the pronoun attends more to its antecedent than to the other noun."""
    found: dict[int, np.ndarray] = {}
    for number, weights in word_attention(model, [each.words for each in references]):
        _, pronoun, nouns, antecedent = references[number]
        found[number] = weights[..., pronoun, nouns[antecedent]] > weights[..., pronoun, nouns[1 - antecedent]]
    return np.stack([found[number] for number in range(len(references))])
