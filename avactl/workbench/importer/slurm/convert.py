"""Slurm batch scripts → TrainingJobs: single, torchrun on several nodes, and MPI."""

from __future__ import annotations

import re
import shlex
from fractions import Fraction
from math import ceil

from avactl.base.quantity import format_quantity
from avactl.diagnostics.secrets import looks_secret
from avactl.workbench.importer.gpus import gpu_model
from avactl.workbench.importer.model import Body, ImportedSpec, ImportReader
from avactl.workbench.importer.slurm.script import FLAGS, ScriptLine, SlurmScript, parse, split_words
from avactl.workbench.importer.sources.context import Context
from avactl.workbench.importer.sources.training import format_seconds

_DROPPED_OPTIONS = {
    "partition": ("pools take the place of partitions", "set `workers: {pool: …}`"),
    "account": ("jobs count towards the quota of their team", ""),
    "qos": ("avactl has priority classes of its own", "set `priority: low`, `normal` or `high`"),
    "constraint": ("features of nodes are labels", "set `pod: {nodeSelector: …}`"),
    "output": ("`avactl logs` prints what the pods write", ""),
    "error": ("`avactl logs` prints what the pods write", ""),
    "array": ("a spec is one run", "write one spec for each element, with its parameters as `args`"),
    "exclusive": ("pods share machines", "request all CPUs and GPUs of a machine"),
    "dependency": ("jobs start when they fit", "start them one after the other in your pipeline"),
    "nodelist": ("the scheduler chooses the nodes", "set `workers: {pool: …}`"),
    "exclude": ("the scheduler chooses the nodes", "cordon broken machines"),
    "signal": ("pods get SIGTERM before they end", "set `pod: {terminationGracePeriodSeconds: …}`"),
    "begin": ("a job starts as soon as it fits", ""),
    "mail-type": ("avactl sends no mail", ""),
    "mail-user": ("avactl sends no mail", ""),
    "licenses": ("avactl does not count licenses", ""),
    "reservation": ("a quota guarantees GPUs", ""),
}
_IGNORED_OPTIONS = (
    "job-name",
    "requeue",
    "no-requeue",
    "open-mode",
    "get-user-env",
    "export",
    "parsable",
    "ntasks-per-core",
    "hint",
    "distribution",
    "wait-all-nodes",
    "propagate",
    "container-mounts",
)
_SIZE_OPTIONS = (
    "nodes",
    "ntasks",
    "ntasks-per-node",
    "cpus-per-task",
    "gres",
    "gpus",
    "gpus-per-node",
    "gpus-per-task",
    "mem",
    "mem-per-cpu",
    "mem-per-gpu",
    "time",
    "chdir",
    "container-image",
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
_SETUP_LINE = re.compile(r"(module|ml|spack|conda|micromamba|source|\.|mamba)\s")
_ASSIGNMENT = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=")
_LAUNCHER_COMMAND = re.compile(
    r"srun|mpirun|mpiexec(\.hydra)?|torchrun|accelerate|deepspeed|horovodrun|apptainer|singularity|python[0-9.]*"
).fullmatch
_RENDEZVOUS_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "NODE_RANK")
_SHELL_SYNTAX = re.compile(r"[$`*?;|<>&(){}~]")


