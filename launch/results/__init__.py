"""What comes out of runs: scores with their protocol, videos, curves, exported models, reports."""
