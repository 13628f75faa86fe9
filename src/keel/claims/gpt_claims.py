"""Claims about GPT, a causal language model."""

import tempfile
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import keel
from keel.claims.claim import Finding, Say
from keel.claims.small_models import read_docstrings
from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.systems.bert import Bert
from keel.systems.elmo import Elmo
from keel.systems.gpt import Gpt

SENTENCE = "潮水退了就知道谁没穿裤子"
NO_DROPOUT: dict[str, Any] = {"dropout": 0.0, "attention_dropout": 0.0}
PUBLISHED = {
    "ELMo (2018)": 93.6, "GPT (2018)": 116.5, "BERT-large (2018)": 335.1, "GPT-2 small (2019)": 124.4,
    "GPT-2 medium": 354.8, "GPT-2 large": 774.0, "GPT-2 XL": 1557.6, "GPT-3 (2020)": 175_000.0,
}  # fmt: skip
"""Millions of parameters of the published files (GPT-3: of the paper)."""


def product_of_conditionals(say: Say) -> Finding:
    """75: log p of a text in one pass, and token by token with the KV cache."""
    tokenizer = Tokenizer.from_words([*SENTENCE])
    torch.manual_seed(0)
    system = Gpt(layers=3, width=48, head_dim=16, max_positions=16, sequence_length=16, **NO_DROPOUT)
    objective = system.build_objective(system.build_encoder(len(tokenizer)), tokenizer).eval()
    ids = torch.tensor([[tokenizer.end_id, *tokenizer.encode(SENTENCE).ids]])
    with torch.no_grad():
        scores = objective.encoder(_rows(ids)).top @ objective.encoder.words.weight.T
        at_once = F.log_softmax(scores, -1)[0, :-1].gather(1, ids[0, 1:, None]).sum().item()
        state, factors = objective.new_state(1), []
        for position in range(ids.shape[1] - 1):
            following, state = objective.step(ids[:, position : position + 1], state)
            factors.append(F.log_softmax(following, -1)[0, ids[0, position + 1]].item())
        changed = ids.clone()
        changed[0, 7:] = tokenizer.unknown_id
        moved = (objective.encoder(_rows(changed)).top - objective.encoder(_rows(ids)).top).abs().amax(-1)[0]
    say(f"log p of {SENTENCE} in one pass: {at_once:.4f}")
    say(f"sum of log p(w_i | w_<i), token by token: {sum(factors):.4f}")
    before, after = float(moved[:7].max()), float(moved[7:].min())
    say(
        f"tokens from the seventh on replaced: vectors before it change by {before:.1e}, from it on by {after:.2f} or "
        "more"
    )
    return Finding(
        abs(at_once - sum(factors)) < 1e-3 and before == 0 < after,
        f"p(s) is the product of p(w_i | w_<i): log p {at_once:.4f} in one pass, {sum(factors):.4f} token by token; no "
        "vector depends on later tokens",
    )


def by_hand(say: Say) -> Finding:
    """78: q·k, softmax and the weighted sum of v by hand, then greedy generation of the sentence."""
    settings: dict[str, Any] = {"steps": 150, "batch": 8, "lr": 1e-2, "warmup": 0.1, "device": "cpu", "threads": 1}
    with tempfile.TemporaryDirectory() as folder:
        system = Gpt(layers=2, width=32, head_dim=16, max_positions=32, sequence_length=16, **NO_DROPOUT)
        model = keel.pretrain(
            system, [f"{SENTENCE}。"] * 40, out=f"{folder}/m", tokenizer="characters", held_out=0.0, **settings
        )
    encoder = model.to("cpu").encoder
    ids = torch.tensor([[model.tokenizer.end_id, *model.tokenizer.encode(SENTENCE).ids]])
    seen: list[Tensor] = []
    with torch.no_grad():
        rows = _rows(ids)
        vectors = encoder(rows, record=lambda name, layer, value: seen.append(value), all_layers=True).layers[0]
        block: Any = encoder.blocks()[0]
        q, k, v = block.attention.qkv(block.attention_norm(vectors))[0].view(-1, 3, 2, 16).permute(1, 2, 0, 3)
        position, head = 4, 0
        products = [float(q[head, position] @ k[head, other]) / 4 for other in range(position + 1)]
        weights = torch.tensor(products).softmax(0)
        mixed = (weights[:, None] * v[head, : position + 1]).sum(0)
        theirs = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0, head, position]
    words = ["<start>", *SENTENCE]
    for other, (product, weight) in enumerate(zip(products, weights.tolist(), strict=True)):
        say(f"{words[position]} attends to {words[other]}: q·k / √d = {product:+.2f}, weight {weight:.3f}")
    gap = max(
        float((weights - seen[0][0, head, position, : position + 1]).abs().max()), float((mixed - theirs).abs().max())
    )
    written = keel.generate("潮水", model=model, temperature=0, tokens=10)
    say(f"greedy continuation of 潮水: {written}")
    return Finding(
        gap < 1e-5 and written == SENTENCE[2:],
        f"softmax(q·k/√d) and the weighted sum of v by hand equal the network's (difference {gap:.0e}), and each "
        f"predicted token is the next input: 潮水 becomes 潮水{written}",
    )


