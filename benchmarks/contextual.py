"""Words in context beside words alone: names, parts of speech, sentiment, Word-in-Context; which layers each likes.

    python benchmarks/contextual.py models/elmo models/word2vec models/glove --tasks ../shared/data/tasks --seeds 3

Every model stays frozen, unless --no-freeze tunes it with its head. Names (CoNLL-2003, F1), parts of speech (UD EWT,
accuracy) and sentiment (SST-2, accuracy on dev) are learned by `keel.finetune`, by a linear head or with --network lstm
by a BiLSTM. Word-in-Context (accuracy on test) is one linear layer on |a - b| and a * b of the word's vectors in both
sentences. Models of several layers read a learned mix, which is printed: claim 69 says that syntax likes layer 1 of
ELMo and sense layer 2.
"""

import argparse
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import keel
from keel.data.text_files import open_text
from keel.explain.word_senses import WordUse, use_vectors
from keel.nn.pooling import ScalarMix

FILES = {
    "names": ("tag", "conll2003/eng.train.xz", "conll2003/eng.testb.xz"),
    "parts of speech": ("tag", "ud_english_ewt/en_ewt-ud-train.conllu.xz", "ud_english_ewt/en_ewt-ud-test.conllu.xz"),
    "sentiment": ("classify", "glue/SST-2/train.tsv", "glue/SST-2/dev.tsv"),
}


def score(model: keel.Model, name: str, folder: Path, seed: int, arguments: argparse.Namespace) -> tuple[float, str]:
    """What the model reaches on a task, and its mix."""
    if name == "words in context":
        return in_context(model, folder, seed)
    task, train, test = FILES[name]
    paths = [path if (path := folder / each).exists() else path.with_name(f"{path.name}.xz") for each in (train, test)]
    chosen: dict[str, Any] = {"mix": True} if model.encoder.layer_count > 1 else {}
    if arguments.network != "none":
        chosen["network"] = arguments.network
    chosen |= {key: value for key in ("epochs", "batch", "lr") if (value := getattr(arguments, key))}
    tuned = keel.finetune(model, paths[0], task=task, dev=None, freeze=arguments.freeze, seed=seed, **chosen)
    assert tuned.task is not None
    return keel.evaluate(tuned, paths[1]).main_value, describe_mix(tuned.task.mix)


def describe_mix(mix: ScalarMix | None) -> str:
    """Weights of the layers, from the input embeddings upwards, and the scale."""
    if mix is None:
        return ""
    return f"{', '.join(f'{weight:.2f}' for weight in mix.weights.tolist())}; scale {mix.gamma.item():.2f}"


def in_context(model: keel.Model, folder: Path, seed: int) -> tuple[float, str]:
    """Is it the same sense? Learned from train, scored on test."""
    learned, tested = (_pairs(model, folder / "wic" / part, part) for part in ("train", "test"))
    torch.manual_seed(seed)
    width = learned[0].shape[-1]
    mix, head = ScalarMix(learned[0].shape[-2]), nn.Linear(2 * width, 1)
    optimizer = torch.optim.AdamW([*mix.parameters(), *head.parameters()], lr=3e-3, weight_decay=0.1)
    scale = learned[0].std()

    def answers(pairs: Tensor) -> Tensor:
        a, b = mix(pairs / scale).unbind(1)
        return head(torch.cat([(a - b).abs(), a * b], -1))[:, 0]

    for _ in range(20):
        for part in torch.randperm(len(learned[0])).split(64):
            loss = F.binary_cross_entropy_with_logits(answers(learned[0][part]), learned[1][part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        right = (answers(tested[0]) > 0) == tested[1].bool()
    return right.float().mean().item(), describe_mix(mix if len(mix.scores) > 1 else None)


def _pairs(model: keel.Model, folder: Path, part: str) -> tuple[Tensor, Tensor]:
    """[pairs, 2, layers, width] vectors of the word in both sentences, and whether they mean the same."""
    path = next(folder.glob(f"{part}.data.txt*"))
    rows = [line.split("\t") for _, line in open_text(path) if line.strip()]
    gold = [line == "T" for _, line in open_text(folder / f"{part}.gold.txt") if line.strip()]
    uses = []
    for _, _, positions, *texts in rows:
        for place, text in zip(map(int, positions.split("-")), texts, strict=True):
            words = text.split()
            start = len(" ".join(words[:place])) + (place > 0)
            uses.append(WordUse(" ".join(words), start, start + len(words[place])))
    layers = []
    for layer in model.encoder.layer_numbers:
        encoded = model.encode([use.text for use in uses], layer=layer, pool="none")
        layers.append(use_vectors(uses, encoded))
    found = torch.from_numpy(np.stack(layers, 1)).unflatten(0, (-1, 2))
    return found, torch.tensor(gold).float()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="folders of models, or files of vectors")
    parser.add_argument(
        "--tasks", type=Path, required=True, help="the folder with conll2003, ud_english_ewt, glue and wic"
    )
    parser.add_argument("--only", nargs="+", default=[*FILES, "words in context"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0, help="so that seeds can run side by side [0]")
    parser.add_argument("--epochs", type=int, default=0, help="0 leaves it to the model [0]")
    parser.add_argument("--batch", type=int, default=0, help="0 leaves it to the model [0]")
    parser.add_argument("--lr", type=float, default=0.0, help="0 leaves it to the model [0]")
    parser.add_argument("--freeze", action=argparse.BooleanOptionalAction, default=True, help="freeze the encoders")
    parser.add_argument("--network", default="none", choices=("none", "lstm", "gru", "cnn"))
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    print("| task | model | mean | deviation | seeds | mix of the first seed |\n|---|---|---|---|---|---|")
    for name in arguments.only:
        for path in arguments.models:
            model = keel.Model.load(path, device=arguments.device)
            found = [score(model, name, arguments.tasks, seed, arguments) for seed in seeds]
            values = [value for value, _ in found]
            spread = stdev(values) if len(values) > 1 else 0.0
            listed = ", ".join(f"{value:.4f}" for value in values)
            title = Path(path).name
            print(f"| {name} | {title} | {mean(values):.4f} | {spread:.4f} | {listed} | {found[0][1]} |", flush=True)


if __name__ == "__main__":
    main()
