"""Vectors of texts: the encoder's output per token or pooled per text, in batches of sequences of similar length."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from keel.data.input_windows import ModelInput
from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.errors import UsageError
from keel.events import OnEvent, note
from keel.nn.encoder import Encoder
from keel.nn.inference_loop import batched_inference
from keel.nn.pooling import SentencePooling, sif_weights
from keel.systems.system import System
from keel.training.plan import Precision

PooledOutput = Literal["default", "mean", "sif", "max", "cls", "last"]
Pool = Literal[PooledOutput, "none"]
POOLING = {
    "mean": SentencePooling("mean"),
    "sif": SentencePooling("mean", sif=True),
    "max": SentencePooling("max"),
    "cls": SentencePooling("first"),
    "last": SentencePooling("last"),
}
BATCH_TOKENS, BATCH_TOKENS_CPU = 1 << 12, 1 << 10
"""Tokens of a batch, padding included; a CPU is as fast with few, which have less padding."""
MAX_BYTES = 4 << 30
"""Bytes of vectors that one call may return, where their width is the vocabulary size."""
SPARSE_BATCH = 64
"""Texts per batch of a sparse encoder."""


class TokenVectors(NamedTuple):
    """The tokens of a text, their character offsets, and their vectors in context."""

    tokens: list[str]
    offsets: list[tuple[int, int]]
    vectors: np.ndarray  # [tokens, width]

    def __repr__(self) -> str:
        return f"TokenVectors({self.tokens}, vectors of {self.vectors.shape[1]} numbers)"


class _Window(NamedTuple):
    """A window of a text's ids, and the input built from it."""

    text: int
    start: int
    stop: int
    inputs: ModelInput


