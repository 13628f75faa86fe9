"""Claims of the sources, each with a reproducible experiment."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from keel.api.model_loading import load_model
from keel.claims import (
    ablation_claims,
    alignment_claims,
    answer_claims,
    attention_claims,
    attention_view_claims,
    bert_claims,
    convolution_claims,
    elmo_claims,
    feature_claims,
    generation_claims,
    gpt_claims,
    head_claims,
    knowledge_claims,
    language_model_claims,
    layer_claims,
    mask_claims,
    network_claims,
    network_view_claims,
    pretraining_claims,
    probing_claims,
    prompt_claims,
    similarity_claims,
    task_claims,
    transformer_claims,
    word_vector_claims,
)
from keel.claims.claim import Claim, Say, Verdict
from keel.errors import UsageError
from keel.events import OnEvent, ignore, note, pluralize
from keel.model import Model

MODEL = {"accepts_model": True}
MODEL_AND_DATA = {"accepts_model": True, "accepts_data": True}
CLAIMS: dict[int, Claim] = {
    1: Claim("one-hot vectors carry no meaning", 0.1, word_vector_claims.one_hot_meaning),
    4: Claim("an embedding is the first layer over one-hot inputs", 0.1, word_vector_claims.first_layer),
    6: Claim("embeddings initialise the first layer only", 0.2, word_vector_claims.only_the_first_layer),
    10: Claim("word2vec is a linear language model", 0.1, word_vector_claims.linear_model),
    11: Claim("皇 - 后 = 男 - 女: vectors add and subtract", 0.1, word_vector_claims.arithmetic),
    12: Claim("a full softmax is too expensive", 0.1, network_claims.cost_of_softmax, timed=True),
    18: Claim("characters do not replace pre-training", 2.0, network_claims.characters_only),
    19: Claim("CBOW and skip-gram differ in variance, and matching helps", 0.5, word_vector_claims.variance),
    20: Claim("a static vector is the same in every context", 0.1, word_vector_claims.one_vector),
    21: Claim("one vector per word cannot distinguish senses", 0.1, word_vector_claims.no_senses),
    23: Claim("five banks, three senses", 0.2, elmo_claims.five_banks, **MODEL),
    24: Claim("contextual embeddings: one vector per token", 0.2, elmo_claims.three_tokens),
    25: Claim("one layer cannot learn XOR, two with an activation can", 0.1, network_claims.exclusive_or),
    26: Claim("ten 5 x 5 convolutions shrink 240 to 200", 0.1, convolution_claims.shrinking_images),
    27: Claim("n-gram parameters grow exponentially with n", 0.5, language_model_claims.growth_of_ngrams),
    29: Claim("an RNN's parameters do not grow with time steps", 0.1, language_model_claims.weights_and_steps),
    31: Claim("RNNs learn long-range structure badly", 1.0, language_model_claims.distant_words),
    32: Claim("a CNN sees its window, attention the whole sentence", 0.1, convolution_claims.receptive_fields),
    33: Claim("three LSTM layers are already hard to train", 5.0, language_model_claims.depth_of_lstms),
    35: Claim("from hard attention to attention only", 0.1, alignment_claims.three_attentions),
    36: Claim("Bahdanau's attention, step by step", 0.1, alignment_claims.step_by_step),
    37: Claim("each decoder step attends to all encoder positions", 0.1, alignment_claims.every_position),
    38: Claim("cues are queries, keys and values: attention pooling", 0.1, attention_claims.kernel_regression),
    39: Claim("attention is a weighted mean of values", 0.1, attention_claims.weighted_values),
    40: Claim("additive attention allows q and k of different sizes", 0.1, alignment_claims.additive_score),
    41: Claim("q·k has variance d, and 1 after dividing by √d", 0.1, attention_claims.scaling),
    42: Claim("softmax(QKᵀ/√d)V is n x v for all queries at once", 0.1, attention_claims.in_batches, timed=True),
    43: Claim("self-attention is Attention(X, X, X)", 0.5, attention_claims.aligned_question),
    44: Claim("multi-head attention is one attention several times", 0.1, network_view_claims.many_heads, **MODEL),
    45: Claim("attention without positions is a bag of words", 0.1, attention_claims.bag_of_words),
    46: Claim("why positions may be added to words", 0.1, attention_claims.adding_positions),
    47: Claim("sinusoidal positions", 0.1, transformer_claims.sinusoidal_table),
    49: Claim("attention alone models word order weakly", 1.0, network_claims.word_order),
    51: Claim("the stack: every block by its formulas", 0.1, network_view_claims.stack_by_formulas, **MODEL),
    52: Claim('head view: what "it" attends to', 0.1, attention_view_claims.head_view, **MODEL),
    53: Claim("three kinds of attention", 0.2, transformer_claims.three_kinds),
    54: Claim("masked self-attention sees only earlier tokens", 0.1, transformer_claims.masking),
    55: Claim("K and V are computed once for all steps and layers", 0.1, transformer_claims.once_for_all),
    56: Claim("training is parallel, decoding is sequential", 0.1, transformer_claims.sequential_decoding, timed=True),
    57: Claim("the input of the next decoding step", 0.2, generation_claims.next_step_input),
    58: Claim("i love beijing becomes 我 爱 北京", 0.2, generation_claims.i_love_beijing),
    59: Claim("pre-trained word vectors as input embeddings", 2.0, network_claims.pretrained_vectors),
    60: Claim("sentences of different lengths in one batch", 0.1, transformer_claims.unequal_lengths),
    61: Claim("dot of [3,4,5,6] and [5,4,6,3] is [3,4,5,5,4,3]", 0.1, transformer_claims.products),
    62: Claim("a Transformer extracts features better than an LSTM", 4.0, network_claims.features, timed=True),
    63: Claim("a biLM is two unidirectional stacks, losses added", 0.1, elmo_claims.two_stacks),
    64: Claim("both directions share characters and softmax", 0.1, elmo_claims.shared_ends),
    68: Claim("γ, the scale of ELMo's mix, matters", 0.2, layer_claims.scale_of_the_mix),
    69: Claim("syntax is in ELMo's layer 1, senses are in layer 2", 1.0, layer_claims.which_layer, **MODEL_AND_DATA),
    70: Claim("tasks weight the layers differently", 0.2, layer_claims.weights_by_task),
    72: Claim("ELMo distinguishes senses by context", 0.2, layer_claims.senses_by_context),
    73: Claim("each direction of ELMo never sees the other side", 0.2, elmo_claims.one_side_each),
    75: Claim("GPT is a decoder, and p(s) a product", 0.1, gpt_claims.product_of_conditionals),
    76: Claim("input templates of GPT's tasks", 0.1, gpt_claims.four_inputs),
    77: Claim("unidirectional models are worse at reading comprehension", 0.5, gpt_claims.unidirectional_reading),
    78: Claim("潮水 → 退了 → 就: causal attention by hand", 0.1, gpt_claims.by_hand),
    79: Claim("ELMo < GPT < BERT < GPT-2 < GPT-3 in size", 0.1, gpt_claims.sizes),
    80: Claim("larger models answer better zero-shot", 2.0, generation_claims.reading_by_size, **MODEL),
    81: Claim("summaries by TL;DR: look random", 2.0, generation_claims.short_summaries),
    82: Claim("few-shot translation is poor", 0.5, generation_claims.poor_translation),
    83: Claim("unicorns in the Andes: continuing a story", 2.0, generation_claims.story_of_unicorns),
    84: Claim("generated text can be detected", 2.0, generation_claims.detection),
    85: Claim("a pronoun attends to its person", 0.5, gpt_claims.pronouns, **MODEL),
    86: Claim("heads attend to the first token as a sink", 0.2, attention_view_claims.attention_sink, **MODEL),
    87: Claim(
        "BERT is GPT without its mask, and ELMo with Transformers", 0.1, network_view_claims.same_blocks, **MODEL
    ),
    92: Claim("MLM and NSP together train best", 3.0, bert_claims.two_losses),
    93: Claim("[CLS] may be first or last", 0.1, attention_claims.position_of_cls),
    94: Claim("the input is token + segment + position", 0.1, network_view_claims.input_sum, **MODEL),
    95: Claim("segment embeddings do no harm in symmetric tasks", 0.5, bert_claims.symmetric_pairs),
    98: Claim("[MASK] disturbs a Transformer less than an LSTM", 2.0, mask_claims.masks_in_networks),
    99: Claim("Q, K and V when BERT predicts a masked word", 0.2, attention_claims.masked_word_attention),
    100: Claim("BERT learns from more text than GPT", 2.0, pretraining_claims.size_of_corpora),
    101: Claim("in a bidirectional stack a word would see itself", 0.1, bert_claims.sees_itself),
    102: Claim("limits of BERT: [MASK], independent predictions, length", 0.3, bert_claims.limits),
    107: Claim(
        "end before start may mean that there is no answer", 0.5, answer_claims.end_before_start, **MODEL_AND_DATA
    ),
    109: Claim("the encoder may be frozen or fine-tuned", 2.0, bert_claims.frozen_or_tuned),
    110: Claim("many tasks with only one extra output layer", 0.5, task_claims.one_output_layer),
    112: Claim("sentence and word vectors in two lines of code", 0.1, bert_claims.two_lines),
    117: Claim("BERT is ahead of the earlier generations", 5.0, task_claims.ranking_of_generations),
    118: Claim("task-specific networks generalise badly to other data", 5.0, task_claims.another_domain),
    119: Claim("ERNIE masks names as a whole", 0.3, knowledge_claims.masked_names),
    121: Claim("tasks are found in different layers", 1.0, probing_claims.layers_by_task, **MODEL_AND_DATA),
    122: Claim("attention of all layers and heads", 0.1, attention_view_claims.all_heads, **MODEL),
    126: Claim('a head resolves "it"', 0.5, head_claims.pronouns_of_heads, **MODEL),
    127: Claim("a convolution has fewer weights and is shift-equivariant", 0.1, convolution_claims.fewer_weights),
    128: Claim(
        "one head sees one relation: why there are several", 0.5, head_claims.relations_of_heads, **MODEL_AND_DATA
    ),
    129: Claim("CNN, RNN and Transformer in one table", 0.1, convolution_claims.three_networks, timed=True),
    131: Claim("MLM alone is not enough for sentence relations", 2.0, pretraining_claims.relations_of_sentences),
    132: Claim(
        "fine-tuning uses a network better than its features do",
        0.5,
        feature_claims.features_or_tuned,
        **MODEL_AND_DATA,
    ),
    134: Claim("ELMo gives up speed for quality", 0.5, layer_claims.speed_for_quality, timed=True),
    136: Claim("[CLS] represents a text without pooling", 1.0, feature_claims.pooling_of_texts, **MODEL_AND_DATA),
    141: Claim("BERT needs labelled answers, GPT-2 none", 5.0, prompt_claims.labelled_and_zero_shot, **MODEL_AND_DATA),
    143: Claim("attention is not all there is in BERT", 0.5, ablation_claims.more_than_attention, **MODEL),
    144: Claim("one space has several kinds of similarity", 0.3, similarity_claims.several_similarities),
    145: Claim("examples in the prompt help", 0.5, prompt_claims.examples_in_prompt, **MODEL),
}
"""Claims by their number in the project's checklist; docs/claims/ has a page for each."""


