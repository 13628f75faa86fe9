"""Settings: frozen dataclasses to plain dicts and back, validated by their annotations."""

import ast
import contextlib
import dataclasses
import difflib
import functools
import inspect
import operator
import os
import re
import textwrap
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    ParamSpec,
    Self,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from keel.errors import KNOWN, KeelError, UsageError, flag_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Settings = TypeVar("Settings", bound="DataclassInstance")
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Convert = Callable[[Any, Any, str], Any]

# Names of settings, and the names of the same setting in other tools.
SYNONYMS = {
    "width": "hidden_size d_model n_embd dim embedding_dim vector_size",
    "layers": "num_hidden_layers num_layers n_layer n_layers depth",
    "head_dim": "heads num_attention_heads num_heads n_head n_heads nhead",
    "mlp_ratio": "intermediate_size dim_feedforward n_inner ffn_dim",
    "max_positions": "max_position_embeddings n_positions",
    "segment_types": "type_vocab_size",
    "dropout": "hidden_dropout_prob resid_pdrop",
    "attention_dropout": "attention_probs_dropout_prob attn_pdrop",
    "activation": "hidden_act activation_function",
    "norm_epsilon": "layer_norm_eps layer_norm_epsilon",
    "sequence_length": "max_seq_length max_seq_len max_length block_size",
    "mask_rate": "mask mlm_probability masked_lm_prob mask_p_start",
    "final_mask_rate": "mask_p_end",
    "mask_span": "max_span_length span_upper",
    "whole_word_masking": "whole_word_mask do_whole_word_mask wwm",
    "pair_objective": "nsp sop",
    "text_column": "column text_column_name",
    "label_column": "label label_column_name",
    "tokenizer": "tokenizer_name",
    "vocabulary": "vocab_size max_final_vocab",
    "lowercase": "do_lower_case uncased",
    "lr": "learning_rate alpha",
    "steps": "max_steps num_train_steps max_iters",
    "epochs": "num_train_epochs max_epochs num_epochs",
    "batch": "batch_size train_batch_size per_device_train_batch_size micro_batch_size",
    "accumulate": "gradient_accumulation_steps accumulate_grad_batches",
    "warmup": "warmup_steps num_warmup_steps warmup_ratio warmup_proportion",
    "schedule": "lr_scheduler_type lr_scheduler",
    "weight_decay": "decay wd",
    "beta1": "adam_beta1",
    "beta2": "adam_beta2",
    "epsilon": "adam_epsilon eps",
    "clip": "max_grad_norm grad_clip gradient_clip_val",
    "precision": "bf16 fp16 dtype torch_dtype mixed_precision",
    "compile": "torch_compile",
    "seed": "random_seed random_state",
    "threads": "num_threads n_jobs",
    "evaluate_every": "eval_steps",
    "final_weights": "load_best_model_at_end",
    "checkpoint_every": "save_steps",
    "keep": "save_total_limit",
    "log_every": "logging_steps",
}
MEANINGS = {"head_dim": "width / heads", "mlp_ratio": "the inner size / width"}
"""Conversion where another tool's setting has another unit."""
MAX_LISTED = 12
EXPECTED = {int: "a whole number", float: "a number", bool: "true or false", str: "text in quotes"}


@dataclasses.dataclass(frozen=True)
class Bound:
    """Bound of a setting in its annotation: `Annotated[int, Ge(1)]` is 1 or more."""

    holds: Callable[[float, float], bool]
    text: str
    bound: float

    def __str__(self) -> str:
        return self.text.format(self.bound)


Ge = functools.partial(Bound, operator.ge, "{:,} or more")
Gt = functools.partial(Bound, operator.gt, "above {:,}")
Le = functools.partial(Bound, operator.le, "{:,} or less")
Lt = functools.partial(Bound, operator.lt, "below {:,}")


@dataclasses.dataclass(frozen=True)
class Doc:
    """Help text of a verb's argument in its annotation; such an argument becomes a flag of its command."""

    text: str
    repeated: bool = False
    """Whether the flag may be given several times."""


Count = Annotated[int, Ge(1)]
"""A whole number, 1 or more."""
LayerCount = Annotated[int, Ge(1), Le(1000)]
"""A number of layers; a network of more is not built."""
Share = Annotated[float, Ge(0), Le(1)]
"""A share from 0 to 1."""
Dropout = Annotated[float, Ge(0), Lt(1)]
"""A dropout probability."""


