"""The asynchronous loop: dispatch and supervision, without Ray and without files of a run."""