@dataclass(frozen=True)
class TextEncoder:
    """Encodes texts with a trained encoder."""

    system: System
    encoder: Encoder
    tokenizer: Tokenizer
    layer: int | None
    """0 for the embeddings, -1 for the top layer, None for every layer: arrays then have an axis of layers."""
    carry: bool
    """Whether a recurrent encoder carries its state from each text to the next."""
    on_event: OnEvent
    precision: Precision = "fp32"

    @property
    def device(self) -> torch.device:
        return next(self.encoder.parameters()).device

    def pooled(self, texts: list[str], pooling: SentencePooling) -> np.ndarray:
        """[texts, width] the mean (weighted for "sif"), maximum, first or last of all tokens, special tokens included;
        the mean of the windows' first tokens if a text has several windows. [texts, layers, width] of every layer."""
        if self.encoder.sparse and not self.carry:
            return self._pooled_features(self.tokenizer.encode_many(texts))
        weights = self._sif_weights() if pooling.sif else None
        shape = [self.encoder.layer_count] if self.layer is None else []
        found = np.zeros((len(texts), *shape, self.encoder.width), np.float32)
        counts = np.zeros((len(texts), *(1 for _ in shape), 1), np.float32)
        last = np.full(len(texts), -1)
        texts = [text.lower() for text in texts] if pooling.lowercase else texts
        ids = self._truncated(self.tokenizer.encode_many(texts, oov_ids=self.system.uses_subwords), pooling.max_tokens)
        for window, vectors in self._windows(ids):
            text = window.text
            if pooling.pool == "max":
                highest = vectors.max(-2)
                found[text] = highest if not counts[text] else np.maximum(found[text], highest)
                counts[text] = 1
            elif pooling.pool == "last":
                if window.start > last[text]:
                    found[text], counts[text], last[text] = vectors[..., -1, :], 1, window.start
            elif weights is not None:
                weight = weights[np.minimum(window.inputs.ids, len(weights) - 1)]
                found[text] += weight @ vectors
                counts[text] += weight.sum()
            else:
                found[text] += vectors[..., 0, :] if pooling.pool == "first" else vectors.sum(-2)
                counts[text] += 1 if pooling.pool == "first" else vectors.shape[-2]
        found /= counts
        return found / np.linalg.norm(found, axis=-1, keepdims=True).clip(1e-12) if pooling.normalize else found

    def per_token(self, texts: list[str]) -> list[TokenVectors]:
        """The vectors of all tokens of each text, without special tokens."""
        encoded = self.tokenizer.encode_with_offsets(texts, oov_ids=self.system.uses_subwords)
        found = [
            TokenVectors(
                [self.tokenizer.token_of(number) for number in tokens.ids],
                tokens.offsets,
                np.empty((len(tokens.ids), self.encoder.width), np.float32),
            )
            for tokens in encoded
        ]
        for window, vectors in self._windows([tokens.ids for tokens in encoded]):
            inside = found[window.text].vectors[window.start : window.stop]
            inside[:] = vectors[window.inputs.first_start :][: len(inside)]
        return found

    def _sif_weights(self) -> np.ndarray:
        if self.encoder.default_pool != "sif":
            what = f"pool sif weighs words by their rank in a vocabulary, which {self.system.name} does not have"
            raise UsageError(f"{what}: choose another pool")
        return sif_weights(self.encoder.vocab_size, self.tokenizer.special_ids).numpy()

    def _pooled_features(self, texts: list[list[int]]) -> np.ndarray:
        """[texts, width] pooled output of a sparse encoder, without a vector per token."""
        if (size := 4 * len(texts) * self.encoder.width) > MAX_BYTES:
            what = f"{len(texts):,} vectors of {self.encoder.width:,} numbers take {size / 2**30:.0f} GiB"
            raise UsageError(f"{what}: pass fewer texts at once")
        found = np.empty((len(texts), self.encoder.width), np.float32)

        def infer(index: np.ndarray) -> Tensor:
            batch = TokenBatch.pad([self.system.build_inputs(self.tokenizer, texts[number]).ids for number in index])
            return self.encoder.pooled_features(batch.to(self.device)).float().cpu()

        lengths = np.array([*map(len, texts)])
        for index, vectors in batched_inference(self.encoder, lengths, infer, batch_size=SPARSE_BATCH):
            found[index] = vectors
        return found

    def _windows(self, texts: list[list[int]]) -> Iterator[tuple[_Window, np.ndarray]]:
        """Each window of each text with its [time, width] vectors, longest first unless the state is carried; those of
        every layer are [layers, time, width]."""
        windows, state = self._split(texts), None

        def infer(index: np.ndarray) -> np.ndarray:
            nonlocal state
            ids = TokenBatch.pad([windows[number].inputs.ids for number in index])
            inputs = self.system.with_subword_units(ids, self.tokenizer).to(self.device)
            output = self.encoder(inputs, state=state, all_layers=self.layer != -1)
            if self.carry and (state := output.state) is None:
                what = f"this {self.system.name} has no recurrent state to carry from text to text"
                raise UsageError(f"{what}: leave out carry, or use elmo, ulmfit or a unidirectional rnn")
            if self.layer is None:
                return torch.stack(output.layers, 1).float().cpu().numpy()
            chosen = output.top if self.layer == -1 else output.layers[self._layer_index(self.layer)]
            return chosen.float().cpu().numpy()

        # Sequences of equal length keep their order.
        lengths = np.array([0 if self.carry else len(window.inputs.ids) for window in windows])
        most = BATCH_TOKENS_CPU if self.device.type == "cpu" else BATCH_TOKENS
        size = 1 if self.carry else most
        batches = batched_inference(
            self.encoder, lengths, infer, batch_size=size, max_tokens=most, precision=self.precision
        )
        for index, found in batches:
            for number, vectors in zip(index, found, strict=True):
                yield windows[number], vectors[..., : len(windows[number].inputs.ids), :]

    def _truncated(self, texts: list[list[int]], max_tokens: int) -> list[list[int]]:
        """The first tokens of each text that a sequence of `max_tokens` has room for; all if that is 0."""
        room = self.system.text_room(self.tokenizer, max_tokens)
        long = sum(len(ids) > room for ids in texts)
        if not max_tokens or not long:
            return texts
        what = f"{long} of {len(texts)} texts are longer than {room} tokens"
        note(self.on_event, f"{what} and are truncated, as the sentence-transformers folder defines it")
        return [ids[:room] for ids in texts]

    def _split(self, texts: list[list[int]]) -> list[_Window]:
        size = self.system.max_text_length(self.tokenizer)
        windows = [
            _Window(text, start, start + size, self.system.build_inputs(self.tokenizer, ids[start : start + size]))
            for text, ids in enumerate(texts)
            for start in range(0, max(len(ids), 1), size)
        ]
        if len(windows) > len(texts):
            long = sum(len(ids) > size for ids in texts)
            count = len(windows) - len(texts) + long
            what = f"{long} of {len(texts)} texts are longer than {size} tokens"
            note(self.on_event, f"{what} and are split into {count} windows")
        return windows

    def _layer_index(self, layer: int) -> int:
        """The index of the layer among the encoder's outputs."""
        numbers = self.encoder.layer_numbers
        top = numbers[-1]
        number = layer if layer >= 0 else top + 1 + layer
        if number in numbers:
            return numbers.index(number)
        if len(numbers) == top + 1 or not 0 <= number <= top:
            raise UsageError(f"there is no layer {layer}: this model has 0 (embeddings) to {top}")
        known = ", ".join(map(str, numbers))
        raise UsageError(f"layer {layer} has another width than the output: choose one of {known}")
