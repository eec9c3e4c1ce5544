"""`tributary export RUN`: a Keras model and a SavedModel, or ONNX, which need no installation of Tributary."""

import itertools
import logging
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console

from actors.environments import EnvironmentSpec, adapter_of
from actors.environments.spaces import json_bounds
from launch.files import make_folder, write_json
from launch.output import print_line
from launch.provenance import provenance
from launch.results.evaluate import WeightsArguments, describe_protocol, load_policy, run_to_play
from launch.run.folder import RunFolder
from shared.config import RunConfig
from shared.errors import setting_error
from shared.registry import NETWORKS

# Opset 18 is of October 2023; tf2onnx 1.17 writes no later one.
_ONNX_OPSET = 18
_MASK = (
    "{key} of {environment}: whether each action is allowed, for several choices one after the other; the inputs are a "
    "dict of the observations (observations, where they have no names) and of action_mask; logits and values of other "
    "actions are -1e9"
)
_MEMORY = (
    "the inputs are a dict of the observations (observations, where they have no names) and of hidden and cell, "
    "float32 [N, units]; the outputs contain the next ones, which are inputs of the next call. Both are "
    "zeros at the start of an episode"
)
_SCALING = {
    "bounds": "a uniform draw from their bounds has mean 0 and deviation 1",
    "running": "minus their mean in training, divided by their deviation",
}
_ACTIONS = {
    "continuous": (
        "policy is the mean m, with spherical noise without its last number; the action is low + (m + 1) / 2 * (high - "
        "low) where both bounds are finite, else m; clipped to each finite bound, in the dtype of the space, rounded "
        "where that has integers"
    ),
    "several discrete": (
        "policy: the logits of all choices, concatenated; sample from those of each choice, or take the largest; the "
        "action is the space's start plus the choices, in its shape and dtype"
    ),
    "discrete": (
        "policy: logits to sample from, or the largest; action_values: the largest; the action is the space's start "
        "plus its index"
    ),
}


@dataclass(frozen=True, kw_only=True)
class ExportArguments(WeightsArguments):
    """Write a run's network as model.keras and as a SavedModel, or as model.onnx; model.json describes inputs and
    outputs."""

    output: Path | None = None
    """New folder to write. Default: export-update-N, or export-onnx-update-N, in the run folder or in runs/zoo-NAME,
    which is replaced."""
    format: Literal["keras", "onnx"] = "keras"
    """keras: model.keras and saved_model. onnx: model.onnx, which needs the extra onnx."""
    json: Path | None = None
    """File to write model.json to as well."""


def export(arguments: ExportArguments) -> None:
    if arguments.output is not None and arguments.output.exists():
        raise setting_error("output", arguments.output, "exists; name another folder")
    onnx = arguments.format == "onnx"
    for package in ("tf2onnx", "onnx") if onnx else ():
        if find_spec(package) is None:
            raise setting_error("format", "onnx", f"needs {package}: pip install 'tributary-rl[onnx]'")
    folder = RunFolder(arguments.run)
    config, spec = run_to_play(folder)
    policy, snapshot, source = load_policy(folder, config, spec, arguments.weights)
    output = arguments.output or folder.output(f"export-{'onnx-' * onnx}update-{snapshot.version}")
    model = policy.network.as_keras()
    inputs = dict(model.input) if isinstance(model.input, dict) else {"observations": model.input}
    tensors = {name: {"shape": [None, *x.shape[1:]], "dtype": str(x.dtype)} for name, x in inputs.items()}
    description = {
        "inputs": {**_inputs(config, spec), "tensors": tensors},
        **({"memory": {"units": list(units), "meaning": _MEMORY}} if (units := policy.network.state_units) else {}),
        "outputs": {_output(name, inputs, onnx): list(tensor.shape[1:]) for name, tensor in model.output.items()},
        "action": _action(spec),
        "weights": source,
        "version": snapshot.version,
        "seed": config.seed,
        "protocol": describe_protocol(config.environment, "training", spec),
        **provenance(),
    }
    shutil.rmtree(output, ignore_errors=True)
    make_folder(output, "output")
    if onnx:
        _write_onnx(model, inputs, output / "model.onnx")
    else:
        model.save(output / "model.keras")
        model.export(output / "saved_model", verbose=False)
    write_json(output / "model.json", description)
    print_line(Console(), f"exported {source}: {output}; model.json describes inputs and outputs")
    write_json(arguments.json, description)


def _output(name: str, inputs: Collection[str], onnx: bool) -> str:
    """The name of an output in the file: one of an ONNX graph is that of an input or of an output."""
    return f"next_{name}" if onnx and name in inputs else name


def _write_onnx(model: Any, inputs: dict[str, Any], file: Path) -> None:
    """Write a Keras model with the inputs and outputs by their names, and any number of observations."""
    import tensorflow as tf
    import tf2onnx

    logging.getLogger("tf2onnx").setLevel(logging.CRITICAL)
    signature = [tf.TensorSpec((None, *x.shape[1:]), x.dtype, name=name) for name, x in inputs.items()]

    def call(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        arguments = dict(zip(inputs, tensors, strict=True))
        output = model(arguments if isinstance(model.input, dict) else arguments["observations"])
        return {_output(name, inputs, onnx=True): tensor for name, tensor in output.items()}

    graph = tf.function(call, input_signature=signature, autograph=False)
    tf2onnx.convert.from_function(graph, signature, opset=_ONNX_OPSET, output_path=str(file))


def _inputs(config: RunConfig, spec: EnvironmentSpec) -> dict[str, Any]:
    """What the inputs are. Bounds are those of numbers."""
    inputs: dict[str, Any] = {"meaning": adapter_of(config.environment).observation_meaning(spec)}
    if spec.parts is None:
        inputs |= {"shape": [None, *spec.observation_shape], "dtype": spec.observation_dtype}
    if spec.observation_bounds is not None and spec.observation_bounds[0]:
        inputs["low"], inputs["high"] = (json_bounds(np.array(bound)) for bound in spec.observation_bounds)
    if spec.numbers:
        # The first and the last position of each part of a vector.
        ends = itertools.accumulate(size for _, size in spec.numbers)
        inputs["positions"] = {name: [end - n, end - 1] for (name, n), end in zip(spec.numbers, ends, strict=True)}
    if spec.masked:
        meaning = _MASK.format(key=config.environment.action_mask, environment=config.environment.id)
        inputs["action_mask"] = {"shape": [None, spec.actions.size], "dtype": "bool", "meaning": meaning}
    if not NETWORKS[config.network.name].is_own:
        centred = "minus their mean in random play, times 4 / 255"
        images = "divided by 255" if spec.observation_mean is None else centred
        numbers = _SCALING.get(config.network.observation_scaling)
        inputs["in_the_file"] = ({"images": images} if spec.images else {}) | ({"numbers": numbers} if numbers else {})
    return inputs


def _action(spec: EnvironmentSpec) -> dict[str, Any]:
    action: dict[str, Any] = {"kind": "discrete", "names": list(spec.action_set)}
    if spec.actions.continuous:
        action = {"kind": "continuous"}
    elif spec.actions.choices:
        action = {"kind": "several discrete", "choices": list(spec.actions.choices)}
    space = spec.action_space or {"dtype": "int64", "shape": [], "start": 0}
    return action | {"meaning": _ACTIONS[action["kind"]], "space": space}
