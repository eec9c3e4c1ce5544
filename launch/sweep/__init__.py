"""Sweeps: many runs of one task, whose settings a search chooses; each trial is a run like any other."""
