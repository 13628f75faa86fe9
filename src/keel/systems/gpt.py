"""GPT (Radford et al., 2018; GPT-2: 2019): the decoder of a Transformer without an encoder, p(s) = prod p(w_i | w_<i).

New then: one network, taught to foretell the next piece of any text and nothing else, is fine-tuned to every task by
how the task is written down, or, when large, is asked in plain text. GPT-2 norms before each sub-layer (`pre_norm`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keel.data.documents import Documents
from keel.data.input_windows import ModelInput
from keel.data.label_kinds import LabelKind, Regression
from keel.data.sentence_splitting import Sentences
from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.errors import UsageError
from keel.kernels import triton_usable
from keel.kernels.full_softmax import softmax_loss
from keel.nn.causal_blocks import CausalBlock, CausalStack
from keel.nn.encoder import Encoder, EncoderOutput, Recorder
from keel.nn.incremental_decoding import DecodingGraph, Slot, decoding_step
from keel.nn.kv_cache import KVCache
from keel.nn.transformer_blocks import Activation, Dropout, PackedSpans, product_dtype, use_kernels
from keel.systems.finetuning_policy import FineTuningPolicy
from keel.systems.transformer import TransformerSystem
from keel.training.counter_rng import CounterRng
from keel.training.distributed import is_sharded
from keel.training.objective import Objective, State, Tensors
from keel.training.plan import Train

TASK_TOKENS = ("<|start|>", "<|delimiter|>", "<|extract|>")
"""Of the rows of a task; pre-training knows none of them."""


@dataclass(frozen=True, kw_only=True)
class Gpt(TransformerSystem):
    """The hyper-parameters of GPT; as they stand, GPT-2 small."""

    layers: int = 12
    width: int = 768
    attention_dropout: float = 0.1
    activation: Activation = "gelu_tanh"
    max_positions: int = 1024
    """The longest text there are position vectors for."""
    pre_norm: bool = True
    """Whether norms come before the sub-layers, as in GPT-2, and one after the last; GPT has them after each sum."""
    sink: bool = False
    """Whether a learned vector stands before the first token: somewhere to look when there is nothing to look at."""
    sequence_length: int = 1024
    """Tokens in a row of pre-training."""

    name: ClassVar[str] = "gpt"
    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "tiny": {"layers": 2, "width": 128, "max_positions": 256, "sequence_length": 256},
        "mini": {"layers": 4, "width": 256, "max_positions": 256, "sequence_length": 256},
        "gpt1": {"pre_norm": False, "max_positions": 512, "sequence_length": 512},
        "small": {"layers": 12, "width": 768},
        "medium": {"layers": 24, "width": 1024},
        "large": {"layers": 36, "width": 1280},
        "xl": {"layers": 48, "width": 1600},
    }
    pretraining_defaults: ClassVar[Train] = Train(
        epochs=1, batch=32, lr=6e-4, warmup=0.02, beta2=0.95, weight_decay=0.1
    )
    default_tokenizer: ClassVar[str] = "bpe"
    default_vocab_size: ClassVar[int] = 50_257
    default_sentences: ClassVar[Sentences] = "none"
    is_causal_lm: ClassVar[bool] = True
    tunable: ClassVar[tuple[str, ...]] = ("dropout", "attention_dropout", "sequence_length")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.max_positions <= 1 << 20:
            raise UsageError(f"positions must lie between 1 and {1 << 20}, not at {self.max_positions}")
        if not 2 <= self.sequence_length <= self.max_positions:
            raise UsageError(
                f"sequence_length {self.sequence_length} must lie between 2 and positions ({self.max_positions})"
            )

    @property
    def max_length(self) -> int:
        """Positions beyond the rows of pre-training have vectors that nothing has taught."""
        return self.sequence_length

    def continued_from(self, parent: Any) -> Self:
        return self if self.max_length >= parent.max_length else replace(self, sequence_length=parent.max_length)

    def finetuning_defaults(self, frozen: bool) -> Train:
        """The paper's 6.25e-5 is for 768 wide; narrower networks want a larger rate."""
        if frozen:
            return Train(epochs=20, batch=32, lr=1e-3)
        return Train(epochs=3, batch=32, lr=6.25e-5 * max(1.0, 768 / self.width), warmup=0.002)

    def build_encoder(self, vocab_size: int) -> "GptEncoder":
        return GptEncoder(self, vocab_size)

    def build_objective(self, encoder: "GptEncoder", tokenizer: Tokenizer) -> "GptPretraining":
        return GptPretraining(self, encoder, tokenizer)

    def build_inputs(self, tokenizer: Tokenizer, first: list[int], second: list[int] | None = None) -> ModelInput:
        """Start A extract, or start A delimiter B extract (Radford et al. 2018, figure 1): the last mark has seen all.
        Before a task is learned there are no such marks, and the end of a text stands for each."""
        start, delimiter, extract = (
            tokenizer.end_id if (id := tokenizer.special_token_id(mark)) is None else id for mark in TASK_TOKENS
        )
        if second is None:
            return ModelInput([start, *first, extract], [0] * (len(first) + 2), 1)
        ids = [start, *first, delimiter, *second, extract]
        return ModelInput(ids, [0] * (len(first) + 2) + [1] * (len(second) + 1), 1)

    @property
    def finetuning_policy(self) -> "GptFineTuning":
        return GptFineTuning(self, self.tunable)


