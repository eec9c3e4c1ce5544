"""The examples are run: a notebook, a method, a network and a way to explore of the user's own.

The tasks of the table beside Stable-Baselines3 are done by the code that stands there. The method on one page is driven
beside the system: the same rollouts give the same gradients and weights.
"""

import functools
import importlib.util
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from rollouts import recording
from waiting import UNTIL_FRAMES

import tributary_rl as tributary
from actors.actor import Actor
from actors.environments import environment_spec
from actors.policy import Policy
from launch.cli import main
from launch.run.folder import RunFolder
from launch.run.modules import imports_permitted
from launch.settings.resolve import TrainRequest, resolve_request
from learner.learner import Learner
from shared.config import ActorConfig, EnvironmentConfig, MethodConfig, NetworkConfig, OptimizerConfig, RunConfig
from shared.layout import ParameterLayout
from shared.networks import KerasNetwork
from shared.registry import EXPLORERS, METHODS, NETWORKS, Entry, MethodEntry, NetworkEntry
from shared.returns import lambda_returns
from shared.types import Rollout

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
_CELL_SECONDS = 250
SMALL = f"--executor inline --actors 1 --total-frames 600 {UNTIL_FRAMES} --run-dir run"


def test_the_environment_of_the_page_trains(working_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (EXAMPLES.parent / "environments.md").read_text()
    code = re.search(r"```python\n# corridor.py\n(.*?)```", page, re.DOTALL)
    assert code is not None
    (working_folder / "corridor.py").write_text(code[1])
    monkeypatch.syspath_prepend(working_folder)
    assert "tributary train corridor:Corridor-v0" in page
    assert main(f"train corridor:Corridor-v0 {SMALL}".split()) == 0
    assert "tributary record latest --trust-imports " in page
    assert main(["record", "run", "--trust-imports", "--episodes", "1"]) == 0
    assert [*Path("run/videos").iterdir()]


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer frames. Its cells show the lines of the run, a curve and a video."""
    import nbformat
    from nbclient import NotebookClient

    # The kernel finds the project as this process does.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    notebook = nbformat.read(EXAMPLES / "cartpole.ipynb", as_version=4)
    assert notebook.cells[1].source.count("300_000") == 1
    notebook.cells[1].source = notebook.cells[1].source.replace("300_000", "4_000")
    NotebookClient(notebook, timeout=_CELL_SECONDS, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs: list[Any] = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    printed = "".join(output.text for output in outputs if output.output_type == "stream")
    assert "run folder:" in printed
    assert "frames reached" in printed
    shown = {kind for output in outputs if output.output_type == "execute_result" for kind in output.data}
    assert {"image/png", "image/gif", "text/plain"} <= shown
    assert float(outputs[-1].data["text/plain"]) > 0


@pytest.fixture
def example(working_folder: Path) -> Callable[[str], Path]:
    """Copies an example into the working folder."""
    return lambda name: Path(shutil.copy(EXAMPLES / f"{name}.py", working_folder))


def test_a_method_of_the_users_own_trains_and_is_evaluated(example: Callable, tmp_path: Path) -> None:
    """Each command imports it, where nothing is known of it."""
    example("own_method")
    chosen = f"{SMALL} --environment.import own_method --method.name sign"

    def run(line: str) -> int:
        assert "sign" not in METHODS
        try:
            return main(line.split())
        finally:
            METHODS.pop("sign", None)
            assert Path(sys.modules.pop("own_method").__file__ or "") == tmp_path / "own_method.py"

    assert run(f"train cartpole {chosen}") == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["method"]["name"], config["environment"]["imports"]) == ("sign", ["own_method"])
    assert run("evaluate run --episodes 2") == 0


def written_out_v_trace(data: dict[str, np.ndarray], largest_rho: float, largest_c: float) -> list[np.ndarray]:
    """Equation 1 of the paper as a sum for each step, float64, up to the next masked step."""
    rewards, discounts, ratios, mask = (data[name] for name in ("rewards", "discounts", "ratios", "mask"))
    values = np.concatenate([data["values"], data["bootstrap_value"][None]])
    rhos, cs, steps = np.minimum(largest_rho, ratios), np.minimum(largest_c, ratios), len(rewards)
    targets = values.copy()
    for s, b in np.ndindex(rewards.shape):
        for t in range(s, s + int(np.argmin([*mask[s:, b], 0]))):
            error = rhos[t, b] * (rewards[t, b] + discounts[t, b] * values[t + 1, b] - values[t, b])
            targets[s, b] += np.prod(discounts[s:t, b] * cs[s:t, b]) * error
    advantages = rhos * (rewards + discounts * targets[1:] - values[:-1])
    return [targets[:steps], advantages * mask]


def test_v_trace_is_its_written_out_sum_and_trains(example: Callable, tmp_path: Path) -> None:
    v_trace = page("v_trace").v_trace
    METHODS.pop("v_trace")
    random, shape = np.random.default_rng(0), (6, 40)
    floats = {name: random.normal(size=shape) for name in ("rewards", "values")}
    floats |= {"bootstrap_value": random.normal(size=shape[1]), "ratios": np.exp(random.normal(size=shape))}
    floats |= {"discounts": 0.9 * (random.random(shape) < 0.8), "mask": 1.0 * (random.random(shape) < 0.8)}
    tensors = {name: tf.constant(value, tf.float32) for name, value in floats.items()}
    for bounds in ((1.0, 1.0), (2.0, 0.5)):
        targets, advantages = v_trace(**tensors, largest_rho=bounds[0], largest_c=bounds[1])
        expected = written_out_v_trace(floats, *bounds)
        np.testing.assert_allclose(targets, expected[0], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(advantages * tensors["mask"], expected[1], rtol=1e-4, atol=1e-5)
    del tensors["ratios"]
    at_acting, _ = v_trace(**tensors, ratios=tf.ones(shape), largest_rho=1.0, largest_c=1.0)
    np.testing.assert_allclose(at_acting, lambda_returns(**tensors, return_lambda=1.0), rtol=1e-4, atol=1e-5)
    example("v_trace")
    command = re.search(r"`tributary (train .*)`", (EXAMPLES / "v_trace.py").read_text())
    assert command is not None
    assert main([*command[1].split(), *SMALL.split()]) == 0
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["updates"] > 0


OWN_OPTIONS = """
import tributary_rl as tributary
from shared.methods.actor_critic import ActorCritic
from shared.networks.perceptron import MultilayerPerceptron


class Scaled(ActorCritic):
    options = {"scale": 1.0, "kind": "plain", "squared": False}

    def value(self, output):
        assert type(self.config.method.options["scale"]) is float
        return super().value(output) * self.config.method.options["scale"]


class Wide(MultilayerPerceptron):
    options = {"units": 8}

    def __init__(self, config, *more):
        from dataclasses import replace
        super().__init__(replace(config, hidden_sizes=(config.options["units"],)), *more)


tributary.register_method("scaled", Scaled, continuous_actions=True)
tributary.register_network("wide", Wide, images=False)
"""


def test_own_classes_have_options_and_their_sources_a_digest(working_folder: Path, refused: Callable, capsys) -> None:
    module = working_folder / "own_options.py"
    module.write_text(OWN_OPTIONS)
    sys.path.append(os.getcwd())
    own = "--environment.import own_options --method.name scaled --network.name wide"
    options = "--method.options scale 2 kind 5 squared true --network.options units 12"
    assert main(f"train cartpole {SMALL} {own} {options}".split()) == 0
    config = json.loads(Path("run/config.json").read_text())
    assert (config["method"]["options"]["scale"], config["network"]["options"]) == (2, {"units": 12})
    agent = tributary.load("run")
    assert agent._policies[1].layout.size == 2 * (4 * 12 + 12) + 3 * (12 + 1)
    made = agent._policies[1].method.config.method.options
    assert made == {"scale": 2.0, "kind": "5", "squared": True}
    for wrong, line in (
        ("--method.options scal 2", "scal 2: there is no such option; scaled takes scale, kind, squared"),
        ("--method.options scale wide", "--method.options scale wide: is not of the type of its default, 1.0"),
        ("--network.options units 1.5", "--network.options units 1.5: is not of the type of its default, 8"),
        ("--exploration.options x 1", "x 1: there is no such option; there is no class of your own"),
        ("--method.name actor_critic --method.options x 1", "there is no such option; actor_critic takes none"),
    ):
        assert line in refused(f"train cartpole {own} {wrong}")
    # Its sources change between the run and what is done with it.
    module.write_text(OWN_OPTIONS + "# another version\n")
    changed = "the sources of module own_options differ from those that the run began with"
    stale = "module own_options has changed since this process imported it: start the process anew"
    with pytest.warns(UserWarning, match="own_options") as warned:
        tributary.load("run")
    assert [str(warning.message).partition(": ")[2] for warning in warned] == [changed, stale]
    capsys.readouterr()
    assert main(["evaluate", "run", "--episodes", "2", "--trust-imports"]) == 0
    assert f"(update 4); {changed}; {stale}" in capsys.readouterr().out
    resumed = "--resume run --total-frames 1200 --environment.import own_options"
    assert main(["train", *resumed.split()]) == 0
    assert f"changed:      {changed}" in capsys.readouterr().out


def test_a_network_of_the_users_own_trains_acts_and_is_exported(example: Callable) -> None:
    example("own_network")
    line = f"train cartpole {SMALL} --environment.import own_network --network.name dense_mlp"
    assert main(line.split()) == 0
    assert json.loads(Path("run/config.json").read_text())["network"]["name"] == "dense_mlp"
    assert json.loads(Path("run/summary.json").read_text())["updates"] > 0
    assert main(["evaluate", "run", "--episodes", "2"]) == 0
    action, state = tributary.load("run").act(np.zeros(4))
    assert (action in (0, 1), state) == (True, ())
    assert main(["export", "run", "--output", "model"]) == 0
    model = keras.models.load_model("model/model.keras")
    heads = {name: tuple(head.shape) for name, head in model(np.zeros((3, 4))).items()}
    assert heads == {"policy": (3, 2), "value": (3, 1)}
    # 4 x 64 and 68 x 64 weights, biases, and heads that see 64 + 4 units.
    assert model.count_params() == 5 * 64 + 69 * 64 + 69 * 3


def test_a_network_of_the_users_own_for_images_scales_them_itself(example: Callable) -> None:
    example("own_images")
    line = f"train images {SMALL} --environment.id sides:Sides-v0 --environment.wrappers sides:Camera"
    assert main([*line.split(), *["--environment.import", "own_images", "--network.name", "small_cnn"]]) == 0
    assert json.loads(Path("run/summary.json").read_text())["updates"] > 0
    with imports_permitted(every=True):
        config = RunFolder(Path("run")).read_config()
    policy = Policy(config, environment_spec(config.environment))
    features = [policy.network(tf.fill((1, 36, 36, 12), tf.constant(value, tf.uint8))).features for value in (0, 255)]
    # In 0 to 255 they would be hundreds.
    assert float(tf.reduce_max(tf.abs(features[1]))) < 20.0
    assert float(tf.reduce_max(tf.abs(features[1] - features[0]))) > 0.0


WHOLE = """
import keras
import tributary_rl as tributary
from shared.networks import KerasNetwork

class Gated(KerasNetwork):
    def __init__(self, config, observation_shape, heads, seed, observation_mean=None):
        super().__init__(heads)
        inputs = {name: keras.Input(shape, dtype="float32" if name == "vector" else "uint8", name=name)
                  for name, shape in observation_shape.items()}
        gate = keras.layers.Dense(8, "sigmoid", name="gate")(inputs["vector"])
        image = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(inputs["image_camera"]))
        x = keras.layers.Multiply()([gate, keras.layers.Dense(8, "relu", name="image")(image)])
        outputs = [keras.layers.Dense(head.units, name=head.name)(x) for head in heads]
        self.model = keras.Model(inputs, (*outputs, x))

