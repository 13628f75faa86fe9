"""A decoding trace as plain data: the candidates of each step, which were chosen, and why."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from keel.data.tokenizer import Tokenizer
from keel.generation.beam_search import BeamSearch
from keel.generation.decoding_trace import DecodingTrace, TraceNode
from keel.generation.sampling import Sampling


def decoding_data(
    trace: DecodingTrace,
    tokenizer: Tokenizer,
    strategy: Sampling | BeamSearch,
    *,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[dict[str, Any]]],
    written: Sequence[Sequence[int]] | None = None,
    sources: Sequence[Sequence[str]] | None = None,
) -> dict[str, Any]:
    """Convert a trace for JSON: {"strategy", "settings", "texts", "steps"}.

    `answers` are the results for each prompt, best first, each with its "text"; `written` the ids of each best one
    (needed for beam search); `sources` the tokens of the source texts. Each text has its "hypotheses", all candidates
    with the index of their parent (-1: the prompt), and its "path", the indices of those behind the best answer.
    """
    texts: list[dict[str, Any]] = []
    for number, prompt in enumerate(prompts):
        nodes = trace.nodes.get(number, [])
        tokens = readable_tokens(tokenizer, [node.id for node in nodes])
        texts.append(
            {
                "source": None if sources is None else [*sources[number]],
                "prompt": readable_tokens(tokenizer, prompt),
                "answers": [*answers[number]],
                "path": _best_path(nodes, None if written is None else written[number]),
                "hypotheses": [{"token": token, **vars(node)} for token, node in zip(tokens, nodes, strict=True)],
            }
        )
    beam = isinstance(strategy, BeamSearch)
    name = "beam search" if beam else "sampling" if strategy.temperature else "greedy"
    steps = [asdict(cost) for cost in trace.costs]
    return {"strategy": name, "settings": asdict(strategy), "texts": texts, "steps": steps}


def readable_tokens(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Each id as text, special tokens by name."""
    special = set(tokenizer.special_ids)
    return [(each not in special and tokenizer.decode([each])) or tokenizer.token_of(each) for each in ids]


def _best_path(nodes: list[TraceNode], written: Sequence[int] | None) -> list[int]:
    """Indices of the hypotheses along these ids; without ids, of all that were not dropped."""
    alive = [index for index, node in enumerate(nodes) if node.outcome != "dropped"]
    if written is None:
        return alive
    steps = {(nodes[index].parent, nodes[index].id): index for index in alive}
    path: list[int] = []
    for id in written:
        path.append(steps[path[-1] if path else -1, id])
    return path
