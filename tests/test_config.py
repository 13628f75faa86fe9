import json
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import pytest

from keel import config, toml_files
from keel.api.settings import TextSettings
from keel.config import Ge, Gt, Le, Lt, Validated, from_dict, parse_value, replace
from keel.data.examples import Columns
from keel.errors import KeelError, UsageError
from keel.systems.bert import Bert
from keel.training import plan


@dataclass(frozen=True, kw_only=True)
class Body:
    width: int = 256
    """Size of a vector,
    in every layer."""
    heads: int = 4

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise KeelError(f"width {self.width} is not a multiple of heads {self.heads}")


@dataclass(frozen=True, kw_only=True)
class Recipe(Body):
    corpus: str
    """Where the text is."""
    kinds: tuple[str, ...] = ()
    dev: float | str = 0.1
    limit: int | None = 7
    lr: float = 1e-4
    schedule: Literal["linear", "cosine", "none"] = "linear"
    betas: tuple[float, float] = (0.9, 0.999)
    compile: bool = False


FULL = Recipe(
    corpus='a "quoted"\n\\ path\x7f 语料',
    kinds=("x", "y,z"),
    dev="dev.tsv",
    limit=None,
    width=384,
    heads=6,
    lr=3e-05,
    schedule="none",
    betas=(0.9, 1.0),
    compile=True,
)


def test_round_trip_through_toml_and_json_changes_nothing() -> None:
    plain = config.to_dict(FULL)
    assert config.from_dict(Recipe, tomllib.loads(toml_files.write_toml(plain))) == FULL
    assert config.from_dict(Recipe, json.loads(json.dumps(plain))) == FULL
    assert plain["kinds"] == ["x", "y,z"]


def test_toml_puts_settings_before_tables_and_quotes_odd_keys() -> None:
    values = {"b": {"c": {}, "d": 1.5}, "a b": [True, {"x": 1}], "e": float("inf")}
    text = toml_files.write_toml(values)
    assert text == '"a b" = [true, {x = 1}]\ne = inf\n\n[b]\nd = 1.5\n\n[b.c]\n'
    assert tomllib.loads(text) == values


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"corpus": "c", "hidden_size": 1}, "r.toml: unknown name 'hidden_size'; Keel calls it 'width'"),
        ({"corpus": "c", "widht": 1}, "r.toml: unknown name 'widht'; did you mean 'width'?"),
        (
            {"q": 1},
            "r.toml: unknown name 'q'; known names: betas, compile, corpus, dev, heads, kinds, limit, lr, schedule, "
            "width",
        ),
        ({"width": 1}, "r.toml: 'corpus' is missing; add it"),
        ({"corpus": 5}, "r.toml: corpus must be text in quotes, not 5"),
        ({"width": "5"}, "r.toml: width must be a whole number, not '5'"),
        ({"width": 5.5}, "r.toml: width must be a whole number, not 5.5"),
        ({"width": True}, "r.toml: width must be a whole number, not True"),
        ({"width": None}, "r.toml: width must be a whole number, not None"),
        ({"limit": "x"}, "r.toml: limit must be a whole number, not 'x'"),
        ({"dev": [1]}, "r.toml: dev must be a number or text in quotes, not [1]"),
        ({"kinds": ["a", 1]}, "r.toml: kinds[1] must be text in quotes, not 1"),
        ({"lr": float("nan")}, "r.toml: lr must be a number, not nan"),
        ({"compile": 1}, "r.toml: compile must be true or false, not 1"),
        ({"betas": [0.9]}, "r.toml: betas must be a list of 2: a number, a number, not [0.9]"),
        ({"schedule": "liner"}, "r.toml: schedule must be one of 'linear', 'cosine', 'none', not 'liner'"),
        ({"corpus": "c", "width": 10}, "r.toml: width 10 is not a multiple of heads 4"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        config.from_dict(Recipe, values, "r.toml")
    assert str(caught.value) == message


def test_numbers_are_taken_as_people_write_them() -> None:
    recipe = config.from_dict(Recipe, tomllib.loads('corpus = "c"\ndev = "5%"\nwidth = 1e3\nlr = 1'))
    assert (recipe.dev, recipe.width, recipe.lr) == (0.05, 1000, 1.0)
    assert isinstance(recipe.width, int)
    assert isinstance(recipe.lr, float)


@pytest.mark.parametrize(
    ("annotation", "text", "value"),
    [
        (int, "1_000", 1000),
        (int, "1e4", 10000),
        (int, "-3", -3),
        (float, "1e-4", 1e-4),
        (float, "3", 3.0),
        (float, "12.5%", 0.125),
        (bool, "true", True),
        (bool, "False", False),
        (str, " 10% ", " 10% "),
        (str, "true", "true"),
        (int | None, "none", None),
        (int | None, "4", 4),
        (float | str, "10%", 0.1),
        (float | str, "dev.tsv", "dev.tsv"),
        (Literal["none", "all"] | None, "none", "none"),
        (Literal[1, 2], "2", 2),
        (tuple[int, ...], "1, 2,3", (1, 2, 3)),
        (tuple[int | None, str], "none,b", (None, "b")),
        (tuple[str, ...], "", ()),
    ],
)
def test_command_line_text_becomes_the_annotated_type(annotation: Any, text: str, value: object) -> None:
    parsed = config.parse_value(annotation, text, "--x")
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("annotation", "text"),
    [(int, "1.5"), (int, "10%"), (int, "inf"), (float, "fast"), (float, "nan"), (bool, "1"), (bool, "yes"),
     (int, "none"), (Literal["a"], "b"), (tuple[int, int], "1,2,3"), (tuple[int, ...], "1,x")],
)  # fmt: skip
def test_command_line_text_that_does_not_fit_is_refused_by_name(annotation: Any, text: str) -> None:
    with pytest.raises(UsageError, match=r"^steps(\[1\])? must be "):
        config.parse_value(annotation, text, "--steps")


