"""A trained model: system, encoder, tokenizer and heads; loaded from and saved to a folder."""

import hashlib
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, get_args, overload

import numpy as np
import torch
from torch import Tensor, nn

from keel.config import to_dict
from keel.data.examples import Columns, Examples, Labels
from keel.data.label_kinds import LABEL_KINDS, TextTarget
from keel.data.memory_sources import plain_source
from keel.data.notebook_html import html_table
from keel.data.predictions import PredictionList
from keel.data.tables import fill_missing
from keel.data.text_inputs import Texts, is_tabular, require_text, text_inputs
from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError, UsageError
from keel.events import OnEvent, ignore, note
from keel.formats import huggingface
from keel.formats.folder_architecture import WORD_HEAD
from keel.formats.model_folder import TARGET
from keel.formats.registry import read_model, read_outline
from keel.formats.stored_model import (
    LABEL_COUNTS,
    StoredModel,
    Vectors,
    label_settings,
    refusing_impossible_networks,
    word_vectors,
)
from keel.formats.vector_files import stored_vectors
from keel.model_card import Card
from keel.nn.bf16_inference import has_native_bf16
from keel.nn.encoder import Encoder
from keel.nn.meta_device import meta_device
from keel.nn.pooling import SentencePooling
from keel.systems.capabilities import MaskedLM
from keel.systems.system import System
from keel.tasks import TASKS, Task
from keel.text_vectors import POOLING, Pool, PooledOutput, TextEncoder, TokenVectors
from keel.training.distributed import pick_device
from keel.training.objective import Objective
from keel.training.plan import Precision

MASK = re.compile(r"\[mask\]|_{2,}|＿{2,}", re.IGNORECASE)
MAX_UNKNOWN = 0.2
"""Share of unknown tokens above which a model learns little from a text."""
LABELS_SHOWN = 8
"""Labels that a notebook shows."""
SAMPLE = 1_000
"""Examples in which unknown tokens are counted."""


class Candidate(NamedTuple):
    """A word for a mask token, and its probability."""

    word: str
    probability: float

    def __repr__(self) -> str:
        return f"Candidate({self.word!r}, {self.probability:.3f})"


