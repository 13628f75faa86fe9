"""The setup of a fine-tuning run: settings with the defaults of system and task, the model to start from, and data."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

import torch

from keel.api.settings import Source, VocabularySettings, route_settings
from keel.api.starting_point import resolve_start, warn_unknown_tokens
from keel.checks.check_report import Finding
from keel.checks.label_checks import findings_between, label_findings
from keel.config import unknown_name
from keel.data.corpus import Corpus
from keel.data.example_splits import split_validation
from keel.data.examples import Columns, Examples, Labels
from keel.data.label_cleaning import clean_examples, match_labels
from keel.data.label_kinds import SingleLabel, TextTarget
from keel.data.tokenizer import Tokenizer
from keel.data.tokenizer_training import TokenizerSettings, train_tokenizer
from keel.errors import UsageError, flag_of
from keel.events import OnEvent, ignore, note
from keel.formats.upgrades import RENAMED_TASKS
from keel.model import Model
from keel.nn.meta_device import meta_device
from keel.systems.system import SOLVED, CountBased, System
from keel.tasks import TASKS, Task
from keel.tasks.head_settings import HeadSettings
from keel.training.counter_rng import derive_seed
from keel.training.linear_solver import HELD_OUT_FROM
from keel.training.plan import Train

TRAINED_BY_GRADIENTS = {each.name for each in fields(Train)} - {*Train.ANY_TRAINING, *Train.CHANGEABLE}
"""Settings of which any one, if given, lets a classifier on a frozen encoder be trained instead of solved for."""
DefaultDev = Callable[[Examples, Labels], str]
"""The share of the training examples to hold out, or "none"."""


@dataclass(frozen=True, kw_only=True)
class FineTuningDefaults:
    """What a run without settings does: the same for the help and for the run."""

    freeze: bool
    has_network: bool
    solves_frozen: bool
    train: Train
    head: HeadSettings
    by_data_size: Mapping[str, str]
    """Training settings that depend on the number of examples, and how, in words."""

    @classmethod
    def of(
        cls,
        task: type[Task],
        start: System,
        given: Mapping[str, Any],
        *,
        trained: bool,
        freeze: bool | None,
        pretraining_optimizer: str = "",
    ) -> Self:
        """The defaults of system and task, beside what was given; `trained`: the encoder has weights to keep."""
        given = {**task.default_head(start), **given}
        if freeze is None and trained and "unfreeze" not in given:
            freeze = start.feature_based
        has_network = any(given.get(name, "none") != "none" for name in ("network", "characters"))
        head = _head_defaults(task, start, given, freeze=bool(freeze), has_network=has_network)
        linear = task.linear_head and not has_network and start.finetuning_policy.solves_frozen
        if given.get("mix", head.mix) or given.get("pool", head.pool) == "default" != start.default_frozen_pool:
            linear = False  # layer weights, or a pooler, are trained with the classifier
        solves_frozen = bool(freeze) and linear and TRAINED_BY_GRADIENTS.isdisjoint(given)
        train = SOLVED if solves_frozen else task.finetuning_defaults(start, bool(freeze), network=has_network)
        policy = start.finetuning_policy
        pretrained = trained and not freeze and not has_network
        if pretrained:
            train = policy.fit_to_pretraining(train, pretraining_optimizer, given.get("optimizer", ""))
        sized = not freeze and not has_network and policy.fits_size(train, trained=trained)
        return cls(
            freeze=bool(freeze),
            has_network=has_network,
            solves_frozen=solves_frozen,
            train=train,
            head=head,
            by_data_size=policy.by_data_size if sized else {},
        )


@dataclass(frozen=True, kw_only=True)
class FineTuningSetup:
    """All settings of a run, resolved and checked."""

    task: type[Task]
    system: System
    parent: Model | None
    """The trained model to start from; None for a new one."""
    freeze: bool
    from_scratch: bool
    """Whether the encoder is randomly initialised."""
    train: Train
    columns: Columns
    head: HeadSettings
    text: VocabularySettings
    has_network: bool
    """Whether the head has a network between encoder and classifier."""
    solves_frozen: bool
    """Whether the classifier on a frozen encoder is solved for."""
    depends_on_size: bool = False
    """Whether training settings depend on the number of examples."""
    given: frozenset[str] = frozenset()
    """Names of the settings that were given."""

    @classmethod
    def resolve(
        cls,
        base: Model | System | str | Path,
        out: str | Path | None,
        task: str,
        freeze: bool | None,
        from_scratch: bool,
        settings: dict[str, Any],
        on_event: OnEvent,
    ) -> Self:
        """Resolve what was given and the defaults of system and task."""
        if task not in TASKS and task in RENAMED_TASKS:
            raise UsageError(f"--task {task} was renamed: use --task {RENAMED_TASKS[task]}")
        if task not in TASKS:
            raise unknown_name(task, TASKS, "--task")
        if freeze and from_scratch:
            raise UsageError("--freeze keeps the pre-trained weights and --from-scratch drops them: use one of them")
        kind = TASKS[task]
        start, parent = resolve_start(base, out, settings, on_event, labelled=True)
        if reason := start.unsupported_reason(task, trained=parent is not None):
            raise UsageError(reason)
        trained = parent is not None and not from_scratch
        optimizer = parent.card.recipe.get("train", {}).get("optimizer", "") if parent else ""
        defaults = FineTuningDefaults.of(
            kind, start, settings, trained=trained, freeze=freeze, pretraining_optimizer=optimizer
        )
        if freeze is None and defaults.freeze:
            default = f"{start.name} is feature-based: its encoder is frozen"
            note(on_event, f"{default}; --no-freeze to fine-tune all of it")
        freeze, has_network, head_defaults = defaults.freeze, defaults.has_network, defaults.head
        if freeze and parent is None:
            what = f"--freeze keeps pre-trained weights, and a new {start.name} has none"
            raise UsageError(f"{what}: give a model folder")
        if parent and not from_scratch and not has_network:
            head_defaults = _sentence_pooling(head_defaults, parent, kind, settings, on_event)
            cross = kind.pair and settings.get("pair_encoding", head_defaults.pair_encoding) != "siamese"
            if freeze and parent.sentence_pooling and "max_tokens" in kind.head_fields and not cross:
                head_defaults = replace(head_defaults, max_tokens=parent.sentence_pooling.max_tokens)
        system, train, columns, head, text = route_settings(
            settings,
            start,
            defaults.train,
            Columns(),
            head_defaults,
            VocabularySettings(),
            only=start.finetuning_fields if parent else None,
        )
        system = system.finetuning_policy.adapt_to_given(settings)
        if parent and text != VocabularySettings():
            changed = ", ".join(f"--text.{name}" for name in text.non_default())
            raise UsageError(f"{parent.card.title or 'the model'} has its tokenizer already: leave out {changed}")
        for name in head.non_default():
            if name not in kind.head_fields:
                able = " or ".join(each for each, other in TASKS.items() if name in other.head_fields)
                raise UsageError(f"{flag_of(name)} is for --task {able}, not for {task}: leave it out")
        if head_defaults.lm_loss and "lm_loss" not in settings:
            weight = f"--lm-loss {head_defaults.lm_loss:g}"
            note(on_event, f"{start.name} adds an auxiliary language model loss: {weight}, 0 for none")
        resolved = cls(
            task=kind,
            system=system,
            parent=parent,
            freeze=freeze,
            from_scratch=from_scratch or parent is None,
            train=train,
            columns=columns,
            head=head,
            text=text,
            has_network=has_network,
            solves_frozen=defaults.solves_frozen,
            depends_on_size=bool(defaults.by_data_size),
            given=frozenset(settings),
        )
        if resolved.solves and train.epochs != 1:
            length = next(name for name in Train.LENGTHS if getattr(train, name))
            raise UsageError(f"{start.name} solves for its classifier in one step: leave out --{length}")
        return resolved

    def fit_to_examples(self, examples: Examples) -> Self:
        """These settings with the defaults for these examples and their number; what was given stays."""
        fitted = self.system.finetuning_policy.fit_to_size(len(examples)) if self.depends_on_size else {}
        kept = self.given | ({"epochs"} if self.given & {"steps", "minutes"} else set())
        train = replace(self.train, **{name: fitted[name] for name in fitted.keys() - kept})
        return replace(self, train=train, head=self.task.fit_head(self.head, self.system, examples, self.given))

    @property
    def solves(self) -> bool:
        """Whether the classifier is solved for instead of trained by gradients."""
        return self.solves_frozen or (self.system.finetuning_policy.solves and not self._by_gradients)

    @property
    def _by_gradients(self) -> bool:
        return self.freeze or self.has_network or not self.task.labels_texts

    def default_dev(self, examples: Examples, labels: Labels, runs: int) -> str:
        """Validation examples by default: a share, or none if training yields scores and nothing else needs them."""
        if runs > 1 or self.head.tuned_on_dev or (self._by_gradients and not self.solves_frozen):
            return "10%"
        texts = len(set(examples.text_keys()))
        if self.solves_frozen:
            cross_validated = isinstance(labels.kind, SingleLabel) and 2 <= texts < HELD_OUT_FROM
        else:
            cross_validated = self.system.finetuning_policy.cross_validates(labels.kind, texts)
        return "none" if cross_validated else "10%"

    @property
    def recipe(self) -> dict[str, Any]:
        """The settings of task and head, for the model card and to compare runs on resume."""
        given = {"task": self.task.name, "freeze": self.freeze, "from_scratch": self.from_scratch}
        return {**given, **self.head.non_default()}

    def starting_model(
        self, examples: Examples, labels: Labels, report: OnEvent, *, largest: Examples | None = None
    ) -> tuple[Model, Labels]:
        """The model to fine-tune, and the labels with the tokenizer of generated text, if there is one.

        A new model has room for the n-grams of `largest`, where some run reads more than `examples`.
        """
        policy = self.system.finetuning_policy
        frozen = self.freeze or self.has_network
        system = policy.adapt_system(labels.kind, labels_texts=self.task.labels_texts, frozen=frozen)
        labels, parent = replace(labels, counts=examples.label_counts), self.parent
        if parent is None:
            parent, target = _new_model(system, self.task, examples, largest, self.text, self.train.seed, report)
            system, labels = parent.system, replace(labels, tokenizer=target)
        else:
            if not isinstance(labels.kind, TextTarget):  # for text, unknown tokens are reported one by one
                warn_unknown_tokens(parent.unknown_share(examples), examples.source, parent, report)
            if isinstance(parent.task, self.task):
                labels = replace(labels, tokenizer=parent.task.labels.tokenizer)
        return adapt_model(system, parent, self.train.seed), labels


def _head_defaults(
    task: type[Task], start: System, settings: Mapping[str, Any], *, freeze: bool, has_network: bool
) -> HeadSettings:
    """The system's defaults for the head."""
    lm_loss = 0.0
    if not freeze and not has_network and not settings.get("mix") and "lm_loss" in task.head_fields:
        lm_loss = start.finetuning_policy.head_defaults().get("lm_loss", 0.0)
    mix = start.feature_based and "mix" in task.head_fields and not settings.get("lm_loss")
    pair_encoding = "default"
    if "pair_encoding" in task.head_fields and "orders" not in settings:
        frozen_features = freeze and not isinstance(start, CountBased)
        pair_encoding = "siamese" if frozen_features else start.default_pair_encoding
    pooled = freeze and not has_network and "pool" in task.head_fields
    pool = start.default_frozen_pool if pooled else "default"
    return HeadSettings(pool=pool, mix=mix, lm_loss=lm_loss, pair_encoding=pair_encoding, **task.default_head(start))