class GptFineTuning(FineTuningPolicy):
    """Tasks are written down in rows with marks of their own; and GPT-1 goes on to foretell them (lambda = 0.5)."""

    system: Gpt

    def extend_tokenizer(self, tokenizer: Tokenizer) -> Tokenizer:
        return tokenizer.with_special_tokens(TASK_TOKENS)

    def head_defaults(self, kind: LabelKind | None = None) -> dict[str, Any]:
        orders = "both" if isinstance(kind, Regression) else "given"
        return {"orders": orders, "lm_loss": 0.0 if self.system.pre_norm else 0.5}


class GptEncoder(Encoder):
    """Words + positions, causal blocks and, with pre-norm, a last norm; a row's last vector has seen all of it."""

    def __init__(self, system: Gpt, vocab_size: int):
        super().__init__()
        self.system = system
        self.vocab_size, self.width = vocab_size, system.width
        self.words = nn.Embedding(vocab_size, system.width)
        self.positions = nn.Embedding(system.max_positions, system.width)
        self.sink = nn.Parameter(torch.empty(system.width)) if system.sink else None
        self.dropout = Dropout(system.dropout)
        self.stack = CausalStack(CausalBlock(**system.block, pre_norm=system.pre_norm) for _ in range(system.layers))
        self.norm = nn.LayerNorm(system.width, eps=system.norm_epsilon) if system.pre_norm else None
        self.initialize()

    def initialize(self) -> None:
        """Normal with deviation 0.02, biases zero; what is added to the stream is less, the more there is of it."""
        for name, weight in self.named_parameters():
            if "norm" in name:
                continue
            if name.endswith("bias"):
                nn.init.zeros_(weight)
                continue
            added = name.endswith(("out.weight", "contract.weight"))
            nn.init.normal_(weight, std=0.02 / (2 * len(self.stack)) ** 0.5 if added else 0.02)

    @property
    def accepts_packed(self) -> bool:
        return self.sink is None and self._fusible and triton_usable(self.words.weight)

    @property
    def _fusible(self) -> bool:
        """Whether kernels take it: not with pre-norm where blocks are in parts, as each uses the next one's norm."""
        cut = self.norm is not None and any(is_sharded(weight) for weight in self.stack.parameters())
        return self.stack.fusible and not cut

    def new_state(self, batch_size: int) -> KVCache:
        """The state of so many rows of which nothing has been read."""
        system, weight = self.system, self.words.weight
        shape = batch_size, system.layers, 2, system.heads, 0, system.head_dim
        return KVCache(memory=torch.empty(shape, dtype=weight.dtype, device=weight.device))

    def embed(self, batch: TokenBatch) -> Tensor:
        # [time, width], or [1, tokens, width]
        positions = (
            self.positions.weight[: batch.ids.shape[1]]
            if batch.position_ids is None
            else self.positions(batch.position_ids)
        )
        return self.dropout(self.words(batch.ids) + positions)

    def contextualize(
        self,
        vectors: Tensor,
        batch: TokenBatch,
        *,
        state: State | None = None,
        all_layers: bool = False,
        record: Recorder | None = None,
    ) -> EncoderOutput:
        spans = batch.sequence_starts is not None
        added = int(self.sink is not None and not spans and (state is None or state.count == 0))
        x = (
            vectors
            if self.sink is None or not added
            else torch.cat([self.sink.to(vectors.dtype).expand(len(vectors), 1, -1), vectors], 1)
        )
        if spans or (record is None and state is None and use_kernels(vectors) and self._fusible):
            assert self._fusible
            top, layers = self._fused(x, batch, added, all_layers)
        else:
            most = self.system.max_positions + int(self.system.sink)
            state = None if state is None else state.with_room(x.shape[1], most, product_dtype(x))
            top, layers = self.stack.run(x, None, all_layers=all_layers, record=record, cache=state)
            top = top if self.norm is None else self.norm(top)
            state = None if state is None else state.advanced(x.shape[1])
        if all_layers:
            layers[-1] = top
        return EncoderOutput(top=top[:, added:], layers=[layer[:, added:] for layer in layers], state=state)

    def _fused(self, x: Tensor, rows: TokenBatch, added: int, all_layers: bool) -> tuple[Tensor, list[Tensor]]:
        """The blocks by our kernels, for rows padded or packed; `added` vectors stand before each."""
        spans = PackedSpans.from_batch(rows)
        if added:
            starts = spans.starts + torch.arange(len(spans.starts), device=x.device)
            spans = PackedSpans(starts=starts, lengths=spans.lengths + 1, max_seqlen=spans.max_seqlen + 1)
        return self.stack.run_fused(x, spans, all_layers=all_layers, top=self.norm)

    def pool_features(self, output: EncoderOutput, batch: TokenBatch) -> Tensor:
        if batch.sequence_starts is not None:
            return output.top[0, batch.sequence_starts + batch.lengths - 1]
        return output.top[torch.arange(len(output.top), device=batch.ids.device), batch.lengths - 1]

    def blocks(self) -> list[nn.Module]:
        return list(self.stack)

    def input_parameters(self) -> list[nn.Parameter]:
        return [*self.words.parameters(), *self.positions.parameters(), *([] if self.sink is None else [self.sink])]


