"""Pictures: one look for all of them, PNG and SVG, with how they were made inside."""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from launch.output import hardware_line, provenance, provenance_text

# Okabe and Ito 2008: distinct to readers of every kind of colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLE: Any = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "figure.dpi": 110,
    "savefig.dpi": 160,
    "svg.fonttype": "none",
    "font.size": 9.5,
}


@contextmanager
def figure(
    width: float = 7.0, height: float = 4.0, columns: int = 1, rows: int = 1
) -> Iterator[tuple[Figure, Sequence[Axes]]]:
    """A figure with its axes, row by row. Without pyplot, whose windows and backend are those of the program around."""
    with mpl.rc_context(_STYLE):
        drawn = Figure(figsize=(width, height), layout="constrained")
        yield drawn, list(drawn.subplots(rows, columns, squeeze=False).flat)


def save(drawn: Figure, paths: Sequence[Path], **made: Any) -> None:
    """Write a figure to each path, by its suffix; each file is there whole or not at all."""
    drawn.text(0.995, 0.002, hardware_line(provenance()), ha="right", va="bottom", fontsize=6, alpha=0.6)
    comment = provenance_text(**made)
    for path in paths:
        part = path.with_name(f"{path.stem}.part{path.suffix}")
        drawn.savefig(part, metadata={"Description": comment})
        part.replace(path)


def as_svg(drawn: Figure) -> str:
    """A figure as an SVG element for a page."""
    text = io.StringIO()
    drawn.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]
