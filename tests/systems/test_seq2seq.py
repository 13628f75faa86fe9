from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.errors import UsageError
from keel.nn.encoder import DecodingState
from keel.systems.seq2seq import AttentionSource, Seq2seq, Seq2seqDecoder, Seq2seqEncoder

SMALL = Seq2seq(width=6, attention_dim=5, dropout=0.0)
KINDS = [replace(SMALL, scoring=scoring, cell=cell) for scoring in ("additive", "dot") for cell in ("gru", "lstm")]
NAMES = [f"{system.scoring}-{system.cell}" for system in KINDS]
SOURCE = [[1, 4, 2, 7, 3], [5, 6, 2], [3]]
TARGET = torch.tensor([[1, 3, 5, 2], [1, 2, 2, 6], [1, 7, 4, 3]])


def build_networks(
    system: Seq2seq, source: int = 9, target: int = 8, *, shared: bool = False
) -> tuple[Seq2seqEncoder, Seq2seqDecoder]:
    torch.manual_seed(0)
    encoder = system.build_encoder(source).double().eval()
    decoder = system.build_decoder(encoder, target, shared_vocabulary=shared).double().eval()
    with torch.no_grad():
        for weights in [*encoder.parameters(), *decoder.parameters()]:
            weights.uniform_(-1, 1)
    return encoder, decoder


def read(encoder: Seq2seqEncoder, decoder: Seq2seqDecoder, texts: list[list[int]] = SOURCE) -> AttentionSource:
    rows = TokenBatch.pad(texts)
    return decoder.project_source(encoder(rows), rows)


def by_the_formulas(
    system: Seq2seq, encoder: Seq2seqEncoder, decoder: Seq2seqDecoder, text: list[int], target: list[int]
) -> tuple[Tensor, Tensor]:
    """Scores and weights of one text, word by word: e_ij, alpha_ij, c_i, s_i and the features that predict y_i."""
    h = encoder(TokenBatch.pad([text])).top[0]
    s = torch.tanh(decoder.first(h[0, system.width :]))
    cell: Any = s if system.cell == "gru" else (s, torch.zeros_like(s))
    scores, weights = [], []
    for word in target:
        energies = []
        for j in range(len(text)):
            if decoder.query is not None and decoder.weigh is not None:
                energies.append(decoder.weigh @ torch.tanh(decoder.query(s) + decoder.key(h[j])))
            else:
                energies.append(s @ decoder.key(h[j]) / system.width**0.5)
        alpha = torch.stack(energies).softmax(0)
        c = torch.stack([alpha[j] * h[j] for j in range(len(text))]).sum(0)
        y = decoder.word_embeddings()[word] * system.width**0.5
        cell = decoder.cell(torch.cat([y, c]), cell)
        s = cell[0] if isinstance(cell, tuple) else cell
        features = torch.tanh(decoder.answer(torch.cat([s, y, c])))
        scores.append(decoder.word_embeddings() @ features + decoder.bias)
        weights.append(alpha)
    return torch.stack(scores), torch.stack(weights)


@pytest.mark.parametrize("system", KINDS, ids=NAMES)
def test_it_is_bahdanau_s_network_with_its_gradients(system: Seq2seq) -> None:
    encoder, decoder = build_networks(system)
    seen: dict[str, Tensor] = {}
    vectors, _ = decoder(TARGET, read(encoder, decoder), record=lambda name, layer, value: seen.update({name: value}))
    scores = decoder.logits(vectors)
    plain = [
        by_the_formulas(system, encoder, decoder, text, words.tolist())
        for text, words in zip(SOURCE, TARGET, strict=True)
    ]
    torch.testing.assert_close(scores, torch.stack([one for one, _ in plain]))
    for row, (_, weights) in enumerate(plain):
        torch.testing.assert_close(seen["alignment"][row, :, : len(SOURCE[row])], weights)
        assert not seen["alignment"][row, :, len(SOURCE[row]) :].any()
    learned = dict([*encoder.named_parameters(prefix="encoder"), *decoder.named_parameters(prefix="decoder")])
    pull = torch.randn_like(scores)
    fast = torch.autograd.grad((scores * pull).sum(), [*learned.values()])
    slow = torch.autograd.grad((torch.stack([one for one, _ in plain]) * pull).sum(), [*learned.values()])
    for name, one, other in zip(learned, fast, slow, strict=True):
        torch.testing.assert_close(one, other, msg=name)
        assert one.any(), name


@pytest.mark.parametrize("system", KINDS, ids=NAMES)
def test_word_by_word_is_as_all_at_once(system: Seq2seq) -> None:
    encoder, decoder = build_networks(system)
    source = read(encoder, decoder)
    whole, end = decoder(TARGET, source)
    state, found = decoder.new_state(source, 3), []
    for step in range(TARGET.shape[1]):
        vectors, state = decoder(TARGET[:, step : step + 1], source, state)
        found.append(vectors)
    torch.testing.assert_close(torch.cat(found, 1), whole)
    torch.testing.assert_close(state.hidden, end.hidden)


@pytest.mark.parametrize("system", KINDS, ids=NAMES)
def test_padding_and_company_change_nothing(system: Seq2seq) -> None:
    encoder, decoder = build_networks(system)
    together, _ = decoder(TARGET, read(encoder, decoder))
    for row, text in enumerate(SOURCE):
        alone, _ = decoder(TARGET[row : row + 1], read(encoder, decoder, [text]))
        torch.testing.assert_close(alone[0], together[row])


