"""Tables as lines of text."""

from keel.report.text_table import aligned_lines


def test_columns_are_aligned_by_their_width_on_a_terminal() -> None:
    rows = [["", "F1", "n"], ["电影", "0.5", "12"], ["a", "", ""]]
    assert [*aligned_lines(rows)] == ["       F1   n", "电影  0.5  12", "   a"]
    assert [*aligned_lines(rows, left=1)] == ["       F1   n", "电影  0.5  12", "a"]
