"""ModernBERT: its parts against their definitions, training, fine-tuning, and folders of our own in transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.nn import functional as F

import keel
from keel.data.token_batch import TokenBatch
from keel.errors import UsageError
from keel.model import Model
from keel.systems.modernbert import ModernBert, ModernBertEncoder, ModernBertPretraining, rotary_positions
from keel.training.counter_rng import CounterRng
from tests.formats.test_modernbert_folders import assert_same
from tests.systems.test_bert import SPECIAL_IDS, random_documents
from tests.tasks.task_sample import sample_of

TINY: dict[str, Any] = {"layers": 4, "width": 32, "head_dim": 8, "local_attention": 8, "sequence_length": 32}
RUN: dict[str, Any] = {"steps": 4, "batch": 4, "vocabulary": 200, "lr": 1e-2, "device": "cpu"}


@pytest.fixture(scope="module")
def english_texts() -> list[str]:
    words = ["rain", "sun", "a river", "the mill", "snow", "our house"]
    return [f"Near {a} we saw {b}. Then {b} met {c}." for a in words for b in words for c in words]


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory, english_texts: list[str]) -> Path:
    folder = tmp_path_factory.mktemp("modernbert") / "model"
    keel.pretrain(ModernBert(**TINY), english_texts, out=folder, **RUN)
    return folder


def make_encoder(std: float = 0.3, **fields: Any) -> ModernBertEncoder:
    torch.manual_seed(0)
    encoder = ModernBert(**TINY | fields).build_encoder(50).eval()
    for weight in encoder.parameters():  # norms too, which begin as ones
        torch.nn.init.normal_(weight, mean=float(weight.dim() == 1), std=std)
    return encoder


@pytest.mark.parametrize(("size", "parameters"), [("base", 149_014_272), ("large", 394_781_696)])
def test_sizes_are_the_published_ones(size: str, parameters: int) -> None:
    """149M and 395M parameters in the paper; transformers counts as many without the prediction head."""
    system = ModernBert.sized(size)
    config = transformers.ModernBertConfig(
        num_hidden_layers=system.layers, hidden_size=system.width, num_attention_heads=system.heads,
        intermediate_size=system.mlp_size,
    )  # fmt: skip
    with torch.device("meta"):
        encoder = system.build_encoder(config.vocab_size)
        peer = transformers.ModernBertModel(config)
    pooler = sum(weight.numel() for weight in encoder.pooler_parameters())
    found = sum(weight.numel() for weight in encoder.parameters()) - pooler
    assert found == sum(weight.numel() for weight in peer.parameters()) == parameters


@pytest.mark.parametrize("length", [1, 5, 64])
def test_rotary_positions_turn_pairs_by_the_angle_of_their_position(length: int) -> None:
    x = torch.randn(2, 3, length, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    pairs = torch.complex(x[..., :4], x[..., 4:])
    angles = torch.arange(length, dtype=torch.float64)[:, None] * 500.0 ** -(torch.arange(4, dtype=torch.float64) / 4)
    turned = pairs * torch.polar(torch.ones_like(angles), angles)
    torch.testing.assert_close(rotary_positions(x, 500.0), torch.cat([turned.real, turned.imag], -1))


def test_products_of_rotated_vectors_depend_on_their_distance_alone() -> None:
    q, k = torch.randn(2, 1, 8, generator=torch.Generator().manual_seed(0)).expand(2, 20, 8)
    scores = rotary_positions(q, 100.0) @ rotary_positions(k, 100.0).T
    torch.testing.assert_close(scores[3:, 3:], scores[:-3, :-3], atol=1e-5, rtol=1e-5)
    assert (scores[0, 1:] - scores[0, 0]).abs().min() > 1e-3


def reach(encoder: ModernBertEncoder, block: int, length: int = 24) -> Tensor:
    """[length, length] whether a block's output at one position depends on its input at another."""
    x = torch.randn(1, length, encoder.width, requires_grad=True)
    output = encoder.stack.blocks[block](x, None)
    found = [torch.autograd.grad(output[0, n].sum(), x, retain_graph=True)[0][0].abs().sum(-1) for n in range(length)]
    return torch.stack(found) > 0


