"""Slices in other processes, seen from the learner's: the same bits, and no slice goes on that has missed a call."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray
from sliced import SIZE, START, contents, gradient, numbered, sliced_learner, small_blocks

from launch.loop.worker_pool import LearnerLostError
from launch.on_ray import slices as module
from launch.on_ray.slices import SliceProcesses
from learner.learner import Learner
from learner.slices import Slices
from shared.blocks import slice_bounds
from shared.config import LearnerConfig, MethodConfig, OptimizerConfig, RunConfig, TransferConfig
from shared.errors import ConfigurationError
from shared.norm import BlockwiseNorm
from shared.types import GradientPieces
from shared.wire import WirePrecision, decode, encode

RMSPROP = OptimizerConfig(learning_rate=0.01, epsilon=1e-3, max_gradient_norm=2.5)


class Reference:
    """What a call has given or raised, as Ray's references stand for it; arguments that are one are resolved."""

    def __init__(self, function: Any, arguments: Sequence[Any]) -> None:
        self.error: Exception | None = None
        try:
            values = [get(argument) if isinstance(argument, Reference) else argument for argument in arguments]
            self.value = function(*values)
        except Exception as error:
            self.error = error


def get(reference: Reference, timeout: float | None = None) -> Any:
    del timeout
    if isinstance(reference.error, ray.exceptions.RayError):
        raise reference.error
    if reference.error is not None:
        raise ray.exceptions.RayTaskError("call", f"raised: {reference.error}", reference.error)
    return reference.value


class Process:
    """A handle on an object in this process."""

    def __init__(self, made: Any) -> None:
        self._made, self.dead = made, False

    def __getattr__(self, name: str) -> Any:
        def remote(*arguments: Any) -> Reference:
            if self.dead:
                died = ray.exceptions.RayActorError(error_msg="The actor died. Worker exit detail: killed by SIGKILL")
                return Reference(lambda: (_ for _ in ()).throw(died), ())
            return Reference(getattr(self._made, name), arguments)

        return SimpleNamespace(remote=remote)


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[Process]:
    """Those that `SliceProcesses` starts, none of which is one."""
    small_blocks(monkeypatch)
    made: list[Process] = []

    def remote(**_: Any) -> Any:
        def wrap(kind: type) -> Any:
            def start(*arguments: Any, **options: Any) -> Process:
                made.append(Process(kind(*arguments, **options)))
                return made[-1]

            return SimpleNamespace(remote=start)

        return wrap

    stand_in = SimpleNamespace(remote=remote, get=get, wait=lambda refs, **_: (refs, []), cluster_resources=dict)
    monkeypatch.setattr(module, "ray", stand_in)
    return made


def started(config: RunConfig, **learner: Any) -> tuple[Learner, SliceProcesses]:
    config = replace(config, learner=LearnerConfig(**learner))
    slices = SliceProcesses(config, None)
    return sliced_learner(config, slices.start(START), **learner), slices


def submit(learner: Learner, precision: WirePrecision, first: int, last: int) -> list[str]:
    """Gradients as actors send them; the outcomes, and the weights as actors get them."""
    seen, norms = [], BlockwiseNorm(SIZE)
    for sequence in range(first, last):
        sent = gradient(sequence)
        if sequence % 7 == 3:
            sent[5] = np.nan
        encoded = encode(sent, precision)
        report = numbered(sequence, learner.version, gradient=decode(encoded))
        snapshot, target = learner.snapshot(), learner.target_snapshot()
        assert target is not None
        if snapshot.pieces:
            assert snapshot.parameters.size == target.parameters.size == 0
            bounds = slice_bounds(SIZE, len(snapshot.pieces))
            pieces = GradientPieces(
                tuple(encoded[begin:end] for begin, end in bounds), norms.block_norms(decode(encoded))
            )
            report = report._replace(gradient=np.empty(0, np.float32), pieces=pieces)
            weights = np.concatenate([get(piece) for piece in snapshot.pieces])
            kept = np.concatenate([get(piece) for piece in target.pieces])
        else:
            weights, kept = encode(snapshot.parameters, precision), target.parameters
        seen.append((weights.tobytes(), kept.tobytes()))
        seen.append(repr(learner.submit(report)._replace(report=None, seconds=0.0)))
    return seen


def q_learning(config: RunConfig, precision: WirePrecision = "float32") -> RunConfig:
    method = MethodConfig(name="q_learning", target_interval_agent_steps=25)
    return replace(config, method=method, optimizer=RMSPROP, transfer=TransferConfig(precision=precision))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("gradients_per_update", [1, 3])
