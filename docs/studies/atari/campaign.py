"""The runs behind the table of Atari games in docs/scores.md: each game and seed at one commit (`make scores`).

    python docs/studies/atari/campaign.py                         all of them, one on each core: days
    python docs/studies/atari/campaign.py --games Breakout --seeds 1
    python docs/studies/atari/campaign.py --at-a-time 1 --address auto --actors 16     settings of tributary train

Runs are below runs/scores. Called again, it goes on with those that were interrupted or killed. One that has all its
frames is evaluated by each published protocol, on games that did not select its weights, and stored as
docs/studies/atari/GAME-seed-N: settings, manifest, a hundred rows, summary and evaluations. `make figures` writes their
table: at the end, since a page that has changed is another revision.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent import futures
from pathlib import Path

from launch.machine import usable_cores
from launch.output import EXIT_DONE, EXIT_FAILED, exit_code
from launch.provenance import revision
from launch.run.folder import RunFolder, read_object
from launch.run.summary import run_status
from shared.errors import ConfigurationError, TrainingFailedError

ROOT, STORED = Path(__file__).resolve().parents[3], Path(__file__).resolve().parent
RUNS = ROOT / "runs" / "scores"
SIX = ("Pong", "Breakout", "BeamRider", "Qbert", "Seaquest", "SpaceInvaders")
# With Q*bert the five games of Atari-5 (Aitchison, Sweetser and Hutter 2022, arXiv 2210.02019).
FURTHER = ("BattleZone", "DoubleDunk", "NameThisGame", "Phoenix")
_ONE_CORE = ("--executor", "inline", "--actors", "1")


def plan(games: Sequence[str] = (), seeds: Sequence[int] = ()) -> list[tuple[str, int]]:
    """Games and seeds in the order of their use: the six, those of Atari-5, and further seeds of the six."""
    whole = [*[(game, 1) for game in SIX + FURTHER], *[(game, seed) for seed in (2, 3) for game in SIX]]
    return [(game, seed) for game, seed in whole if game in (games or SIX + FURTHER) and seed in (seeds or (1, 2, 3))]


def carry_out(
    game: str,
    seed: int,
    *,
    frames: int,
    settings: Sequence[str],
    episodes: int = 100,
    runs: Path = RUNS,
    stored: Path = STORED,
) -> None:
    """Train, evaluate and store one run, from where it was left.

    Raises:
        TrainingFailedError: a command failed, or was interrupted.
        ConfigurationError: files or the commit have changed since the first run, see `check_revision`.
    """
    name = f"{game.lower()}-seed-{seed}"
    run, kept = RunFolder(runs / name), RunFolder(stored / name)
    if not kept.path.exists():
        # Files may have changed since the run before this one.
        revision.cache_clear()
        check_revision(runs, revision())
        _train(run, game, seed, frames, settings)
        packing = [sys.executable, str(ROOT / "docs" / "zoo.py"), str(run.path), name, "--into", str(stored)]
        _call(run, [*packing, "--episodes", str(episodes)])
    # A study keeps no weights: `make agent` packs an agent that ships.
    for file in kept.best_weights, kept.observation_mean:
        file.unlink(missing_ok=True)


def _train(run: RunFolder, game: str, seed: int, frames: int, settings: Sequence[str]) -> None:
    tributary = [sys.executable, "-m", "launch.cli", "train"]
    run.discard_without_checkpoint()
    if not run.has_checkpoint:
        new = ["atari", "--environment.id", f"ALE/{game}-v5", "--seed", str(seed), "--total-frames", str(frames)]
        _call(run, [*tributary, *new, "--run-dir", str(run.path), *settings])
    elif run_status(run.path).status != "frames_reached":
        _call(run, [*tributary, "--resume", str(run.path)])
    if run_status(run.path).status != "frames_reached":
        raise TrainingFailedError(f"{run.path}: it has not all of its frames")


def _call(run: RunFolder, command: Sequence[str]) -> None:
    run.path.parent.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with run.path.with_suffix(".txt").open("a", encoding="utf-8") as output:
        code = subprocess.run(command, stdout=output, stderr=output, env=environment, cwd=ROOT, check=False).returncode
    if code != EXIT_DONE:
        raise TrainingFailedError(f"{run.path}: ended with {code}; its output is in {output.name}")


def check_revision(runs: Path, now: str) -> None:
    """Raise a ConfigurationError unless all runs so far are of this revision, and that is a commit."""
    if now.endswith("-dirty"):
        raise ConfigurationError(f"revision {now}: commit the changed files first; all runs are of one commit")
    for manifest in sorted(runs.glob("*/manifest.json")):
        if (of_run := read_object(manifest)["revision"]) != now:
            raise ConfigurationError(f"{manifest.parent} is of revision {of_run}, this is {now}: check that one out")


def main() -> int:
    parser = argparse.ArgumentParser("campaign.py", description="Train, evaluate and store the runs of docs/scores.md.")
    parser.allow_abbrev = False
    parser.add_argument("--games", nargs="+", default=[], choices=SIX + FURTHER, help="default: all, the six first")
    parser.add_argument(
        "--seeds", nargs="+", default=[], type=int, choices=(1, 2, 3), help="default: 1, of the six all"
    )
    parser.add_argument("--frames", type=int, default=40_000_000, help="of each run (%(default)s)")
    parser.add_argument("--at-a-time", type=int, default=usable_cores(), help="runs (%(default)s)")
    typed, settings = parser.parse_known_args()
    check_revision(RUNS, revision())
    failures = 0
    with futures.ThreadPoolExecutor(typed.at_a_time) as threads:
        made = {
            threads.submit(
                carry_out,
                game,
                seed,
                frames=typed.frames,
                settings=settings or _ONE_CORE,
            ): f"{game}, seed {seed}"
            for game, seed in plan(typed.games, typed.seeds)
        }
        try:
            for result in futures.as_completed(made):
                error = result.exception()
                failures += error is not None
                print(f"{made[result]}: {error or 'stored'}", flush=True)
        except KeyboardInterrupt:
            # The terminal has interrupted the runs, too: they save, and a later call goes on.
            threads.shutdown(cancel_futures=True)
            raise
    if failures:
        print(f"{failures} of {len(made)} runs are not stored: call it again, it goes on")
    return EXIT_FAILED if failures else EXIT_DONE


if __name__ == "__main__":
    sys.exit(exit_code(main))
