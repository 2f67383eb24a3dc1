"""Options of sbatch and srun, and what becomes of them. Source: sbatch(1), srun(1), and README of NVIDIA/pyxis."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

LISTED_OPTIONS = {
    "partition": ("pools take the place of partitions", "set `workers: {pool: …}`"),
    "account": ("jobs count towards the quota of their team", ""),
    "qos": ("avactl has priority classes of its own", "set `priority: low`, `normal` or `high`"),
    "constraint": ("features of nodes are labels", "set `pod: {nodeSelector: …}`"),
    "output": ("`avactl logs` prints what the pods write", ""),
    "error": ("`avactl logs` prints what the pods write", ""),
    "exclusive": ("pods share machines", "request all CPUs and GPUs of a machine"),
    "dependency": ("the number of a job means nothing here", "name the jobs that must have succeeded: `after: [JOB]`"),
    "nodelist": ("the scheduler chooses the nodes", "set `workers: {pool: …}`"),
    "exclude": ("the scheduler chooses the nodes", "cordon broken machines"),
    "signal": (
        "no signal comes before the time limit; a preempted pod gets SIGTERM",
        "set `pod: {terminationGracePeriodSeconds: …}`",
    ),
    "switches": ("the number of switches", "name a level of the cluster's topology: `workers: {within: …}`"),
    "begin": ("a job starts as soon as it fits", ""),
    "no-requeue": ("a preempted job starts again", "write `preemptible: false`"),
    "mail-type": ("avactl sends no mail", ""),
    "mail-user": ("avactl sends no mail", ""),
    "licenses": ("avactl does not count licenses", ""),
    "reservation": ("a quota guarantees GPUs", ""),
    "hint": ("the kubelet places processes on CPUs", ""),
    "distribution": ("ranks are numbered machine by machine", ""),
    "propagate": ("limits of processes are those of the container", "write `ulimit` into the program"),
    "tmp": ("", "set `storage`"),
    "container-mounts": ("file systems of the cluster are not there", "mount them: `pod: {volumes: …}`"),
    "container-name": ("a pod begins with the files of its image", ""),
    "container-save": ("the files of a pod end with it", ""),
    "cpu-bind": ("the kubelet places processes on CPUs", ""),
    "mem-bind": ("the kubelet places processes on CPUs", ""),
    "gpu-bind": ("every process of a pod sees all of its GPUs", "set CUDA_VISIBLE_DEVICES"),
    "ntasks-per-core": ("the kubelet places processes on CPUs", ""),
    "ntasks-per-socket": ("the kubelet places processes on CPUs", ""),
    "threads-per-core": ("the kubelet places processes on CPUs", ""),
    "cpu-freq": ("avactl does not set the frequency of CPUs", ""),
    "network": ("the network is that of the pods", ""),
    "wait": ("a task that ends does not end the others", ""),
    "comment": ("avactl has no such option", ""),
    "module": ("the image has what the line loads", "build it into the image"),
    "volume": ("file systems of the cluster are not there", "mount them: `pod: {volumes: …}`"),
    "environment": ("the pods run the image of `--image job=…`", ""),
    "uenv": ("the pods run the image of `--image job=…`", ""),
    "container-entrypoint": ("a program takes the place of the image's entrypoint", ""),
}
"""Options that have no effect: the reason, and the remedy."""
SIZE_OPTIONS = (
    "nodes",
    "ntasks",
    "ntasks-per-node",
    "tasks-per-node",
    "cpus-per-task",
    "cpus-per-gpu",
    "gres",
    "gpus",
    "gpus-per-node",
    "gpus-per-task",
    "mem",
    "mem-per-cpu",
    "mem-per-gpu",
    "time",
)
"""Options that sizes of the spec follow."""
USED_OPTIONS = ("chdir", "container-image", "container-workdir", "export", "array", "job-name", "requeue")
"""Options whose meaning the spec has, or whose place it takes: a preempted job starts again."""
_CONTAINER_FLAGS = (
    "container-mount-home",
    "no-container-mount-home",
    "container-writable",
    "container-readonly",
    "container-remap-root",
    "no-container-remap-root",
    "no-container-entrypoint",
)
"""Flags of the plugin pyxis."""
SILENT_OPTIONS = (
    "parsable",
    "quiet",
    "verbose",
    "get-user-env",
    "open-mode",
    "wait-all-nodes",
    "label",
    "unbuffered",
    "jobid",
    "job-name",
    "overlap",
    "exact",
    "immediate",
    "no-kill",
    "view",
    "container-env",
    "msg-timeout",
    "slurmd-debug",
    *_CONTAINER_FLAGS,
)
"""Options about Slurm's own output and files: nothing of the program depends on them."""
FLAGS = (
    "exclusive",
    "requeue",
    "no-requeue",
    "overcommit",
    "hold",
    "parsable",
    "unbuffered",
    "label",
    "kill-on-bad-exit",
    "no-kill",
    "quiet",
    "verbose",
    "overlap",
    "exact",
    "contiguous",
    "oversubscribe",
    "get-user-env",
    "immediate",
    *_CONTAINER_FLAGS,
    "container-entrypoint",
    "multi-prog",
    "pty",
    "preserve-env",
    "spread-job",
    "test-only",
    "x11",
    "disable-status",
    "whole",
    "resv-ports",
    "propagate",
    "use-min-nodes",
)
"""Options whose value, if any, follows `=`."""
_SHORT_OPTIONS = {
    "J": "job-name",
    "N": "nodes",
    "n": "ntasks",
    "c": "cpus-per-task",
    "G": "gpus",
    "t": "time",
    "p": "partition",
    "A": "account",
    "q": "qos",
    "C": "constraint",
    "o": "output",
    "e": "error",
    "a": "array",
    "D": "chdir",
    "d": "dependency",
    "w": "nodelist",
    "x": "exclude",
    "i": "input",
    "L": "licenses",
    "B": "extra-node-info",
    "m": "distribution",
    "M": "clusters",
    "b": "begin",
    "S": "core-spec",
    "F": "nodefile",
}
"""Short options that take a value."""
_STEP_OPTIONS = _SHORT_OPTIONS | {"W": "wait", "r": "relative", "T": "threads"}
_STEP_FLAGS = {
    "l": "label",
    "u": "unbuffered",
    "K": "kill-on-bad-exit",
    "Q": "quiet",
    "v": "verbose",
    "I": "immediate",
    "k": "no-kill",
    "O": "overcommit",
    "s": "oversubscribe",
}
KNOWN_OPTIONS = frozenset(
    [*SIZE_OPTIONS, *USED_OPTIONS, *SILENT_OPTIONS, *LISTED_OPTIONS, *FLAGS, *_STEP_OPTIONS.values(), "mpi", "cpu-bind"]
)
MEANT_OPTIONS = frozenset([*SIZE_OPTIONS, *USED_OPTIONS, "mpi", "output", "error", "input", "multi-prog", "gpu-bind"])
"""Options of which a step has the meaning."""
Option = tuple[str, str]


