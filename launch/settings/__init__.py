"""Settings of a run: from words, files and presets to one RunConfig; their checks and their help."""