def _sentence_pooling(
    defaults: HeadSettings, parent: Model, task: type[Task], settings: Mapping[str, Any], on_event: OnEvent
) -> HeadSettings:
    """The head reads the sentence embedding that a sentence-transformers folder defines, unless a pooling is given."""
    pooling = parent.sentence_pooling
    if pooling is None or "pool" in settings or "pool" not in task.head_fields:
        return defaults
    what = f"{parent.card.title} is a sentence-transformers model: its sentence embedding is classified"
    note(on_event, f"{what} (--pool {pooling.pool}); --pool default for the pooled output of {parent.system.name}")
    if pooling.lowercase and not parent.tokenizer.lowercase:
        note(
            on_event,
            f"{parent.card.title} lowercases the texts of embeddings, and fine-tuning does not: lowercase them",
        )
    return replace(defaults, pool=pooling.pool, normalize=pooling.normalize)


def _new_model(
    system: System,
    task: type[Task],
    examples: Examples,
    largest: Examples | None,
    text: VocabularySettings,
    seed: int,
    report: OnEvent,
) -> tuple[Model, Tokenizer | None]:
    """A model without weights whose tokenizer is trained on the examples, and the tokenizer of generated text."""

    def learn(texts: list[str], default: str) -> Tokenizer:
        kind: Any = default if text.tokenizer == "auto" else text.tokenizer
        size, min_count = text.vocabulary or system.default_vocab_size, 0 if kind == "bpe" else 1
        settings = TokenizerSettings(kind=kind, vocab_size=size, min_count=min_count, seed=seed)
        return train_tokenizer(Corpus.of(texts), settings, report)

    choice = report if text.tokenizer == "auto" else ignore  # an explicit choice needs no note
    tokenizer, target = task.train_tokenizers(system, examples, learn, separate=text.separate, on_event=choice)
    tokenizer = system.finetuning_policy.extend_new_tokenizer(tokenizer)
    read = largest or examples
    texts = [f"{one} {two}" for one, two in zip(read.texts, read.seconds or [], strict=False)] or read.texts
    system = system.finetuning_policy.fit_to_texts(texts, tokenizer)
    with meta_device():
        model = Model(system=system, encoder=system.build_encoder(len(tokenizer)), tokenizer=tokenizer)
    return model, target


