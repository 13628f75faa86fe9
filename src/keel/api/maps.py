"""Maps of words and texts by their vectors, and clusters of texts."""

import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal, Unpack

import numpy as np

from keel.api.keywords import ColumnKeywords
from keel.api.model_loading import ModelSource, default_model, load_model, load_vectors
from keel.api.settings import Source
from keel.api.vectors import SEPARATORS, read_texts
from keel.config import Doc, Ge, enforces_bounds
from keel.data.table_writing import check_table_name, write_table
from keel.errors import KeelError, UsageError
from keel.events import OnEvent, ignore, note
from keel.explain.nearest_neighbors import VectorSpace, unit_vectors
from keel.explain.projection import ProjectionMethod
from keel.explain.text_clusters import Clusters, cluster_texts
from keel.explain.vector_map import MOST_POINTS, VectorMap, map_vectors
from keel.model import Model
from keel.report.html_page import FIGURE_SUFFIXES, Page, is_page, page_asset, picture_file, tag, write_picture
from keel.report.point_map_page import BUTTONS, PointMap, point_map_page
from keel.report.scatter_map import MANY, draw_map

__all__ = ["clusters", "word_map"]

MAX_LISTED = 10
"""Unknown words that a message lists."""
COLON = re.compile("[:：]")
BY = "Projection to the plane: PCA, t-SNE or UMAP; auto: PCA up to 200 points or with arrows, UMAP for larger maps."
CLUSTERS = "Number of clusters (k-means); auto: the number from 2 to 20 with the largest mean silhouette."
OUT = "Write the texts with their clusters as .csv, .tsv or .jsonl, or a map of them as .svg, .pdf, .png or .html."


@enforces_bounds
def word_map(
    model: ModelSource | None = None,
    *,
    out: str | Path,
    among: Source | None = None,
    words: Annotated[str | Sequence[str], Doc('Words to show: "A B C".')] = (),
    pairs: Annotated[str | Sequence[tuple[str, str]], Doc('Words to connect by arrows: "A:B C:D".')] = (),
    top: Annotated[int, Ge(0), Doc("Show the N most frequent words too; 200 if no words are given.")] = 0,
    by: Annotated[ProjectionMethod | Literal["auto"], Doc(BY)] = "auto",
    clusters: Annotated[int | Literal["auto"], Doc(f"{CLUSTERS[:-1]}; 0: none.")] = 0,
    title: Annotated[str, Doc("Title of the page; default: the model's name.")] = "",
    seed: Annotated[int, Ge(0), Doc("Random seed of t-SNE, UMAP and k-means.")] = 0,
    on_event: OnEvent = ignore,
    **settings: Unpack[ColumnKeywords],
) -> Path:
    """Draw a 2D map of words as a figure, the given words and the `top` most frequent ones, or of the texts `among`.

    `pairs`, such as "king:queen man:woman", are connected by arrows. Default: the 200 most frequent words of the
    bundled word vectors. Unknown words are left out with a note. A page fits the screen, zooms and pans, and saves the
    picture as PNG; one of texts or of more than 1,500 words also searches, and shows clusters with their typical words.
    """
    path = picture_file(out)
    if among is not None:
        if words or pairs or top:
            raise UsageError("--in maps the texts of a file: leave out --words, --pairs and --top")
        shown = map_texts(among, model, by=by, clusters=clusters, seed=seed, on_event=on_event, **settings)
        return write_map(path, shown, [], title or f"{shown.model}: a map of texts", on_event)
    arrow_words = _pairs(pairs)
    named = [
        *(word for pair in arrow_words for word in pair),
        *(SEPARATORS.split(words) if isinstance(words, str) else words),
    ]
    wanted = [word for word in named if word]
    model = model or default_model("word vectors", " ".join(wanted), on_event)
    space = load_vectors(model, on_event)
    unknown = [word for word in dict.fromkeys(wanted) if space.find(word) is None]
    if unknown and len(set(wanted)) - len(unknown) < 2 and not top:
        if len(unknown) == 1:
            space.row(unknown[0])  # the error suggests a word
        what = f"not in the vocabulary of {len(space.words):,} words: {_listed(unknown)}"
        raise KeelError(f"{what}: a map needs two words of it or more; name others, or use --top 200")
    arrow_words = [pair for pair in arrow_words if not set(pair) & set(unknown)]
    rows = [space.row(word) for word in wanted if word not in unknown]
    rows = list(dict.fromkeys([*rows, *frequent_rows(space, top or (0 if rows else 200))]))
    units = space.units(rows)
    shown = map_vectors(
        [space.words[row] for row in rows],
        units,
        _model_name(model),
        by="pca" if by == "auto" and arrow_words else by,
        clusters=clusters,
        seed=seed,
        on_event=on_event,
    )
    index = {row: number for number, row in enumerate(rows)}
    arrows = [(index[space.row(one)], index[space.row(other)]) for one, other in arrow_words]
    facts: list[str] = []
    if len(arrows) > 1:
        facts.append(f"Mean cosine between the arrows, in all dimensions: {_parallel(units, arrows):.2f}.")
    if unknown:
        facts.append(f"Left out, as unknown to the model: {_listed(unknown)}.")
    return write_map(path, shown, arrows, title or f"{shown.model}: a map", on_event, facts)


