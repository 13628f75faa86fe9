"""GPT (Radford et al., 2018; GPT-2: 2019): the Transformer's decoder without cross-attention.

New then: one causal language model, p(s) = prod p(w_i | w_<i), pre-trained on any text, is fine-tuned to every task by
how the input is written, or, when large, is prompted zero-shot. GPT-2 has pre-norm blocks, GPT post-norm.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keel.config import Dropout, Ge, Le
from keel.data.documents import Documents
from keel.data.label_kinds import LabelKind, Regression
from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.errors import UsageError
from keel.kernels import triton_usable
from keel.kernels.attention_varlen import PackedSpans
from keel.kernels.full_softmax import softmax_loss
from keel.nn.encoder import Encoder, EncoderObjective, EncoderOutput, ForwardOptions, Recorder
from keel.nn.incremental_decoding import DecodingGraph, Slot, decoding_step
from keel.nn.kv_cache import KVCache
from keel.nn.multihead_attention import FastDropout, packed_spans, product_dtype, use_kernels
from keel.nn.transformer_blocks import Activation
from keel.systems.system import System
from keel.systems.transformer import DecoderStack, Layers, TransformerSystem, Width, learned_positions
from keel.systems.transformer_finetuning import EPOCHS, TransformerFineTuning
from keel.training.counter_rng import CounterRng
from keel.training.distributed import is_sharded
from keel.training.objective import State, Tensors
from keel.training.plan import Train

TASK_TOKENS = ("<|start|>", "<|delimiter|>", "<|extract|>")
"""Special tokens of task inputs; pre-training has none of them."""


@dataclass(frozen=True, kw_only=True)
class Gpt(TransformerSystem):
    """The hyper-parameters of GPT; the defaults are GPT-2 small."""

    layers: Layers = 12
    width: Width = 768
    attention_dropout: Dropout = 0.1
    activation: Activation = "gelu_tanh"
    max_positions: Annotated[int, Ge(1), Le(1 << 20)] = 1024
    """Number of position embeddings: the maximum sequence length."""
    pre_norm: bool = True
    """Pre-norm blocks and a final layer norm, as in GPT-2; GPT has post-norm blocks."""
    sink: bool = False
    """Attention sink: a learned vector before the first token, to attend to when nothing else is relevant."""
    sequence_length: Annotated[int, Ge(2)] = 1024
    """Sequence length of pre-training, in tokens."""

    name = "gpt"
    year = 2018
    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "tiny": {"layers": 2, "width": 128, "max_positions": 256, "sequence_length": 256},
        "mini": {"layers": 4, "width": 256, "max_positions": 256, "sequence_length": 256},
        "gpt1": {"pre_norm": False, "max_positions": 512, "sequence_length": 512},
        "small": {"layers": 12, "width": 768},
        "medium": {"layers": 24, "width": 1024},
        "large": {"layers": 36, "width": 1280},
        "xl": {"layers": 48, "width": 1600},
    }
    epoch_rule = EPOCHS
    pretraining_defaults = Train(epochs=1, batch=32, lr=6e-4, warmup=0.02, beta2=0.95, weight_decay=0.1)
    default_tokenizer = "bpe"
    default_vocab_size = 50_257
    default_sentences = "none"
    tunable = ("dropout", "attention_dropout", "sequence_length")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sequence_length > self.max_positions:
            what = f"sequence_length {self.sequence_length} exceeds the {self.max_positions} position embeddings"
            raise UsageError(f"{what}: lower it, or raise max_positions")

    @property
    def max_length(self) -> int:
        """Pre-training leaves later position embeddings untrained."""
        return self.sequence_length

    @property
    def context_description(self) -> str:
        return "its own window"

    def continued_from(self, parent: System) -> Self:
        return self if self.max_length >= parent.max_length else replace(self, sequence_length=parent.max_length)

    def finetuning_defaults(self, frozen: bool) -> Train:
        """The paper's learning rate of 6.25e-5 is for width 768; narrower networks need a higher one."""
        if frozen:
            return Train(epochs=20, batch=32, lr=1e-3)
        return Train(epochs=3, batch=32, lr=6.25e-5 * max(1.0, 768 / self.width), warmup=0.002)

    def build_encoder(self, vocab_size: int) -> "GptEncoder":
        return GptEncoder(self, vocab_size)

    def build_objective(self, encoder: "GptEncoder", tokenizer: Tokenizer) -> "GptPretraining":
        return GptPretraining(self, encoder, tokenizer)

    def special_tokens(self, tokenizer: Tokenizer) -> tuple[list[int], list[int], list[int]]:
        """Start A extract, or start A delimiter B extract (Radford et al. 2018, figure 1).

        A tokenizer without these tokens, before fine-tuning, has the end of text for each.
        """
        start, delimiter, extract = (
            tokenizer.end_id if (id := tokenizer.special_token_id(token)) is None else id for token in TASK_TOKENS
        )
        return [start], [delimiter], [extract]

    @property
    def finetuning_fields(self) -> tuple[str, ...]:
        return self.tunable

    @property
    def finetuning_policy(self) -> "GptFineTuning":
        return GptFineTuning(self)


