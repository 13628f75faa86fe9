"""One text becomes another: what is learned, written, scored and kept, with one vocabulary or two."""

import random
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import keel
from keel.api import finetuning_runs
from keel.api.translation import aligned, translations
from keel.data.corpus import Corpus
from keel.data.examples import Labels
from keel.data.label_kinds import TextTarget
from keel.data.parallel_text import read_aligned
from keel.data.predictions import GeneratedText
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError, UsageError
from keel.formats.model_folder import read_tensors, write_tensors
from keel.generation.beam_search import SearchInterrupted
from keel.metrics.scores import Scores
from keel.model import Model
from keel.nn.inference_loop import batched_inference
from keel.systems.bert import Bert
from keel.systems.gpt import Gpt
from keel.systems.seq2seq import Seq2seq
from keel.systems.transformer import Transformer
from keel.tasks import sequence_to_sequence
from keel.tasks.sequence_to_sequence import SequenceToSequence
from keel.training.counter_rng import CounterRng
from tests.golden import texts
from tests.tasks.task_sample import TaskSample

SAMPLE = TaskSample(
    examples=texts.translations(40),
    inputs=["one two", "five"],
    bad_input=3,
    header="source\ttarget\n",
    bad_rows=["one two\t", "two one\tzwei eins"],
    main_score="bleu",
    generates=True,
)

NUMBERS = {"one": "Eins", "two": "Zwei", "three": "Drei", "four": "Vier", "five": "Fünf"}
SMALL: dict[str, int] = {"layers": 1, "decoder_layers": 1, "width": 32, "head_dim": 16, "max_positions": 24}
SYSTEM = replace(Transformer(dropout=0.0, label_smoothing=0.01), **SMALL)
Pairs = list[tuple[str, str]]


def numbers(count: int, seed: int = 0) -> Pairs:
    rng = random.Random(seed)
    chosen = [rng.choices([*NUMBERS], k=rng.randint(1, 4)) for _ in range(count)]
    return [(" ".join(words), " ".join(NUMBERS[word] for word in words)) for words in chosen]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(Corpus.of([text for pair in numbers(50) for text in pair]), kind="bpe", size=300)


@pytest.fixture
def task(tokenizer: Tokenizer) -> SequenceToSequence:
    torch.manual_seed(0)
    return SequenceToSequence(SYSTEM, SYSTEM.build_encoder(len(tokenizer)), tokenizer, Labels(kind=TextTarget()))


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Path]:
    """A model that has learned to translate numbers, with a vocabulary for each side, and its folder."""
    folder = tmp_path_factory.mktemp("rewrite") / "model"
    settings: dict[str, Any] = {"steps": 250, "batch": 16, "lr": 5e-3, "schedule": "linear", "vocabulary": 320}
    model = keel.finetune(
        SYSTEM, numbers(200), task="seq2seq", dev=numbers(20, 1), separate=True, out=folder, device="cpu", **settings
    )
    return model, folder


def test_numbers_are_translated(translator: tuple[Model, Path]) -> None:
    model, _ = translator
    assert model.card.scores["dev"]["values"]["exact"]["value"] > 0.9
    assert keel.translate("two five one", model=model).text == "Zwei Fünf Eins"
    several = keel.translate(["three", " ", "one two"], model=model, beams=1)
    assert [*map(str, several)] == ["Drei", "", "Eins Zwei"]
    best = keel.translate("three four", model=model, best=3)
    assert best.text == "Drei Vier"
    assert len(best.alternatives) == 2
    scores = [each.score or 0 for each in (best, *best.alternatives)]
    assert scores == sorted(scores, reverse=True)
    answer = model.predict("four")
    assert isinstance(answer, GeneratedText)
    assert answer.text == "Vier"


