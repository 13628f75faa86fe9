"""Predicted answers as the official scorers of SQuAD and CMRC 2018 read them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keel.data.examples import Examples
from keel.data.predictions import AnswerPredictions
from keel.errors import KeelError, UsageError
from keel.events import OnEvent, note, pluralize
from keel.training.checkpoint import write_json

PREDICTIONS, N_BEST, NULL_ODDS = "predictions.json", "nbest_predictions.json", "null_odds.json"


def check_answers_folder(folder: Path) -> None:
    """Refuse the name of a file, such as predictions.json: there are three."""
    if folder.suffix in (".json", ".jsonl", ".csv", ".tsv", ".txt", ".parquet", ".xlsx") and not folder.is_dir():
        raise UsageError(
            f"--out {folder} is the name of a file, and answers are written to a folder ({PREDICTIONS}, {N_BEST}, "
            f"{NULL_ODDS}): name a folder, such as --out {folder.with_suffix('')}"
        )


def question_ids(examples: Examples) -> list[str]:
    """The id of each question, its index where it has none; two questions with the same id are refused."""
    first: dict[str, str] = {}
    for index, example in enumerate(examples):
        id = example.id or str(index)
        if id in first:
            what = f"{example.location}: the id {id!r} is also that of {first[id]}"
            raise KeelError(f"{what}: the files of --out need different ids")
        first[id] = example.location
    return [*first]


def write_answers(folder: Path, ids: Sequence[str], predictions: AnswerPredictions, on_event: OnEvent) -> None:
    """Write the answer, the best spans and the odds of no answer of each question, by its id."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise KeelError(f"{folder} cannot be written to ({error.strerror}): choose another --out") from None
    files: dict[str, dict[str, Any]] = {PREDICTIONS: {}, N_BEST: {}, NULL_ODDS: {}}
    for id, answer in zip(ids, predictions.answers, strict=True):
        files[PREDICTIONS][id] = answer.text
        files[N_BEST][id] = [{"text": each.text, **each.to_dict()} for each in answer.alternatives]
        files[NULL_ODDS][id] = answer.null_odds
    for name, content in files.items():
        write_json(folder / name, content, indent=1)
    note(on_event, f"{folder}: answers to {pluralize(len(ids), 'question')} in {', '.join(files)}")
