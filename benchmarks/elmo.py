"""ELMo's training step beside a plain torch version that runs the character CNN on every token, same loss, same run.

    python benchmarks/elmo.py en_simple_wikipedia.txt.xz --size small --threads 1
    python benchmarks/elmo.py en_wikipedia.txt.xz --size original --batch 512 --device cuda --steps 100

Both start from the same weights, read the same words, have the same negatives and are trained by the same
loop, AdamW included; the first loss of both is printed. The plain version reads 50 characters of every token, in both
directions, and has torch's nn.LSTM with projection. Rounds alternate; a figure is the median over rounds. Shares of
peak (790 TFLOP/s, what an H200 reaches in bf16) count the products of this network alone: no clips, no dropout.
"""

import argparse
import tempfile
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from keel.data.corpus import Corpus
from keel.data.documents import Documents
from keel.data.text_files import open_text
from keel.data.token_store import Tokens
from keel.data.tokenizer import Tokenizer
from keel.systems.elmo import Elmo, ElmoBatch, ElmoPretraining, ElmoState
from keel.training.counter_rng import CounterRng
from keel.training.loop import fit
from keel.training.objective import Objective, State, Tensors
from keel.training.plan import Train

PEAK = 790e12


@dataclass(frozen=True, kw_only=True)
class Tokenwise(Tensors):
    ids: Tensor  # [batch, 2, bptt]
    targets: Tensor
    sampled: Tensor
    tries: Tensor


class Plain(Objective):
    """The same network as one would write it: character CNN on every token, one nn.LSTM a layer and direction."""

    prefetched = True

    def __init__(self, twin: ElmoPretraining):
        super().__init__()
        self.twin = [twin]  # for its spans and samples alone
        encoder = twin.encoder
        self.character_ids = nn.Buffer(twin.table.long())
        self.characters = deepcopy(encoder.characters)
        self.filters = deepcopy(encoder.filters)
        self.highways, self.project = deepcopy(encoder.highways), deepcopy(encoder.project)
        self.output, self.bias = nn.Parameter(twin.output.detach().clone()), nn.Parameter(twin.bias.detach().clone())
        self.residual = [layer.residual for layer in encoder.stack]
        self.lstms = nn.ModuleList(_lstm(layer, direction) for layer in encoder.stack for direction in (0, 1))

    def epoch_size(self, data: Documents) -> int:
        return self.twin[0].epoch_size(data)

    def batch(self, data: Documents, rng: CounterRng, examples: range) -> Tokenwise:
        twin = self.twin[0]
        ids = twin.read_spans(data, rng, examples)
        sampled, tries = twin.sampled.sample(rng)
        return Tokenwise(
            ids=ids[..., :-1].contiguous(), targets=ids[..., 1:].contiguous(), sampled=sampled, tries=tries
        )

    def counts(self, batch: Tokenwise) -> dict[str, Tensor]:
        words = torch.tensor(batch.targets[:, 0].numel(), device=batch.targets.device)
        return {"next": words, "previous": words, "words": words}

    def initial_state(self, batch_size: int) -> ElmoState:
        return self.twin[0].initial_state(batch_size).to(self.output.device)

    def forward(self, batch: Tokenwise, state: State | None = None) -> tuple[dict[str, Tensor], State | None]:
        assert state is not None
        losses, hidden, cells = {}, [], []
        for direction, name in enumerate(("next", "previous")):
            x = self.filters.max_pool(self.characters(self.character_ids[batch.ids[:, direction].flatten()])).relu()
            for highway in self.highways:
                gate, other = highway(x).chunk(2, -1)
                x = torch.lerp(x, other.relu(), gate.sigmoid())
            x = self.project(x).view(*batch.ids[:, direction].shape, -1).transpose(0, 1)
            for number, residual in enumerate(self.residual):
                before = tuple(part[:, number, direction][None].contiguous() for part in (state.hidden, state.cells))
                outputs, (h, c) = self.lstms[2 * number + direction](x, before)
                hidden.append(h[0])
                cells.append(c[0])
                x = x + outputs if residual else outputs
            targets = batch.targets[:, direction].T.flatten()
            softmax = self.twin[0].sampled  # the loss is the twin's own, by these weights
            losses[name] = softmax.loss(x.flatten(0, 1), self.output, self.bias, targets, batch.sampled, batch.tries)
        shape = (2, len(self.residual), *hidden[0].shape)
        after = [torch.stack(part).view(shape[:3] + part[0].shape[1:]).permute(2, 1, 0, 3) for part in (hidden, cells)]
        return losses, type(state)(hidden=after[0].float(), cells=after[1].float())


def _lstm(layer: Any, direction: int) -> nn.LSTM:
    cells, width = layer.projection.shape[1:]
    theirs = nn.LSTM(width, cells, proj_size=width)

    def reorder_gates(gates: Tensor) -> Tensor:  # torch has i, f, g, o
        return torch.cat([gates.chunk(4, -1)[number] for number in (0, 1, 3, 2)], -1).movedim(-1, 0)

    weights = {
        "weight_ih_l0": reorder_gates(layer.into[direction]),
        "weight_hh_l0": reorder_gates(layer.recurrent[direction]),
    }
    weights |= {"weight_hr_l0": layer.projection[direction].T, "bias_ih_l0": reorder_gates(layer.bias[direction])}
    theirs.load_state_dict({**weights, "bias_hh_l0": torch.zeros(4 * cells)})
    return theirs


