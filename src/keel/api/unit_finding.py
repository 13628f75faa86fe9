"""Masking units of a corpus, as text settings describe them: learned phrases, listed names, predicted entities."""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from keel.api.model_loading import load_model
from keel.api.settings import TextSettings
from keel.config import cache_folder
from keel.data.corpus import Corpus
from keel.data.corpus_snapshot import CorpusSnapshot
from keel.data.masking_units import LEVELS, MaskingUnits
from keel.data.term_matcher import TermMatcher
from keel.data.text_files import open_text
from keel.data.token_store import MOST_SHOWN, Tokens
from keel.errors import KeelError, UsageError
from keel.events import OnEvent, ignore, note, pluralize
from keel.model import Model
from keel.systems.ernie import Ernie
from keel.systems.system import System
from keel.tasks.tag import TokenClassification
from keel.training.checkpoint import atomic_file

PHRASES = "phrases.txt"
"""File in run/ with the phrases that were masked as a whole."""
PHRASE_RULES = 2
"""Version of the rules by which phrases are learned."""


class ModelTagger:
    """The entities that a tagging model predicts."""

    def __init__(self, model: Model, name: str):
        task = model.task
        if not isinstance(task, TokenClassification):
            what = f"a model for {task.name}" if task else "a model without a task"
            raise UsageError(f"the entity model {name} is {what}: give one that was fine-tuned with --task tag")
        if task.scheme == "none" or set(task.labels.names) <= {*"BMES"}:
            what = "a word segmentation" if task.scheme != "none" else "tags that are no entities"
            raise UsageError(f"the entity model {name} predicts {what}: give a model of entity tags, such as B-PER")
        self.model = model

    def find_entities(self, texts: list[str]) -> list[list[tuple[int, int]]]:
        """Without those of a single character, as `_read_names`."""
        found = [[(span.start, span.end) for span in tagged.entities] for tagged in self.model.predict(texts)]
        return [[(start, end) for start, end in spans if end - start > 1] for spans in found]

    def fingerprint(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for name, value in sorted(self.model.tensors().items()):
            digest.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
        digest.update(repr((self.model.label_names, self.model.tokenizer.fingerprint())).encode())
        return digest.hexdigest()


def listed_units(text: TextSettings, device: str, on_event: OnEvent = ignore) -> MaskingUnits:
    """The units that text settings name: a file of entities, and a model that finds them."""
    entities = _read_names(text.entities, on_event) if text.entities else None
    tagger = None
    if text.entity_model:
        tagger = ModelTagger(load_model(text.entity_model, on_event).to(device), text.entity_model)
    return MaskingUnits(entities=entities, tagger=tagger)


def _read_names(path: str, on_event: OnEvent) -> TermMatcher:
    """The names of a file. A single character is masked as a whole at any level, and would only divide the words that
    contain it."""
    names = TermMatcher.read(path)
    if not (short := [name for name in names.terms if len(name) == 1]):
        return names
    if len(short) == len(names):
        raise KeelError(f"{path} lists single characters only: write one name of several characters per line")
    listed = ", ".join(short[:MOST_SHOWN]) + (", ..." if len(short) > MOST_SHOWN else "")
    note(on_event, f"{path}: {pluralize(len(short), 'name')} of a single character left out: {listed}")
    return TermMatcher(name for name in names.terms if len(name) > 1)


def read_units(phrases: str | Path, entities: str | Path, entity_model: str | Path, on_event: OnEvent) -> MaskingUnits:
    """Units by files of phrases and entities and by a tagging model, each of them "" for none."""
    text = TextSettings(entities=str(entities), entity_model=str(entity_model))
    units = listed_units(text, "auto", on_event)
    return replace(units, phrases=TermMatcher.read(phrases, ignore_case=True)) if phrases else units


def recorded_units(model: Model, folder: Path | None) -> dict[str, str]:
    """The files and the model that the units of a model's pre-training came from, by the names of the settings."""
    text = model.card.recipe.get("text", {})
    sources = {name: str(text.get(name, "")) for name in ("entities", "entity_model")}
    if text.get("phrases"):
        sources["phrases"] = str((folder or Path()) / "run" / PHRASES)
    return {name: source for name, source in sources.items() if source}


def describe_entities(text: TextSettings) -> str:
    """Where the entities come from, in words."""
    sources = [f"the names of {text.entities}"] if text.entities else []
    sources += [f"the entities that {text.entity_model} predicts"] if text.entity_model else []
    return " and ".join(sources) or "no entities"


def with_phrases(units: MaskingUnits, corpus: Corpus, passes: int, on_event: OnEvent = ignore) -> MaskingUnits:
    """The units with the phrases of a corpus; those that were learned before are in the cache."""
    return (
        replace(units, phrases=TermMatcher(_phrases(corpus, passes, on_event), ignore_case=True)) if passes else units
    )


def _phrases(corpus: Corpus, passes: int, on_event: OnEvent) -> list[str]:
    snapshot = CorpusSnapshot.of(corpus)
    key = hashlib.blake2b(f"{PHRASE_RULES} {passes} {snapshot.fingerprint}".encode(), digest_size=16).hexdigest()
    stored = cache_folder() / "phrases" / f"{key}.txt"
    if not stored.exists():
        from keel.data.word_vocabulary import learn_phrase_list  # imports Numba

        found = learn_phrase_list(corpus, passes, on_event)
        snapshot.require_unchanged()
        with atomic_file(stored) as file:
            file.write("".join(f"{phrase}\n" for phrase in found).encode("utf-8", "surrogatepass"))
    return open_text(stored, "utf-8").lines()


def report_units(tokens: Tokens, units: MaskingUnits, system: System, run: Path | None, on_event: OnEvent) -> None:
    """Note how long units are, which names never occur and which levels have no effect; store the phrases in run/."""
    lengths = tokens.unit_lengths()
    means = ", ".join(f"{length:.2f} ({name})" for name, length in zip(LEVELS, lengths, strict=True))
    note(on_event, f"masking units: mean length in tokens {means}")
    assert isinstance(system, Ernie)
    for message in _ineffective(tokens, units, system):
        note(on_event, message)
    if units.entities:
        count, first = tokens.missing_names
        listed = ", ".join(first) + (", ..." if count > len(first) else "")
        if count:
            what = f"{count:,} of {pluralize(len(units.entities), 'entity name')} not found in the text: {listed}"
            note(on_event, what + (" (is it the right file?)" if count == len(units.entities) else ""))
    if units.phrases and run and not (run / PHRASES).exists():
        with atomic_file(run / PHRASES) as file:
            file.write("".join(f"{phrase}\n" for phrase in units.phrases.terms).encode("utf-8", "surrogatepass"))


def _ineffective(tokens: Tokens, units: MaskingUnits, system: Ernie) -> Iterator[str]:
    """Levels that mask the units of another level, and units that no level masks."""
    _, phrases, entities = system.level_shares
    has_entities = bool(units.entities or units.tagger)
    if has_entities and not entities:
        yield "the entities are never masked as a whole, since entity_share is 0: raise it"
    elif has_entities and tokens.levels_equal(1, 2):
        yield "no entity differs from the words and phrases of the text: the entity level masks those"
    elif entities and not has_entities:
        masked = "phrases" if units.phrases else "words"
        yield f"no entities are given (--text.entities, --text.entity_model): the entity level masks {masked}"
    if units.phrases and not phrases + entities:
        yield "the phrases are never masked as a whole, since phrase_share and entity_share are 0: raise one of them"
    elif phrases and not units.phrases:
        yield "no phrases are given (--text.phrases): the phrase level masks words"
