"""`srun` of the small Slurm: starts its tasks one beside the other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

WITH_VALUE = frozenset(
    """
    -G -N -n -c -w -J -p -t -o -D -W --jobid --wait --mem --chdir --nodes --ntasks --ntasks-per-node --job-name
    --nodelist --cpus-per-task --export --mpi --cpu-bind --gres --gpus-per-node --gpus-per-task --gpu-bind
    --output --error -e
    """.split()  # noqa: SIM905 - a list of words reads better
)


def main() -> int:
    """Start the tasks, and return the highest exit code."""
    words = sys.argv[1:]
    given: dict[str, str] = {}
    while words and words[0].startswith("-"):
        word = words.pop(0)
        name, equals, value = word.replace("_bind", "-bind").partition("=")
        if word[:2] in WITH_VALUE and not word.startswith("--") and len(word) > 2:
            name, equals, value = word[:2], "=", word[2:]
        if not equals and name in WITH_VALUE:
            value = words.pop(0)
        given[name] = value
    hosts = os.environ["SLURM_JOB_NODELIST"].split(",")
    nodes = int(given.get("-N") or given.get("--nodes") or len(hosts))
    named = given.get("-w") or given.get("--nodelist")
    hosts = named.split(",") if named else hosts[:nodes]
    tasks = given.get("-n") or given.get("--ntasks")
    per_node = given.get("--ntasks-per-node") or os.environ.get("SLURM_NTASKS_PER_NODE")
    default = int(per_node) * nodes if per_node else int(os.environ["SLURM_NTASKS"]) if nodes >= len(hosts) else nodes
    count = int(tasks) if tasks else default
    per_host = count // len(hosts)
    exported = dict(each.split("=", 1) for each in given.get("--export", "").split(",") if "=" in each)
    text = None if sys.stdin.isatty() else sys.stdin.read()
    running = []
    for rank in range(count):
        task = {
            "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": str(rank % per_host),
            "SLURM_NODEID": str(rank // per_host),
            "SLURM_NTASKS": str(count),
            "SLURM_NPROCS": str(count),
            "SLURM_STEP_NUM_TASKS": str(count),
            "SLURMD_NODENAME": hosts[rank // per_host],
        }
        cpus = given.get("-c") or given.get("--cpus-per-task")
        task |= {"SLURM_CPUS_PER_TASK": cpus} if cpus else {}
        if os.environ.get("GPU_BIND") != "none" and (given.get("--gpus-per-task") or os.environ.get("GPUS_PER_TASK")):
            width = int(given.get("--gpus-per-task") or os.environ["GPUS_PER_TASK"])
            first = rank % per_host * width
            task["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(first, first + width)))
        kind, _, devices = given.get("--gpu-bind", "").partition(":")
        if kind == "map_gpu":
            task["CUDA_VISIBLE_DEVICES"] = devices.split(",")[rank % per_host]
        directory = given.get("-D") or given.get("--chdir") or "."
        name = given.get("-o") or given.get("--output") or "/dev/stdout"
        for pattern, variable in (("%t", "SLURM_PROCID"), ("%n", "SLURM_NODEID"), ("%N", "SLURMD_NODENAME")):
            name = name.replace(pattern, task[variable])
        with Path(name.replace("%j", os.environ["SLURM_JOB_ID"])).open("a") as output:
            process = subprocess.Popen(
                words,
                cwd=directory,
                env={**os.environ, **exported, **task},
                stdin=subprocess.PIPE,
                stdout=output,
                text=True,
            )
        assert process.stdin is not None
        if text:
            process.stdin.write(text)
        process.stdin.close()
        running.append(process)
    return max(process.wait() for process in running)


if __name__ == "__main__":
    sys.exit(main())
