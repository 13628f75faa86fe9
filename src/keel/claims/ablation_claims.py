"""A claim about what is in a Transformer beside attention: networks without feed-forward layers, or fewer layers."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import keel
from keel.claims.annotated_sentences import generate_references
from keel.claims.claim import Say, Verdict
from keel.claims.example_texts import PARAGRAPHS, model_and_language
from keel.claims.measures import parameter_count
from keel.claims.small_models import NO_DROPOUT, pretrain_tiny
from keel.data.documents import Documents
from keel.data.token_batch import TokenBatch
from keel.events import pluralize
from keel.nn.transformer_blocks import TransformerBlock
from keel.report.charts import lines
from keel.systems.bert import BertPretraining
from keel.training.loss_totals import validation_loss

EVERY = 5
"""Every fifth token is masked."""
STEPS = 200
PARTS: dict[str, Callable[[TransformerBlock], nn.Module]] = {
    "feed-forward": lambda block: block.contract,
    "attention": lambda block: block.attention,
}
ABLATED = keel.Bert(
    **NO_DROPOUT, layers=2, width=64, head_dim=32, max_positions=32, sequence_length=24, pair_objective="none",
    mask_rate=0.2,
)  # fmt: skip


def more_than_attention(say: Say, model: keel.Model | None = None) -> Verdict:
    """143: the loss of masked tokens without feed-forward layers, without attention, and without whole layers; of a
    trained model, and of small ones that are trained so."""
    model, language = model_and_language(model, say)
    objective = model.objective
    if not isinstance(objective, BertPretraining):
        raise keel.UsageError("the experiment masks tokens, and this model has no MLM head: choose a pre-trained bert")
    batch, rows, columns, targets = _masked_texts(model, PARAGRAPHS[language])
    blocks = [block for block in model.encoder.blocks() if isinstance(block, TransformerBlock)]

    @torch.inference_mode()
    def loss() -> float:
        top = objective.encoder(batch).top[rows, columns]  # [tokens, width]
        logits = objective.predict_masked(top[:, None], torch.zeros(len(top), 1, dtype=torch.long))[:, 0]
        return F.cross_entropy(logits.float(), targets).item()

    whole = loss()
    say(f"{len(targets)} masked tokens of {len(PARAGRAPHS[language])} paragraphs: loss {whole:.2f}; uniform guessing "
        f"{math.log(len(model.tokenizer)):.2f}")  # fmt: skip
    without: dict[str, list[float]] = {}
    everywhere: dict[str, float] = {}
    for name, of in PARTS.items():
        with _skipped([of(block) for block in blocks]):
            everywhere[name] = loss()
        say.progress(f"{name} of one layer after the other")
        without[name] = []
        for block in blocks:
            with _skipped([of(block)]):
                without[name].append(loss())
        most = max(range(len(blocks)), key=without[name].__getitem__)
        say(f"without {name}: in all layers {everywhere[name]:.2f}; in one layer, mean {np.mean(without[name]):.2f}, "
            f"most {without[name][most]:.2f} (layer {most + 1})")  # fmt: skip
    half = len(blocks) // 2
    for name, skipped in (("upper half", blocks[half:]), ("every second layer", blocks[1::2])):
        with _skipped([part for block in skipped for part in (block.attention, block.contract)]):
            say(f"without both in the {name}: {loss():.2f}".replace("the every", "every"))
    numbers = range(1, len(blocks) + 1)
    curves = {f"without {name}": [*zip(numbers, each, strict=True)] for name, each in without.items()}
    caption = (
        f"Loss of masked tokens without the feed-forward network, or the attention, of one layer (whole: {whole:.2f})."
    )
    say.picture(lines(curves, across="layer", upward="loss"), caption)
    trained = _trained_without(say)
    depends = everywhere["feed-forward"] > whole + 0.1
    needed = trained["attention only, as many parameters"] - trained["whole"]
    return Verdict(
        depends if depends == (needed > 0) else None,
        f"without feed-forward networks the trained model has a loss of {everywhere['feed-forward']:.2f} instead of "
        f"{whole:.2f}, without attention {everywhere['attention']:.2f}; a small network of attention alone with as "
        f"many parameters has a loss {abs(needed):.2f} {'above' if needed > 0 else 'below'} that of one with both",
    )


def _masked_texts(model: keel.Model, texts: tuple[str, ...]) -> tuple[TokenBatch, Tensor, Tensor, Tensor]:
    """Texts with masked tokens; the row, column and original id of each of these."""
    inputs: list[list[int]] = []
    masked: list[tuple[int, int, int]] = []
    for text in texts:
        ids = model.tokenizer.encode(text).ids
        for number in range(0, len(ids), EVERY):
            masked.append((len(inputs), number + 1, ids[number]))  # after [CLS]
            ids[number] = model.tokenizer.mask_id
        inputs.append(model.system.build_inputs(model.tokenizer, ids).ids)
    rows, columns, targets = torch.tensor(masked).T
    return TokenBatch.pad(inputs), rows, columns, targets


@contextmanager
def _skipped(modules: list[nn.Module]) -> Iterator[None]:
    """The output of these sub-layers is 0, so that the residual connection alone is left."""
    hooks = [module.register_forward_hook(_zero_output) for module in modules]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _zero_output(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
    return torch.zeros_like(output)


def _trained_without(say: Say) -> dict[str, float]:
    """Validation loss (MLM) of small networks trained on the same generated sentences."""
    sentences = [" ".join(each.words) for each in generate_references("en", 4000, 0, Random(0))]
    networks = {
        "whole": ABLATED,
        "attention only": replace(ABLATED, mlp_ratio=1 / ABLATED.width),
        "attention only, as many parameters": replace(ABLATED, mlp_ratio=1 / ABLATED.width, layers=3 * ABLATED.layers),
    }
    found = {}
    for name, system in networks.items():
        model = pretrain_tiny(system, sentences[400:], say, steps=STEPS, batch=32, lr=3e-3, warmup=0.1)
        assert model.objective is not None
        data = Documents.of(keel.Tokens.build(keel.Corpus.of(sentences[:400]), model.tokenizer))
        found[name] = validation_loss(data, system.pretraining_defaults)(model.objective)["mlm"]
        size = parameter_count(model.encoder) - model.encoder.vocab_size * system.width
        say(f"trained, {name} ({pluralize(system.layers, 'layer')}, {size:,} parameters): loss {found[name]:.3f}")
    return found
