"""Slurm as a script finds it in a pod: its variables, and the commands `srun` and `scontrol show hostnames`."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

from avactl.workbench.importer.slurm.script import SlurmScript
from avactl.workbench.importer.slurm.sizes import Sizes

HEADER = "# What Slurm sets and does, as pods have it."
NODE_LISTS = ("SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_STEP_NODELIST")
PER_TASK = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID")
"""0 in the script itself, which Slurm runs on the first node."""
ADDRESS = """\
address_of() {
  until getent hosts "$1" > /dev/null; do sleep 1; done
  getent hosts "$1" | cut -d ' ' -f 1
}
"""
SCONTROL = """\
scontrol() { tr , '\\n' <<< "${3:-$SLURM_JOB_NODELIST}"; }
"""

_WAIT = """\
  for id in "${pids[@]}"; do
    wait "$id" || ((code = $? > code ? $? : code))
  done
"""
_WAIT_OR_KILL = """\
  while ((${#pids[@]})); do
    for id in "${!pids[@]}"; do
      kill -0 "${pids[id]}" 2> /dev/null && continue
      wait "${pids[id]}" || { code=$?; kill "${pids[@]}" 2> /dev/null; break 2; }
      unset "pids[id]"
    done
    sleep 0.2
  done
"""
"""Ends the other tasks if one fails. `wait -n` of bash does not tell of children that ended before it."""


def job_number(name: str) -> int:
    """Return the number that takes the place of a job's, the same in all pods and whenever the job runs."""
    return zlib.crc32(name.encode()) % 9_000_000 + 1_000_000


def open_constants(script: SlurmScript) -> dict[str, str]:
    """Return the variables by which steps name their sizes, as far as directives tell them."""
    nodes = (script.get("nodes") or "").partition("-")[0]
    nodes = nodes if nodes.isdigit() else "1"
    given = {
        "SLURM_NNODES": nodes,
        "SLURM_JOB_NUM_NODES": nodes,
        "SLURM_NTASKS": script.get("ntasks"),
        "SLURM_NPROCS": script.get("ntasks"),
        "SLURM_NTASKS_PER_NODE": script.get("ntasks-per-node", "tasks-per-node"),
        "SLURM_CPUS_PER_TASK": script.get("cpus-per-task"),
    }
    return {name: value for name, value in given.items() if value}


def constant_variables(
    sizes: Sizes, name: str, title: str, element: int | None, array: Mapping[str, int]
) -> dict[str, str]:
    """Return the variables of Slurm that are the same in all pods. `title` is the job's name in Slurm.

    Variables that follow an option exist only with the option, as in Slurm.
    """
    nodes, number = sizes.nodes, str(job_number(name))
    suffix = f"(x{nodes})" if nodes > 1 else ""
    found = {
        "SLURM_JOB_ID": number,
        "SLURM_JOBID": number,
        "SLURM_JOB_NAME": title,
        "SLURM_NNODES": str(nodes),
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_NTASKS": str(sizes.tasks),
        "SLURM_NPROCS": str(sizes.tasks),
        "SLURM_TASKS_PER_NODE": f"{sizes.per_node}{suffix}",
        "SLURM_CPUS_ON_NODE": str(sizes.cpus),
        "SLURM_JOB_CPUS_PER_NODE": f"{sizes.cpus}{suffix}",
        "SLURM_STEP_NUM_NODES": str(nodes),
        "SLURM_STEP_NUM_TASKS": str(sizes.tasks),
        **({"SLURM_GPUS_ON_NODE": str(sizes.gpus)} if sizes.gpus else {}),
        **({"SLURM_JOB_GPUS": ",".join(map(str, range(sizes.gpus)))} if sizes.gpus else {}),
        **sizes.memory_variables,
        **dict.fromkeys(PER_TASK, "0"),
    }
    for option, variable in (
        ("tasks-per-node", "SLURM_NTASKS_PER_NODE"),
        ("ntasks-per-node", "SLURM_NTASKS_PER_NODE"),
        ("cpus-per-task", "SLURM_CPUS_PER_TASK"),
        ("cpus-per-gpu", "SLURM_CPUS_PER_GPU"),
        ("gpus", "SLURM_GPUS"),
        ("gpus-per-node", "SLURM_GPUS_PER_NODE"),
        ("gpus-per-task", "SLURM_GPUS_PER_TASK"),
        ("partition", "SLURM_JOB_PARTITION"),
        ("account", "SLURM_JOB_ACCOUNT"),
        ("qos", "SLURM_JOB_QOS"),
    ):
        value = sizes.get(option)
        if value is not None:
            found[variable] = value
    if element is not None:
        found |= {
            "SLURM_ARRAY_TASK_ID": str(element),
            "SLURM_ARRAY_JOB_ID": str(job_number(name.rpartition("-")[0])),
            **{f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in array.items()},
        }
    return found


def node_list(nodes: int, has_hosts: bool, by_mpi: bool) -> list[str]:
    """Return the lines that set SLURM_JOB_NODELIST: host names with commas, which Slurm would fold."""
    if by_mpi:
        hosts = "${OMPI_MCA_orte_default_hostfile:-$PRTE_MCA_prte_default_hostfile}"
        return [f'export SLURM_JOB_NODELIST=$(cut -d " " -f 1 "{hosts}" | paste -sd ,)']
    if nodes == 1:
        return ["export SLURM_JOB_NODELIST=$HOSTNAME"]
    if has_hosts:
        return ["export SLURM_JOB_NODELIST=$AVACTL_WORKER_HOSTS"]
    return [
        f'printf -v SLURM_JOB_NODELIST "${{MASTER_ADDR/-0./-%s.}}," {{0..{nodes - 1}}}',
        "export SLURM_JOB_NODELIST=${SLURM_JOB_NODELIST%,}",
    ]


def srun_function(nodes: int, gpus_per_task: int, kill: bool, traps: bool, slots: int) -> str:
    """Return the function `srun COUNT PROGRAM`, which starts tasks on its own machine.

    It ends with the highest exit code; a signal to the pod reaches the tasks. With `kill`, a task that fails ends the
    others. `slots`: steps that run at a time; 0 for any number.
    """
    rank = "AVACTL_INDEX * count + id" if nodes > 1 else "id"
    node = "$AVACTL_INDEX" if nodes > 1 else "0"
    gpus = ""
    if gpus_per_task:
        gpus = f" \\\n      CUDA_VISIBLE_DEVICES={_task_gpus('id', gpus_per_task)}"
    trap = "" if traps else "  trap 'kill \"${pids[@]}\" 2> /dev/null' TERM\n"
    wait = _WAIT_OR_KILL if kill else _WAIT
    tasks = f"$((count * {nodes}))" if nodes > 1 else "$count"
    before, take, give = "", "", ""
    if slots:
        before = f"""\
steps=$(mktemp -u) && mkfifo "$steps" && exec {{steps}}<> "$steps"
printf %{slots}s >&"$steps" # a byte for each of the steps that may run at a time
"""
        take, give = '  read -rN 1 -u "$steps"\n', '  printf " " >&"$steps"\n'
    return f"""\
{before}srun() {{ # srun COUNT PROGRAM…: the tasks of this machine
  local id count=$1 code=0 pids=()
  shift
{take}  for ((id = 0; id < count; id++)); do
    SLURM_PROCID=$(({rank})) SLURM_LOCALID=$id SLURM_NODEID={node} \\
      SLURM_NTASKS={tasks} SLURM_NPROCS={tasks} SLURM_STEP_NUM_TASKS={tasks} \\
      SLURMD_NODENAME=$(uname -n){gpus} "$@" <&0 &
    pids+=($!)
  done
{trap}{wait}  wait "${{pids[@]}}" 2> /dev/null || true
{give}  return "$code"
}}
"""


def mpi_function(per_node: int, gpus_per_task: int, exports: Sequence[str], counted: bool) -> str:
    """Return the function `srun PROGRAM`, which starts the ranks by Open MPI and passes variables on.

    `counted`: it is `srun COUNT PROGRAM`, of a job on one machine.
    """
    passed = "".join(f" -x {name}" for name in exports)
    gpus = f"\n    export CUDA_VISIBLE_DEVICES={_task_gpus('SLURM_LOCALID', gpus_per_task)}" if gpus_per_task else ""
    first = "  local count=$1\n  shift\n" if counted else ""
    passed = ' -np "$count"' if counted else passed
    return f"""\
srun() {{
{first}  mpirun{passed} bash -c 'export SLURM_PROCID=$OMPI_COMM_WORLD_RANK SLURM_LOCALID=$OMPI_COMM_WORLD_LOCAL_RANK
    export SLURM_NODEID=$((SLURM_PROCID / {per_node})) SLURM_NTASKS=$OMPI_COMM_WORLD_SIZE
    export SLURM_NPROCS=$SLURM_NTASKS SLURM_STEP_NUM_TASKS=$SLURM_NTASKS SLURMD_NODENAME=$(uname -n){gpus}
    exec "$@"' bash "$@"
}}
"""


def _task_gpus(local_id: str, count: int) -> str:
    """Return the shell's text of a task's devices."""
    if count == 1:
        return f"${local_id}"
    return f"$(seq -s , $(({local_id} * {count})) $(({local_id} * {count} + {count - 1})))"
