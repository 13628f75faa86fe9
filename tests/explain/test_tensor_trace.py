"""Traced tensors equal those of transformers, the model's own output, and independent recomputations."""

import json
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import nn

import keel
from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError, UsageError
from keel.explain.trace.model_tracing import trace_tensors
from keel.explain.trace.recurrent_recording import gate_values, watch_recurrent
from keel.explain.trace.tensor_picture import MASKED, TensorPicture, picture_size
from keel.explain.trace.tensor_recorder import TensorRecorder
from keel.explain.trace.tensor_trace import PICTURE_BYTES, SIDES, TensorKind, TensorTrace, TracedTensor, TraceStep
from keel.model import Model

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "doctor", "nurse", "ask", "##ed", "she", "was", "late"]
TEXT = "the doctor asked the nurse"
LABELLED = [("the old film was good", "good"), ("a quiet garden", "bad"), ("the film , the story", "good")] * 4
ONCE: dict[str, Any] = {"steps": 2, "batch": 4, "device": "cpu"}
SHAPE: dict[str, Any] = {"layers": 2, "width": 16, "head_dim": 8, "max_positions": 32, "dropout": 0.0}


@pytest.fixture(scope="module")
def bert_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of BERT with both heads that transformers wrote, with random weights."""
    folder = tmp_path_factory.mktemp("hub") / "bert"
    folder.mkdir()
    torch.manual_seed(0)
    shape: dict[str, Any] = {"num_hidden_layers": 3, "num_attention_heads": 2, "hidden_size": 16}
    config = transformers.BertConfig(
        vocab_size=len(WORDS), intermediate_size=32, max_position_embeddings=24, initializer_range=0.5, **shape
    )
    config.architectures = ["BertForPreTraining"]
    transformers.BertForPreTraining(config).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    """Small models of our own, each built once."""
    folder, built = tmp_path_factory.mktemp("models"), dict[str, Model]()
    texts = [text for text, _ in LABELLED]
    bert = {**SHAPE, "sequence_length": 32}
    systems: dict[str, Any] = {
        "bert": lambda: keel.Bert(**bert),
        "electra": lambda: keel.Electra(**bert),
        "modernbert": lambda: keel.ModernBert(**bert, local_attention=4),
        "sandwich": lambda: keel.ModernBert(**bert, sandwich_norm=True),
        "gpt": lambda: keel.Gpt(**bert),
        "rnn": lambda: keel.Rnn(cell="rnn", width=12),
        "gru": lambda: keel.Rnn(cell="gru", width=12),
        "lstm": lambda: keel.Rnn(cell="lstm", width=12),
        "bidirectional": lambda: keel.Rnn(cell="lstm", width=12, bidirectional=True),
        "ulmfit": lambda: keel.Ulmfit(width=12, hidden_size=16, layers=2),
        "elmo": lambda: keel.Elmo(width=8, cell_size=12, character_filters=(4, 4), highway_layers=2, softmax_samples=0),
        "fasttext": lambda: keel.FastText(width=8, buckets=200),
    }
    pairs = [("a b", "x y"), ("b a", "y x"), ("b b", "y y")] * 4
    decoders: dict[str, Any] = {
        "transformer": lambda: keel.Transformer(decoder_layers=2, **SHAPE),
        "pre-norm": lambda: keel.Transformer(decoder_layers=2, pre_norm=True, **SHAPE),
        "seq2seq": lambda: keel.Seq2seq(width=16, attention_dim=8),
        "seq2seq lstm": lambda: keel.Seq2seq(width=16, cell="lstm", scoring="dot", layers=2),
    }

    def build(name: str) -> Model:
        if name not in built:
            if name in systems:
                more: dict[str, Any] = {"min_count": 1} if name in ("elmo", "fasttext") else {}
                built[name] = keel.pretrain(systems[name](), texts * 4, out=folder / name, **{**ONCE, **more})
            else:
                built[name] = keel.finetune(decoders[name](), pairs, task="seq2seq", dev=None, **ONCE)
        return built[name]

    return build


def outputs_of(network: nn.Module, modules: dict[str, nn.Module], **inputs: Any) -> dict[str, torch.Tensor]:
    """Outputs of modules of a network of transformers."""
    found: dict[str, torch.Tensor] = {}
    for name, module in modules.items():
        module.register_forward_hook(lambda _, args, output, name=name: found.update({name: output}))
    with torch.no_grad():
        network(**inputs)
    return found


def split_heads(vectors: torch.Tensor, heads: int = 2) -> np.ndarray:
    """[batch, time, width] to [batch, heads, time, head_dim]."""
    return vectors.unflatten(-1, (heads, -1)).transpose(1, 2).numpy()


def equal(traced: TracedTensor, expected: Any, tolerance: float = 1e-5) -> bool:
    expected = expected.detach().numpy() if isinstance(expected, torch.Tensor) else np.asarray(expected)
    assert traced.shape == expected.shape, (traced.name, traced.shape, expected.shape)
    return bool(np.abs(traced.values - expected).max() < tolerance * max(1, np.abs(expected).max()))


def test_modernbert_shows_its_rotations_windows_and_gates(models: Callable[[str], Model]) -> None:
    model = models("modernbert")
    found = keel.trace("the old [MASK] was good", model=model)
    names = {tensor.name for tensor in found.steps[0].tensors}
    assert not names & {"position embeddings", "segment embeddings", "embedding sum"}
    ids = torch.from_numpy(found.tensor("token ids").values)
    block: Any = model.encoder.blocks()[1]
    with torch.inference_mode():
        layers = model.encoder(TokenBatch.pad(ids.tolist()), all_layers=True).layers
        normed = block.attention_norm(layers[1])
        query = block.attention.add_positions(block.attention.queries(normed))
    assert equal(found.tensor("input embeddings"), layers[0])
    assert equal(found.tensor("attention norm", layer=2), normed)
    assert equal(found.tensor("query", layer=2), query)
    value, gate = torch.from_numpy(found.tensor("feed-forward hidden", layer=2).values).chunk(2, -1)
    assert equal(found.tensor("feed-forward activation", layer=2), torch.nn.functional.gelu(value) * gate)
    assert equal(found.tensor("final layer norm"), layers[2])
    first = [tensor.name for tensor in found.steps[0].tensors if tensor.layer == 1]
    assert "attention norm" not in first, "the first block reads the norm of the embeddings"
    distance = np.abs(np.subtract.outer(np.arange(ids.shape[1]), np.arange(ids.shape[1])))
    far = found.tensor("attention weights", layer=2).values[..., distance > 2]
    assert far.size
    assert not far.any(), "the second layer is local"
    assert found.tensor("attention weights", layer=1).values.all(), "the first layer is global"
    assert "of its position" not in " ".join(found.explanations)


def test_norms_after_sublayers_are_shown(models: Callable[[str], Model]) -> None:
    found = keel.trace("the old film", model=models("sandwich"))
    for name, residual in (("attention", "attention residual"), ("feed-forward", "layer output")):
        after = found.tensor(f"{name} output norm", layer=2)
        assert [source.kind.name for source in after.sources] == [f"{name} output"]
        assert after in found.tensor(residual, layer=2).sources


@pytest.mark.parametrize("second", ["", "she was late"])
def test_bert_equals_transformers(bert_folder: Path, second: str) -> None:
    inputs = transformers.BertTokenizer.from_pretrained(bert_folder)(TEXT, second or None, return_tensors="pt")
    peer: Any = transformers.BertForPreTraining.from_pretrained(bert_folder, attn_implementation="eager").eval()
    with torch.no_grad():
        theirs = peer(**inputs, output_hidden_states=True, output_attentions=True)
    modules: dict[str, nn.Module] = {"words": peer.bert.embeddings.word_embeddings}
    modules |= {"segments": peer.bert.embeddings.token_type_embeddings}
    for number, layer in enumerate(peer.bert.encoder.layer, 1):
        own = layer.attention.self
        modules |= {f"query {number}": own.query, f"key {number}": own.key, f"value {number}": own.value}
        modules |= {
            f"output {number}": layer.attention.output.dense,
            f"norm {number}": layer.attention.output.LayerNorm,
        }
        modules |= {f"hidden {number}": layer.intermediate.dense, f"activated {number}": layer.intermediate}
        modules |= {f"contracted {number}": layer.output.dense}
    outputs = outputs_of(peer, modules, **inputs)
    found = keel.trace(TEXT, second, model=bert_folder)
    assert found.tensor("token ids").values.tolist() == inputs["input_ids"].tolist()
    assert equal(found.tensor("token embeddings"), outputs["words"])
    assert equal(found.tensor("segment embeddings"), outputs["segments"])
    assert equal(found.tensor("input embeddings"), theirs.hidden_states[0])
    for number in range(1, 4):
        for name in ("query", "key", "value"):
            assert equal(found.tensor(name, layer=number), split_heads(outputs[f"{name} {number}"]))
        assert equal(found.tensor("attention weights", layer=number), theirs.attentions[number - 1])
        assert equal(found.tensor("attention output", layer=number), outputs[f"output {number}"])
        assert equal(found.tensor("attention norm", layer=number), outputs[f"norm {number}"])
        assert equal(found.tensor("feed-forward hidden", layer=number), outputs[f"hidden {number}"])
        assert equal(found.tensor("feed-forward activation", layer=number), outputs[f"activated {number}"])
        assert equal(found.tensor("feed-forward output", layer=number), outputs[f"contracted {number}"])
        assert equal(found.tensor("layer output", layer=number), theirs.hidden_states[number])
    if second:
        assert equal(found.tensor("next sentence logits"), theirs.seq_relationship_logits)
        (expected,) = found.steps[0].predictions.values()
        assert expected[0].probability == pytest.approx(keel.next_sentence(TEXT, second, model=bert_folder), abs=1e-5)
    else:
        assert equal(found.tensor("text vector"), Model.load(bert_folder, device="cpu").encode([TEXT]))


def test_what_is_between_follows_from_the_tensors_before(bert_folder: Path) -> None:
    found = keel.trace(TEXT, model=bert_folder)
    for layer in (1, 2, 3):
        get = {each.kind.name: each.values for each in found.steps[0].tensors if each.layer == layer}
        scores = get["query"] @ get["key"].transpose(0, 1, 3, 2) / np.sqrt(8)
        assert np.abs(scores - get["attention scores"]).max() < 1e-5
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        assert np.abs(shares / shares.sum(-1, keepdims=True) - get["attention weights"]).max() < 1e-5
        heads = (get["attention weights"] @ get["value"]).transpose(0, 2, 1, 3).reshape(1, -1, 16)
        assert np.abs(heads - get["concatenated heads"]).max() < 1e-5
        residual = found.tensor("attention residual", layer=layer)
        before, output = (source.values for source in residual.sources)
        assert np.abs(before + output - residual.values).max() < 1e-5
        assert residual.sources[1].name == f"attention output, layer {layer}"
        assert residual.sources[0].kind.stream


def test_gpt2_equals_transformers_at_every_step(gpt_folder: Path) -> None:
    text, tokens = "the farmer is kind", 3
    found = keel.trace(text, model=gpt_folder, tokens=tokens)
    assert [step.title for step in found.steps] == ["text", *(f"decoding step {n}" for n in (1, 2, 3))]
    peer: Any = transformers.GPT2LMHeadModel.from_pretrained(gpt_folder, attn_implementation="eager").eval()
    modules = {f"{n}": layer.attn.c_attn for n, layer in enumerate(peer.transformer.h, 1)}
    modules |= {f"hidden {n}": layer.mlp.c_fc for n, layer in enumerate(peer.transformer.h, 1)}
    ids: list[int] = []
    for number, step in enumerate(found.steps, 1):
        ids += found.tensor("token ids", step=number).values[0].tolist()
        inputs = {"input_ids": torch.tensor([ids])}
        with torch.no_grad():
            theirs = peer(**inputs, output_hidden_states=True, output_attentions=True)
        outputs = outputs_of(peer, modules, **inputs)
        count = len(step.read)
        assert step.cached == len(ids) - count
        for layer in range(1, 4):
            query, key, value = (split_heads(part) for part in outputs[f"{layer}"].split(16, -1))
            assert equal(found.tensor("query", layer=layer, step=number), query[:, :, -count:])
            assert equal(found.tensor("key", layer=layer, step=number), key)
            assert equal(found.tensor("value", layer=layer, step=number), value)
            weights = theirs.attentions[layer - 1][:, :, -count:]
            assert equal(found.tensor("attention weights", layer=layer, step=number), weights)
            hidden = outputs[f"hidden {layer}"][:, -count:]
            assert equal(found.tensor("feed-forward hidden", layer=layer, step=number), hidden)
            if layer < 3:
                states = theirs.hidden_states[layer][:, -count:]
                assert equal(found.tensor("layer output", layer=layer, step=number), states)
        assert equal(found.tensor("final layer norm", step=number), theirs.hidden_states[3][:, -count:])
        assert equal(found.tensor("logits", step=number), theirs.logits[:, -1])
        assert found.tensor("probabilities", step=number).values.sum() == pytest.approx(1, abs=1e-5)
    generated = keel.generate(text, model=gpt_folder, tokens=tokens, temperature=0)
    tokenizer = Model.load(gpt_folder, device="cpu").tokenizer
    assert tokenizer.decode(ids[-tokens:]).strip() == generated.strip()
    kind = found.tensor("key", layer=1, step=2).kind
    assert "KV cache" in kind.meaning
    assert "KV cache" not in found.tensor("key", layer=1).kind.meaning
    first = found.tensor("attention scores", layer=2).values[0, 0]
    assert np.isneginf(first[np.triu_indices(len(first), 1)]).all()


def test_masked_words_are_predicted_as_by_fill(bert_folder: Path) -> None:
    text = "the [MASK] asked the [MASK]"
    found = keel.trace(text, model=bert_folder)
    expected = keel.fill(text, model=bert_folder, top=10)
    assert [*found.steps[0].predictions] == ["[MASK] at 3", "[MASK] at 7"]
    for top, best in zip(found.steps[0].predictions.values(), expected, strict=True):
        assert [each.word for each in top] == [each.word for each in best]
        assert [each.probability for each in top] == pytest.approx([each.probability for each in best], abs=1e-5)
    mean = found.tensor("attention weights", layer=2).values[0, :, 2].mean(0)
    top = ["[CLS]", "the", "[MASK]", "ask", "##ed", "the", "[MASK]", "[SEP]"][int(mean.argmax())]
    sentence = next(each for each in found.explanations if each.startswith("layer 2: "))
    assert f"{top} {mean.max():.2f}" in sentence


def test_padding_is_masked_and_changes_nothing(bert_folder: Path) -> None:
    texts = TEXT, "she was late"
    together = keel.trace(texts[0], model=bert_folder, also=[texts[1]])
    alone = [keel.trace(text, model=bert_folder) for text in texts]
    mask = together.tensor("padding mask").values
    assert mask.shape == (2, 1, 1, 8)
    assert mask[:, 0, 0].sum(1).tolist() == [8, 5]
    assert np.isneginf(together.tensor("attention scores", layer=1).values[1, ..., 5:]).all()
    assert (together.tensor("attention weights", layer=1).values[1, ..., 5:] == 0).all()
    for number, one in enumerate(alone):
        vectors, length = one.tensor("layer output", layer=3).values[0], one.steps[0].tensors[0].shape[1]
        assert np.abs(together.tensor("layer output", layer=3).values[number, :length] - vectors).max() < 1e-5
    assert together.steps[0].labels["tokens"][1][5:] == ["[PAD]"] * 3
    assert "padding mask" not in [tensor.name for tensor in alone[0].tensors]


def test_electra_detects_replaced_tokens(models: Callable[[str], Model]) -> None:
    model = models("electra")
    objective: Any = model.objective
    found = trace_tensors(model, "the old film")
    ids = torch.from_numpy(found.tensor("token ids").values)
    with torch.no_grad():
        expected = objective.eval().detect(TokenBatch.unpadded(ids))
    assert equal(found.tensor("replacement logits"), expected)
    assert found.tensor("projected embeddings").shape[-1] == 16


@pytest.mark.parametrize("system", ["bert", "gpt", "lstm", "elmo", "ulmfit"])
def test_classes_are_those_of_the_model(models: Callable[[str], Model], system: str) -> None:
    model = keel.finetune(models(system), LABELLED, task="classify", dev=None, **ONCE)
    text = "the film was good"
    found = trace_tensors(model, text)
    task: Any = model.task
    expected = task.predict_example_logits(task.read_examples([text]))
    assert equal(found.tensor("logits", step=len(found.steps)), expected)
    best = found.steps[-1].predictions["label"][0]
    assert best.word == model.predict(text).label
    assert best.probability == pytest.approx(model.predict(text).confidence, abs=1e-5)


def test_mixed_layers_tags_answers_and_pairs(models: Callable[[str], Model], tmp_path: Path) -> None:
    bert, text = models("bert"), "the film was good"
    mixed = keel.finetune(bert, LABELLED, task="classify", mix=True, dev=None, **ONCE)
    found = trace_tensors(mixed, text)
    weights, layers = found.tensor("mix weights").values, found.tensor("all layers").values
    expected = found.tensor("mix scale").values * (weights[:, None] * layers).sum(1)
    assert np.abs(expected - found.tensor("scalar mix").values).max() < 1e-5
    tagged = [(text.split(), ["A", *"B" * (len(text.split()) - 1)]) for text, _ in LABELLED]
    tags = keel.finetune(bert, tagged, task="tag", dev=None, **ONCE)
    found = trace_tensors(tags, text)
    predicted = tags.predict(text)
    assert [*found.steps[0].predictions] == ["1. the", "2. film", "3. was", "4. good"]
    assert found.tensor("probabilities").values.max(-1)[0] == pytest.approx(predicted.probabilities, abs=1e-5)
    pairs = [((text, text[::-1]), label) for text, label in LABELLED]
    for encoding in ("cross", "siamese"):
        pair = keel.finetune(bert, pairs, task="pair", pair_encoding=encoding, dev=None, **ONCE)
        found = trace_tensors(pair, text, "a quiet garden")
        prediction = pair.predict((text, "a quiet garden"))
        assert found.steps[0].predictions["label"][0].probability == pytest.approx(prediction.confidence, abs=1e-5)
        assert found.tensor("token ids").shape[0] == (2 if encoding == "siamese" else 1)
    question = {"id": "1", "question": "what was good?", "answers": [{"text": "film", "answer_start": 8}]}
    squad = {"data": [{"title": "", "paragraphs": [{"context": "the old film was good", "qas": [question]}]}] * 4}
    (tmp_path / "squad.json").write_text(json.dumps(squad))
    answers = keel.finetune(bert, tmp_path / "squad.json", task="answer", dev=None, **ONCE)
    found = trace_tensors(answers, "the old film was good", "what was good?")
    shares = found.tensor("probabilities").values
    assert shares.sum(1) == pytest.approx(np.ones((1, 2)), abs=1e-5)
    assert (
        found.steps[0].predictions["answer"][0].word
        == answers.predict(("the old film was good", "what was good?")).text
    )


@pytest.mark.parametrize("name", ["rnn", "gru", "lstm", "ulmfit"])
def test_recurrent_language_models_step_by_step(models: Callable[[str], Model], name: str) -> None:
    model, text, tokens = models(name), "the old film", 2
    objective: Any = model.objective
    found = trace_tensors(model, text, tokens=tokens)
    ids = [found.tensor("token ids", step=step).values[0, 0] for step in range(1, 1 + len(found.steps))]
    assert ids[0] == objective.bos_id
    assert len(found.steps) == 1 + 3 + tokens
    with torch.no_grad():
        logits = objective.eval().logits_at(torch.tensor([ids]), torch.arange(len(ids)))
    for step, expected in enumerate(logits, 1):
        assert equal(found.tensor("logits", step=step), expected[None])
    generated = keel.generate(text, model=model, tokens=tokens, temperature=0)
    assert model.tokenizer.decode(ids[-tokens:]) == generated.strip()
    for layer in (1, 2):
        for step in range(2, len(found.steps) + 1):
            before = found.tensor("hidden state", layer=layer, step=step - 1)
            assert equal(found.tensor("previous hidden state", layer=layer, step=step), before.values)


@pytest.mark.parametrize("name", ["rnn", "gru", "lstm", "bidirectional", "ulmfit", "elmo"])
def test_gates_give_the_hidden_states_of_the_network(models: Callable[[str], Model], name: str) -> None:
    """Each hidden state and cell state follows from the gates that are shown, by the formula that is shown."""
    model = models(name)
    with torch.no_grad(), TensorRecorder() as recorder:
        runs = watch_recurrent(recorder, model.encoder.eval())
        assert runs is not None
        ids = torch.tensor([model.tokenizer.encode("the old film was good").ids])
        model.encoder(model.system.with_subword_units(TokenBatch.unpadded(ids), model.tokenizer))
    assert len(runs) == 2 * (2 if name in ("bidirectional", "elmo") else 1)
    for run in runs:
        hidden, cells = run.hidden, run.cells
        for x, expected in zip(run.inputs, run.outputs, strict=True):
            gates, hidden, cells = gate_values(run.module, run.direction, x, hidden, cells)
            assert (hidden - expected).abs().max() < 1e-5
            assert (cells is None) == ("cell state" not in gates)


def test_time_steps_of_elmo_read_in_both_directions(models: Callable[[str], Model]) -> None:
    model = models("elmo")
    found = trace_tensors(model, "the old film")
    titles = [step.title for step in found.steps]
    assert titles == ["input", *(f"time step {number}" for number in range(1, 6)), "output"]
    assert found.steps[2].read == ["the", "film"]
    assert found.steps[2].labels["directions"] == [["forward: the", "backward: film"]]
    assert equal(found.tensor("text vector", step=len(titles)), model.encode(["the old film"]))
    top = found.tensor("output vectors", step=len(titles)).values[0]
    forward = (
        found.tensor("hidden state", layer=2, step=3).values[0, 0]
        + found.tensor("hidden state", layer=1, step=3).values[0, 0]
    )  # a residual connection
    assert np.abs(top[1, :8] - forward).max() < 1e-5


@pytest.mark.parametrize("name", ["transformer", "pre-norm", "seq2seq", "seq2seq lstm"])
def test_decoders_equal_one_pass_over_the_target(models: Callable[[str], Model], name: str) -> None:
    model = models(name)
    task: Any = model.task
    found = trace_tensors(model, "a b", "x y")
    steps = [number for number, step in enumerate(found.steps, 1) if step.title.startswith("decoder step")]
    assert len(steps) == 3
    target = task.target_tokenizer
    ids = [target.cls_id, *target.encode("x y").ids]
    assert [found.tensor("token ids", step=step).values[0, 0] for step in steps] == ids
    batch = TokenBatch.unpadded(
        torch.tensor([model.system.build_inputs(task.tokenizer, task.tokenizer.encode("a b").ids).ids])
    )
    with torch.no_grad():
        source = task.eval().decoder.project_source(task.encoder(batch), batch)
        vectors, _ = task.decoder(torch.tensor([ids]), source)
        logits = task.decoder.logits(vectors)
    for step, expected in zip(steps, logits[0], strict=True):
        assert equal(found.tensor("logits", step=step), expected[None])
    if name.startswith("seq2seq"):
        attention = keel.attention("a b", "x y", model=model)
        for row, step in enumerate(steps):
            weights = found.tensor("attention weights", step=step)
            assert equal(weights, attention.weights[0, :1, row])
            shares = np.exp(found.tensor("attention scores", step=step).values)
            assert np.abs(shares / shares.sum() - weights.values).max() < 1e-5
            states = found.tensor("output vectors", step=steps[0] - 1).values
            assert np.abs(weights.values @ states[0] - found.tensor("context", step=step).values).max() < 1e-5
        return
    cross = keel.attention("a b", "x y", model=model)
    for layer in (1, 2):
        assert equal(found.tensor("cross-attention key", layer=layer), source.vectors[:, layer - 1, 0])
        for row, step in enumerate(steps):
            assert found.tensor("key", layer=layer, step=step).shape == (1, 2, row + 1, 8)
            weights = found.tensor("cross-attention weights", layer=layer, step=step)
            assert equal(weights, cross.weights[layer - 1 : layer, :, row : row + 1])
            assert weights.sources[0].sources[1].name == f"cross-attention key, layer {layer}"
        names = [each.name for step in steps for each in found.steps[step - 1].tensors]
        assert f"cross-attention key, layer {layer}" not in names


@pytest.mark.parametrize("name", ["transformer", "seq2seq"])
def test_without_a_target_decoding_is_greedy(models: Callable[[str], Model], name: str) -> None:
    model = models(name)
    task: Any = model.task
    found = trace_tensors(model, "a b", tokens=4)
    (expected,) = keel.translate(["a b"], model=model, beams=1)
    ids = [found.tensor("token ids", step=n).values[0, 0] for n, step in enumerate(found.steps, 1) if step.chosen][1:]
    text = task.target_tokenizer.decode([id for id in ids if id != task.target_tokenizer.sep_id])
    assert bool(text) == bool(str(expected)), "or every text would begin with it"
    assert str(expected).startswith(text)


def test_word_vectors_and_cnn(models: Callable[[str], Model]) -> None:
    words = models("fasttext")
    found = trace_tensors(words, "the old unseenword")
    assert [tensor.name for tensor in found.tensors] == ["token ids", "word vectors", "text vector"]
    assert equal(found.tensor("text vector"), words.encode(["the old unseenword"]))
    assert (found.tensor("token ids").values[0] >= 0).tolist() == [True, True, False], "beyond the vocabulary"
    assert found.steps[0].read[2] == "unseenword"
    cnn = keel.finetune(keel.Cnn(width=8, filters=4), LABELLED, task="classify", dev=None, **ONCE)
    found = trace_tensors(cnn, "the old film")
    activations = found.tensor("filter activations").values[0]
    raw = np.concatenate([found.tensor(f"filters over {size} tokens").values[0] for size in (3, 4, 5)], 1)
    assert np.abs(np.maximum(raw, 0) - activations).max() < 1e-6
    assert np.abs(activations.max(0) - found.tensor("classifier input").values[0]).max() < 1e-6


def test_nothing_stays_behind_and_other_threads_are_not_recorded(bert_folder: Path) -> None:
    model = Model.load(bert_folder, device="cpu")
    before = model.encode(TEXT)
    names: list[int] = []
    kind = TensorKind(name="x", axes=("batch", "tokens", "width"), meaning="")
    with TensorRecorder() as recorder:
        recorder.watch(model.encoder.blocks()[0], after=kind)
        thread = Thread(target=lambda: names.append(len(model.encode([TEXT]))))
        thread.start()
        thread.join()
        assert names == [1]
        assert len(recorder) == 0
        model.encode(TEXT)
        assert len(recorder) == 1
    trace_tensors(model, TEXT)
    hooks = [hook for module in model.encoder.modules() for hook in (module._forward_hooks, module._forward_pre_hooks)]
    assert not any(hooks)
    assert np.array_equal(model.encode(TEXT), before)


def test_hooks_are_removed_after_an_error(bert_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model.load(bert_folder, device="cpu")
    monkeypatch.setattr(model.encoder.blocks()[2], "feed_forward", lambda x: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        trace_tensors(model, TEXT)
    assert not any(module._forward_hooks for module in model.encoder.modules())


def test_pictures_keep_extremes_and_masks() -> None:
    values = np.zeros((1, 300, 200), np.float32)
    values[0, 123, 45], values[0, 7, 199], values[0, 250:] = 4.0, -2.0, -np.inf
    picture = TensorPicture.of(values, 32)
    assert picture.cells.shape == (1, 32, 32)
    decoded = picture.decoded()[0]
    assert decoded[123 * 32 // 300, 45 * 32 // 200] == 4.0
    assert decoded[0, 31] == pytest.approx(-2, abs=picture.error)
    assert (picture.cells[0, 27:] == MASKED).all()
    random = np.random.default_rng(0).normal(size=(2, 3, 5, 7)).astype(np.float32)
    picture = TensorPicture.of(random)
    assert np.abs(picture.decoded() - random.reshape(6, 5, 7)).max() <= picture.error
    shares = np.abs(random)
    picture = TensorPicture.of(shares)
    assert np.abs(picture.decoded() - shares.reshape(6, 5, 7)).max() <= picture.error < 0.005 * shares.max()
    constant = TensorPicture.of(np.zeros((4,), np.float32))
    assert (constant.decoded() == 0).all()


def test_plain_data_is_bounded(bert_folder: Path) -> None:
    data = json.loads(json.dumps(keel.trace(TEXT, model=bert_folder).to_dict()))
    tensors, kinds = data["tensors"], data["kinds"]
    query = next(each for each in tensors if kinds[each["kind"]]["name"] == "query" and each["layer"] == 2)
    assert query["shape"] == [1, 2, 8, 8]
    assert kinds[query["kind"]]["axes"] == ["batch", "heads", "queries", "head dim"]
    assert kinds[tensors[query["sources"][0]]["kind"]]["name"] == "layer output"
    assert data["steps"][0]["count"] == len(tensors)
    kind = TensorKind(name="x", axes=("batch", "heads", "queries", "keys"), meaning="")
    shared = np.zeros((1, 64, 32, 32), np.float32)
    many = [TracedTensor(kind=kind, values=shared, layer=number) for number in range(3_000)]
    step = TraceStep(title="", tensors=many, labels={"queries": [["x" * 1000] * 128]})
    huge = TensorTrace(model="", system="", summary="", text="", steps=[step])
    side = huge.picture_side()
    assert sum(picture_size(each.shape, side) for each in many) <= PICTURE_BYTES
    assert side in SIDES
    few = TensorTrace(
        model="", system="", summary="", text="", steps=[TraceStep(title="", tensors=many[:2], labels={})]
    )
    assert few.picture_side() == 64
    assert len(json.dumps(huge.to_dict())) < 4_000_000


def test_lines_fit_a_terminal(bert_folder: Path, gpt_folder: Path, models: Callable[[str], Model]) -> None:
    traces = [keel.trace("the [MASK]", model=bert_folder), keel.trace("the farmer is late", model=gpt_folder, tokens=2)]
    for found in (*traces, trace_tensors(models("pre-norm"), "a b", "x y")):
        for lines in (found.lines(), found.lines(layer=2), found.lines(everything=True)):
            assert max(map(len, lines)) <= 80
        lines = found.lines()
        assert sum(line.startswith("  query ") for line in lines) < sum(
            line.startswith("  query ") for line in found.lines(everything=True)
        )
        assert any("W_Q" in line for line in found.lines(layer=2))
        with pytest.raises(KeelError, match="choose from 1 to"):
            found.lines(layer=9)


def test_what_cannot_be_traced_is_refused(bert_folder: Path, gpt_folder: Path, models: Callable[[str], Model]) -> None:
    counts = keel.finetune(keel.Onehot(), LABELLED, task="classify", dev=None)
    wrong: list[tuple[Any, tuple[str, ...], dict[str, Any], str]] = [
        (counts, ("the film",), {}, "counts words"),
        (bert_folder, ("  ",), {}, "empty"),
        (bert_folder, ("the " * 30,), {}, "at most"),
        (bert_folder, ("the",), {"tokens": 3}, "does not generate"),
        (bert_folder, ("the", "she"), {"also": ["late"]}, "also"),
        (gpt_folder, ("the", "she"), {}, "one text"),
        (models("fasttext"), ("the " * 200,), {}, "128"),
        (models("lstm"), ("the", "she"), {}, "one text"),
    ]
    for model, texts, settings, part in wrong:
        with pytest.raises(UsageError, match=part):
            keel.trace(*texts, model=model, **settings)
    found = keel.trace("the", model=bert_folder)
    for request in ({"layer": 9}, {"step": 2}):
        with pytest.raises(KeelError):
            found.tensor("query", **request)


def test_a_sink_is_the_first_key() -> None:
    tokenizer = Tokenizer.from_words(["a", "b"])
    system = keel.Gpt(layers=1, width=16, head_dim=8, max_positions=8, sequence_length=8, sink=True)
    encoder = system.build_encoder(len(tokenizer))
    model = Model(
        system=system, encoder=encoder, tokenizer=tokenizer, objective=system.build_objective(encoder, tokenizer)
    )
    found = trace_tensors(model, "a b", tokens=1)
    assert found.steps[0].labels["keys"][0][0] == "<sink>"
    assert found.tensor("key", layer=1).shape == (1, 2, 4, 8)
    assert found.tensor("token embeddings").shape == (1, 3, 16)
    assert len(found.steps[1].labels["keys"][0]) == found.tensor("key", layer=1, step=2).shape[2] == 5