def convert_script(context: Context, reader: ImportReader) -> ImportedSpec | str:
    """Return the TrainingJob of a script, or the reason why there is none."""
    script = parse(reader.given.get("script"))
    image = _container_image(script) or context.options.images.get("job")
    if image is None:
        return "a Slurm script names no image: give one with what its modules have, by `--image job=IMAGE`"
    for each in script.directives:
        if each.name in _DROPPED_OPTIONS and not (
            each.name == "constraint" and gpu_model(each.value) in each.value.upper()
        ):
            reader.note(("line", each.line, f"--{each.name}"), *_DROPPED_OPTIONS[each.name])
        elif each.name not in (*_IGNORED_OPTIONS, *_SIZE_OPTIONS, *_DROPPED_OPTIONS):
            reader.note(("line", each.line, f"--{each.name}"), "avactl has no such option", "")
    sizes = _Sizes(script, reader)
    program = _Program(script, reader, sizes)
    if program.launch is None:
        return "it has no command"
    workers: Body = {"replicas": sizes.nodes, "cpu": sizes.cpu, "memory": sizes.memory}
    if sizes.gpus:
        workers["gpus"] = sizes.gpus
        workers |= {"gpu": sizes.model} if sizes.model else {}
    body: Body = {"framework": program.framework, "strategy": program.strategy, "image": image}
    body |= program.command()
    body["env"] = program.env
    if program.strategy == "mpi":
        body["launcher"] = {"cpu": "1", "memory": "2Gi"}
        if sizes.per_node != (sizes.gpus or 1):
            body["slotsPerWorker"] = sizes.per_node
    if sizes.nodes == 1:
        del workers["replicas"]
    body["workers"] = workers
    limit = _parse_time(script.get("time"))
    body["timeout"] = format_seconds(limit) if limit else None
    reader.note(
        (),
        "processes run as user 1000; homes and file systems of the cluster are not there",
        "mount them: `pod: {volumes: …}`",
    )
    spec = context.spec("TrainingJob", reader, body)
    spec.spec = {key: value for key, value in body.items() if value not in (None, {}, [])}
    return spec


def _container_image(script: SlurmScript) -> str | None:
    """Return the image that the plugin pyxis is told: `registry#name` is its notation for `registry/name`."""
    found = script.get("container-image")
    if found is None or found.startswith(("/", ".")) or found.endswith(".sqsh"):
        return None
    return found.removeprefix("docker://").replace("#", "/", 1)


class _Sizes:
    """Nodes, and what each of them gives to the job."""

    def __init__(self, script: SlurmScript, reader: ImportReader) -> None:
        nodes = (script.get("nodes") or "1").partition("-")
        self.nodes = _parse_number(nodes[0], 1)
        if nodes[2]:
            self._note_size(script, reader, "nodes", f"the number of workers is fixed: {self.nodes}")
        tasks, per_node = script.get("ntasks"), script.get("ntasks-per-node", "tasks-per-node")
        if tasks and script.get("nodes") is None and per_node:
            self.nodes = max(1, ceil(_parse_number(tasks, 1) / _parse_number(per_node, 1)))
        self.per_node = _parse_number(per_node or "", 0) or max(1, ceil(_parse_number(tasks or "", 1) / self.nodes))
        self.tasks = _parse_number(tasks or "", self.per_node * self.nodes)
        self.gpus, self.model = self._read_gpus(script)
        per_task = _parse_number(script.get("cpus-per-task") or "", 1)
        self.cpu = str(per_task * self.per_node)
        self.per_task = per_task
        self.memory = self._read_memory(script, reader)

    def _note_size(self, script: SlurmScript, reader: ImportReader, name: str, why: str, remedy: str = "") -> None:
        line = next((each.line for each in script.directives if each.name == name), 1)
        reader.note(("line", line, f"--{name}"), why, remedy)

    def _read_gpus(self, script: SlurmScript) -> tuple[int, str]:
        model = gpu_model(script.get("constraint") or "")
        model = model if model and model in (script.get("constraint") or "").upper() and model[0].isalpha() else ""
        for name in ("gpus-per-node", "gres", "gpus", "gpus-per-task"):
            value = script.get(name)
            if value is None:
                continue
            parts = value.removeprefix("gres/").split(",")[0].split("(")[0].split(":")
            if name == "gres":
                if parts[0] != "gpu":
                    continue
                parts = parts[1:] or ["1"]
            count = _parse_number(parts[-1], 1)
            kind = gpu_model(parts[0]) if len(parts) > 1 else model
            if name == "gpus":
                count = ceil(count / self.nodes)
            return min(16, count * (self.per_node if name == "gpus-per-task" else 1)), kind
        return 0, model

    def _read_memory(self, script: SlurmScript, reader: ImportReader) -> str:
        for name, times in (("mem", 1), ("mem-per-cpu", int(self.cpu)), ("mem-per-gpu", max(1, self.gpus))):
            value = script.get(name)
            found = re.fullmatch(r"(\d+)([KMGTkmgt]?)B?", value or "")
            if found and int(found[1]):
                unit = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}[found[2].upper() or "M"]
                return format_quantity(Fraction(int(found[1]) * unit * times))
        least = max(2, 4 * int(self.cpu))
        said = "all memory of a node" if script.get("mem") == "0" else "no memory"
        self._note_size(
            script, reader, "mem", f"the script asks for {said}; the spec says {least}Gi", "write what it needs"
        )
        return f"{least}Gi"


