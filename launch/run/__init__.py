"""One run, on disk and in numbers: the session around the loop, its folder, checkpoints and metrics."""
