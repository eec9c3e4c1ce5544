"""How much play the weights of a run have learned from, before it too."""

from launch.run.finished import read_manifest, read_summary
from launch.run.folder import RunFolder
from launch.run.standing import last_row


def agent_steps_learned(folder: RunFolder) -> int:
    """Agent steps of the run, and of those whose weights it started from.

    A run of an older version does not say what was before it: it counts from its own beginning.
    """
    own = max(read_summary(folder).get("agent_steps_sampled", 0), last_row(folder).get("agent_steps", 0))
    before = read_manifest(folder).get("started_from", {})
    return int(own + before.get("agent_steps", 0))