def run(
    number: int | None = None, *, model: Model | str | Path | None = None, data: str | Path | None = None,
    on_event: OnEvent = ignore,
) -> Verdict | None:  # fmt: skip
    """Run the experiment of a claim and return its verdict; without a number, list all claims.

    Some accept a `model`, some with a folder of `data`, as their pages describe.
    """
    if number is None:
        for known, claim in CLAIMS.items():
            time = "half a minute" if claim.minutes > 0.2 else "seconds"
            time = pluralize(round(claim.minutes), "minute") if claim.minutes >= 1 else time
            note(on_event, f"{known:4}  {claim.title} ({time})")
        note(on_event, "Run one with: keel claim N")
        return None
    if number not in CLAIMS:
        near = min(CLAIMS, key=lambda known: abs(known - number))
        what = f"there is no experiment {number}"
        raise UsageError(f"{what}: the nearest is {near} ({CLAIMS[near].title}); `keel claim` lists all of them")
    claim = CLAIMS[number]
    given: dict[str, Any] = {}
    for name, value, is_accepted in (("model", model, claim.accepts_model), ("data", data, claim.accepts_data)):
        if is_accepted:
            given[name] = value
        elif value is not None:
            others = ", ".join(str(key) for key, each in CLAIMS.items() if getattr(each, f"accepts_{name}"))
            raise UsageError(f"experiment {number} uses no given {name}: omit --{name} (accepted by {others})")
    if model is not None:
        given["model"] = load_model(model, on_event)
    if data is not None:
        given["data"] = Path(data)
    note(on_event, f"{number}. {claim.title}")
    say = Say(on_event)
    verdict = claim.run(say, **given)
    verdict = replace(verdict, rows=tuple(say.rows), pictures=tuple(say.pictures))
    on_event({"event": "row", "text": str(verdict)})
    return verdict
