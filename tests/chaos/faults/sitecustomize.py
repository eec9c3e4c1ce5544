"""Faults for every process that has this folder on its path: what an actor meets when a file asks for it.

The first actor that finds a file of a fault's name in $CHAOS_FOLDER takes it away, and has the fault.
"""

import importlib.util
import os
import sys
import time
from pathlib import Path


def fault(name: str) -> bool:
    """Whether the fault was asked for, and this process is the one to have it."""
    folder = Path(os.environ["CHAOS_FOLDER"])
    try:
        (folder / name).rename(folder / f"{name}.met")
    except OSError:
        return False
    return True


def patch(module) -> None:
    run = module.Actor.run

    def run_with_faults(self, snapshot, target=None):
        if fault("environment_raises"):
            raise RuntimeError("the environment raised")
        # Before its first report an actor may take longer than the test waits.
        if getattr(self, "has_reported", False) and fault("environment_never_returns"):
            time.sleep(3600)
        report = run(self, snapshot, target)
        if not isinstance(report, module.GradientReport):
            # A rollout whose gradients come with the next calls.
            return report
        self.has_reported = True
        if fault("nan_gradient"):
            report = report._replace(gradient=report.gradient * float("nan"))
        if fault("wrong_layout"):
            report = report._replace(layout_fingerprint="of another network")
        if fault("duplicate_report"):
            report = report._replace(sequence=report.sequence - 1)
        if fault("stale_report"):
            report = report._replace(version=report.version - 1_000_000)
        return report

    module.Actor.run = run_with_faults


class Finder:
    def find_spec(self, name, *_):
        if name != "actors.actor":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def execute_and_patch(module) -> None:
            execute(module)
            patch(module)

        spec.loader.exec_module = execute_and_patch
        return spec


if "CHAOS_FOLDER" in os.environ:
    sys.meta_path.insert(0, Finder())
