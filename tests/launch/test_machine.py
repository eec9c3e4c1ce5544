"""One machine: limits of control groups, no streams, no home folder, TensorFlow beside other programs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launch import machine

ROOT = Path(__file__).parents[2]
GIB = 2**30


def limit_cores_and_memory(
    folder: Path, patch: pytest.MonkeyPatch, groups: list[str], files: dict[str, str | int]
) -> None:
    """Four cores, and in `folder` what Linux shows of control groups: name of a file to its content."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{content}\n")
    (folder / "proc" / "self").mkdir(parents=True)
    (folder / "proc" / "self" / "cgroup").write_text("\n".join(groups) + "\n")
    patch.setattr(machine, "PROCESSES", str(folder / "proc"))
    patch.setattr(machine, "CONTROL_GROUPS", str(folder))
    patch.setattr(os, "sched_getaffinity", lambda _: set(range(4)), raising=False)


# Groups of the process, files, cores and gibibytes; None: all of the machine.
CASES = {
    "version 2": (["0::/job"], {"job/cpu.max": "250000 100000", "job/memory.max": 2 * GIB}, 2, 2),
    "less than a core": (["0::/job"], {"job/cpu.max": "50000 100000"}, 1, None),
    "more than there are": (["0::/job"], {"job/cpu.max": "1600000 100000", "job/memory.max": 2**60}, 4, None),
    "no limits": (["0::/job"], {"job/cpu.max": "max 100000", "job/memory.max": "max"}, 4, None),
    "lower limits of parents": (
        ["0::/slice/pod/container"],
        {
            "slice/cpu.max": "max 100000",
            "slice/memory.max": GIB,
            "slice/pod/cpu.max": "200000 100000",
            "slice/pod/memory.max": "max",
            "slice/pod/container/cpu.max": "300000 100000",
            "slice/pod/container/memory.max": 8 * GIB,
        },
        2,
        1,
    ),
    "version 1 in nested groups": (
        ["4:memory:/docker/7f/inner", "2:cpu,cpuacct:/docker/7f", "0::/"],
        {
            "cpu,cpuacct/docker/7f/cpu.cfs_quota_us": 300_000,
            "cpu,cpuacct/docker/7f/cpu.cfs_period_us": 100_000,
            "cpu,cpuacct/cpu.cfs_quota_us": -1,
            "cpu,cpuacct/cpu.cfs_period_us": 100_000,
            "memory/docker/7f/inner/memory.limit_in_bytes": 2**63 - 4096,
            "memory/docker/7f/memory.limit_in_bytes": GIB,
        },
        3,
        1,
    ),
    "the path on the host, which a container does not see": (
        ["0::/../other/job", "4:memory:/docker/7f"],
        {"cpu.max": "200000 100000", "memory/memory.limit_in_bytes": GIB},
        2,
        1,
    ),
    "files that are not readable as numbers": (["0::/job"], {"job/cpu.max": "", "job/memory.max": "much"}, 4, None),
}


@pytest.mark.parametrize("case", CASES)
def test_the_lowest_limit_of_a_process_and_its_groups_counts(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups, files, cores, gibibytes = CASES[case]
    limit_cores_and_memory(tmp_path, monkeypatch, groups, files)
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert machine.usable_cores() == cores
    assert machine.machine_bytes() == (physical if gibibytes is None else gibibytes * GIB)


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