def test_what_does_not_apply_is_refused(translator: tuple[Model, Path], tmp_path: Path) -> None:
    model, _ = translator
    with pytest.raises(UsageError, match=r"tokens needs by_pattern: leave it out"):
        keel.translate("one", model=model, tokens=3)
    settings: dict[str, Any] = {"beams": 2, "length_penalty": 0.5, "best": 2, "trace": tmp_path / "t.json"}
    for name, value in settings.items():
        with pytest.raises(UsageError, match=f"^{name} cannot be combined with by_pattern: leave it out"):
            keel.translate("one", model=model, by_pattern=[("two", "Zwei")], **{name: value})
    with pytest.raises(UsageError, match="trace shows at most 64 texts: give fewer"):
        keel.translate(["one"] * 65, model=model, trace=tmp_path / "t.json")
    assert not (tmp_path / "t.json").exists()


def test_of_a_long_text_what_was_read_is_aligned(translator: tuple[Model, Path]) -> None:
    model, _ = translator
    found = aligned(" ".join(["one"] * 60), "Eins " * 60, model=model)
    assert 3 < len(found.source) <= 24
    assert 3 < len(found.target) <= 24
    np.testing.assert_allclose(found.weights.sum(1), 1, atol=1e-4)


def test_the_folder_holds_both_vocabularies(translator: tuple[Model, Path], tmp_path: Path) -> None:
    model, folder = translator
    copy = Model.load(folder)
    assert copy.task is not None
    assert copy.task.labels.tokenizer is not None
    assert copy.task.labels.tokenizer.fingerprint() != copy.tokenizer.fingerprint()
    texts = [source for source, _ in numbers(10, 2)]
    assert keel.translate(texts, model=copy) == keel.translate(texts, model=model)
    assert (folder / "target" / "tokenizer.json").exists()
    copy.save(tmp_path / "again")
    copy.save(tmp_path / "again", overwrite=True)
    assert Model.load(tmp_path / "again").task is not None
    shutil.rmtree(tmp_path / "again" / "target")
    with pytest.raises(KeelError, match=r"again lacks the folder target, .*: copy the whole folder"):
        Model.load(tmp_path / "again")


def test_what_was_learned_must_be_there(translator: tuple[Model, Path], tmp_path: Path) -> None:
    shutil.copytree(translator[1], tmp_path / "m")
    extra = tmp_path / "m" / "keel.safetensors"
    extra.unlink()
    kept = read_tensors(translator[1] / extra.name)
    lost = next(name for name in kept if name.startswith("decoder."))
    write_tensors(extra, {name: tensor for name, tensor in kept.items() if name != lost})
    with pytest.raises(KeelError, match=rf"keel\.safetensors lacks {re.escape(lost)}, .* of its task"):
        Model.load(tmp_path / "m")
    extra.unlink()
    with pytest.raises(KeelError, match=r"m lacks keel\.safetensors, .* of its task: copy the whole folder"):
        Model.load(tmp_path / "m")


def test_a_model_is_fine_tuned_further(translator: tuple[Model, Path]) -> None:
    _, folder = translator
    further = keel.finetune(folder, numbers(40, 3), task="seq2seq", dev=None, steps=1, lr=1e-6, device="cpu")
    assert str(keel.translate("two five one", model=further)) == "Zwei Fünf Eins"


def test_a_model_is_fine_tuned_further_with_other_settings_but_in_its_shape(
    translator: tuple[Model, Path], tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"task": "seq2seq", "dev": None, "steps": 1, "lr": 1e-6, "device": "cpu"}
    others = {"dropout": 0.3, "attention_dropout": 0.1, "label_smoothing": 0.2, "r_drop": 5.0, "max_positions": 16}
    keel.finetune(translator[1], numbers(40, 3), out=tmp_path / "m", **settings, **others)
    further = Model.load(tmp_path / "m")
    assert {name: getattr(further.system, name) for name in others} == others
    assert str(keel.translate("two five one", model=further)) == "Zwei Fünf Eins"
    for name, value in {"width": 64, "decoder_layers": 2, "tie_embeddings": False}.items():
        with pytest.raises(UsageError, match=f"^{name} is fixed in a trained model: leave it out"):
            keel.finetune(translator[0], numbers(8), **settings, **{name: value})
    positions = keel.finetune(replace(SYSTEM, position_encoding="learned"), numbers(8), **settings)
    with pytest.raises(UsageError, match=r"^max_positions is fixed in a trained model"):
        keel.finetune(positions, numbers(8), **settings, max_positions=16)