@dataclass(frozen=True, kw_only=True)
class GptBatch(Tensors):
    """Pieces of text end to end, with a mark between documents."""

    ids: Tensor  # [rows, length + 1]
    fresh: Tensor | None = None  # [rows] how many of the last are foretold, if not all: others were, in another row


class GptPretraining(Objective):
    """-log p(w_i | w_<i) summed over all pieces ("next"): a softmax over the products with the words' own vectors."""

    def __init__(self, system: Gpt, encoder: GptEncoder, tokenizer: Tokenizer):
        super().__init__()
        self.system, self.encoder = system, encoder
        self.bos_id = self.eos_id = tokenizer.end_id
        """Stands between documents, and so before each text."""

    def blocks(self) -> list[nn.Module]:
        return self.encoder.blocks()

    def input_parameters(self) -> list[nn.Parameter]:
        words = self.encoder.words.weight  # the softmax too, and that is above the blocks
        return [weight for weight in self.encoder.input_parameters() if weight is not words]

    def epoch_size(self, data: Documents) -> int:
        return -(-data.concatenated_size // self.system.sequence_length)

    def batch(self, data: Documents, rng: CounterRng, examples: range) -> GptBatch:
        numbers = torch.arange(examples.start, examples.stop, device=data.ids.device)
        index, epoch = rng.epoch_order(numbers, self.epoch_size(data))
        # Every epoch cuts elsewhere, so that what began a row does not always lack what came before it.
        starts = index * self.system.sequence_length + epoch * (self.system.sequence_length // 3)
        return GptBatch(ids=self._read(data, starts, self.system.sequence_length + 1))

    def _read(self, data: Documents, starts: Tensor, time: int) -> Tensor:
        """[rows, time] from the mark before the first document on, in which place 0 is."""
        places = starts[:, None] + torch.arange(time, device=starts.device) - 1
        return data.read_concatenated(places, end=self.eos_id)

    def counts(self, batch: GptBatch) -> dict[str, Tensor]:
        rows, time = batch.ids.shape
        count = batch.ids.new_full((), rows * (time - 1), dtype=torch.float32)  # a fill: no GPU is waited for
        weights = self._weights(batch)
        return {"next": count if weights is None else weights.sum((0, 1)), "tokens": count}

    def forward(self, batch: GptBatch, state: State | None = None) -> tuple[dict[str, Tensor], None]:
        ids, targets = batch.ids[:, :-1], batch.ids[:, 1:]
        top = self.encoder(TokenBatch(ids=ids, lengths=ids.new_full((len(ids),), ids.shape[1]))).top
        return {"next": self.nll(top, targets, self._weights(batch))}, None

    def _weights(self, batch: GptBatch) -> Tensor | None:
        """[rows, time, 2] of what is fresh, for the sum of all and for that of what does not end a document."""
        if batch.fresh is None:
            return None
        targets = batch.ids[:, 1:]
        place = torch.arange(targets.shape[1], device=targets.device)
        fresh = place >= targets.shape[1] - batch.fresh[:, None]
        return torch.stack([fresh, fresh & (targets != self.eos_id)], -1).float()

    def nll(self, top: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
        """The sum of -log p(targets), each times its weight if it has one, by the vectors [rows, time, width] before
        them."""
        flat = None if weights is None else weights.flatten(0, 1)
        return softmax_loss(top.flatten(0, 1), self.encoder.words.weight, None, targets.flatten(), flat)

    @property
    def window(self) -> int:
        return self.system.sequence_length

    def window_count(self, data: Documents, stride: int) -> int:
        return 1 + max(0, -(-(data.concatenated_size - self.system.sequence_length) // stride))

    def window_batch(self, data: Documents, stride: int, rows: range) -> GptBatch:
        size, length = data.concatenated_size, min(self.system.sequence_length, data.concatenated_size)
        numbers = torch.arange(rows.start, rows.stop, device=data.ids.device)
        ends = (length + numbers * stride).clamp(max=size)
        fresh = torch.where(numbers == 0, length, ends - (length + (numbers - 1) * stride))
        return GptBatch(ids=self._read(data, ends - length, length + 1), fresh=fresh)

    @property
    def max_context(self) -> int:
        """How many ids it can read, one after the other."""
        return self.system.max_length

    def new_state(self, batch_size: int) -> KVCache:
        return self.encoder.new_state(batch_size)

    def step(self, ids: Tensor, state: KVCache | None = None, record: Recorder | None = None) -> tuple[Tensor, KVCache]:
        """[rows, vocabulary] scores of what follows these further ids [rows, time], and the state after them."""
        state = self.new_state(len(ids)) if state is None else state
        if ids.shape[1] == 1 and state.count and record is None and not (self.training or torch.is_grad_enabled()):
            return self._step(ids[:, 0], state)
        vectors, state = self.read(ids, state, record)
        return F.linear(vectors[:, -1], self.encoder.words.weight), state

    def _step(self, ids: Tensor, state: KVCache) -> tuple[Tensor, KVCache]:
        """The same for one further id of each row, the fast way."""
        self._check(state.count - int(self.system.sink) + 1)
        words = self.encoder.words.weight
        state = state.with_room(1, self.system.max_positions + int(self.system.sink), words.dtype)
        ids = ids.to(words.device)
        if words.is_cuda:
            state = state if state.graph else replace(state, graph=DecodingGraph(self.stepping(state.memory)))
            assert state.graph is not None
            return state.graph(ids, state.count), state.advanced(1)
        return self.stepping(state.memory)(ids, state.count), state.advanced(1)

    def stepping(self, memory: Tensor) -> Callable[[Tensor, Slot], Tensor]:
        """What gives [rows, vocabulary] scores after one further id of each row [rows], whose keys and values go into a
        slot of this memory."""
        encoder, sink = self.encoder, int(self.system.sink)  # no bool: torch subtracts none from a tensor
        step = decoding_step(encoder, encoder.stack.blocks, encoder.norm, encoder.words.weight, len(memory))

        def scores(ids: Tensor, slot: Slot) -> Tensor:
            return step(encoder.words(ids) + encoder.positions.weight[slot - sink], memory, slot)

        return scores

    def logits_at(self, ids: Tensor, places: Tensor) -> Tensor:
        """[places, vocabulary] scores of what follows these places of whole rows [rows, time], in one pass."""
        table = self.encoder.words.weight
        ids = ids.to(table.device)
        top = self.encoder(TokenBatch(ids=ids, lengths=ids.new_full((len(ids),), ids.shape[1]))).top
        return F.linear(top.flatten(0, 1)[places.to(table.device)], table)

    def read(self, ids: Tensor, state: KVCache, record: Recorder | None = None) -> tuple[Tensor, KVCache]:
        """[rows, time, width]: what foretells the piece after each of these further ids, and the state after them."""
        ids = ids.to(self.encoder.words.weight.device)
        before = max(0, state.count - self.system.sink)
        time = ids.shape[1]
        self._check(before + time)
        places = torch.arange(before, before + time, device=ids.device)[None]
        rows = TokenBatch(ids=ids, lengths=ids.new_full((len(ids),), time), position_ids=places)
        output = self.encoder.contextualize(self.encoder.embed(rows), rows, state=state, record=record)
        assert isinstance(output.state, KVCache)
        return output.top, output.state

    def _check(self, count: int) -> None:
        if count > self.max_context:
            what = f"{count} tokens are more than the {self.max_context} that this model reads"
            raise UsageError(f"{what}: give a shorter text, or ask for less")
