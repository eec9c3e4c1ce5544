"""Ray's error of several lines, in one line for the log."""

import ray


def failure_reason(error: ray.exceptions.RayError) -> str:
    """Why a process or a call failed, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    died = isinstance(error, ray.exceptions.RayActorError)
    if not lines:
        return type(error).__name__
    if not died:
        return f"its rollout raised: {lines[-1]}"
    # Ray appends a paragraph of possible causes, the same each time.
    detail = lines[-1].partition(" Some common causes")[0].partition("Worker exit detail: ")
    return f"its process died: {detail[2] or detail[0]}"
