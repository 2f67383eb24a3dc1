"""A small Slurm: `sbatch` and `srun` on one machine, and programs that only record how they were started."""

from __future__ import annotations

import os
import re
import shlex
import stat
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).parent
PROGRAMS = (
    "python",
    "torchrun",
    "accelerate",
    "deepspeed",
    "solver",
    "install.sh",
    "nvidia-smi",
    "rsync",
    "java",
    "uv",
)
_RECORDER = """\
#!/bin/bash
line=${0##*/}
for word in "$@"; do line+=" $(printf %q "$word")"; done
for name in $RECORDED; do line+=" | $name=${!name-(unset)}"; done
line+=" | in ${PWD##*/}"
if [[ " $* " == *" --stdin "* ]]; then line+=" | stdin: $(head -c 40)"; fi
printf '%s\\n' "$line" >> "$RECORD"
echo "output of ${0##*/}"
for word in "$@"; do if [[ $word == --fail=* ]]; then exit "${word#*=}"; fi; done
"""
_MPIRUN = """\
#!/bin/bash
while [[ $1 == -* ]]; do
  case $1 in -np|-n) count=$2; shift 2 ;; -x|--bind-to|--map-by|--hostfile) shift 2 ;; *) shift ;; esac
done
file=${OMPI_MCA_orte_default_hostfile-/dev/null}
count=${count:-$(grep -o '[0-9]*$' "$file" || echo "$SLURM_NTASKS")}
for ((rank = 0; rank < count; rank++)); do
  OMPI_COMM_WORLD_RANK=$rank OMPI_COMM_WORLD_LOCAL_RANK=$((rank % ${RANKS_PER_NODE:-1000})) \\
    OMPI_COMM_WORLD_SIZE=$count "$@" &
done
wait
"""
"""Starts ranks without MPI."""
_PARALLEL = """\
#!/bin/bash
while [[ $1 == -* ]]; do shift 2; done
words=()
while [[ $1 != ::: ]]; do words+=("$1"); shift; done
shift
for each in "$@"; do bash -c "${words[*]//\\{\\}/$each}"; done
"""
_APPTAINER = """\
#!/bin/bash
shift
while [[ $1 == -* ]]; do
  case $1 in
    --env=*) export "${1#*=}"; shift ;;
    --env) export "$2"; shift 2 ;;
    --bind|-B|--pwd) shift 2 ;;
    *) shift ;;
  esac
done
shift
for name in ${!APPTAINERENV_*}; do export "${name#APPTAINERENV_}=${!name}"; done
exec "$@"
"""
_SHIFTER = """\
#!/bin/bash
while [[ $1 == -* ]]; do
  case $1 in --env) export "$2"; shift 2 ;; -V) shift 2 ;; *) shift ;; esac
done
exec "$@"
"""
_CONDA = """\
#!/bin/bash
shift 3
exec "$@"
"""
JOB = "4242"
_OPTIONS = {
    "-N": "nodes",
    "--nodes": "nodes",
    "-n": "ntasks",
    "--ntasks": "ntasks",
    "--ntasks-per-node": "per_node",
    "-c": "cpus",
    "--cpus-per-task": "cpus",
    "--gres": "gres",
    "--gpus-per-node": "gpus",
    "--gpus-per-task": "gpus_per_task",
    "-p": "partition",
    "--partition": "partition",
    "-J": "name",
    "--job-name": "name",
    "-D": "directory",
    "--chdir": "directory",
    "--export": "export",
    "--mem": "mem",
    "--gpu-bind": "bind",
}


def install_programs(directory: Path) -> None:
    """Write the programs that record their words, and variables named in RECORDED, to the file RECORD."""
    directory.mkdir(parents=True)
    for name in PROGRAMS:
        _write_program(directory / name, _RECORDER)
    _write_program(directory / "mpirun", _MPIRUN)
    _write_program(directory / "parallel", _PARALLEL)


