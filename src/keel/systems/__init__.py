"""The lineage, one file each, in the order of history; a saved name becomes a class here and nowhere else."""

from keel.systems.base import System
from keel.systems.bert import Bert

SYSTEMS: dict[str, type[System]] = {"bert": Bert}
