"""A run's agent is packed as one that ships: small, without paths, with scores of the weights as they are packed."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from actors.environments import environment_spec
from actors.policy import Policy
from launch.cli import main
from launch.commands import zoo
from launch.commands.zoo import PackArguments, pack
from launch.results.curves import read_rows
from launch.run.folder import RunFolder, load_weights
from shared.errors import ConfigurationError


def test_a_packed_run_plays_like_the_run_and_names_no_place(train: Callable[[Path, str], Path], tmp_path: Path) -> None:
    settings = "cartpole --total-frames 3000 --network.hidden-sizes 16 --evaluation.environments 5"
    run = RunFolder(train(tmp_path / "a" / "run", f"{settings} --storage file://{tmp_path}/copy"))
    # As it is typed; pytest's own command line stands there otherwise.
    manifest = json.loads((run.path / "manifest.json").read_text())
    typed = f"tributary train cartpole --seed 1 --run-dir {run.path} --storage=file://{tmp_path}/copy --actors 1"
    (run.path / "manifest.json").write_text(json.dumps(manifest | {"command": typed, "threads": f"see {tmp_path}/x"}))
    many = [json.loads(line) for line in run.metrics.read_text().splitlines()][-1:] * 400
    lines = [json.dumps(row | {"frames": 10 * i, "policy_lag_mean": 1 / 3}) for i, row in enumerate(many)]
    run.metrics.write_text("\n".join(lines))

    made = pack(PackArguments(run.path, "mine", weights="latest", episodes=4), tmp_path)
    assert made == tmp_path / "mine"
    packed = RunFolder(made)
    config = packed.read_config("run")
    assert config.storage is None
    policy = Policy(config, environment_spec(config.environment))
    before, source = load_weights(run, "latest", policy.layout)
    after, said = load_weights(packed, "auto", policy.layout)
    assert (after.version, said) == (before.version, source)
    assert after.parameters.dtype == np.float32
    np.testing.assert_allclose(after.parameters, before.parameters, rtol=2**-11, atol=1e-7)
    with np.load(packed.best_weights, allow_pickle=False) as weights:
        assert weights["parameters"].dtype == np.float16
    manifest = json.loads((made / "manifest.json").read_text())
    assert manifest["command"] == "tributary train cartpole --seed 1 --actors 1"
    assert manifest["packed"]["mean_returns"].keys() == {"float32", "float16"}
    texts = [file.read_text() for file in made.iterdir() if file.suffix in (".json", ".jsonl")]
    assert len(texts) == 5
    assert not any(str(tmp_path) in text for text in texts)
    rows = read_rows(packed)
    assert len(rows) == 100
    assert (rows[0]["frames"], rows[-1]["frames"]) == (0, 3990)
    assert rows[5]["policy_lag_mean"] == 0.33333

    evaluation = json.loads((made / "evaluation-training.json").read_text())
    assert evaluation["command"] == "tributary evaluate zoo:mine --protocol training --episodes 4"
    # Its command repeats it, to the game.
    words = shlex.split(evaluation["command"].replace("zoo:mine", str(made)))
    assert main([*words[1:], "--json", str(tmp_path / "again.json")]) == 0
    assert json.loads((tmp_path / "again.json").read_text())["returns"] == evaluation["returns"]


def test_where_the_score_suffers_the_weights_stay_whole(
    cartpole_runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def worse(path: Path, snapshot, layout, source, dtype="float32") -> None:
        parameters = snapshot.parameters if dtype == "float32" else np.zeros(layout.size)
        np.savez(path, version=1, parameters=parameters.astype(dtype), layout=layout.fingerprint, source=source)

    # What is zero plays one action only, and loses at once.
    monkeypatch.setattr("launch.commands.zoo.write_weights", worse)
    made = pack(PackArguments(cartpole_runs[0], "mine", episodes=10), tmp_path)
    with np.load(RunFolder(made).best_weights, allow_pickle=False) as weights:
        assert weights["parameters"].dtype == np.float32
    packed = json.loads((made / "manifest.json").read_text())["packed"]
    assert packed["dtype"] == "float32"
    means = packed["mean_returns"]
    assert means["float16"] < means["float32"]
    evaluation = json.loads((made / "evaluation-training.json").read_text())
    assert evaluation["mean_return"] == means["float32"]


@pytest.mark.parametrize("name", ["Pong", "../pong", "", "pong-"])
def test_names_are_those_that_can_be_typed(name: str, cartpole_runs: list[Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="lower-case letters"):
        pack(PackArguments(cartpole_runs[0], name), tmp_path)


def test_what_is_typed_wrong_refers_to_the_help_that_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    program = "python -m launch.commands.zoo pack"
    for words, message in ((["pakc"], f"pakc: there is only {program}"), (["pack"], f"see {program} --help")):
        with pytest.raises(ConfigurationError, match=message):
            zoo.main(*words)
    zoo.main("pack", "--help")
    assert capsys.readouterr().out.startswith(f"usage: {program} RUN NAME")