tributary.register_network("gated", Gated, images=True, whole=True)
"""


@pytest.mark.usefixtures("working_folder")
def test_one_network_of_the_users_own_takes_a_whole_observation() -> None:
    """Below a memory."""
    Path("gated.py").write_text(WHOLE)
    line = f"train images {SMALL} --environment.id sides:Sides-v0 --environment.import gated --network.name gated"
    assert main([*line.split(), "--network.recurrent", "lstm"]) == 0
    assert main(["evaluate", "run", "--episodes", "2", "--trust-imports"]) == 0
    assert main(["export", "run", "--output", "model", "--trust-imports"]) == 0
    described = json.loads(Path("model/model.json").read_text())["inputs"]["tensors"]
    shapes = {name: part["shape"][1:] for name, part in described.items()}
    assert shapes.items() >= {"image_camera": [36, 36, 12], "vector": [4]}.items()


def test_what_is_not_registered_or_does_not_fit_is_one_line(example: Callable, refused: Callable[[str], str]) -> None:
    example("own_explorer")
    unknown = refused(f"train cartpole-q {SMALL} --environment.import own_explorer --exploration.name bolt")
    assert unknown.startswith("--exploration.name bolt: no such explorer; there are boltzmann")
    example("own_network")
    line = f"{SMALL} --environment.import own_network --network.name"
    known = "a3c_cnn, nature_cnn, impala_resnet, mlp, dense_mlp"
    assert f"--network.name dens: no such network; there are {known}" in refused(f"train cartpole {line} dens")
    assert "use a3c_cnn, nature_cnn or impala_resnet" in refused(f"train pong {line} dense_mlp")
    running = refused(f"train cartpole {line} dense_mlp --network.observation-scaling running")
    assert running.endswith("running: is for --network.name mlp, and the network is dense_mlp")
    assert not Path("run").exists()


def test_a_way_to_explore_of_the_users_own_chooses_the_actions(example: Callable) -> None:
    example("own_explorer")
    chosen = "--exploration.name boltzmann --exploration.options final_temperature 0.1"
    assert main(f"train cartpole-q {SMALL} --environment.import own_explorer {chosen}".split()) == 0
    assert main(["evaluate", "run", "--episodes", "2"]) == 0
    config = RunFolder(Path("run")).read_config()
    policy = Policy(config, environment_spec(config.environment), environments=1000)
    policy.assign(policy.initial_parameters(), frames=0)
    values = policy.preferences(np.ones((1000, 4), np.float32))
    policy.assign(policy.initial_parameters(), frames=config.exploration.annealing_frames)
    # Those of a network that has not learned are nearly alike. ε-greedy actions would be the better one mostly.
    share = np.mean(policy.act(np.ones((1000, 4), np.float32)).actions)
    assert share == pytest.approx(1 / (1 + np.exp((values[0, 0] - values[0, 1]) / 0.1)), abs=0.05)


class Another:
    """A class that extends nothing."""


def test_nothing_takes_the_name_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same one may be entered again, where its module is imported again."""
    monkeypatch.setattr("shared.registry.NETWORKS", dict(NETWORKS))
    register = functools.partial(tributary.register_network, images=False)
    for _ in range(2):
        register("another", Another)
    with pytest.raises(ValueError, match="there is a network mlp already"):
        register("mlp", Another)
    for other in (lambda: None, type("Outer.Inner", (), {})):
        with pytest.raises(TypeError, match=r"another is .*: register a class at the top level of a module"):
            register("another", other)
    for unnamed in ("", None, 3):
        with pytest.raises(TypeError, match="and must be text"):
            register(unnamed, Another)


