"""Claims about GPT, a causal language model, and its tasks."""

import itertools
from random import Random
from statistics import fmean
from typing import Any

import torch
from torch.nn import functional as F

import keel
from keel.claims.attention_view_claims import pronoun_and_occupation
from keel.claims.claim import Say, Verdict
from keel.claims.measures import batch_of, max_difference, parameter_count, recorded_attention, show_figure
from keel.claims.small_models import NO_DROPOUT, pretrain_tiny
from keel.systems.gpt import TASK_TOKENS

SENTENCE = "潮水退了就知道谁没穿裤子"
KINDS = {
    "colour": "red blue green white black yellow", "animal": "dog cat horse cow sheep goat",
    "food": "bread soup cheese rice apple cake", "tool": "hammer saw knife axe spade drill",
}  # fmt: skip
SHAPE: dict[str, Any] = {"layers": 1, "width": 64, "head_dim": 16, "max_positions": 16, "sequence_length": 16}
TRAINING: dict[str, Any] = {"dev": None, "epochs": 20, "lr": 3e-3, "batch": 32, "warmup": 0.1}
TEST_SIZE = 500


def product_of_conditionals(say: Say) -> Verdict:
    """75: log p of a text in one pass, and token by token with the KV cache."""
    tokenizer = keel.Tokenizer.from_words([*SENTENCE])
    torch.manual_seed(0)
    system = keel.Gpt(layers=3, width=48, head_dim=16, max_positions=16, sequence_length=16, **NO_DROPOUT)
    objective = system.build_objective(system.build_encoder(len(tokenizer)), tokenizer).eval()
    ids = torch.tensor([[tokenizer.end_id, *tokenizer.encode(SENTENCE).ids]])
    with torch.no_grad():
        top = objective.encoder(batch_of(ids)).top
        scores = top @ objective.encoder.words.weight.T
        at_once = F.log_softmax(scores, -1)[0, :-1].gather(1, ids[0, 1:, None]).sum().item()
        state, factors = objective.new_state(1), []
        for position in range(ids.shape[1] - 1):
            following, state = objective.step(ids[:, position : position + 1], state)
            factors.append(F.log_softmax(following, -1)[0, ids[0, position + 1]].item())
        changed = ids.clone()
        changed[0, 7:] = tokenizer.unknown_id
        moved = (objective.encoder(batch_of(changed)).top - top).abs().amax(-1)[0]
    say(f"log p of {SENTENCE} in one pass: {at_once:.4f}")
    say(f"sum of log p(w_i | w_<i), token by token: {sum(factors):.4f}")
    before, after = float(moved[:7].max()), float(moved[7:].min())
    replaced = f"vectors before it change by {before:.1e}, from it on by {after:.2f} or more"
    say(f"tokens from the seventh on replaced: {replaced}")
    return Verdict(
        abs(at_once - sum(factors)) < 1e-3 and before == 0 < after,
        f"p(s) is the product of p(w_i | w_<i): log p {at_once:.4f} in one pass, {sum(factors):.4f} token by token; no "
        "vector depends on later tokens",
    )


def by_hand(say: Say) -> Verdict:
    """78: q·k, softmax and the weighted sum of v by hand, then greedy generation of the sentence."""
    system = keel.Gpt(layers=2, width=32, head_dim=16, max_positions=32, sequence_length=16, **NO_DROPOUT)
    settings = {"tokenizer": "characters", "steps": 150, "batch": 8, "lr": 1e-2, "warmup": 0.1}
    model = pretrain_tiny(system, [f"{SENTENCE}。"] * 40, **settings)
    output, seen = recorded_attention(model, [model.tokenizer.end_id, *model.tokenizer.encode(SENTENCE).ids])
    block: Any = model.encoder.blocks()[0]
    with torch.no_grad():
        normed = block.attention_norm(output.layers[0])
        q, k, v = block.attention.qkv(normed)[0].view(-1, 3, 2, 16).permute(1, 2, 0, 3)
        position, head = 4, 0
        products = [float(q[head, position] @ k[head, other]) / 4 for other in range(position + 1)]
        weights = torch.tensor(products).softmax(0)
        mixed = (weights[:, None] * v[head, : position + 1]).sum(0)
        theirs = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0, head, position]
    words = ["<start>", *SENTENCE]
    for other, (product, weight) in enumerate(zip(products, weights.tolist(), strict=True)):
        say(f"{words[position]} attends to {words[other]}: q·k / √d = {product:+.2f}, weight {weight:.3f}")
    recorded = seen[0][head, position, : position + 1]
    gap = max(max_difference(weights, recorded), max_difference(mixed, theirs))
    written = keel.generate("潮水", model=model, temperature=0, tokens=10)
    say(f"greedy continuation of 潮水: {written}")
    return Verdict(
        gap < 1e-5 and written == SENTENCE[2:],
        f"softmax(q·k/√d) and the weighted sum of v by hand equal the network's (difference {gap:.0e}), and each "
        f"predicted token is the next input: 潮水 becomes 潮水{written}",
    )