class Validated:
    """Base of settings dataclasses: enforces the types and bounds of the annotations on construction."""

    __slots__ = ("given",)  # a slot, as vars() of settings are their fields alone
    given: frozenset[str]
    """The fields that were passed, as opposed to those left at their defaults; where all are passed, as
    `dataclasses.replace` does, those that differ from their defaults."""
    folder_only: ClassVar[tuple[str, ...]] = ()
    """Settings that only a folder of another library has; a new object keeps their defaults, and no flag shows them."""

    def __init_subclass__(cls) -> None:
        KNOWN.update(cls.__annotations__)  # messages name them as flags

    def __new__(cls, **fields: Any) -> Self:
        hints = _hints(cls)
        for name, value in fields.items():  # before any __post_init__, and no subclass can forget it
            if name not in hints:
                raise unknown_name(name, hints, cls.__name__)
            _typed(hints[name], value, f"{cls.__name__}: {name}")
        settings = super().__new__(cls)
        defaults = {each.name: each.default for each in dataclasses.fields(cast(Any, cls))}
        replaced = fields.keys() >= hints.keys()
        given = (name for name, value in fields.items() if not replaced or value != defaults.get(name))
        object.__setattr__(settings, "given", frozenset(given))
        return settings

    def non_default(self) -> dict[str, Any]:
        """The settings that differ from their defaults."""
        fields = dataclasses.fields(cast("DataclassInstance", self))
        return {each.name: value for each in fields if (value := getattr(self, each.name)) != each.default}

    def __setstate__(self, state: tuple[dict[str, Any] | None, dict[str, Any]]) -> None:
        fields, slots = state
        self.__dict__.update(fields or {})
        object.__setattr__(self, "given", slots["given"])