@dataclass(kw_only=True, eq=False)
class Model:
    """A trained encoder with its tokenizer and heads."""

    system: System
    encoder: Encoder = field(repr=False)
    tokenizer: Tokenizer = field(repr=False)
    objective: Objective | None = field(default=None, repr=False)
    """The pre-training objective with its heads, if the model has them."""
    task: Task | None = field(default=None, repr=False)
    """The task that the model was fine-tuned on."""
    card: Card = field(default_factory=Card)
    sentence_pooling: SentencePooling | None = None
    """How sentence embeddings are made, if a sentence-transformers folder defines it; else the mean of the tokens."""
    precision: Precision = field(default="auto", repr=False)
    """Precision of embeddings (`encode`), as in `Train`, but auto is fp32; a task has its own."""
    missing: tuple[str, ...] = ()
    """Parts of a complete pre-trained model that the folder lacked; they are randomly initialised."""

    def __repr__(self) -> str:
        task = f", task={self.task.name!r}" if self.task else ""
        return f"Model({self.card.title!r}, {self.system.name}, vocab_size={len(self.tokenizer):,}{task})"

    def _repr_html_(self) -> str:
        """The model in a notebook: what it is, what it was trained on, its scores."""
        labels = ", ".join(self.label_names[:LABELS_SHOWN]) + (", ..." if self.label_names[LABELS_SHOWN:] else "")
        rows = {
            "system": self.system.name,
            "task": f"{self.task.name} ({labels})" if self.task and labels else self.task.name if self.task else "",
            "parameters": f"{sum(weight.numel() for weight in self.encoder.parameters()):,}",
            "vocabulary": f"{len(self.tokenizer):,} tokens",
            "device": str(self.device),
            "training data": self.card.text,
            **{f"score: {name}": text for name, text in self.card.score_texts().items()},
        }
        return html_table(self.card.title or "Model", (), [row for row in rows.items() if row[1]])

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        device: str = "auto",
        precision: Precision = "auto",
        on_event: OnEvent = ignore,
    ) -> Self:
        """Load a model: a folder of Keel or Hugging Face, a fastText or ELMo model, or a word vector file.

        `device` is "cpu", "cuda", "cuda:1", or "auto": the GPU if there is one. `precision` of predictions and
        embeddings is "fp32", "bf16" (nearly twice as fast on a CPU with bf16 instructions), or "auto": bf16 for the
        predictions of a task on a GPU, else fp32.
        """
        if precision not in get_args(Precision):
            raise UsageError(f"precision must be one of {', '.join(get_args(Precision))}, not {precision!r}")
        path = Path(folder)
        model = cls.from_stored(read_model(path, on_event), path).to(device)
        model.precision = precision
        if model.task is not None:
            model.task.precision = precision
        if precision == "bf16" and model.device.type == "cpu" and not has_native_bf16():
            note(on_event, "this CPU has no bf16 instructions: --precision bf16 is slower than fp32 here")
        return model

    @classmethod
    def from_stored(cls, stored: StoredModel, path: Path) -> Self:
        """Build the networks of a stored model."""
        if len(stored.tokenizer) > stored.vocab_size:
            raise KeelError(
                f"{path}: the tokenizer has {len(stored.tokenizer)} tokens, but there are {stored.vocab_size} "
                "embeddings: the two belong to different models"
            )
        encoder, objective, task = _build(stored, path)
        return cls(
            system=stored.system if task is None else task.system,
            encoder=encoder,
            tokenizer=stored.tokenizer,
            objective=objective,
            task=task,
            card=Card.read(stored.config, path),
            sentence_pooling=stored.sentence_pooling,
            missing=stored.missing,
        )

    @classmethod
    def outline(cls, folder: str | Path) -> Self:
        """A model without the values of its weights, to see what it is: settings, sizes, labels and model card. Of a
        file of vectors, the tokenizer has the first words only."""
        return cls.from_stored(read_outline(folder), Path(folder))

    @classmethod
    def of_vectors(cls, vectors: Vectors, *, title: str = "") -> Self:
        """A model of word vectors without context."""
        return cls.from_stored(stored_vectors(vectors), Path(title))

    def vector_space(self) -> Vectors:
        """The vocabulary and its vectors, without special tokens."""
        return word_vectors(self.system, self.encoder, self.tokenizer)

    def to(self, device: str | torch.device) -> Self:
        """Move the model to a device."""
        chosen = pick_device(device) if isinstance(device, str) else device
        for module in _modules(self.encoder, self.objective, self.task):
            module.to(chosen).eval()
        return self

    def fingerprint(self) -> str:
        """A hash of the encoder's weights."""
        sums = hashlib.blake2b()
        for name, value in self.encoder.state_dict().items():
            sums.update(name.encode() + value.cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return sums.hexdigest()[:32]

    @property
    def title(self) -> str:
        """The title of its card, or the name of its system."""
        return self.card.title or self.system.name

    @property
    def device(self) -> torch.device:
        return next(self.encoder.parameters()).device

    def unknown_share(self, examples: Examples) -> float:
        """Share of unknown tokens in the examples; 0 for a model with subword features."""
        texts = [text for column in (examples.texts, examples.seconds or []) for text in column[:SAMPLE]]
        return 0.0 if self.system.uses_subwords else self.tokenizer.unknown_share(texts)

    def tensors(self) -> dict[str, Tensor]:
        """All weights, by the names of objective and task, without those that follow from others."""
        modules = _modules(self.encoder, self.objective, self.task)
        derived = self.objective.derived if self.objective else ()
        found = {name: tensor for module in modules for name, tensor in module.state_dict().items()}
        return {name: tensor for name, tensor in found.items() if name not in derived}

    @property
    def label_names(self) -> tuple[str, ...]:
        """The label names of the task; empty without a task, and for regression."""
        return self.task.labels.names if self.task else ()

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write the model folder atomically; `run/` inside it stays."""
        huggingface.save(Path(folder), self.to_stored(), overwrite=overwrite)

    def to_stored(self) -> StoredModel:
        """The contents of the model folder."""
        keel: dict[str, Any] = {"card": to_dict(self.card)}
        config: dict[str, Any] = {**self.tokenizer.config_token_ids, "keel": keel}
        target = None
        if self.task is not None:
            labels = self.task.labels
            target = labels.tokenizer
            keel["task"] = {"name": self.task.name, "kind": labels.kind.name, **self.task.settings}
            if labels.counts:
                keel["task"][LABEL_COUNTS] = list(labels.counts)
            if target is not None:
                keel["task"][TARGET] = True
            if not isinstance(labels.kind, TextTarget):
                names = labels.names or tuple(f"LABEL_{number}" for number in range(labels.outputs))
                config |= label_settings(names, labels.kind.problem_type)
        stored = StoredModel(
            system=self.system,
            tokenizer=self.tokenizer,
            target_tokenizer=target,
            vocab_size=self.encoder.vocab_size,
            tensors=self.tensors(),
            config=config,
            sentence_pooling=self.sentence_pooling,
            extra_files=self.encoder.extra_files(self.tokenizer),
        )
        return replace(stored, readme=self.card.render(stored))

    @property
    def default_pooling(self) -> SentencePooling:
        """The pooling of sentence embeddings: the folder's, else that of the kind of encoder."""
        return self.sentence_pooling or POOLING[self.encoder.default_pool]

    @overload
    def encode(
        self, texts: Texts, *, layer: int = -1, pool: PooledOutput = "default",
        carry: bool = False, text_column: str = "", on_event: OnEvent = ignore,
    ) -> np.ndarray: ...  # fmt: skip
    @overload
    def encode(  # pyright: ignore[reportOverlappingOverload] - a str is one text
        self, texts: str, *, layer: int = -1, pool: Literal["none"],
        carry: bool = False, text_column: str = "", on_event: OnEvent = ignore,
    ) -> TokenVectors: ...  # fmt: skip
    @overload
    def encode(
        self, texts: Texts, *, layer: int = -1, pool: Literal["none"],
        carry: bool = False, text_column: str = "", on_event: OnEvent = ignore,
    ) -> list[TokenVectors]: ...  # fmt: skip
    @overload
    def encode(
        self, texts: Texts, *, layer: int = -1, pool: Pool,
        carry: bool = False, text_column: str = "", on_event: OnEvent = ignore,
    ) -> np.ndarray | TokenVectors | list[TokenVectors]: ...  # fmt: skip
    def encode(
        self,
        texts: Texts,
        *,
        layer: int = -1,
        pool: Pool = "default",
        carry: bool = False,
        text_column: str = "",
        on_event: OnEvent = ignore,
    ) -> np.ndarray | TokenVectors | list[TokenVectors]:
        """Embeddings of texts: [width] for one text, [texts, width] for several; `TokenVectors` with pool="none".

        `pool` is "mean" or "max" (over all tokens, special tokens included), "sif" (the mean of word vectors with less
        weight for frequent words), "cls" (the first token), "last" or "none" (every token); "default" is what a
        sentence-transformers folder does, "sif" for word vectors, the mean for all others.
        `layer` counts from 0, the embeddings, or back from -1, the top. A text longer than the model's maximum length
        is split into windows. With `carry` a recurrent model keeps its state from each text to the next. The texts of
        a DataFrame or of records are in `text_column`, by default the one with a usual name.
        """
        if pool not in get_args(Pool):
            raise UsageError(f"pool must be one of {', '.join(get_args(Pool))}, not {pool!r}")
        precision = "fp32" if self.precision == "auto" else self.precision
        encoder = TextEncoder(self.system, self.encoder, self.tokenizer, layer, carry, on_event, precision)
        many, one = text_inputs(texts, text_column=text_column, on_event=on_event)
        pooling = self.default_pooling if pool == "default" else POOLING.get(pool)
        found = encoder.pooled(many, pooling) if pooling else encoder.per_token(many)
        return found[0] if one else found

    def encode_layers(
        self, texts: Texts, *, pool: PooledOutput = "mean", text_column: str = "", on_event: OnEvent = ignore
    ) -> np.ndarray:
        """[texts, layers, width]: the embeddings of texts from every layer in one pass ([layers, width] for one text),
        those of `encode(layer=n)` for n in `encoder.layer_numbers`, which leaves out layers of another width than the
        output."""
        if pool not in get_args(PooledOutput):
            raise UsageError(f"pool must be one of {', '.join(get_args(PooledOutput))}, not {pool!r}")
        if self.encoder.sparse:
            raise UsageError(f"{self.system.name} has no layers: use encode")
        precision = "fp32" if self.precision == "auto" else self.precision
        encoder = TextEncoder(self.system, self.encoder, self.tokenizer, None, False, on_event, precision)
        pooling = POOLING.get(pool, self.default_pooling)
        many, one = text_inputs(texts, text_column=text_column, on_event=on_event)
        found = encoder.pooled(many, pooling)
        return found[0] if one else found

    @torch.inference_mode()
    def fill(self, text: str, *, top: int = 5) -> list[list[Candidate]]:
        """The most probable words for each mask of a text (`[MASK]` or `___`), in descending order.

        Special tokens, such as [UNK], are no candidates; the others keep the probabilities that the model gives them.
        """
        require_text(text)
        if not isinstance(self.objective, MaskedLM) or WORD_HEAD in self.missing:
            raise KeelError("this model has no masked language model head: use a pre-trained bert to fill masks")
        mask = self.tokenizer.mask_id
        ids = self.tokenizer.encode(MASK.sub(self.tokenizer.token_of(mask), text)).ids
        inputs = self.system.build_inputs(self.tokenizer, ids).ids
        if len(inputs) > self.system.max_length:
            what = f"the text has {len(inputs)} tokens, and this model reads at most {self.system.max_length}"
            raise KeelError(f"{what}: give a shorter one")
        masked = [position for position, number in enumerate(inputs) if number == mask]
        if not masked:
            raise UsageError("the text has no mask: write [MASK] or ___ where a word is missing")
        self.objective.eval()
        batch = TokenBatch.pad([inputs]).to(self.device)
        logits = self.objective.masked_logits(batch, torch.tensor([masked], device=self.device))
        probabilities = logits[0, :, : len(self.tokenizer)].float().softmax(-1)  # [masks, vocab_size]
        special = self.tokenizer.special_ids
        probabilities[:, special] = -1
        best = probabilities.topk(min(top, len(self.tokenizer) - len(special)))
        return [
            [Candidate(self.tokenizer.word_of(number), value) for number, value in zip(ids, values, strict=True)]
            for ids, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]

    def predict(
        self, texts: Any, *, text_column: str = "", second_column: str = "", on_event: OnEvent = ignore
    ) -> Any:  # AnyPrediction, or a list of them
        """The task's prediction for one text, or a list of them for several; a pair of texts is a tuple (a, b).

        A dict is one example and a DataFrame a table of them, with the text in `text_column`; labels are not read. A
        missing text among others is an empty one, with a note.
        """
        if self.task is None:
            raise KeelError("this model has no task: fine-tune it first (keel finetune)")
        source = plain_source(texts)
        one = isinstance(source, dict) or self.task.is_single_input(source)
        if is_tabular(source):
            columns = Columns(text_column=text_column, second_column=second_column)
            items = self.task.make_examples(source, columns, on_event)
        else:
            inputs = [source] if one or not isinstance(source, list | tuple) else fill_missing([*source], on_event)
            items = [self.task.make_example(item, number) for number, item in enumerate(inputs)]
        found = self.task.predict(Examples.of(items, None, "the texts"), on_event=on_event) if items else []
        return found[0] if one else PredictionList(found)


def _modules(encoder: Encoder, objective: Objective | None, task: Task | None) -> list[nn.Module]:
    """The modules with weights; each has the encoder under the name `encoder`."""
    return [nn.ModuleDict({"encoder": encoder}), *(head for head in (objective, task) if head is not None)]


def _build(stored: StoredModel, path: Path) -> tuple[Encoder, Objective | None, Task | None]:
    """Encoder and heads with the stored weights; random initialisation only if some are missing."""
    for device in ("meta", "cpu"):
        with (
            meta_device() if device == "meta" else torch.device(device),
            refusing_impossible_networks(path / "config.json"),
        ):
            encoder = stored.system.build_encoder(stored.vocab_size)
            objective = stored.system.build_objective(encoder, stored.tokenizer) if stored.has_objective else None
            task = _build_task(stored, encoder, path)
            _refuse_incomplete(stored, task, path)
            modules = _modules(encoder, objective, task)
            for module in modules:
                names = module.state_dict().keys() & stored.tensors.keys()
                found = {name: stored.tensors[name] for name in names if not stored.lacks_shape(name)}
                module.load_state_dict(found, strict=False, assign=True)
        derived = objective.derived if objective else ()
        weights = [weight for module in modules for name, weight in module.named_parameters() if name not in derived]
        if stored.is_outline or not any(weight.is_meta for weight in weights):
            break
    if objective and not stored.is_outline:
        objective.derive()
    return encoder, objective, task


def _build_task(stored: StoredModel, encoder: Encoder, path: Path) -> Task | None:
    ours, where = stored.task, f"{path / 'config.json'}: keel.task"
    for key, known in (("kind", LABEL_KINDS), ("name", TASKS)):
        if ours.get(key, next(iter(known))) not in known:
            raise KeelError(f"{where}.{key} is {ours[key]!r}, which needs a newer version of Keel")
    kind = LABEL_KINDS[ours["kind"]]() if "kind" in ours else stored.label_kind
    generates = isinstance(kind, TextTarget)
    if not stored.labels and not generates:
        return None
    names = stored.labels if kind.has_classes else ()
    labels = Labels(kind=kind, names=names, counts=stored.label_counts, tokenizer=stored.target_tokenizer)
    if not generates and labels.outputs != len(stored.labels):
        raise KeelError(f"{path}: the classifier has {len(stored.labels)} outputs; Keel's regression has one")
    settings = {name: value for name, value in ours.items() if name not in ("name", "kind", LABEL_COUNTS, TARGET)}
    task = TASKS[ours.get("name", kind.default_task)]
    try:
        return task(stored.system, encoder, stored.tokenizer, labels, **settings)
    except (UsageError, TypeError) as error:  # wrong values, unknown names
        raise KeelError(f"{where} cannot be read ({error}): it is damaged, or needs a newer version of Keel") from None


def _refuse_incomplete(stored: StoredModel, task: Task | None, folder: Path) -> None:
    """All weights of a task must be there: random ones would predict without a warning."""
    if not stored.task:
        return
    needed = {"classifier.weight"} if task is None else task.state_dict().keys()
    lacking = sorted(name for name in needed - stored.tensors.keys() if not name.startswith("encoder."))
    if lacking and (folder / huggingface.EXTRA).exists():
        raise KeelError(f"{folder / huggingface.EXTRA} lacks {lacking[0]}, a weight of its task: copy the folder again")
    if lacking:
        raise KeelError(f"{folder} lacks {huggingface.EXTRA}, the weights of its task: copy the whole folder")
