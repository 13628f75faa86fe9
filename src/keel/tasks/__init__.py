"""What can be learned from labels; a task's name becomes a class here and nowhere else."""

from keel.tasks.choose import MultipleChoice
from keel.tasks.classify import Classify
from keel.tasks.pair import Pair
from keel.tasks.sequence_to_sequence import SequenceToSequence
from keel.tasks.tag import Tag
from keel.tasks.task import Task

TASKS: dict[str, type[Task]] = {
    "classify": Classify,
    "pair": Pair,
    "tag": Tag,
    "choose": MultipleChoice,
    "rewrite": SequenceToSequence,
}
