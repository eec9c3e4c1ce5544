"""`tributary export RUN`: a Keras model and a SavedModel that act where Tributary is not installed."""

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from actors.environments import EnvironmentSpec, adapter_of, environment_spec
from launch.machine.tensorflow_process import prepare_tensorflow
from launch.output import EXIT_DONE, check_json_file, print_line, provenance, write_json
from launch.results.protocols import describe_protocol
from launch.run.folder import RunFolder
from launch.run.latest import RunPath
from launch.run.weights import WeightsName, load_weights
from shared.config import RunConfig
from shared.errors import setting_error


@dataclass(frozen=True)
class ExportArguments:
    """Write a run's network as model.keras and as a SavedModel, with model.json that says what goes in and out."""

    run: Annotated[RunPath, tyro.conf.Positional]
    """Folder of the run, latest: the newest below runs/, or zoo:NAME: an agent that ships."""
    output: Path | None = None
    """Folder to write, which must not exist yet. Default: export-update-N in the run folder, or in runs/zoo-NAME, which
    is replaced."""
    weights: WeightsName = "auto"
    """best: of the best evaluation, or without evaluations of the best training return. latest: of the last checkpoint.
    auto: best if there is one."""
    trust_imports: bool = False
    """As in tributary evaluate."""
    json: Path | None = None
    """File to write model.json to as well."""


def export(arguments: ExportArguments) -> int:
    """Run `tributary export`. Returns the exit code.

    Raises:
        ConfigurationError: the folder holds no run, no weights that fit it, or the output is in the way.
    """
    check_json_file(arguments.json)
    if arguments.output is not None and arguments.output.exists():
        raise setting_error("output", arguments.output, "exists; name another folder")
    folder = RunFolder(arguments.run)
    config = folder.read_config("run", trust_imports=arguments.trust_imports)
    spec = folder.with_observation_mean(config, environment_spec(config.environment))
    prepare_tensorflow(1, gpu=False)
    from actors.policy import Policy

    policy = Policy(config, spec, training=False)
    snapshot, source = load_weights(folder, arguments.weights, policy.layout)
    policy.assign(snapshot.parameters)
    output = arguments.output or folder.output(f"export-update-{snapshot.version}")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise setting_error("output", output, f"cannot be made: {error.strerror}") from error
    model = policy.network.as_keras()
    description = {
        "inputs": _inputs(config, spec),
        **({"memory": _memory(policy.network.state_units)} if policy.network.state_units else {}),
        "outputs": {name: list(tensor.shape[1:]) for name, tensor in model.output.items()},
        "action": _action(spec),
        "weights": source,
        "version": snapshot.version,
        "seed": config.seed,
        "protocol": describe_protocol(config.environment, "training", spec),
        **provenance(),
    }
    # Whole or not at all: it gets its name when everything is in it.
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".export-") as parent:
        part = Path(parent) / "export"
        part.mkdir()
        model.save(part / "model.keras")
        model.export(part / "saved_model", verbose=False)
        write_json(part / "model.json", description)
        if output.exists():
            shutil.rmtree(output)
        part.rename(output)
    console = Console()
    names = [image.name for image in spec.parts.images] if spec.parts else ["observations"]
    names += ["vector"] if spec.parts and spec.parts.numbers else []
    names += ["hidden", "cell"] if policy.network.state_units else []
    taken = f"{{{', '.join(names)}}}" if len(names) > 1 or spec.parts else names[0]
    for line in (
        f"exported {source}, in {output}:",
        f"  model.keras    keras.models.load_model(…)({taken})",
        f"  saved_model    loaded = tf.saved_model.load(…); loaded.serve({taken})",
        "  model.json     what goes in and out, and how it was made",
    ):
        print_line(console, line)
    if arguments.json is not None:
        write_json(arguments.json, description)
    return EXIT_DONE


def _inputs(config: RunConfig, spec: EnvironmentSpec) -> dict[str, Any]:
    meaning = adapter_of(config.environment).observation_meaning(spec)
    if spec.parts is None:
        return {"shape": [None, *spec.observation_shape], "dtype": spec.observation_dtype, "meaning": meaning}
    named = {image.name: {"shape": [None, *image.shape], "dtype": "uint8"} for image in spec.parts.images}
    if spec.parts.numbers:
        named["vector"] = {"shape": [None, spec.parts.vector_size], "dtype": "float32"}
    return {"named": named, "meaning": meaning}


def _memory(state_units: Sequence[int]) -> dict[str, Any]:
    return {
        "units": list(state_units),
        "meaning": (
            "the model takes a dict of its inputs, observations where they have no names, and of hidden and cell, "
            "float32 [N, units], and gives the next hidden and cell beside its heads: give them to the next call. "
            "Zeros at the start of an episode"
        ),
        "use": (
            "hidden = cell = zeros; at each step: output = model({'observations': observations, 'hidden': hidden, "
            "'cell': cell}); hidden, cell = output['hidden'], output['cell']; where an episode has ended, both are "
            "zeros again"
        ),
    }


def _action(spec: EnvironmentSpec) -> dict[str, Any]:
    if spec.actions.continuous:
        return {
            "kind": "continuous",
            "meaning": (
                "policy is the mean m; the action is low + (m + 1) / 2 * (high - low), clipped to [low, high]. Where "
                "the environment's bounds are not finite, the action is m"
            ),
        }
    if spec.actions.choices:
        return {
            "kind": "several discrete",
            "choices": list(spec.actions.choices),
            "meaning": (
                "policy: the logits of all choices side by side, so many of each; sample from each, or take the largest"
            ),
        }
    return {
        "kind": "discrete",
        "names": list(spec.action_set),
        "meaning": "policy: logits, to sample from or to take the largest of; action_values: take the largest",
    }