def test_scores_have_intervals_and_a_signature(translator: tuple[Model, Path]) -> None:
    model, _ = translator
    unseen = [*numbers(30, 5), ("one one", "something else")]
    scores = keel.evaluate(model, unseen, beams=2)
    assert scores.main == "bleu"
    bleu: Any = scores.values["bleu"]
    assert bleu.low < bleu.value < bleu.high
    assert scores.values["exact"].value < 1
    assert "tok:13a" in scores.note
    from sacrebleu import corpus_bleu, corpus_chrf

    texts = [*map(str, keel.translate([source for source, _ in unseen], model=model, beams=2))]
    wanted = [[target for _, target in unseen]]
    assert scores.values["bleu"].value == pytest.approx(corpus_bleu(texts, wanted).score)
    assert scores.values["chrf"].value == pytest.approx(corpus_chrf(texts, wanted).score)
    assert [error.text for error in scores.errors if error.label == "something else"] == ["one one"]
    chinese = keel.evaluate(model, [("one", "一二三四五"), ("two", "二三四五六")])
    assert "tok:zh" in chinese.note


def test_one_vocabulary_shares_its_vectors(task: SequenceToSequence, tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = Model(system=SYSTEM, encoder=task.encoder, tokenizer=tokenizer, task=task)
    shared = [name for name, tensor in task.state_dict().items() if tensor.shape == (len(tokenizer), 32)]
    assert [name for name in model.tensors() if name in shared] == ["encoder.words.weight"]
    model.save(tmp_path / "m")
    copy = Model.load(tmp_path / "m").task
    assert isinstance(copy, SequenceToSequence)
    with torch.no_grad():
        copy.encoder.get_parameter("words.weight").zero_()
    vectors = torch.ones(1, 32)
    assert not torch.equal(task.decoder.logits(vectors), copy.decoder.logits(vectors))
    assert copy.decoder.logits(vectors).std() < 1e-6


def test_the_loss_is_cross_entropy_per_token(task: SequenceToSequence, tokenizer: Tokenizer) -> None:
    data = task.encode_examples(read_aligned(numbers(12)), batch_size=4)
    batch = task.batch(data, CounterRng(seed=0, step=0, first_example=0, batch_size=4), range(4))
    assert batch.inputs is not None
    vectors, _ = task.decoder(batch.decoder_ids, task.decoder.project_source(task.encoder(batch.inputs), batch.inputs))
    scores = task.decoder.logits(vectors)
    inside = torch.arange(batch.decoder_ids.shape[1]) < batch.target_lengths[:, None]
    targets = batch.targets.where(inside, -100).flatten()
    for training, smoothing in ((True, SYSTEM.label_smoothing), (False, 0.0)):
        task.train(training)
        losses, _ = task(batch)
        wanted = F.cross_entropy(scores.flatten(0, 1), targets, reduction="sum", label_smoothing=smoothing)
        torch.testing.assert_close(losses["loss"], wanted)
    assert float(task.counts(batch)["loss"]) == int(inside.sum())
    first = data.examples.texts.index(tokenizer.decode(batch.inputs.ids[0].tolist()))
    assert tokenizer.decode(batch.targets[0].tolist()) == data.examples.values[first]
    by_row, subwords = task.target_losses(data)
    index = np.concatenate([data.epoch_order(0, 0)[:4]])
    task.eval()
    torch.testing.assert_close(float(by_row[index].sum()), float(task(batch)[0]["loss"].detach()), rtol=1e-4, atol=0)
    assert int(subwords[index].sum()) == int(inside.sum())


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_two_readings_with_their_own_dropout_are_held_to_one_another(tokenizer: Tokenizer, dropout: float) -> None:
    torch.manual_seed(0)
    system = replace(SYSTEM, dropout=dropout, r_drop=3.0)
    task = SequenceToSequence(
        system, system.build_encoder(len(tokenizer)), tokenizer, Labels(kind=TextTarget())
    ).train()
    data = task.encode_examples(read_aligned(numbers(12)), batch_size=4)
    batch = task.batch(data, CounterRng(seed=0, step=0, first_example=0, batch_size=4), range(4))
    torch.manual_seed(1)
    found = task(batch)[0]["loss"]
    gradients = torch.autograd.grad(found, [*task.parameters()])
    torch.manual_seed(1)  # the same dropout, in the same order
    twice = batch.index_select(torch.tensor([0, 1, 2, 3, 0, 1, 2, 3]))
    assert twice.inputs is not None
    vectors, _ = task.decoder(twice.decoder_ids, task.decoder.project_source(task.encoder(twice.inputs), twice.inputs))
    inside = torch.arange(batch.decoder_ids.shape[1]) < batch.target_lengths[:, None]
    one, other = (task.decoder.logits(half[inside]).log_softmax(-1) for half in vectors.chunk(2))
    right = [
        F.cross_entropy(each, batch.targets[inside], reduction="sum", label_smoothing=system.label_smoothing)
        for each in (one, other)
    ]
    ways = [F.kl_div(*pair, log_target=True, reduction="sum") for pair in ((one, other), (other, one))]
    divergence = torch.stack(ways).mean()
    wanted = (torch.stack(right).sum() + 3.0 * divergence) / 2
    assert (divergence.item() > 1) == (dropout > 0)
    torch.testing.assert_close(found, wanted)
    for mine, theirs in zip(gradients, torch.autograd.grad(wanted, [*task.parameters()]), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-5)
    task.eval()
    plain = SequenceToSequence(
        SYSTEM, system.build_encoder(len(tokenizer)), tokenizer, Labels(kind=TextTarget())
    ).eval()
    plain.load_state_dict(task.state_dict())
    torch.testing.assert_close(task(batch)[0]["loss"], plain(batch)[0]["loss"])


def test_padding_changes_nothing(task: SequenceToSequence, monkeypatch: pytest.MonkeyPatch) -> None:
    task.eval()
    examples = read_aligned(numbers(9, 4))
    together = task.predict(examples, batch=9)
    alone = [task.predict(examples[number : number + 1])[0] for number in range(9)]
    assert [text.text for (text,) in together.generated] == [str(text) for text in alone]


@pytest.fixture
def endless(task: SequenceToSequence, monkeypatch: pytest.MonkeyPatch) -> SequenceToSequence:
    """It never writes an end."""
    task = SequenceToSequence(replace(SYSTEM, max_positions=80), task.encoder, task.tokenizer, task.labels)
    scores, end = task.decoder.logits, torch.tensor([task.target_tokenizer.sep_id])
    monkeypatch.setattr(task.decoder, "logits", lambda vectors: scores(vectors).index_fill(1, end, -100.0))
    return task


UNEQUAL = ["one", " ".join(["one two"] * 9)]


def test_what_never_ends_is_cut_alone_as_beside_a_long_one(endless: SequenceToSequence, tmp_path: Path) -> None:
    messages: list[str] = []
    (alone,) = endless.predict(read_aligned(UNEQUAL[:1])).generated
    together: Any = endless.predict(read_aligned(UNEQUAL), on_event=lambda event: messages.append(event["text"]))
    assert together[0].text == alone[0].text
    assert together[0].ended is False
    assert together.to_dicts()[0]["ended"] is False
    (size,) = endless.max_new_tokens(endless.encode_examples(read_aligned(UNEQUAL[:1]), labelled=False).lengths)
    assert messages == [
        f"2 of 2 texts, such as that for item 0 of the list, have no end token after {size} tokens: truncated; "
        "try length_penalty=0"
    ]
    model = Model(system=endless.system, encoder=endless.encoder, tokenizer=endless.tokenizer, task=endless)
    endless.train()
    traced = keel.translate(
        "one", model=model, trace=tmp_path / "t.json", on_event=lambda e: messages.append(e["text"])
    )
    assert traced.text == alone[0].text
    assert any("1 of 1 texts" in text for text in messages)
    assert endless.training, "it may go on learning"


@pytest.mark.parametrize("trace", [False, True])
def test_an_interruption_gives_what_is_done(
    endless: SequenceToSequence, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trace: bool
) -> None:
    steps, scores = [0], endless.decoder.logits
    (short, long) = endless.max_new_tokens(endless.encode_examples(read_aligned(UNEQUAL), labelled=False).lengths)

    def interrupted(vectors: torch.Tensor) -> torch.Tensor:
        steps[0] += 1
        if steps[0] == (short + long) // 2:
            raise KeyboardInterrupt
        return scores(vectors)

    monkeypatch.setattr(endless.decoder, "logits", interrupted)
    model = Model(system=endless.system, encoder=endless.encoder, tokenizer=endless.tokenizer, task=endless)
    texts, trace_file = [UNEQUAL[0], UNEQUAL[1]], tmp_path / "t.json" if trace else None
    if not trace:
        texts.insert(0, " ")
    with pytest.raises(SearchInterrupted) as stopped:
        list(translations(texts, {}, model=model, trace=trace_file))
    *blank, first, second = stopped.value.found
    (alone,) = endless.predict(read_aligned(UNEQUAL[:1])).generated
    assert [*map(str, first)] == [*map(str, alone)]
    assert second == []
    assert [text.text for (text,) in blank] == ([] if trace else [""])
    assert not (tmp_path / "t.json").exists()


def test_short_texts_become_long_ones(tmp_path: Path) -> None:
    long = {word: " ".join(f"{word[0]}{number}" for number in range(40)) for word in ("alpha", "beta")}
    messages: list[str] = []
    model = keel.finetune(
        replace(SYSTEM, max_positions=100), [*long.items()] * 8, task="seq2seq", dev=None, tokenizer="words", steps=150,
        batch=8, lr=1e-2, schedule="linear", device="cpu", out=tmp_path / "m",
    )  # fmt: skip
    assert keel.translate("alpha", model=model).text == long["alpha"]
    copy = Model.load(tmp_path / "m")
    texts = keel.translate([*long], model=copy, on_event=lambda event: messages.append(event["text"]))
    assert [*map(str, texts)] == [*long.values()]
    assert messages == []
    assert isinstance(copy.task, SequenceToSequence)
    source = len(copy.task.encode_examples(read_aligned(["alpha"]), labelled=False).ids)
    assert copy.task.max_new_tokens(np.array([source, source + 1, 99])) == [41, 43, 100]
    further = keel.finetune(copy, [("alpha", "a0"), ("beta", "b0")], task="seq2seq", dev=None, steps=1, device="cpu")
    assert isinstance(further.task, SequenceToSequence)
    assert further.task.extra_length == copy.task.extra_length, "it has not unlearned them"


def test_losses_are_computed_in_small_batches(task: SequenceToSequence, monkeypatch: pytest.MonkeyPatch) -> None:
    data = task.encode_examples(read_aligned(numbers(30)))
    expected, subwords = task.target_losses(data)
    sizes: list[int] = []
    whole = task._losses

    def losses(batch: Any) -> Any:
        sizes.append(batch.decoder_ids.numel())
        return whole(batch)

    monkeypatch.setattr(task, "_losses", losses)
    monkeypatch.setattr(sequence_to_sequence, "MAX_LOGITS", 60 * len(task.target_tokenizer))
    found, again = task.target_losses(data)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert (again == subwords).all()
    assert max(sizes) <= 60
    assert len(sizes) > 2


def test_seq2seq_learns_by_the_same_task(tokenizer: Tokenizer) -> None:
    system = Seq2seq(width=16, attention_dim=16, dropout=0.0)
    task = SequenceToSequence(system, system.build_encoder(len(tokenizer)), tokenizer, Labels(kind=TextTarget()))
    data = task.encode_examples(read_aligned(numbers(8)), batch_size=8)
    batch = task.batch(data, CounterRng(seed=0, step=0, first_example=0, batch_size=8), range(8))
    optimizer = torch.optim.Adam(task.parameters(), lr=1e-2)
    losses = []
    for _ in range(15):
        found, _ = task(batch)
        losses.append(float(found["loss"].detach()))
        optimizer.zero_grad()
        found["loss"].backward()
        optimizer.step()
    assert losses[-1] < 0.7 * losses[0]
    assert len(task.predict(read_aligned(["one two"])).generated[0]) == 1


UPPER, LOWER = "春风花月红山水云雨天明人来去新", "秋雨草星绿海江霞雪地暗客往回旧"


def couplets(count: int, seed: int = 0) -> Pairs:
    rng = random.Random(seed)
    lines = ["".join(rng.choices(UPPER, k=5)) for _ in range(count)]
    return [(line, line.translate(str.maketrans(UPPER, LOWER))) for line in lines]


def test_couplets_are_learned_by_the_character() -> None:
    messages: list[str] = []
    model = keel.finetune(
        SYSTEM, couplets(400), task="seq2seq", dev=couplets(20, 1), steps=400, batch=16, lr=5e-3,
        schedule="linear", device="cpu", on_event=lambda event: messages.append(event.get("text", "")),
    )  # fmt: skip
    assert isinstance(model.task, SequenceToSequence)
    assert (model.tokenizer.kind, model.task.target_tokenizer.kind) == ("characters", "characters")
    assert any("the texts look Chinese" in text and "tokenizer='bpe' or 'words'" in text for text in messages)
    assert model.card.scores["dev"]["values"]["exact"]["value"] > 0.9
    assert keel.translate("红山新春风", model=model).text == "绿海旧秋雨"
    assert aligned("春风花", "秋雨草", model=model).target[:-1] == [*"秋雨草"]


ENGLISH_LINES, CHINESE_LINES = ["a red moon", "the sea"], ["Linux 内核的 Boat 很新，春风。", "山水（云雨）……"]


@pytest.mark.parametrize(
    ("sources", "targets", "settings", "kinds"),
    [
        (CHINESE_LINES, CHINESE_LINES, {}, ("characters", "characters")),
        (CHINESE_LINES, CHINESE_LINES, {"tokenizer": "bpe"}, ("bpe", "bpe")),
        (ENGLISH_LINES, CHINESE_LINES, {}, ("bpe", "bpe")),
        (ENGLISH_LINES, CHINESE_LINES, {"separate": True}, ("bpe", "characters")),
        (ENGLISH_LINES, ENGLISH_LINES, {"separate": True}, ("bpe", "bpe")),
    ],
)
def test_chinese_text_gets_a_character_tokenizer(
    sources: list[str], targets: list[str], settings: dict[str, Any], kinds: tuple[str, str]
) -> None:
    messages: list[str] = []
    model = keel.finetune(
        SYSTEM, [*zip(sources, targets, strict=True)] * 4, task="seq2seq", dev=None, steps=1, batch=2, device="cpu",
        on_event=lambda event: messages.append(event.get("text", "")), **settings,
    )  # fmt: skip
    assert isinstance(model.task, SequenceToSequence)
    written = model.task.target_tokenizer
    assert (model.tokenizer.kind, written.kind) == kinds
    assert any("look Chinese" in text for text in messages) == ("characters" in kinds)
    assert [written.decode(written.encode(text).ids) for text in targets] == targets


def test_long_texts_are_reported(task: SequenceToSequence) -> None:
    messages: list[str] = []

    def listen(event: dict[str, Any]) -> None:
        messages.append(event["text"])

    long = " ".join(["one"] * 100)
    pairs = [*numbers(3), (long, "Eins"), ("one", long)]
    data = task.encode_examples(read_aligned(pairs), on_event=listen)
    assert len(data) == 3
    assert messages == ["2 of 5 pairs, such as item 3 of the list, have a text of more than 23 tokens: skipped"]
    task.predict(read_aligned(["one", long]), on_event=listen)
    assert (
        "1 of 2 texts, such as item 1 of the list, have more than 23 tokens: truncated to the first 23" in messages[1]
    )
    with pytest.raises(KeelError, match="every pair has a text of more than 23 tokens"):
        task.encode_examples(read_aligned([(long, "Eins")] * 2))


def test_long_pairs_have_no_loss(task: SequenceToSequence) -> None:
    def scored(pairs: Pairs) -> Scores:
        examples = read_aligned(pairs)
        return task.score(examples, task.predict(examples))

    long = " ".join(["one"] * 100)
    assert "pairs" not in scored(numbers(3)).note
    some = scored([*numbers(3), (long, "Eins"), ("one", long)])
    assert "loss of 3 of 5 pairs" in some.note
    assert some.values["loss"].value == pytest.approx(scored(numbers(3)).values["loss"].value)
    none = scored([(long, "Eins")] * 2)
    assert "loss" not in none.values
    assert "no loss" in none.note


def test_whoever_reads_on_in_between_may_learn(task: SequenceToSequence) -> None:
    data = task.encode_examples(read_aligned(numbers(4)))
    for _ in batched_inference(task, data.lengths, len, batch_size=2):
        assert not torch.is_inference_mode_enabled()


def test_without_what_scores_nothing_is_learned_in_vain(
    translator: tuple[Model, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*given: Any, **settings: Any) -> None:
        raise AssertionError("it computes")

    model, _ = translator
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics.bleu", None)
    settings: dict[str, Any] = {"task": "seq2seq", "steps": 1, "device": "cpu"}
    assert keel.finetune(SYSTEM, numbers(20), dev=None, **settings).task
    monkeypatch.setattr(finetuning_runs, "fit", never)
    monkeypatch.setattr(SequenceToSequence, "predict", never)
    for split in ({}, {"dev": None, "test": numbers(4)}, {"dev": None, "folds": 2}):
        with pytest.raises(KeelError, match="need sacrebleu: pip install"):
            keel.finetune(SYSTEM, numbers(20), **settings, **split)
    with pytest.raises(KeelError, match="need sacrebleu: pip install"):
        keel.evaluate(model, numbers(4))


def test_an_unknown_symbol_is_reported(tokenizer: Tokenizer) -> None:
    messages: list[str] = []
    characters = Tokenizer.train(Corpus.of(["one two Eins Zwei"]), kind="characters", size=40)
    task = SequenceToSequence(SYSTEM, SYSTEM.build_encoder(len(characters)), characters, Labels(kind=TextTarget()))
    task.predict(read_aligned(["one 龙"]), on_event=lambda event: messages.append(event["text"]))
    assert "such as '龙', are not in the vocabulary and become [UNK]" in messages[0]


def test_what_cannot_be_learned_is_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    def finetune(base: Any, data: Any, **settings: Any) -> None:
        keel.finetune(base, data, task="seq2seq", dev=None, steps=1, device="cpu", **settings)

    with pytest.raises(KeelError, match="has only one pair"):
        finetune("transformer", numbers(1))
    with pytest.raises(KeelError, match="sources without targets"):
        finetune("transformer", ["one", "two"])
    bert = replace(Bert(), layers=1, width=32, head_dim=16, sequence_length=16, max_positions=16)
    with pytest.raises(UsageError, match="bert is an encoder; task='seq2seq' needs an encoder-decoder"):
        finetune(bert, numbers(4), out=tmp_path / "models" / "m")
    assert not any(tmp_path.iterdir()), "nothing is left of a run that never began"
    (tmp_path / "own").mkdir()
    with pytest.raises(UsageError, match="gpt is a decoder-only language model; task='seq2seq' needs"):
        finetune(replace(Gpt(), layers=1, width=32, head_dim=16), numbers(4), out=tmp_path / "own")
    assert [*tmp_path.rglob("*")] == [tmp_path / "own"]
    with pytest.raises(UsageError, match="leave out freeze"):
        SequenceToSequence(
            SYSTEM, SYSTEM.build_encoder(len(tokenizer)), tokenizer, Labels(kind=TextTarget()), frozen=True
        )
    with pytest.raises(UsageError, match=r"separate .* is for task='seq2seq'"):
        keel.finetune("cnn", [("a", "x"), ("b", "y")] * 4, separate=True, dev=None, device="cpu")


def test_rows_have_few_shapes_on_a_gpu(task: SequenceToSequence, monkeypatch: pytest.MonkeyPatch) -> None:
    data = task.encode_examples(read_aligned(numbers(40)), batch_size=4)
    draws = [CounterRng(seed=0, step=step, first_example=4 * step, batch_size=4) for step in range(10)]
    free = {task.batch(data, rng, range(4)).signature() for rng in draws}
    monkeypatch.setattr(SequenceToSequence, "_padding_multiple", 8)
    assert len({task.batch(data, rng, range(4)).signature() for rng in draws}) < len(free)