@enforces_bounds
def clusters(
    texts: Source,
    *,
    model: ModelSource | None = None,
    clusters: Annotated[int | Literal["auto"], Doc(CLUSTERS)] = "auto",
    out: Annotated[str | Path | None, Doc(OUT)] = None,
    by: Annotated[ProjectionMethod | Literal["auto"], Doc(BY)] = "auto",
    seed: Annotated[int, Ge(0), Doc("Random seed of k-means, t-SNE and UMAP.")] = 0,
    on_event: OnEvent = ignore,
    **settings: Unpack[ColumnKeywords],
) -> Clusters:
    """Clusters of texts by their embeddings, each with its typical words and the texts nearest to its centre.

    Typical words have the largest class-based TF-IDF. By default, the embeddings are those of the bundled encoder.
    """
    path = None if out is None else Path(out)
    draws = path is not None and path.suffix.lower() in FIGURE_SUFFIXES
    if path is not None and not draws:
        check_table_name(path, texts, "--out")
    if clusters == 0:
        raise UsageError("--clusters must be 1 or more, or auto")
    if path is not None and draws:
        picture_file(path)
        shown = map_texts(texts, model, by=by, clusters=clusters, seed=seed, on_event=on_event, **settings)
        assert shown.clusters is not None
        write_map(path, shown, [], f"{shown.model}: clusters of texts", on_event)
        return shown.clusters
    found = cluster_texts(*_embedded(texts, model, on_event, settings), clusters, seed=seed)
    if path is not None:
        columns = ("text", "cluster", "words", "similarity")
        numbered = zip(found.texts, found.groups.tolist(), found.similarities.tolist(), strict=True)
        rows = ((text, group + 1, found.clusters[group].name, round(cosine, 4)) for text, group, cosine in numbered)
        write_table(path, columns, rows)
    return found


