"""The program of a job: the text of a script, with few words changed, and what it needs of Slurm before it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from avactl.workbench.importer.model import Body, ImportReader
from avactl.workbench.importer.shell import (
    Command,
    Edit,
    Node,
    Program,
    SyntaxProblem,
    Word,
    is_inside,
    is_redirected,
)
from avactl.workbench.importer.slurm.commands import BUILTINS, check_command, refuse_texts
from avactl.workbench.importer.slurm.environment import slurm_variables
from avactl.workbench.importer.slurm.exports import take_exports
from avactl.workbench.importer.slurm.machines import HOST_OPTIONS, REPEATABLE, check_machines
from avactl.workbench.importer.slurm.prelude import (
    ADDRESS,
    HEADER,
    NODE_LISTS,
    SCONTROL,
    job_number,
    mpi_function,
    node_list,
    srun_function,
)
from avactl.workbench.importer.slurm.sizes import LeftOut, Sizes
from avactl.workbench.importer.slurm.steps import Step, exported, known_value
from avactl.workbench.importer.slurm.torchrun import strip_rendezvous, torchrun_words

_MPI_LAUNCHERS = ("mpirun", "mpiexec", "mpiexec.hydra")
_WITHOUT_MPI = re.compile(
    r"python[0-9.]*|torchrun|accelerate|deepspeed|(ba|z|da)?sh|env|nsys|ncu|numactl|time|uv|poetry|julia|Rscript|R|perl"
    r"|java|node|nvidia-smi|apptainer|singularity|docker|podman|.*\.(sh|py|jl|R)"
).fullmatch


class JobProgram:
    """How a script runs in the pods of a job. Raises LeftOut if it would be another program."""

    def __init__(
        self,
        program: Program,
        steps: list[Step],
        sizes: Sizes,
        constants: Mapping[str, str],
        reader: ImportReader,
        shell: list[str],
    ) -> None:
        self._program, self._sizes, self._constants, self._reader = program, sizes, constants, reader
        self._shell = shell
        self.env: Body = {}
        self._needs: set[str] = set()
        self._kill = False
        self._per_task_gpus = 0
        self._commands = program.commands
        self._steps = [each for each in steps if not self._replace_host_step(each)]
        for command in self._commands:
            check_command(program, command, self._lose)
        refuse_texts(program)
        if not any(self._is_program(each) for each in self._commands):
            raise LeftOut("it has no command")
        self.strategy = self._choose_strategy()
        self._launch = None
        self._launch_edit: list[Edit] = []
        """Starts torchrun without srun, which only its own variables would need."""
        if self.strategy == "allReduce" and sizes.per_node == 1:
            self._launch = torchrun_words(self._steps[0])
        # Only there, torchrun is to find what avactl sets for it.
        self.framework = "pytorch" if self._launch is not None else "custom"
        if self._launch is not None:
            strip_rendezvous(program, self._steps[0], self._launch, sizes.gpus, self._lose)
        for step in self._steps:
            self._edit_step(step)
        self._drop_directory()
        exports, self._secrets = take_exports(program, constants, self._lose)
        self.env |= exports
        if self.strategy == "allReduce":
            self._needs |= check_machines(program, self._steps[0])
        if any(each.name == "scontrol" and not program.is_removed(each.node.start) for each in self._commands):
            self._needs.add("scontrol")

    def command(self, directory: str | None) -> Body:
        """Return `command` and `args`: the program itself if it is one command, else a shell with the text."""
        words = self._plain_words() if directory is None else None
        if not self._steps:
            why = "programs find only those variables of Slurm that the script names"
            self._reader.note((), why, "write others as `env`")
        if words is not None:
            if self._launch is None:
                self._set_variables("")
            elif self._steps:
                line = self._steps[0].line
                self._lose(line, "programs find no variables of Slurm", "read RANK, LOCAL_RANK and WORLD_SIZE")
            return {"command": [escape_references(each) for each in words]}
        self._replace_last()
        text = self._program.edited().strip("\n")
        self._check_text(text)
        self._set_variables(text)
        lines = self._prelude(text)
        if directory is not None:
            lines.append(f"cd {shlex.quote(directory)}")
        head = "\n".join(lines)
        whole = f"{head}\n\n{text}\n" if head else f"{text}\n"
        return {"command": [*self._shell, "-c"], "args": [escape_references(whole)]}

    def _check_text(self, text: str) -> None:
        """Raise LeftOut if the text does not parse, or reads a variable whose assignment it does not have any more."""
        try:
            edited = Program(text)
        except SyntaxProblem as problem:
            raise LeftOut(f"it cannot be changed without harm: {problem.reason}") from None
        before = {each.name for each in self._program.reads} - self._program.assignments.keys()
        after = {each.name for each in edited.reads} - edited.assignments.keys()
        lost = after - before - self.env.keys() - self._secrets - {"MASTER_ADDR", "HOSTNAME"}
        if lost:
            raise LeftOut(f"it reads {', '.join(sorted(lost))}, which only Slurm could tell")

    def _lose(self, line: int, why: str, remedy: str = "") -> None:
        self._reader.note(("line", line), why, remedy)

    def _is_program(self, command: Command) -> bool:
        """Return True for a command that does work, not only prepares it."""
        node = command.node
        if node.type != "CallExpr" or self._program.is_removed(node.start) or not command.words:
            return False
        name = command.name
        if name in ("srun", *_MPI_LAUNCHERS):
            return True
        return not is_inside(node, "CmdSubst") and (not name or name not in REPEATABLE - {"cp", "find"})

    def _choose_strategy(self) -> str:
        """Return the strategy. Raises LeftOut if only the first of several nodes would run the program."""
        sizes = self._sizes
        launchers = [each for each in self._commands if each.name in _MPI_LAUNCHERS]
        if any(step.by_mpi or not _WITHOUT_MPI(step.name) for step in self._steps if self._count(step) > 1):
            # A step of one task on each machine finds its peers by itself.
            odd = next((each for each in self._steps if self._count(each) != sizes.tasks), None)
            if odd is not None or launchers:
                line = odd.line if odd else launchers[0].line
                raise LeftOut(f"line {line}: mpirun starts as many ranks for each step as the job has tasks")
            self._lose(self._steps[0].line, "mpirun of Open MPI starts the processes in place of srun")
            return "mpi"
        if sizes.nodes == 1:
            for each in launchers:
                if not _tells_ranks(each.words):
                    self._program.replace(each.words[0].end, each.words[0].end, f" -np {sizes.tasks}")
            several = next((each for each in self._steps if self._count(each) > 1), None)
            if several is not None:
                self._note_tasks(several)
            return "single"
        if launchers:
            if self._steps:
                raise LeftOut(f"line {self._steps[0].line}: srun and mpirun in one script")
            for each in launchers:
                self._strip_hostfile(each)
                passed = "".join(f" -x {name}" for name in self._computed_exports())
                self._program.replace(each.words[0].end, each.words[0].end, passed)
            self._note_launcher()
            return "mpi"
        if not self._steps:
            first = next(each for each in self._commands if self._is_program(each))
            raise LeftOut(
                f"line {first.line}: without srun, `{(first.name or first.words[0].text)[:40]}` runs on the first of "
                f"{sizes.nodes} nodes only"
            )
        if len(self._steps) > 1:
            raise LeftOut(
                f"line {self._steps[1].line}: a job has one step on all machines: make the others jobs of their own, "
                "with `after`"
            )
        (step,) = self._steps
        if self._count(step) != sizes.tasks:
            raise LeftOut(
                f"line {step.line}: srun starts {self._count(step)} of {sizes.tasks} tasks, on some of the machines"
            )
        if is_inside(step.command.node, "ForClause", "WhileClause", "FuncDecl"):
            raise LeftOut(f"line {step.line}: a job has one step on all machines, and this one may run several times")
        if sizes.per_node > 1:
            self._note_tasks(step)
        if is_redirected(step.command.node):
            self._lose(step.line, "each worker writes a file of its own", "")
        return "allReduce"

    def _note_tasks(self, step: Step) -> None:
        self._lose(
            step.line,
            "the processes start without MPI, and find each other by Slurm's variables",
            "for a program with MPI, write `strategy: mpi`",
        )

    def _note_launcher(self) -> None:
        for each in self._commands:
            if self._is_program(each) and each.name not in _MPI_LAUNCHERS:
                self._lose(each.line, "it runs on the launcher, which has no GPU")

    def _count(self, step: Step) -> int:
        """Return the number of tasks of a step."""
        sizes = self._sizes
        nodes = step.number("nodes") or sizes.nodes
        tasks, per_node = step.number("ntasks"), step.number("ntasks-per-node")
        if nodes > sizes.nodes:
            raise LeftOut(f"line {step.line}: srun asks for {nodes} of {sizes.nodes} nodes")
        if tasks:
            return tasks
        return (per_node or sizes.per_node) * nodes

    def _replace_host_step(self, step: Step) -> bool:
        """Let a step that only prints a host name or address ask the pods' DNS."""
        if step.name != "hostname":
            return False
        node, asked = step.command.node, step.get("nodelist")
        arguments = [each.text for each in step.program[1:]]
        captured = is_inside(node, "CmdSubst") or is_redirected(node)
        if self._count(step) > 1:
            text = "scontrol show hostnames" if captured else "hostname"
            self._needs |= {"scontrol"} if captured else set()
        else:
            host = asked if asked is not None else "$MASTER_ADDR" if self._sizes.nodes > 1 else "$HOSTNAME"
            host = host if host.startswith('"') else f'"{host}"'
            by_address = any(each in HOST_OPTIONS for each in arguments)
            text = f"address_of {host}" if by_address else f"echo {host}"
            self._needs |= {"address"} if by_address else set()
        self._program.drop(node.start, node.end, text)
        return True

    def _edit_step(self, step: Step) -> None:
        """Take the options of srun out."""
        for name in ("multi-prog", "pty", "input", "relative", "bcast", "het-group", "overcommit", "x11", "nodefile"):
            if step.get(name) is not None:
                raise LeftOut(f"line {step.line}: `--{name}` of srun has no equivalent")
        if self._count(step) > 1 and _has_input(step.command.node):
            raise LeftOut(f"line {step.line}: srun gives its input to each of {self._count(step)} tasks")
        if step.name in ("apptainer", "singularity", "docker", "podman"):
            raise LeftOut(f"line {step.line}: srun starts a container: name its image with `--image job=…`")
        if len(self._steps) > 1 and step.get("gpus-per-task") is not None:
            raise LeftOut(f"line {step.line}: several steps divide the GPUs of the job")
        for name in ("gpus", "gres", "gpus-per-node"):
            value = step.get(name)
            count = re.search(r"(\d+)$", value or "")
            gpus = self._sizes.gpus * (self._sizes.nodes if name == "gpus" else 1)
            if value is not None and (count is None or int(count[1]) != gpus):
                raise LeftOut(f"line {step.line}: the step uses `--{name}={value}` of the {gpus} GPUs of the job")
        kill = step.get("kill-on-bad-exit")
        self._kill |= kill is not None and kill != "0"
        per_task = re.search(r"(\d+)$", step.get("gpus-per-task") or self._sizes.get("gpus-per-task") or "")
        self._per_task_gpus = int(per_task[1]) if per_task else 0
        exports, everything = exported(step)
        if not everything:
            self._lose(step.line, "the program also gets the other variables of the script")
        directory = step.get("chdir", "container-workdir")
        if directory is not None and re.search(r"[$`]", directory):
            raise LeftOut(f"line {step.line}: the script computes the working directory of srun")
        prefix = f"-C {shlex.quote(directory)} " if directory else ""
        prefix = f"env {prefix}{exports}" if prefix or exports else ""
        tasks = self._count(step)
        if self.strategy == "mpi":
            start = "srun "
            self._needs.add("mpi")
        elif self._sizes.tasks == tasks == 1 and not self._per_task_gpus:
            start = ""
        else:
            start = f"srun {tasks // self._sizes.nodes} "
            self._needs.add("srun")
        place = step.command.words[0].start, step.program[0].start
        self._program.replace(*place, start + prefix)
        if self._launch is not None and not prefix:
            self._launch_edit = [(*place, b"")]

    def _strip_hostfile(self, command: Command) -> None:
        """Take out where mpirun finds its hosts: avactl tells it."""
        words, index, removed = command.words, 1, []
        while index < len(words) and words[index].text.startswith("-"):
            name = words[index].text.lstrip("-").partition("=")[0]
            width = 1 if "=" in words[index].text else 2
            if name in ("hostfile", "machinefile", "host", "H", "f", "hosts", "default-hostfile"):
                last = words[min(index + width, len(words)) - 1]
                end = words[index + width].start if index + width < len(words) else last.end
                self._program.replace(words[index].start, end, "")
                removed.append(words[index].text)
                index += width
            else:
                index += 1
        if removed:
            self._lose(command.line, f"mpirun finds the hosts in avactl's file: {', '.join(removed)}")

    def _drop_directory(self) -> None:
        """Remove `cd $SLURM_SUBMIT_DIR` at first: a program starts in the working directory of its image."""
        for command in self._commands:
            if command.name in ("pushd", "popd") or self._sizes.get("chdir", "container-workdir") is not None:
                return
            if command.name == "cd" and re.fullmatch(
                r'"?\$\{?SLURM_SUBMIT_DIR\}?"?', " ".join(each.text for each in command.words[1:])
            ):
                self._program.remove(command.node)
            if command.name == "cd":
                return

    def _plain_words(self) -> list[str] | None:
        """Return the words of a program that is one command, without anything that a shell must do; else None."""
        try:
            edited = Program(self._program.edited(self._launch_edit))
        except SyntaxProblem:
            return None
        left = [each for each in edited.root.children if each.type == "Stmt"]
        call = left[0].child("Cmd") if len(left) == 1 else None
        if call is None or call.type != "CallExpr":
            return None
        if any(left[0].has(key) for key in ("Redirs", "Negated", "Background")):
            return None
        command = edited.command(call)
        if command.assignments or command.name in BUILTINS:
            return None
        values = [
            each.value if each.value is not None else known_value(self._program, each.text, self._constants)
            for each in command.words
        ]
        return None if None in values else [each or "" for each in values]

    def _replace_last(self) -> None:
        """Let the last command take the place of the shell, so that it gets the signals of the pod."""
        program = self._program
        left = [each for each in program.root.children if each.type == "Stmt"]
        call = left[-1].child("Cmd") if left else None
        if call is None or call.type != "CallExpr" or self._program.is_removed(call.start):
            return
        if left[-1].has("Negated") or left[-1].has("Background"):
            return
        command = program.command(call)
        name = command.name
        if any(each.name == "trap" for each in self._commands) or name in program.functions or not command.words:
            return
        if name and name not in BUILTINS and name not in ("rm", "cp", "mv", "touch", "rsync"):
            program.replace(command.words[0].start, command.words[0].start, "exec ")

    def _set_variables(self, text: str) -> None:
        """Add Slurm's variables to the environment: those that the text names; all if `srun` starts programs."""
        named = slurm_variables(self._program)
        full = bool(self._steps)
        for name, value in self._constants.items():
            wanted = name.startswith("SLURM_ARRAY_")
            wanted |= name in named and re.search(rf"\b{name}\b", text) is not None
            if (wanted or (full and name != "SLURM_JOBID")) and name not in self._program.assignments:
                if name == "SLURM_JOBID" and self.strategy == "mpi":
                    # Open MPI would start its daemons by srun.
                    continue
                self.env.setdefault(name, value)

    def _prelude(self, text: str) -> list[str]:
        """Return what the program needs of Slurm, in the order in which it is needed."""
        sizes, needs = self._sizes, self._needs
        named = {name for name in slurm_variables(self._program) if re.search(rf"\b{name}\b", text)}
        lines = []
        if self.strategy == "mpi" and "SLURM_JOBID" in named:
            lines.append(f"SLURM_JOBID={self._constants['SLURM_JOBID']} # Open MPI would start its daemons by srun")
        if "SLURM_SUBMIT_DIR" in named:
            lines.append("export SLURM_SUBMIT_DIR=$PWD")
        if "SLURM_TMPDIR" in named:
            lines.append("export SLURM_TMPDIR=${TMPDIR:-/tmp}")
        first = "$MASTER_ADDR" if self.strategy == "allReduce" else "$HOSTNAME"
        lists = [name for name in NODE_LISTS if name in named]
        if lists or "scontrol" in needs or ("srun" in needs and sizes.nodes > 1):
            if self.strategy == "mpi":
                raise LeftOut("it reads the list of nodes, which mpirun reads from a file of avactl")
            lines += node_list(sizes.nodes, self.framework == "custom")
            others = NODE_LISTS[1:] if "srun" in needs else [name for name in lists if name != NODE_LISTS[0]]
            lines += [f"export {name}=$SLURM_JOB_NODELIST" for name in others]
        reads = {each.name for each in self._program.reads} - self._program.assignments.keys()
        if "TMPDIR" in reads:
            lines.append("export TMPDIR=${TMPDIR:-/tmp}")
        if "CUDA_VISIBLE_DEVICES" in reads and sizes.gpus:
            lines.append(f"export CUDA_VISIBLE_DEVICES={','.join(map(str, range(sizes.gpus)))}")
        if "SLURMD_NODENAME" in named:
            lines.append(f"export SLURMD_NODENAME={first}")
        if "hostname" in needs:
            lines.append(f"HOSTNAME={first}")
        if "random" in needs:
            lines.append(f"RANDOM={job_number(self._reader.given.name) % 32768}")
        if "address" in needs or "SLURM_LAUNCH_NODE_IPADDR" in named:
            lines += ADDRESS.splitlines()
        if "SLURM_LAUNCH_NODE_IPADDR" in named:
            lines.append(f'export SLURM_LAUNCH_NODE_IPADDR=$(address_of "{first}")')
        if "scontrol" in needs:
            lines += SCONTROL.splitlines()
        if "srun" in needs:
            lines += srun_function(
                sizes.nodes, self._per_task_gpus, self._kill, any(each.name == "trap" for each in self._commands)
            ).splitlines()
        if "mpi" in needs:
            lines += mpi_function(sizes.per_node, self._computed_exports()).splitlines()
        return [HEADER, *lines] if lines else []

    def _computed_exports(self) -> list[str]:
        """Return the variables that the program exports itself: mpirun passes those on that it is told."""
        names = []
        for command in self._commands:
            if command.name == "export" and not self._program.is_removed(command.node.start):
                names += [each.data["Name"]["Value"] for each in command.assignments]
                names += [each.text for each in command.words[1:] if each.text.isidentifier()]
        return list(dict.fromkeys(names))


def _has_input(node: Node) -> bool:
    """Return True if a command reads a file, a text, or the output of another command."""
    above: Node | None = node
    while above is not None and above.type not in ("CmdSubst", "FuncDecl"):
        if any(each.type == "Redirect" and each.data["Op"].startswith("<") for each in above.children):
            return True
        parent = above.parent
        piped = parent is not None and parent.type == "BinaryCmd" and parent.data["Op"] in ("|", "|&")
        if parent is not None and piped and parent.child("Y") is above:
            return True
        above = parent
    return False


def _tells_ranks(words: Sequence[Word]) -> bool:
    """Return True if mpirun is told how many processes it starts."""
    names = ("-n", "-np", "--n", "--np", "-c", "-N", "-ppn", "--map-by", "-npernode", "--npernode")
    return any(each.text.partition("=")[0] in names for each in words)


def escape_references(text: str) -> str:
    """Return a text of a pod that Kubernetes does not change: it reads `$(NAME)` as a variable, and `$$` as `$`."""
    return re.sub(r"\$(?=\$|\([A-Za-z_]\w*\))", "$$", text)
