"""Who can read a model folder: the class of transformers that gives the same outputs, where there is one."""

from keel.data.label_kinds import LABEL_KINDS, TextTarget
from keel.formats.architectures import architecture_of
from keel.formats.folder_architecture import CLASSIFIER, MULTIPLE_CHOICE, QUESTION_ANSWERING, TAGGING, WORD_HEAD
from keel.formats.stored_model import CLASS_SUFFIXES, LABEL_COUNTS, StoredModel, class_suffix

KEEL_TYPE = "keel-"
"""Prefix of a `model_type` whose task only Keel can load: transformers would add a random head to the encoder."""
DECISIONS = {"temperature": "logits", "threshold": "probabilities", "null_threshold": "null odds"}
"""Fields of a task that say how labels follow from logits, which are those of transformers, and what they apply to."""
STANDARD_TASK = {"name", "kind", LABEL_COUNTS, "lm_loss", *DECISIONS}
"""Fields of a task whose head is a linear layer, as in transformers' classes."""
PIPELINE_TAGS = {
    TAGGING: "token-classification",
    MULTIPLE_CHOICE: "multiple-choice",
    QUESTION_ANSWERING: "question-answering",
    CLASSIFIER: "text-classification",
    WORD_HEAD: "fill-mask",
}
"""Hugging Face's names for what a model with such a part is for."""


def class_of(stored: StoredModel) -> str:
    """The first of Hugging Face's classes that the model has all parts of."""
    architecture = architecture_of(stored.system)
    parts = architecture.parts_of(stored.tensors) - architecture.untrained(stored.system)
    kind = LABEL_KINDS.get(stored.task.get("kind", ""))
    suffix = CLASS_SUFFIXES.get(kind() if kind else stored.label_kind, "")
    if not stored.task.keys() <= STANDARD_TASK:
        parts -= {CLASSIFIER}
    classes = {name: needed for name, needed in architecture.classes.items() if class_suffix(name) == suffix}
    return next((name for name, needed in classes.items() if needed <= parts), architecture.bare)


def model_type_of(stored: StoredModel) -> str:
    """The `model_type` to write: one that transformers does not know if it cannot reproduce the model."""
    architecture = architecture_of(stored.system)
    known = not architecture.in_transformers or _has_whole_task(stored)
    return architecture.model_type if known else f"{KEEL_TYPE}{architecture.model_type}"


def pipeline_tag(stored: StoredModel) -> str:
    """Hugging Face's name for what the model is for."""
    if stored.task.get("kind") == TextTarget.name:
        return "text2text-generation"
    named = class_of(stored)
    held = {*architecture_of(stored.system).classes[named], class_suffix(named)}
    default = "text-generation" if named.endswith("LMHeadModel") and not stored.task else "feature-extraction"
    return next((tag for part, tag in PIPELINE_TAGS.items() if part in held), default)


def auto_classes(stored: StoredModel) -> list[str]:
    """The `Auto` classes of transformers that load the model with equal outputs; none if they lack its task."""
    architecture, named = architecture_of(stored.system), class_of(stored)
    if not architecture.in_transformers or not _has_whole_task(stored):
        return []
    parts = architecture.classes[named]
    able = [name for name, needed in architecture.classes.items() if needed <= parts and CLASSIFIER not in needed]
    return [f"AutoModel{_suffix(name)}" for name in dict.fromkeys([named, *able])]


def describe_readers(stored: StoredModel) -> str:
    """A sentence for the model card: who reads the folder with equal outputs."""
    architecture, system = architecture_of(stored.system), stored.system.name
    if classes := auto_classes(stored):
        names = ", ".join(f"`{name}`" for name in classes)
        sentence = f"`keel.Model.load` and transformers ({names}) read this folder with equal outputs."
        found = {name: of for name, of in DECISIONS.items() if name in stored.task}
        if tuned := [f"{name} {stored.task[name]:g} to the {of}" for name, of in found.items()]:
            sentence += f" Only Keel applies {' and '.join(tuned)}."
    elif architecture.in_transformers:
        sentence = "Only `keel.Model.load` reads this folder, as transformers has no class with this task head;"
        sentence += f" the encoder alone loads by `transformers.{architecture.bare}.from_pretrained`."
    else:
        sentence = f"Only `keel.Model.load` reads this folder, as transformers has no such {system}."
    if stored.tokenizer.extra_rules and architecture.in_transformers:
        sentence += " `AutoTokenizer` does not segment Chinese words or join phrases: tokenize with `keel.Model.load`."
    return sentence


def _has_whole_task(stored: StoredModel) -> bool:
    """Whether the class holds the classifier, if the model has a task."""
    return not stored.task or CLASSIFIER in architecture_of(stored.system).classes[class_of(stored)]


def _suffix(name: str) -> str:
    """What a class does, after the name of its architecture."""
    if name.endswith("LMHeadModel"):
        return "ForCausalLM"
    return name[name.index("For") :] if "For" in name else ""
