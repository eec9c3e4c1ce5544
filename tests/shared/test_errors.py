"""Errors in words."""

import pytest

from shared.errors import last_line, one_line, typed_line


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


@pytest.mark.parametrize(
    ("error", "typed", "last"),
    [
        (ValueError("two\n  lines \n"), "ValueError: two lines", "lines"),
        (ValueError(" \n"), "ValueError", "ValueError"),
    ],
)
def test_an_error_with_its_type_and_by_what_it_ends_with(error: Exception, typed: str, last: str) -> None:
    assert typed_line(error) == typed
    assert last_line(error) == last


def test_the_type_of_an_error_stays_however_short_its_message_has_to_be() -> None:
    assert typed_line(ValueError("two\n  lines"), 5) == "ValueError: two l"
