"""One machine: limits of control groups, no streams, no home folder, TensorFlow beside other programs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launch import machine
from launch.machine import ResourceLimits, resource_limits

ROOT = Path(__file__).parents[2]
GIB = 2**30


def processes(folder: Path, groups: list[str], mounts: list[tuple[str, str, str]], files: dict[str, str]) -> str:
    """A folder in the place of /proc, and the files of control groups: name relative to `folder` to content.

    `mounts` have the root within the hierarchy, the mount point, and type and options.
    """
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content + "\n")
    own = folder / "proc" / "self"
    own.mkdir(parents=True)
    (own / "cgroup").write_text("\n".join(groups) + "\n")
    lines = [
        f"30 25 0:26 {root} {str(folder / point).replace(' ', chr(92) + '040')} rw,nosuid shared:4 - {kind}"
        for root, point, kind in mounts
    ]
    (own / "mountinfo").write_text("\n".join(["21 1 8:1 / / rw - ext4 /dev/sda1 rw", *lines]) + "\n")
    return str(folder / "proc")


V2 = "cgroup2 cgroup2 rw"
CPU, MEMORY = "cgroup cgroup rw,cpu,cpuacct", "cgroup cgroup rw,memory"
UNLIMITED = str(2**63 - 4096)
CASES = {
    "version 2": (
        ["0::/job"],
        [("/", "cg", V2)],
        {"cg/job/cpu.max": "150000 100000", "cg/job/memory.max": str(2 * GIB)},
        ResourceLimits(1.5, 2 * GIB),
    ),
    "version 2 without limits": (
        ["0::/job"],
        [("/", "cg", V2)],
        {"cg/job/cpu.max": "max 100000", "cg/job/memory.max": "max"},
        ResourceLimits(None, None),
    ),
    "version 2 with lower limits of parents": (
        ["0::/slice/pod/container"],
        [("/", "cg", V2)],
        {
            "cg/slice/cpu.max": "max 100000",
            "cg/slice/memory.max": str(GIB),
            "cg/slice/pod/cpu.max": "50000 100000",
            "cg/slice/pod/memory.max": "max",
            "cg/slice/pod/container/cpu.max": "400000 100000",
            "cg/slice/pod/container/memory.max": str(8 * GIB),
        },
        ResourceLimits(0.5, GIB),
    ),
    "version 1 in nested groups": (
        ["4:memory:/docker/7f/inner", "2:cpu,cpuacct:/docker/7f", "0::/"],
        [("/", "my cg/cpu", CPU), ("/", "my cg/memory", MEMORY), ("/", "my cg/unified", V2)],
        {
            "my cg/cpu/docker/7f/cpu.cfs_quota_us": "50000",
            "my cg/cpu/docker/7f/cpu.cfs_period_us": "100000",
            "my cg/cpu/cpu.cfs_quota_us": "-1",
            "my cg/cpu/cpu.cfs_period_us": "100000",
            "my cg/memory/docker/7f/inner/memory.limit_in_bytes": UNLIMITED,
            "my cg/memory/docker/7f/memory.limit_in_bytes": "1600000000",
        },
        ResourceLimits(0.5, 1_600_000_000),
    ),
    # As in a container: its group is the root of the mount.
    "version 1 from within": (
        ["4:memory:/docker/7f", "2:cpu,cpuacct:/docker/7f/in"],
        [("/docker/7f", "cpu", CPU), ("/docker/7f", "memory", MEMORY)],
        {
            "cpu/in/cpu.cfs_quota_us": "250000",
            "cpu/in/cpu.cfs_period_us": "100000",
            "memory/memory.limit_in_bytes": str(4 * GIB),
        },
        ResourceLimits(2.5, 4 * GIB),
    ),
    "a path on the host that the container does not see": (
        ["0::/../other/job"],
        [("/", "cg", V2)],
        {"cg/cpu.max": "200000 100000", "cg/memory.max": str(3 * GIB)},
        ResourceLimits(2.0, 3 * GIB),
    ),
    "files that are not readable as numbers": (
        ["0::/job"],
        [("/", "cg", V2)],
        {"cg/job/cpu.max": "", "cg/job/memory.max": "much"},
        ResourceLimits(None, None),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_lowest_limit_of_a_process_and_its_groups_counts(case: str, tmp_path: Path) -> None:
    groups, mounts, files, limits = CASES[case]
    assert resource_limits(processes(tmp_path, groups, mounts, files)) == limits


@pytest.mark.parametrize(("quota", "cores"), [("50000", 1), ("250000", 2), ("max", 4), ("1600000", 4)])
def test_a_quota_and_a_memory_limit_are_all_that_a_run_plans_with(
    quota: str, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"cg/cpu.max": f"{quota} 100000", "cg/memory.max": str(GIB)}
    monkeypatch.setattr(machine, "PROCESSES", processes(tmp_path, ["0::/"], [("/", "cg", V2)], files))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)), raising=False)
    assert (machine.usable_cores(), machine.machine_bytes()) == (cores, GIB)


def run_python(script: str, *, shell: str = "", environment: dict[str, str] | None = None) -> str:
    """Run a script with the project on the path. `shell` are redirections. Returns what was printed."""
    ended = subprocess.run(
        ["sh", "-c", f'exec "$0" -c "$1" {shell}', sys.executable, script],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_a_process_without_standard_streams_prints_into_no_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    script = f"""
