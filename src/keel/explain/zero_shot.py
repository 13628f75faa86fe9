"""Zero-shot evaluation of language models by likelihood: last words (LAMBADA) and multiple choice."""

import re
from math import log

import numpy as np

from keel.data.examples import Example, Examples, Labels
from keel.data.label_kinds import ChoiceLabel, TextTarget
from keel.data.language_detection import is_unspaced
from keel.errors import KeelError
from keel.events import OnEvent, ignore
from keel.explain.perplexity import BYTE_SYMBOLS
from keel.generation.likelihood import continuation_likelihoods, continuation_log_probs, encode_continuations
from keel.metrics.bootstrap import Values, bootstrap
from keel.metrics.choice_scores import TOLERANCE, ChoiceResults, ties_note
from keel.metrics.scores import PredictionError, Scores, by_confidence, most_confident
from keel.model import Model
from keel.systems.capabilities import CausalLM, LanguageModelSystem

LAST_WORD = re.compile(r"\s*\S+\s*$")


def next_token_model(model: Model, remedy: str = "") -> CausalLM:
    """The language model of a loaded model; `remedy` is what else may be done with a model that has none."""
    language_model = model.objective
    if not isinstance(language_model, CausalLM):
        what = f"{model.system.name} does not generate text"
        if model.task is not None and isinstance(model.task.labels.kind, TextTarget):
            raise KeelError(f"{what} from a prompt, it is a seq2seq model: use keel translate")
        if model.task is not None and isinstance(model.system, LanguageModelSystem):
            raise KeelError(f"{what} after fine-tuning for {model.task.name}: use the model that was fine-tuned")
        if remedy:
            raise KeelError(f"{what}: {remedy}, or use a language model, such as ngram, nnlm, rnn, ulmfit or gpt")
        raise KeelError(f"{what}: use a language model, such as ngram, nnlm, rnn, ulmfit or gpt")
    return language_model


def predict_last_words(model: Model, examples: Examples, *, on_event: OnEvent = ignore) -> Scores:
    """Last-word prediction as in LAMBADA: accuracy of greedy decoding over all tokens of the last word, and perplexity
    per last word.

    An unknown word counts as wrong and costs its bytes, as in `perplexity`.
    """
    tokenizer = model.tokenizer
    contexts, words = zip(*map(_split_last_word, examples), strict=True)
    questions = encode_continuations(tokenizer, contexts, words)
    found = continuation_likelihoods(next_token_model(model), questions, on_event=on_event)
    unknown_id = tokenizer.unknown_id if tokenizer.has_special_token("unk") else -1
    unknown = np.array([each.ids.count(unknown_id) for each in found])
    sizes = [len(word.strip().encode()) + 1 for word in words]
    nats = np.array([-each.log_prob for each in found]) + np.where(unknown > 0, sizes, 0) * log(BYTE_SYMBOLS)
    correct = np.array([each.is_greedy for each in found]) & (unknown == 0)

    def statistics(weights: np.ndarray) -> Values:
        count = weights.sum(1)
        return {"accuracy": weights @ correct / count, "perplexity": np.exp(weights @ nats / count)}

    note = "perplexity is per last word"
    if unknown.any():
        cost = f"wrong, scored byte by byte by a uniform model of {BYTE_SYMBOLS} symbols"
        note += f"; {np.count_nonzero(unknown):,} are not in the vocabulary: {cost}"
    wrong = np.flatnonzero(~correct)
    errors = [
        PredictionError(
            where=examples[index].location,
            text=contexts[index][-200:],
            label=words[index].strip(),
            predicted=tokenizer.decode(found[index].top_ids[:1].tolist()).strip(),
            confidence=float(np.exp(log_prob)),
        )
        for index, log_prob in by_confidence(wrong, np.array([found[index].top_log_probs[0] for index in wrong]))
    ]
    values = bootstrap(statistics, len(found))
    return Scores(main="accuracy", values=values, count=len(found), errors=errors, note=note)


def _split_last_word(example: Example) -> tuple[str, str]:
    """A text without its last word, and that word with the whitespace before it."""
    text = example.text.rstrip()
    last = LAST_WORD.search(text)
    if last is None or last.start() == 0:
        raise KeelError(f"{example.location}: {text!r:.60} has no last word after a context: give two words or more")
    return text[: last.start()], text[last.start() :]


def choose_most_probable(model: Model, examples: Examples, *, on_event: OnEvent = ignore) -> Scores:
    """Multiple-choice accuracy of the most probable choice: by log p (sum), normalised per token and per byte, and by
    log p(choice | context) - log p(choice) (gain). If n choices are tied and one is the right one, 1/n counts.

    A context that ends with a question mark is presented as "Q: ...", its choices after "A:"; a space precedes each
    choice, except in Chinese and Japanese.
    """
    language_model, tokenizer = next_token_model(model), model.tokenizer
    labels = Labels(kind=ChoiceLabel()).targets(examples).numpy()
    contexts, neutral, texts = [], [], []
    for example in examples:
        is_question = example.text.rstrip().endswith(("?", "？"))
        unspaced = is_unspaced(example.text + "".join(example.choices))
        for choice in example.choices:
            contexts.append(f"Q: {example.text.strip()}\nA:" if is_question else example.text.rstrip())
            neutral.append("A:" if is_question else "")
            texts.append(choice.strip() if unspaced else f" {choice.strip()}")
    conditional, unconditional = (encode_continuations(tokenizer, before, texts) for before in (contexts, neutral))
    total = continuation_log_probs(language_model, conditional, on_event=on_event)
    gain = total - continuation_log_probs(language_model, unconditional, on_event=on_event)
    scorings = {
        "by sum": (total, 1),
        "per token": (total, [len(each.text) for each in conditional]),
        "per byte": (total, [len(text.strip().encode()) for text in texts]),
        "by gain": (gain, 1),
    }
    counts, tolerance = [*map(len, examples.choices)], TOLERANCE * np.maximum(1, np.abs(total))
    results = {
        name: ChoiceResults.of(score / size, counts, labels, tolerance / size)
        for name, (score, size) in scorings.items()
    }

    def statistics(weights: np.ndarray) -> Values:
        return {f"accuracy {name}": weights @ each.credit / weights.sum(1) for name, each in results.items()}

    main = "per byte"
    chosen, (scores, size) = results[main], scorings[main]
    powers = [np.exp(part - part.max()) for part in np.split(scores / size, np.cumsum(counts)[:-1])]
    wrong = np.flatnonzero(chosen.credit == 0)
    confidence = np.array([powers[index].max() / powers[index].sum() for index in wrong])
    predicted = [choices[best] for choices, best in zip(examples.choices, chosen.best, strict=True)]
    baseline = float(np.mean([1 / len(choices) for choices in examples.choices]))
    gain_note = "gain is log p with the context minus log p without it"
    if not any(contexts):
        gain_note = "no example has a context, so that all gains are 0"
    return Scores(
        main=f"accuracy {main}",
        values=bootstrap(statistics, len(examples)),
        count=len(examples),
        errors=most_confident(examples, wrong, confidence, predicted),
        ties=chosen.tied,
        note="; ".join(
            filter(None, [f"random baseline {baseline:.3f}", ties_note(chosen.tied, len(counts)), gain_note])
        ),
    )