def write_map(
    path: Path,
    shown: VectorMap,
    arrows: Sequence[tuple[int, int]],
    title: str,
    on_event: OnEvent = ignore,
    facts: Sequence[str] = (),
) -> Path:
    """Write a map as a page or a picture; maps of texts, and of many words, have pages that search."""
    is_text, many = shown.unit == "text", len(shown.names) > MANY
    found = shown.clusters
    names = [] if found is None else [each.name for each in found.clusters]
    groups = None if found is None else found.groups
    caption = " ".join([shown.caption, *facts])
    if is_page(path) and (is_text or (many and not arrows)):
        note(on_event, caption)
        points = PointMap(names=shown.names, points=shown.points, unit=shown.unit, groups=groups, clusters=names)
        return point_map_page(title, caption, points).write(path)
    picture, unnamed = draw_map(
        shown.names, shown.points, arrows, groups=groups, group_names=names, labelled=not is_text
    )
    if unnamed and not many:
        caption += f" {unnamed:,} points have no room for a label{'; hover to see it' if is_page(path) else ''}."
    note(on_event, caption)
    if not is_page(path):
        return write_picture(path, picture, title)
    picture.insert(0, tag("title", title))
    page = Page(title, layout="fit")
    page.figure(picture, caption)
    page.script(page_asset("map.js"), **BUTTONS)
    return page.write(path)


def frequent_rows(space: VectorSpace, count: int) -> list[int]:
    """Rows of the most frequent words, without numbers and punctuation."""
    return list(islice((row for row, word in enumerate(space.words) if any(map(str.isalpha, word))), count))


def map_texts(
    source: Source,
    model: ModelSource | None = None,
    *,
    by: ProjectionMethod | Literal["auto"] = "auto",
    clusters: int | Literal["auto"] = 0,
    seed: int = 0,
    most: int = MOST_POINTS,
    on_event: OnEvent = ignore,
    **settings: Unpack[ColumnKeywords],
) -> VectorMap:
    """The map of texts by their embeddings; of more than `most`, as many are taken at equal distances."""
    texts, vectors, name = _embedded(source, model, on_event, settings, most)
    return map_vectors(texts, vectors, name, unit="text", by=by, clusters=clusters, seed=seed, on_event=on_event)


def _embedded(
    source: Source, model: ModelSource | None, on_event: OnEvent, settings: ColumnKeywords, most: int = MOST_POINTS
) -> tuple[list[str], np.ndarray, str]:
    """Texts, their embeddings and the name of the model; texts of unknown words only are left out with a note."""
    texts = read_texts(source, settings, on_event)
    if (count := len(texts)) > most:
        note(on_event, f"{most:,} of {count:,} texts are shown, at equal distances")
        texts = [texts[row] for row in np.linspace(0, count - 1, most).astype(int)]
    known = load_model(model or default_model("sentence embeddings", " ".join(texts[:100]), on_event), on_event)
    vectors = known.encode(texts, on_event=on_event)
    filled = np.flatnonzero(np.any(vectors != 0, axis=1))
    if not len(filled):
        raise KeelError(f"the model knows no word of any text: use another one than {_model_name(known)}")
    if len(filled) < len(texts):
        note(
            on_event, f"{len(texts) - len(filled):,} of {len(texts):,} texts left out: the model knows no word of them"
        )
    return [texts[row] for row in filled], vectors[filled], _model_name(known)


def _listed(unknown: Sequence[str]) -> str:
    return ", ".join(map(repr, unknown[:MAX_LISTED])) + (", ..." if len(unknown) > MAX_LISTED else "")


def _model_name(model: ModelSource) -> str:
    return model.title if isinstance(model, Model) else Path(model).name


def _pairs(pairs: str | Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    if not isinstance(pairs, str):
        return list(pairs)
    found = [tuple(COLON.split(pair)) for pair in SEPARATORS.split(pairs) if pair]
    for pair in found:
        if len(pair) != 2 or not all(pair):
            raise UsageError(
                f"{':'.join(pair)!r:.60} is no pair: write two words with a colon between them, as king:queen"
            )
    return [(one, other) for one, other in found]


def _parallel(vectors: np.ndarray, arrows: list[tuple[int, int]]) -> float:
    """Mean pairwise cosine of the difference vectors."""
    start, end = np.array(arrows).T
    units, _ = unit_vectors(vectors[end] - vectors[start])
    cosines = units @ units.T
    return float(cosines[~np.eye(len(arrows), dtype=bool)].mean())
