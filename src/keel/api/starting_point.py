"""What training starts from, a new system or a trained model; and what comes out of it."""

from difflib import get_close_matches
from pathlib import Path
from typing import Any

from keel.errors import UsageError
from keel.events import OnEvent, note
from keel.formats.bundled_models import bundled_models, locate
from keel.model import MAX_UNKNOWN, Model
from keel.systems import SYSTEMS
from keel.systems.system import System
from keel.training.distributed import World


def unknown_start(given: str | Path, kinds_of_files: str) -> UsageError:
    """The error for what is neither the name of a system or bundled model nor an existing path."""
    names = [*SYSTEMS, *bundled_models()]
    near = get_close_matches(str(given), names, n=1)
    remedy = f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(names)}, or an existing path"
    return UsageError(f"{str(given)!r} is neither a system nor a {kinds_of_files}: {remedy}")


def resolve_start(
    system: System | Model | str | Path,
    out: str | Path | None,
    settings: dict[str, Any],
    on_event: OnEvent,
    *,
    labelled: bool = False,
) -> tuple[System, Model | None]:
    """The system to train and, unless it is new, the model to start from; takes `size` out of the settings."""
    named = isinstance(system, str) and system in SYSTEMS
    if not named and isinstance(system, str | Path) and not locate(system).exists():
        raise unknown_start(system, "model folder")
    if not named and settings.get("size"):
        raise UsageError("--size is for a new model: leave it out, or give the name of a system")
    if isinstance(system, System):
        return system, None
    if isinstance(system, Model):
        return system.system, system
    if named:
        kind = SYSTEMS[str(system)]
        if size := settings.pop("size", ""):
            return kind.sized(size), None
        return kind().from_scratch() if labelled else kind(), None
    if not isinstance(system, str | Path):
        raise UsageError(f"{system!r} cannot be trained: give a system, its name, a model or its folder")
    if out is not None and Path(system).resolve() == Path(out).resolve():
        raise UsageError(f"{out} is the model that training starts from: choose another --out")
    parent = Model.load(system, device="auto" if labelled else "cpu", on_event=on_event)
    return parent.system, parent


def warn_unknown_tokens(share: float, source: object, model: Model | None, report: OnEvent) -> None:
    """Report a text with many unknown tokens."""
    if share > MAX_UNKNOWN:
        name = (model and model.card.title) or "the model"
        remedy = "use a model or a tokenizer for such text"
        note(report, f"{source}: {share:.0%} of the tokens are unknown to {name}: {remedy}")


def save_model(model: Model, out: str | Path | None, world: World) -> Model:
    """Save the model to its folder, if it has one, from the main process."""
    if out is not None and world.is_main:
        model.save(out, overwrite=True)
    return model
