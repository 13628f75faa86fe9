"""Pronouns and occupations: what a model connects with she and he."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal
from xml.etree.ElementTree import Element

import numpy as np

from keel.api.model_loading import ModelSource, default_model, load_model_or_vectors, vector_space_of
from keel.config import Doc, enforces_bounds
from keel.data.sentence_splitting import vocabulary_language
from keel.errors import KeelError, UsageError
from keel.events import OnEvent, ignore, note
from keel.explain.bias.bias_report import CAUTION, BiasReport
from keel.explain.bias.bias_templates import (
    BiasLanguage,
    BiasTemplates,
    parse_pair,
    read_occupations,
    read_templates,
)
from keel.explain.bias.pronoun_attention import PronounAttention, pronoun_attention
from keel.explain.bias.pronoun_scores import PronounScores, causal_scores, masked_scores, vector_scores
from keel.explain.bias.word_associations import association_tests
from keel.explain.nearest_neighbors import VectorSpace
from keel.formats.folder_architecture import WORD_HEAD
from keel.model import Model
from keel.nn.multihead_attention import MultiHeadAttention
from keel.report.attention_charts import signed_heads
from keel.report.bias_figures import interval_chart
from keel.report.charts import Bar
from keel.report.html_page import Page, is_page, picture_file, write_picture
from keel.systems.capabilities import CausalLM, MaskedLM
from keel.systems.static_vectors import StaticEncoder
from keel.tasks.sequence_to_sequence import SequenceToSequence

__all__ = ["bias"]

BiasMethod = Literal["masked", "causal", "vectors", "attention"]
BY = (
    "Method. masked: log-odds of the pronouns at a mask; causal: of whole sentences; vectors: cosine to the direction "
    "between them, and WEAT; attention: from the pronoun to two occupations; auto: all that the model supports."
)
TEMPLATES = (
    "Templates instead of ours: lines with {occupation} and {pronoun}, or with {first}, {second} and {pronoun}; a "
    ".toml file may replace every list (assets/bias has ours)."
)
SAMPLES = {"en": "the nurse said that she was late", "zh": "护士说她来晚了"}


@enforces_bounds
def bias(
    model: ModelSource | None = None,
    *,
    by: Annotated[BiasMethod | Literal["auto"], Doc(BY)] = "auto",
    language: Annotated[BiasLanguage | Literal["auto"], Doc("Language of the templates; auto: the vocabulary's.")] = (
        "auto"
    ),
    pronouns: Annotated[str, Doc('Two pronouns; default: "she:he", in Chinese "她:他".')] = "",
    occupations: Annotated[
        str | Path | Sequence[str], Doc("File of occupations instead of our 40, one per line.")
    ] = "",
    templates: Annotated[str | Path, Doc(TEMPLATES)] = "",
    out: Annotated[str | Path | None, Doc("Write figures: .svg, .pdf, .png or .html.")] = None,
    on_event: OnEvent = ignore,
) -> BiasReport:
    """Which of two pronouns a model connects with each of 40 occupations, with counts and 95% intervals.

    Masked language models are scored at the mask, corrected by the same sentence with a masked occupation (Kurita et
    al. 2019), causal ones by the probabilities of whole sentences, corrected by a neutral word, and word vectors by the
    direction between the pronouns (Bolukbasi et al. 2016) and by association tests (WEAT, Caliskan et al. 2017). In
    models with attention, `attention` compares where either pronoun attends to.
    """
    path = None if out is None else picture_file(out)
    if model is None:
        sample = SAMPLES["en" if language == "auto" else language]
        model = default_model("encoder", sample, on_event)
    subject = load_model_or_vectors(model, on_event)
    name = _title(model, subject)
    if language == "auto":
        language = vocabulary_language(_vocabulary(subject))
        note(on_event, f"templates: {language}; choose others with --language or --templates")
    given = read_templates(language, templates or None)
    changes: dict[str, object] = {}
    if occupations:
        changes["occupations"] = read_occupations(occupations)
    if pronouns:
        pair = parse_pair(pronouns, "--pronouns")
        changes |= {"pronouns": pair, "gender_pairs": (pair,)}
    given = replace(given, **changes)
    report = _report(subject, name, language, given, by, on_event)
    if path is not None:
        write_bias(path, report)
    return report


def _report(
    subject: Model | VectorSpace,
    name: str,
    language: str,
    given: BiasTemplates,
    by: BiasMethod | Literal["auto"],
    on_event: OnEvent,
) -> BiasReport:
    supported = supported_methods(subject)
    if by != "auto" and by not in supported:
        offer = f"it supports {', '.join(supported)}" if supported else "it supports no method"
        raise UsageError(f"--by {by} does not work with {name}: {offer}")
    if not supported:
        what = "has no masked or causal language model head, no attention and no word vectors"
        raise KeelError(f"{name} {what}: use a pre-trained bert or gpt, or word vectors")
    if isinstance(subject, Model) and by == "auto" and not {*supported} & {"masked", "causal", "vectors"}:
        note(on_event, f"{name} has no language model head: its attention is shown, but no probabilities of pronouns")
    methods = supported if by == "auto" else [by]
    scores: list[PronounScores] = []
    space = subject if isinstance(subject, VectorSpace) else None
    if isinstance(subject, Model):
        if "masked" in methods:
            scores.append(masked_scores(subject, given, on_event))
        if "causal" in methods:
            scores.append(causal_scores(subject, given, on_event))
        if "vectors" in methods:
            space = vector_space_of(subject)
    tests = []
    if space is not None and "vectors" in methods:
        scores.append(vector_scores(space, given, on_event))
        tests = association_tests(space, given, on_event)
    attention = None
    if isinstance(subject, Model) and "attention" in methods:
        attention = pronoun_attention(subject, given, on_event)
    return BiasReport(
        model=name, language=language, pronouns=given.pronouns, scores=scores, tests=tests, attention=attention
    )


def supported_methods(subject: Model | VectorSpace) -> list[BiasMethod]:
    """The methods that work with a model or with word vectors."""
    if isinstance(subject, VectorSpace):
        return ["vectors"]
    encoder, objective = subject.encoder, subject.objective
    attends = any(isinstance(module, MultiHeadAttention) for module in encoder.modules())
    found: dict[BiasMethod, bool] = {
        "masked": isinstance(objective, MaskedLM) and WORD_HEAD not in subject.missing,
        "causal": subject.task is None and isinstance(objective, CausalLM),
        "vectors": isinstance(encoder, StaticEncoder),
        "attention": attends and not isinstance(subject.task, SequenceToSequence),
    }
    return [name for name, holds in found.items() if holds]


def write_bias(path: str | Path, report: BiasReport) -> Path:
    """Write all figures to a page, or the first one to a picture."""
    first, second = report.pronouns
    figures = []
    for each in report.scores:
        rows = []
        for one in each.occupations:
            score, decided = one.score, one.is_decided
            rows.append(
                Bar(name=one.occupation, value=score.value, low=score.low, high=score.high, highlighted=decided)
            )
        across = "cosine" if each.method == "vectors" else "corrected log-odds"
        above, below = each.toward
        caption = (
            f"{each.title[0].upper()}{each.title[1:]}, with 95% intervals over {each.samples} {each.resampled}; "
            f"{above} of {len(rows)} occupations lean to {first!r}, {below} to {second!r} (blue: interval without 0)."
        )
        figures.append(
            (interval_chart(rows, negative=each.pronouns[1], positive=each.pronouns[0], across=across), caption)
        )
    if report.attention is not None:
        figures.append(_attention_figure(report.attention))
    title = f"Pronouns and occupations: {report.model}"
    path = picture_file(path)
    if not is_page(path):
        return write_picture(path, figures[0][0], title)
    page = Page(title, CAUTION)
    for picture, caption in figures:
        page.figure(picture, caption)
    if report.tests:
        page.section("Word sets (WEAT)")
        rows = [
            (each.name, f"{each.effect:+.2f}", f"{each.p:.4f}", f"{each.partitions:,}{'' if each.exact else ' random'}")
            for each in report.tests
        ]
        page.table(["words X / words Y", "effect size", "p (one-sided)", "partitions"], rows)
        page.text(f"Positive: X is nearer to the words of {first!r}, Y to those of {second!r}.")
    return page.write(path)


def _attention_figure(found: PronounAttention) -> tuple[Element, str]:
    first, second = found.pronouns
    one, other = found.pairs[0]
    decided = np.zeros(found.contrasts.shape, bool)
    if found.low is not None and found.high is not None:
        decided = (found.low > 0) | (found.high < 0)
    picture = signed_heads(
        found.layers,
        found.heads,
        found.contrasts,
        decided,
        positive=f"{first} to {one}, {second} to {other}",
        negative="the reverse",
    )
    above, below = found.decided
    caption = (
        f"Contrast of attention in percent: how much more {first!r} than {second!r} attends to the first of two "
        f"occupations such as {one} and {other}, in {found.templates} templates with {len(found.pairs)} pairs in both "
        f"orders. Of {decided.size} heads {above} have an interval above 0 and {below} below; "
        f"by chance it would be up to {0.1 * decided.size:.0f}."
    )
    return picture, caption


def _title(model: ModelSource, subject: Model | VectorSpace) -> str:
    if isinstance(subject, Model):
        return subject.title
    return Path(model).name if isinstance(model, str | Path) else "word vectors"


def _vocabulary(subject: Model | VectorSpace) -> list[str]:
    if isinstance(subject, VectorSpace):
        return subject.words
    return subject.tokenizer.vocabulary()
