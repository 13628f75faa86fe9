"""Tables as lines of text."""

from keel.text_table import aligned_lines, signed, wrapped_lines


def test_columns_are_aligned_by_their_width_on_a_terminal() -> None:
    rows = [["", "F1", "n"], ["电影", "0.5", "12"], ["a", "", ""]]
    assert [*aligned_lines(rows)] == ["       F1   n", "电影  0.5  12", "   a"]
    assert [*aligned_lines(rows, left=1)] == ["       F1   n", "电影  0.5  12", "a"]


def test_a_wide_table_continues_below_with_its_first_column() -> None:
    rows = [["run", "1", "2", "3"], ["lr", "0.001", "0.01", "0.1"], ["a long name", "x" * 30, "y", ""]]
    assert [*wrapped_lines(rows, 80)] == [*aligned_lines(rows, left=1)]
    lines = [*wrapped_lines(rows, 24)]
    assert max(map(len, lines)) <= 24
    assert lines[:3] == ["run                    1", "lr                 0.001", "a long name  xxxxxxxxxx…"]
    assert lines[3:] == ["", "run             2    3", "lr           0.01  0.1", "a long name     y"]


def test_small_numbers_keep_digits_that_differ() -> None:
    assert [signed(value, 0.5) for value in (0.5, -0.0001)] == ["+0.500", "-0.000"]
    assert [signed(value, 2e-4) for value in (2e-4, -3e-6)] == ["+2.0e-04", "-3.0e-06"]
