"""Variables, files and host names that a former operator gives to the pods of a job, where a program reads them.

Sources: pkg/controller.v1 of kubeflow/training-operator, pkg/controller of kubeflow/mpi-operator, pkg/runtime of
kubeflow/trainer, pkg/controllers/job/plugins of volcano-sh/volcano.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from avactl.spec.documents.document import Path
from avactl.workbench.importer.model import ImportReader
from avactl.workbench.importer.shell import Program, SyntaxProblem
from avactl.workbench.importer.sources.pods import Pod

_SHELLS = ("sh", "bash", "dash", "ash", "zsh", "ksh")
_LAUNCHERS = re.compile(r"\b(torchrun|torch\.distributed|accelerate|deepspeed)\b")
_PYTHON = re.compile(r"python([23](\.[0-9]+)?)?").fullmatch
_MCA = ("-mca", "--mca", "-gmca", "--gmca")
_SSH_OPTION = re.compile(r"""--?g?mca\s+plm_rsh_\w+\s+(?:"[^"]*"|'[^']*'|\S+)\s*""")
_MAX_NAMED_PODS = 1000
"""Pods whose host names are looked for one by one."""
_NO_SSH = "mpirun needs no ssh: avactl starts its daemons in the workers"


class UnmetContract(Exception):  # noqa: N818 - the reason, which the report says
    """A program reads what only its former operator gives to the pods."""


class TextRule(NamedTuple):
    """A file or a host name."""

    pattern: str
    variable: str = ""
    """The variable of avactl with the same value."""
    text: str = ""
    """The same thing under avactl; `{index}` is the group of this name in the pattern."""


