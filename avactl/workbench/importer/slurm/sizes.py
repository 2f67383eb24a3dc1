"""Nodes and tasks of a Slurm job, and what each node gives to it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from math import ceil

from avactl.base.quantity import format_quantity, whole_units
from avactl.workbench.importer.gpus import gpu_model, known_gpu_model
from avactl.workbench.importer.slurm.script import Directive

_MACHINE_GPUS = 8
"""GPUs of a machine, where Slurm chooses the number of nodes."""
_MEMORY_OPTIONS = ("mem", "mem-per-cpu", "mem-per-gpu")
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class LeftOut(Exception):  # noqa: N818 - the reason, which the report says
    """A script that no spec runs as Slurm does."""


class Sizes:
    """Nodes, and what each of them gives to the job. `note(line, name, why, remedy)` lists an assumption.

    Raises LeftOut for sizes that pods of one kind do not have.
    """

    def __init__(self, options: Sequence[Directive], note: Callable[[int, str, str, str], None]) -> None:
        self._options, self._note = options, note
        for each in options:
            told = self.get("ntasks", "ntasks-per-node", "tasks-per-node") is not None
            if each.name in ("ntasks-per-socket", "ntasks-per-core") and not told:
                raise LeftOut(f"line {each.line}: `--{each.name}` leaves the number of tasks to Slurm")
        self._read_nodes()
        if self.tasks % self.nodes:
            raise LeftOut(f"{self.tasks} tasks on {self.nodes} nodes are not as many on each of them")
        self.per_node = self.tasks // self.nodes
        self.gpus, self.model = self._read_gpus()
        self.per_task = self._number("cpus-per-task") or 1
        per_gpu = self._number("cpus-per-gpu")
        self.cpus = per_gpu * self.gpus if per_gpu and self.gpus else self.per_task * self.per_node
        self.memory = self._read_memory()

    def get(self, *names: str) -> str | None:
        """Return the last value of an option, or None."""
        return next((each.value for each in reversed(self._options) if each.name in names), None)

    def _line(self, name: str) -> int:
        return next((each.line for each in reversed(self._options) if each.name == name), 1)

    def _number(self, *names: str) -> int:
        """Return the value of an option, at least 1; 0 without the option. Raises LeftOut."""
        value = self.get(*names)
        if value is None:
            return 0
        if not re.fullmatch(r"[1-9]\d{0,5}", value):
            raise LeftOut(f"line {self._line(names[0])}: `--{names[0]}={value[:20]}` is no number")
        return int(value)

    def _read_nodes(self) -> None:
        least, _, most = (self.get("nodes") or "").partition("-")
        for each in (least, most):
            if each and not re.fullmatch(r"[1-9]\d{0,5}", each):
                raise LeftOut(f"line {self._line('nodes')}: `--nodes={self.get('nodes')}` is no number")
        tasks, per_node = self._number("ntasks"), self._number("ntasks-per-node", "tasks-per-node")
        self.bound = self._number("ntasks-per-gpu")
        """GPUs of each task, by the number of tasks of each GPU; 0 for all."""
        gpus = self._count(self.get("gpus") or "")
        if self.bound:
            if self.bound > 1 or not gpus or tasks not in (0, gpus):
                raise LeftOut(
                    f"line {self._line('ntasks-per-gpu')}: `--ntasks-per-gpu` leaves the number of tasks to Slurm"
                )
            tasks = gpus
        self.nodes = int(least or 0)
        if most and most != least:
            self._note(self._line("nodes"), "nodes", f"the number of workers is fixed: {least}", "")
        if not self.nodes:
            self.nodes = self._assume_nodes(tasks, per_node)
        # With both, --ntasks counts, and --ntasks-per-node is a limit.
        self.tasks = tasks or (per_node or 1) * self.nodes

    def _assume_nodes(self, tasks: int, per_node: int) -> int:
        if tasks and per_node:
            return ceil(tasks / per_node)
        gpus = self._count(self.get("gpus") or "")
        gpus = max(gpus, self._count(self.get("gpus-per-task") or "") * tasks)
        nodes = max(1, ceil(gpus / _MACHINE_GPUS))
        if nodes > 1:
            name = "gpus" if self.get("gpus") else "gpus-per-task"
            self._note(
                self._line(name),
                name,
                f"the script leaves the number of nodes to Slurm; the spec says {nodes}, for machines with "
                f"{_MACHINE_GPUS} GPUs",
                "write `workers: {replicas: …, gpus: …}` as your machines are",
            )
        elif tasks > 1 and not gpus:
            self._note(
                self._line("ntasks"), "ntasks", "the script leaves the number of nodes to Slurm; the spec says 1", ""
            )
        return nodes

    def _count(self, text: str) -> int:
        """Return the number of `TYPE:NUMBER`; 0 for none."""
        last = text.split(",")[0].split("(")[0].rpartition(":")[2]
        return int(last) if re.fullmatch(r"\d{1,5}", last) else 0

    def _read_gpus(self) -> tuple[int, str]:
        model = known_gpu_model(self.get("constraint") or "")
        for name in ("gpus-per-node", "gres", "gpus", "gpus-per-task"):
            value = self.get(name)
            if value is None:
                continue
            each = [part.removeprefix("gres/").split("(")[0].split(":") for part in value.split(",")]
            parts = each[0]
            if name == "gres":
                found = [part for part in each if part[0] == "gpu"]
                for other in each:
                    if other[0] != "gpu":
                        self._note(self._line(name), name, f"{other[0][:40]} is no resource of pods", "")
                if len(found) != 1:
                    if found:
                        raise LeftOut(f"line {self._line(name)}: `--gres={value[:40]}` names several kinds of GPUs")
                    continue
                parts = found[0][1:] or ["1"]
            elif len(each) > 1:
                raise LeftOut(f"line {self._line(name)}: `--{name}={value[:40]}` names several kinds of GPUs")
            named = [each for each in parts if not each.isdigit()]
            if not re.fullmatch(r"\d{1,5}", parts[-1]) and len(named) != 1:
                raise LeftOut(f"line {self._line(name)}: `--{name}={value[:40]}` is no number of GPUs")
            count = int(parts[-1]) if parts[-1].isdigit() else 1
            kind = gpu_model(named[0]) if named else model
            if re.search(r"\dg\.\d+gb", value):
                raise LeftOut(f"line {self._line(name)}: `--{name}={value[:40]}` asks for slices of GPUs (MIG)")
            if name == "gpus":
                if count % self.nodes:
                    raise LeftOut(
                        f"line {self._line(name)}: {count} GPUs on {self.nodes} nodes are not as many on each"
                    )
                count //= self.nodes
            return count * (self.per_node if name == "gpus-per-task" else 1), kind
        return 0, model

    @property
    def memory_variables(self) -> dict[str, str]:
        """Variables of Slurm that follow an option of memory, in MiB."""
        amount = whole_units(self.memory) // 2**20
        parts = {"mem": ("NODE", 1), "mem-per-cpu": ("CPU", self.cpus), "mem-per-gpu": ("GPU", max(1, self.gpus))}
        return {f"SLURM_MEM_PER_{name}": str(amount // n) for each, (name, n) in parts.items() if self.get(each)}

    def _read_memory(self) -> str:
        for name, times in zip(_MEMORY_OPTIONS, (1, self.cpus, max(1, self.gpus)), strict=True):
            found = re.fullmatch(r"(\d{1,9})([KMGTkmgt]?)[Bb]?", self.get(name) or "")
            if found and int(found[1]):
                return format_quantity(Fraction(int(found[1]) * _UNITS[found[2].upper() or "M"] * times))
        least = max(2, 4 * self.cpus)
        unread = next((value for name in _MEMORY_OPTIONS if (value := self.get(name)) not in (None, "0")), None)
        said = "all memory of a node" if self.get("mem") == "0" else "no memory"
        if unread is not None:
            said = f"`{unread[:40]}` of memory, which is no size"
        self._note(
            self._line("mem"),
            "mem",
            f"the script asks for {said}; the spec says {least}Gi",
            "write what it needs",
        )
        return f"{least}Gi"
