"""What the sources claim or ask, each with an experiment that anyone can repeat."""

from dataclasses import replace
from pathlib import Path

from keel.api.model_loading import load_model
from keel.claims import (
    alignment_claims,
    attention_claims,
    attention_pooling_claims,
    bert_pretraining_claims,
    bert_task_claims,
    decoding_claims,
    elmo_claims,
    encoder_claims,
    gpt_claims,
    language_model_claims,
    layer_claims,
    network_claims,
    prompting_claims,
    task_input_claims,
    transformer_claims,
    word_vector_claims,
)
from keel.claims.claim import Claim, Finding, Say
from keel.errors import UsageError
from keel.events import OnEvent, counted, ignore, note
from keel.model import Model

CLAIMS: dict[int, Claim] = {
    1: Claim(title="one-hot loses meaning", minutes=0.1, run=word_vector_claims.one_hot_meaning),
    4: Claim(
        title="an embedding is the first layer over one-hot inputs", minutes=0.1, run=word_vector_claims.first_layer
    ),
    6: Claim(title="embeddings start the first layer only", minutes=0.2, run=word_vector_claims.only_the_first_layer),
    10: Claim(title="word2vec is a linear language model", minutes=0.1, run=word_vector_claims.linear_model),
    11: Claim(title="皇 - 后 = 男 - 女: vectors add and subtract", minutes=0.1, run=word_vector_claims.arithmetic),
    12: Claim(title="a softmax over all words costs too much", minutes=0.1, run=network_claims.cost_of_softmax),
    18: Claim(title="characters alone do not do without pre-training", minutes=2.0, run=network_claims.letters_alone),
    19: Claim(
        title="CBOW's variance is not skip-gram's, and matching helps", minutes=0.5, run=word_vector_claims.variance
    ),
    20: Claim(title="a static word has one vector in every context", minutes=0.1, run=word_vector_claims.one_vector),
    21: Claim(
        title="one vector for a word cannot tell its senses apart", minutes=0.1, run=word_vector_claims.no_senses
    ),
    23: Claim(title="five banks, three senses", minutes=0.2, run=elmo_claims.five_banks),
    24: Claim(title="contextual vectors: one for each token", minutes=0.2, run=elmo_claims.three_tokens),
    25: Claim(
        title="one layer cannot do XOR, two with an activation can", minutes=0.1, run=network_claims.exclusive_or
    ),
    26: Claim(title="ten layers of 5 x 5 make 200 of 240", minutes=0.1, run=network_claims.shrinking_pictures),
    27: Claim(
        title="n-gram parameters grow exponentially with n", minutes=0.5, run=language_model_claims.growth_of_ngrams
    ),
    29: Claim(
        title="an RNN's weights do not grow with time steps", minutes=0.1, run=language_model_claims.weights_and_steps
    ),
    31: Claim(title="an RNN learns distant structure badly", minutes=1.0, run=language_model_claims.distant_words),
    32: Claim(
        title="a CNN sees its window, attention the whole sentence", minutes=0.1, run=network_claims.what_a_word_sees
    ),
    33: Claim(
        title="three LSTM layers are already hard to train", minutes=5.0, run=language_model_claims.depth_of_lstms
    ),
    35: Claim(
        title="attention: a glimpse, an alignment, then all there is", minutes=0.1, run=alignment_claims.three_looks
    ),
    36: Claim(title="Bahdanau's attention, step by step", minutes=0.1, run=alignment_claims.step_by_step),
    37: Claim(title="each decoder step scans all encoder positions", minutes=0.1, run=alignment_claims.every_position),
    38: Claim(
        title="cues are queries, keys and values: attention pooling",
        minutes=0.1,
        run=attention_pooling_claims.kernel_regression,
    ),
    39: Claim(
        title="f(q, (k, v)) is a mean of values, weighted by scores",
        minutes=0.1,
        run=attention_pooling_claims.weighted_values,
    ),
    40: Claim(
        title="additive attention takes q and k of unequal length", minutes=0.1, run=alignment_claims.additive_score
    ),
    41: Claim(title="q·k has variance d, and 1 after dividing by √d", minutes=0.1, run=attention_claims.scaling),
    42: Claim(
        title="softmax(QKᵀ/√d)V is n x v, all queries at once", minutes=0.1, run=attention_pooling_claims.in_batches
    ),
    43: Claim(title="self-attention is Attention(X, X, X)", minutes=0.1, run=attention_pooling_claims.aligned_question),
    44: Claim(title="many heads are one attention many times", minutes=0.1, run=transformer_claims.many_heads),
    45: Claim(title="attention without positions is a bag of words", minutes=0.1, run=attention_claims.bag_of_words),
    46: Claim(title="why positions may be added to words", minutes=0.1, run=attention_claims.adding_positions),
    47: Claim(title="places by sines and cosines", minutes=0.1, run=transformer_claims.places_by_waves),
    49: Claim(title="attention alone models word order weakly", minutes=1.0, run=encoder_claims.word_order),
    53: Claim(title="three kinds of attention", minutes=0.2, run=transformer_claims.three_kinds),
    54: Claim(title="what is written sees only what came before", minutes=0.1, run=transformer_claims.masking),
    55: Claim(
        title="K and V: once for all steps and layers, c fixed", minutes=0.1, run=transformer_claims.once_for_all
    ),
    56: Claim(title="trained at once, written word by word", minutes=0.1, run=transformer_claims.writing_takes_turns),
    57: Claim(
        title="which word is fed next: the beam's, and a definite one", minutes=0.2, run=decoding_claims.what_is_fed
    ),
    58: Claim(title="i love beijing becomes 我 爱 北京", minutes=0.2, run=decoding_claims.i_love_beijing),
    59: Claim(title="ready word vectors can be the input", minutes=2.0, run=encoder_claims.ready_vectors),
    60: Claim(title="sentences of unequal length in one batch", minutes=0.1, run=transformer_claims.unequal_lengths),
    61: Claim(title="dot of [3,4,5,6] and [5,4,6,3] is [3,4,5,5,4,3]", minutes=0.1, run=transformer_claims.products),
    62: Claim(title="a Transformer extracts features better than an LSTM", minutes=4.0, run=encoder_claims.features),
    63: Claim(title="a biLM is two one-way stacks, losses added", minutes=0.1, run=elmo_claims.two_stacks),
    64: Claim(title="both directions share letters and softmax", minutes=0.1, run=elmo_claims.shared_ends),
    68: Claim(title="γ, the scale of ELMo's mix, matters", minutes=0.2, run=layer_claims.scale_of_the_mix),
    69: Claim(
        title="syntax is in ELMo's layer 1, senses are in layer 2",
        minutes=1.0,
        run=layer_claims.which_layer,
        of_models=True,
    ),
    70: Claim(title="each task weighs the layers its own way", minutes=0.2, run=layer_claims.weights_by_task),
    72: Claim(title="ELMo tells senses apart by their context", minutes=0.2, run=layer_claims.senses_by_context),
    73: Claim(title="each direction of ELMo never sees the other side", minutes=0.2, run=elmo_claims.one_side_each),
    75: Claim(title="GPT is a decoder, and p(s) a product", minutes=0.1, run=gpt_claims.one_way),
    76: Claim(title="a task is written down as a row that GPT reads", minutes=0.1, run=task_input_claims.four_inputs),
    77: Claim(title="reading one way hurts reading comprehension", minutes=0.5, run=task_input_claims.one_way_reading),
    78: Claim(title="潮水 → 退了 → 就: q·k, softmax, v, and back", minutes=0.1, run=gpt_claims.by_hand),
    79: Claim(title="ELMo < GPT < BERT < GPT-2 < GPT-3 in size", minutes=0.1, run=gpt_claims.sizes),
    80: Claim(title="larger models answer better, untaught", minutes=8.0, run=prompting_claims.reading_by_size),
    81: Claim(title="summaries by TL;DR: look random", minutes=2.0, run=prompting_claims.short_summaries),
    82: Claim(title="translation by pattern is poor", minutes=2.0, run=prompting_claims.poor_translation),
    83: Claim(title="unicorns in the Andes: a story goes on", minutes=2.0, run=prompting_claims.story_of_unicorns),
    84: Claim(
        title="what a model wrote can be told from what people wrote", minutes=2.0, run=prompting_claims.telling_apart
    ),
    85: Claim(title="a pronoun looks at its person", minutes=0.5, run=gpt_claims.pronouns),
    86: Claim(title="heads look at the first token for want of a nowhere", minutes=2.0, run=gpt_claims.nowhere),
    92: Claim(
        title="masked words and next sentence together train best", minutes=3.0, run=bert_pretraining_claims.two_losses
    ),
    93: Claim(title="[CLS] may stand first or last", minutes=0.1, run=attention_claims.place_of_cls),
    95: Claim(
        title="segments A and B do no harm in symmetric tasks", minutes=0.5, run=bert_task_claims.symmetric_pairs
    ),
    99: Claim(title="what Q, K and V are when BERT fills a blank", minutes=0.2, run=attention_claims.who_asks_whom),
    101: Claim(
        title="in a two-way stack a word would see itself", minutes=0.1, run=bert_pretraining_claims.sees_itself
    ),
    102: Claim(title="limits: [MASK] mismatch, blanks apart, length", minutes=0.2, run=bert_pretraining_claims.limits),
    109: Claim(title="the encoder may be frozen or fine-tuned", minutes=2.0, run=bert_task_claims.frozen_or_tuned),
    112: Claim(title="two lines of code for sentence and word vectors", minutes=0.1, run=bert_task_claims.two_lines),
}
"""By the number in the project's checklist; docs/claims/ has a page for each."""


