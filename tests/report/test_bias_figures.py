"""Figures of preferences: values are where their numbers say."""

import numpy as np
import pytest

from keel.report.attention_charts import signed_heads
from keel.report.bias_figures import interval_chart
from keel.report.charts import Bar


def test_dots_and_intervals_are_at_their_values() -> None:
    rows = [
        Bar(name="nurse", value=2.0, low=1.0, high=3.0, highlighted=True),
        Bar(name="医生", value=-1.0, low=-2.0, high=0.5),
        Bar(name="cook", value=0.0),
    ]
    svg = interval_chart(rows, negative="he", positive="she", across="log-odds")
    dots = [float(each.get("cx", 0)) for each in svg.iter("circle")]
    zero = dots[2]
    assert dots[0] - zero == pytest.approx(2 * (zero - dots[1]), abs=0.2)
    assert [each.get("class") for each in svg.iter("circle")] == ["mark", "plain", "plain"]
    lines = [each for each in svg.iter("line") if each.get("class") == "interval"]
    assert len(lines) == 1 + 2, "the line at zero and two intervals"
    assert float(lines[1].get("x1", 0)) - zero == pytest.approx((dots[0] - zero) / 2, abs=0.2)
    texts = [each.text for each in svg.iter("text")]
    assert {"← he", "she →", "nurse", "医生"} <= {*texts}


def test_all_heads_have_their_value_and_sign() -> None:
    values = np.array([[0.2, -0.1], [0.0, 0.05]])
    svg = signed_heads([1, 2], [1, 2], values, values > 0.1, positive="a", negative="b")
    cells = [each for each in svg.iter("rect") if each.get("fill-opacity")]
    assert [each.get("class") for each in cells] == ["fill0", "fill1", "fill1", "fill0"]
    assert [each.text for each in svg.iter("text") if each.get("class") == "small"] == [
        "+20.0",
        "-10.0",
        "+0.0",
        "+5.0",
    ]
    assert len([each for each in svg.iter("rect") if each.get("class") == "box"]) == 1