def products(system: Elmo, streams: ElmoBatch) -> float:
    """Multiply-adds of one step, forward and backward, for the words whose characters it reads."""
    tokens = streams.targets.numel()
    found = sum(system.character_filters)
    lstm = tokens * system.layers * (8 * system.width * system.cell_size + system.cell_size * system.width)
    softmax = tokens * system.softmax_samples * system.width
    positions = streams.words.short.numel() + streams.words.long.numel()
    characters = (
        positions * system.character_dim * sum(size * count for size, count in enumerate(system.character_filters, 1))
    )
    words = len(streams.words.short) + len(streams.words.long)
    above = words * (2 * found * found * system.highway_layers + found * system.width)
    return 3.0 * (lstm + softmax + characters + above)


def timed(objective: Objective, documents: Documents, train: Train) -> tuple[float, float]:
    """Words (each read in both directions) by the second once it is warm, and the loss of the first steps."""
    speeds: list[float] = []
    losses: list[float] = []

    def listen(event: dict[str, Any]) -> None:
        if event["event"] == "step":
            speeds.append(event["words_per_second"])
            losses.append(event["loss"])

    fit(objective, documents, train, None, listen)
    return median(speeds[len(speeds) // 2 :]), losses[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--megabytes", type=float, default=10)
    parser.add_argument("--size", default="small", choices=Elmo.sizes)
    parser.add_argument("--vocabulary", type=int, default=50_000)
    parser.add_argument("--negatives", type=int, default=8192)
    parser.add_argument("--length", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=8, help="steps of a round [8]")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--precision", default="auto", choices=("auto", "fp32", "bf16"))
    parser.add_argument("--alone", action="store_true", help="without the plain version")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text, size = Path(folder) / "text.txt", 0
        with open(text, "w", encoding="utf-8") as file:
            for _, line in open_text(arguments.corpus):
                file.write(line + "\n")
                size += len(line.encode()) + 1
                if size > arguments.megabytes * 1e6:
                    break
        corpus = Corpus(text)
        tokenizer = Tokenizer.train(corpus, kind="words", size=arguments.vocabulary, min_count=2, lowercase=False)
        documents = Documents.of(Tokens.build(corpus, tokenizer))
        compare(arguments, tokenizer, documents)


def compare(arguments: argparse.Namespace, tokenizer: Tokenizer, documents: Documents) -> None:
    system = Elmo.sized(
        arguments.size, bptt=arguments.length, softmax_samples=arguments.negatives, dropout=0.0, cell_clip=0.0,
        projection_clip=0.0,
    )  # fmt: skip
    settings: dict[str, Any] = {
        "device": arguments.device,
        "precision": arguments.precision,
        "threads": arguments.threads,
    }
    every = max(1, arguments.steps // 8)
    train = Train(steps=arguments.steps, batch=arguments.batch, lr=1e-4, warmup=0, log_every=every, **settings)
    torch.manual_seed(0)
    ours = system.build_objective(system.build_encoder(len(tokenizer)), tokenizer)
    if not ours.sampled.count:
        raise SystemExit(f"--negatives must be less than half of the vocabulary, which has {len(tokenizer):,} words")
    start = deepcopy(ours.state_dict())
    streams = ours.batch(
        documents, CounterRng(seed=0, step=0, first_example=0, batch_size=arguments.batch), range(arguments.batch)
    )
    words = len({*streams.word_index.flatten().tolist()})
    print(f"{arguments.size}, vocabulary {len(tokenizer):,}, {arguments.batch} x {arguments.length} words a step in "
          f"both directions, {words:,} of {streams.word_index.numel():,} distinct; {arguments.device}")  # fmt: skip
    speeds: dict[str, list[float]] = {"Keel": [], "plain torch": []}
    losses: dict[str, float] = {}
    for _ in range(arguments.rounds):
        ours.load_state_dict(start)
        ours.cpu()
        rivals: dict[str, Objective] = {"Keel": ours} if arguments.alone else {"Keel": ours, "plain torch": Plain(ours)}
        for name, objective in rivals.items():
            speed, losses[name] = timed(objective, documents, train)
            speeds[name].append(speed)
    print("| | words/s | rounds | first loss |\n|---|---|---|---|")
    for name in losses:
        rounds = ", ".join(f"{speed:,.0f}" for speed in speeds[name])
        print(f"| {name} | {median(speeds[name]):,.0f} | {rounds} | {losses[name]:.5f} |")
    if not arguments.alone:
        print(f"times: {median(one / other for one, other in zip(*speeds.values(), strict=True)):.2f}")
    speed = median(speeds["Keel"]) / (arguments.batch * arguments.length) * 2 * products(system, streams)
    print(f"Keel: {speed / 1e12:.2f} TFLOP/s" + (f", {speed / PEAK:.1%} of peak" if arguments.device != "cpu" else ""))


if __name__ == "__main__":
    main()
