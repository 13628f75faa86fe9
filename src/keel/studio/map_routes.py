"""Requests of the map of words and of clusters of texts."""

from typing import Any

from fastapi import APIRouter

from keel.api.maps import frequent_rows, map_texts
from keel.errors import UsageError
from keel.events import OnEvent
from keel.explain.vector_map import VectorMap, map_vectors
from keel.report.point_map_page import encode_bytes, pack_points
from keel.studio.requests import ClustersRequest, CurrentWorkspace, MapRequest, with_notes
from keel.text_table import cut_characters

router = APIRouter()

NAME_LENGTH = 300
"""Characters of a text on a map."""


@router.post("/map")
def word_map(given: MapRequest, workspace: CurrentWorkspace) -> dict[str, Any]:
    """The most frequent words at points of a plane."""
    space = workspace.vectors(given.model)

    def run(on_event: OnEvent) -> dict[str, Any]:
        rows = frequent_rows(space, given.top)
        words = [space.words[row] for row in rows]
        settings = {"by": given.by, "clusters": given.clusters}
        return _map_data(map_vectors(words, space.units(rows), given.model, on_event=on_event, **settings))

    return with_notes(run)


@router.post("/clusters")
def text_clusters(given: ClustersRequest, workspace: CurrentWorkspace) -> dict[str, Any]:
    """Clusters of the texts of a data file, with their typical words, and the texts at points of a plane."""
    model = workspace.model(given.model)
    if given.clusters == 0:
        raise UsageError("clusters must be 1 or more, or auto")
    lines = [line for line in given.content.splitlines() if line.strip()]
    if not given.file and not lines:
        raise UsageError("there are no texts: choose a file, or paste texts, one per line")
    source = workspace.find("file", given.file).path if given.file else lines
    settings: dict[str, Any] = {"by": given.by, "clusters": given.clusters, "most": given.most}
    if given.text_column:
        settings["text_column"] = given.text_column
    return workspace.without_paths(
        with_notes(lambda on_event: _map_data(map_texts(source, model, on_event=on_event, **settings)))
    )


def _map_data(shown: VectorMap) -> dict[str, Any]:
    """Names, and points as pairs of 16-bit numbers in base64, with the origin at the lower left."""
    packed = pack_points(shown.points)
    found = shown.clusters
    clusters = None
    if found is not None:
        plain = found.to_dict()
        clusters = {name: plain[name] for name in ("clusters", "silhouette", "tried", "note") if name in plain}
        clusters["groups"] = encode_bytes(found.groups.astype("u1"))
    return {
        "unit": shown.unit,
        "by": shown.by,
        "caption": shown.caption,
        "names": [cut_characters(name, NAME_LENGTH) for name in shown.names],
        "points": encode_bytes(packed),
        "width": int(packed[:, 0].max()),
        "height": int(packed[:, 1].max()),
        "clusters": clusters,
    }
