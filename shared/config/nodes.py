"""The part of a cluster that a run may use, as it is typed: `10.0.0.2 10.0.0.3=8 10.0.0.4=16,1`."""

import re
from typing import NamedTuple

from shared.errors import setting_error

_PART = re.compile(r"([^=,\s]+)(?:=(\d+(?:\.\d+)?)(?:,(\d+))?)?")


class NodePart(NamedTuple):
    """A node, by its address or the beginning of its id, and so many of its cores and GPUs; `cores` None: all of it."""

    name: str
    cores: float | None = None
    gpus: int = 0

    def __str__(self) -> str:
        """As it is typed."""
        if self.cores is None:
            return self.name
        return f"{self.name}={self.cores:g}" + (f",{self.gpus}" if self.gpus else "")


def node_part(text: str) -> NodePart:
    """Read NODE, NODE=CORES or NODE=CORES,GPUS.

    Raises:
        ConfigurationError: it is none of them.
    """
    match = _PART.fullmatch(text)
    if match is None:
        raise setting_error("nodes", text, "must be NODE, NODE=CORES or NODE=CORES,GPUS, like 10.0.0.2=8")
    return NodePart(match[1], None if match[2] is None else float(match[2]), int(match[3] or 0))
