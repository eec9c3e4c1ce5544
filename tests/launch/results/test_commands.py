"""evaluate, record, plot and export on small real runs."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import av
import gymnasium
import msgspec
import numpy as np
import pytest
from PIL import Image

from actors.environments import VectorEnvironment, environment_spec
from actors.environments.atari import AtariAdapter
from actors.evaluator import Evaluator
from launch.cli import main
from launch.film.stage import AtariStage
from launch.output import write_json
from launch.results.curves import bands, read_curve, read_rows
from launch.run.folder import RunFolder
from launch.run.progress import Progress
from shared.config import EnvironmentConfig, EvaluationConfig, RunConfig
from shared.types import WeightSnapshot

MADE_BY = {"command", "created", "revision", "versions", "hardware"}


def test_evaluate_says_by_which_protocol(pong_run: Path, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    command = f"evaluate {pong_run} --episodes 2 --protocol machado --json {file}"
    assert main(command.split()) == 0
    result = json.loads(file.read_text())
    assert result["protocol"]["sticky_action_probability"] == 0.25
    assert result["protocol"]["max_noops"] == 0
    assert len(result["returns"]) == 2
    assert result["published"]["a3c_ff"]["score"] == 5.6
    assert result.keys() >= MADE_BY
    assert json.loads((pong_run / "evaluation-machado.json").read_text()) == result


def test_evaluate_steps_games_on_all_cores_and_plays_the_same_ones(
    pong_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    make_vector = AtariAdapter.make_vector

    def remember(self: AtariAdapter, count: int, asked: int = 1) -> gymnasium.vector.VectorEnv:
        threads.append(asked)
        return make_vector(self, count, asked)

    monkeypatch.setattr(AtariAdapter, "make_vector", remember)
    played = []
    for cores in (1, 3):
        monkeypatch.setattr("launch.results.evaluate.usable_cores", lambda cores=cores: cores)
        file = tmp_path / f"{cores}.json"
        assert main(f"evaluate {pong_run} --episodes 3 --json {file}".split()) == 0
        played.append(json.loads(file.read_text())["returns"])
    assert 3 in threads
    assert played[0] == played[1]


def test_evaluate_and_record_play_other_starts_than_the_evaluations_that_chose_the_weights(
    cartpole_runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played: list[set[bytes]] = []
    reset = VectorEnvironment.reset

    def remember(self: VectorEnvironment, *arguments: int) -> np.ndarray:
        observations = reset(self, *arguments)
        played.append({observation.tobytes() for observation in observations})
        return observations

    monkeypatch.setattr(VectorEnvironment, "reset", remember)
    run, file = cartpole_runs[0], tmp_path / "result.json"
    config = RunFolder(run).read_config()
    evaluator = Evaluator(config, environment_spec(config.environment), EvaluationConfig(episodes=5, environments=5))
    evaluator.run(WeightSnapshot(0, np.zeros(evaluator.layout.size, np.float32)))
    for seed in ("", "--seed 2"):
        assert main(f"evaluate {run} --episodes 5 {seed} --json {file}".split()) == 0
    assert json.loads(file.read_text())["seeds"]["purpose"] == "evaluation"
    assert main(f"record {run} --episodes 2 --output {tmp_path / 'film.gif'} --json {file}".split()) == 0
    assert json.loads(file.read_text())["seeds"]["purpose"] == "recording"
    assert [len(starts) for starts in played] == [5, 5, 5, 1, 1]
    assert len(set.union(*played)) == 17
    manifest = json.loads((run / "manifest.json").read_text())
    assert "SeedSequence" in manifest["seeds"]["other_episodes"]


def test_evaluate_scores_by_the_distinct_games_that_were_played(
    cartpole_runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.games.Games.ended", lambda _games, environment: environment % 2)
    file = tmp_path / "result.json"
    assert main(f"evaluate {cartpole_runs[0]} --episodes 4 --json {file}".split()) == 0
    result = json.loads(file.read_text())
    assert (result["episodes"], result["distinct_games"]) == (4, 2)


@pytest.mark.parametrize("sticky", [0.0, 0.25])
def test_what_is_shown_stays_in_step_with_what_the_agent_plays(pong_run: Path, sticky: float) -> None:
    config = RunFolder(pong_run).read_config().environment
    stage = AtariStage(replace(config, sticky_action_probability=sticky, max_episode_frames=8_000))
    generator = np.random.default_rng(0)
    stage.reset(7)
    frames, total, ended = 0, 0.0, False
    while not ended:
        # It raises where rewards or ends differ.
        _, reward, ended, shown = stage.step(generator.integers(0, 6, 1, np.int32))
        frames, total = frames + len(shown), total + reward
        assert shown[0].shape == (210, 160, 3)
    stage.close()
    assert total < 0
    assert frames > 2_000


def test_a_video_has_every_frame_of_the_episode_and_says_how_it_was_made(pong_run: Path, tmp_path: Path) -> None:
    video, result = tmp_path / "pong.mp4", tmp_path / "pong.json"
    assert main(f"record {pong_run} --overlay --output {video} --json {result}".split()) == 0
    made = json.loads(result.read_text())
    with av.open(str(video)) as container:
        stream = container.streams.video[0]
        assert stream.average_rate == 60
        pictures = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        comment = json.loads(container.metadata["comment"])
    # An episode is 600 frames, of which the no-ops before it are not shown.
    assert len(pictures) == made["frames"]
    assert 550 <= made["frames"] <= 601
    assert comment.keys() >= MADE_BY
    assert comment["protocol"]["frames_per_agent_step"] == 4
    # In colour, and moving; the caption's bar is below the picture.
    assert np.ptp(pictures[300].astype(int), axis=2).max() > 50
    assert np.abs(pictures[300].astype(int) - pictures[540]).max() > 50
    assert pictures[300].shape[0] > 630
    assert not (tmp_path / "pong.part.mp4").exists()


def test_a_gif_of_an_environment_that_draws_itself(cartpole_runs: list[Path], tmp_path: Path) -> None:
    video = tmp_path / "cartpole.gif"
    assert main(f"record {cartpole_runs[0]} --output {video}".split()) == 0
    with Image.open(video) as picture:
        assert picture.n_frames > 3
        assert json.loads(picture.info["comment"]).keys() >= MADE_BY


def test_runs_that_differ_in_their_seed_become_one_band(cartpole_runs: list[Path], tmp_path: Path) -> None:
    curves = [read_curve(run, "frames", "mean_return_100") for run in cartpole_runs]
    (band,) = bands(curves)
    assert len(band.curves) == 2
    np.testing.assert_allclose(band.median, (band.low + band.high) / 2)
    at = float(band.x[100])
    both = [np.interp(at, curve.x, curve.y) for curve in curves]
    assert band.median[100] == pytest.approx(np.mean(both))
    picture = tmp_path / "curve.png"
    assert main(["plot", str(cartpole_runs[0].parent), "--output", str(picture), "--x", "seconds"]) == 0
    with Image.open(picture) as opened:
        assert json.loads(opened.text["Description"]).keys() >= MADE_BY


def test_evaluations_stand_beside_training_where_their_weights_were(tmp_path: Path) -> None:
    """In rows of today, and in those of older versions, which have the last mean only."""
    write_json(tmp_path / "config.json", msgspec.to_builtins(RunConfig()))
    row = msgspec.to_builtins(Progress(mean_return_100=1.0))
    point = {"frames": 7, "agent_steps": 2, "elapsed_seconds": 0.5, "mean_return": 3.0, "standard_error": 0.25}
    new = [row | {"frames": 10}, row | {"frames": 20, "evaluation_return": 3.0, "evaluations": [point]}]
    old = [
        {k: v for k, v in r.items() if k != "evaluations"}
        for r in (*new, row | {"frames": 30, "evaluation_return": 3.0})
    ]
    for rows, at, error in ((new, 7.0, 0.25), (old, 20.0, 0.0)):
        (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
        points = read_curve(tmp_path, "frames", "mean_return_100").evaluations
        assert points is not None
        assert [values.tolist() for values in points] == [[at], [3.0], [error]]
        alone = read_curve(tmp_path, "frames", "evaluation_return")
        assert (alone.x.tolist(), alone.y.tolist(), alone.evaluations) == ([at], [3.0], None)
        assert read_curve(tmp_path, "frames", "policy_lag_mean").evaluations is None


def test_runs_that_differ_otherwise_are_named_by_it(cartpole_runs: list[Path]) -> None:
    first, second = (read_curve(run, "frames", "mean_return_100") for run in cartpole_runs)
    other = second._replace(config=replace(second.config, total_frames=7))
    assert [band.label for band in bands([first, other])] == [
        "CartPole-v1, total_frames 6000",
        "CartPole-v1, total_frames 7",
    ]
    elsewhere = other._replace(config=replace(other.config, environment=EnvironmentConfig(id="Acrobot-v1")))
    assert [band.label for band in bands([first, elsewhere])] == ["CartPole-v1", "Acrobot-v1"]


def test_rows_that_were_played_again_after_a_resume_count_once(tmp_path: Path) -> None:
    frames = [10, 20, 30, 25, 35]
    row = msgspec.to_builtins(Progress())
    text = "".join(json.dumps(row | {"frames": n, "turn": i}) + "\n" for i, n in enumerate(frames))
    (tmp_path / "metrics.jsonl").write_text(text + '{"frames": 40, "tu')
    assert [(row["frames"], row["turn"]) for row in read_rows(RunFolder(tmp_path))] == [
        (10, 0),
        (20, 1),
        (25, 3),
        (35, 4),
    ]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("evaluate RUN --episodes 0", "must be at least 1"),
        ("evaluate RUN --protocol noop", "is for Atari"),
        ("evaluate nowhere", "is not the folder of a run"),
        ("record RUN --output film.avi", "must end in .mp4 or .gif"),
        ("record RUN --output nowhere/film.mp4", "in a folder that exists"),
        ("plot", "RUN: is missing"),
        ("plot nowhere", "is not the folder of a run, and holds none"),
        ("plot RUN --y score", ", agent_steps,"),
        ("export RUN --output RUN", "exists"),
        ("report RUN --output page.txt", "must end in .html"),
        ("train cartpole --seeds 1,1", "must name each seed once"),
        ("train cartpole --seeds one", "must be seeds like 1,2,3 or 1-10"),
        ("train cartpole --seeds 1,2 --resume RUN", "--resume"),
        ("train cartpole --trackers wandb", "is not installed"),
        ("bench scaling --actors two", "must be numbers like 1,2,4"),
        ("bench scaling --environment CartPole-v1", "the bench is for Atari; name an ALE game"),
        ("bench scaling --continue RUN", "is not the folder of a scaling measurement"),
        ("bench scaling --actors 1000", "there is room for"),
    ],
)
def test_mistakes_cost_one_line(
    command: str, message: str, cartpole_runs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([part.replace("RUN", str(cartpole_runs[0])) for part in command.split()]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error


def test_what_is_made_of_several_runs_goes_into_the_folder_that_holds_them(
    cartpole_runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    side_by_side = [tmp_path / "seeds" / run.name for run in cartpole_runs]
    apart = tmp_path / "elsewhere" / "run"
    for run, copy in zip([*cartpole_runs, cartpole_runs[1]], [*side_by_side, apart], strict=True):
        shutil.copytree(run, copy, ignore=shutil.ignore_patterns("checkpoints"))
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    cases = [([tmp_path / "seeds"], tmp_path / "seeds"), ([side_by_side[0], apart], here), ([apart], apart)]
    for runs, folder in cases:
        before = set(tmp_path.rglob("*"))
        assert main(["plot", *map(str, runs)]) == 0
        assert main(["report", *map(str, runs)]) == 0
        made = {folder / name for name in ("curve.png", "curve.svg", "report.html")}
        assert set(tmp_path.rglob("*")) - before == made
        out = capsys.readouterr().out
        assert all(str(file) in out for file in made)


@pytest.mark.parametrize("command", ["evaluate", "record", "export", "train --resume"])
def test_a_folder_without_weights_is_said_to_have_none(
    command: str, pong_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Like those of README's reference runs, which keep the results only."""
    shutil.copytree(
        pong_run, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints", "best.npz", "observation_mean.npy")
    )
    assert main([*command.split(), str(tmp_path / "run")]) == 2
    assert "has no weights, neither best.npz nor a checkpoint" in capsys.readouterr().err
