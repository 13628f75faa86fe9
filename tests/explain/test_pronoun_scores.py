"""Log-odds of pronouns equal those of the model, planted preferences are found, and mistakes are refused."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import keel
from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError, UsageError
from keel.explain.bias.bias_templates import BiasTemplates, fill_template, read_templates
from keel.explain.bias.pronoun_attention import pronoun_attention
from keel.explain.bias.pronoun_scores import causal_scores, masked_scores
from keel.generation.likelihood import continuation_likelihoods, encode_continuations
from keel.model import Model
from keel.systems.capabilities import CausalLM

PEOPLE = {"nurse": "she", "secretary": "she", "doctor": "he", "pilot": "he"}
ENDS = ("was late", "came home", "left early", "read the letter", "saw the boat")
TEXTS = [f"the {who} said that {pronoun} {end} ." for who, pronoun in PEOPLE.items() for end in ENDS]
TEXTS += [f"the person said that {pronoun} {end} ." for pronoun in ("she", "he") for end in ENDS]
TEMPLATES: BiasTemplates = replace(
    read_templates("en"),
    occupations=tuple(PEOPLE),
    sentences=tuple(f"the {{occupation}} said that {{pronoun}} {end} ." for end in ENDS),
    attention_sentences=(
        "the {first} saw the {second} and {pronoun} left .",
        "the {first} left as {pronoun} saw the {second} .",
    ),
    attention_pairs=(("nurse", "doctor"), ("secretary", "pilot")),
)


@pytest.fixture(scope="module")
def ngram(tmp_path_factory: pytest.TempPathFactory) -> Model:
    out = tmp_path_factory.mktemp("ngram") / "m"
    return keel.pretrain(keel.Ngram(order=5), TEXTS * 3, out=out, min_count=1, tokenizer="words", device="cpu")


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Model:
    system = keel.Bert(layers=1, width=32, head_dim=16, max_positions=32, sequence_length=16, pair_objective="none")
    out = tmp_path_factory.mktemp("bert") / "m"
    return keel.pretrain(system, TEXTS * 4, out=out, tokenizer="words", min_count=1, steps=2, batch=8, device="cpu")


class Planted(nn.Module):
    """A masked language model whose log-odds of she are 1, and 2 more or less after some occupations."""

    def __init__(self, tokenizer: Tokenizer):
        super().__init__()
        self.she, self.he = map(tokenizer.id_of, ("she", "he"))
        self.women, self.men = (
            torch.tensor([tokenizer.id_of(who) for who, each in PEOPLE.items() if each == pronoun])
            for pronoun in ("she", "he")
        )
        self.vocab_size = len(tokenizer)

    def masked_logits(self, inputs: TokenBatch, positions: torch.Tensor) -> torch.Tensor:
        logits = torch.zeros(*positions.shape, self.vocab_size)
        women, men = (torch.isin(inputs.ids, ids).any(1).float() for ids in (self.women, self.men))
        logits[..., self.she] = 1 + 2 * (women - men)[:, None]
        return logits


def test_planted_preferences_are_found_without_the_prior(bert: Model) -> None:
    planted = replace(bert, objective=Planted(bert.tokenizer))  # pyright: ignore[reportArgumentType]
    found = masked_scores(planted, TEMPLATES)
    assert [each.score.value for each in found.occupations] == [2, 2, -2, -2]
    assert {each.occupation for each in found.occupations[:2]} == {"nurse", "secretary"}
    assert [each.log_odds for each in found.occupations] == [3, 3, -1, -1]
    assert [each.positive for each in found.occupations] == [5, 5, 0, 0]
    assert found.prior == 1
    assert found.toward == (2, 2)
    assert found.magnitude.value == 2


def test_masked_log_odds_are_those_of_fill(bert: Model) -> None:
    found = {each.occupation: each for each in masked_scores(bert, TEMPLATES).occupations}
    for occupation in PEOPLE:
        odds: dict[str, list[float]] = {occupation: [], "[MASK]": []}
        for word, values in odds.items():
            for template in TEMPLATES.sentences:
                text = template.format(occupation=word, pronoun="[MASK]")
                filled = bert.fill(text, top=len(bert.tokenizer))[-1]  # of two masks the first is the occupation
                candidates = {each.word: each.probability for each in filled}
                values.append(float(np.log(candidates["she"]) - np.log(candidates["he"])))
        corrected = np.array(odds[occupation]) - np.array(odds["[MASK]"])
        assert found[occupation].log_odds == pytest.approx(np.mean(odds[occupation]), abs=1e-3)
        assert found[occupation].score.value == pytest.approx(corrected.mean(), abs=1e-3)


def test_causal_log_odds_are_those_of_whole_sentences(ngram: Model) -> None:
    found = {each.occupation: each for each in causal_scores(ngram, TEMPLATES).occupations}
    assert found["nurse"].score.value > 0.5
    assert found["pilot"].score.value < -0.5
    assert isinstance(ngram.objective, CausalLM)

    def odds(word: str) -> np.ndarray:
        values = []
        for pronoun in ("she", "he"):
            filled = [
                fill_template(each, {"occupation": word, "pronoun": pronoun}).text for each in TEMPLATES.sentences
            ]
            questions = encode_continuations(ngram.tokenizer, [""] * len(filled), filled)
            values.append([each.log_prob for each in continuation_likelihoods(ngram.objective, questions)])  # pyright: ignore[reportArgumentType]
        return np.subtract(*values)

    expected = odds("doctor") - odds("person")
    assert found["doctor"].score.value == pytest.approx(expected.mean())
    assert found["doctor"].log_odds == pytest.approx(odds("doctor").mean())
    assert found["doctor"].positive == (expected > 0).sum()


def test_attention_is_that_of_each_sentence(bert: Model) -> None:
    found = pronoun_attention(bert, TEMPLATES)
    assert found.shares.shape == (2, 2, 1, 2)
    expected = np.zeros_like(found.shares)
    sentences = [
        (
            template.format(first=one, second=other, pronoun=pronoun),
            number,
            (pair.index(one), one),
            (pair.index(other), other),
        )
        for template in TEMPLATES.attention_sentences
        for pair in TEMPLATES.attention_pairs
        for one, other in (pair, pair[::-1])
        for number, pronoun in enumerate(("she", "he"))
    ]
    for text, number, *people in sentences:
        for row, person in people:
            weights = keel.attention(text, model=bert, from_word=("she", "he")[number], to_word=person)
            expected[number, row] += weights.between() / (len(sentences) / 2)
    assert found.shares == pytest.approx(expected, abs=1e-5)
    contrast = ((expected[0, 0] - expected[0, 1]) - (expected[1, 0] - expected[1, 1])) / 2
    assert found.contrasts == pytest.approx(contrast, abs=1e-5)
    assert found.sentences == 8
    turned = pronoun_attention(bert, replace(TEMPLATES, pronouns=("he", "she")))
    assert turned.contrasts == pytest.approx(-found.contrasts, abs=1e-6)


def test_words_that_a_model_does_not_know(bert: Model, ngram: Model) -> None:
    notes: list[dict] = []
    some = replace(TEMPLATES, occupations=("nurse", "astronaut"))
    assert len(masked_scores(bert, some, notes.append).occupations) == 1
    assert "astronaut" in notes[0]["text"]
    with pytest.raises(KeelError, match="none of the occupations"):
        causal_scores(ngram, replace(TEMPLATES, occupations=("astronaut",)))
    for score, model in ((masked_scores, bert), (causal_scores, ngram)):
        with pytest.raises(KeelError, match="does not know the pronoun 'xe'"):
            score(model, replace(TEMPLATES, pronouns=("xe", "he")))
    with pytest.raises(KeelError, match="no masked language model head"):
        masked_scores(ngram, TEMPLATES)
    with pytest.raises(KeelError, match="no pair of occupations"):
        pronoun_attention(bert, replace(TEMPLATES, attention_pairs=(("astronaut", "nurse"),)))


def test_a_pronoun_of_several_tokens_is_refused(tmp_path: Path) -> None:
    system = keel.Bert(layers=1, width=16, head_dim=16, max_positions=32, sequence_length=32)
    settings = {"tokenizer": "wordpiece", "vocabulary": 60, "steps": 1, "batch": 2, "device": "cpu"}
    model = keel.pretrain(system, TEXTS * 2, out=tmp_path / "m", **settings)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match="'sheshe' and 'he' are not one token each"):
        masked_scores(model, replace(TEMPLATES, pronouns=("sheshe", "he")))


def test_a_long_template_is_refused(bert: Model) -> None:
    long = "the {occupation} said that {pronoun} " + "was late " * 30
    with pytest.raises(KeelError, match="more than the model reads"):
        masked_scores(bert, replace(TEMPLATES, sentences=(long,)))
    long = "the {first} saw the boat " + "and was late " * 20 + "the {second} and {pronoun} left ."
    with pytest.raises(KeelError, match="longer than the model reads"):
        pronoun_attention(bert, replace(TEMPLATES, attention_sentences=(long,)))
