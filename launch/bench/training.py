"""Train by a settings folder, in a process of its own: `python -m launch.bench.training SETTINGS RUN`."""

import sys
from pathlib import Path

from launch.run_folder import RunFolder
from launch.train import TrainArguments, train


def main(settings: str, run: str) -> int:
    """Train with the settings in one folder, into another. Returns the exit code."""
    config = RunFolder(Path(settings)).read_config("settings")
    return train(TrainArguments(config, run_dir=Path(run)), preset="bench")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
