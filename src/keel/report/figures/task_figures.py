"""Task heads: BERT's, the inputs of GPT, and families of tasks."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import nn

from keel.errors import UsageError
from keel.model import Model
from keel.report.diagram import Area, Diagram, centered, fitted_width, label_width
from keel.report.figures.figure import Figure
from keel.systems import SYSTEMS
from keel.systems.bert import Bert
from keel.systems.gpt import TASK_TOKENS, Gpt
from keel.systems.modernbert import ModernBert
from keel.systems.system import supports

PANEL, GAP = 330.0, 34.0
"""Width of a panel, and the distance of two."""


class Head(NamedTuple):
    """A task head: its input, the positions that it reads, and its output."""

    title: str
    task: str
    examples: str
    tokens: str
    reads: Sequence[int]
    output: str
    """Label above the head."""
    outputs: int
    """Columns of the head's matrix; 0: the vocabulary."""


HEADS = (
    Head("Single text → class", "classify", "sentiment, topic", "[CLS] w1 w2 w3 [SEP]", (0,), "class", 2),
    Head("Text pair → class", "pair", "entailment, paraphrase", "[CLS] a1 a2 [SEP] b1 b2 [SEP]", (0,), "class", 3),
    Head("Each token → tag", "tag", "entities, parts of speech", "[CLS] w1 w2 w3 [SEP]", (1, 2, 3), "tags", 9),
    Head(
        "Question and passage → span", "answer", "reading comprehension",
        "[CLS] q1 q2 [SEP] p1 p2 p3 [SEP]", (4, 5, 6), "start, end", 2,
    ),
    Head(
        "Question and answers → answer", "choose", "one sequence per answer",
        "[CLS] q1 q2 [SEP] a1 a2 [SEP]", (0,), "score", 1,
    ),
    Head("Masked token → word", "pretrain", "masked language model", "[CLS] w1 [MASK] w3 [SEP]", (2,), "word", 0),
)  # fmt: skip
SUBSCRIPTS = str.maketrans("123456789", "₁₂₃₄₅₆₇₈₉")