class GptFineTuning(TransformerFineTuning):
    """Task inputs have special tokens of their own; GPT-1 adds a language modelling loss (lambda = 0.5)."""

    system: Gpt

    def extend_tokenizer(self, tokenizer: Tokenizer) -> Tokenizer:
        return tokenizer.with_special_tokens(TASK_TOKENS)

    def head_defaults(self, kind: LabelKind | None = None) -> dict[str, Any]:
        orders = "both" if isinstance(kind, Regression) else "given"
        return {"orders": orders, "lm_loss": 0.0 if self.system.pre_norm else 0.5}


class GptEncoder(Encoder):
    """Word and position embeddings, the Transformer's decoder without cross-attention and, with pre-norm, a final
    norm; the pooled output is the vector of the last token, which has seen all others."""

    def __init__(self, system: Gpt, vocab_size: int):
        super().__init__()
        self.system = system
        self.vocab_size, self.width = vocab_size, system.width
        self.words = nn.Embedding(vocab_size, system.width)
        self.positions = nn.Embedding(system.max_positions, system.width)
        self.sink = nn.Parameter(torch.empty(system.width)) if system.sink else None
        self.dropout = FastDropout(system.dropout)
        self.stack = DecoderStack.build(system, system.layers, pre_norm=system.pre_norm, cross_attention=False)
        self.norm = nn.LayerNorm(system.width, eps=system.norm_epsilon) if system.pre_norm else None
        self.initialize()

    def initialize(self) -> None:
        """N(0, 0.02^2), zero biases; projections into the residual stream are scaled by 1 / sqrt(2 layers)."""
        for name, weight in self.named_parameters():
            if "norm" in name:
                continue
            if name.endswith("bias"):
                nn.init.zeros_(weight)
                continue
            residual = name.endswith(("out.weight", "contract.weight"))
            nn.init.normal_(weight, std=0.02 / (2 * len(self.stack)) ** 0.5 if residual else 0.02)

    @property
    def accepts_packed(self) -> bool:
        return self.sink is None and self._fusible and triton_usable(self.words.weight)

    @property
    def _fusible(self) -> bool:
        """Whether kernels can run it: not with sharded pre-norm blocks, as each uses the next one's norm."""
        cut = self.norm is not None and any(is_sharded(weight) for weight in self.stack.parameters())
        return self.stack.fusible and not cut

    def new_state(self, batch_size: int) -> KVCache:
        system, weight = self.system, self.words.weight
        shape = batch_size, system.layers, 2, system.heads, 0, system.head_dim
        return KVCache(memory=torch.empty(shape, dtype=weight.dtype, device=weight.device))

    @property
    def cache_capacity(self) -> int:
        """Positions of a KV cache, the sink included."""
        return self.system.max_positions + int(self.system.sink)

    def blocks(self) -> list[nn.Module]:
        return list(self.stack)

    def embed(self, batch: TokenBatch) -> Tensor:
        return self.dropout(self.words(batch.ids) + learned_positions(self.positions, batch))

    def contextualize(
        self, vectors: Tensor, batch: TokenBatch, options: ForwardOptions = ForwardOptions()
    ) -> EncoderOutput:
        packed, state, all_layers = batch.sequence_starts is not None, options.state, options.all_layers
        added = int(self.sink is not None and not packed and (state is None or state.count == 0))
        x = vectors
        if self.sink is not None and added:
            x = torch.cat([self.sink.to(x.dtype).expand(len(x), 1, -1), x], 1)
        if packed or (options.record is None and state is None and use_kernels(vectors) and self._fusible):
            assert self._fusible
            top, layers = self._run_fused(x, batch, added, all_layers)
        else:
            state = None if state is None else state.with_room(x.shape[1], self.cache_capacity, product_dtype(x))
            top, layers = self.stack(x, replace(options, state=state))
            top = top if self.norm is None else self.norm(top)
            state = None if state is None else state.advanced(x.shape[1])
        if all_layers:
            layers[-1] = top
        return EncoderOutput(top=top[:, added:], layers=[layer[:, added:] for layer in layers], state=state)

    def _run_fused(self, x: Tensor, batch: TokenBatch, added: int, all_layers: bool) -> tuple[Tensor, list[Tensor]]:
        """The blocks by kernels; `added` vectors stand before each sequence."""
        spans = packed_spans(batch)
        if added:
            starts = spans.starts + torch.arange(len(spans.starts), device=x.device)
            spans = PackedSpans(starts, spans.lengths + 1, spans.max_seqlen + 1)
        return self.stack.run_fused(x, spans, all_layers=all_layers, top=self.norm)

    def pool_features(self, output: EncoderOutput, batch: TokenBatch) -> Tensor:
        if batch.sequence_starts is not None:
            return output.top[0, batch.sequence_starts + batch.lengths - 1]
        return output.top[torch.arange(len(output.top), device=batch.ids.device), batch.lengths - 1]

    def input_parameters(self) -> list[nn.Parameter]:
        return [*self.words.parameters(), *self.positions.parameters(), *([] if self.sink is None else [self.sink])]


