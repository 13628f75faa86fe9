"""Greedy decoding with a network of GPT-2's shape: tokens a second, Keel beside transformers' `generate`.

Both have the same random weights, read the same prompts and must generate the same ids, else the run ends with an error
(in bf16 sums round differently: there the share of equal ids is printed). Rounds alternate; the table has medians.

    python benchmarks/generation.py                          # fp32, batches of 1 and 32, on this machine's device
    python benchmarks/generation.py --precision bf16
"""

import argparse
import time
from collections.abc import Callable
from statistics import median
from types import SimpleNamespace
from typing import Any, cast

import torch
import transformers

from keel.formats.architectures import GPT2
from keel.generation.sampling import GREEDY, sample
from keel.systems.gpt import Gpt, GptPretraining

END = 50_256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=["mini", "small", "medium", "large", "xl"], default="small")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 32], help="batch sizes")
    parser.add_argument("--prompt", type=int, default=32, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=128, help="tokens to generate")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    system = Gpt.sized(options.size)
    theirs, ours = networks(system, options)
    where = torch.cuda.get_device_name() if options.device == "cuda" else f"{torch.get_num_threads()} CPU threads"
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    print(f"GPT-2 {options.size}, {options.precision}, {where}, {versions}")
    print(f"prompts of {options.prompt} tokens, {options.tokens} generated, {options.rounds} rounds")
    print("| batch | transformers tokens/s | Keel tokens/s | ratio | equal ids |\n|---|---|---|---|---|")
    for batch_size in options.batch:
        print(race(theirs, ours, batch_size, options), flush=True)


def networks(system: Gpt, options: argparse.Namespace) -> tuple[Any, GptPretraining]:
    """Theirs, and ours with the same weights."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_embd=system.width,
        n_layer=system.layers,
        n_head=system.heads,
        n_positions=system.max_positions,
        initializer_range=0.06,  # so that it does not repeat one token for ever
    )
    theirs: Any = transformers.GPT2LMHeadModel(config).eval()
    theirs.generation_config.eos_token_id = None
    theirs.generation_config.pad_token_id = END
    encoder = system.build_encoder(config.vocab_size)
    weights = theirs.state_dict()
    found = {name: weights[GPT2.theirs(f"encoder.{name}")[0]] for name in encoder.state_dict()}
    encoder.load_state_dict({name: GPT2.to_ours(name, tensor) for name, tensor in found.items()})
    ours = system.build_objective(encoder, cast(Any, SimpleNamespace(end_id=END))).eval()
    kind = torch.bfloat16 if options.precision == "bf16" else torch.float32
    return theirs.to(options.device, kind), ours.to(options.device, kind)


def race(theirs: Any, ours: GptPretraining, batch_size: int, options: argparse.Namespace) -> str:
    generator = torch.Generator().manual_seed(1)
    prompts = torch.randint(END, (batch_size, options.prompt), generator=generator)
    opened = torch.cat([torch.full((batch_size, 1), END), prompts], 1).to(options.device)

    def generate_theirs() -> list[list[int]]:
        mask = torch.ones_like(opened)
        ids = theirs.generate(opened, attention_mask=mask, max_new_tokens=options.tokens, do_sample=False)
        return ids[:, opened.shape[1] :].tolist()

    def generate_ours() -> list[list[int]]:
        steps = sample(ours, prompts.tolist(), GREEDY, max_new_tokens=options.tokens)
        return [list(ids) for ids in zip(*steps, strict=True)]

    one, other = generate_theirs(), generate_ours()
    pairs = [(a, b) for first, second in zip(one, other, strict=True) for a, b in zip(first, second, strict=True)]
    equal = sum(a == b for a, b in pairs) / len(pairs)
    if equal < 1 and options.precision == "fp32":
        raise SystemExit(f"with a batch of {batch_size} the two generate different ids: {equal:.4%} are equal")
    seconds: dict[str, list[float]] = {"theirs": [], "ours": []}
    for _ in range(options.rounds):
        seconds["theirs"].append(timed(generate_theirs))
        seconds["ours"].append(timed(generate_ours))
    slow, fast = (median(seconds[name]) for name in ("theirs", "ours"))
    count = batch_size * options.tokens
    return f"| {batch_size} | {count / slow:.1f} | {count / fast:.1f} | {slow / fast:.2f} | {equal:.1%} |"


def timed(generate: Callable[[], object]) -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    began = time.perf_counter()
    generate()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
