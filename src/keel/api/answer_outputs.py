"""Predicted answers as the official scorers of SQuAD and CMRC 2018 read them."""

import json
from pathlib import Path
from typing import Any

from keel.data.examples import Examples
from keel.data.predictions import AnswerPredictions
from keel.errors import KeelError
from keel.events import OnEvent, note

PREDICTIONS, N_BEST, NULL_ODDS = "predictions.json", "nbest_predictions.json", "null_odds.json"


def write_answers(folder: Path, examples: Examples, predictions: AnswerPredictions, on_event: OnEvent) -> None:
    """Write the answer, the best spans and the odds of no answer of each question, by its id or its index."""
    ids = [example.id or str(index) for index, example in enumerate(examples)]
    if len({*ids}) < len(ids):
        raise KeelError(f"{examples.source}: two questions have the same id: the files of --out need different ones")
    files: dict[str, dict[str, Any]] = {PREDICTIONS: {}, N_BEST: {}, NULL_ODDS: {}}
    for number, answer in zip(ids, predictions.answers, strict=True):
        files[PREDICTIONS][number] = answer.text
        files[N_BEST][number] = [{"text": each.text, **each.to_dict()} for each in answer.alternatives]
        files[NULL_ODDS][number] = answer.null_odds
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
    except OSError as error:
        raise KeelError(f"{folder} cannot be written to ({error.strerror}): choose another --out") from None
    note(on_event, f"{folder}: {', '.join(files)} for {len(ids):,} questions")
