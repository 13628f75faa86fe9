"""A trained model and its folder: what was learned, with the tokenizer it was learned with, ready to be asked."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, overload

import numpy as np
import torch
from torch import Tensor, nn

from keel.config import to_dict
from keel.data.examples import Examples, Labels
from keel.data.input_windows import ModelInput
from keel.data.label_kinds import LABEL_KINDS, TextTarget
from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError, UsageError
from keel.events import OnEvent, ignore, note
from keel.formats import elmo_files, fasttext_files, huggingface
from keel.formats.model_folder import TARGET, save_folder
from keel.formats.vector_files import Vectors, read_vectors
from keel.model_card import Card
from keel.nn.encoder import Encoder
from keel.systems.capabilities import MaskedLM
from keel.systems.system import System
from keel.systems.word2vec import Word2vec
from keel.tasks import TASKS, Task
from keel.training.distributed import pick_device
from keel.training.objective import Objective

BLANK = re.compile(r"\[mask\]|_{2,}|＿{2,}", re.IGNORECASE)
Pool = Literal["mean", "cls", "none"]
BUDGET = 4096
"""Tokens in one batch of inference."""
MOST = 4 << 30
"""Bytes of vectors that one call may give, where they are as wide as the vocabulary."""
UNREADABLE = 0.2
"""The share of unknown pieces from which little can be learned from a text."""
SAMPLE = 1_000
"""Examples in which unknown pieces are counted."""


class Candidate(NamedTuple):
    """A word for a blank."""

    word: str
    probability: float


class _Part(NamedTuple):
    """A stretch of one text's ids, and the row it makes."""

    text: int
    start: int
    stop: int
    framed: ModelInput


class WordVectors(NamedTuple):
    """The pieces of one text, where each stands in it, and its vector in this context."""

    pieces: list[str]
    offsets: list[tuple[int, int]]
    vectors: np.ndarray  # [pieces, width]


