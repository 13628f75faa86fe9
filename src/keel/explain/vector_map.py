"""Maps of words or texts: their vectors projected to two dimensions, and their clusters."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from keel.errors import UsageError
from keel.events import OnEvent, ignore, pluralize
from keel.explain.nearest_neighbors import unit_vectors
from keel.explain.projection import NAMES, ProjectionMethod, project
from keel.explain.text_clusters import Clusters, cluster_texts
from keel.localization import gettext_noop

FEW = 200
"""Points up to which "auto" is PCA."""
MOST_POINTS = 200_000


@dataclass(frozen=True, kw_only=True, eq=False)
class VectorMap:
    """Words or texts at points of a plane."""

    model: str
    unit: Literal["word", "text"]
    names: list[str]
    points: np.ndarray  # [names, 2]
    by: ProjectionMethod
    explained_variance: float | None
    """Share of the variance in the two principal components; None for other projections."""
    clusters: Clusters | None = None

    @property
    def caption(self) -> str:
        """What the map shows, in sentences."""
        parts = [f"{pluralize(len(self.names), self.unit)} by {NAMES[self.by]}."]
        if self.explained_variance is not None:
            parts.append(f"The two components explain {self.explained_variance:.0%} of the variance.")
        else:
            parts.append("Neighbours are near each other; distances and directions between groups mean little.")
        if self.clusters is not None:
            found = self.clusters
            parts.append(
                f"{pluralize(len(found.clusters), 'cluster')} by k-means, mean silhouette {found.silhouette:.2f}."
            )
        return " ".join(parts)


def map_vectors(
    names: Sequence[str],
    vectors: np.ndarray,
    model: str,
    *,
    unit: Literal["word", "text"] = "word",
    by: ProjectionMethod | Literal["auto"] = "auto",
    clusters: int | Literal["auto"] = 0,
    seed: int = 0,
    on_event: OnEvent = ignore,
) -> VectorMap:
    """Project the directions of vectors to a plane; `clusters` as in `cluster_texts`, 0 for none.

    "auto" is PCA up to 200 points, UMAP above.
    """
    if len(names) > MOST_POINTS:
        raise UsageError(f"a map of {len(names):,} {gettext_noop(unit)}s is too large: show {MOST_POINTS:,} or fewer")
    method: ProjectionMethod = ("umap" if len(names) > FEW else "pca") if by == "auto" else by
    units, _ = unit_vectors(vectors)
    points, explained_variance = project(units, method, seed, on_event)
    texts = list(names)
    return VectorMap(
        model=model,
        unit=unit,
        names=texts,
        points=points,
        by=method,
        explained_variance=explained_variance,
        clusters=cluster_texts(texts, units, model, clusters, unit=unit, seed=seed) if clusters else None,
    )
