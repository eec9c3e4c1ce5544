"""The commands train, runs, stop, config, presets, zoo and doctor, and the display of a training run."""
