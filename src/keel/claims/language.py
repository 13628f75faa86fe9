"""Claims about language models."""

import math
import tempfile
from itertools import pairwise

import keel
from keel.claims.finding import Finding, Say
from keel.claims.models import read_docstrings
from keel.events import Event
from keel.systems.ngram import NgramEncoder


def growth_of_ngrams(say: Say) -> Finding:
    """27: how many n-grams of each order there could be and there are, and what each order is worth."""
    text = keel.Corpus.of("\n".join(docstring.sentences) for docstring in read_docstrings(say))
    losses: list[float] = []

    def hear(event: Event) -> None:
        if event["event"] == "evaluation":
            losses.append(event["loss"])

    with tempfile.TemporaryDirectory() as folder:
        settings = {"vocabulary": 5000, "held_out": 0.05, "threads": 1}
        model = keel.pretrain(keel.Ngram(order=5), text, out=f"{folder}/model", on_event=hear, **settings)
    assert isinstance(model.encoder, NgramEncoder)
    words, *found = model.encoder.sizes
    for order, (count, loss) in enumerate(zip([words, *found], losses[1:], strict=True), 1):
        say(
            f"order {order}: {float(words) ** order:.1e} could come up, {count:,} do "
            f"(one in {float(words) ** order / count:,.0f}), held-out perplexity {math.exp(loss):.1f}"
        )
    shares = [count / float(words) ** order for order, count in enumerate([words, *found], 1)]
    thinner = min(one / other for one, other in pairwise(shares))
    return Finding(
        thinner > 10 and all(one < other for one, other in pairwise(found)),
        f"a table for {words:,} words has {words:,} times as many entries for each word more, but a text fills few of "
        f"them: at each order it is {thinner:,.0f} times emptier or more. Only what came up is kept, and the fifth "
        f"word brings the perplexity from {math.exp(losses[4]):.1f} to {math.exp(losses[5]):.1f}",
    )
