"""Command-line flags from the arguments of verbs and the fields of settings dataclasses; recipes are files of flags."""

import argparse
import dataclasses
import difflib
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, Self, get_args, get_origin, get_type_hints

from keel.config import SYNONYMS, Doc, help_of, parse_value
from keel.errors import UsageError, flag_of
from keel.formats.upgrades import DROPPED_SETTINGS, RENAMED_TASKS, new_names
from keel.localization import english_words, gettext_noop, translate
from keel.text_table import wrapped_text
from keel.toml_files import read_toml

BARE_SECTIONS = ("columns", "head", "search", "sampling")
"""Sections whose fields have flags without the section's name: data columns, task head, decoding."""
BARE_FIELDS = {
    *("train.minutes", "train.steps", "train.epochs", "train.batch", "train.lr", "train.seed", "train.threads"),
    *("train.device", "train.schedule", "train.layer_decay", "train.unfreeze"),
    *("text.text_column", "text.dedup", "text.min_count", "text.encoding", "text.separator"),
}
SECTION_FIELDS = {"head.network_width", "head.network_layers", "head.network_dropout"}
"""Fields of bare sections that keep the section's name."""
RENAMED_FLAGS = {
    "--tokenizer": "--text.tokenizer",
    "--vocabulary": "--text.vocabulary",
    "--separate": "--text.separate",
    **{f"--pieces.{name}": f"--text.{name}" for name in ("tokenizer", "vocabulary", "separate")},
}
"""Flags of earlier versions; renamed settings are in formats/upgrades.py."""
NEAR = 0.7
"""Similarity from which a flag is suggested; the dashes alone make flags similar."""
DEFAULT = re.compile(r"(.*\S) \[(.*)\]", re.DOTALL)
SECTION_FLAG = re.compile(r"^(--[a-z]+\.)([a-z0-9_-]+)")
HEADING = re.compile(r"^([\u3400-\u9fff]+)(?::(?=\n)|： )", re.MULTILINE)
EMPTY: Mapping[str, str] = {}
METAVARS = {int: "N", float: "X", str: "NAME", bool: "true|false"}


