"""The AWD-LSTM against its formulas, and ULMFiT's three stages."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keel.api.finetuning import finetune
from keel.api.pretraining import pretrain
from keel.data.corpus import Corpus
from keel.data.documents import Documents
from keel.data.examples import Labels
from keel.data.label_kinds import SingleLabel
from keel.data.token_store import Tokens
from keel.data.tokenizer import Tokenizer
from keel.errors import UsageError
from keel.events import Event
from keel.model import Model
from keel.systems.rnn import RnnBatch
from keel.systems.ulmfit import DROPOUTS, Ulmfit, UlmfitPretraining, WeightDropLstm, variational_dropout
from keel.tasks.classify import TextClassification
from keel.training.parameter_groups import layer_groups, lr_multipliers

TINY: dict[str, Any] = {"width": 12, "hidden_size": 20, "layers": 3, "bptt": 10}
DRY: dict[str, Any] = dict.fromkeys(DROPOUTS, 0.0)


def training(**settings: Any) -> UlmfitPretraining:
    torch.manual_seed(0)
    system = Ulmfit(**{**TINY, **settings})
    tokenizer = cast(Tokenizer, SimpleNamespace(sep_id=2))
    return system.build_objective(system.build_encoder(50), tokenizer)


def window(rows: int = 3, length: int = 10) -> Tensor:
    return torch.randint(50, (rows, length + 1), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("drop", [0.0, 0.5])
def test_a_layer_is_an_lstm_whose_recurrent_weights_are_dropped(drop: float) -> None:
    layer = WeightDropLstm(5, 7, drop)
    plain = nn.LSTM(5, 7, batch_first=True)
    x, hidden, cells = torch.randn(3, 6, 5), torch.randn(3, 7), torch.randn(3, 7)
    torch.manual_seed(4)
    found, last, last_cells = layer(x, hidden, cells)
    torch.manual_seed(4)
    kept = F.dropout(layer.from_state, drop)
    assert (kept == 0).any() == (drop > 0)
    weights = [layer.from_input, kept, layer.input_bias, layer.state_bias]
    with torch.no_grad():
        for name, weight in zip(("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"), weights, strict=True):
            getattr(plain, name).copy_(weight)
    expected, (end, end_cells) = plain(x, (hidden[None], cells[None]))
    for one, other in ((found, expected), (last, end[0]), (last_cells, end_cells[0])):
        torch.testing.assert_close(one, other)
    found.sum().backward()  # what is dropped learns nothing in this step
    assert layer.from_state.grad is not None
    assert (layer.from_state.grad[kept == 0] == 0).all()
    assert layer.from_state.grad[kept != 0].any()


def test_nothing_is_dropped_in_evaluation() -> None:
    objective = training().eval()
    batch = RnnBatch(ids=window()[:, None])
    assert torch.equal(objective(batch)[0]["next"], objective(batch)[0]["next"])
    objective.train()
    assert not torch.equal(objective(batch)[0]["next"], objective(batch)[0]["next"])


def test_a_locked_mask_is_the_same_at_every_place_of_a_row() -> None:
    mask = variational_dropout(torch.ones(40, 9, 30), 0.4, training=True)
    assert torch.equal(mask, mask[:, :1].expand_as(mask))
    assert not torch.equal(mask[0], mask[1])
    assert mask.unique().tolist() == pytest.approx([0.0, 1 / 0.6])
    assert mask.mean() == pytest.approx(1.0, abs=0.1)
    ones = torch.ones(2, 3, 4)
    assert variational_dropout(ones, 0.4, training=False) is ones


def test_a_dropped_word_is_gone_wherever_it_stands() -> None:
    encoder = training(**{**DRY, "word_dropout": 0.5}).encoder.train()
    ids = torch.arange(50).repeat(2, 2)  # every word four times
    gone = (encoder.embed_ids(ids) == 0).all(-1).view(4, 50)
    assert torch.equal(gone, gone[:1].expand_as(gone))
    assert 10 < int(gone[0].sum()) < 40


def test_the_losses_are_those_of_the_papers() -> None:
    objective = training(**DRY, ar=2.0, tar=3.0).train()
    ids = window()
    losses, _ = objective(RnnBatch(ids=ids[:, None]))
    x = objective.encoder.words(ids[:, :-1])
    for layer in objective.encoder.forwards.layers:
        zeros = x.new_zeros(len(x), cast(WeightDropLstm, layer).width)
        x = layer(x, zeros, zeros)[0]
    scores = x @ objective.encoder.words.weight.T + objective.bias
    expected = F.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")
    torch.testing.assert_close(losses["next"], expected)
    counts = objective.counts(RnnBatch(ids=ids[:, None]))
    regular = 2.0 * x.square().mean() + 3.0 * (x[:, 1:] - x[:, :-1]).square().mean()
    torch.testing.assert_close(losses["ar_tar"] / counts["ar_tar"], regular)
    assert counts["next"] == 30
    assert objective.eval()(RnnBatch(ids=ids[:, None]))[0].keys() == {"next"}


def test_two_windows_with_state_are_one_long_window() -> None:
    objective = training().eval()
    ids = window(length=20)
    whole, end = objective(RnnBatch(ids=ids[:, None]), objective.initial_state(3))
    first, state = objective(RnnBatch(ids=ids[:, None, :11]), objective.initial_state(3))
    second, state = objective(RnnBatch(ids=ids[:, None, 10:]), state)
    torch.testing.assert_close(first["next"] + second["next"], whole["next"])
    for one, other in zip(state.tensors(), end.tensors(), strict=True):
        torch.testing.assert_close(one, other)
    assert objective.initial_state(3).tensors()[0].shape == (3, 20 + 20 + 12)


def test_a_word_at_a_time_is_the_same() -> None:
    objective = training().eval()
    ids = window(length=4)
    state, total = objective.new_state(3), torch.zeros(())
    for place in range(4):
        scores, state = objective.step(ids[:, place : place + 1], state)
        total += F.cross_entropy(scores, ids[:, place + 1], reduction="sum")
    torch.testing.assert_close(total, objective(RnnBatch(ids=ids[:, None]))[0]["next"])


def test_wikitext_has_nearly_the_tokens_that_papers_count(data_dir: Path) -> None:
    """They count 245,569: an end token after each line, also after 147 empty ones that follow another, not read."""
    corpus = Corpus(data_dir / "tasks" / "wikitext2" / "test.txt.xz", sentences="lines")
    words = dict.fromkeys(word for block in corpus.blocks() for word in block.text.split())
    data = Documents.of(Tokens.build(corpus, Tokenizer.from_whitespace_words(words)), least=1)
    assert "<unk>" in words
    assert data.stream_size == 245_569 - 147


def test_words_that_are_the_softmax_too_are_in_the_topmost_level() -> None:
    """As in fastai's awd_lstm_lm_split, of the authors."""
    objective = training()
    levels = [{*level} for level in layer_groups(objective)]
    layers = [{*layer.parameters()} for layer in reversed(objective.encoder.forwards.layers)]
    assert levels == [{objective.bias, objective.encoder.words.weight}, *layers]
    shares = lr_multipliers(objective, Ulmfit().continued_pretraining_defaults)
    assert [{shares[weight] for weight in level} for level in levels] == [{0.38**number} for number in range(4)]


