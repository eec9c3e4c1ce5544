"""The folder of a lag study: its recipe, the orders of arrival, and a line for each run that has ended."""

import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from launch.bench.arrival_model import ArrivalModel
from launch.bench.lag_cells import Cell, order_file
from launch.machine.tensorflow_process import prepare_tensorflow
from launch.output.json_file import drop_half_line, write_json
from launch.output.output_file import make_folder
from launch.output.provenance import provenance
from launch.run.lock import LOCK_FILE, FolderLock
from shared.config import RunConfig, flat_settings
from shared.errors import setting_error

_POLL_SECONDS = 0.5
_RECIPE = "study.json"


class LagStudy(NamedTuple):
    """Runs that share settings and a model of arrivals, in a folder."""

    folder: Path
    config: RunConfig
    model: ArrivalModel

    @property
    def rows_file(self) -> Path:
        """A line of JSON for each run that has ended."""
        return self.folder / "rows.jsonl"

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Hold the folder; write the recipe to a new one, and drop what a killed process left half written.

        Raises:
            ConfigurationError: it cannot be made, it is in use, or it is a study of other settings.
        """
        make_folder(self.folder, "output")
        lock = FolderLock(self.folder)
        try:
            self._check_recipe()
            drop_half_line(self.rows_file)
            yield
        finally:
            lock.release()

    def rows(self) -> list[dict[str, Any]]:
        """Of the runs that have ended, in their order."""
        if not self.rows_file.is_file():
            return []
        return [json.loads(line) for line in self.rows_file.read_text().splitlines()]

    def left(self, cells: Sequence[Cell]) -> list[Cell]:
        """Those that have no row yet."""
        ended = {Cell(**{name: row[name] for name in Cell._fields}) for row in self.rows()}
        return [cell for cell in cells if cell not in ended]

    def order(self, cell: Cell) -> Path:
        """The file of a cell's arrivals, which is written if it is not there."""
        return order_file(self.folder / "arrivals", self.model, self.config, cell)

    def add(self, row: dict[str, Any]) -> None:
        """Write down a run that has ended."""
        with self.rows_file.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def play(self, cells: Sequence[Cell], processes: int, stopped: Callable[[], bool]) -> Iterator[dict[str, Any]]:
        """Play cells, so many at a time, and yield the row of each as it ends, until `stopped`.

        They are played in other processes, which can be ended at any moment. A run that is stopped leaves no row: it is
        played from its beginning another time, and comes out the same.
        """
        # By this process alone: two that write one file at once would spoil it.
        planned = [(self.config, cell, self.order(cell)) for cell in cells]
        with _pool(processes) as pool:
            left: set[Future[dict[str, Any]]] = {pool.submit(_play_in_worker, *run) for run in planned}
            while left and not stopped():
                ended, left = wait(left, _POLL_SECONDS, FIRST_COMPLETED)
                for future in ended:
                    try:
                        row = future.result()
                    except BrokenProcessPool:
                        raise setting_error(
                            "processes",
                            processes,
                            "one of them was ended, as for want of memory; name fewer, and the same command goes on",
                        ) from None
                    self.add(row)
                    yield row

    def _check_recipe(self) -> None:
        recipe = _recipe(self.config, self.model)
        file = self.folder / _RECIPE
        if not file.is_file():
            if any(path.name != LOCK_FILE for path in self.folder.iterdir()):
                raise setting_error("output", self.folder, "has other files, and no study; name a folder of its own")
            write_json(file, recipe | provenance())
            return
        before, defaults = json.loads(file.read_text()), _recipe(RunConfig(), ArrivalModel())
        for part, values in recipe.items():
            for name, value in values.items():
                # An older version did as the default of a later setting does.
                was = before[part].get(name, defaults[part][name])
                if was != value:
                    raise setting_error(
                        "output", self.folder, f"has a study with {name} {was}, and not {value}; name another folder"
                    )


def _recipe(config: RunConfig, model: ArrivalModel) -> dict[str, dict[str, Any]]:
    return {"settings": flat_settings(config), "model": msgspec.to_builtins(model)}


@contextmanager
def _pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that play; what they have not ended by the end of this context they leave."""
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _start_worker)
    others = set(multiprocessing.active_children())
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - others:
            child.terminate()
        pool.shutdown()


def _start_worker() -> None:
    # An interrupt is for the process that asks, and when that has gone, whoever ended it, nobody would stop this one.
    for kind in (signal.SIGINT, signal.SIGHUP):
        signal.signal(kind, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    prepare_tensorflow(1, gpu=False)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _play_in_worker(config: RunConfig, cell: Cell, order: Path) -> dict[str, Any]:
    # It imports TensorFlow, which the process that waits does without.
    from launch.bench.lag_run import play

    return play(config, cell, order)
