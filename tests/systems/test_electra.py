"""ELECTRA against transformers with the same weights; replacements, embedding sharing, folders in both directions."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import keel
from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError, UsageError
from keel.formats.architectures import ELECTRA
from keel.model import Model
from keel.systems.bert import BertPretraining
from keel.systems.electra import Electra, ElectraBatch, ElectraPretraining
from keel.training.counter_rng import CounterRng
from tests.systems.test_bert import SPECIAL_IDS, random_documents

TINY: dict[str, Any] = {"layers": 2, "width": 32, "head_dim": 8, "max_positions": 64, "sequence_length": 32}
RUN: dict[str, Any] = {"steps": 4, "batch": 4, "vocabulary": 200, "lr": 1e-2, "device": "cpu"}
DATA = random_documents(60)


def make_objective(**fields: Any) -> ElectraPretraining:
    torch.manual_seed(0)
    system = Electra(**TINY | fields)
    objective = system.build_objective(system.build_encoder(len(DATA.ids) + 10), SPECIAL_IDS)
    assert isinstance(objective, ElectraPretraining)
    return objective


def make_batch(objective: ElectraPretraining, step: int = 0, rows: range = range(32)) -> ElectraBatch:
    return objective.batch(DATA, CounterRng(seed=1, step=step, first_example=step * 32), rows)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory, english_texts: list[str]) -> tuple[Path, Model]:
    folder = tmp_path_factory.mktemp("electra") / "model"
    return folder, keel.pretrain(Electra(**TINY), english_texts, out=folder, **RUN)


@pytest.fixture(scope="module")
def english_texts() -> list[str]:
    words = ["rain", "sun", "a river", "the mill", "snow", "our house"]
    return [f"Near {a} we saw {b}. Then {b} met {c}." for a in words for b in words for c in words]


def inputs_of(tokenizer: Tokenizer, texts: list[str]) -> tuple[TokenBatch, dict[str, Tensor]]:
    """Padded inputs for Keel and for transformers."""
    batch = TokenBatch.pad([[tokenizer.cls_id, *tokenizer.encode(text).ids, tokenizer.sep_id] for text in texts])
    mask = torch.arange(batch.ids.shape[1]) < batch.lengths[:, None]
    return batch, {"input_ids": batch.ids, "attention_mask": mask.long()}


@pytest.mark.parametrize(
    ("size", "parameters", "generator"),
    [("small", 13_483_008, 64), ("base", 108_891_648, 256), ("large", 334_092_288, 256)],
)
def test_sizes_are_those_of_google(size: str, parameters: int, generator: int) -> None:
    system = Electra.sized(size)
    with torch.device("meta"):
        encoder = system.build_encoder(30_522)
    pooler = sum(weight.numel() for weight in encoder.pooler_parameters())  # of the classification head
    assert sum(weight.numel() for weight in encoder.parameters()) - pooler == parameters
    assert system.generator.width == generator
    assert system.generator.embedding_width == system.embedding_width


def test_span_masking_and_a_masking_rate_that_changes_are_those_of_its_generator() -> None:
    objective = make_objective(mask_rate=0.4, final_mask_rate=0.15, mask_span=10)
    assert objective.follows_progress
    shares = []
    for step in (0, 9):
        rng = CounterRng(seed=1, step=step, first_example=0, steps=10)
        batch = objective.batch(DATA, rng, range(200))
        assert all(map(torch.equal, batch.masked.tensors(), objective.generator.batch(DATA, rng, range(200)).tensors()))
        shares.append(float(batch.masked.weights.sum() / (batch.masked.inputs.lengths - 3).sum()))
        neighbours = batch.masked.masked_positions.diff(dim=1).abs()[batch.masked.weights[:, 1:] > 0] == 1
        assert neighbours.float().mean() > 0.5, "spans"
    assert shares == [pytest.approx(0.4, abs=0.02), pytest.approx(0.175, abs=0.02)]


def test_replacements_are_samples_of_the_generator() -> None:
    objective = make_objective().eval()
    batch = make_batch(objective)
    masked = batch.masked
    seen: list[TokenBatch] = []
    detect = objective.detect
    objective.detect = lambda inputs: (seen.append(inputs), detect(inputs))[1]  # type: ignore[method-assign]
    losses, _ = objective(batch)
    original = masked.inputs.ids.scatter(1, masked.masked_positions, masked.targets)
    positions = torch.zeros_like(original).scatter(1, masked.masked_positions, (masked.weights > 0).long()) > 0
    changed = seen[0].ids != original
    assert not changed[~positions].any(), "only masked positions are replaced"
    assert changed[positions].float().mean() > 0.9, "an untrained generator is hardly ever right"
    assert not (seen[0].ids[positions] == SPECIAL_IDS.mask_id).all()
    logits = detect(seen[0])
    inside = torch.arange(original.shape[1]) < masked.inputs.lengths[:, None]
    expected = torch.nn.functional.binary_cross_entropy_with_logits(
        logits[inside], changed[inside].float(), reduction="sum"
    )
    assert float(losses["rtd"].detach()) == pytest.approx(50 * float(expected.detach()), rel=1e-5)
    assert objective.counts(batch)["rtd"] == inside.sum()


def test_examples_do_not_depend_on_those_around_them() -> None:
    objective = make_objective()
    whole, part = make_batch(objective), make_batch(objective, rows=range(5, 20))
    assert torch.equal(part.uniform, whole.uniform[5:20])
    assert torch.equal(part.masked.inputs.ids, whole.masked.inputs.ids[5:20])
    assert not torch.equal(make_batch(objective, step=1).uniform, whole.uniform)
    assert 0 <= whole.uniform.min() < 0.05 < 0.95 < whole.uniform.max() < 1


def test_disentangled_embeddings_of_the_generator_get_no_gradient_from_detection() -> None:
    tied, disentangled = make_objective(embedding_sharing="tied"), make_objective()
    for objective in (tied, disentangled):
        objective(make_batch(objective))[0]["rtd"].backward()
    assert tied.generator.encoder.words.weight is tied.encoder.words.weight
    assert tied.output_embeddings.grad is not None
    assert disentangled.output_embeddings.grad is None
    assert disentangled.difference is not None
    assert disentangled.difference.weight.grad is not None
    assert all(weight.grad is None for weight in disentangled.generator.parameters())


def test_the_encoder_has_the_sum_of_both_tables_after_training() -> None:
    objective = make_objective().eval()
    assert objective.difference is not None
    with torch.no_grad():
        objective.difference.weight.normal_()
    inputs = make_batch(objective).masked.inputs
    expected = objective.detect(inputs)
    objective.finish()
    top = objective.encoder(inputs).top
    found = objective.detector(torch.nn.functional.gelu(objective.transform(top))).squeeze(-1)
    assert torch.allclose(found, expected, atol=1e-5)
    before = objective.difference.weight.clone()
    objective.setup(DATA)
    assert torch.allclose(objective.difference.weight, before, atol=1e-6)


@pytest.mark.parametrize("sharing", ["tied", "disentangled"])
def test_resume_is_bit_exact(tmp_path: Path, english_texts: list[str], sharing: str) -> None:
    system = Electra(**TINY, embedding_sharing=sharing)  # type: ignore[arg-type]
    settings = {**RUN, "checkpoint_every": 2, "average": 0.5}

    def stop(event: dict[str, Any]) -> None:
        if event["event"] == "checkpoint" and event["step"] == 2:
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        keel.pretrain(system, english_texts, out=tmp_path / "a", on_event=stop, **settings)
    resumed = keel.pretrain(system, english_texts, out=tmp_path / "a", **settings)
    whole = keel.pretrain(system, english_texts, out=tmp_path / "b", **settings)
    assert resumed.objective is not None
    assert whole.objective is not None
    for name, tensor in whole.objective.state_dict().items():
        assert torch.equal(tensor, resumed.objective.state_dict()[name]), name


def test_a_folder_equals_transformers_and_keeps_the_generator(pretrained: tuple[Path, Model]) -> None:
    folder, model = pretrained
    loaded = Model.load(folder)
    assert loaded.missing == ()
    assert [[word.word for word in mask] for mask in loaded.fill("Near [MASK] we saw snow.")] == [
        [word.word for word in mask] for mask in model.fill("Near [MASK] we saw snow.")
    ]
    batch, theirs = inputs_of(loaded.tokenizer, ["Near rain we saw snow.", "Then snow met the mill near our house."])
    peer = transformers.ElectraForPreTraining.from_pretrained(folder).eval()
    body = transformers.ElectraModel.from_pretrained(folder).eval()
    with torch.no_grad():
        inside = theirs["attention_mask"] > 0
        top = loaded.encoder(batch).top
        assert torch.allclose(body(**theirs).last_hidden_state[inside], top[inside], atol=1e-5)
        assert isinstance(loaded.objective, ElectraPretraining)
        ours = loaded.objective.detector(torch.nn.functional.gelu(loaded.objective.transform(top))).squeeze(-1)
        assert torch.allclose(peer(**theirs).logits[inside], ours[inside], atol=1e-5)


@pytest.mark.parametrize(
    ("task", "labels", "named"),
    [
        ("classify", ["good", "bad"], "ElectraForSequenceClassification"),
        ("tag", ["O O O O O", "O B-X O O O"], "ElectraForTokenClassification"),
    ],
)
def test_fine_tuned_folders_equal_transformers(
    pretrained: tuple[Path, Model], tmp_path: Path, task: str, labels: list[str], named: str
) -> None:
    words = ["Near", "rain", "we", "saw", "snow"]
    examples: Any = [(" ".join(words), label) for label in labels] * 4
    if task == "tag":
        examples = [(words, label.split()) for label in labels] * 4
    tuned = keel.finetune(pretrained[0], examples, task=task, epochs=1, batch=4, device="cpu")
    tuned.save(tmp_path / "tuned")
    peer = getattr(transformers, named).from_pretrained(tmp_path / "tuned").eval()
    assert [type(peer).__name__] == peer.config.architectures == [named]
    again = Model.load(tmp_path / "tuned")
    batch, theirs = inputs_of(again.tokenizer, ["Near rain we saw snow"])
    assert again.task is not None
    with torch.no_grad():
        logits = peer(**theirs).logits
        if task == "classify":
            assert isinstance(again.task.classifier, torch.nn.Linear)
            ours = again.task.classifier(again.encoder.pool(again.encoder(batch), batch))
        else:
            assert isinstance(again.task.classifier, torch.nn.Linear)
            ours = again.task.classifier(again.encoder(batch).top)
    assert torch.allclose(logits, ours, atol=1e-5)


@pytest.mark.parametrize(
    ("named", "missing"),
    [
        ("ElectraForPreTraining", ("masked language model head",)),
        ("ElectraModel", ("replaced token detection head", "masked language model head")),
        ("ElectraForMaskedLM", ()),
        ("ElectraForSequenceClassification", ("replaced token detection head", "masked language model head")),
    ],
)
def test_their_folders_load(
    pretrained: tuple[Path, Model], tmp_path: Path, named: str, missing: tuple[str, ...]
) -> None:
    tokenizer = pretrained[1].tokenizer
    config = transformers.ElectraConfig(
        vocab_size=len(tokenizer), embedding_size=16, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=48, max_position_embeddings=40,
    )  # fmt: skip
    torch.manual_seed(0)
    peer = getattr(transformers, named)(config).eval()
    peer.save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    model = Model.load(tmp_path)
    assert (model.system.name, model.missing) == ("electra", missing)
    batch, theirs = inputs_of(tokenizer, ["Near rain we saw snow."])
    body = peer if named == "ElectraModel" else peer.electra
    with torch.no_grad():
        assert torch.allclose(body(**theirs).last_hidden_state, model.encoder(batch).top, atol=1e-5)
        if model.task is not None:
            pooled = model.encoder.pool(model.encoder(batch), batch)
            assert torch.allclose(peer(**theirs).logits, model.task.classifier(pooled), atol=1e-5)  # type: ignore[operator]
        if named == "ElectraForMaskedLM":
            assert_fills_as(peer, model, theirs, batch)
            model.save(tmp_path / "ours")
            again, report = transformers.AutoModelForMaskedLM.from_pretrained(
                tmp_path / "ours", output_loading_info=True
            )
            assert not any(report.values())
            assert_fills_as(again.eval(), Model.load(tmp_path / "ours"), theirs, batch)
            return
    with pytest.raises(KeelError, match="no masked language model head"):
        model.fill("Near [MASK].")


def assert_fills_as(peer: Any, model: Model, inputs: dict[str, Tensor], batch: TokenBatch) -> None:
    assert isinstance(model.objective, BertPretraining)
    ours = model.objective.masked_logits(batch, torch.arange(batch.ids.shape[1])[None])
    torch.testing.assert_close(peer(**inputs).logits, ours, atol=1e-5, rtol=0)
    assert len(model.fill("Near [MASK].")[0]) == 5


def test_a_published_generator_is_trained_further(
    pretrained: tuple[Path, Model], english_texts: list[str], tmp_path: Path
) -> None:
    tokenizer = pretrained[1].tokenizer
    config = transformers.ElectraConfig(
        vocab_size=len(tokenizer), embedding_size=16, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=48, max_position_embeddings=40,
    )  # fmt: skip
    transformers.ElectraForMaskedLM(config).save_pretrained(tmp_path / "theirs")
    tokenizer.save(tmp_path / "theirs")
    keel.convert(tmp_path / "theirs", tmp_path / "ours")
    keel.pretrain(tmp_path / "ours", english_texts, out=tmp_path / "more", **RUN)
    assert Model.load(tmp_path / "more").missing == ()
    rows = [("Near rain", "a"), ("our house", "b")] * 4
    tuned = keel.finetune(tmp_path / "more", rows, out=tmp_path / "tuned", epochs=1, batch=4, device="cpu")
    peer = transformers.ElectraForSequenceClassification.from_pretrained(tmp_path / "tuned").eval()
    batch, theirs = inputs_of(tokenizer, ["Near rain"])
    again = Model.load(tmp_path / "tuned")
    assert again.system == tuned.system
    assert again.task is not None
    with torch.no_grad():
        ours = again.task.classifier(again.encoder.pool(again.encoder(batch), batch))  # type: ignore[operator]
        assert torch.allclose(peer(**theirs).logits, ours, atol=1e-5)


def test_generator_equals_transformers(pretrained: tuple[Path, Model]) -> None:
    """The generator's weights in an ElectraForMaskedLM give the same logits."""
    model = pretrained[1]
    assert isinstance(model.objective, ElectraPretraining)
    generator, small = model.objective.generator, model.objective.system.generator
    peer = transformers.ElectraForMaskedLM(
        transformers.ElectraConfig(
            vocab_size=len(model.tokenizer),
            embedding_size=small.embedding_width,
            hidden_size=small.width,
            num_hidden_layers=small.layers,
            num_attention_heads=small.heads,
            intermediate_size=small.mlp_size,
            max_position_embeddings=small.max_positions,
        )
    ).eval()
    weights = {"generator_lm_head.bias": generator.bias, "generator_lm_head.weight": generator.output_embeddings}
    for name in ("weight", "bias"):
        weights[f"generator_predictions.dense.{name}"] = getattr(generator.transform, name)
        weights[f"generator_predictions.LayerNorm.{name}"] = getattr(generator.norm, name)
    for name, tensor in generator.encoder.state_dict().items():
        theirs = ELECTRA.theirs(f"encoder.{name}")
        weights |= dict(zip(theirs, tensor.chunk(len(theirs)), strict=True))
    weights = {name: tensor for name, tensor in weights.items() if not name.startswith("classifier.")}
    assert not peer.load_state_dict(weights, strict=False).unexpected_keys
    batch, theirs_inputs = inputs_of(model.tokenizer, ["Near [MASK] we saw snow."])
    with torch.no_grad():
        ours = generator.masked_logits(batch, torch.arange(batch.ids.shape[1])[None])
        assert torch.allclose(peer(**theirs_inputs).logits, ours, atol=1e-5)


