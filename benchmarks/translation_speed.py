"""Beam search on a CPU: Keel against joeynmt, the same trained weights in both, the same sentences, the same beam.

    pip install joeynmt==2.3.0
    python benchmarks/multi30k.py --data multi30k/ --out DIR          # trains the model
    python benchmarks/translation_speed.py --model DIR/transformer --data multi30k/ --threads 2 --rounds 3

Sentences go in batches sorted by length, for both the same; rounds alternate, medians are of the search alone
(ids in, ids out). joeynmt's batches follow each other, every product on all threads; Keel's, as in `keel translate`, go
side by side, a thread each. As the weights are the same, so is BLEU but for ties and for when a search stops: both are
shown.
"""

import argparse
import time
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

import keel
from keel.data.text_files import open_text
from keel.data.token_batch import TokenBatch
from keel.generation.beam_search import BeamSearch, beam_search
from keel.generation.thread_pool import run_in_threads
from keel.systems.transformer import Transformer
from keel.tasks.sequence_to_sequence import SequenceToSequence


class JoeyVocabulary:
    """The attributes of a vocabulary that joeynmt reads."""

    def __init__(self, task: SequenceToSequence) -> None:
        tokenizer = task.target_tokenizer
        self.size = len(tokenizer)
        self.pad_index, self.unk_index, self.sep_index = tokenizer.pad_id, tokenizer.unknown_id, None
        self.bos_index, self.eos_index = tokenizer.cls_id, tokenizer.sep_id
        self.specials: list[str] = []
        self.lang_tags: list[str] = []

    def __len__(self) -> int:
        return self.size


def build_joeynmt(task: SequenceToSequence) -> Any:
    """Their model of the same shape, with our weights."""
    system = task.system
    assert isinstance(system, Transformer)
    shape = {
        "type": "transformer",
        "num_heads": system.heads,
        "hidden_size": system.width,
        "ff_size": system.mlp_size,
        "dropout": 0.0,
        "layer_norm": "post",
        "embeddings": {"embedding_dim": system.width, "scale": True},
    }
    vocabulary = JoeyVocabulary(task)
    config = {
        "encoder": {**shape, "num_layers": system.layers},
        "decoder": {**shape, "num_layers": system.decoder_layers},
        "tied_embeddings": True,
        "tied_softmax": True,
    }
    model = import_module("joeynmt.model").build_model(config, vocabulary, vocabulary)
    ours, found = task.state_dict(), {}

    def attention(mine: str, theirs: str) -> None:
        for name in ("weight", "bias"):
            parts = ours[f"{mine}.qkv.{name}"].chunk(3)
            for projection, part in zip("qkv", parts, strict=True):
                found[f"{theirs}.{projection}_layer.{name}"] = part
            found[f"{theirs}.output_layer.{name}"] = ours[f"{mine}.out.{name}"]

    def plain(mine: str, theirs: str) -> None:
        for name in ("weight", "bias"):
            found[f"{theirs}.{name}"] = ours[f"{mine}.{name}"]

    for side, layers in (("encoder", system.layers), ("decoder", system.decoder_layers)):
        for number in range(layers):
            mine, theirs = f"{side}.stack.{number}", f"{side}.layers.{number}"
            attention(f"{mine}.attention", f"{theirs}.{'src_src_att' if side == 'encoder' else 'trg_trg_att'}")
            plain(f"{mine}.attention_norm", f"{theirs}.{'layer_norm' if side == 'encoder' else 'x_layer_norm'}")
            if side == "decoder":
                attention(f"{mine}.cross", f"{theirs}.src_trg_att")
                plain(f"{mine}.cross_norm", f"{theirs}.dec_layer_norm")
            plain(f"{mine}.expand", f"{theirs}.feed_forward.pwff_layer.0")
            plain(f"{mine}.contract", f"{theirs}.feed_forward.pwff_layer.3")
            plain(f"{mine}.output_norm", f"{theirs}.feed_forward.layer_norm")
    for name in ("src_embed.lut.weight", "trg_embed.lut.weight", "decoder.output_layer.weight"):
        found[name] = ours["encoder.words.weight"]
    missing, unknown = model.load_state_dict(found, strict=False)
    assert not unknown, unknown
    assert all(name.endswith(".pe") for name in missing), missing
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = system.norm_epsilon
    return model.eval()