def sizes(say: Say) -> Finding:
    """79: parameters of the published configurations, counted in Keel's systems."""
    words = 50_257
    made = {
        "ELMo (2018)": None,
        "GPT (2018)": (Gpt.sized("gpt1"), 40_478),
        "BERT-large (2018)": (Bert.sized("large"), 30_522),
        "GPT-2 small (2019)": (Gpt.sized("small"), words),
        "GPT-2 medium": (Gpt.sized("medium"), words),
        "GPT-2 large": (Gpt.sized("large"), words),
        "GPT-2 XL": (Gpt.sized("xl"), words),
        "GPT-3 (2020)": (Gpt(layers=96, width=12_288, head_dim=128, max_positions=2048), words),
    }
    counted: dict[str, float] = {}
    for name, shape in made.items():
        if shape is None:
            counted[name] = _elmo()
        else:
            system, vocab_size = shape
            with torch.device("meta"):
                counted[name] = sum(weight.numel() for weight in system.build_encoder(vocab_size).parameters()) / 1e6
        say(f"{name}: {counted[name]:,.1f} million parameters, published {PUBLISHED[name]:,.1f}")
    gap = max(abs(counted[name] / PUBLISHED[name] - 1) for name in counted)
    order = [counted[name] for name in ("ELMo (2018)", "GPT (2018)", "BERT-large (2018)", "GPT-2 XL", "GPT-3 (2020)")]
    return Finding(
        gap < 0.02 and order == sorted(order),
        f"the order is correct: GPT-2 has {order[3] / order[1]:.0f} times as many parameters as GPT, GPT-3 "
        f"{order[4] / order[3]:.0f} times as many as GPT-2; the counts equal the published ones within {gap:.1%}",
    )


def _elmo() -> float:
    """Millions of parameters of ELMo's character-based encoder, which does not depend on the vocabulary."""
    with torch.device("meta"):
        return sum(weight.numel() for weight in Elmo().build_encoder(1000).parameters()) / 1e6