def test_a_loss_on_pairs_is_refused() -> None:
    with pytest.raises(UsageError, match="one of 'none', 'segments'"):
        make_objective(pair_objective="nsp")


def test_variants_of_bert_are_refused() -> None:
    with pytest.raises(UsageError, match="variant"):
        make_objective(variant="distilbert")


def test_differences_of_embeddings_follow_from_the_stored_tables(tmp_path: Path, english_texts: list[str]) -> None:
    model = keel.pretrain(Electra(**TINY), english_texts, out=tmp_path / "m", **RUN)
    assert "difference.weight" not in model.tensors()
    loaded = Model.load(tmp_path / "m", device="cpu")
    inputs = TokenBatch.pad([loaded.tokenizer.encode("the sea").ids])
    assert isinstance(model.objective, ElectraPretraining)
    assert isinstance(loaded.objective, ElectraPretraining)
    found, expected = loaded.objective.detect(inputs), model.objective.cpu().eval().detect(inputs)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert loaded.fill("the [MASK] is here")[0][0].word == model.fill("the [MASK] is here")[0][0].word


def test_positions_of_a_longer_phase_start_as_copies() -> None:
    objective = make_objective(final_sequence_length=64)
    tables = [encoder.get_parameter("positions.weight") for encoder in (objective.encoder, objective.generator.encoder)]
    before = [table.detach().clone() for table in tables]
    objective.start_phase(1)
    for table, old in zip(tables, before, strict=True):
        assert torch.equal(table[:32], old[:32])
        assert torch.equal(table[32:], old[:32])
    objective.trained_length = 64  # of a model that is trained further
    with torch.no_grad():
        tables[0][40] = 1.0
    objective.start_phase(1)
    assert tables[0][40].eq(1.0).all()