def run(
    number: int | None = None,
    *,
    model: Model | str | Path | None = None,
    data: str | Path | None = None,
    on_event: OnEvent = ignore,
) -> Finding | None:
    """Run the experiment behind a claim and say what it finds; without a number, list them all.

    Some can be asked of a `model` of one's own, with a folder of `data` that their pages tell of.
    """
    if number is None:
        for known, claim in CLAIMS.items():
            time = "half a minute" if claim.minutes > 0.2 else "seconds"
            time = counted(round(claim.minutes), "minute") if claim.minutes >= 1 else time
            note(on_event, f"{known:4}  {claim.title} ({time})")
        note(on_event, "Run one with: keel claim N")
        return None
    if number not in CLAIMS:
        near = min(CLAIMS, key=lambda known: abs(known - number))
        what = f"there is no experiment {number}: not every item of the checklist is a claim that can be run"
        raise UsageError(f"{what}; the nearest is {near} ({CLAIMS[near].title}), and `keel claim` lists them all")
    claim = CLAIMS[number]
    if not claim.of_models and (model is not None or data is not None):
        others = ", ".join(str(number) for number, claim in CLAIMS.items() if claim.of_models)
        raise UsageError(
            f"experiment {number} makes its own model: leave out --model and --data ({others} can take them)"
        )
    note(on_event, f"{number}. {claim.title}")
    say = Say(on_event)
    given = {"model": None if model is None else load_model(model, on_event), "data": data and Path(data)}
    finding = replace(claim.run(say, **(given if claim.of_models else {})), rows=tuple(say.rows))
    on_event({"event": "row", "text": str(finding)})
    return finding