@dataclass
class Contract:
    """Variables, files and host names that an operator gives to the pods of a job."""

    operator: str
    variables: Mapping[str, str | None] = field(default_factory=dict)
    """Values under avactl, or `$NAME` for another variable; None: there is none."""
    rules: Sequence[TextRule] = ()
    always: bool = False
    """True if programs are expected to read the variables, whether or not the command names them."""

    def meet(self, reader: ImportReader, pod: Pod) -> None:
        """Change the command of a pod so that it reads the same values. Raises UnmetContract."""
        words = [*pod.command, *pod.args]
        shell = _shell_text(words)
        for index, word in enumerate(words):
            at = self._place(pod, index)
            words[index] = self._shell(reader, word, at, pod) if index == shell else self._word(reader, word, at, pod)
        pod.command, pod.args = words[: len(pod.command)], words[len(pod.command) :]
        if self.always:
            self._give_all(reader, pod, shell)
        for name, value in list(pod.env.items()):
            if isinstance(value, str):
                at = pod.paths["env", name]
                pod.env[name] = self._word(reader, value, at, pod)
                if pod.env[name] == f"$({name})":
                    reader.lose(at, "avactl sets the variable itself", "")
                    del pod.env[name]

    def _give_all(self, reader: ImportReader, pod: Pod, shell: int | None) -> None:
        """Let a program that starts no processes itself read the variables. Raises UnmetContract."""
        words = [*pod.command, *pod.args]
        text = " ".join(words)
        if _LAUNCHERS.search(text) or (words and shell is None and _PYTHON(words[0].rpartition("/")[2])):
            return  # torchrun sets them for each process
        if not pod.command:
            raise UnmetContract("its image's own command may read RANK and WORLD_SIZE: name it as `command`")
        exports = " ".join(f"{name}={value}" for name, value in self._wanted(pod).items() if value is not None)
        why = f"the program is given what {self.operator} sets: {exports}"
        at = self._place(pod, 0 if shell is None else shell)
        if shell is None:
            pod.command = ["sh", "-c", f'export {exports}; exec "$@"', "sh", *pod.command]
        else:
            group, index = (pod.command, shell) if shell < len(pod.command) else (pod.args, shell - len(pod.command))
            if group[index].startswith("export WORLD_SIZE=") and " RANK=" in group[index].partition("\n")[0]:
                return
            group[index] = f"export {exports}\n{group[index]}"
        reader.note(at, why, "")

    def _place(self, pod: Pod, index: int) -> Path:
        in_command = index < len(pod.command)
        path = pod.paths["command" if in_command else "args",]
        return (*path, index if in_command else index - len(pod.command))

    def _wanted(self, pod: Pod) -> dict[str, str | None]:
        """Return the variables that the pod does not set itself."""
        return {name: value for name, value in self.variables.items() if name not in pod.env}

    def _word(self, reader: ImportReader, word: str, at: Path, pod: Pod) -> str:
        """Return a word, in which Kubernetes replaces `$(NAME)`."""
        made = self._apply_rules(reader, word, at, "$({})")
        for name, value in self._wanted(pod).items():
            if f"$({name})" in made:
                self._require(reader, name, value, at)
                own = f"$({value[1:]})" if value and value.startswith("$") else value or ""
                made = made.replace(f"$({name})", own)
                reader.note(at, f"{own} takes the place of $({name}), which {self.operator} sets", "")
        return made

    def _shell(self, reader: ImportReader, text: str, at: Path, pod: Pod) -> str:
        """Return a program of the shell, with the variables that it reads before it."""
        made = self._apply_rules(reader, text, at, "${}")
        names = self._wanted(pod)
        mentioned = [name for name in names if re.search(rf"\b{name}\b", made)]
        if not mentioned:
            return made
        try:
            program = Program(made)
        except SyntaxProblem as problem:
            raise UnmetContract(
                f"{reader.given.span(*at)}: {problem.reason}, in a program that names {mentioned[0]}"
            ) from None
        read = {each.name for each in program.reads if each.name not in program.assignments}
        inner = "\n".join(string for string, _ in program.strings)
        exports = []
        for name in mentioned:
            if name in read or (name not in program.assignments and re.search(rf"\${{?{name}\b", inner)):
                value = names[name]
                self._require(reader, name, value, at)
                exports.append(f"{name}={value}")
        if not exports:
            return made
        names_text = ", ".join(each.partition("=")[0] for each in exports)
        reader.note(at, f"avactl has no {names_text}: the program is given what {self.operator} sets", "")
        return f"export {' '.join(exports)}\n{made}"

    def _apply_rules(self, reader: ImportReader, text: str, at: Path, form: str) -> str:
        for rule in self.rules:
            found = re.search(rule.pattern, text)
            if found is None:
                continue
            if not rule.variable and not rule.text:
                raise UnmetContract(
                    f"{reader.given.span(*at)}: its program reads `{found[0][:80]}`, which {self.operator} gives it"
                )
            reader.note(at, f"the pods of avactl find it elsewhere: {found[0][:80]}", "")
            own = form.format(rule.variable) if rule.variable else rule.text

            def replacement(match: re.Match[str], own: str = own) -> str:
                return own.replace("{index}", match["index"]) if "index" in match.re.groupindex else own

            text = re.sub(rule.pattern, replacement, text)
        return text

    def _require(self, reader: ImportReader, name: str, value: str | None, at: Path) -> None:
        if value is None:
            raise UnmetContract(f"{reader.given.span(*at)}: its program reads {name}, which {self.operator} sets")


def _shell_text(words: Sequence[str]) -> int | None:
    """Return the index of the program of a shell, or None."""
    if not words or words[0].rpartition("/")[2] not in _SHELLS:
        return None
    for index, word in enumerate(words[1:], 1):
        if not word.startswith("-"):
            return None
        if re.fullmatch(r"-[a-z]*c[a-z]*", word):
            return index + 1 if index + 1 < len(words) else None
    return None


def pytorch_contract(name: str, pods: int, by_torchrun: bool = False) -> Contract:
    """Return what the training operator gives to the pods of a PyTorchJob. `by_torchrun`: it starts the programs."""
    alone = pods == 1
    own = {"WORLD_SIZE": str(pods), "RANK": "0" if alone else "$NODE_RANK"}
    if alone:
        own |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "23456"}
    elastic = ("RDZV_ENDPOINT", "RDZV_BACKEND", "RDZV_ID", "RDZV_CONF", "MAX_RESTARTS", "STANDALONE")
    head = (
        TextRule(_host(f"{name}-master-0"), text="127.0.0.1")
        if alone
        else TextRule(_host(f"{name}-master-0"), variable="MASTER_ADDR")
    )
    return Contract(
        "the training operator",
        own | dict.fromkeys([f"PET_{each}" for each in elastic]),
        always=pods > 1 and not by_torchrun,
        rules=[head, TextRule(_host(rf"{name}-worker-\d+"))],
    )


