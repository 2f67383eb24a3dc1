"""The program of a job: the text of a script, with few words changed, and what it needs of Slurm before it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from itertools import combinations

from avactl.base.variable_references import escape_references
from avactl.diagnostics.secrets import has_shape
from avactl.workbench.importer.model import Body, ImportReader
from avactl.workbench.importer.shell import (
    Command,
    Edit,
    Node,
    Program,
    SyntaxProblem,
    Word,
    are_exclusive,
    is_in_background,
    is_inside,
    is_redirected,
    runs_once,
)
from avactl.workbench.importer.slurm.commands import BUILTINS, check_command, check_texts, drop_traps
from avactl.workbench.importer.slurm.containers import OTHER_RUNTIMES, RUNTIMES, enter, refuse_runtime
from avactl.workbench.importer.slurm.environment import slurm_variables
from avactl.workbench.importer.slurm.exports import take_exports
from avactl.workbench.importer.slurm.machines import HOST_OPTIONS, REPEATABLE, check_machines, refuse_other_networks
from avactl.workbench.importer.slurm.mpi import (
    ANY_SLOTS,
    LAUNCHERS,
    check_launcher,
    choose_library,
    is_native,
    strip_hosts,
    tells_ranks,
)
from avactl.workbench.importer.slurm.options import bound_gpus
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
from avactl.workbench.importer.slurm.steps import (
    WRAPPERS,
    Step,
    base_name,
    exported,
    inner_command,
    known_value,
    program_name,
)
from avactl.workbench.importer.slurm.torchrun import strip_rendezvous, torchrun_words

_BY_SSH = ("deepspeed", "horovodrun", "pdsh", "ssh", "colossalai", "ray", "dask-ssh")
"""Programs that start others on several machines by ssh, without srun."""
_ABSENT = ("ibrun", "aprun", "jsrun", "lrun", "prun")
"""Launchers of other systems."""
_QUIET = (
    *("wait", "echo", "printf", "date", "exit", "time", ":", "true", "cd", "set", "export", "unset", "trap", "sleep"),
    *("return", "[", "test", "rm", "mkdir"),
)
"""Commands that read no file."""
_LINE_BY_LINE = ("tee", "cat", "grep", "egrep", "sed", "awk", "tr", "cut", "ts", "stdbuf")
_PATTERNS = {
    "j": "$SLURM_JOB_ID",
    "x": "$SLURM_JOB_NAME",
    "A": "$SLURM_ARRAY_JOB_ID",
    "a": "$SLURM_ARRAY_TASK_ID",
    "t": "$SLURM_PROCID",
    "n": "$SLURM_NODEID",
    "N": "$SLURMD_NODENAME",
    "%": "%",
}
"""Parts of the names of Slurm's output files."""


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
        self._slots = 0
        self.library = "openmpi"
        self._commands = program.commands
        self._steps = [each for each in steps if each.name != "hostname"]
        self._launchers = [each for each in (inner_command(one, LAUNCHERS) for one in self._commands) if each]
        for step in self._steps:
            refuse_runtime(step.name, step.line)
            step.program, step.prefix = self._enter(step.program, step.line)
            step.name = program_name(program, step.program[0]) or step.name
        self._by_mpi = any(each.by_mpi or is_native(each.name) for each in self._steps if self._count(each) > 1)
        self._first = "$MASTER_ADDR"
        """First of the machines, in words of the shell."""
        if sizes.nodes == 1:
            self._first = "$HOSTNAME"
        elif self._by_mpi or self._launchers:
            self._first = "${SLURM_JOB_NODELIST%%,*}"
        for step in steps:
            if step.name == "hostname":
                self._replace_host_step(step)
        drop_traps(program, self._lose)
        for command in self._commands:
            if not program.is_removed(command.node.start):
                self._read_command(command)
        refuse_other_networks(program)
        if check_texts(program):
            self._needs |= {"scontrol", "export-scontrol"}
        if not any(self._is_program(each) for each in self._commands):
            raise LeftOut("it has no command")
        self.strategy = self._choose_strategy()
        self._launch = None
        self._launch_edit: list[Edit] = []
        """Starts torchrun without srun, which only its own variables would need."""
        alone = self.strategy == "allReduce" and len(self._working_steps()) == 1
        if alone and self._count(self._main) == sizes.nodes:
            self._launch = torchrun_words(program, self._main)
        # Only there, torchrun is to find what avactl sets for it.
        self.framework = "pytorch" if self._launch is not None else "custom"
        if self._launch is not None:
            strip_rendezvous(program, self._main, self._launch, sizes.gpus, self._lose)
        self._read_slots()
        for step in self._steps:
            self._edit_step(step)
        self._drop_directory()
        exports, self._secrets = take_exports(program, constants, self._lose)
        self.env |= exports
        if self.strategy == "allReduce":
            self._needs |= check_machines(program, self._steps)
        if any(each.name == "scontrol" and not program.is_removed(each.node.start) for each in self._commands):
            self._needs.add("scontrol")

    def command(self, directory: str | None) -> Body:
        """Return `command` and `args`: the program itself if it is one command, else a shell with the text."""
        body = self._build_command(directory)
        texts = [*body["command"], *body.get("args", ()), *self.env.values()]
        if any(map(has_shape, texts)):
            raise LeftOut("it contains what looks like a credential: make a Secret, and read it from a variable")
        return body

    def _build_command(self, directory: str | None) -> Body:
        words = self._plain_words() if directory is None else None
        if not self._steps:
            why = "programs find only those variables of Slurm that the script names"
            self._reader.note((), why, "write others as `env`")
        if words is not None:
            if self._launch is None:
                self._set_variables("")
            elif self._steps:
                line = self._main.line
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
        lost = after - before - self.env.keys() - self._secrets - {"MASTER_ADDR", "HOSTNAME", "SLURM_JOB_NODELIST"}
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
        if any(each.node is node for each in (*self._launchers, *(step.command for step in self._steps))):
            return True
        return not is_inside(node, "CmdSubst") and (not name or name not in REPEATABLE - {"cp", "find"})

    def _read_command(self, command: Command) -> None:
        """Take out what a pod does not need of a command. Raises LeftOut for what it does not have."""
        check_command(self._program, command, self._lose)
        refuse_runtime(command.name, command.line)
        if command.name in _ABSENT:
            raise LeftOut(f"line {command.line}: pods have no `{command.name}`")
        removed = self._program.is_removed(command.node.start)
        if (
            command.name in RUNTIMES
            and not removed
            and command.words[1:]
            and command.words[1].text in ("pull", "build")
        ):
            self._lose(command.line, "the pods run the image of the spec")
            self._program.remove(command.node)
        elif not removed and command.words:
            words, prefix = self._enter(command.words, command.line)
            if words[0] is not command.words[0]:
                self._program.replace(command.words[0].start, words[0].start, prefix)
        if command.name == "alias" and b"expand_aliases" in self._program.data:
            raise LeftOut(f"line {command.line}: the program of a pod has no aliases: write a function")
        if command.name == "nproc" and len(command.words) == 1:
            self._program.replace(command.node.start, command.node.end, f"echo {self._sizes.cpus}")

    def _enter(self, words: list[Word], line: int) -> tuple[list[Word], str]:
        """Return the program that a container runs, and the text of what that sets; also below `time` and mpirun."""
        first = program_name(self._program, words[0])
        if words[0].value is None and first in (*RUNTIMES, *OTHER_RUNTIMES, *LAUNCHERS):
            raise LeftOut(f"line {line}: `{words[0].text[:40]}` holds {first}: write it in place of the variable")
        names = (*RUNTIMES, *OTHER_RUNTIMES)
        outer = first in (*WRAPPERS, *LAUNCHERS)
        at = next((index for index, each in enumerate(words) if outer and base_name(each) in names), 0)
        refuse_runtime(base_name(words[at]), line)
        inner, prefix = enter(self._program, words[at:], line, self._lose)
        if at and inner[0] is not words[at]:
            self._program.replace(words[at].start, inner[0].start, prefix)
            return [*words[:at], *inner], ""
        return ([*words[:at], *inner] if at else inner), prefix

    @property
    def _main(self) -> Step:
        """The step that does the work; others, such as `srun nvidia-smi`, only print."""
        return self._working_steps()[0]

    def _working_steps(self) -> list[Step]:
        found = [
            each
            for each in self._steps
            if each.name not in REPEATABLE
            or is_redirected(each.command.node)
            or is_inside(each.command.node, "CmdSubst")
        ]
        return found or self._steps

    def _choose_strategy(self) -> str:
        """Return the strategy. Raises LeftOut if only the first of several nodes would run the program."""
        sizes, launchers = self._sizes, self._launchers
        if self._by_mpi:
            self._lose(self._main.line, "mpirun of Open MPI starts the processes in place of srun")
        if launchers:
            self.library = choose_library(self._program, launchers)
        if (self._by_mpi or launchers) and sizes.nodes > 1:
            return self._choose_launcher(launchers)
        if sizes.nodes == 1:
            self.library = "openmpi"
            if self._by_mpi or launchers:
                self.env |= ANY_SLOTS
            for each in launchers:
                if not tells_ranks(each.words):
                    self._program.replace(each.words[0].end, each.words[0].end, f" -np {sizes.tasks}")
            several = next((each for each in self._steps if self._count(each) > 1), None)
            if several is not None and not self._by_mpi:
                self._note_tasks(several)
            return "single"
        if not self._steps:
            first = next(each for each in self._commands if self._is_program(each))
            if first.name in _BY_SSH:
                raise LeftOut(f"line {first.line}: `{first.name}` starts the others by ssh, which pods do not have")
            raise LeftOut(
                f"line {first.line}: without srun, `{(first.name or first.words[0].text)[:40]}` runs on the first of "
                f"{sizes.nodes} nodes only"
            )
        working = self._working_steps()
        nodes = [each.command.node for each in working]
        if not all(are_exclusive(one, other) for one, other in combinations(nodes, 2)):
            raise LeftOut(
                f"line {working[1].line}: a job has one step on all machines: make the others jobs of their own, "
                "with `after`"
            )
        for step in self._steps:
            count = self._count(step)
            everywhere = (step.number("nodes") or sizes.nodes) == sizes.nodes and step.get("nodelist") is None
            even = count in (sizes.tasks, sizes.nodes, step.number("ntasks-per-node") * sizes.nodes)
            if not everywhere or not even:
                raise LeftOut(f"line {step.line}: srun starts {count} of {sizes.tasks} tasks, on some of the machines")
            if is_inside(step.command.node, "CmdSubst") or self._is_gathered(step.command.node):
                raise LeftOut(f"line {step.line}: the output of all tasks comes together in Slurm, and not in pods")
            if not runs_once(self._program, step.command.node):
                raise LeftOut(
                    f"line {step.line}: a job has one step on all machines, and this one may run several times"
                )
        step = working[0]
        if self._count(step) > sizes.nodes:
            self._note_tasks(step)
        if is_redirected(step.command.node):
            self._lose(step.line, "each worker writes a file of its own", "")
        return "allReduce"

    def _choose_launcher(self, launchers: list[Command]) -> str:
        """Return the strategy with a launcher, which starts the ranks on several machines."""
        if launchers and self._steps:
            raise LeftOut(f"line {self._steps[0].line}: srun and mpirun in one script")
        odd = next((each for each in self._steps if self._count(each) != self._sizes.tasks), None)
        if odd is not None:
            raise LeftOut(f"line {odd.line}: mpirun starts as many ranks for each step as the job has tasks")
        for each in launchers:
            strip_hosts(self._program, each, self._lose)
            if self.library == "openmpi":
                passed = "".join(f" -x {name}" for name in self._computed_exports())
                self._program.replace(each.words[0].end, each.words[0].end, passed)
        own = [*launchers, *(each.command for each in self._steps)]
        self._needs |= check_launcher(self._program, own, self._first, self._lose)
        return "mpi"

    def _is_gathered(self, node: Node) -> bool:
        """Return True if another command reads the output of a step as a whole, not line by line."""
        above = node
        while above.parent is not None:
            pipe = above.parent
            if pipe.type == "BinaryCmd" and pipe.data["Op"] in ("|", "|&") and pipe.child("X") is above:
                end = pipe.child("Y")
                inside = [each for each in self._commands if end and end.start <= each.node.start < end.end]
                if any(each.name not in _LINE_BY_LINE for each in inside):
                    return True
            above = pipe
        return False

    def _note_tasks(self, step: Step) -> None:
        self._lose(
            step.line,
            "the processes start without MPI, and find each other by Slurm's variables",
            "for a program with MPI, write `strategy: mpi`",
        )

    def _read_slots(self) -> None:
        """Find out how many of the steps in the background run at a time."""
        sizes = self._sizes
        steps = [each for each in self._steps if is_in_background(each.command.node)]
        loops = [each for each in steps if not runs_once(self._program, each.command.node)]
        sums = sum(self._count(each) for each in steps)
        if not steps or sizes.nodes > 1 or not (loops or sums > sizes.tasks):
            return
        counts = {(self._count(each), each.number("cpus-per-task") or sizes.per_task) for each in steps}
        if len(counts) > 1 or self._by_mpi or any(each.get("overlap") is not None for each in self._steps):
            raise LeftOut(f"line {steps[0].line}: steps of several sizes wait for each other in Slurm")
        ((count, cpus),) = counts
        self._slots = max(1, sizes.cpus // (count * cpus))
        self._lose(steps[0].line, f"{self._slots} of the steps run at a time, as many as have CPUs in Slurm")

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

    def _replace_host_step(self, step: Step) -> None:
        """Let a step that only prints a host name or address ask the pods' DNS."""
        node, asked = step.command.node, step.get("nodelist")
        arguments = [each.text for each in step.program[1:]]
        captured = is_inside(node, "CmdSubst") or is_redirected(node)
        if self._count(step) > 1:
            text = "scontrol show hostnames" if captured else "hostname"
            self._needs |= {"scontrol"} if captured else set()
        else:
            host = asked if asked is not None else self._first
            self._needs |= {"nodes"} if "NODELIST" in self._first else set()
            host = host if host.startswith('"') else f'"{host}"'
            by_address = any(each in HOST_OPTIONS for each in arguments)
            text = f"address_of {host}" if by_address else f"echo {host}"
            self._needs |= {"address"} if by_address else set()
        self._program.drop(node.start, node.end, text)

    def _edit_step(self, step: Step) -> None:
        """Take the options of srun out."""
        for name in ("multi-prog", "pty", "input", "relative", "bcast", "het-group", "overcommit", "x11", "nodefile"):
            if step.get(name) is not None:
                raise LeftOut(f"line {step.line}: `--{name}` of srun has no equivalent")
        if step.get("label") is not None and is_redirected(step.command.node):
            self._lose(step.line, "lines of output do not begin with the number of their task")
        if self._count(step) > 1 and _has_input(self._program, step.command.node):
            raise LeftOut(f"line {step.line}: srun gives its input to each of {self._count(step)} tasks")
        alone = len(self._steps) == 1 and not (is_in_background(step.command.node) and self._slots)
        if not alone and step.get("gpus-per-task") is not None:
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
        bound = bound_gpus(step.get("gpu-bind") or self._sizes.get("gpu-bind") or "")
        self._per_task_gpus = bound if bound is not None else int(per_task[1]) if per_task else self._sizes.bound
        exports, everything = exported(step)
        if not everything:
            self._lose(step.line, "the program also gets the other variables of the script")
        directory = step.get("chdir", "container-workdir")
        if directory is not None and re.search(r"[$`]", directory):
            raise LeftOut(f"line {step.line}: the script computes the working directory of srun")
        cpus = step.number("cpus-per-task")
        if cpus and str(cpus) != self._constants.get("SLURM_CPUS_PER_TASK"):
            exports += f"SLURM_CPUS_PER_TASK={cpus} "
        prefix = f"-C {shlex.quote(directory)} " if directory else ""
        prefix = f"env {prefix}{exports}" if prefix or exports else ""
        prefix = self._redirect(step) + prefix + step.prefix
        tasks = self._count(step)
        if self.strategy == "mpi":
            start = "srun "
            self._needs.add("mpi")
        elif self._sizes.tasks == tasks == 1 and not self._per_task_gpus and not self._slots:
            start = ""
        else:
            start = f"srun {tasks // self._sizes.nodes} "
            self._needs.add("mpi" if self._by_mpi else "srun")
        if start and step.wrapper:
            self._needs.add("export")
            start = start if step.wrapper == "parallel" else f"bash -c 'srun \"$@\"' bash {start.removeprefix('srun ')}"
        place = step.command.words[0].start, step.program[0].start
        self._program.replace(*place, start + prefix)
        self._program.drop(step.command.words[1].start, step.program[0].start)
        if self._launch is not None and not prefix and step is self._main:
            self._launch_edit = [(*place, b"")]

    def _redirect(self, step: Step) -> str:
        """Return what lets tasks write the files of `--output`, if the script reads them."""
        name, errors = step.get("output"), step.get("error")
        last = max((each.node.start for each in self._commands if self._reads_files(each)), default=0)
        if name is None and errors is None:
            return ""
        if last <= step.command.node.start:
            self._lose(step.line, f"`--output={name or errors}`: `avactl logs` prints what the pods write")
            return ""
        self._lose(step.line, f"`--output={name or errors}` is a file in the pod, which the script reads")
        texts = []
        for value in (name, errors):
            parts = re.split(r"%(.)", value or "")
            if any(each not in _PATTERNS for each in parts[1::2]) or re.search(r"[$`\"\\]", "".join(parts[::2])):
                raise LeftOut(f"line {step.line}: the script reads the files of `--output={value}`")
            texts.append("".join(_PATTERNS[each] if at % 2 else each for at, each in enumerate(parts)))
        per_task = any(
            "PROCID" in each or (self._count(step) == self._sizes.nodes and "$SLURM" in each) for each in texts
        )
        if self._count(step) > 1 and not per_task:
            raise LeftOut(f"line {step.line}: all tasks write to the file of `--output`, which the script reads")
        out = f' > "{texts[0]}"' if name else ""
        errors = f' 2> "{texts[1]}"' if errors else " 2>&1"
        return f"bash -c 'exec \"$@\"{out}{errors}' bash "

    def _reads_files(self, command: Command) -> bool:
        removed = self._program.is_removed(command.node.start)
        return command.node.type == "CallExpr" and bool(command.words) and not removed and command.name not in _QUIET

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
        if self._needs & {"srun", "mpi"} and not self._launch_edit:
            return None
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
        if self._traps() or name in program.functions or not command.words:
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
            if wanted or (full and name != "SLURM_JOBID"):
                if name == "SLURM_JOBID" and (self._by_mpi or self._launchers):
                    # Open MPI would start its daemons by srun.
                    continue
                self.env.setdefault(name, value)

    def _prelude(self, text: str) -> list[str]:
        """Return what the program needs of Slurm, in the order in which it is needed."""
        sizes, needs = self._sizes, self._needs
        named = {name for name in slurm_variables(self._program) if re.search(rf"\b{name}\b", text)}
        lines = []
        if (self._by_mpi or self._launchers) and "SLURM_JOBID" in named:
            lines.append(f"SLURM_JOBID={self._constants['SLURM_JOBID']} # Open MPI would start its daemons by srun")
        if "SLURM_SUBMIT_DIR" in named:
            lines.append("export SLURM_SUBMIT_DIR=$PWD")
        if "SLURM_TMPDIR" in named:
            lines.append("export SLURM_TMPDIR=${TMPDIR:-/tmp}")
        first = self._first
        lists = [name for name in NODE_LISTS if name in named]
        if lists or needs & {"scontrol", "nodes", "hostname"} or ("srun" in needs and sizes.nodes > 1):
            if self.library != "openmpi":
                raise LeftOut("it reads the list of nodes, which only Open MPI has in a file")
            lines += node_list(sizes.nodes, self.framework == "custom", self.strategy == "mpi")
            others = NODE_LISTS[1:] if "srun" in needs else [name for name in lists if name != NODE_LISTS[0]]
            lines += [f"export {name}=$SLURM_JOB_NODELIST" for name in others]
        reads = {each.name for each in self._program.reads}
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
            own = self._traps()
            lines += srun_function(sizes.nodes, self._per_task_gpus, self._kill, own, self._slots).splitlines()
        if "srun" in needs and any(map(_sends_signal, self._commands)):
            raise LeftOut("srun passes signals on to its tasks, of which pods pass on SIGTERM only")
        if "mpi" in needs:
            counted = self.strategy == "single"
            made = mpi_function(sizes.per_node, self._per_task_gpus, self._computed_exports(), counted)
            lines += made.splitlines()
        if "export" in needs:
            lines += ["export -f srun", *(["export steps"] if self._slots else [])]
        lines += ["export -f scontrol"] if "export-scontrol" in needs else []
        return [HEADER, *lines] if lines else []

    def _traps(self) -> bool:
        """Return True if the script handles signals itself."""
        return any(each.name == "trap" and not self._program.is_removed(each.node.start) for each in self._commands)

    def _computed_exports(self) -> list[str]:
        """Return the variables that the program exports itself: mpirun passes those on that it is told."""
        names = [
            each.data["Name"]["Value"]
            for command in (*self._launchers, *(step.command for step in self._steps))
            for each in command.assignments
        ]
        for command in self._commands:
            if command.name == "export" and not self._program.is_removed(command.node.start):
                names += [each.data["Name"]["Value"] for each in command.assignments]
                names += [each.text for each in command.words[1:] if each.text.isidentifier()]
        return list(dict.fromkeys(names))


def _sends_signal(command: Command) -> bool:
    """Return True for a signal beside SIGTERM and SIGKILL."""
    others = [each.text for each in command.words[1:] if re.match(r"-[A-Z]|-\d+$", each.text)]
    return command.name == "kill" and any(not re.fullmatch(r"-(SIG)?(TERM|KILL|15|9|0)", each) for each in others)


def _has_input(program: Program, node: Node) -> bool:
    """Return True if a command reads a file, a text, or the output of another command."""
    above: Node | None = node
    while above is not None and above.type not in ("CmdSubst", "FuncDecl"):
        given = [each for each in above.children if each.type == "Redirect" and each.data["Op"].startswith("<")]
        if given:
            return any(program.text_of(each).replace(" ", "") != "</dev/null" for each in given)
        parent = above.parent
        piped = parent is not None and parent.type == "BinaryCmd" and parent.data["Op"] in ("|", "|&")
        if parent is not None and piped and parent.child("Y") is above:
            return True
        above = parent
    return False
