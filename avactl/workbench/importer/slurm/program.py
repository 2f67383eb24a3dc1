"""The program of a job: the text of a script, with few words changed, and what it needs of Slurm before it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from avactl.diagnostics.secrets import looks_secret
from avactl.workbench.importer.model import Body, ImportReader
from avactl.workbench.importer.slurm.environment import slurm_variables
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
from avactl.workbench.importer.slurm.shell import (
    Command,
    Node,
    Program,
    SyntaxProblem,
    Word,
    is_inside,
    is_redirected,
    statement_of,
)
from avactl.workbench.importer.slurm.sizes import LeftOut, Sizes
from avactl.workbench.importer.slurm.steps import Step, exported, known_value

_MPI_LAUNCHERS = ("mpirun", "mpiexec", "mpiexec.hydra")
_TORCH = re.compile(r"\b(torchrun|torch\.distributed|accelerate|deepspeed)\b")
_PYTHON = re.compile(r"python[0-9.]*").fullmatch
_WITHOUT_MPI = re.compile(
    r"python[0-9.]*|torchrun|accelerate|deepspeed|(ba|z|da)?sh|env|nsys|ncu|numactl|time"
).fullmatch
_SETUP = ("module", "ml", "spack", "conda", "micromamba", "mamba")
_SETUP_FILE = re.compile(r"(^|/)(activate|conda\.sh|\.?bashrc|\.?bash_profile|\.?profile|lmod\.sh|modules?\.sh|bash)$")
_SETUP_HOOK = re.compile(r"(conda|mamba|micromamba|module|modulecmd)\b.*\b(hook|bash)\b")
_ASKS_SLURM = frozenset(
    """
    sbatch salloc squeue scancel sacct sinfo sattach sbcast sstat sprio strigger sacctmgr smap sshare srun_cr
    sgather
    """.split()  # noqa: SIM905 - a list of words reads better
)
_HOST_OPTIONS = ("-I", "-i", "--ip-address", "--all-ip-addresses")
_REPEATABLE = frozenset(
    """
    : [ alias awk basename bc builtin cat cd command cp cut date declare df diff dirname du echo egrep env eval exit
    export expr false fgrep find free getconf getent grep groups head hostname id ifconfig ip ldd let local ls lscpu
    mapfile mkdir nproc nvidia-smi paste popd printenv printf ps pushd pwd read readarray readlink readonly realpath
    return scontrol sed seq set shift shopt sleep sort source stat . tail tee test time top touch tr trap true type
    typeset ulimit umask uname unalias uniq unset wait wc which whoami xargs yes
    """.split()  # noqa: SIM905 - a list of words reads better
)
"""Commands that may run on each machine, though Slurm runs them on the first only."""
_DIFFERING = ("date", "mktemp", "uuidgen", "openssl", "shuf", "hostid")
_DIFFERING_VARIABLES = ("$", "BASHPID", "SECONDS", "EPOCHSECONDS", "EPOCHREALTIME", "SRANDOM")
_BUILTINS = frozenset(
    """
    alias bg bind break builtin caller cd command compgen complete continue coproc declare dirs disown echo enable
    eval exec exit export false fc fg getopts hash help history jobs kill let local logout mapfile popd printf pushd
    pwd read readarray readonly return set shift shopt source . suspend test [ time times trap true type typeset
    ulimit umask unalias unset wait : srun scontrol
    """.split()  # noqa: SIM905 - a list of words reads better
)
_RENDEZVOUS_OPTIONS = (
    "nnodes",
    "nproc-per-node",
    "rdzv-id",
    "rdzv-backend",
    "rdzv-endpoint",
    "rdzv-conf",
    "master-addr",
    "master-port",
    "node-rank",
    "local-addr",
)
_TORCHRUN_FLAGS = ("standalone", "no-python", "m", "module", "run-path", "use-env", "help")
_RENDEZVOUS_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "NODE_RANK")
_OF_HOSTS = re.compile(r"\bscontrol\b|\bSLURM_(JOB_|STEP_)?NODELIST\b|\bSLURM_LAUNCH_NODE_IPADDR\b")
_CONTAINER_VALUES = ("-B", "--bind", "--env", "--pwd", "-H", "--home", "--workdir", "-W", "--overlay", "--env-file")


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
        self._removed: list[tuple[int, int]] = []
        """Bytes of the text that are not part of the program any more."""
        self._needs: set[str] = set()
        self._secrets: set[str] = set()
        self._kill = False
        self._per_task_gpus = 0
        self._commands = program.commands
        self._steps = [each for each in steps if not self._replace_host_step(each)]
        for command in self._commands:
            self._check_command(command)
        self._refuse_texts()
        if not any(self._is_program(each) for each in self._commands):
            raise LeftOut("it has no command")
        self.strategy = self._choose_strategy()
        torch = _TORCH.search(program.data.decode()) is not None
        self.framework = "pytorch" if torch and self.strategy in ("single", "allReduce") else "custom"
        self._launch = self._only_torchrun()
        if self._launch is not None:
            self._strip_rendezvous(self._launch)
        for step in self._steps:
            self._edit_step(step)
        self._drop_directory()
        self._take_variables()
        if self.strategy == "allReduce":
            self._check_machines()

    def command(self, directory: str | None) -> Body:
        """Return `command` and `args`: the program itself if it is one command, else a shell with the text."""
        words = self._plain_words()
        if words is not None and directory is None:
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
        if node.type != "CallExpr" or self.is_removed(node.start) or not command.words:
            return False
        name = command.name
        if name in ("srun", *_MPI_LAUNCHERS):
            return True
        return not is_inside(node, "CmdSubst") and (not name or name not in _REPEATABLE - {"cp", "find"})

    def is_removed(self, byte: int) -> bool:
        """Return True for a place of the text that is not part of the program any more."""
        return any(start <= byte < end for start, end in self._removed)

    def _remove(self, node: Node) -> None:
        whole = self._program.remove(node)
        self._removed.append((whole.start, whole.end))

    def _check_command(self, command: Command) -> None:
        """Take out what the image does, and the container around a program. Raises LeftOut for questions to Slurm."""
        name, words = command.name, command.words
        arguments = [each.text for each in words[1:]]
        if name in _ASKS_SLURM:
            raise LeftOut(f"line {command.line}: `{name}` asks Slurm")
        if name == "scontrol" and not self.is_removed(command.node.start):
            if arguments[:1] != ["show"] or arguments[1:2] not in (["hostnames"], ["hostname"]):
                raise LeftOut(f"line {command.line}: `scontrol {' '.join(arguments)[:40]}` asks Slurm")
            self._needs.add("scontrol")
        of_file = name in ("source", ".") and arguments and _SETUP_FILE.search(arguments[0].strip("\"'").split()[0])
        hook = name == "eval" and _SETUP_HOOK.search(" ".join(arguments))
        if name in _SETUP or of_file or hook:
            self._lose(command.line, "the image has what the line loads", "build it into the image")
            self._remove(command.node)
        elif name in ("source", ".") and arguments:
            self._lose(command.line, f"the image must have {arguments[0][:60]}", "")
        elif name in ("singularity", "apptainer"):
            self._strip_container(command, words)

    def _strip_container(self, command: Command, words: Sequence[Word]) -> None:
        """Let the pod run what a container would; its image is that of the spec."""
        texts = [each.value if each.value is not None else each.text for each in words]
        if "exec" not in texts:
            raise LeftOut(f"line {command.line}: the program of the container is in its image")
        index = texts.index("exec") + 1
        while index < len(texts) and texts[index].startswith("-"):
            index += 2 if texts[index] in _CONTAINER_VALUES else 1
        if index + 1 >= len(texts):
            raise LeftOut(f"line {command.line}: the container has no command")
        self._lose(command.line, f"the pods run the image of the spec in place of {texts[index][:200]}")
        if any(option in texts[:index] for option in ("-B", "--bind", "--pwd", "--env", "-H", "--home")):
            self._lose(command.line, "options of the container have no effect", "mount volumes: `pod: {volumes: …}`")
        self._program.replace(words[0].start, words[index + 1].start, "")

    def _refuse_texts(self) -> None:
        """Raise LeftOut if a text that other commands may run names a command of Slurm."""
        for text, line in self._program.strings:
            found = re.search(r"(?:^|[\s;&|(\"'])(srun|sbatch|squeue|scontrol)\s", text)
            if found and not text.startswith(('"Usage', "'Usage")) and not self._is_printed(text):
                raise LeftOut(f"line {line}: `{found[1]}` in a text, which avactl cannot change")

    def _is_printed(self, text: str) -> bool:
        return any(
            text == word.text for each in self._commands if each.name in ("echo", "printf") for word in each.words[1:]
        )

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
            by_address = any(each in _HOST_OPTIONS for each in arguments)
            text = f"address_of {host}" if by_address else f"echo {host}"
            self._needs |= {"address"} if by_address else set()
        self._program.replace(node.start, node.end, text)
        self._removed.append((node.start, node.end))
        return True

    def _edit_step(self, step: Step) -> None:
        """Take the options of srun out."""
        for name in ("multi-prog", "pty", "input", "relative", "bcast", "het-group", "overcommit", "x11", "nodefile"):
            if step.get(name) is not None:
                raise LeftOut(f"line {step.line}: `--{name}` of srun has no equivalent")
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
        elif (self._sizes.tasks == tasks == 1 and not self._per_task_gpus) or (
            self._launch is not None and self._plain_words() is not None
        ):
            start = ""
        else:
            start = f"srun {tasks // self._sizes.nodes} "
            self._needs.add("srun")
        self._program.replace(step.command.words[0].start, step.program[0].start, start + prefix)

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

    def _only_torchrun(self) -> list[Word] | None:
        """Return the words of torchrun if it is the step of a job on several machines, and its words are known."""
        if self.strategy != "allReduce" or self._sizes.per_node > 1 or not self._steps:
            return None
        words = self._steps[0].program
        if words[0].value is None:
            return None
        if words[0].value.rpartition("/")[2] == "torchrun":
            return words
        texts = [each.text for each in words[:4]]
        if _PYTHON(words[0].value.rpartition("/")[2]):
            for module in ("torch.distributed.run", "torch.distributed.launch"):
                if ["-m", module] in (texts[1:3], texts[2:4]):
                    return words[texts.index(module) :]
        return None

    def _strip_rendezvous(self, words: list[Word]) -> None:
        """Take out where torchrun finds its peers, which it reads from variables, and what only computes that."""
        index, removed = 1, []
        while index < len(words) and words[index].text.startswith("-"):
            name = words[index].text.lstrip("-").partition("=")[0].replace("_", "-")
            width = 1 if "=" in words[index].text or name in _TORCHRUN_FLAGS else 2
            if index + width > len(words):
                return
            if name in _RENDEZVOUS_OPTIONS:
                removed.append((f"--{name}", words[index].start, words[index + width - 1].end, index, width))
            index += width
        if not removed:
            return
        for _, start, end, at, width in removed:
            following = words[at + width].start if at + width < len(words) else end
            self._program.replace(start, following, "")
            self._removed.append((start, end))
        names = ", ".join(each[0] for each in removed)
        self._lose(self._steps[0].line, f"torchrun reads them from variables: {names}")
        self._drop_host_variables()

    def _drop_host_variables(self) -> None:
        """Remove assignments that only find the nodes, if nothing reads them any more."""
        program = self._program
        derived: dict[str, list[Node]] = {}
        grown = True
        while grown:
            grown = False
            for name, places in program.assignments.items():
                texts = [program.text_of(each) for each in places]
                if name in derived or any(each.type != "Assign" for each in places):
                    continue
                if any(
                    _OF_HOSTS.search(text) or any(re.search(rf"\$\{{?#?{other}\b", text) for other in derived)
                    for text in texts
                ):
                    derived[name] = places
                    grown = True
        for name, places in program.assignments.items():
            if name in _RENDEZVOUS_VARIABLES and all(each.type == "Assign" for each in places):
                derived[name] = places
        statements = [_whole_statement(place) for places in derived.values() for place in places]
        if any(each is None for each in statements):
            return
        own = [each for each in statements if each is not None]
        echoes: list[Node] = []
        for name in derived:
            for each in program.reads:
                if each.name != name or self.is_removed(each.start):
                    continue
                if any(node.start <= each.start < node.end for node in own):
                    continue
                place = program.node_at(each.start)
                call = statement_of(place).child("Cmd")
                if call is None or call.type != "CallExpr" or program.command(call).name != "echo":
                    return
                echoes.append(call)
            if any(re.search(rf"\b{name}\b", text) for text, _ in program.strings if text.startswith("'")):
                return
        for node in [*own, *dict.fromkeys(echoes)]:
            if not self.is_removed(node.start):
                self._lose(node.line, "avactl sets the addresses and ranks of workers")
                self._remove(node)

    def _drop_directory(self) -> None:
        """Remove `cd $SLURM_SUBMIT_DIR`: a program starts in the working directory of its image."""
        for command in self._commands:
            if command.name == "cd" and re.fullmatch(
                r'"?\$\{?SLURM_SUBMIT_DIR\}?"?', " ".join(each.text for each in command.words[1:])
            ):
                self._remove(command.node)

    def _take_variables(self) -> None:
        """Make `env` of exports at the top of the program with known values, and remove those that look secret."""
        program = self._program
        for command in self._commands:
            node = command.node
            if node.type == "DeclClause" and _at_top(node) and command.name == "export":
                if self.is_removed(node.start) or len(command.words) > 1:
                    continue
                made = {each: self._literal_assignment(each) for each in command.assignments}
                if all(made.values()):
                    pairs = [each for each in made.values() if each]
                    if all(len(program.assignments.get(name, ())) == 1 for name, _ in pairs):
                        self._take_pairs(pairs, command.line)
                        self._remove(node)
            for assignment in command.assignments if not self.is_removed(node.start) else ():
                self._refuse_secret(assignment)
        for node in program.nodes:
            if node.type == "Assign" and not node.has("Naked") and not self.is_removed(node.start):
                self._refuse_secret(node)

    def _literal_assignment(self, node: Node) -> tuple[str, str] | None:
        name, value = node.data["Name"]["Value"], node.child("Value")
        if value is None or node.has("Append") or node.has("Array"):
            return None
        found = self._program.literal(value)
        if found is None:
            found = known_value(self._program, self._program.text_of(value).strip('"'), self._constants)
        return None if found is None else (name, found)

    def _take_pairs(self, pairs: list[tuple[str, str]], line: int) -> None:
        for name, value in pairs:
            if looks_secret(value, name):
                self._secrets.add(name)
                self._lose(
                    line,
                    f"the value of {name} looks like a credential",
                    f"make a Secret, and write `env: {{{name}: {{secret: …}}}}`",
                )
            else:
                self.env[name] = value

    def _refuse_secret(self, node: Node) -> None:
        found = self._literal_assignment(node)
        if found is not None and looks_secret(found[1], found[0]):
            raise LeftOut(
                f"line {node.line}: the value of {found[0]} looks like a credential: `export` it in a line of its own"
            )

    def _check_machines(self) -> None:
        """Raise LeftOut if a command beside the step would do something else on several machines than on one."""
        program, functions = self._program, self._program.functions
        step = self._steps[0].command.node
        for command in self._commands:
            node, name = command.node, command.name
            if node is step or self.is_removed(node.start) or not command.words:
                continue
            if name not in _REPEATABLE and name not in functions and name not in _DIFFERING:
                raise LeftOut(
                    f"line {command.line}: Slurm runs `{(name or command.words[0].text)[:40]}` once, on the first "
                    "node; make it a job of its own, with `after`"
                )
            printed = self._is_shown(node)
            if name in _DIFFERING and is_inside(node, "CmdSubst") and not printed:
                raise LeftOut(f"line {command.line}: `{name}` gives another value on each machine: write the value")
            if name == "hostname" and is_inside(node, "CmdSubst") and not printed:
                by_address = any(each.text in _HOST_OPTIONS for each in command.words[1:])
                text = 'address_of "$MASTER_ADDR"' if by_address else 'echo "$MASTER_ADDR"'
                self._needs |= {"address"} if by_address else set()
                program.replace(node.start, node.end, text)
        for each in program.reads:
            place = program.node_at(each.start)
            if each.name in _DIFFERING_VARIABLES and not self._is_shown(place):
                raise LeftOut(f"line {each.line}: ${each.name} has another value on each machine")
            if each.name == "RANDOM":
                self._needs.add("random")
            if each.name == "HOSTNAME":
                self._needs.add("hostname")

    def _is_shown(self, node: Node) -> bool:
        """Return True below an `echo` or `printf` at the top level: its text goes to the log only."""
        call = statement_of(node).child("Cmd")
        return call is not None and call.type == "CallExpr" and self._program.command(call).name in ("echo", "printf")

    def _plain_words(self) -> list[str] | None:
        """Return the words of a program that is one command, without anything that a shell must do; else None."""
        program = self._program
        left = [each for each in program.root.children if each.type == "Stmt" and not self.is_removed(each.start)]
        call = left[0].child("Cmd") if len(left) == 1 else None
        if (
            call is None
            or call.type != "CallExpr"
            or any(left[0].has(key) for key in ("Redirs", "Negated", "Background"))
        ):
            return None
        command = program.command(call)
        if command.assignments:
            return None
        words = command.words
        if command.name == "srun":
            step = self._steps[0] if self._steps else None
            several = self._sizes.nodes > 1 and self._launch is None
            if step is None or several or self._sizes.per_node > 1 or self._per_task_gpus:
                return None
            if step.get("export", "chdir", "container-workdir") is not None:
                return None
            words = step.program
        elif command.name in ("singularity", "apptainer", *_BUILTINS):
            return None
        kept = [each for each in words if not self.is_removed(each.start)]
        values = [each.value if each.value is not None else self._constant_word(each.text) for each in kept]
        return None if None in values else [each or "" for each in values]

    def _constant_word(self, text: str) -> str | None:
        bare = text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text
        value = known_value(self._program, bare, self._constants)
        return None if value is None or (bare == text and re.search(r"\s", value)) or '"' in bare else value

    def _replace_last(self) -> None:
        """Let the last command take the place of the shell, so that it gets the signals of the pod."""
        program = self._program
        left = [each for each in program.root.children if each.type == "Stmt"]
        call = left[-1].child("Cmd") if left else None
        if call is None or call.type != "CallExpr" or self.is_removed(call.start):
            return
        if left[-1].has("Negated") or left[-1].has("Background"):
            return
        command = program.command(call)
        name = command.name
        if any(each.name == "trap" for each in self._commands) or name in program.functions or not command.words:
            return
        if name and name not in _BUILTINS and name not in ("rm", "cp", "mv", "touch", "rsync"):
            program.replace(command.words[0].start, command.words[0].start, "exec ")

    def _set_variables(self, text: str) -> None:
        """Add Slurm's variables to the environment: those that the text names; all if `srun` starts programs."""
        named = slurm_variables(self._program)
        full = bool(self._steps)
        for name, value in self._constants.items():
            wanted = name in named and re.search(rf"\b{name}\b", text) is not None
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
            lines += [f"export {name}=$SLURM_JOB_NODELIST" for name in lists if name != NODE_LISTS[0]]
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
            lines += srun_function(sizes.nodes, self._per_task_gpus, self._kill).splitlines()
        if "mpi" in needs:
            lines += mpi_function(sizes.per_node, self._computed_exports()).splitlines()
        return [HEADER, *lines] if lines else []

    def _computed_exports(self) -> list[str]:
        """Return the variables that the program exports itself: mpirun passes those on that it is told."""
        names = []
        for command in self._commands:
            if command.name == "export" and not self.is_removed(command.node.start):
                names += [each.data["Name"]["Value"] for each in command.assignments]
                names += [each.text for each in command.words[1:] if each.text.isidentifier()]
        return list(dict.fromkeys(names))


def escape_references(text: str) -> str:
    """Return a text of a pod that Kubernetes does not change: it reads `$(NAME)` as a variable, and `$$` as `$`."""
    return re.sub(r"\$(?=\$|\([A-Za-z_]\w*\))", "$$", text)


def _whole_statement(assignment: Node) -> Node | None:
    """Return the statement of an assignment if it is nothing but that, at the top level."""
    call = assignment.parent
    if call is None or not _at_top(call) or len(call.children) != 1:
        return None
    return call


def _at_top(node: Node) -> bool:
    """Return True for the command of a statement of the top level."""
    return node.parent is not None and node.parent.parent is not None and node.parent.parent.type == "File"