def draw_heads(model: Model | None = None) -> Figure:
    """Heads of all tasks on BERT; a fine-tuned model's own with its labels."""
    system = Bert() if model is None else model.system
    if not isinstance(system, Bert) or isinstance(system, ModernBert):
        what = f"figure heads shows models of bert and electra, and this is a {system.name}"
        raise UsageError(f"{what}: choose another one, or the figure gpt-inputs")
    vocab_size = 30_522 if model is None else model.encoder.vocab_size
    diagram = Diagram()
    numbers: dict[str, object] = {"layers": system.layers, "width": system.width, "heads": system.heads}
    for number, head in enumerate(HEADS):
        own = model.task if model is not None and model.task and model.task.name == head.task else None
        classifier = getattr(own, "classifier", None)
        inputs, outputs = system.width, head.outputs
        if isinstance(classifier, nn.Linear):
            inputs, outputs = classifier.in_features, classifier.out_features
        weights = inputs * outputs + outputs
        shape = f"linear {inputs} × {outputs}"
        if not outputs:
            # A dense layer, a layer norm and a bias; the matrix of words is that of the embeddings.
            width = system.embedding_width
            weights = system.width * width + width + 2 * width + vocab_size
            shape = f"tied {width} × {vocab_size:,}"
        numbers[f"{head.task} head parameters"] = weights
        left, top = (PANEL + GAP) * (number % 2), 284.0 * (number // 2)
        _head_panel(diagram, head, left, top, system.name.upper(), shape, weights, own=own is not None)
    name = "BERT-base" if model is None else model.title
    pooler = system.width * system.width + system.width
    numbers["pooler parameters"] = pooler
    return Figure(
        title=f"Task heads on {name}",
        caption=(
            f"Every task is one linear layer on the same encoder ({system.layers} layers, width {system.width}): on "
            f"the pooled output of [CLS] (a tanh layer of {pooler:,} parameters) for texts and pairs, on the vectors "
            "of tokens for tags and spans. The masked language model is the head of pre-training."
        ),
        picture=diagram.picture(f"Task heads on {name}"),
        numbers=numbers,
    )


def _head_panel(
    diagram: Diagram, head: Head, left: float, top: float, system: str, shape: str, weights: int, *, own: bool
) -> None:
    diagram.label(head.title, left, top, anchor="start", size="heading", colour="accent" if own else "")
    diagram.label(f"{head.task}: {head.examples}", left, top + 21, anchor="start", size="small", colour="faint")
    tokens = head.tokens.split()
    step = PANEL / len(tokens)
    xs = [left + step * (number + 0.5) for number in range(len(tokens))]
    bottom, body = top + 234, top + 180
    encoder = diagram.box(Area(left, body - 17, PANEL, 34), system, kind="node tint0")
    for number, (x, token) in enumerate(zip(xs, tokens, strict=True)):
        special = token.startswith("[")
        name = token if special else token.translate(SUBSCRIPTS)
        area = centered(x, bottom, min(step - 4, 46), 24)
        diagram.box(area, name, kind="node" if special else "node tint2", size="small")
        diagram.arrow(area.above, (x, encoder.bottom))
        read = number in head.reads
        cell = Area(x - 7, encoder.top - 38, 14, 22)
        diagram.cells(cell, 3, 1, kind="cell tint1" if read else "cell")
        diagram.arrow((x, encoder.top), cell.below, tip=False, kind="wire" if read else "wire weak")
    first, last = xs[head.reads[0]], xs[head.reads[-1]]
    text = f"{shape}: {weights:,} parameters"
    width = max(last - first + 40, fitted_width(text, size="small"))
    middle = min(max((first + last) / 2, left + width / 2), left + PANEL - width / 2)
    box = diagram.box(centered(middle, encoder.top - 76, width, 28), text, kind="node tint1", size="small")
    for number in head.reads:
        diagram.arrow((xs[number], encoder.top - 38), (xs[number], box.bottom))
    for number in head.reads:
        diagram.arrow((xs[number], box.top), (xs[number], box.top - 18))
    diagram.label(head.output, middle if len(head.reads) > 1 else first, box.top - 28)


class Template(NamedTuple):
    """A task of GPT: sequences of special tokens and texts, and how their outputs are combined."""

    title: str
    sequences: Sequence[Sequence[str]]
    combined: str = ""


def draw_gpt_inputs(model: Model | None = None) -> Figure:
    """The input templates of GPT's tasks (Radford et al. 2018, figure 1)."""
    system = Gpt.sized("gpt1") if model is None else model.system
    if not isinstance(system, Gpt):
        what = f"figure gpt-inputs shows models of gpt, and this is a {system.name}"
        raise UsageError(f"{what}: choose another one, or the figure heads")
    start, delimiter, extract = TASK_TOKENS

    def pair(one: str, other: str) -> Sequence[str]:
        return start, one, delimiter, other, extract

    templates = (
        Template("Classification", [(start, "Text", extract)]),
        Template("Entailment", [pair("Premise", "Hypothesis")]),
        Template("Similarity", [pair("Text 1", "Text 2"), pair("Text 2", "Text 1")], "+"),
        Template("Multiple choice", [pair("Context", f"Answer {number}") for number in "12N"], "softmax"),
    )
    diagram = Diagram()
    high, text_width = 28.0, 92.0
    widths = {token: fitted_width(token, size="small") for token in TASK_TOKENS}
    title_width = max(label_width(template.title) for template in templates) + 20
    shape = f"{system.layers} × {system.width}"
    body = max(label_width("Transformer"), label_width(shape, "small")) + 24
    full = 2 * text_width + sum(widths.values())
    y = 0.0
    for template in templates:
        ends: list[Area] = []
        first = y
        for sequence in template.sequences:
            x = title_width
            for part in sequence:
                width = widths.get(part, text_width)
                kind = "node" if part in widths else "node tint2"
                diagram.box(Area(x, y - high / 2, width, high), part, size="small" if part in widths else "", kind=kind)
                x += width
            network = Area(title_width + full + 26, y - 19, body, 38)
            diagram.box(network, "Transformer", note=shape, kind="node tint0")
            diagram.arrow((x, y), network.before)
            ends.append(network)
            y += 46
        middle = (first + y - 46) / 2
        diagram.label(template.title, 0, middle, anchor="start")
        right = ends[0].right + 26
        if template.combined == "+":
            plus = diagram.sum(right + 9, middle)
            for end in ends:
                diagram.arrow(end.after, (plus.x, end.y), plus.below if end.y > middle else plus.above)
            head = diagram.box(Area(plus.right + 22, middle - 14, 62, 28), "Linear", kind="node tint1")
            diagram.arrow(plus.after, head.before)
        else:
            heads = [diagram.box(Area(right, end.y - 14, 62, 28), "Linear", kind="node tint1") for end in ends]
            for end, head in zip(ends, heads, strict=True):
                diagram.arrow(end.after, head.before)
            if template.combined:
                last = diagram.box(Area(right + 88, middle - 14, 72, 28), template.combined)
                for head in heads:
                    diagram.arrow(head.after, last.before)
        y += 26
    return Figure(
        title="Task inputs of GPT",
        caption=(
            f"Every task is written as one sequence, or several, with the special tokens {', '.join(TASK_TOKENS)}; a "
            f"linear layer (width {system.width}) reads the vector at the last one. Similarity adds the vectors of "
            "both orders; multiple choice compares one score per answer."
        ),
        picture=diagram.picture("Task inputs of GPT"),
        numbers={"layers": system.layers, "width": system.width, "special tokens": list(TASK_TOKENS)},
    )


class Family(NamedTuple):
    """A family of tasks with the same shape of input and output."""

    title: str
    tasks: Sequence[str]
    inputs: Sequence[str]
    outputs: Sequence[str]
    examples: str


FAMILIES = (
    Family("Sequence labelling", ("tag",), ("w₁", "w₂", "w₃"), ("y₁", "y₂", "y₃"), "segmentation, entities"),
    Family("Classification", ("classify",), ("w₁", "w₂", "w₃"), ("y",), "sentiment, topic"),
    Family("Sentence relations", ("pair", "answer", "choose"), ("A", "B"), ("y",), "entailment, reading"),
    Family("Generation", ("seq2seq",), ("w₁", "w₂", "w₃"), ("v₁", "v₂", "v₃"), "translation, summarization"),
)  # fmt: skip


def draw_task_families() -> Figure:
    """Four families of tasks, and the systems that support them."""
    diagram = Diagram()
    systems = {name: kind() for name, kind in SYSTEMS.items()}
    tasks = [task for family in FAMILIES for task in family.tasks]
    support = {task: [name for name, system in systems.items() if supports(system, task)] for task in tasks}
    names = max(label_width(name) for name in systems) + 26
    width = max(fitted_width(family.examples, size="small") for family in FAMILIES) + 16
    columns: dict[str, float] = {}
    left = names
    for family in FAMILIES:
        middle = left + width / 2
        diagram.label(family.title, middle, 0, size="heading")
        diagram.label(family.examples, middle, 20, size="small", colour="faint")
        body = diagram.box(centered(middle, 100, 130, 30), "Network", kind="node tint0")
        for y, parts, kind in ((150.0, family.inputs, "node tint2"), (54.0, family.outputs, "node tint1")):
            for number, part in enumerate(parts):
                x = middle + 44 * (number - (len(parts) - 1) / 2)
                box = diagram.box(centered(x, y, 34, 24), part, kind=kind)
                if kind == "node tint2":
                    diagram.arrow(box.above, (x, body.bottom))
                else:
                    diagram.arrow((x, body.top), box.below)
        for number, task in enumerate(family.tasks):
            columns[task] = middle + 66 * (number - (len(family.tasks) - 1) / 2)
            diagram.label(task, columns[task], 196, colour="accent")
        left += width
    for number, name in enumerate(systems):
        y = 226.0 + 22 * number
        diagram.label(name, 0, y, anchor="start")
        diagram.arrow((names, y), (left, y), kind="wire weak", tip=False)
        for task, x in columns.items():
            supported = name in support[task]
            diagram.dot(x, y, kind="node fill0" if supported else "unused", radius=5.0)
    return Figure(
        title="Families of tasks",
        caption="Four families of tasks by the shape of their output, and the systems (rows) that support each task.",
        picture=diagram.picture("Families of tasks, and the systems that support them"),
        numbers={f"{task} systems": found for task, found in support.items()},
    )