def mpi_contract(name: str, hostfile: str) -> Contract:
    """Return what the MPI operator gives to the launcher of an MPIJob. Its file of hosts has the form of avactl's."""
    return Contract(
        "the MPI operator",
        dict.fromkeys(("K_MPI_JOB_ROLE", "OMPI_MCA_plm_rsh_args")),
        [
            TextRule(r"/etc/mpi/hostfile\b", text=hostfile),
            TextRule(r"/etc/mpi/[\w./-]+"),
            TextRule(_host(rf"{name}-(worker-\d+|launcher)")),
        ],
    )


def indexed_job_contract(name: str, service: str, pods: int, spec: str) -> Contract:
    """Return the host names of an indexed Job with a headless Service, which becomes the given spec."""
    if not service:
        return Contract("its Service")
    first = _host(rf"{name}-0\.{service}")
    head = TextRule(first, text="127.0.0.1") if pods == 1 else TextRule(first, variable="MASTER_ADDR")
    index = "|".join(map(str, range(1, min(pods, _MAX_NAMED_PODS))))
    other = TextRule(_host(rf"{name}-(?P<index>{index})\.{service}"), text=f"{spec}-worker-{{index}}.{spec}-rendezvous")
    known = [head, other] if index else [head]
    return Contract("its Service", {}, [*known, TextRule(_host(rf"{name}-\d+\.{service}"))])


def volcano_contract(name: str, tasks: Mapping[str, int], framework: str, strategy: str) -> Contract:
    """Return what Volcano's plug-ins `env` and `svc` give to the pods of a Job with these tasks."""
    index = None if strategy == "mpi" else "$AVACTL_INDEX"
    variables: dict[str, str | None] = {"VC_TASK_INDEX": index, "VK_TASK_INDEX": index}
    for task, count in tasks.items():
        upper = re.sub(r"[^A-Z0-9]", "_", task.upper())
        one_role = len(tasks) == 1 and framework == "custom" and strategy == "allReduce"
        variables |= {
            f"VC_{upper}_NUM": str(count),
            f"VC_{upper}_HOSTS": "$AVACTL_WORKER_HOSTS" if one_role else None,
        }
    first = next(iter(tasks), "")
    rules = [TextRule(r"/etc/volcano/[\w./-]+")]
    if strategy == "allReduce" and len(tasks) == 1:
        rules.append(TextRule(_host(rf"{name}-{re.escape(first)}-0\.{name}"), variable="MASTER_ADDR"))
    rules += [TextRule(_host(rf"{name}-{re.escape(task)}-\d+(\.{name})?")) for task in tasks]
    return Contract("Volcano", variables, rules)


def job_names(reader: ImportReader) -> str:
    """Return the name of the source object, as a pattern."""
    return re.escape(reader.given.name)


def _host(pattern: str) -> str:
    """Return the pattern of a host name, with the domain that may follow it."""
    return rf"(?<![\w.-]){pattern}(\.[a-z0-9-]+(\.svc(\.[a-z0-9.-]+)?)?)?(?![\w-])"


def drop_ssh_options(reader: ImportReader, pod: Pod) -> None:
    """Take out the options of mpirun about ssh, which avactl's mpirun does not use."""
    words = [*pod.command, *pod.args]
    shell = _shell_text(words)
    for group, start in ((pod.command, 0), (pod.args, len(pod.command))):
        path = pod.paths["command" if group is pod.command else "args",]
        index = 0
        while index < len(group):
            kept = _SSH_OPTION.sub("", group[index]) if index + start == shell else group[index]
            if kept != group[index]:
                reader.lose((*path, index), _NO_SSH, "")
                group[index] = kept
            if group[index] in _MCA and group[index + 1 : index + 2] and group[index + 1].startswith("plm_rsh_"):
                reader.lose((*path, index), _NO_SSH, "")
                del group[index : index + 3]
            else:
                index += 1
