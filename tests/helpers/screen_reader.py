"""What a terminal shows after it was sent some bytes: as much of one as our own output needs."""

import re

_TOKEN = re.compile(r"\x1b\[([0-?]*)[ -/]*([@-~])|(\x1b.?)|([^\x1b])", re.DOTALL)
# Cut off at the end of what was read.
_UNFINISHED = re.compile(r"\x1b(\[[0-?]*[ -/]*)?$")

Cell = tuple[str, str, str]
_EMPTY: Cell = (" ", "", "")


class ScreenReader:
    """Takes in bytes, and has the cells that they draw, and its modes.

    `drawn` counts characters, and `questions` those after the place of the cursor.
    """

    def __init__(self) -> None:
        self.cells: dict[tuple[int, int], Cell] = {}
        self.modes: dict[str, bool] = {}
        self.drawn = self.questions = 0
        self._row = self._column = 0
        self._front = self._back = ""
        self._left = b""

    def feed(self, data: bytes) -> None:
        """Take in what comes next."""
        data = self._left + data
        text = data.decode(errors="ignore")
        unfinished = _UNFINISHED.search(text)
        end = len(text) if unfinished is None else unfinished.start()
        # A character whose bytes have not all come is left for later, too.
        self._left = data[len(text[:end].encode()) :]
        for token in _TOKEN.finditer(text[:end]):
            if token[4] is not None:
                self._character(token[4])
            elif token[2] is not None:
                self._control(token[1], token[2])

    def line(self, row: int) -> str:
        """The characters of a row, the first of which is 0."""
        columns = [column for at, column in self.cells if at == row]
        return "".join(self.cells.get((row, column), _EMPTY)[0] for column in range(max(columns, default=-1) + 1))

    @property
    def text(self) -> str:
        """All rows."""
        return "\n".join(self.line(row) for row in range(max((row for row, _ in self.cells), default=-1) + 1))

    def _character(self, character: str) -> None:
        if character == "\r":
            self._column = 0
        elif character == "\n":
            self._row += 1
        else:
            self.cells[self._row, self._column] = (character, self._front, self._back)
            self._column += 1
            self.drawn += 1

    def _control(self, parameters: str, kind: str) -> None:
        if kind == "H":
            row, _, column = parameters.partition(";")
            self._row, self._column = int(row or 1) - 1, int(column or 1) - 1
        elif kind == "n":
            self.questions += 1
        elif kind == "J":
            self.cells.clear()
        elif kind == "m":
            if parameters in ("", "0"):
                self._front = self._back = ""
            elif parameters.startswith("38;"):
                self._front = parameters[3:]
            elif parameters.startswith("48;"):
                self._back = parameters[3:]
        elif kind in "hl" and parameters.startswith("?"):
            self.modes[parameters[1:]] = kind == "h"
            if parameters == "?1049":
                self.cells.clear()
