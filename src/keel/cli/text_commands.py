"""Commands on plain text that need no model: segment."""

import json
from argparse import Namespace
from collections.abc import Iterator

from keel.api import inference
from keel.cli.command import Answer, argument, command, device_flags, encoding_flag, lines_of, load, model_flag
from keel.report.console import Console


@command(
    "use",
    "TEXT",
    argument("text", "TEXT", "A Chinese text, a file with one per line, or - for stdin."),
    model_flag("A model that was fine-tuned to segment (--task tag); default: jieba's dictionary."),
    encoding_flag,
    device_flags,
)
def segment(options: Namespace, console: Console) -> Answer:
    """Segment Chinese text into words."""
    model = load(options, console) if options.model else None

    def lines() -> Iterator[str]:
        for text in lines_of(options, console):
            words = inference.segment(text, model=model, on_event=console) if text.strip() else []
            yield json.dumps({"text": text, "words": words}, ensure_ascii=False) if options.json else " ".join(words)

    return Answer(lines=lines())
