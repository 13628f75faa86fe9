"""How a text was written, as plain data: which words were considered at each step, which were taken and why."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from keel.data.tokenizer import Tokenizer
from keel.generation.beam_search import BeamSearch
from keel.generation.decoding_trace import Node, Trace
from keel.generation.sampling import Sampling


def decoding(
    trace: Trace,
    tokenizer: Tokenizer,
    how: Sampling | BeamSearch,
    *,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[dict[str, Any]]],
    written: Sequence[Sequence[int]] | None = None,
    sources: Sequence[Sequence[str]] | None = None,
) -> dict[str, Any]:
    """What a trace has seen, for JSON: {"by", "how", "texts", "steps"}.

    `answers` are those to each prompt, the best first, each with its "text"; `written` the ids of each best one, which
    a search must say; `sources` the words of the texts that they were written from. Of each text there are its
    "hypotheses", all that were considered, each with the number of the one that it goes on from (-1: the prompt), and
    its "path", the numbers of those that the best answer went through.
    """
    found: list[dict[str, Any]] = []
    for number, prompt in enumerate(prompts):
        nodes = trace.nodes.get(number, [])
        words = spelled(tokenizer, [node.id for node in nodes])
        found.append(
            {
                "source": None if sources is None else [*sources[number]],
                "prompt": spelled(tokenizer, prompt),
                "answers": [*answers[number]],
                "path": _path(nodes, None if written is None else written[number]),
                "hypotheses": [_plain(node, nodes, word) for node, word in zip(nodes, words, strict=True)],
            }
        )
    searched = isinstance(how, BeamSearch)
    return {
        "by": "beam search" if searched else "drawing" if how.temperature else "the likeliest word",
        "how": asdict(how),
        "texts": found,
        "steps": [asdict(use) for use in trace.uses],
    }


def spelled(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Each id as text of its own, marks by their names."""
    special = set(tokenizer.special_ids)
    return [(each not in special and tokenizer.decode([each])) or tokenizer.token_of(each) for each in ids]


def _plain(node: Node, nodes: list[Node], word: str) -> dict[str, Any]:
    before = nodes[node.parent].sum if node.parent >= 0 else 0.0
    return {
        "step": node.step,
        "parent": node.parent,
        "id": node.id,
        "word": word,
        "chance": math.exp(node.sum - before),
        "log_probability": node.sum,
        "score": node.score,
        "fate": node.fate,
        "why": node.why,
        "looked": node.looked,
    }


def _path(nodes: list[Node], written: Sequence[int] | None) -> list[int]:
    """The hypotheses of which each is one of these ids longer; without any ids, the only ones that were not dropped."""
    taken = [number for number, node in enumerate(nodes) if node.fate != "dropped"]
    if written is None:
        return taken
    steps = {(nodes[number].parent, nodes[number].id): number for number in taken}
    path: list[int] = []
    for number in written:
        path.append(steps[path[-1] if path else -1, number])
    return path