import os, sys
from launch.output import exit_code

def command():
    with open({str(file)!r}, "w", encoding="utf-8") as written:
        written.write("kept")
        written.flush()
        print("printed")
        print("printed", file=sys.stderr)
        sys.stdout.flush()
        os.write(1, b"by a library")
        os.system("echo by a child; echo by a child >&2")
    return 0

sys.exit(exit_code(command))
"""
    run_python(script, shell="<&- >&- 2>&-")
    assert file.read_text() == "kept"


# Stands for both packages: the real ones take seconds to import.
FAKE = """
import os, sys, types
backend = os.environ.get("KERAS_BACKEND", "tensorflow")
config = types.SimpleNamespace(
    backend=lambda: backend, set_floatx=lambda _: None, set_image_data_format=lambda _: None,
    set_visible_devices=lambda *_: changes.append("devices"),
    threading=types.SimpleNamespace(
        set_intra_op_parallelism_threads=lambda _: changes.append("threads"),
        set_inter_op_parallelism_threads=lambda _: changes.append("threads"),
    ),
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


def test_keras_has_tensorflow_below_it_though_other_programs_set_another_backend(fakes: dict[str, str]) -> None:
    script = """
import os
from launch.tensorflow_setup import prepare_tensorflow, share_tensorflow
{}
import keras
print(keras.config.backend(), os.environ["KERAS_BACKEND"])
"""
    jax = fakes | {"KERAS_BACKEND": "jax"}
    assert run_python(script.format("prepare_tensorflow(1, gpu=False)"), environment=jax) == "tensorflow tensorflow\n"
    # A program of the user keeps its variable.
    assert run_python(script.format("share_tensorflow()"), environment=jax) == "tensorflow jax\n"


def test_a_module_that_imports_tensorflow_prints_none_of_its_notices(
    fakes: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    notices = 'os.write(2, b"I0000 00:00:1 a.cc:1] oneDNN\\nW0000 a warning\\n")\n'
    (tmp_path / "tensorflow.py").write_text("import os\n" + notices)
    (tmp_path / "network.py").write_text("import tensorflow\n")
    script = "from launch.output import exit_code\nexit_code(lambda: __import__('network') and 0)"
    run_python(script, shell=f"2> {tmp_path}/stderr", environment=fakes)
    assert (tmp_path / "stderr").read_text() == "W0000 a warning\n"
    assert not capfd.readouterr().err


def test_another_backend_that_is_imported_already_is_one_line(fakes: dict[str, str]) -> None:
    script = """
import keras
from launch.tensorflow_setup import share_tensorflow
try:
    share_tensorflow()
except Exception as error:
    print(type(error).__name__, error)
"""
    line = run_python(script, environment=fakes | {"KERAS_BACKEND": "torch"})
    assert line.startswith("ConfigurationError Keras has the backend torch in this process")
    assert line.count("\n") == 1


def test_a_program_that_has_imported_tensorflow_keeps_it_as_it_was(fakes: dict[str, str]) -> None:
    script = """
import os, tensorflow
from launch.tensorflow_setup import share_tensorflow
before = dict(os.environ)
share_tensorflow()
print(tensorflow.changes, before == dict(os.environ))
"""
    assert run_python(script, environment=fakes | {"TF_CPP_MIN_LOG_LEVEL": "1"}) == "[] True\n"


@pytest.mark.parametrize("home", ["/no/such/folder", "~"])
def test_a_user_without_a_home_folder_gets_one_for_the_moment(home: str, tmp_path: Path) -> None:
    script = """
import os
from launch.output import exit_code
exit_code(lambda: print(os.path.expanduser("~")) or 0)
assert os.access(os.path.expanduser("~"), os.W_OK)
"""
    made = run_python(script, environment={"HOME": home, "TMPDIR": str(tmp_path)}).strip()
    assert Path(made).parent == tmp_path
    assert not list(tmp_path.iterdir())