def _parse_number(text: str, default: int) -> int:
    return min(int(text), 100_000) if text.isascii() and text.isdigit() and len(text) < 9 else default


def _parse_time(text: str | None) -> int:
    """Return a time limit in seconds: `MINUTES`, `MM:SS`, `HH:MM:SS`, `D-HH[:MM[:SS]]`; 0 for none."""
    found = re.fullmatch(r"(?:(\d{1,4})-)?(\d{1,5})(?::(\d{1,2}))?(?::(\d{1,2}))?", text or "")
    if not found:
        return 0
    days, *rest = found.groups()
    numbers = [int(each) for each in rest if each is not None]
    if days is not None:
        numbers += [0] * (3 - len(numbers))
        return int(days) * 86_400 + numbers[0] * 3600 + numbers[1] * 60 + numbers[2]
    if len(numbers) == 1:
        return numbers[0] * 60
    return sum(number * 60**power for power, number in enumerate(reversed(numbers)))


class _Program:
    """The commands of a script, without what Slurm is told."""

    def __init__(self, script: SlurmScript, reader: ImportReader, sizes: _Sizes) -> None:
        self._reader, self._sizes, self._script = reader, sizes, script
        self.env: Body = {}
        self.before: list[str] = []
        self.after: list[str] = []
        self.launch: list[str] | None = None
        self.strategy, self.framework = "single", "custom"
        self._text = ""
        self._unknown: set[str] = set()
        """Variables that depend on Slurm's list of nodes."""
        lines = [line for line in script.lines if self._keep_line(line)]
        at = self._find_launcher(lines)
        if at is None:
            return
        self.before = [self._translate_line(line) for line in lines[:at] if not self._take_variable(line)]
        self.after = [self._translate_line(line) for line in lines[at + 1 :]]
        self._read_launch(lines[at])

    def command(self) -> Body:
        """Return `command` and `args`: the program itself, or a shell with the lines around it."""
        assert self.launch is not None
        lines = [*self.before, self._text, *self.after]
        directory = self._script.get("chdir")
        if directory:
            lines.insert(0, f"cd {shlex.quote(directory)}")
        if len(lines) == 1 and not _SHELL_SYNTAX.search(self._text):
            return {"command": self.launch}
        return {"command": ["bash", "-ec"], "args": ["\n".join(lines) + "\n"]}

    def _keep_line(self, line: ScriptLine) -> bool:
        """Return False for a line whose work the image or avactl does."""
        text = line.text.strip()
        if _SETUP_LINE.match(f"{text} "):
            self._reader.note(("line", line.number), "the image has what the line loads", "build it into the image")
            return False
        assigned = _ASSIGNMENT.match(text)
        refers = "scontrol" in text or re.search(r"SLURM_(JOB_|STEP_)?NODELIST|SLURM_LAUNCH_NODE", text)
        tainted = any(re.search(rf"\$\{{?{name}\b", text) for name in self._unknown)
        if assigned and (refers or tainted or assigned[1] in _RENDEZVOUS_VARIABLES):
            self._unknown.add(assigned[1])
            self._reader.note(("line", line.number), "avactl sets the addresses and ranks of workers", "")
            return False
        if re.fullmatch(r'cd\s+"?\$\{?SLURM_SUBMIT_DIR\}?"?', text):
            return False  # the working directory of the image
        if re.match(r"(echo|set|scontrol|nvidia-smi|hostname|date|env|printenv|wait|sleep)\b", text):
            if text.startswith(("scontrol", "echo")) and (refers or tainted):
                return False
            return not text.startswith(("scontrol", "nvidia-smi", "hostname", "printenv"))
        return True

    def _find_launcher(self, lines: list[ScriptLine]) -> int | None:
        """Return the index of the line that starts the program: the last launcher, or the last command."""
        found = None
        for index, line in enumerate(lines):
            first = _strip_prefixes(split_words(line.text))[:1]
            if first and _LAUNCHER_COMMAND(first[0].rpartition("/")[2]):
                found = index
        if found is None:
            commands = [i for i, line in enumerate(lines) if not re.match(r"(export|cd|set|echo|ulimit)\b", line.text)]
            plain = [i for i in commands if not _ASSIGNMENT.match(lines[i].text)]
            found = plain[-1] if plain else None
        return found

    def _take_variable(self, line: ScriptLine) -> bool:
        """Add a variable with a literal value to the environment; return True for such a line."""
        parts = split_words(line.text)
        if parts[:1] != ["export"] or not all("=" in part for part in parts[1:]) or len(parts) < 2:
            return False
        made = {}
        for part in parts[1:]:
            name, _, value = part.partition("=")
            value = self._replace_slurm_variables(value)
            if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name) or _SHELL_SYNTAX.search(value):
                return False
            if looks_secret(value, name):
                self._reader.note(
                    ("line", line.number),
                    f"the value of {name} looks like a credential",
                    f"make a Secret, and write `env: {{{name}: {{secret: …}}}}`",
                )
                continue
            made[name] = value
        self.env |= made
        return True

    def _replace_slurm_variables(self, text: str) -> str:
        """Return a text with Slurm's variables replaced by numbers, or by variables that avactl sets."""
        sizes = self._sizes
        known = {
            "SLURM_NNODES": sizes.nodes,
            "SLURM_JOB_NUM_NODES": sizes.nodes,
            "SLURM_NTASKS": sizes.tasks,
            "SLURM_NPROCS": sizes.tasks,
            "SLURM_NTASKS_PER_NODE": sizes.per_node,
            "SLURM_CPUS_PER_TASK": sizes.per_task,
            "SLURM_GPUS_ON_NODE": sizes.gpus,
            "SLURM_GPUS_PER_NODE": sizes.gpus,
            "SLURM_CPUS_ON_NODE": sizes.cpu,
            "SLURM_GPUS": sizes.gpus * sizes.nodes,
            "SLURM_JOB_NAME": self._reader.given.name,
            "SLURM_JOB_ID": "$AVACTL_JOB",
            "SLURM_JOBID": "$AVACTL_JOB",
            "SLURM_NODEID": "$AVACTL_INDEX",
        }
        return re.sub(r"\$\{?(SLURM_[A-Z_]+)\}?", lambda found: str(known.get(found[1], found[0])), text)

    def _with_notes(self, line: ScriptLine) -> str:
        text = self._replace_slurm_variables(line.text)
        for name in dict.fromkeys(re.findall(r"SLURM_[A-Z_]+", text)):
            self._reader.note(("line", line.number), f"{name} is not set", "torchrun sets RANK and LOCAL_RANK")
        return text

    def _translate_line(self, line: ScriptLine) -> str:
        text = self._with_notes(line)
        return re.sub(r"^\s*srun\s+(-\S+\s+)*(?=\S)", "", text) if text.lstrip().startswith("srun ") else text

    def _read_launch(self, line: ScriptLine) -> None:
        rest = _strip_prefixes(split_words(self._with_notes(line)))
        by_srun = rest[:1] == ["srun"]
        if by_srun:
            rest = _after_options(rest[1:], _WITH_VALUE_SRUN)
        rest = self._without_container(rest, line)
        if not rest:
            return
        name = rest[0].rpartition("/")[2]
        several, sizes = self._sizes.tasks > 1 or self._sizes.nodes > 1, self._sizes
        python = bool(re.fullmatch(r"python[0-9.]*", name))
        torch = name == "torchrun" or "torch.distributed" in " ".join(rest[:3])
        if torch:
            self.framework = "pytorch"
            self.strategy = "allReduce" if sizes.nodes > 1 else "single"
            rest = self._strip_rendezvous(rest, line)
        elif name in ("mpirun", "mpiexec", "mpiexec.hydra"):
            self.strategy = "mpi"
        elif by_srun and several and python and sizes.gpus:
            self.framework, self.strategy = "pytorch", "allReduce" if sizes.nodes > 1 else "single"
            self._reader.note(
                ("line", line.number),
                "torchrun starts the processes, one per GPU, in place of srun",
                "read RANK, LOCAL_RANK and WORLD_SIZE in place of SLURM_PROCID and others",
            )
            alone = ["--standalone", f"--nproc-per-node={sizes.gpus}"] if sizes.nodes == 1 else []
            rest = ["torchrun", *alone, *_python_script(rest)]
        elif by_srun and several:
            self.strategy = "mpi"
            rest = ["mpirun", *rest]
            self._reader.note(("line", line.number), "mpirun starts the processes in place of srun", "")
        else:
            joined = " ".join(rest)
            self.framework = "pytorch" if "torch" in joined or name in ("accelerate", "deepspeed") else "custom"
        self.launch = rest
        self._text = " ".join(part if "$" in part else shlex.quote(part) for part in rest)

    def _without_container(self, rest: list[str], line: ScriptLine) -> list[str]:
        if rest[:1] and rest[0] in ("singularity", "apptainer") and "exec" in rest:
            inner = _after_options(rest[rest.index("exec") + 1 :], ("-B", "--bind", "--env", "--pwd", "-H", "--home"))
            own = inner[0][:200] if inner else ""
            self._reader.note(("line", line.number), f"the pods run the image of the spec in place of {own}", "")
            return inner[1:]
        return rest

    def _strip_rendezvous(self, rest: list[str], line: ScriptLine) -> list[str]:
        """Take out where torchrun finds its peers: it reads that from variables on several nodes."""
        start = 3 if rest[0].rpartition("/")[2] != "torchrun" else 1
        kept, index = rest[:start], start
        removed = []
        while index < len(rest) and rest[index].startswith("-"):
            name = rest[index].lstrip("-").partition("=")[0].replace("_", "-")
            own = name in _RENDEZVOUS_OPTIONS and (self._sizes.nodes > 1 or name not in ("nproc-per-node",))
            width = 1 if "=" in rest[index] or name in ("standalone", "no-python", "m", "module") else 2
            if own:
                removed.append(f"--{name}")
            else:
                kept += rest[index : index + width]
            index += width
        if removed:
            self._reader.note(("line", line.number), f"torchrun reads them from variables: {', '.join(removed)}", "")
        return [*kept, *rest[index:]]


_WITH_VALUE_SRUN = ("-n", "-N", "-c", "-w", "-G", "-p", "-t", "-A", "-J", "-o", "-e", "-m")


def _strip_prefixes(parts: list[str]) -> list[str]:
    """Return a command without variables before it, `exec` and `time`."""
    index = 0
    while index < len(parts) and (_ASSIGNMENT.match(parts[index]) or parts[index] in ("exec", "time", "nohup")):
        index += 1
    return parts[index:]


def _after_options(parts: list[str], with_value: tuple[str, ...]) -> list[str]:
    """Return the words behind the options of a launcher. Long options have their value after `=` or a blank."""
    index = 0
    while index < len(parts) and parts[index].startswith("-"):
        word = parts[index]
        index += 1
        takes = word in with_value or (
            word.startswith("--") and "=" not in word and word[2:] not in FLAGS and word not in ("--nv", "--rocm")
        )
        index += takes
    return parts[index:]


def _python_script(rest: list[str]) -> list[str]:
    """Return a Python command without the interpreter."""
    return [part for part in rest[1:] if part not in ("-u",)]