def adapt_model(system: System, parent: Model, seed: int) -> Model:
    """The parent with the task's settings and embeddings of its special tokens; other weights are the parent's."""
    tokenizer = system.finetuning_policy.extend_tokenizer(parent.tokenizer)
    if system == parent.system and tokenizer is parent.tokenizer:
        return parent
    vocab_size = max(parent.encoder.vocab_size, len(tokenizer))
    with meta_device():
        encoder = system.build_encoder(vocab_size)
    shapes = {name: tensor.shape for name, tensor in encoder.state_dict().items()}
    old_weights = parent.encoder.state_dict()
    weights = {name: tensor for name, tensor in old_weights.items() if tensor.shape == shapes[name]}
    resized = (torch.Size([parent.encoder.vocab_size]), torch.Size([vocab_size]))
    if weights.keys() != shapes.keys() and next(parent.encoder.parameters()).device.type != "meta":
        torch.manual_seed(derive_seed(seed, "marks"))  # the same on resume
        encoder = system.build_encoder(vocab_size).to(parent.device)
        for name, new in encoder.state_dict().items():
            old = old_weights[name]
            if name not in weights and (old.shape[:1], new.shape[:1]) == resized and old.shape[1:] == new.shape[1:]:
                weights[name] = torch.cat([old, new[len(old) :]])
    encoder.load_state_dict(weights, strict=False, assign=True)
    return replace(parent, system=system, encoder=encoder, tokenizer=tokenizer)