def test_words_that_a_classifier_reads_are_in_the_lowest_level() -> None:
    """As in fastai's awd_lstm_clas_split."""
    encoder = training().encoder
    tokenizer = cast(Tokenizer, SimpleNamespace(sep_id=2))
    task = TextClassification(encoder.system, encoder, tokenizer, Labels(kind=SingleLabel(), names=("bad", "good")))
    levels = [{*level} for level in layer_groups(task)]
    layers = [{*layer.parameters()} for layer in reversed(encoder.forwards.layers)]
    assert levels == [{*task.classifier.parameters()}, *layers, {encoder.words.weight}]


@pytest.mark.parametrize(
    "settings", [{"width": 0}, {"bptt": 1}, {"dropout": 1.0}, {"weight_dropout": -0.1}, {"tar": -1.0}]
)
def test_settings_without_sense(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        replace(Ulmfit(), **settings)


REVIEWS = [
    (f"a {word} {thing}", label)
    for label, words in (("good", "fine wonderful"), ("bad", "dull dreadful"))
    for word in words.split()
    for thing in ["boat", "bread", "letter", "rose"]
]


def test_three_stages(english_corpus: Path, tmp_path: Path) -> None:
    common: dict[str, Any] = {"device": "cpu", "threads": 1, "log_every": 1}
    events: list[Event] = []
    first = pretrain(
        "ulmfit",
        english_corpus,
        out=tmp_path / "first",
        on_event=events.append,
        vocabulary=300,
        steps=120,
        batch=8,
        lr=0.03,
        **TINY,
        **dict.fromkeys(DROPOUTS, 0.1),
        **common,
    )
    losses = [event["losses"]["next"] for event in events if event["event"] == "evaluation"]
    assert losses[-1] < losses[0] - 0.5
    text = [" ".join(text for text, _ in REVIEWS)] * 3
    second = pretrain(
        tmp_path / "first", text, out=tmp_path / "second", held_out=0.0, steps=10, batch=2, word_dropout=0.0, **common
    )
    recipe = second.card.recipe["train"]
    assert (recipe["schedule"], recipe["layer_decay"]) == ("slanted", 0.38)
    assert second.tokenizer.fingerprint() == first.tokenizer.fingerprint()
    third = finetune(
        second, REVIEWS, dev=None, out=tmp_path / "third", epochs=30, batch=4, on_event=events.append, **common
    )
    recipe = third.card.recipe["train"]
    assert (recipe["schedule"], recipe["layer_decay"], recipe["unfreeze"]) == ("slanted", 0.38, "gradual")
    assert [event["text"] for event in events if "layer groups" in event.get("text", "")][
        -1
    ] == "step 16: 5 of 5 layer groups are trained"
    again = Model.load(tmp_path / "third")
    assert again.predict("a wonderful boat").label == "good"
    assert again.predict("a dreadful boat").label == "bad"


@pytest.mark.gpu
def test_a_gpu_takes_the_weights_as_they_are() -> None:
    """Without the warning that they do not lie end to end, an error here, and with the CPU's gradients."""
    found: list[list[Tensor]] = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        layer = WeightDropLstm(16, 24, 0.0)
        x, hidden, cells = torch.randn(3, 6, 16), torch.randn(3, 24), torch.randn(3, 24)
        layer = layer.to(device)
        given = [tensor.to(device) for tensor in (x, hidden, cells)]
        outputs = layer(*given)
        outputs[0].square().sum().backward()
        gradients = [weight.grad for weight in layer.parameters() if weight.grad is not None]
        found.append([tensor.detach().cpu() for tensor in (*outputs, *gradients)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)


@pytest.mark.gpu
def test_a_run_on_a_gpu_that_was_stopped_ends_with_the_same_bits(english_corpus: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"batch": 8, "device": "cuda", "vocabulary": 300, "checkpoint_every": 4, **TINY}
    settings |= {"steps": 12, "log_every": 1}

    def stop(event: Event) -> None:
        if event["event"] == "step" and event["step"] == 6:
            raise KeyboardInterrupt

    whole = pretrain("ulmfit", english_corpus, out=tmp_path / "whole", **settings)
    with pytest.raises(KeyboardInterrupt):
        pretrain("ulmfit", english_corpus, out=tmp_path / "cut", on_event=stop, **settings)
    resumed = pretrain("ulmfit", english_corpus, out=tmp_path / "cut", **settings)
    assert resumed.fingerprint() == whole.fingerprint()
