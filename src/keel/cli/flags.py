"""Settings as flags: a field of a dataclass is `--section.field`, common ones are bare; a recipe is a file of flags."""

import argparse
import dataclasses
import difflib
from collections.abc import Collection, Iterable, Sequence
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, Self, get_args, get_origin, get_type_hints

from keel.config import SYNONYMS, help_of, parse_value, read_toml
from keel.errors import UsageError

BARE = {
    **{f"train.{name}": name for name in ("minutes", "steps", "epochs", "batch", "lr", "seed", "threads", "device")},
    **{f"train.{name}": name.replace("_", "-") for name in ("schedule", "layer_decay", "unfreeze")},
    "text.text_column": "text-column",
    "text.dedup": "dedup",
    "text.min_count": "min-count",
    "text.encoding": "encoding",
    "columns.text_column": "text-column",
    "columns.second_column": "second-column",
    "columns.label_column": "label-column",
    "columns.labels": "labels",
    "columns.encoding": "encoding",
    "columns.format": "format",
    "columns.scheme": "scheme",
    "pieces.tokenizer": "tokenizer",
    "pieces.vocabulary": "vocabulary",
    "pieces.separate": "separate",
    "search.beams": "beam",
    "search.best": "best",
    "search.length_penalty": "length-penalty",
    "head.crf": "crf",
    "head.orders": "orders",
    "head.lm_loss": "lm-loss",
    "head.pool": "pool",
    "head.network": "network",
    "head.characters": "characters",
    "head.mix": "mix",
}
NEAR = 0.7
"""How alike a flag must be to be suggested: the dashes, which all share, make unlike ones alike."""
METAVARS = {int: "N", float: "X", str: "NAME", bool: "true|false"}


class Flags(argparse.ArgumentParser):
    """The arguments of one verb on one `line`: its own, and those made from settings."""

    def __init__(self, verb: str, usage: str = "", does: str = "", line: Sequence[str] = (), *, add_help: bool = True):
        super().__init__(
            prog=f"keel {verb}",
            usage=f"keel {verb} {usage} [FLAGS]",
            description=does,
            add_help=add_help,
            allow_abbrev=False,
            formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=36, width=110),
        )
        self.verb, self.line = verb, line
        self.annotations: dict[str, Any] = {}
        self.meanings: dict[str, str] = {}
        everywhere = self.add_argument_group("everywhere")
        everywhere.add_argument("--json", action="store_true", help="print the result as JSON")
        everywhere.add_argument("--quiet", action="store_true", help="no messages, only the result")
        everywhere.add_argument("--debug", action="store_true", help="show where in the program an error came from")

    def section(self, name: str, *settings: Any, without: Collection[str] = ()) -> None:
        """Make flags of the fields of settings, which are the defaults shown; of several, of all their fields."""
        common = self.add_argument_group("common") if name == "train" else None
        group = self.add_argument_group(name)
        for each in settings:
            annotations, texts = get_type_hints(type(each), include_extras=True), help_of(type(each))
            for field in dataclasses.fields(each):
                place = f"{name}.{field.name}"
                if place in self.annotations or field.name in without:
                    continue
                # The verbs take settings by the names of their fields alone.
                assert field.name not in map(_name, self.annotations), f"two settings are called {field.name}"
                self.annotations[place] = annotation = annotations[field.name]
                self.meanings[place] = texts.get(field.name, "")
                text = (self.meanings[place] + _shown(getattr(each, field.name))).replace("%", "%%")
                if place in BARE:
                    bare = common or group
                    bare.add_argument(f"--{BARE[place]}", dest=place, metavar=_metavar(annotation), help=text)
                    group.add_argument(f"--{place}", dest=place, help=argparse.SUPPRESS)
                else:
                    group.add_argument(f"--{place}", metavar=_metavar(annotation), help=text)

    def glance(self) -> argparse.Namespace:
        """The arguments of the line as far as they are there: none is required."""
        for action in self._actions:
            action.required = False
        return self.parse_known_intermixed_args(self._switched(self.line))[0]

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The arguments by name; in `settings` the fields that were given, by their names as the verbs take them."""
        options, rest = self.parse_known_intermixed_args(self._switched(arguments))
        for flag in rest:
            raise self._unknown(flag.partition("=")[0])
        options.settings = {
            _name(place): self._value(place, annotation, text)
            for place, annotation in self.annotations.items()
            if (text := getattr(options, place)) is not None
        }
        return options

    def _value(self, place: str, annotation: Any, text: str) -> Any:
        try:
            return parse_value(annotation, text, self._flag(place))
        except UsageError as error:
            means = self.meanings[place].partition(";")[0].rstrip(".")
            raise UsageError(f"{error} ({means})" if means else str(error)) from None

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")

    def _flag(self, place: str) -> str:
        return f"--{BARE.get(place, place)}"

    def _switched(self, arguments: Iterable[str]) -> list[str]:
        """`--train.compile` alone means true."""
        switches = {self._flag(place) for place, annotation in self.annotations.items() if annotation is bool}
        words = list(arguments)
        following = [*words[1:], ""]
        return [
            f"{word}=true" if word in switches and after.lower() not in ("true", "false") else word
            for word, after in zip(words, following, strict=False)
        ]

    def _unknown(self, flag: str) -> UsageError:
        if not flag.startswith("-"):
            return UsageError(f"{self.prog}: one argument too many, {flag!r} (see {self.prog} --help)")
        name = flag.lstrip("-").replace("-", "_").rpartition(".")[2]
        meant = [
            self._flag(place)
            for place in self.annotations
            if name == (field := _name(place)) or name in SYNONYMS.get(field, "").split()
        ]
        if meant:
            remedy = f"say {' or '.join(meant)}"
        elif near := difflib.get_close_matches(flag, self._option_string_actions, n=1, cutoff=NEAR):
            remedy = f"did you mean {near[0]}?"
        else:
            remedy = f"{self.prog} --help lists what there is"
        return UsageError(f"{flag}: {self.prog} has no such flag; {remedy}")


class Recipe(NamedTuple):
    """What a TOML file says: what to train and on what text, and all else as flags."""

    system: str = ""
    corpus: Sequence[str] = ()
    flags: Sequence[str] = ()

    @classmethod
    def read(cls, path: str) -> Self:
        """`system` is a name, or a table with a name in it; its tables are the sections of flags."""
        recipe = read_toml(path)
        system, corpus = recipe.pop("system", {}), recipe.pop("corpus", [])
        if not isinstance(system, dict):
            system = {"name": system}
        name = system.pop("name", "")
        flags: dict[str, Any] = {}
        for key, value in {**recipe, "system": system}.items():
            flags |= (
                {f"{key}.{field}": item for field, item in value.items()} if isinstance(value, dict) else {key: value}
            )
        return cls(
            str(name),
            [corpus] if isinstance(corpus, str) else list(map(str, corpus)),
            [f"--{flag}={_text(value)}" for flag, value in flags.items()],
        )


def _name(place: str) -> str:
    return place.rpartition(".")[2]


def _metavar(annotation: Any) -> str:
    if get_origin(annotation) is Annotated:
        return _metavar(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return "|".join(map(str, get_args(annotation)))
    return METAVARS.get(annotation, "VALUE")


def _shown(default: Any) -> str:
    text = f"{default:g}" if isinstance(default, float) else _text(default)
    return f" [{text}]" if text else ""


def _text(value: Any) -> str:
    """A value as it is written in a flag."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(map(_text, value))
    return str(value)