def test_processes_make_what_one_piece_makes_to_the_bit(
    cartpole: RunConfig, processes: list[Process], precision: WirePrecision, gradients_per_update: int
) -> None:
    config = q_learning(cartpole, precision)
    whole = sliced_learner(config, gradients_per_update=gradients_per_update)
    cut, slices = started(config, gradients_per_update=gradients_per_update, shards=3)
    assert len(processes) == 3
    expected = submit(whole, precision, 1, 30)
    assert "non_finite" in str(expected)
    assert submit(cut, precision, 1, 30) == expected
    slices.check()
    assert contents(cut) == contents(whole)
    np.testing.assert_array_equal(cut.parameters(), whole.parameters())


@pytest.mark.usefixtures("processes")
def test_what_is_written_or_restored_is_in_the_weights_that_actors_get(cartpole: RunConfig) -> None:
    config = replace(cartpole, optimizer=RMSPROP, learner=LearnerConfig(shards=2))
    parts, norms = SliceProcesses(config, None).start(START), BlockwiseNorm(SIZE)
    slices = Slices(START, config.learner, RMSPROP, parts, target=False, elsewhere=True)

    def weights() -> np.ndarray:
        return np.concatenate([get(piece) for piece in slices.pieces()])

    slices.push(GradientPieces((gradient(1)[:48], gradient(1)[48:]), norms.block_norms(gradient(1))), 0.01)
    updated = weights()
    assert not np.array_equal(updated, START)
    # Across the border between the two.
    slices.write(slice(40, 60), np.full(20, 3.0, np.float32))
    updated[40:60] = 3.0
    np.testing.assert_array_equal(weights(), updated)
    np.testing.assert_array_equal(slices.read(), updated)
    slices.variables["parameters"].assign(START)
    slices.scatter()
    np.testing.assert_array_equal(weights(), START)


@pytest.mark.usefixtures("processes")
def test_a_slice_that_has_missed_a_call_does_not_go_on(cartpole: RunConfig) -> None:
    learner, slices = started(q_learning(cartpole), shards=2)
    submit(learner, "float32", 1, 3)
    slices.check()
    norms = BlockwiseNorm(SIZE)
    lost = Reference(lambda: 1 / 0, ())
    pieces = GradientPieces((gradient(4)[:48], lost), norms.block_norms(gradient(4)))
    learner.submit(numbered(4, learner.version, gradient=np.empty(0, np.float32), pieces=pieces))
    with pytest.raises(ray.exceptions.RayError):
        get(learner.snapshot().pieces[1])
    for call in (slices.check, learner.gather, learner.parameters):
        with pytest.raises(LearnerLostError, match=r"slice 2 of 2: .*it has missed call"):
            call()


def test_a_slice_that_dies_is_named(cartpole: RunConfig, processes: list[Process]) -> None:
    learner, slices = started(q_learning(cartpole), shards=2)
    submit(learner, "float32", 1, 3)
    processes[0].dead = True
    for call in (slices.check, learner.gather):
        with pytest.raises(LearnerLostError, match="slice 1 of 2: its process died: killed by SIGKILL"):
            call()


def test_a_slice_that_hangs_is_named(cartpole: RunConfig, processes: list[Process]) -> None:
    learner, slices = started(q_learning(cartpole), shards=2)

    def hangs(number: int) -> None:
        raise ray.exceptions.GetTimeoutError(f"call {number}")

    processes[1]._made.check = hangs
    with pytest.raises(LearnerLostError, match="slice 2 of 2: no answer for 180 s, it hangs"):
        slices.check()
    assert learner.version == 0


def test_a_gradient_in_pieces_of_another_network_is_refused(cartpole: RunConfig, processes: list[Process]) -> None:
    learner, _ = started(q_learning(cartpole), shards=2)
    pieces = GradientPieces((gradient(1)[:48], gradient(1)[48:]), np.zeros(5, np.float32))
    assert learner.submit(numbered(1, gradient=np.empty(0, np.float32), pieces=pieces)).dropped == "wrong_layout"
    assert len(processes) == 2


def test_more_slices_than_blocks_start_nothing(cartpole: RunConfig, processes: list[Process]) -> None:
    with pytest.raises(ConfigurationError, match="use 6 or fewer"):
        started(q_learning(cartpole), shards=7)
    assert not processes