def test_local_layers_reach_half_a_window_to_either_side() -> None:
    encoder = make_encoder()
    distance = (torch.arange(24)[:, None] - torch.arange(24)).abs()
    for number in range(4):
        assert torch.equal(reach(encoder, number), distance <= (24 if number % 3 == 0 else 4)), number


def test_the_feed_forward_network_is_gated_and_the_first_block_has_one_norm() -> None:
    encoder = make_encoder()
    first, second = encoder.stack.blocks[:2]
    x = torch.randn(2, 5, 32)
    value, gate = (x @ first.expand.weight.T).chunk(2, -1)
    torch.testing.assert_close(first.feed_forward(x), (F.gelu(value) * gate) @ first.contract.weight.T)
    assert not [*first.attention_norm.parameters()]
    assert [*second.attention_norm.parameters()]
    assert not [name for name, _ in encoder.named_parameters() if name.endswith("bias")]


@torch.no_grad()
def test_sandwich_norm_normalises_what_a_sublayer_adds() -> None:
    encoder = make_encoder(sandwich_norm=True)
    block, x = encoder.stack.blocks[1], torch.randn(2, 5, 32)
    attended = x + block.after_attention(block.attention(block.attention_norm(x), None))  # type: ignore[operator]
    expected = attended + block.after_feed_forward(block.feed_forward(block.output_norm(attended)))  # type: ignore[operator]
    torch.testing.assert_close(block(x, None), expected)
    plain = block.after_attention(torch.randn(2, 5, 32)) / block.after_attention.weight  # type: ignore[operator]
    assert plain.mean(-1).abs().max() < 1e-5
    assert (plain.var(-1, correction=0) - 1).abs().max() < 1e-3


@torch.no_grad()
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_pooled_features_of_a_batch_are_those_of_each_text_alone(pooling: str) -> None:
    encoder = make_encoder(classifier_pooling=pooling)
    sequences = [[5, *range(6, 30), 9], [5, 7, 9]]
    batch = TokenBatch.pad(sequences)
    found = encoder.pooled_features(batch)
    torch.testing.assert_close(found, encoder.pool_features(encoder(batch), batch), atol=1e-5, rtol=1e-4)
    for row, ids in zip(found, sequences, strict=True):
        top = encoder(TokenBatch.pad([ids])).top[0]
        torch.testing.assert_close(row, top[0] if pooling == "cls" else top.mean(0), atol=1e-5, rtol=1e-4)


def test_the_prediction_head_is_the_pooler_that_fine_tuning_begins_with() -> None:
    data = random_documents(20)
    system = ModernBert(**TINY)
    objective = system.build_objective(system.build_encoder(len(data.ids) + 10), SPECIAL_IDS)
    assert {name for name, _ in objective.named_parameters() if not name.startswith("encoder.")} == {"bias"}
    assert all(weight.requires_grad for weight in objective.parameters())
    top, positions = torch.randn(2, 6, 32), torch.tensor([[1, 3], [0, 5]])
    chosen = torch.stack([top[0, [1, 3]], top[1, [0, 5]]])
    expected = objective.encoder.pool_projection(chosen) @ objective.encoder.words.weight.T + objective.bias
    torch.testing.assert_close(objective.predict_masked(top, positions), expected)


def test_a_pretrained_folder_equals_transformers(pretrained: Path) -> None:
    model = Model.load(pretrained)
    assert model.missing == ()
    peer, report = transformers.AutoModelForMaskedLM.from_pretrained(pretrained, output_loading_info=True)
    assert type(peer).__name__ == "ModernBertForMaskedLM"
    assert not any(report.values())
    assert_same(model, peer.eval(), "ForMaskedLM")
    config = peer.config
    names = ("pad_token_id", "cls_token_id", "sep_token_id", "bos_token_id", "eos_token_id")
    ids = model.tokenizer.pad_id, model.tokenizer.cls_id, model.tokenizer.sep_id
    assert [getattr(config, name) for name in names] == [*ids, *ids[1:]]
    body: Any = transformers.AutoModel.from_pretrained(pretrained).eval()
    assert_same(model, body, "Model")