@dataclass(kw_only=True, eq=False)
class Model:
    """A system's trained encoder with its tokenizer and whatever heads it has."""

    system: System
    encoder: Encoder = field(repr=False)
    tokenizer: Tokenizer = field(repr=False)
    objective: Objective | None = field(default=None, repr=False)
    """The pre-training heads, where there are any."""
    task: Task | None = field(default=None, repr=False)
    card: Card = field(default_factory=Card)
    missing: tuple[str, ...] = ()
    """Parts of a whole pre-trained model that the folder lacked; they are new and random."""

    @classmethod
    def load(cls, folder: str | Path, *, device: str = "cpu", on_event: OnEvent = ignore) -> Self:
        """Read a model folder, ours or Hugging Face's, or a file of fastText's or of word vectors: all, or an error."""
        folder = Path(folder)
        if folder.is_file() and not fasttext_files.is_fasttext(folder):  # what is wrong with it is said there
            return cls.of_vectors(read_vectors(folder, on_event=on_event), title=folder.name).to(device)
        if folder.is_file():
            stored = fasttext_files.read(folder)
        else:
            stored = elmo_files.read(folder) if elmo_files.is_elmo(folder) else huggingface.read(folder, on_event)
        tokenizer = stored.tokenizer
        if len(tokenizer) > stored.vocabulary:
            raise KeelError(
                f"{folder}: the tokenizer has {len(tokenizer)} pieces, but there are vectors for {stored.vocabulary}; "
                "the two are not of one model"
            )
        encoder, objective, task = _build(stored, folder)
        return cls(
            system=stored.system if task is None else task.system,
            encoder=encoder,
            tokenizer=tokenizer,
            objective=objective,
            task=task,
            card=Card.read(stored.config, folder),
            missing=stored.missing,
        ).to(device)

    @classmethod
    def of_vectors(cls, vectors: Vectors, *, title: str = "") -> Self:
        """A model that knows a vector for each of these words, and nothing of their context."""
        tokenizer = Tokenizer.from_words(vectors.words)
        system = Word2vec(width=vectors.matrix.shape[1])
        encoder = system.build_encoder(len(tokenizer))
        places = [tokenizer.id_of(word) for word in vectors.words]
        with torch.no_grad():
            encoder.words.weight.zero_()  # the special pieces mean nothing
            encoder.words.weight[places] = torch.from_numpy(vectors.matrix)
        return cls(system=system, encoder=encoder, tokenizer=tokenizer, card=Card(title=title))

    def vector_space(self) -> Vectors:
        """The words it has vectors for and these vectors, special pieces left out."""
        table = self.encoder.word_embeddings()
        if table is None:
            what = (
                "puts every word as far from every other" if self.encoder.sparse else "has no vectors for words alone"
            )
            raise KeelError(f"{self.system.name} {what}: take a word2vec or another with a table")
        special = set(self.tokenizer.special_ids)
        places = [place for place in range(len(self.tokenizer)) if place not in special]
        if self.system.uses_subwords:
            matrix = np.empty((len(places), self.encoder.width), np.float32)
            for start in range(0, len(places), BUDGET):
                rows = self.system.with_subword_units(
                    TokenBatch.pad([places[start : start + BUDGET]]), self.tokenizer
                ).to(self.device)
                with torch.inference_mode():
                    matrix[start : start + BUDGET] = self.encoder.embed(rows)[0].float().cpu().numpy()
        else:
            rows = slice(places[0], places[-1] + 1) if len(places) == places[-1] - places[0] + 1 else places  # no copy
            matrix = table.detach()[rows].float().cpu().numpy()
        return Vectors([self.tokenizer.token_of(place) for place in places], matrix)

    def to(self, device: str | torch.device) -> Self:
        """This model, moved to a device."""
        chosen = pick_device(device) if isinstance(device, str) else device
        for module in _holders(self.encoder, self.objective, self.task):
            module.to(chosen).eval()
        return self

    def fingerprint(self) -> str:
        """Another one for any other weights."""
        sums = hashlib.blake2b()
        for name, value in self.encoder.state_dict().items():
            sums.update(name.encode() + value.cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return sums.hexdigest()[:32]

    @property
    def device(self) -> torch.device:
        return next(self.encoder.parameters()).device

    def unknown_share(self, examples: Examples) -> float:
        """The share of the pieces of examples that it does not know; what spells reads any word."""
        texts = [text for column in (examples.texts, examples.seconds or []) for text in column[:SAMPLE]]
        return 0.0 if self.system.uses_subwords else self.tokenizer.unknown_share(texts)

    def tensors(self) -> dict[str, Tensor]:
        """All weights, by the names that the objective and the task have for them."""
        holders = _holders(self.encoder, self.objective, self.task)
        return {name: tensor for module in holders for name, tensor in module.state_dict().items()}

    @property
    def label_names(self) -> tuple[str, ...]:
        """The names that its task tells apart; none without one, or for numbers."""
        return self.task.labels.names if self.task else ()

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write the folder whole or not at all; what `run/` holds stays."""
        tensors = self.tensors()
        keel: dict[str, Any] = {"card": to_dict(self.card)}
        config: dict[str, Any] = {**self.tokenizer.config_token_ids, "keel": keel}
        if self.task is not None:
            labels = self.task.labels
            keel["task"] = {"name": self.task.name, "kind": labels.kind.name, **self.task.settings}
            if labels.tokenizer is not None:
                keel["task"][TARGET] = True
            if not isinstance(labels.kind, TextTarget):
                config |= huggingface.label_settings(labels.names, labels.kind.problem_type)

        def fill(stage: Path) -> None:
            purpose = huggingface.write(stage, self.system, self.encoder.vocab_size, tensors, config)
            self.tokenizer.save(stage)
            if self.task is not None and self.task.labels.tokenizer is not None:
                self.task.labels.tokenizer.save(stage / TARGET)
            text = self.card.render(system=self.system.name, purpose=purpose)
            (stage / "README.md").write_text(text, encoding="utf-8")
            for name, text in self.encoder.extra_files(self.tokenizer).items():
                (stage / name).write_text(text, encoding="utf-8")

        save_folder(Path(folder), fill, overwrite=overwrite)

    @overload
    def encode(
        self,
        texts: str | Sequence[str],
        *,
        layer: int = -1,
        pool: Literal["mean", "cls"] = "mean",
        carry: bool = False,
        on_event: OnEvent = ignore,
    ) -> np.ndarray: ...
    @overload
    def encode(
        self,
        texts: str | Sequence[str],
        *,
        layer: int = -1,
        pool: str,
        carry: bool = False,
        on_event: OnEvent = ignore,
    ) -> Any: ...
    def encode(
        self,
        texts: str | Sequence[str],
        *,
        layer: int = -1,
        pool: str = "mean",
        carry: bool = False,
        on_event: OnEvent = ignore,
    ) -> Any:
        """Vectors of texts, [width] for one and [texts, width] for many; with pool="none" the `WordVectors` of each.

        `pool` is "mean" (of all tokens, marks too, as sentence encoders have it), "cls" (the first token's) or "none".
        `layer` counts from 0, the embeddings, or back from -1, the top. A text too long for one row is read in parts.
        Each text starts anew, unless a recurrent model is to `carry` its state from each to the next, in their order.
        """
        if pool not in ("mean", "cls", "none"):
            raise UsageError(f"pool is {pool!r}; it must be mean, cls or none")
        many = _texts(texts)
        if pool == "none":
            found = self._word_vectors(many, layer, on_event, carry)
        elif self.encoder.sparse and not carry:
            found = self._gists(self.tokenizer.encode_many(many))
        else:
            sums, counts = np.zeros((len(many), self.encoder.width), np.float32), np.zeros((len(many), 1), np.float32)
            ids = self.tokenizer.encode_many(many, oov_ids=self.system.uses_subwords)
            for part, vectors in self._vectors(ids, layer, on_event, carry):
                sums[part.text] += vectors[0] if pool == "cls" else vectors.sum(0)
                counts[part.text] += 1 if pool == "cls" else len(vectors)
            found = sums / counts
        return found[0] if isinstance(texts, str) else found

    @torch.inference_mode()
    def _gists(self, texts: list[list[int]]) -> np.ndarray:
        """[texts, width]: what the encoder makes of each text at once, without a vector for each word."""
        if (size := 4 * len(texts) * self.encoder.width) > MOST:
            what = f"{len(texts):,} vectors of {self.encoder.width:,} numbers take {size / 2**30:.0f} GiB"
            raise UsageError(f"{what}: give fewer texts at once")
        found = np.empty((len(texts), self.encoder.width), np.float32)
        for start in range(0, len(texts), 64):
            framed = [self.system.build_inputs(self.tokenizer, ids).ids for ids in texts[start : start + 64]]
            found[start : start + 64] = (
                self.encoder.pooled_features(TokenBatch.pad(framed).to(self.device)).float().cpu()
            )
        return found

    def _word_vectors(self, texts: list[str], layer: int, on_event: OnEvent, carry: bool) -> list[WordVectors]:
        encoded = self.tokenizer.encode_with_offsets(texts, oov_ids=self.system.uses_subwords)
        found = [
            WordVectors(
                [self.tokenizer.token_of(number) for number in pieces.ids],
                pieces.offsets,
                np.empty((len(pieces.ids), self.encoder.width), np.float32),
            )
            for pieces in encoded
        ]
        for part, vectors in self._vectors([pieces.ids for pieces in encoded], layer, on_event, carry):
            inside = found[part.text].vectors[part.start : part.stop]
            inside[:] = vectors[part.framed.first_start :][: len(inside)]
        return found

    @torch.inference_mode()
    def _vectors(
        self, texts: list[list[int]], layer: int, on_event: OnEvent, carry: bool
    ) -> Iterator[tuple[_Part, np.ndarray]]:
        """Each part of each text with its [time, width] vectors; parts of one length go together, the longest first,
        unless a state is carried from each to the next."""
        room = self.system.max_length - len(self.system.build_inputs(self.tokenizer, []).ids)
        parts = [
            _Part(text, start, start + room, self.system.build_inputs(self.tokenizer, ids[start : start + room]))
            for text, ids in enumerate(texts)
            for start in range(0, max(len(ids), 1), room)
        ]
        if len(parts) > len(texts):
            long = sum(len(ids) > room for ids in texts)
            count = len(parts) - len(texts) + long
            note(on_event, f"{long} of {len(texts)} texts are longer than {room} tokens and are read in {count} parts")
        if not carry:
            parts.sort(key=lambda part: -len(part.framed.ids))
        done, state, encoder = 0, None, self.encoder.eval()
        while done < len(parts):
            batch = parts[done : done + (1 if carry else max(1, BUDGET // len(parts[done].framed.ids)))]
            done += len(batch)
            rows = self.system.with_subword_units(
                TokenBatch.pad([part.framed.ids for part in batch]), self.tokenizer
            ).to(self.device)
            output = encoder(rows, state=state, all_layers=layer != -1)
            if carry and (state := output.state) is None:
                what = f"this {self.system.name} has no state that goes on from text to text"
                raise UsageError(f"{what}: leave out carry, or take elmo, ulmfit or an rnn that reads one way")
            chosen = output.top if layer == -1 else output.layers[self._place_of(layer)]
            vectors = chosen.float().cpu().numpy()
            for part, found in zip(batch, vectors, strict=True):
                yield part, found[: len(part.framed.ids)]

    def _place_of(self, layer: int) -> int:
        """Where a layer, counted from the embeddings or back from the top, stands among those of the encoder."""
        numbers = self.encoder.layer_numbers
        top = numbers[-1]
        number = layer if layer >= 0 else top + 1 + layer
        if number in numbers:
            return numbers.index(number)
        if len(numbers) == top + 1 or not 0 <= number <= top:
            raise UsageError(f"there is no layer {layer}: this model has 0 (embeddings) to {top}")
        given = ", ".join(map(str, numbers))
        raise UsageError(f"layer {layer} is of another width than the words and is not given: take one of {given}")

    @torch.inference_mode()
    def fill(self, text: str, *, top: int = 5) -> list[list[Candidate]]:
        """The likeliest words for each blank of a text, `[MASK]` or `___`, the likeliest first."""
        if not isinstance(self.objective, MaskedLM) or huggingface.WORD_HEAD in self.missing:
            raise KeelError("this model cannot fill blanks: it has no head that predicts words; take a pre-trained one")
        mask = self.tokenizer.mask_id
        ids = self.tokenizer.encode(BLANK.sub(self.tokenizer.token_of(mask), text)).ids
        framed = self.system.build_inputs(self.tokenizer, ids).ids
        if len(framed) > self.system.max_length:
            raise KeelError(
                f"the text has {len(framed)} tokens and this model reads {self.system.max_length}: give a shorter one"
            )
        slots = torch.tensor([[place for place, number in enumerate(framed) if number == mask]], device=self.device)
        if not slots.numel():
            raise UsageError("the text has no blank: write [MASK] or ___ where a word is missing")
        output = self.encoder.eval()(TokenBatch.pad([framed]).to(self.device))
        scores = self.objective.predict_masked(output.top, slots)[0, :, : len(self.tokenizer)]  # [blanks, vocabulary]
        best = scores.float().softmax(-1).topk(min(top, len(self.tokenizer)))
        return [
            [
                Candidate(self.tokenizer.token_of(number), chance)
                for number, chance in zip(numbers, chances, strict=True)
            ]
            for numbers, chances in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]

    def predict(self, texts: Any, *, on_event: OnEvent = ignore) -> Any:
        """What the task says of one text, or a list of answers for many; a pair is a tuple (a, b)."""
        if self.task is None:
            raise KeelError("this model has learned no task: fine-tune it first (keel finetune)")
        one = self.task.is_single_input(texts)
        asked = texts if isinstance(texts, Iterable) and not one else [texts]
        items = [self.task.make_example(item, number) for number, item in enumerate(asked)]
        found = list(self.task.predict(Examples(items, None, "the texts"), on_event=on_event)) if items else []
        return found[0] if one else found


def _texts(given: Any) -> list[str]:
    """One text, or many, as a list."""
    texts = [given] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
    for text in texts:
        if not isinstance(text, str):
            raise UsageError(f"{text!r} is no text: give a string, or a list of them")
    return texts


def _build(stored: huggingface.Stored, folder: Path) -> tuple[Encoder, Objective | None, Task | None]:
    """Encoder and heads with the folder's weights; random ones are drawn only if it does not bring them all."""
    system, tokenizer = stored.system, stored.tokenizer
    for place in ("meta", "cpu"):
        with torch.device(place):
            encoder = system.build_encoder(stored.vocabulary)
            objective = system.build_objective(encoder, tokenizer) if stored.pretrained else None
            task = _task(stored, encoder)
        _refuse_unlearned(stored, task, folder)
        holders = _holders(encoder, objective, task)
        for module in holders:
            names = module.state_dict().keys() & stored.tensors.keys()
            module.load_state_dict({name: stored.tensors[name] for name in names}, strict=False, assign=True)
        if not any(parameter.is_meta for module in holders for parameter in module.parameters()):
            break
    return encoder, objective, task


def _refuse_unlearned(stored: huggingface.Stored, task: Task | None, folder: Path) -> None:
    """What our folder says that it has learned must be there: random weights would answer as if they knew."""
    if not stored.config.get("keel", {}).get("task"):
        return
    needed = {"classifier.weight"} if task is None else task.state_dict().keys()
    lacking = sorted(name for name in needed - stored.tensors.keys() if not name.startswith("encoder."))
    if lacking and (folder / huggingface.EXTRA).exists():
        raise KeelError(f"{folder / huggingface.EXTRA} lacks {lacking[0]}, which its task learned: copy it again")
    if lacking:
        raise KeelError(f"{folder} lacks {huggingface.EXTRA}, which holds what its task learned: copy it too")


def _holders(encoder: Encoder, objective: Objective | None, task: Task | None) -> list[nn.Module]:
    """What has weights, each with the encoder under the name `encoder`."""
    return [nn.ModuleDict({"encoder": encoder}), *(head for head in (objective, task) if head is not None)]


def _task(stored: huggingface.Stored, encoder: Encoder) -> Task | None:
    ours = stored.config.get("keel", {}).get("task", {})
    kind = LABEL_KINDS[ours["kind"]] if "kind" in ours else stored.label_kind
    generates = isinstance(kind, TextTarget)
    if not stored.labels and not generates:
        return None
    names = stored.labels if kind.has_classes else ()
    labels = Labels(kind=kind, names=names, tokenizer=stored.target)
    if not generates and labels.outputs != len(stored.labels):
        raise KeelError(f"the model gives {len(stored.labels)} numbers for one text; Keel's tasks give one")
    settings = {name: value for name, value in ours.items() if name not in ("name", "kind", TARGET)}
    return TASKS[ours.get("name", kind.default_task)](stored.system, encoder, stored.tokenizer, labels, **settings)
