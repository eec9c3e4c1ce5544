"""`tributary evaluate`: protocols, scores, seeds and distinct games; and damaged files of a run folder."""

import json
import random
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from ale_py.vector_env import AtariVectorEnv
from untrained_runs import untrained

from actors.environments import VectorEnvironment, atari_game, environment_spec
from actors.environments.atari import AtariAdapter
from actors.evaluator import Evaluator
from actors.policy import Policy
from launch.cli import main
from launch.provenance import provenance
from launch.results.evaluate import (
    bootstrap_interval,
    by_protocol,
    describe_protocol,
    protocol_line,
    result_lines,
    run_to_play,
    score_summary,
)
from launch.results.report import RunReport
from launch.run.folder import RunFolder
from launch.run.weights import load_weights
from shared.config import EnvironmentConfig, EvaluationConfig
from shared.errors import ConfigurationError
from shared.types import EpisodeStats, EvaluationPart, WeightSnapshot


def summary_of(
    returns: Sequence[float], games: Sequence[int], game: str = "CartPole-v1", policy: Any = "greedy"
) -> dict[str, Any]:
    """The summary of episodes that are ten times as long as their returns."""
    values, nothing = np.array(returns, np.float64), np.zeros(len(returns), np.int64)
    episodes = EpisodeStats(values, np.nan_to_num(10 * values, posinf=0, neginf=0).astype(int))
    return score_summary(EvaluationPart(0, 1, episodes, nothing, nothing, np.array(games) << 32, 10), game, policy)


@pytest.mark.parametrize(
    ("game", "score", "percent"),
    [("ALE/Breakout-v5", 1.7, 0.0), ("ALE/Breakout-v5", 30.5, 100.0), ("Pong-v5", 1.0, None)],
)
def test_human_normalised_scores(game: str, score: float, percent: float | None) -> None:
    assert summary_of([score], [0], game)["human_normalised_percent"] == pytest.approx(percent)


def test_the_bootstrap_interval_has_its_coverage() -> None:
    generator = np.random.default_rng(0)
    inside = 0
    for _ in range(200):
        low, high = bootstrap_interval(generator.normal(3.0, 1.0, 60), np.arange(60))
        inside += low <= 3.0 <= high
    # An interval of 95 % has the mean in 190 of 200 samples, the percentile bootstrap of 60 games in fewer.
    assert 180 <= inside <= 191


def test_a_repeated_game_adds_no_information() -> None:
    once, again = summary_of([1.0, 2.0, 6.0], range(3)), summary_of([1.0, 2.0, 6.0] * 30, [0, 1, 2] * 30)
    assert (once["mean_return"], once["median_return"], once["mean_length_agent_steps"]) == (3.0, 2.0, 30.0)
    assert once["standard_error"] == pytest.approx(np.sqrt(7.0 / 3.0))
    assert (once["distinct_games"], again["distinct_games"], again["episodes"]) == (3, 3, 90)
    for name in ("mean_return", "standard_error", "interval_95"):
        assert again[name] == pytest.approx(once[name])
    for alone in (summary_of([4.0], [0]), summary_of([4.0] * 9, [0] * 9)):
        assert (alone["distinct_games"], alone["standard_error"], alone["interval_95"]) == (1, None, None)
    # The mean is that of the episodes, the error that of two games, of which one was played three times.
    weighted = summary_of([1.0, 1.0, 1.0, 5.0], [0, 0, 0, 1])
    assert (weighted["mean_return"], weighted["interval_95"]) == (2.0, [1.0, 5.0])
    sampled = summary_of([1.0, 1.0, 1.0, 5.0], [0, 0, 0, 1], policy="sampled")
    assert (sampled["standard_error"], sampled["distinct_games"]) == (1.0, 2), "each was drawn"
    # With Σw² = 10/16: √(10/16 · (3/4 (1 - 2)² + 1/4 (5 - 2)²) / (6/16)).
    assert weighted["standard_error"] == pytest.approx(np.sqrt(5.0))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_return_that_is_not_finite_leaves_no_mean_and_is_null(bad: float) -> None:
    summary = summary_of([1.0, bad, -bad], range(3), "ALE/Pong-v5")
    assert summary["returns"] == [1.0, None, None]
    figures = ("mean_return", "median_return", "standard_error", "interval_95", "minimum_return", "maximum_return")
    assert [summary[name] for name in figures] == [None] * 6
    assert summary["human_normalised_percent"] is None
    protocol = {"name": "training", "frames_per_agent_step": 4}
    others = {"policy": "greedy", "protocol": protocol, "info": {"success": None}, **provenance()}
    lines = result_lines(summary | others)
    assert lines[0] == "mean return -, median -, from - to -; greedy actions"
    assert "2 returns are not finite: there is no mean" in lines
    assert "success -, mean over episodes" in lines