def install_slurm(directory: Path) -> None:
    """Write srun, scontrol and hostname, which know the job by its environment."""
    directory.mkdir(parents=True)
    _write_program(directory / "srun", f'#!/bin/sh\nexec {sys.executable} {HERE / "srun.py"} "$@"\n')
    _write_program(directory / "scontrol", "#!/bin/bash\ntr , '\\n' <<< \"${3:-$SLURM_JOB_NODELIST}\"\n")
    _write_program(directory / "uname", "#!/bin/sh\nexec hostname\n")
    for name in ("squeue", "seff", "sacct"):
        _write_program(directory / name, "#!/bin/sh\necho known of the job\n")
    _write_program(directory / "apptainer", _APPTAINER)
    _write_program(directory / "shifter", _SHIFTER)
    _write_program(directory / "conda", _CONDA)
    _write_program(directory / "nproc", '#!/bin/sh\necho "$SLURM_CPUS_ON_NODE"\n')
    _write_program(directory / "hostname", '#!/bin/sh\necho "${SLURMD_NODENAME:-node1}"\n')


def read_options(script: str) -> dict[str, str]:
    """Return the options of a script's directives."""
    words = [word for line in re.findall(r"^#SBATCH (.*)$", script, re.MULTILINE) for word in shlex.split(line)]
    found: dict[str, str] = {}
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if word[:2] in _OPTIONS and len(word) > 2:
            name, equals, value = word[:2], "=", word[2:]
        if name in _OPTIONS:
            found[_OPTIONS[name]] = value if equals else words.pop(0)
    return found


def sbatch(script: Path, directory: Path, path: Iterable[Path], variables: dict[str, str]) -> int:
    """Run a script as the first node of its allocation does; return its exit code."""
    given = read_options(script.read_text())
    nodes = int(given.get("nodes") or int(given.get("ntasks", "1")) // int(given.get("per_node", "1000")) or 1)
    tasks = int(given.get("ntasks", int(given.get("per_node", "1")) * nodes))
    gpus = int((given.get("gres") or given.get("gpus") or "0").rpartition(":")[2])
    environment = {
        "PATH": os.pathsep.join([*map(str, path), os.environ["PATH"]]),
        "HOME": os.environ["HOME"],
        "LC_ALL": "C.UTF-8",
        "SLURM_JOB_ID": JOB,
        "SLURM_JOBID": JOB,
        "SLURM_JOB_NAME": given.get("name", script.name),
        "SLURM_NNODES": str(nodes),
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_NTASKS": str(tasks),
        "SLURM_NPROCS": str(tasks),
        "SLURM_JOB_NODELIST": ",".join(f"node{index + 1}" for index in range(nodes)),
        "SLURM_NODELIST": ",".join(f"node{index + 1}" for index in range(nodes)),
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "0",
        "SLURM_GPUS_ON_NODE": str(gpus),
        "SLURM_CPUS_ON_NODE": str(int(given.get("cpus", "1")) * tasks // nodes),
        "SLURM_SUBMIT_DIR": str(directory),
        "TMPDIR": "/tmp",
        **({"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(gpus)))} if gpus else {}),
        "SLURMD_NODENAME": "node1",
        "HOSTNAME": "node1",
        **({"SLURM_NTASKS_PER_NODE": given["per_node"]} if "per_node" in given else {}),
        **({"SLURM_CPUS_PER_TASK": given["cpus"]} if "cpus" in given else {}),
        **({"SLURM_MEM_PER_NODE": str(int(given["mem"][:-1]) * 1024)} if given.get("mem", "").endswith("G") else {}),
        **({"SLURM_JOB_PARTITION": given["partition"]} if "partition" in given else {}),
        **({"GPU_BIND": given["bind"]} if "bind" in given else {}),
        **({"GPUS_PER_TASK": given["gpus_per_task"]} if "gpus_per_task" in given else {}),
        **dict(each.split("=", 1) for each in given.get("export", "").split(",") if "=" in each),
        **variables,
    }
    where = directory / given.get("directory", ".")
    return subprocess.run(
        [*_interpreter(script), str(script)], cwd=where, env=environment, check=False, capture_output=True, timeout=60
    ).returncode


def _interpreter(script: Path) -> list[str]:
    first = script.read_text().partition("\n")[0]
    return shlex.split(first[2:]) if first.startswith("#!") else ["bash"]


def _write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