def pronouns(say: Say) -> Finding:
    """85: attention of a small GPT where it predicts a pronoun that one word determines."""
    people = {"nurse": "she", "queen": "she", "sister": "she", "doctor": "he", "king": "he", "brother": "he"}
    positions, things = ("harbour", "garden", "market"), ("letter", "boat", "lamp", "chair")
    texts = [
        f"the {who} in the {where} saw the {what} and {pronoun} was glad"
        for who, pronoun in people.items()
        for where in positions
        for what in things
    ]
    settings: dict[str, Any] = {"steps": 400, "batch": 64, "lr": 1e-2, "warmup": 0.1, "device": "cpu", "threads": 1}
    with tempfile.TemporaryDirectory() as folder:
        system = Gpt(layers=2, width=32, head_dim=16, max_positions=16, sequence_length=14, **NO_DROPOUT)
        model = keel.pretrain(
            system, texts, out=f"{folder}/m", tokenizer="words", min_count=1, held_out=0.0, **settings
        )
    model.to("cpu")
    shares: list[float] = []
    right, even = 0, 0.0
    for who, pronoun in people.items():
        ids = model.tokenizer.encode(f"the {who} in the garden saw the boat and").ids
        seen: list[Tensor] = []
        row = torch.tensor([[model.tokenizer.end_id, *ids]])
        with torch.no_grad():
            top = model.encoder(_rows(row), record=lambda name, layer, value, kept=seen: kept.append(value)).top
            table = model.encoder.word_embeddings()
            assert table is not None
            top_id = int((top[0, -1] @ table.T).argmax())
        right, even = right + (model.tokenizer.token_of(top_id) == pronoun), 1 / row.shape[1]
        best = max(float(layer[0, head, -1, 2]) for layer in seen for head in range(layer.shape[1]))
        shares.append(best)
        say(f"{who}: predicts {model.tokenizer.token_of(top_id)}; one head has {best:.0%} of its attention on {who}")
    return Finding(
        right == len(people) and fmean(shares) > 3 * even,
        f"where it predicts the pronoun, one head has {fmean(shares):.0%} of its attention on the person (uniform: "
        f"{even:.0%}), and {right} of {len(people)} pronouns are correct; she for nurse and he for doctor reproduce "
        "the training text",
    )


def attention_sink(say: Say) -> Finding:
    """86: attention on the first token, and the loss, with and without an attention sink."""
    docstrings = read_docstrings(say)
    texts = ["\n".join(each.sentences) for each in docstrings if each.held_out][:400]
    learned = ["\n".join(each.sentences) for each in docstrings if not each.held_out]
    settings: dict[str, Any] = {
        "vocabulary": 1000,
        "steps": 1500,
        "batch": 16,
        "lr": 3e-3,
        "device": "cpu",
        "held_out": 0.0,
    }
    losses: dict[bool, float] = {}
    first: dict[bool, float] = {}
    for sink in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            system = Gpt(layers=2, width=64, head_dim=16, max_positions=64, sequence_length=64, sink=sink, **NO_DROPOUT)
            model = keel.pretrain(system, learned, out=f"{folder}/m", **settings).to("cpu")
        losses[sink] = keel.perplexity(model, texts).values["next bits per byte"].value
        shares = [first_token_attention(model, text) for text in texts]
        before, first[sink], even = map(fmean, zip(*(share for share in shares if share), strict=True))
        extra = f", {before:.1%} on the sink" if sink else ""
        say(
            f"{'with' if sink else 'without'} a sink: {first[sink]:.1%} of the attention on the first token (uniform: "
            f"{even:.1%}){extra}, {losses[sink]:.4f} bits per byte on held-out text"
        )
    return Finding(
        first[True] < first[False] / 2,
        f"the first token gets {first[False]:.1%} of the attention without a sink and {first[True]:.1%} with one; "
        f"{losses[False]:.4f} and {losses[True]:.4f} bits per byte",
    )


def first_token_attention(model: keel.Model, text: str) -> tuple[float, float, float] | None:
    """Mean attention of the tokens from the sixteenth on, over heads and layers, on the first position, on the first
    token, and on any token if uniform; None for short texts."""
    ids = [model.tokenizer.end_id, *model.tokenizer.encode(text).ids][: model.system.max_length]
    seen: list[Tensor] = []
    rows = _rows(torch.tensor([ids])).to(next(model.encoder.parameters()).device)
    with torch.no_grad():
        model.encoder(rows, record=lambda name, layer, value: seen.append(value.float().cpu()))
    sink = seen[0].shape[-1] - len(ids)
    late = torch.stack(seen)[:, 0, :, sink + 16 :]  # [layers, heads, late positions, positions]
    even = torch.arange(sink + 17, sink + len(ids) + 1).float().reciprocal().mean()
    if not late.shape[2]:
        return None
    return float(late[..., 0].mean()), float(late[..., sink].mean()), float(even)


def _rows(ids: Tensor) -> TokenBatch:
    return TokenBatch(ids=ids, lengths=torch.full((len(ids),), ids.shape[1]))
