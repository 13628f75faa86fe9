"""What requests to the studio contain, with bounds, and what all answers share."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import Depends, Request
from pydantic import BaseModel, ConfigDict, Field

from keel.api.bias import BiasMethod
from keel.events import Event
from keel.explain.attention_inputs import AttentionKind
from keel.explain.attributions.word_attributions import Method
from keel.explain.bias.bias_templates import BiasLanguage
from keel.explain.projection import ProjectionMethod
from keel.explain.text_tokens import Merge
from keel.studio.workspace import Workspace

Text = Annotated[str, Field(max_length=50_000)]
ShortText = Annotated[str, Field(max_length=5_000)]
Word = Annotated[str, Field(max_length=200)]
Count = Annotated[int, Field(ge=1, le=1_000)]
ClusterCount = Annotated[int, Field(ge=0, le=50)] | Literal["auto"]


def workspace_of(request: Request) -> Workspace:
    return request.app.state.workspace


CurrentWorkspace = Annotated[Workspace, Depends(workspace_of)]


class ModelRequest(BaseModel):
    """A request about a model."""

    model_config = ConfigDict(extra="forbid")

    model: str


class TextRequest(ModelRequest):
    """A text, or a pair of texts, for a model."""

    text: Text
    second: Text = ""


class TopRequest(TextRequest):
    """The best answers for a text."""

    top: Count = 10


class GenerateRequest(TextRequest):
    """A prompt, and how tokens are chosen: by sampling or, with beams, by beam search."""

    tokens: Annotated[int, Field(ge=1, le=200)] = 30
    temperature: Annotated[float, Field(ge=0, le=10)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: Annotated[int, Field(ge=0)] = 0
    beams: Annotated[int, Field(ge=0, le=20)] = 0
    best: Annotated[int, Field(ge=1, le=20)] = 1


class AskRequest(ModelRequest):
    """A question about a passage."""

    passage: Text
    question: Annotated[str, Field(max_length=2_000)]


class TranslateRequest(TextRequest):
    """A text to translate."""

    beams: Annotated[int, Field(ge=1, le=20)] = 5


class AnalogyRequest(TopRequest):
    """An expression such as "king - man + woman"."""

    by: Literal["add", "multiply"] = "add"


class SensesRequest(ModelRequest):
    """A word in several sentences."""

    text: Word
    sentences: Annotated[list[Text], Field(max_length=200)]
    layer: int = -1
    groups: Annotated[int, Field(ge=0, le=50)] = 0


class AttentionRequest(TextRequest):
    """The attention weights of a text."""

    kind: AttentionKind | Literal["auto"] = "auto"
    merge: Merge = "none"
    from_word: Word = ""
    to_word: Word = ""


class HeadRequest(AttentionRequest):
    """The attention weights of one head."""

    layer: int
    head: int


class LayersRequest(BaseModel):
    """The scalar mixes of several models."""

    models: Annotated[list[str], Field(min_length=1, max_length=20)]


class ExplainRequest(TextRequest):
    """The words that made a prediction."""

    by: Method = "auto"
    label: Word = ""
    word: Word = ""
    curves: bool = False


class TraceRequest(ModelRequest):
    """Every tensor of a text; `also` are further texts of the same batch."""

    text: ShortText
    second: ShortText = ""
    also: Annotated[list[ShortText], Field(max_length=8)] = []
    tokens: Annotated[int, Field(ge=0, le=100)] | None = None


class BiasRequest(ModelRequest):
    """Pronouns and occupations."""

    by: BiasMethod | Literal["auto"] = "auto"
    language: BiasLanguage | Literal["auto"] = "auto"
    pronouns: Word = ""
    occupations: Annotated[list[Word], Field(max_length=200)] = []


class MapRequest(ModelRequest):
    """A map of the most frequent words."""

    top: Annotated[int, Field(ge=2, le=50_000)] = 2_000
    by: ProjectionMethod | Literal["auto"] = "auto"
    clusters: ClusterCount = 0


class ClustersRequest(ModelRequest):
    """Clusters of the texts of a data file, or of given ones, one per line; and a map of them."""

    file: str = ""
    content: Text = ""
    text_column: Word = ""
    most: Annotated[int, Field(ge=2, le=10_000)] = 2_000
    by: ProjectionMethod | Literal["auto"] = "auto"
    clusters: ClusterCount = "auto"


class RetrievalRequest(ModelRequest):
    """Sentences and their translations: a table, two files whose lines correspond, or lines with a tab in between."""

    file: str = ""
    second_file: str = ""
    content: Text = ""
    center: bool = False
    sample: Annotated[int, Field(ge=2, le=5_000)] = 1_000


class ProbesRequest(ModelRequest):
    """Labelled words or spans to train and test probes on: files, or the contents of one."""

    train: str = ""
    test: str = ""
    content: Text = ""
    probe: Annotated[list[Word], Field(max_length=20)] = []
    control: bool = False
    random: bool = False
    examples: Annotated[int, Field(ge=10, le=10_000)] = 2_000


class FigureRequest(BaseModel):
    """A diagram by its name, of published networks or of a model."""

    model_config = ConfigDict(extra="forbid")

    name: str
    model: str = ""
    text: ShortText = ""
    second: ShortText = ""


class RunsRequest(BaseModel):
    """Training runs to compare."""

    ids: Annotated[list[str], Field(min_length=1, max_length=50)]


class IdRequest(BaseModel):
    """A comparison by its id."""

    id: str


class CheckRequest(BaseModel):
    """A data file to check, by its id or by its name and contents."""

    file: str = ""
    name: Annotated[str, Field(max_length=100, pattern=r"^[^/\\\x00]*$")] = ""
    content: Annotated[str, Field(max_length=900_000)] = ""
    task: str = ""


class ErrorsRequest(ModelRequest):
    """A labelled file on which a model's errors are listed."""

    file: str


class Notes:
    """An `on_event` that collects the messages of a verb."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, event: Event) -> None:
        if event["event"] == "note":
            self.texts.append(event["text"])


def with_notes(run: Callable[[Notes], dict[str, Any]]) -> dict[str, Any]:
    """An answer with the messages that came with it."""
    notes = Notes()
    return {**run(notes), "notes": notes.texts}
