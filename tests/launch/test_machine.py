"""One machine: limits, streams, a home folder, and TensorFlow beside other programs."""

import os
import platform
import sys
from pathlib import Path
from typing import Any

import pytest
from watched_processes import output_of

from launch import machine, tensorflow_setup
from launch.presets import PRESETS
from launch.settings.files import with_settings
from shared.config import RunConfig
from shared.errors import ConfigurationError

ROOT = Path(__file__).parents[2]
GIB = 2**30
X86_ONLY = pytest.mark.skipif(platform.machine() != "x86_64", reason="oneDNN is selected on x86 only")


def limit_cores_and_memory(folder: Path, patch: pytest.MonkeyPatch, groups: str, files: dict[str, str | int]) -> None:
    """Four cores, and in `folder` what Linux shows of control groups: name of a file to its content."""
    for name, content in {**({"proc/self/cgroup": groups} if groups else {}), **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{content}\n")
    patch.setattr(machine, "PROCESSES", str(folder / "proc"))
    patch.setattr(machine, "CONTROL_GROUPS", str(folder))
    patch.setattr(os, "sched_getaffinity", lambda _: set(range(4)), raising=False)


# Version 1: nested groups, a quota of -1 where there is none, and a path of the host that no container sees.
_VERSION_1 = {
    **{f"cpu,cpuacct/{at}cpu.cfs_period_us": 100_000 for at in ("", "docker/7f/")},
    "cpu,cpuacct/docker/7f/cpu.cfs_quota_us": 300_000,
    "cpu,cpuacct/cpu.cfs_quota_us": -1,
    "memory/memory.limit_in_bytes": GIB,
}
# Lower limits of parents, and higher ones of the machine.
_NESTED = {"pod/cpu.max": "250000 100000", "pod/container/cpu.max": "1600000 100000", "pod/memory.max": GIB}


@pytest.mark.parametrize(
    ("groups", "files", "cores", "gibibytes"),
    [
        ("0::/pod/container", _NESTED, 2, 1),
        ("4:memory:/docker/7f\n2:cpu,cpuacct:/docker/7f\n0::/", _VERSION_1, 3, 1),
        # No number; None: the memory of the machine.
        ("0::/job", {"job/cpu.max": "", "job/memory.max": "max"}, 4, None),
        # A kernel without control groups.
        ("", {}, 4, None),
    ],
)
def test_the_lowest_limit_counts(
    groups: str, files: Any, cores: int, gibibytes: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_cores_and_memory(tmp_path, monkeypatch, groups, files)
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert machine.usable_cores() == cores
    assert machine.machine_bytes() == (physical if gibibytes is None else gibibytes * GIB)


@pytest.mark.parametrize(("mebibytes", "actors"), [(2_048, 1), (900 + 4 * 950, 4)])
def test_actors_beside_the_learner(mebibytes: int, actors: int, tmp_path: Path, monkeypatch) -> None:
    limit_cores_and_memory(tmp_path, monkeypatch, "0::/job", {"job/memory.max": mebibytes * 2**20})
    assert machine.thread_budget(RunConfig(actors="1:8")).actors == min(actors, 3)
    with pytest.raises(ConfigurationError, match=f"--actors 9: there is room for {actors} actors of about 950 MiB"):
        machine.thread_budget(RunConfig(actors=9))


def test_cores_that_actors_leave_free() -> None:
    assert [machine.automatic_actors(cores) for cores in (1, 2, 3, 4, 16)] == [1, 2, 3, 3, 15]


def run_python(script: str, *, shell: str = "", environment: dict[str, str] | None = None) -> str:
    """Run a script with the project on the path. `shell` are redirections. Returns what was printed."""
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **(environment or {})}
    return output_of("sh", "-c", f'exec "$0" -c "$1" {shell}', sys.executable, script, env=variables)


# Stands for both packages: the real ones take seconds to import.
FAKE = """
import os, sys, types
backend = os.environ.get("KERAS_BACKEND", "tensorflow")
config = types.SimpleNamespace(
    backend=lambda: backend, set_floatx=lambda name: changes.append(name),
    set_image_data_format=lambda name: changes.append(name),
    set_visible_devices=lambda *_: changes.append("devices"),
    threading=types.SimpleNamespace(
        set_intra_op_parallelism_threads=lambda _: changes.append("threads"),
        set_inter_op_parallelism_threads=lambda count: changes.append(f"{count} between operations"),
    ),
    list_physical_devices=lambda kind: [kind],
    list_logical_devices=lambda kind: [],
    experimental=types.SimpleNamespace(set_memory_growth=lambda device, grows: changes.append(f"{device} {grows}")),
)
changes = []
zeros = list
"""


@pytest.fixture
def fakes(tmp_path: Path) -> dict[str, str]:
    """Environment variables with which Python imports the fakes."""
    for name in ("keras", "tensorflow"):
        (tmp_path / f"{name}.py").write_text(FAKE)
    return {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}


_REFUSED = """
import keras
try:
    share_tensorflow()
except Exception as error:
    print(type(error).__name__, str(error)[:43], str(error).count("\\n"))
"""
_UNCHANGED = """
import tensorflow
before = dict(os.environ)
share_tensorflow()
# By a method that plays.
prepare_tensorflow(gpu=False)
print(tensorflow.changes, before == dict(os.environ))
"""
_IN_TWO_THREADS = """
import threading, tensorflow
first, second = (threading.Thread(target=prepare_tensorflow, kwargs={"gpu": False}) for _ in range(2))
inside, before = threading.Event(), os.fstat(2).st_ino
# Within the set-up of each thread: the second one begins in the first one, and ends after it.
calls = iter([lambda: (second.start(), inside.wait(60)), lambda: (inside.set(), first.join())])
tensorflow.zeros = lambda _: next(calls)()
first.start(), first.join(), second.join()
print(os.fstat(2).st_ino == before)
"""
_STARTED = """
import os
from launch.tensorflow_setup import kernels, prepare_tensorflow
from shared.config import NetworkConfig
network = NetworkConfig(name="mlp")
named = kernels(network)
prepare_tensorflow(gpu=False, network=network)
print(os.environ["TF_ENABLE_ONEDNN_OPTS"], named.split()[0])
"""
_STARTS_ANOTHER = f"""
import sys
share_tensorflow()
print(os.environ["TF_ENABLE_ONEDNN_OPTS"], flush=True)
os.execv(sys.executable, [sys.executable, "-c", {_STARTED!r}])
"""
_BACKEND = "; import keras; print(keras.config.backend(), os.environ['KERAS_BACKEND'])"
_ON_A_GPU = """
prepare_tensorflow(gpu=True)
import tensorflow
print(os.environ["CUDA_VISIBLE_DEVICES"], os.environ["TF_GPU_THREAD_MODE"], tensorflow.changes)
"""
_IMPORTED_BEFORE = "import tensorflow; prepare_tensorflow(gpu=False); print(tensorflow.changes)"
_READS_WEIGHTS = "prepare_to_read_weights(PRESETS['cartpole'].config); "


@pytest.mark.parametrize(
    ("script", "variables", "printed"),
    [
        ("prepare_tensorflow(gpu=False)" + _BACKEND, {"KERAS_BACKEND": "jax"}, "tensorflow tensorflow"),
        ("share_tensorflow()" + _BACKEND, {"KERAS_BACKEND": "jax"}, "tensorflow tensorflow"),
        # The user's keras.json may have others.
        ("prepare_tensorflow(gpu=False); import keras; print(keras.changes)", {}, "['float32', 'channels_last']"),
        (_REFUSED, {"KERAS_BACKEND": "torch"}, "ConfigurationError Keras has the backend torch in this process 0"),
        # Before its devices are in use, its GPUs can still be hidden.
        (_IMPORTED_BEFORE, {}, "['devices', 'threads', '1 between operations']"),
        # Nor is anything changed for a program that has imported TensorFlow.
        (_UNCHANGED, {"TF_CPP_MIN_LOG_LEVEL": "1"}, "[] True"),
        # With one thread between operations a process on a GPU was seen to hang. It takes memory as it needs it.
        (_ON_A_GPU, {"CUDA_VISIBLE_DEVICES": "3"}, "3 gpu_private ['threads', '2 between operations', 'GPU True']"),
        (_IN_TWO_THREADS, {}, "True"),
        # Ray, which is started next, counts GPUs by this variable.
        (_READS_WEIGHTS + "print(os.environ.get('CUDA_VISIBLE_DEVICES'))", {}, "None"),
        (_READS_WEIGHTS + "print(os.environ['CUDA_VISIBLE_DEVICES'])", {"CUDA_VISIBLE_DEVICES": "0,1"}, "0,1"),
        pytest.param(_STARTS_ANOTHER, {}, "1\n0 Eigen", marks=X86_ONLY),
        pytest.param(_STARTS_ANOTHER, {"TF_ENABLE_ONEDNN_OPTS": "1"}, "1\n1 oneDNN", marks=X86_ONLY),
    ],
)
def test_the_set_up_of_a_process(script: str, variables: dict[str, str], printed: str, fakes: dict[str, str]) -> None:
    start = "import os\nfrom launch.presets import PRESETS\nfrom launch.tensorflow_setup import *\n"
    assert run_python(start + script, environment=fakes | variables) == printed + "\n"


@pytest.mark.parametrize("section", ["actor", "learner"])
def test_a_gpu_that_tensorflow_does_not_find_is_one_line(section: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = with_settings(PRESETS["pong"].config, {f"{section}.device": "gpu"})
    with pytest.raises(ConfigurationError, match=f"^--{section}.device gpu: TensorFlow finds no GPU here"):
        tensorflow_setup.prepare_for(section, config)
    monkeypatch.setenv(machine.PRETENDED_GPUS, "1")
    tensorflow_setup.prepare_for(section, config)


@pytest.mark.parametrize(
    "script",
    [
        "from launch.tensorflow_setup import share_tensorflow\nshare_tensorflow()",
        # As by a module of the user.
        "from shared.registry import import_modules\nimport_modules(['tensorflow'])",
    ],
)
def test_tensorflow_prints_no_notices(script: str, fakes: dict[str, str], tmp_path: Path, capfd) -> None:
    notices = 'os.write(2, b"I0000 00:00:1 a.cc:1] oneDNN\\nW0000 a warning\\n")\n'
    (tmp_path / "tensorflow.py").write_text(FAKE + notices)
    run_python(script, shell=f"2> {tmp_path}/stderr", environment=fakes)
    assert (tmp_path / "stderr").read_text() == "W0000 a warning\n"
    assert not capfd.readouterr().err


# Each kind of process that computes, up to its import of TensorFlow.
_COMPUTES = {
    "actor": "from launch.on_ray.actor_process import ActorProcess; ActorProcess(CONFIG, None, 0)",
    "learner": """
from launch.on_ray.learner_process import LearnerProcess, LearnerStart
LearnerProcess(LearnerStart(CONFIG, None, None, None, True, 0.0)).poll({})
""",
    "inline": "from launch.cli import main; main(['train', PRESET, '--executor', 'inline'])",
    "export": "from launch.cli import main; main(['export', f'zoo:{PRESET}'])",
    "evaluate": "from launch.cli import main; main(['evaluate', f'zoo:{PRESET}'])",
    "load": "from tributary_rl import load; load(f'zoo:{PRESET}')",
    "rehearsal": """
import pickle
from pathlib import Path
from launch.bench.rehearsal import main
Path("call").write_bytes(pickle.dumps(("record", CONFIG, None, 0, 1, None)))
main(Path("call"))
""",
    "a command whose module of the user imports TensorFlow": """
from launch.output import exit_code
exit_code(lambda: __import__("tensorflow"))
""",
}


# They import TensorFlow for a program of the user, whose GPUs stay.
_OF_THE_USER = ("load", "a command whose module of the user imports TensorFlow")


@pytest.mark.parametrize("kind", _COMPUTES)
def test_a_process_chooses_kernels_and_hides_gpus(kind: str, fakes: dict[str, str], working_folder: Path) -> None:
    """Ray hides no GPU from a process that gets none: each would reserve all of its memory."""
    seen = working_folder / "seen"
    variables = "os.environ['TF_ENABLE_ONEDNN_OPTS'], os.environ['CUDA_VISIBLE_DEVICES']"
    ends = f"import os\nprint({variables}, file=open({str(seen)!r}, 'w'), flush=True)\nos._exit(0)\n"
    (working_folder / "tensorflow.py").write_text(ends)
    gpus = "0" if kind in _OF_THE_USER else "-1"
    # These do not know the network, or leave it to others which one it is; the others compute an mlp.
    kernels = "1" if kind in _OF_THE_USER else "0"
    start = "from launch.presets import PRESETS; PRESET = 'cartpole'; CONFIG = PRESETS[PRESET].config\n"
    variables = {"HOME": str(working_folder), "CUDA_VISIBLE_DEVICES": "0"}
    run_python(start + _COMPUTES[kind], environment=fakes | variables)
    assert seen.read_text() == f"{kernels} {gpus}\n"
