"""The weights of another run that a run starts from: its folder keeps them, for the learner wherever it starts."""

from dataclasses import fields
from typing import Any, NamedTuple

from actors.environments import EnvironmentSpec, environment_spec
from launch.machine.tensorflow_process import prepare_tensorflow
from launch.run.experience import agent_steps_learned
from launch.run.folder import RunFolder
from launch.run.weights import load_weights, read_weights, write_weights
from shared.config import RunConfig
from shared.errors import setting_error
from shared.layout import ParameterLayout
from shared.types import Float32Array, WeightSnapshot

# The same weights can be computed with in either.
_MAY_DIFFER = ("precision",)


class FirstWeights(NamedTuple):
    """What a run starts from. `run` and `source` say it in words; `spec` has the mean that the network subtracts.

    `agent_steps` are those of that run, and of what it started from.
    """

    run: str
    source: str
    agent_steps: int
    snapshot: WeightSnapshot
    layout: ParameterLayout
    spec: EnvironmentSpec

    @property
    def told(self) -> dict[str, Any]:
        """What the manifest of the run that starts says of them."""
        return {"run": self.run, "weights": self.source, "agent_steps": self.agent_steps}

    def write(self, folder: RunFolder) -> None:
        """Keep them in the folder of the run that starts."""
        write_weights(folder.first_weights, self.snapshot, self.layout, self.source)


def weights_to_start_from(
    config: RunConfig, spec: EnvironmentSpec, other: RunFolder, *, trust_imports: bool = False
) -> FirstWeights:
    """The best weights of another run, for a new one with these settings.

    Raises:
        ConfigurationError: the other run has none or has another network; or see `check_imports`.
    """
    # The modules of the new run are the user's choice already.
    modules = config.environment.modules
    before = other.read_config("start_from", trust_imports=trust_imports, named_modules=modules)
    for field in fields(before.network):
        was, now = getattr(before.network, field.name), getattr(config.network, field.name)
        if was != now and field.name not in _MAY_DIFFER:
            raise setting_error(f"network.{field.name}", now, f"{other.name} was trained with {was}; leave it so")
    trained = _in_and_out(environment_spec(before.environment))
    if trained != _in_and_out(spec):
        raise setting_error(
            "environment.id",
            config.environment.id,
            f"has {_in_and_out(spec)}, and {other.name} was trained with {trained}; start from another run",
        )
    spec = other.with_observation_mean(config, spec)
    prepare_tensorflow(1, gpu=False)
    from actors.policy import Policy

    layout = Policy(config, spec).layout
    snapshot, source = load_weights(other, "auto", layout)
    return FirstWeights(other.name, source, agent_steps_learned(other), snapshot, layout, spec)


def first_weights(folder: RunFolder, layout: ParameterLayout) -> Float32Array | None:
    """The weights float32 [P] that a run was given to start from; None if it was given none.

    Raises:
        ConfigurationError: they are damaged, or of another network.
    """
    return read_weights(folder.first_weights, layout)[0].parameters if folder.first_weights.is_file() else None


def _in_and_out(spec: EnvironmentSpec) -> str:
    actions = f"{spec.actions.size} of them"
    if spec.actions.shape:
        actions = (
            f"a vector of {spec.actions.size}" if spec.actions.continuous else f"choices among {spec.actions.choices}"
        )
    return f"observations of shape {spec.observation_shape} and as actions {actions}"
