"""What a terminal shows after it was sent some bytes: as much of one as our own output needs."""

import re

_TOKEN = re.compile(r"\x1b\[([0-?]*)[ -/]*([@-~])|(\x1b.?)|([^\x1b])", re.DOTALL)
# Cut off at the end of what was read.
_UNFINISHED = re.compile(r"\x1b(\[[0-?]*[ -/]*)?$")

Cell = tuple[str, str, str]
_EMPTY: Cell = (" ", "", "")


class ScreenReader:
    """Takes in bytes, and has the cells that they draw, and its modes.

    `drawn` counts characters.
    """

    def __init__(self) -> None:
        self.cells: dict[tuple[int, int], Cell] = {}
        self.modes: dict[str, bool] = {}
        self.drawn = 0
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

    def _colours(self, numbers: list[str]) -> None:
        while numbers:
            number = numbers.pop(0)
            if number in ("", "0"):
                self._front = self._back = ""
            elif number in ("38", "48"):
                # 2 and three parts, or 5 and a number.
                length = 4 if numbers[0] == "2" else 2
                colour, numbers = ";".join(numbers[:length]), numbers[length:]
                if number == "38":
                    self._front = colour
                else:
                    self._back = colour

    def _control(self, parameters: str, kind: str) -> None:
        if kind == "H":
            row, _, column = parameters.partition(";")
            self._row, self._column = int(row or 1) - 1, int(column or 1) - 1
        elif kind == "J":
            self.cells.clear()
        elif kind == "m":
            self._colours(parameters.split(";"))
        elif kind in "hl" and parameters.startswith("?"):
            self.modes[parameters[1:]] = kind == "h"
            if parameters == "?1049":
                self.cells.clear()
