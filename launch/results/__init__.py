"""Results of runs: scores by a protocol, learning curves, reports and exported models."""