@pytest.mark.parametrize(
    ("settings", "waits_for_fire", "described"),
    [
        ({}, True, "1 to 29, 1 twice as likely"),
        ({}, False, "0 to 29"),
        ({"max_noops": 0}, True, "1"),
        ({"max_noops": 0}, False, "0"),
    ],
)
def test_start_frames_are_described_as_they_are_played(settings: dict, waits_for_fire: bool, described: str) -> None:
    config = EnvironmentConfig(id="ALE/Pong-v5" if waits_for_fire else "ALE/Freeway-v5", **settings)
    description = describe_protocol(config, "training", environment_spec(config))
    assert description["start_frames"] == described
    assert f"start frames {described}" in protocol_line(description)
    # What ale-py plays, by its own count.
    environment = AtariVectorEnv(
        atari_game(config.id), 2, num_threads=1, noop_max=config.max_noops, use_fire_reset=config.fire_on_reset
    )
    played: set[int] = set()
    for seed in range(0, 4, 2):
        played.update(environment.reset(seed=seed)[1]["episode_frame_number"].tolist())
    environment.close()
    low, _, high = described.partition(",")[0].partition(" to ")
    assert int(low) <= min(played) <= max(played) <= int(high or low)
    assert len(played) > 1 or not high


def test_protocols_keep_the_observations_of_training() -> None:
    trained = EnvironmentConfig(frame_skip=3, frame_stack=2, sticky_action_probability=0.1, full_action_space=True)
    assert by_protocol(trained, "training") == trained
    noop = by_protocol(trained, "noop")
    assert (noop.sticky_action_probability, noop.max_episode_frames, noop.frame_skip) == (0.0, 108_000, 3)
    machado = by_protocol(trained, "machado")
    assert (machado.sticky_action_probability, machado.max_noops, machado.max_episode_frames) == (0.25, 0, 18_000)
    assert (machado.frame_stack, machado.full_action_space, machado.fire_on_reset) == (2, True, False)
    line = protocol_line(describe_protocol(noop, "noop", environment_spec(noop)))
    assert "most noops 30" in line
    assert "action set full" in line


