"""Run it: locally, on Ray, from the command line. Composes `actors` and `learner`; only this package imports ray."""