def bound_gpus(value: str) -> int | None:
    """Return how many GPUs each task sees by `--gpu-bind`, from the first on; 0 for all; None if it does not tell."""
    kind, _, number = value.removeprefix("verbose,").partition(":")
    if kind == "none":
        return 0
    if kind == "per_task" or (kind, number) == ("single", "1"):
        return int(number) if number.isdigit() else None
    devices = number.split(",")
    return 1 if kind == "map_gpu" and devices == [str(index) for index in range(len(devices))] else None


def directive_options(words: Sequence[str]) -> Iterator[Option]:
    """Yield the options of a directive of sbatch; other words are skipped."""
    index = 0
    while index < len(words):
        used, found = _read_option(words, index, _SHORT_OPTIONS, {})
        yield from found
        index += used


def step_options(words: Sequence[str]) -> tuple[list[Option], int]:
    """Return the options of srun, and the index of the word that begins the program."""
    found: list[Option] = []
    index = 0
    while index < len(words) and words[index].startswith("-"):
        if words[index] == "--":
            return found, index + 1
        used, options = _read_option(words, index, _STEP_OPTIONS, _STEP_FLAGS)
        found += options
        index += used
    return found, index


def _read_option(
    words: Sequence[str], index: int, short: dict[str, str], flags: dict[str, str]
) -> tuple[int, list[Option]]:
    """Return how many words an option takes, and the option; several flags can stand in one word."""
    word = words[index]
    following = words[index + 1] if index + 1 < len(words) else ""
    if word.startswith("--"):
        name, equals, value = word[2:].partition("=")
        name = name.replace("_bind", "-bind")
        if equals or name in FLAGS or not following or following.startswith("-"):
            return 1, [(name, value)]
        return 2, [(name, following)]
    if not re.fullmatch(r"-[A-Za-z].*", word, re.DOTALL):
        return 1, []
    found: list[Option] = []
    for at, letter in enumerate(word[1:], 1):
        if letter in short:
            value = word[at + 1 :].removeprefix("=")
            return (1, [*found, (short[letter], value)]) if value else (2, [*found, (short[letter], following)])
        found.append((flags.get(letter, f"-{letter}"), ""))
    return 1, found