@dataclass(frozen=True)
class LabelledData:
    """The datasets of a run, and the labels of all training examples."""

    everything: Examples
    """The training examples before any are held out."""
    train: Examples
    dev: Examples | None
    test: Examples | None
    labels: Labels

    @classmethod
    def read(
        cls,
        task: type[Task],
        columns: Columns,
        data: Source,
        dev: Source | DefaultDev,
        test: Source | None = None,
        *,
        folds: bool = False,
        clean: bool = False,
        seed: int,
        on_event: OnEvent,
    ) -> Self:
        """Read and check all datasets; problems that `keel check` would find are reported before training.

        `dev` may be a function of the training examples and their labels.
        """
        everything = task.read_labelled(data, columns, on_event)
        if clean:
            cleaned = clean_examples(everything)
            everything = cleaned.examples
            note(on_event, f"{everything.source}: {cleaned}")
        labels = task.label_schema(everything)
        _report(label_findings(everything, None), on_event)

        def read_scored(source: Source) -> Examples:
            examples = task.read_labelled(source, columns, on_event)
            return match_labels(examples, labels.names) if clean else examples

        held: Source = dev(everything, labels) if callable(dev) else dev
        shared = _share(held)
        train, held_out = everything, None
        if shared:
            train, held_out = _split_dev(everything, shared, held, seed, on_event)
        elif held is not None and not (isinstance(held, str) and held == "none"):
            held_out = read_scored(held)
        tested = None if test is None else read_scored(test)
        files = [everything, None if shared else held_out, tested]
        _report(findings_between([each for each in files if each]), on_event)
        for examples in (held_out, tested, everything if folds else None):
            if examples is not None:
                task.check_scorable(examples, labels)
        return cls(everything, train, held_out, tested, labels)


def _report(findings: Iterable[Finding], on_event: OnEvent) -> None:
    for finding in findings:
        note(on_event, f"{finding.where}: {finding.cause}{finding.remedy and f': {finding.remedy}'}")


def _share(dev: Source) -> float:
    """The share of a --dev such as 10%; 0 for anything else."""
    if not (isinstance(dev, str) and dev.endswith("%")):
        return 0.0
    try:
        share = float(dev[:-1]) / 100
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise UsageError(f"--dev must be a file or a share between 0% and 100% such as 10%, not {dev}")
    return share


def _split_dev(
    examples: Examples, share: float, dev: str, seed: int, on_event: OnEvent
) -> tuple[Examples, Examples | None]:
    """Training and validation examples, stratified by label; duplicates are on one side."""
    train, held_out = split_validation(examples, share, seed)
    if not held_out:
        note(on_event, "no examples are held out as dev, as each has a label of its own: give a file with --dev")
        return train, None
    what = f"{len(held_out):,} of {len(examples):,} examples are held out as dev"
    note(on_event, f"{what} ({dev}, seed {seed}; change with --dev)")
    if not {*held_out.text_keys()}.isdisjoint(train.text_keys()):
        what = "too few different texts: the same ones are in training and dev"
        note(on_event, f"{examples.source}: {what}, whose scores measure memorisation: give a file with --dev")
    return train, held_out
