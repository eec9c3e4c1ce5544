"""Errors in words."""

import pytest

from shared.errors import one_line


@pytest.mark.parametrize(
    ("error", "most", "line"),
    [
        (ValueError("two\n  lines"), None, "two lines"),
        (ValueError("two\n  lines"), 5, "two l"),
        (ValueError(), 5, "ValueError"),
        (ValueError(" \n"), None, "ValueError"),
    ],
)
def test_an_error_is_one_line_and_never_empty(error: Exception, most: int | None, line: str) -> None:
    assert one_line(error, most) == line