class Flags(argparse.ArgumentParser):
    """The flags of one verb: its own, and those of its arguments and settings."""

    def __init__(
        self, verb: str, usage: str = "", summary: str = "", line: Sequence[str] = (), *, add_help: bool = True
    ):
        super().__init__(
            prog=f"keel {verb}",
            usage=f"keel {verb} {usage} [FLAGS]",
            description=summary,
            add_help=add_help,
            allow_abbrev=False,
            formatter_class=HelpFormatter,
        )
        self.verb, self.line = verb, line
        self.annotations: dict[str, Any] = {}
        """By "section.field", or by the name of an argument."""
        self.names: dict[str, str] = {}
        """The flag of each."""
        self.meanings: dict[str, str] = {}
        self.defaults: dict[str, Any] = {}
        """What a run without the flag takes, as the help shows it."""
        self.lists: set[str] = set()
        """Those that take several values too: 1e-4,3e-4."""
        every = self.add_argument_group(gettext_noop("every command"))
        every.add_argument("--lang", metavar="en|zh", help="Language of messages and reports. [that of the locale]")
        every.add_argument("--json", action="store_true", help="Print the result as JSON.")
        every.add_argument("--quiet", action="store_true", help="Print no messages, only the result.")
        every.add_argument("--debug", action="store_true", help="Print the traceback of an error.")

    def arguments(self, verb: Callable[..., Any], **metavars: str) -> None:
        """Flags of a verb's arguments that have a `Doc`; defaults are the verb's."""
        hints = get_type_hints(verb, include_extras=True)
        for name, parameter in inspect.signature(verb).parameters.items():
            *kinds, doc = get_args(hints.get(name)) or [None]  # after the type and its bounds
            if isinstance(doc, Doc):
                annotation = Annotated[tuple(kinds)] if kinds[1:] else kinds[0]
                metavar = metavars.get(name, "")
                default = None if parameter.default is parameter.empty else parameter.default
                self._add(self, name, flag_of(name), annotation, doc.text, default, metavar, doc.repeated)

    def section(
        self,
        name: str,
        *settings: Any,
        only: Collection[str] | None = None,
        without: Collection[str] = (),
        defaults: bool = True,
        rules: Mapping[str, str] = EMPTY,
    ) -> None:
        """Flags of the fields of settings, whose values are the defaults; of several, all their fields.

        `rules`: how defaults that are not known before the data is read depend on it, by field.
        """
        common = self.add_argument_group(gettext_noop("common")) if name == "train" else None
        group = self.add_argument_group(name)
        for each in settings:
            # Flags without help, such as those of all systems, need no texts, which are parsed from the source.
            texts = help_of(type(each)) if self.add_help else {}
            annotations = get_type_hints(type(each), include_extras=True)
            for field in dataclasses.fields(each):
                place = f"{name}.{field.name}"
                if place in self.annotations or field.name in without or (only and field.name not in only):
                    continue
                # Verbs take settings by the names of their fields.
                assert field.name not in map(_name, self.annotations), f"two settings are called {field.name}"
                bare = place in BARE_FIELDS or (name in BARE_SECTIONS and place not in SECTION_FIELDS)
                flag = flag_of(field.name) if bare else f"--{place}"
                default = rules.get(field.name, getattr(each, field.name)) if defaults else None
                target = (common or group) if bare else group
                self._add(target, place, flag, annotations[field.name], texts.get(field.name, ""), default)
                if field.name in each.folder_only:  # recipes have all settings
                    self._option_string_actions[flag].help = argparse.SUPPRESS
                if bare:
                    group.add_argument(f"--{place}", dest=place, help=argparse.SUPPRESS)

    def _add(
        self,
        group: Any,
        place: str,
        flag: str,
        annotation: Any,
        text: str,
        default: Any,
        metavar: str = "",
        repeated: bool = False,
    ) -> None:
        self.annotations[place], self.names[place], self.meanings[place] = annotation, flag, text
        self.defaults[place] = default
        help = (text + _shown(default)).replace("%", "%%")
        if "." not in place and _is_switch(annotation):
            group.add_argument(flag, dest=place, action="store_const", const="true", help=help)
            if annotation == bool | None:  # a default that depends on the model
                off = f"--no-{flag.removeprefix('--')}"
                group.add_argument(off, dest=place, action="store_const", const="false", help=argparse.SUPPRESS)
            return
        action = "append" if repeated else "store"
        group.add_argument(flag, dest=place, action=action, metavar=metavar or _metavar(annotation), help=help)

    def peek(self) -> argparse.Namespace:
        """The arguments of the line, where none is required."""
        for action in self._actions:
            action.required = False
        return self.parse_known_intermixed_args(self._with_switches(self.line))[0]

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The arguments by name; `settings` has those given of verbs and settings, by the names that verbs take."""
        options, rest = self.parse_known_intermixed_args(self._with_switches(arguments))
        if rest:
            raise self._unknown(rest[0].partition("=")[0])
        options.settings = {
            _name(place): self._value(place, annotation, text)
            for place, annotation in self.annotations.items()
            if (text := getattr(options, place)) is not None
        }
        return options

    def _value(self, place: str, annotation: Any, text: Any) -> Any:
        if isinstance(text, list):
            return text
        if place in self.lists and "," in text:
            annotation = tuple[annotation, ...]
        try:
            return parse_value(annotation, text, self.names[place])
        except UsageError as error:
            means = self.meanings[place].partition(";")[0].rstrip(".")
            raise UsageError(f"{error} ({means})" if means else str(error)) from None

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")

    def _with_switches(self, arguments: Iterable[str]) -> list[str]:
        """`--train.compile` alone means true; `--train.log-every` is `--train.log_every`."""
        switches = {self.names[place] for place, kind in self.annotations.items() if "." in place and kind is bool}
        words = [SECTION_FLAG.sub(lambda found: found[1] + found[2].replace("-", "_"), word) for word in arguments]
        following = [*words[1:], ""]
        return [
            f"{word}=true" if word in switches and after.lower() not in ("true", "false") else word
            for word, after in zip(words, following, strict=False)
        ]

    def _unknown(self, flag: str) -> UsageError:
        if not flag.startswith("-"):
            return UsageError(f"{self.prog}: one argument too many, {flag!r} (see {self.prog} --help)")
        name = flag.lstrip("-").replace("-", "_").rpartition(".")[2]
        known = {_name(place): self.names[place] for place in self.annotations}
        renamed = [known[new] for new in new_names(name) if new in known]
        if flag in RENAMED_FLAGS and RENAMED_FLAGS[flag] in known.values():
            renamed = [RENAMED_FLAGS[flag]]
        meant = [known[each] for each in known if each == name or name in SYNONYMS.get(each, "").split()]
        if not renamed and any(name in names for names in DROPPED_SETTINGS.values()):
            return UsageError(f"{flag} was removed: leave it out")
        if renamed:
            return UsageError(f"{flag} was renamed: use {' or '.join(renamed)}")
        if meant:
            remedy = f"use {' or '.join(meant)}"
        elif near := difflib.get_close_matches(flag, self._option_string_actions, n=1, cutoff=NEAR):
            remedy = f"did you mean {near[0]}?"
        else:
            remedy = f"{self.prog} --help lists all flags"
        return UsageError(f"{flag}: {self.prog} has no such flag; {remedy}")


class HelpFormatter(argparse.HelpFormatter):
    """Help in the user's language, wrapped by the columns of a terminal."""

    headings = tuple(map(gettext_noop, ("positional arguments", "options")))  # argparse's own
    own_help = gettext_noop("show this help message and exit")

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=36, width=110)

    def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: str | None = None) -> None:
        super().add_usage(usage, actions, groups, prefix or translate("usage: "))

    def start_section(self, heading: str | None) -> None:
        super().start_section(translate(heading or ""))

    def add_text(self, text: str | None) -> None:
        super().add_text(text and " ".join(translate(" ".join(part.split())) for part in text.split("\n\n")))

    def format_help(self) -> str:
        """The help, with a full-width colon after Chinese headings."""
        return HEADING.sub(r"\1：", super().format_help())

    def _get_help_string(self, action: argparse.Action) -> str:
        """The text of a flag; its default in brackets may be a sentence of its own."""
        text = (action.help or "").replace("%%", "%")
        shown = translate(text)
        if found := DEFAULT.fullmatch(text):
            default = translate(found[2]) if " " in found[2] else found[2]  # a single word is a value to type
            shown = min(shown, f"{translate(found[1])} [{default}]", key=english_words)
        return shown.replace("%", "%%")

    def _split_lines(self, text: str, width: int) -> list[str]:
        return super()._split_lines(text, width) if text.isascii() else wrapped_text(text, width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.isascii():
            return super()._fill_text(text, width, indent)
        return "\n".join(indent + line for line in wrapped_text(text, width - len(indent)))


class Recipe(NamedTuple):
    """A TOML file with a system, a corpus, and flags."""

    system: str = ""
    corpus: Sequence[str] = ()
    flags: Sequence[str] = ()

    @classmethod
    def read(cls, path: str) -> Self:
        """`system` is a name, or a table with a name in it; other tables are sections of flags."""
        recipe = read_toml(path)
        system, corpus = recipe.pop("system", {}), recipe.pop("corpus", [])
        if not isinstance(system, dict):
            system = {"name": system}
        name = system.pop("name", "")
        if (task := recipe.get("task")) in RENAMED_TASKS:
            raise UsageError(f"{path}: the task {task} was renamed: use {RENAMED_TASKS[str(task)]}")
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


def _is_switch(annotation: Any) -> bool:
    return annotation is bool or annotation == bool | None


def _metavar(annotation: Any) -> str:
    if get_origin(annotation) is Annotated:
        return _metavar(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return "|".join(str(each) for each in get_args(annotation) if each != "")
    members = [each for each in get_args(annotation) if each is not type(None)]
    if any(get_origin(each) is Literal for each in members):  # such as auto or a number
        return "|".join(map(_metavar, members))
    return (
        _metavar(members[0]) if members and get_origin(annotation) is not tuple else METAVARS.get(annotation, "VALUE")
    )


def _shown(default: Any) -> str:
    text = "" if default is None or default is False else f"{default:g}" if type(default) is float else _text(default)
    return f" [{text}]" if text else ""


def _text(value: Any) -> str:
    """The text of a value in a flag."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(map(_text, value))
    return str(value)