def enforces_bounds(verb: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Let a verb validate the arguments with bounds or choices in their annotations, as settings are and flags on the
    command line."""

    @functools.cache
    def bounded() -> dict[str, Any]:
        hints = get_type_hints(verb, include_extras=True)
        return {name: hint for name, hint in hints.items() if has_bounds(hint) or has_choices(hint)}

    @functools.wraps(verb)
    def validated(*positional: Arguments.args, **keywords: Arguments.kwargs) -> Result:
        for name, value in keywords.items():  # verbs take nothing but their sources by position
            if name in bounded():
                _typed(bounded()[name], value, flag_of(name))
        return verb(*positional, **keywords)

    return validated


def has_bounds(annotation: Any) -> bool:
    """Whether a bound stands anywhere in an annotation."""
    return isinstance(annotation, Bound) or any(map(has_bounds, get_args(annotation)))


def has_choices(annotation: Any) -> bool:
    """Whether an annotation is a Literal, or a union of Literals and numbers or texts."""
    if get_origin(annotation) is Annotated:
        return has_choices(get_args(annotation)[0])
    if _is_union(annotation):
        members = {*get_args(annotation)} - {int, float, str, types.NoneType}
        return bool(members) and all(map(has_choices, members))
    return get_origin(annotation) is Literal


def to_dict(settings: "DataclassInstance") -> dict[str, Any]:
    """The settings as plain data that JSON and TOML can hold: lists for tuples."""
    return {field.name: _plain(getattr(settings, field.name)) for field in dataclasses.fields(settings) if field.init}


def from_dict(cls: type[Settings], values: Mapping[str, Any], where: str = "recipe.toml") -> Settings:
    """Build `cls` from plain data; refuses unknown names, wrong types and missing settings, naming their location."""
    given = _validated(cls, values, where)
    for field in dataclasses.fields(cls):
        needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if field.init and needed and field.name not in given:
            raise UsageError(f"{where}: {field.name!r} is missing; add it")
    try:
        return cls(**given)
    except KeelError as error:  # incompatible values, refused by __post_init__
        raise UsageError(f"{where}: {error}") from None


def replace(settings: Settings, **overrides: Any) -> Settings:
    """A copy with changed settings, as strict as `from_dict`."""
    changes = _validated(type(settings), overrides, type(settings).__name__)
    return dataclasses.replace(settings, **changes)


def parse_value(annotation: Any, text: str, where: str) -> Any:
    """Parse a command-line value: `1_000`, `1e-4`, `10%`, `true`, `a,b`, `none`."""
    return _typed(annotation, text, where, parse=True)


@functools.cache
def help_of(cls: type) -> dict[str, str]:
    """Help text of each field of a dataclass: the string literal below it in the class body."""
    texts: dict[str, str] = {}
    for ancestor in reversed([kind for kind in cls.__mro__ if dataclasses.is_dataclass(kind)]):
        try:
            (body,) = ast.parse(textwrap.dedent(inspect.getsource(ancestor))).body
        except (OSError, TypeError):  # no source, as in an interactive session or a frozen program
            continue
        assert isinstance(body, ast.ClassDef)
        for field, below in zip(body.body, body.body[1:], strict=False):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    texts[name] = " ".join(text.split())
    return texts


def unknown_name(name: str, known: Iterable[str], where: str) -> UsageError:
    """The error for an unknown name, suggesting the nearest one or Keel's name for another tool's setting."""
    known = sorted(known)
    ours = [candidate for candidate in known if name in SYNONYMS.get(candidate, "").split()]
    near = difflib.get_close_matches(name, known, n=1)
    if ours:
        meaning = f" ({MEANINGS[ours[0]]})" if ours[0] in MEANINGS else ""
        remedy = f"Keel calls it {ours[0]!r}{meaning}"
    elif near:
        remedy = f"did you mean {near[0]!r}?"
    else:
        more = f" and {len(known) - MAX_LISTED} more" if len(known) > MAX_LISTED else ""
        remedy = f"known names: {', '.join(known[:MAX_LISTED])}{more}" if known else "it has no settings"
    return UsageError(f"{where}: unknown name {name!r}; {remedy}")


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    annotations = get_type_hints(cls, include_extras=True)
    return {field.name: annotations[field.name] for field in dataclasses.fields(cls) if field.init}


def _validated(cls: type, values: Mapping[str, Any], where: str) -> dict[str, Any]:
    hints = _hints(cls)
    for name in values:
        if name not in hints:
            raise unknown_name(name, hints, where)
    return {name: _typed(hints[name], value, f"{where}: {name}") for name, value in values.items()}


def _is_union(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, types.UnionType)


def _first_fit(annotation: Any, value: Any, where: str, convert: Convert) -> Any:
    members = [member for member in get_args(annotation) if member is not types.NoneType]
    optional = len(members) < len(get_args(annotation))
    own_none = any("none" in get_args(member) for member in members)  # as in Literal["none", "linear"]
    if optional and (value is None or (value == "none" and not own_none)):
        return None
    if len(members) == 1:
        return convert(members[0], value, where)
    for member in members:
        with contextlib.suppress(UsageError):
            return convert(member, value, where)
    raise _refusal(annotation, value, where)


def _typed(annotation: Any, value: Any, where: str, parse: bool = False) -> Any:
    """`value`, validated by the annotation; integral floats pass as int, ints and "10%" as float. With `parse` a text
    is read as such a value first."""
    convert = functools.partial(_typed, parse=parse)
    if get_origin(annotation) is Annotated:
        kind, *metadata = get_args(annotation)
        bounds = [each for each in metadata if isinstance(each, Bound)]
        found = convert(kind, value, where)
        if all(each.holds(found, each.bound) for each in bounds):
            return found
        raise UsageError(f"{where} must be {' and '.join(map(str, bounds))}, not {found}")
    if _is_union(annotation):
        return _first_fit(annotation, value, where, convert)
    if get_origin(annotation) is tuple and parse:
        value = [part.strip() for part in value.split(",")] if value else []
    elif parse:
        value = _read(annotation, value)
    if get_origin(annotation) is tuple and isinstance(value, list | tuple):
        return _each(annotation, value, where, convert)
    if get_origin(annotation) is Literal:
        for choice in get_args(annotation):
            if type(choice) is type(value) and choice == value:
                return choice
    number = isinstance(value, int | float) and not isinstance(value, bool) and value == value  # NaN is no setting
    if annotation is int and number and value == value // 1:
        return int(value)
    if annotation is float and number:
        return float(value)
    if annotation is float and isinstance(value, str) and re.fullmatch(r"\d+(\.\d+)?%", value):
        return float(value[:-1]) / 100
    if annotation is Any or (annotation in (bool, str) and isinstance(value, annotation)):
        return value
    raise _refusal(annotation, value, where)


def _each(annotation: Any, values: Sequence[Any], where: str, convert: Convert) -> tuple[Any, ...]:
    kinds = get_args(annotation)
    if kinds[-1] is ...:
        kinds = kinds[:1] * len(values)
    if len(kinds) != len(values):
        raise _refusal(annotation, list(values), where)
    return tuple(
        convert(kind, value, f"{where}[{i}]") for i, (kind, value) in enumerate(zip(kinds, values, strict=True))
    )


def _refusal(annotation: Any, value: Any, where: str) -> UsageError:
    return UsageError(f"{where} must be {_describe(annotation)}, not {value!r}")


def _describe(annotation: Any) -> str:
    arguments = get_args(annotation)
    if get_origin(annotation) is Annotated:
        return _describe(arguments[0])
    if _is_union(annotation):
        members = [member for member in arguments if member is not types.NoneType]
        if all(get_origin(member) is Literal for member in members):
            return "one of " + ", ".join(repr(choice) for member in members for choice in get_args(member))
        return " or ".join(map(_describe, members))
    if get_origin(annotation) is Literal:
        return "one of " + ", ".join(repr(choice) for choice in arguments)
    if get_origin(annotation) is tuple and arguments[-1] is ...:
        return f"a list, each {_describe(arguments[0])}"
    if get_origin(annotation) is tuple:
        return f"a list of {len(arguments)}: {', '.join(map(_describe, arguments))}"
    return EXPECTED.get(annotation, str(annotation))


def _read(annotation: Any, text: str) -> Any:
    """`text` converted by the annotation, or unchanged where that fails (then `_typed` refuses it)."""
    if get_origin(annotation) is Literal:
        return {str(choice): choice for choice in get_args(annotation)}.get(text, text)
    if annotation is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    for number in (int, float) if annotation in (int, float) else ():
        with contextlib.suppress(ValueError):
            return number(text)
    return text


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def cache_folder() -> Path:
    """Folder of the cache: $KEEL_CACHE, else ~/.cache/keel."""
    return Path(os.environ.get("KEEL_CACHE") or Path.home() / ".cache" / "keel")