def joeynmt_beam_search(
    model: Any, batch: TokenBatch, beams: int, alpha: float, max_new_tokens: int
) -> list[list[int]]:
    mask = (torch.arange(batch.ids.shape[1]) < batch.lengths[:, None])[:, None]  # [batch, 1, time]
    with torch.no_grad():
        output, hidden, _, _ = model(return_type="encode", src=batch.ids, src_length=batch.lengths, src_mask=mask)
        found, _, _ = import_module("joeynmt.search").beam_search(
            model, beams, output, hidden, mask, max_new_tokens, alpha, generate_unk=False
        )
    lists = [ids.tolist() for ids in found]
    return [ids[: ids.index(model.eos_index)] if model.eos_index in ids else ids for ids in lists]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a Transformer that benchmarks/multi30k.py trained")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--length-penalty", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    task = keel.Model.load(options.model).task
    assert isinstance(task, SequenceToSequence)
    theirs = build_joeynmt(task.eval())
    sides = [open_text(options.data / f"test_2016_flickr.{side}.gz").lines() for side in ("en", "de")]
    sources, references = (side[: options.sentences] for side in sides)
    data = task.encode_examples(SequenceToSequence.read_examples(sources), labelled=False)
    order = (-data.lengths).argsort(kind="stable")
    batches = [order[start : start + options.batch] for start in range(0, len(order), options.batch)]
    banned = {*task.target_tokenizer.special_ids} - {task.target_tokenizer.sep_id}

    strategy = BeamSearch(beams=options.beam, length_penalty=options.length_penalty)

    def search_ours(batch: TokenBatch) -> list[list[int]]:
        limits = task.max_new_tokens(batch.lengths.numpy())
        with torch.inference_mode():
            found = beam_search(
                task.generator(batch), [[]] * len(batch.ids), strategy, max_new_tokens=limits, banned=banned
            )
        return [best.ids for best, *_ in found]

    def run(search: Any, each: Callable[..., Iterable[Any]]) -> tuple[float, list[str]]:
        inputs = [data.padded_batch(index) for index in batches]
        start = time.monotonic()
        lists = [*each(search, inputs)]
        seconds = time.monotonic() - start
        found = [""] * len(data)
        for index, texts in zip(batches, lists, strict=True):
            for number, ids in zip(index.tolist(), texts, strict=True):
                found[number] = task.target_tokenizer.decode(ids)
        return seconds, found

    def search_theirs(batch: TokenBatch) -> list[list[int]]:
        limit = max(task.max_new_tokens(batch.lengths.numpy()))
        return joeynmt_beam_search(theirs, batch, options.beam, options.length_penalty, limit)

    check_equal(task, theirs, data.padded_batch(batches[0]))
    times: dict[str, list[float]] = {"Keel": [], "joeynmt": []}
    texts: dict[str, list[str]] = {}
    for _ in range(options.rounds):
        ways = partial(run_in_threads, device=torch.device("cpu")), map
        for name, search, each in zip(times, (search_ours, search_theirs), ways, strict=True):
            seconds, texts[name] = run(search, each)
            times[name].append(seconds)
    same = sum(one == two for one, two in zip(texts["Keel"], texts["joeynmt"], strict=True))
    print(f"{len(sources):,} sentences, beam {options.beam}, batch {options.batch}, {options.threads} threads")
    for name, found in texts.items():
        from sacrebleu.metrics.bleu import BLEU

        metric = BLEU()
        score = metric.corpus_score(found, [references]).score
        print(f"{name:8} {median(times[name]):7.2f} s  BLEU {score:.2f} ({metric.get_signature()})")
    print(f"{median(times['joeynmt']) / median(times['Keel']):.2f}x; {same:,} texts are the same")


def check_equal(task: SequenceToSequence, theirs: Any, batch: TokenBatch) -> None:
    """Both networks give the same numbers."""
    ids = torch.full((len(batch.ids), 1), task.target_tokenizer.cls_id)
    mask = (torch.arange(batch.ids.shape[1]) < batch.lengths[:, None])[:, None]  # [batch, 1, time]
    with torch.no_grad():
        output, hidden, _, _ = theirs(return_type="encode", src=batch.ids, src_length=batch.lengths, src_mask=mask)
        outputs: Tensor = theirs(
            return_type="decode",
            trg_input=ids,
            encoder_output=output,
            encoder_hidden=hidden,
            src_mask=mask,
            unroll_steps=None,
            decoder_hidden=None,
            trg_mask=torch.ones(len(ids), 1, 1, dtype=torch.bool),
        )[0]
        vectors, _ = task.decoder(ids, task.decoder.project_source(task.encoder(batch), batch))
        torch.testing.assert_close(outputs, task.decoder.logits(vectors), rtol=1e-3, atol=1e-3)


if __name__ == "__main__":
    main()