def sizes(say: Say) -> Verdict:
    """79: parameters of the published configurations, counted in Keel's systems."""
    words = 50_257
    # Vocabulary sizes, and millions of parameters of the published files (GPT-3: of the paper).
    published = {
        "ELMo (2018)": (keel.Elmo(), 1000, 93.6),  # by characters: its size does not depend on the vocabulary
        "GPT (2018)": (keel.Gpt.sized("gpt1"), 40_478, 116.5),
        "BERT-large (2018)": (keel.Bert.sized("large"), 30_522, 335.1),
        "GPT-2 small (2019)": (keel.Gpt.sized("small"), words, 124.4),
        "GPT-2 medium": (keel.Gpt.sized("medium"), words, 354.8),
        "GPT-2 large": (keel.Gpt.sized("large"), words, 774.0),
        "GPT-2 XL": (keel.Gpt.sized("xl"), words, 1557.6),
        "GPT-3 (2020)": (keel.Gpt(layers=96, width=12_288, head_dim=128, max_positions=2048), words, 175_000.0),
    }
    counted: dict[str, float] = {}
    for name, (system, vocab_size, millions) in published.items():
        with torch.device("meta"):
            counted[name] = parameter_count(system.build_encoder(vocab_size)) / 1e6
        say(f"{name}: {counted[name]:,.1f} million parameters, published {millions:,.1f}")
    gap = max(abs(counted[name] / millions - 1) for name, (_, _, millions) in published.items())
    show_figure(say, "sizes")
    order = [counted[name] for name in ("ELMo (2018)", "GPT (2018)", "BERT-large (2018)", "GPT-2 XL", "GPT-3 (2020)")]
    return Verdict(
        gap < 0.02 and order == sorted(order),
        f"the order is correct: GPT-2 has {order[3] / order[1]:.0f} times as many parameters as GPT, GPT-3 "
        f"{order[4] / order[3]:.0f} times as many as GPT-2; the counts equal the published ones within {gap:.1%}",
    )


def pronouns(say: Say, model: keel.Model | None = None) -> Verdict:
    """85: attention of a small GPT where it predicts a pronoun that one word determines, or of a given model."""
    if model is not None:
        return pronoun_and_occupation(say, model)
    people = {"nurse": "she", "queen": "she", "sister": "she", "doctor": "he", "king": "he", "brother": "he"}
    positions, things = ("harbour", "garden", "market"), ("letter", "boat", "lamp", "chair")
    texts = [
        f"the {who} in the {where} saw the {what} and {people[who]} was glad"
        for who, where, what in itertools.product(people, positions, things)
    ]
    system = keel.Gpt(layers=2, width=32, head_dim=16, max_positions=16, sequence_length=14, **NO_DROPOUT)
    model = pretrain_tiny(system, texts, min_count=1, steps=400, batch=64, lr=1e-2, warmup=0.1)
    table = model.encoder.word_embeddings()
    assert table is not None
    shares: list[float] = []
    right, even = 0, 0.0
    for who, pronoun in people.items():
        ids = [model.tokenizer.end_id, *model.tokenizer.encode(f"the {who} in the garden saw the boat and").ids]
        output, seen = recorded_attention(model, ids)
        predicted = model.tokenizer.token_of(int((output.top[0, -1] @ table.T).argmax()))
        right, even = right + (predicted == pronoun), 1 / len(ids)
        shares.append(max(float(layer[:, -1, 2].max()) for layer in seen))
        say(f"{who}: predicts {predicted}; one head has {shares[-1]:.0%} of its attention on {who}")
    return Verdict(
        right == len(people) and fmean(shares) > 3 * even,
        f"where it predicts the pronoun, one head has {fmean(shares):.0%} of its attention on the person (uniform: "
        f"{even:.0%}), and {right} of {len(people)} pronouns are correct; she for nurse and he for doctor reproduce "
        "the training text",
    )


