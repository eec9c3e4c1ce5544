"""Ray's error of several lines, in one line for the log."""

import ray

from shared.errors import last_line


def failure_reason(error: ray.exceptions.RayError) -> str:
    """Why a process or a call failed, in one line."""
    reason = last_line(error)
    if not isinstance(error, ray.exceptions.RayActorError):
        return f"its rollout raised: {reason}"
    # Ray appends a paragraph of possible causes, the same each time.
    detail = reason.partition(" Some common causes")[0].partition("Worker exit detail: ")
    return f"its process died: {detail[2] or detail[0]}"
