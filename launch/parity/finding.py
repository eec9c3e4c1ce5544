"""What an experiment found, in the form that the command prints and writes."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

Verdict = Literal["holds", "fails", "reported"]


class Row(NamedTuple):
    """One line of the table. `measured` is what was seen, `expected` what it is held against ("" if nothing is).

    `verdict` is "reported" where the figure is for the reader and nothing is required of it.
    """

    claim: str
    measured: str
    expected: str
    verdict: Verdict


@dataclass(frozen=True)
class Finding:
    """The result of one experiment: a question, rows, an explanation for newcomers, and every figure for `--json`."""

    question: str
    rows: tuple[Row, ...]
    explanation: str
    figures: dict[str, Any]

    @property
    def holds(self) -> bool:
        """Whether no required row fails."""
        return all(row.verdict != "fails" for row in self.rows)


def required(claim: str, measured: str, expected: str, held: bool) -> Row:
    """A row that must hold."""
    return Row(claim, measured, expected, "holds" if held else "fails")


def reported(claim: str, measured: str) -> Row:
    """A row that is for the reader."""
    return Row(claim, measured, "", "reported")