def four_inputs(say: Say) -> Verdict:
    """76: GPT's inputs for four kinds of task, token by token, and its initial weights."""
    sentences = ["the film was long .", "the film was good .", "a good story ."] * 10
    one, two = "the film was long", "a good story"
    start, ends = "the film was", ["good", "a story"]
    tasks: dict[str, tuple[str, list[Any], Any]] = {
        "classification": ("classify", [(one, "bad"), (two, "good")], [one]),
        "entailment": ("pair", [(one, two, "no"), (two, one, "yes")], [(one, two)]),
        "similarity": ("pair", [(one, two, 0.5), (two, two, 1.0)], [(one, two)]),
        "multiple choice": ("choose", [((start, ends), 0)], [(start, ends)]),
    }  # fmt: skip
    shaped = same = True
    base = pretrain_tiny(keel.Gpt(**SHAPE, **NO_DROPOUT), sentences, steps=2, batch=4)
    known = base.encoder.state_dict()
    for name, (task, learned, queried) in tasks.items():
        model = keel.finetune(base, learned, task=task, dev=None, steps=1, lr=1e-9)
        assert model.task is not None
        data = model.task.encode_examples(model.task.read_examples(queried), labelled=False)
        start_id, delimiter_id, extract_id = map(model.tokenizer.special_token_id, TASK_TOKENS)
        for start, stop in zip(data.starts[:-1], data.starts[1:], strict=True):
            row = data.ids[start:stop].tolist()
            say(f"{name + ':':16} {' '.join(f'{model.tokenizer.token_of(number)}={number}' for number in row)}")
            shaped = shaped and [row[0], row[-1]] == [start_id, extract_id]
            shaped = shaped and row.count(delimiter_id) == (task != "classify")
        for weight, value in model.encoder.state_dict().items():
            same = same and bool((value[: len(known[weight])] - known[weight]).abs().max() < 1e-6)
    say(f"{', '.join(TASK_TOKENS)} are new special tokens; all other weights are the pre-trained ones")
    show_figure(say, "gpt-inputs")
    return Verdict(
        shaped and same, "four tasks use one input template, and the network starts from the pre-trained weights"
    )


def unidirectional_reading(say: Say) -> Verdict:
    """77: answer tagging with the question after or before the text, and multiple choice."""
    found: dict[tuple[str, str], float] = {}
    systems = keel.Bert(**SHAPE, **NO_DROPOUT, pair_objective="none"), keel.Gpt(**SHAPE, **NO_DROPOUT)
    for system in systems:
        name = system.name
        for position in ("after", "before"):
            found[name, position] = _tagging_accuracy(system, position == "before")
            say(f"{name}: question {position} the text, answer tagged in it: accuracy {found[name, position]:.1%}")
        model = keel.finetune(system, _choices(800, 1), task="choose", **TRAINING)
        found[name, "choices"] = keel.evaluate(model, _choices(TEST_SIZE, 2)).main_value
        say(f"{name}: text and question, then each of four choices: accuracy {found[name, 'choices']:.1%}")
    bert, gpt = found["bert", "after"], found["gpt", "after"]
    figures = (
        f"with the question after the text GPT reaches {gpt:.0%}, BERT {bert:.0%} (chance: 25%); with the question "
        f"before it GPT reaches {found['gpt', 'before']:.0%}, and {found['gpt', 'choices']:.0%} by multiple choice"
    )
    if bert < 0.8:  # the task was not learned
        return Verdict(None, figures)
    return Verdict(gpt < 0.5, figures)


def _story(random: Random) -> tuple[list[str], list[str], int]:
    """A text with one word of each kind, a question, and the index of the answer."""
    kinds = random.sample(list(KINDS), 4)
    position = random.randrange(4)
    return [random.choice(KINDS[kind].split()) for kind in kinds], ["which", kinds[position]], position


def _choices(count: int, seed: int) -> list[tuple[tuple[str, list[str]], int]]:
    stories = map(_story, [Random(seed)] * count)
    return [((" ".join([*text, *question]), text), position) for text, question, position in stories]


def _tagging_accuracy(system: keel.Bert | keel.Gpt, question_first: bool) -> float:
    """Accuracy of the word with the highest probability of being the answer."""

    def examples(count: int, seed: int) -> list[tuple[list[str], list[str]]]:
        rows = []
        for text, question, position in map(_story, [Random(seed)] * count):
            tags = ["answer" if number == position else "other" for number in range(4)]
            parts = [(question, ["other"] * 2), (text, tags)][:: 1 if question_first else -1]
            rows.append(([word for words, _ in parts for word in words], [tag for _, tags in parts for tag in tags]))
        return rows

    model = keel.finetune(system, examples(800, 1), task="tag", **TRAINING)
    test = examples(TEST_SIZE, 2)
    right = 0
    for prediction, (_, tags) in zip(model.predict([tuple(words) for words, _ in test]), test, strict=True):
        found = zip(prediction.tags, prediction.probabilities, strict=True)
        probabilities = [p if tag == "answer" else 1 - p for tag, p in found]
        right += tags[probabilities.index(max(probabilities))] == "answer"
    return right / TEST_SIZE
