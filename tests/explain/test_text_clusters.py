"""Planted topics are found with their words; measures equal scikit-learn's."""

import json
from collections import Counter

import numpy as np
import pytest

from keel.errors import KeelError, UsageError
from keel.explain.nearest_neighbors import unit_vectors
from keel.explain.text_clusters import class_tf_idf, cluster_texts, k_means, silhouette

TOPICS = [
    ["boat", "sail", "anchor", "harbour", "captain"],
    ["bread", "oven", "cake", "flour", "recipe"],
    ["judge", "verdict", "witness", "court", "lawyer"],
]
FILLERS = ["the", "a", "of", "was", "in", "and", "with", "for"]


def planted(count: int = 120) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Texts of three topics of unequal size, with function words in all, and the vectors of these topics with noise."""
    random = np.random.default_rng(0)
    topics = np.sort(np.minimum(random.integers(0, 6, count) // 2, 2))
    texts = [
        " ".join(random.permutation([*random.choice(TOPICS[topic], 3), *random.choice(FILLERS, 6)])) for topic in topics
    ]
    return texts, topics, 4 * np.eye(12)[topics] + random.normal(0, 0.5, (count, 12))


def test_planted_topics_are_found_with_their_words() -> None:
    texts, topics, vectors = planted()
    found = cluster_texts(texts, vectors, "planted")
    assert len(found.clusters) == 3
    assert max(found.tried, key=lambda count: found.tried[count]) == 3
    assert found.silhouette > 0.5
    assert not found.note
    for number, cluster in enumerate(found.clusters):
        (topic,) = {*topics[found.groups == number]}
        assert {each.word for each in cluster.words[:5]} == {*TOPICS[topic]}
        assert cluster.size == (topics == topic).sum()
        assert len(cluster.examples) == 3
    sizes = [each.size for each in found.clusters]
    assert sizes == sorted(sizes, reverse=True)
    assert json.loads(json.dumps(found.to_dict()))["groups"] == found.groups.tolist()
    again = cluster_texts(texts, vectors, "planted")
    assert (again.groups == found.groups).all()


def test_chinese_texts_have_chinese_words() -> None:
    texts = ["船长在港口修船", "港口的船长很忙", "厨师在厨房做面包", "厨房里的面包很香"] * 3
    vectors = np.repeat([[1.0, 0.0], [0.0, 1.0]], 2, axis=0)
    found = cluster_texts(texts, np.tile(vectors, (3, 1)), "planted", 2)
    words = [{each.word for each in cluster.words[:2]} for cluster in found.clusters]
    assert sorted(map(sorted, words)) == sorted(map(sorted, [{"港口", "船长"}, {"厨房", "面包"}]))


def test_random_vectors_are_reported_as_weak() -> None:
    vectors = np.random.default_rng(0).normal(size=(200, 50))
    found = cluster_texts([f"text {number}" for number in range(200)], vectors, "noise")
    assert found.silhouette < 0.1
    assert found.note in found.lines()


def test_measures_equal_those_of_scikit_learn() -> None:
    cluster, metrics = pytest.importorskip("sklearn.cluster"), pytest.importorskip("sklearn.metrics")
    units, _ = unit_vectors(np.random.default_rng(1).normal(size=(300, 8)) + 2 * np.eye(8)[np.arange(300) % 5])
    groups, centers = k_means(units, 5)
    assert silhouette(units, groups) == pytest.approx(
        metrics.silhouette_score(units, groups, metric="cosine"), abs=1e-6
    )
    theirs = cluster.KMeans(5, n_init=10, random_state=0).fit(units)
    assert ((units - centers[groups]) ** 2).sum() == pytest.approx(theirs.inertia_, rel=0.01)
    alone = np.where(np.arange(300) == 0, 1, 0)
    assert silhouette(units, alone) == pytest.approx(metrics.silhouette_score(units, alone, metric="cosine"), abs=1e-6)


def test_class_tf_idf_by_hand() -> None:
    first, second = class_tf_idf([Counter(the=4, boat=4), Counter(the=4, oven=1, hot=3, boat=1)])
    # A = 17 / 2 words per class; "boat" is 4 of 8 words and 1 of 9, "the" is about as frequent in both.
    assert [(each.word, each.score) for each in first] == [("boat", pytest.approx(4 * np.log(1 + 8.5 / 5)))]
    assert [each.word for each in second] == ["hot", "oven"]


def test_words_are_named_by_those_nearest_to_the_centre() -> None:
    words = ["boat", "sail", "oven", "cake", "bread"]
    vectors = np.array([[1, 0.1, 0], [1, 0, 0.1], [0, 1, 0.3], [0, 1, 0], [0, 1, 0.1]])
    found = cluster_texts(words, vectors, "planted", 2, unit="word")
    assert [each.word for each in found.clusters[0].words] == ["bread", "cake", "oven"]
    assert found.clusters[0].name == "bread, cake, oven"


def test_few_and_equal_texts() -> None:
    two = cluster_texts(["one", "two"], np.eye(2), "model")
    assert len(two.clusters) == 1
    equal = cluster_texts(["one", "two", "three"], np.ones((3, 2)), "model")
    assert len(equal.clusters) == 1
    with pytest.raises(UsageError, match="1 different text cannot form 2 clusters"):
        cluster_texts(["one", "two", "three"], np.ones((3, 2)), "model", 2)
    with pytest.raises(UsageError, match="two texts or more, not 1"):
        cluster_texts(["one"], np.ones((1, 2)), "model")
    with pytest.raises(KeelError, match="no vector for 'x'"):
        cluster_texts(["x", "y"], np.array([[0, 0], [0, 1.0]]), "model")
