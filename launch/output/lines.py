"""Lines that commands print."""

from rich.console import Console


def print_line(console: Console, line: str) -> None:
    """Print a line as it is: brackets in it are no markup, and it is not broken at the width of the terminal."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)