@dataclass(frozen=True, kw_only=True)
class GptBatch(Tensors):
    """Spans of the concatenated documents, with the end of text between them."""

    ids: Tensor  # [batch, time + 1]
    fresh: Tensor | None = None  # [batch] number of last targets that count, if not all: overlapping windows


class GptPretraining(EncoderObjective):
    """The sum of -log p(w_i | w_<i) over all tokens ("next"): a softmax over the products of the top vector with the
    word embeddings."""

    encoder: GptEncoder
    is_causal = True

    def __init__(self, system: Gpt, encoder: GptEncoder, tokenizer: Tokenizer):
        super().__init__()
        self.system, self.encoder = system, encoder
        self.bos_id = self.eos_id = tokenizer.end_id
        """Stands between documents, and so before each text."""

    @property
    def output_embeddings(self) -> Tensor:
        return self.encoder.words.weight

    @property
    def max_context(self) -> int:
        return self.system.max_length

    def new_state(self, batch_size: int) -> KVCache:
        return self.encoder.new_state(batch_size)

    def step(self, ids: Tensor, state: KVCache | None = None, record: Recorder | None = None) -> tuple[Tensor, KVCache]:
        """[batch, vocabulary] logits of the token after `ids` [batch, time], and the KV cache after them."""
        state = self.new_state(len(ids)) if state is None else state
        if ids.shape[1] == 1 and state.count and record is None and not (self.training or torch.is_grad_enabled()):
            return self._fast_step(ids[:, 0], state)
        vectors, state = self.read(ids, state, record)
        return F.linear(vectors[:, -1], self.encoder.words.weight), state

    def _fast_step(self, ids: Tensor, state: KVCache) -> tuple[Tensor, KVCache]:
        """`step` for one token per sequence: prepared products on a CPU, a CUDA graph on a GPU."""
        self._check_context(state.count - int(self.system.sink) + 1)
        words = self.encoder.words.weight
        state = state.with_room(1, self.encoder.cache_capacity, words.dtype)
        ids = ids.to(words.device)
        if words.is_cuda:
            state = state if state.graph else replace(state, graph=DecodingGraph(self.step_function(state.memory)))
            assert state.graph is not None
            return state.graph(ids, state.count), state.advanced(1)
        return self.step_function(state.memory)(ids, state.count), state.advanced(1)

    def step_function(self, memory: Tensor) -> Callable[[Tensor, Slot], Tensor]:
        """A function of token ids [batch] and a slot of the cache's memory that writes their keys and values there and
        returns the logits [batch, vocabulary] of the next token."""
        encoder, sink = self.encoder, int(self.system.sink)  # no bool: torch cannot subtract one from a tensor
        step = decoding_step(encoder, encoder.stack.blocks, encoder.norm, encoder.words.weight, len(memory))

        def logits(ids: Tensor, slot: Slot) -> Tensor:
            return step(encoder.words(ids) + encoder.positions.weight[slot - sink], memory, slot)

        return logits

    def logits_at(self, ids: Tensor, positions: Tensor) -> Tensor:
        """[positions, vocabulary] logits after these positions of the flattened `ids` [batch, time], in one pass."""
        table = self.encoder.words.weight
        ids = ids.to(table.device)
        top = self.encoder(TokenBatch.unpadded(ids)).top
        return F.linear(top.flatten(0, 1)[positions.to(table.device)], table)

    def nll(self, top: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
        """The sum of weights * -log p(targets), both [batch, time], of top vectors [batch, time, width]."""
        flat = None if weights is None else weights.flatten(0, 1)
        return softmax_loss(top.flatten(0, 1), self.encoder.words.weight, None, targets.flatten(), flat)

    def read(self, ids: Tensor, state: KVCache, record: Recorder | None = None) -> tuple[Tensor, KVCache]:
        """[batch, time, width] top vectors of `ids`, which continue the cache, and the cache after them."""
        ids = ids.to(self.encoder.words.weight.device)
        before = max(0, state.count - self.system.sink)
        time = ids.shape[1]
        self._check_context(before + time)
        positions = torch.arange(before, before + time, device=ids.device)[None]
        batch = replace(TokenBatch.unpadded(ids), position_ids=positions)
        output = self.encoder(batch, state=state, record=record)
        assert isinstance(output.state, KVCache)
        return output.top, output.state

    def _check_context(self, count: int) -> None:
        if count > self.max_context:
            what = f"{count} tokens exceed this model's context of {self.max_context}"
            raise UsageError(f"{what}: give a shorter text, or generate fewer tokens")

    def epoch_size(self, data: Documents) -> int:
        return -(-data.concatenated_size // self.system.sequence_length)

    def batch(self, data: Documents, rng: CounterRng, examples: range) -> GptBatch:
        numbers = torch.arange(examples.start, examples.stop, device=data.ids.device)
        index, epoch = rng.epoch_order(numbers, self.epoch_size(data))
        # Every epoch has other boundaries, so that the same tokens do not always lack context.
        starts = index * self.system.sequence_length + epoch * (self.system.sequence_length // 3)
        return GptBatch(ids=self._spans(data, starts, self.system.sequence_length + 1))

    def _spans(self, data: Documents, starts: Tensor, time: int) -> Tensor:
        """[batch, time] tokens from `starts` on; start 0 is the end of text before the first document."""
        positions = starts[:, None] + torch.arange(time, device=starts.device) - 1
        return data.read_concatenated(positions, end=self.eos_id)

    def counts(self, batch: GptBatch) -> dict[str, Tensor]:
        examples, time = batch.ids.shape
        count = batch.ids.new_full((), examples * (time - 1), dtype=torch.float32)  # no wait for the GPU
        weights = self._weights(batch)
        return {"next": count if weights is None else weights.sum((0, 1)), "tokens": count}

    def forward(self, batch: GptBatch, state: State | None = None) -> tuple[dict[str, Tensor], None]:
        ids, targets = batch.ids[:, :-1], batch.ids[:, 1:]
        top = self.encoder(TokenBatch.unpadded(ids)).top
        return {"next": self.nll(top, targets, self._weights(batch))}, None

    def _weights(self, batch: GptBatch) -> Tensor | None:
        """[batch, time, 2] weights of the fresh targets, and of those without the ends of documents."""
        if batch.fresh is None:
            return None
        targets = batch.ids[:, 1:]
        position = torch.arange(targets.shape[1], device=targets.device)
        fresh = position >= targets.shape[1] - batch.fresh[:, None]
        return torch.stack([fresh, fresh & (targets != self.eos_id)], -1).float()

    @property
    def window(self) -> int:
        return self.system.sequence_length

    def window_count(self, data: Documents, stride: int) -> int:
        return 1 + max(0, -(-(data.concatenated_size - self.window) // stride))

    def window_batch(self, data: Documents, stride: int, examples: range) -> GptBatch:
        size, length = data.concatenated_size, min(self.window, data.concatenated_size)
        numbers = torch.arange(examples.start, examples.stop, device=data.ids.device)
        ends = (length + numbers * stride).clamp(max=size)
        fresh = torch.where(numbers == 0, length, ends - (length + (numbers - 1) * stride))
        return GptBatch(ids=self._spans(data, ends - length, length + 1), fresh=fresh)