CLASSES = {
    "classify": "SequenceClassification",
    "pair": "SequenceClassification",
    "tag": "TokenClassification",
    "answer": "QuestionAnswering",
    "choose": "MultipleChoice",
}


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("task", CLASSES)
def test_every_task_is_fine_tuned_and_loads_in_transformers(
    pretrained: Path, tmp_path: Path, task: str, pooling: str
) -> None:
    named = f"ModernBertFor{CLASSES[task]}"
    settings: dict[str, Any] = {"epochs": 1, "batch": 4, "device": "cpu", "dev": None, "classifier_pooling": pooling}
    tuned = keel.finetune(pretrained, sample_of(task).examples, task=task, **settings)
    before, after = Model.load(pretrained).encoder, tuned.encoder
    assert isinstance(after, ModernBertEncoder)
    assert after.classifier_pooling == pooling
    assert not torch.equal(before.state_dict()["pooler.dense.weight"], after.pooler.dense.weight), "it is trained"
    tuned.save(tmp_path / "tuned")
    config = json.loads((tmp_path / "tuned/config.json").read_text())
    assert (config["model_type"], config["architectures"]) == ("modernbert", [named])
    peer, report = getattr(transformers, named).from_pretrained(tmp_path / "tuned", output_loading_info=True)
    assert not any(report.values())
    assert_same(Model.load(tmp_path / "tuned"), peer.eval(), named.removeprefix("ModernBert"))


def test_sandwich_norm_is_keels_own(english_texts: list[str], tmp_path: Path) -> None:
    model = keel.pretrain(ModernBert(**TINY, sandwich_norm=True), english_texts, out=tmp_path / "m", **RUN)
    again = Model.load(tmp_path / "m")
    assert again.fingerprint() == model.fingerprint()
    assert isinstance(again.objective, ModernBertPretraining)
    assert again.system == model.system
    assert "Only `keel.Model.load` reads this folder" in (tmp_path / "m/README.md").read_text()
    with pytest.raises(ValueError, match="sandwich_modernbert"):
        transformers.AutoModel.from_pretrained(tmp_path / "m")


def test_longer_sequences_are_learned_last(english_texts: list[str], tmp_path: Path) -> None:
    settings: dict[str, Any] = {**RUN, "final_sequence_length": 64, "final_share": 0.5}
    model = keel.pretrain(ModernBert(**TINY), english_texts, out=tmp_path / "m", **settings)
    assert model.system.max_length == 64


def test_pairs_of_segments_are_read_as_in_fine_tuning() -> None:
    data = random_documents(60)
    system = ModernBert(**TINY, pair_objective="segments")
    objective = system.build_objective(system.build_encoder(len(data.ids) + 10), SPECIAL_IDS)
    batch = objective.batch(data, CounterRng(seed=1, step=0, first_example=0), range(8))
    assert batch.not_next is None
    assert ((batch.inputs.ids == SPECIAL_IDS.sep_id).sum(1) >= 2).any()
    losses, _ = objective(batch)
    assert losses.keys() == {"mlm"}
    assert system.second_segment == 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"head_dim": 1}, "head_dim 1 is odd"),
        ({"segment_types": 2}, "segment_types"),
        ({"pair_objective": "nsp"}, "'none', 'segments'"),
        ({"variant": "roberta"}, "variant"),
        ({"local_attention": 1}, "local_attention"),
    ],
)
def test_what_it_does_not_have_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ModernBert(**TINY | fields)


@pytest.mark.parametrize("sandwich_norm", [False, True])
@torch.inference_mode()
def test_inference_in_bf16_is_near_fp32(sandwich_norm: bool) -> None:
    encoder = make_encoder(0.1, sandwich_norm=sandwich_norm)
    batch = TokenBatch.pad([[*range(5, 35)], [5, 7, 9]])
    inside = torch.arange(30) < batch.lengths[:, None]
    expected, pooled = encoder(batch).top, encoder.pooled_features(batch)
    with torch.autocast("cpu", torch.bfloat16):
        found, pooled_found = encoder(batch).top, encoder.pooled_features(batch)
    assert not torch.equal(found, expected)
    for one, other in ((found[inside], expected[inside]), (pooled_found, pooled)):
        assert float((one - other).norm() / other.norm()) < 2e-2
