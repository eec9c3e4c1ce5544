"""The asynchronous loop: dispatch, supervision and event traces, without Ray and without files of a run."""