def test_classes_of_a_script_are_found_by_other_processes_when_a_setting_names_the_script(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shared.registry.NETWORKS", dict(NETWORKS))
    in_main = type("Other", (), {"__module__": "__main__"})
    tributary.register_network("other", in_main, images=False)
    with monkeypatch.context() as registered:
        registered.setitem(NETWORKS, "other", NetworkEntry("__main__", "Other", images=False))
        problem = "--network.name other: is of this script or notebook, which other processes cannot import"
        with pytest.raises(tributary.ConfigurationError, match=problem):
            resolve_request(TrainRequest("cartpole", {"network.name": "other"}))
    # Imported as a module, which settings name, it replaces the first one.
    tributary.register_network("other", Another, images=False)
    with pytest.raises(ValueError, match=f"already, in {__name__}"):
        tributary.register_network("other", in_main, images=False)


def normed(layer: keras.Layer) -> keras.Layer:
    return keras.layers.SpectralNormalization(layer, name="normed")


def of_model(features: bool = True, **changed: Any) -> type[KerasNetwork]:
    """A network of the user's with one hidden layer, which `changed` gives another name or other inputs."""

    class OfModel(KerasNetwork):
        def __init__(self, config, shape, heads, seed, mean=None):  # noqa: ARG002
            super().__init__(heads)
            inputs = keras.Input(changed.get("shape", shape))
            hidden = keras.layers.Dense(3, name=changed.get("name", "hidden"))
            x = changed.get("around", lambda layer: layer)(hidden)(inputs)
            outputs = [keras.layers.Dense(head.units, name=head.name)(x) for head in heads]
            self.model = keras.Model(inputs, [*outputs, x] if features else outputs)

    return OfModel


@pytest.mark.parametrize(
    ("section", "own", "line"),
    [
        ("method", Another, "cannot be made: TypeError"),
        ("exploration", Another, "cannot be made: TypeError"),
        ("network", Another, r"cannot be made: TypeError: Wrong of .* does not extend shared\.networks\.Network$"),
        ("network", of_model(name=3), r"cannot be made: .* \(test_examples\.py:\d+, in __init__\)$"),
        ("network", of_model(features=False), "its model has outputs .*; expected are, in float32, policy with 2 unit"),
        ("network", of_model(shape=(9,)), r"its model has inputs \[\(9,\)\]; observations are \(4,\)$"),
        # In another process it would have another name.
        ("network", of_model(name=None), r"its weight dense(_\d+)?/kernel has another name in each process"),
        ("network", of_model(name=None, around=normed), r"its weight normed/dense(_\d+)?/kernel has another name"),
    ],
)
def test_an_unusable_class_is_one_line(section: str, own: type, line: str, cartpole: RunConfig, monkeypatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "Wrong", own, raising=False)
    monkeypatch.setitem(METHODS, "wrong", MethodEntry(__name__, "Wrong", continuous_actions=False))
    monkeypatch.setitem(EXPLORERS, "wrong", Entry(__name__, "Wrong"))
    monkeypatch.setitem(NETWORKS, "wrong", NetworkEntry(__name__, "Wrong", images=False))
    config = replace(cartpole, **{section: replace(getattr(cartpole, section), name="wrong")})
    with pytest.raises(tributary.ConfigurationError, match=f"^--{section}.name wrong: {line}"):
        Policy(config, environment_spec(config.environment))


# These need further packages, and have tests of their own (trackers, sweeps).
ELSEWHERE = {"W&B", "sweep"}
INLINE = f"--executor inline --actors 1 {UNTIL_FRAMES}"
# Options that shorten a task, or raise the frames of a run that continues.
SHORT = {
    "evaluate": "--episodes 2",
    "resume": "--total-frames 1_200",
    "frame stack": f"{INLINE} --actor.environments 1 --actor.unroll-length 8 --total-frames 8",
    "masks": f"{INLINE} --total-frames 2_000",
}


def tasks() -> dict[str, str]:
    table = (EXAMPLES.parent / "coming-from.md").read_text().split("\n\n")[3]
    rows = re.findall(r"^\| ([^|]+) \| [^`|]*`([^`]+)`", table, re.M)
    return dict(rows)


@pytest.mark.usefixtures("working_folder")
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_each_task_is_done_by_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    quick = {"executor": "inline", "actors": 1, "stop_measure": "training", "evaluation.every_frames": 0}
    train = functools.partial(tributary.train, progress=False, settings=quick)
    names: dict[str, Any] = {
        "tributary": SimpleNamespace(train=train, load=tributary.load),
        "observation": np.zeros(4, np.float32),
    }
    found = tasks()
    assert len(found) == 14
    for task, code in found.items():
        if task in ELSEWHERE:
            continue
        if code.startswith("tributary "):
            default = f"{INLINE} --total-frames 600" if " train " in code else ""
            assert main([*shlex.split(code)[1:], *SHORT.get(task, default).split()]) == 0, task
        else:
            exec(code.replace("300_000", "600"), names)
    assert names["action"] in (0, 1)


def page(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def settings(page: ModuleType, method: MethodConfig) -> RunConfig:
    return RunConfig(
        environment=EnvironmentConfig(id="CartPole-v1", frame_skip=1, clip_rewards=False),
        network=NetworkConfig(name="mlp", hidden_sizes=(page.UNITS, page.UNITS)),
        optimizer=OptimizerConfig(
            learning_rate=page.LEARNING_RATE,
            schedule="constant",
            decay=page.DECAY,
            epsilon=page.EPSILON,
            max_gradient_norm=page.MAX_GRADIENT_NORM,
        ),
        actor=ActorConfig(environments=page.ENVIRONMENTS, unroll_length=page.UNROLL_LENGTH),
        method=method,
    )


def as_on_the_page(layout: ParameterLayout, flat: np.ndarray, heads: Sequence[str]) -> list[np.ndarray]:
    """A flat vector of the system as a page's list: the first head before the second, hidden layers before heads."""
    named = dict(zip(layout.names, layout.split(flat), strict=True))
    layers = [f"{head}{part}" for head in heads for part in ("_hidden1", "_hidden2", "")]
    return [named[f"{layer}/{kind}"] for layer in layers for kind in ("kernel", "bias")]


def largest_difference(ours: list[np.ndarray], theirs: list[tf.Tensor]) -> float:
    return max(float(np.abs(a - b.numpy()).max() / np.abs(a).max()) for a, b in zip(ours, theirs, strict=True))


def assert_same_updates(
    page: ModuleType, config: RunConfig, heads: Sequence[str], step: Callable, rollouts: list[Rollout]
) -> tuple[Learner, Any]:
    """The first 20 updates of the system and of a page are equal, of the same rollouts.

    `step` differentiates a rollout by the page's learner, applies the gradients, and returns them.
    """
    spec = environment_spec(config.environment)
    policy = Policy(config, spec)
    learner, actor = Learner(config, policy.layout, policy.initial_parameters()), Actor(config, spec, 0)
    start = as_on_the_page(policy.layout, policy.initial_parameters(), heads)
    assert [tuple(w.shape) for w in page.initial_weights(4, 2)] == [values.shape for values in start]
    shared = page.Learner([tf.Variable(values) for values in start])
    for _ in range(20):
        report = actor.run(learner.snapshot(), learner.target_snapshot())
        gradients = step(shared, rollouts.pop())
        assert largest_difference(as_on_the_page(policy.layout, report.gradient, heads), gradients) < 1e-4
        learner.submit(report)
    weights = as_on_the_page(policy.layout, learner.snapshot().parameters, heads)
    assert largest_difference(weights, shared.weights) < 1e-4
    assert max(float(np.abs(a - b).max()) for a, b in zip(weights, start, strict=True)) > 1e-3
    actor.close()
    return learner, shared


def test_updates_of_the_page_are_those_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    a3c = page("one_page")
    method = MethodConfig(discount=a3c.DISCOUNT, value_cost=a3c.VALUE_COST, entropy_cost=a3c.ENTROPY_COST)

    def step(learner: Any, rollout: Rollout) -> list[tf.Tensor]:
        gradients = a3c.gradient(learner.snapshot(), a3c.Rollout(*rollout[:5]))
        learner.apply(gradients)
        return gradients

    config = settings(a3c, method)
    learner, shared = assert_same_updates(a3c, config, ("policy", "value"), step, recording(monkeypatch))
    assert learner.version == shared.version == 20


@pytest.mark.parametrize("name", ["q_learning", "sarsa"])
def test_updates_of_the_page_of_q_learning_are_those_of_the_system(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Across several updates of the target network."""
    q = page("one_page_q")
    monkeypatch.setattr(q, "TARGET_INTERVAL", 300)

    def step(learner: Any, rollout: Rollout) -> list[tf.Tensor]:
        gradients = q.gradient(*learner.snapshot(), q.Rollout(*rollout[:6]), name == "sarsa")
        learner.apply(gradients, int(rollout.mask.sum()))
        return gradients

    method = MethodConfig(
        name=name, discount=q.DISCOUNT, reduction="sum", target_interval_agent_steps=q.TARGET_INTERVAL
    )
    config = settings(q, method)
    learner, shared = assert_same_updates(q, config, ("action_values",), step, recording(monkeypatch))
    assert learner.target_updates >= 4
    assert learner.account.ledger.sampled == shared.steps


@pytest.mark.parametrize(("name", "lines"), [("one_page", 150), ("one_page_q", 165)])
def test_a_page_is_a_page(name: str, lines: int) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= lines