@pytest.mark.parametrize("system", KINDS, ids=NAMES)
def test_several_rows_of_a_text_look_at_one_copy_of_it(system: Seq2seq) -> None:
    encoder, decoder = build_networks(system)
    source = read(encoder, decoder)
    ids = torch.randint(8, (6, 4))
    beams, after = decoder(ids, source)
    texts = torch.tensor([0, 0, 1, 1, 2, 2])
    repeated, _ = decoder(ids, source.index_select(texts))
    torch.testing.assert_close(beams, repeated)
    # Hypotheses 3 and 2 of text 1 continue, in this order, and the other texts are done.
    going_on = DecodingState(source=source, own=after).select(torch.tensor([3, 2]), torch.tensor([1]))
    found, _ = decoder(torch.tensor([[4], [6]]), going_on.source, going_on.own)
    for place, row in enumerate((3, 2)):
        longer = torch.cat([ids[row], torch.tensor([[4], [6]])[place]])[None]
        expected, _ = decoder(longer, source.index_select(torch.tensor([1])))
        torch.testing.assert_close(found[place, 0], expected[0, -1])


def test_one_vocabulary_has_one_table() -> None:
    encoder, decoder = build_networks(SMALL, 8, 8, shared=True)
    assert decoder.word_embeddings() is encoder.words.weight
    assert not any(name.startswith("words") for name in decoder.state_dict()), "they are the encoder's"
    encoder, decoder = build_networks(SMALL, 9, 8, shared=True)
    assert decoder.word_embeddings() is not encoder.words.weight
    encoder, decoder = build_networks(replace(SMALL, tie_embeddings=False))
    assert decoder.output is not None
    assert decoder.logits(torch.zeros(2, 3, 6).double()).shape == (2, 3, 8)


@pytest.mark.parametrize("scoring", ["additive", "dot"])
def test_it_learns_to_turn_numbers_round_and_where_to_look(scoring: Any) -> None:
    torch.manual_seed(0)
    system = Seq2seq(width=32, attention_dim=32, dropout=0.0, scoring=scoring)
    encoder = system.build_encoder(12)
    decoder = system.build_decoder(encoder, 12)
    task = nn.ModuleList([encoder, decoder])
    optimizer = torch.optim.Adam(task.parameters(), lr=1e-2)
    opening, closing = 10, 11

    def numbers(count: int, length: int) -> tuple[TokenBatch, Tensor]:
        digits = torch.randint(10, (count, length))
        ends = torch.full((count, 1), closing)
        rows = TokenBatch(ids=torch.cat([digits, ends], 1), lengths=torch.full((count,), length + 1))
        return rows, torch.cat([torch.full((count, 1), opening), digits.flip(1), ends], 1)

    for step in range(150):
        rows, target = numbers(32, 3 + step % 4)
        vectors, _ = decoder(target[:, :-1], decoder.project_source(encoder(rows), rows))
        loss = F.cross_entropy(decoder.logits(vectors).flatten(0, 1), target[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    rows, target = numbers(100, 5)
    seen: dict[str, Tensor] = {}
    vectors, _ = decoder(
        target[:, :-1],
        decoder.project_source(encoder(rows), rows),
        record=lambda name, layer, value: seen.update({name: value}),
    )
    right = (decoder.logits(vectors).argmax(-1) == target[:, 1:]).float().mean().item()
    assert right > 0.95
    if scoring == "additive":
        looked_at = seen["alignment"][:, :5, :5].argmax(-1).float().mean(0)
        assert looked_at[0] > looked_at[2] > looked_at[4], "from the end to the start"


def test_what_it_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match="width must be 1 or more"):
        Seq2seq(width=0)
    with pytest.raises(UsageError, match="dropout must be 0 or more and below 1"):
        Seq2seq(dropout=1.0)
    tokenizer = Tokenizer.from_words(["a"])
    with pytest.raises(UsageError, match="keel finetune seq2seq FILE"):
        SMALL.build_objective(SMALL.build_encoder(5), tokenizer)


@pytest.mark.gpu
@pytest.mark.parametrize("system", KINDS, ids=NAMES)
def test_a_gpu_learns_the_same_by_a_graph(system: Seq2seq) -> None:
    """Nothing waits for the GPU, or a step could not be captured."""
    encoder, decoder = build_networks(system)
    encoder, decoder = encoder.float().train(), decoder.float().train()  # cuDNN goes back in no other mode
    weights = [*encoder.parameters(), *decoder.parameters()]

    def gradients(rows: TokenBatch, ids: Tensor) -> tuple[Tensor, ...]:
        vectors, _ = decoder(ids, decoder.project_source(encoder(rows), rows))
        return torch.autograd.grad(decoder.logits(vectors).square().mean(), weights)

    expected = gradients(TokenBatch.pad(SOURCE), TARGET)
    encoder.cuda()
    decoder.cuda()
    rows, ids = TokenBatch.pad(SOURCE).to("cuda"), TARGET.cuda()
    aside = torch.cuda.Stream()
    with torch.cuda.stream(aside):
        gradients(rows, ids)
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = gradients(rows, ids)
    graph.replay()
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-2, atol=1e-3)