def test_replace_is_strict() -> None:
    changed = config.replace(FULL, width=500, heads=5, lr=1, compile=False)
    assert (changed.width, changed.heads, changed.lr, changed.compile) == (500, 5, 1.0, False)
    assert changed.schedule == FULL.schedule
    for overrides in ({"hight": 1}, {"width": "x"}, {"train.lr": 1}):
        with pytest.raises(UsageError):
            config.replace(FULL, **overrides)


def test_help_is_the_string_below_a_field_own_or_inherited() -> None:
    assert config.help_of(Recipe) == {"width": "Size of a vector, in every layer.", "corpus": "Where the text is."}


def test_toml_file_is_read_or_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text('\ufeffcorpus = "语料"\n', encoding="utf-8")
    assert toml_files.read_toml(path) == {"corpus": "语料"}
    path.write_text("a = 1\nb = = 2\n")
    with pytest.raises(KeelError, match=r"r\.toml:2: invalid TOML"):
        toml_files.read_toml(path)
    path.write_bytes(b"a = '\xff'")
    with pytest.raises(KeelError, match="UTF-8"):
        toml_files.read_toml(path)
    with pytest.raises(KeelError, match="No such file"):
        toml_files.read_toml(tmp_path / "absent.toml")


@pytest.mark.parametrize(("theirs", "ours"), [
    ("hidden_size", "width"), ("n_embd", "width"), ("num_hidden_layers", "layers"), ("n_layer", "layers"),
    ("decay", "weight_decay"), ("max_length", "sequence_length"), ("learning_rate", "lr"), ("max_steps", "steps"),
    ("num_train_epochs", "epochs"), ("per_device_train_batch_size", "batch"), ("mlm_probability", "mask_rate"),
])  # fmt: skip
def test_names_of_other_tools_are_known(theirs: str, ours: str) -> None:
    error = config.unknown_name(theirs, ["zzz", ours], "x")
    assert str(error) == f"x: unknown name {theirs!r}; Keel calls it {ours!r}"


def test_a_synonym_of_another_unit_names_the_conversion() -> None:
    error = config.unknown_name("num_attention_heads", ["width", "head_dim"], "x")
    assert str(error) == "x: unknown name 'num_attention_heads'; Keel calls it 'head_dim' (width / heads)"


def test_other_tools_names_are_given_real_settings() -> None:
    ours = {field.name for settings in (Bert, plan.Train, TextSettings, Columns) for field in fields(settings)}
    assert config.SYNONYMS.keys() <= ours
    assert config.MEANINGS.keys() <= config.SYNONYMS.keys()
    theirs = [name for names in config.SYNONYMS.values() for name in names.split()]
    assert len(theirs) == len(set(theirs)), "one name has one answer"
    assert ours.isdisjoint(theirs)


def test_many_known_names_are_sorted_and_cut_short() -> None:
    error = config.unknown_name("q", [f"name{number:02}" for number in reversed(range(30))], "x")
    listed = ", ".join(f"name{number:02}" for number in range(12))
    assert str(error) == f"x: unknown name 'q'; known names: {listed} and 18 more"


@dataclass(frozen=True, kw_only=True)
class Bounded(Validated):
    layers: Annotated[int, Ge(1), Le(1000)] = 2
    dropout: Annotated[float, Ge(0), Lt(1)] = 0.1
    scale: Annotated[float, Gt(0)] = 0.5


@pytest.mark.parametrize(
    ("field", "wrong", "sentence"),
    [
        ("layers", 0, "layers must be 1 or more and 1,000 or less, not 0"),
        ("layers", 1001, "1,000 or less"),
        ("dropout", 1.0, "below 1, not 1.0"),
        ("scale", 0, "above 0"),
        ("layers", 1.5, "a whole number"),
    ],
)
def test_bounds_of_the_annotation_are_enforced_wherever_a_setting_is_made(
    field: str, wrong: Any, sentence: str
) -> None:
    for make in (
        lambda: Bounded(**{field: wrong}),
        lambda: replace(Bounded(), **{field: wrong}),
        lambda: from_dict(Bounded, {field: wrong}),
        lambda: parse_value(get_type_hints(Bounded, include_extras=True)[field], str(wrong), field),
    ):
        with pytest.raises(UsageError, match=sentence):
            make()


@pytest.mark.parametrize(
    ("settings", "name", "nearest"),
    [
        (Bert, "mask", "mask_rate"),
        (Bert, "num_hidden_layers", "layers"),
        (plan.Train, "step", "steps"),
        (Columns, "form", "format"),
    ],
)
def test_an_unknown_setting_of_an_object_names_the_nearest(settings: Any, name: str, nearest: str) -> None:
    with pytest.raises(UsageError, match=rf"^{settings.__name__}: unknown name '{name}'.*'{nearest}'"):
        settings(**{name: 3})