def test_evaluate_plays_the_same_on_all_cores(pong_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    make_vector = AtariAdapter.make_vector

    def remember(self: AtariAdapter, count: int, asked: int = 1) -> gymnasium.vector.VectorEnv:
        threads.append(asked)
        return make_vector(self, count, asked)

    monkeypatch.setattr(AtariAdapter, "make_vector", remember)
    # As if both episodes were one game.
    monkeypatch.setattr("actors.evaluator.EpisodeFingerprints.number", lambda _seen, _environment: 0)
    results, file = [], tmp_path / "result.json"
    for cores, options in ((1, ""), (3, ""), (1, "--protocol machado")):
        monkeypatch.setattr("launch.results.evaluate.usable_cores", lambda cores=cores: cores)
        assert main(f"evaluate {pong_run} --episodes 2 {options} --json {file}".split()) == 0
        results.append(json.loads(file.read_text()))
    assert 2 in threads
    one, three, result = results
    assert one["returns"] == three["returns"]
    assert (len(result["returns"]), result["distinct_games"]) == (2, 1)
    assert result["protocol"]["sticky_action_probability"] == 0.25
    assert result["protocol"]["most_noops"] == 0
    assert result.keys() >= {"command", "created", "revision", "versions", "hardware"}
    assert json.loads((pong_run / "evaluation-machado.json").read_text()) == result


def test_results_play_other_starts(cartpole_runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played, drawn = list[set[bytes]](), list[float]()
    reset = VectorEnvironment.reset

    def remember(self: VectorEnvironment, *arguments: int) -> np.ndarray:
        observations = reset(self, *arguments)
        played.append({observation.tobytes() for observation in observations})
        # As an environment may.
        drawn.append(random.random())
        return observations

    monkeypatch.setattr(VectorEnvironment, "reset", remember)
    run, file = cartpole_runs[0], tmp_path / "result.json"
    config = RunFolder(run).read_config()
    evaluator = Evaluator(config, environment_spec(config.environment), EvaluationConfig(episodes=5, environments=5))
    list(evaluator.run(WeightSnapshot(0, np.zeros(evaluator.policy.layout.size, np.float32))))
    for seed in ("", "--seed 2"):
        assert main(f"evaluate {run} --episodes 5 {seed} --json {file}".split()) == 0
    assert json.loads(file.read_text())["seeds"]["purpose"] == "evaluation"
    assert main(f"record {run} --episodes 2 --output {tmp_path / 'film.gif'} --json {file}".split()) == 0
    assert json.loads(file.read_text())["seeds"]["purpose"] == "recording"
    assert [len(starts) for starts in played] == [5, 5, 5, 1, 1]
    assert drawn[1] != drawn[2]
    assert len(set.union(*played)) == 17
    manifest = json.loads((run / "manifest.json").read_text())
    assert "SeedSequence" in manifest["seeds"]["other_episodes"]


@pytest.mark.usefixtures("signals_end")
@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_evaluation_is_no_score(kind: signal.Signals, cartpole_runs: list, monkeypatch, capsys) -> None:
    play, episodes = Evaluator.play, list[int]()

    def interrupted(self: Evaluator, *arguments: Any, **more: Any) -> EvaluationPart:
        part = play(self, *arguments, **more)
        if sum(episodes) >= 8:
            assert signal.getsignal(kind) != signal.SIG_DFL
            signal.raise_signal(kind)
        episodes.append(len(part.order))
        return part

    monkeypatch.setattr(Evaluator, "play", interrupted)
    before = sorted(cartpole_runs[0].iterdir())
    assert main(["evaluate", str(cartpole_runs[0]), "--episodes", "20"]) == 130
    shown = capsys.readouterr().out
    ended = sum(episodes)
    assert f"interrupted after {ended} of 20 episodes; nothing is written" in shown
    assert "mean return" not in shown
    assert sorted(cartpole_runs[0].iterdir()) == before


@pytest.mark.parametrize("command", ["evaluate", "export", "train --resume"])
def test_a_run_without_weights(command: str, pong_run: Path, tmp_path: Path, refused: Callable[[str], str]) -> None:
    shutil.copytree(pong_run, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints", "best.npz"))
    assert "no checkpoint in" in refused(f"{command} {tmp_path / 'run'}")


def damages(run: Path, *names: str) -> Iterator[str]:
    """Damage one of the files at a time, fifty times. Gives its name, and restores it afterwards."""
    generator, whole = random.Random(0), {name: (run / name).read_bytes() for name in names}
    for _ in range(50):
        name = generator.choice(names)
        content, noise = whole[name], generator.randbytes(generator.randrange(1, 40))
        at = generator.randrange(len(content) + 1)
        kinds = (
            content[:at],
            b"",
            content[:at] + noise + content[at + len(noise) :],
            content[:at] + noise + content[at:],
        )
        (run / name).write_bytes(generator.choice(kinds))
        yield name
        (run / name).write_bytes(content)


@pytest.fixture
def run(pong_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pong_run, tmp_path / "run"))


def refusal(call: Callable[..., object], *arguments: object) -> str:
    """The one line of a ConfigurationError; empty where there is none."""
    line = ""
    try:
        call(*arguments)
    except ConfigurationError as error:
        line = str(error)
    assert "\n" not in line
    assert len(line) < 1_500
    return line


def test_damaged_settings(run: Path) -> None:
    refused = [refusal(run_to_play, RunFolder(run)) for _ in damages(run, "config.json")]
    assert len(list(filter(None, refused))) > 25


def test_damaged_best_weights(run: Path) -> None:
    folder = RunFolder(run)
    policy = Policy(*run_to_play(folder))
    parameters = np.arange(policy.layout.size, dtype=np.float32)
    np.savez(folder.best_weights, version=3, parameters=parameters[:50], mean_return=1.0, measure="training")
    assert "another network" in refusal(load_weights, folder, "best", policy.layout)
    assert "must be auto, best, latest or a number" in refusal(load_weights, folder, "lastest", policy.layout)
    assert "no checkpoint is of this update" in refusal(load_weights, folder, np.int64(10**9), policy.layout)
    np.savez(folder.best_weights, version=3, parameters=parameters, mean_return=1.0, measure="training")
    refused = 0
    for _ in damages(run, "best.npz"):
        if refusal(load_weights, folder, "best", policy.layout):
            refused += 1
        else:
            # A file may be whole with something before it.
            np.testing.assert_array_equal(load_weights(folder, "best", policy.layout)[0].parameters, parameters)
    assert refused > 25
    # zipfile takes an entry with this flag for an encrypted one.
    flagged = bytearray(folder.best_weights.read_bytes())
    flagged[flagged.index(b"PK\1\2") + 8] |= 1
    folder.best_weights.write_bytes(flagged)
    assert "encrypted" in refusal(load_weights, folder, "best", policy.layout)
    np.savez(folder.best_weights, version=3, parameters=parameters, mean_return=1.0, measure="training")
    snapshot, source = load_weights(folder, "auto", policy.layout)
    np.testing.assert_array_equal(snapshot.parameters, parameters)
    assert source == "the weights that were best in training (update 3)"


def test_damaged_manifests_and_summaries_leave_a_report_possible(run: Path) -> None:
    """And half a row, of a process that was killed, is left out."""
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"frames": 1')
    figures = RunReport(run).figures()
    of_summary = dict.fromkeys(("status", "startup_seconds", "wall_seconds", "agent_steps_per_second"))
    for _ in damages(run, "manifest.json", "summary.json"):
        reported = RunReport(run).figures()
        assert reported | of_summary == figures | of_summary
    (run / "manifest.json").write_text('{"hardware": {"cpu": "a"}}')
    assert main(["report", str(run), "--output", str(run / "page.html")]) == 0
    assert "unknown hardware" in (run / "page.html").read_text()
    (run / "metrics.jsonl").write_text("")
    with pytest.raises(ConfigurationError, match="has no metrics yet"):
        RunReport(run)


def test_a_folder_that_cannot_be_written_to_costs_no_result(tmp_path: Path) -> None:
    run, file = untrained(tmp_path / "run", "cartpole"), tmp_path / "result.json"
    (run / "evaluation-training.json").mkdir()
    assert main(["evaluate", str(run), "--episodes", "1", "--json", str(file)]) == 1
    assert json.loads(file.read_text())["episodes"] == 1
