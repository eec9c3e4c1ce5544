"""Lines of Ray's servers and of its C++ code, which a busy machine may add to what a command says."""

import re

# Those of our processes name these otherwise.
_OF_RAY = re.compile(r"(\x1b\[\d+m)?(\(raylet\)|\(pid=gcs_server\)|\[\d{4}-\d\d-\d\d )")


def without_ray(output: str) -> list[str]:
    """The other lines of an output."""
    return [line for line in output.splitlines() if not _OF_RAY.match(line)]
