"""Turn a WeightSnapshot into a GradientReport. Imports `shared` only: no learner, and no ray."""
