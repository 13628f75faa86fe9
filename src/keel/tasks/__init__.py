"""Tasks by name: the one place where a task's name becomes a class."""

from keel.tasks.answer import SpanAnswering
from keel.tasks.choose import MultipleChoice
from keel.tasks.classify import TextClassification
from keel.tasks.pair import PairClassification
from keel.tasks.sequence_to_sequence import SequenceToSequence
from keel.tasks.tag import TokenClassification
from keel.tasks.task import Task

TASKS: dict[str, type[Task]] = {
    "classify": TextClassification,
    "pair": PairClassification,
    "tag": TokenClassification,
    "choose": MultipleChoice,
    "answer": SpanAnswering,
    "seq2seq": SequenceToSequence,
}
