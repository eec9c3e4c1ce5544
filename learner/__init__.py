"""Turn GradientReports into the next WeightSnapshot. Imports `shared` only: no actor, and no ray."""
