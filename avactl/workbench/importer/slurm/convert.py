"""Slurm batch scripts → TrainingJobs, whose pods run the script's program as it is.

Slurm runs a script once, on the first node, and `srun` starts tasks on all of them. A pod of a job with one node runs
the script; with several nodes each pod does, and `srun` starts the tasks of its own machine. A script of which that
would be another program is left out, with the line and the reason.
"""

from __future__ import annotations

import re

from avactl.base.variable_references import escape_references
from avactl.diagnostics.secrets import looks_secret
from avactl.workbench.importer.gpus import known_gpu_model
from avactl.workbench.importer.model import Body, ImportedSpec, ImportReader
from avactl.workbench.importer.shell import Program, SyntaxProblem
from avactl.workbench.importer.slurm.environment import check_variables, refuse_arguments
from avactl.workbench.importer.slurm.options import (
    LISTED_OPTIONS,
    SILENT_OPTIONS,
    SIZE_OPTIONS,
    USED_OPTIONS,
    bound_gpus,
)
from avactl.workbench.importer.slurm.prelude import constant_variables, open_constants
from avactl.workbench.importer.slurm.program import JobProgram
from avactl.workbench.importer.slurm.script import (
    MAX_ELEMENTS,
    Directive,
    SlurmScript,
    array_elements,
    array_facts,
    parse,
)
from avactl.workbench.importer.slurm.sizes import LeftOut, Sizes
from avactl.workbench.importer.slurm.steps import Step, find_steps
from avactl.workbench.importer.sources.context import Context
from avactl.workbench.importer.sources.training import format_seconds

_OPEN_OPTIONS = {
    "ntasks": ("ntasks-per-node", "tasks-per-node"),
    "ntasks-per-node": ("ntasks", "tasks-per-node"),
    "cpus-per-task": ("cpus-per-gpu",),
    "gpus-per-task": ("gpus", "gpus-per-node", "gres"),
}
"""Sizes of steps that a job has room for, if directives name neither them nor these others."""
_SHELL = re.compile(r"(?:/usr)?/bin/(?:env\s+)?(?:ba)?sh((?:\s+-[\w-]+)*)")


def convert_script(context: Context, reader: ImportReader) -> ImportedSpec | str:
    """Return the TrainingJob of a script, or the reason why there is none."""
    try:
        return _convert(context, reader)
    except LeftOut as reason:
        return str(reason)


def _convert(context: Context, reader: ImportReader) -> ImportedSpec:
    text = str(reader.given.get("script"))
    script = parse(text)
    flags = _read_shell(script, text)
    if re.search(r"^#SBATCH\s+(het|pack)job\b", text, re.MULTILINE):
        raise LeftOut("a job of several kinds of nodes has no equivalent")
    try:
        program = Program(script.text)
    except SyntaxProblem as problem:
        raise LeftOut(f"line {problem.line}: {problem.reason}") from None
    refuse_arguments(program, reader)
    options = [*_options_of_steps(find_steps(program, open_constants(script)), script), *script.directives]
    sizes = Sizes(options, lambda line, name, why, remedy: reader.note(("line", line, f"--{name}"), why, remedy))
    elements = array_elements(script.get("array") or "")
    title = script.get("job-name") or str(reader.given.get("file"))
    element = reader.given.get("element")
    constants = constant_variables(sizes, reader.given.name, title, element, array_facts(script.get("array") or ""))
    steps = find_steps(program, constants)
    _refuse_own_output(program, script)
    _refuse_hidden_variables(program, steps, script)
    image = _container_image(options) or context.options.images.get("job")
    if image is None:
        raise LeftOut("it names no image: give one with what its modules have, by `--image job=IMAGE`")
    _note_options(script.directives, steps, reader, element is not None)
    if script.get("array") and not elements:
        raise LeftOut(f"`--array={script.get('array')}` cannot be read")
    if len(elements) > MAX_ELEMENTS:
        reader.note((), f"only the first {MAX_ELEMENTS} elements of the array are specs", "generate them in Python")
    job = JobProgram(program, steps, sizes, constants, reader, flags)
    check_variables(program, constants, reader, job.strategy)
    body: Body = {"framework": job.framework, "strategy": job.strategy, "image": image}
    body |= job.command(_directory(options))
    body["env"] = {name: escape_references(value) for name, value in (_exported(script) | job.env).items()}
    body["workers"] = _workers(sizes)
    if job.library != "openmpi":
        body["mpi"] = {"implementation": job.library}
    if job.strategy == "mpi":
        body["launcher"] = {"cpu": "1", "memory": "2Gi"}
        if sizes.per_node != (sizes.gpus or 1):
            body["slotsPerWorker"] = sizes.per_node
    body["retries"] = 0
    limit = _parse_time(script)
    body["timeout"] = format_seconds(limit) if limit else None
    reader.note(
        (),
        "processes run as user 1000; homes and file systems of the cluster are not there",
        "mount them: `pod: {volumes: …}`",
    )
    reader.losses.sort(key=lambda each: each.span)
    spec = context.spec("TrainingJob", reader, body)
    spec.spec = {key: value for key, value in body.items() if value not in (None, {}, [])}
    return spec


def _read_shell(script: SlurmScript, text: str) -> list[str]:
    """Return the shell that runs the program, with its options. Raises LeftOut for what is none of bash."""
    if "\r\n" in text:
        raise LeftOut("it has line ends of Windows, which sbatch refuses")
    found = _SHELL.fullmatch(script.shebang or "/bin/bash")
    if found is None:
        raise LeftOut(f"line 1: `{script.shebang[:40]}` runs it, which is neither bash nor sh")
    flags = [f"-{flag}" for word in found[1].split() if not word.startswith("--") for flag in word[1:] if flag in "eux"]
    return ["bash", *flags]


def _options_of_steps(steps: list[Step], script: SlurmScript) -> list[Directive]:
    """Return options of steps as directives: the image, and what directives leave open, for the largest step."""
    steps = [each for each in steps if each.name != "hostname"]
    found = [Directive(*each, step.line) for step in steps for each in step.options if each[0].startswith("container-")]
    if len({each.value for each in found if each.name == "container-image"}) > 1:
        raise LeftOut(f"line {steps[1].line}: the steps run in several images: make each a job, with `after`")
    if len(steps) == 1 and not any(each.name in SIZE_OPTIONS for each in script.directives):
        return [Directive(name, value, steps[0].line) for name, value in steps[0].options]
    for name, others in _OPEN_OPTIONS.items():
        values = [(int(step.get(name) or 0), step.line) for step in steps if (step.get(name) or "").isdigit()]
        count, line = max(values, default=(0, 0))
        # Slurm starts one task on each node, unless a step says more.
        if (
            count
            and script.get(name, *others) is None
            and (name != "ntasks" or count > int(open_constants(script)["SLURM_NNODES"]))
        ):
            found.append(Directive(name, str(count), line))
    return found


def _refuse_own_output(program: Program, script: SlurmScript) -> None:
    """Raise LeftOut if a script reads the file that Slurm writes its output to, which pods do not have."""
    names = [script.get("output") or "slurm-%j.out", script.get("error") or ""]
    parts = {"j": r"\$\{?SLURM_JOB_?ID\}?", "A": r"\$\{?SLURM_ARRAY_JOB_ID\}?", "a": r"\$\{?SLURM_ARRAY_TASK_ID\}?"}
    for name in (each.rpartition("/")[2] for each in names):
        pieces = re.split(r"%(.)", name)
        made = "".join(parts.get(each, r"[^\s/]+") if at % 2 else re.escape(each) for at, each in enumerate(pieces))
        found = re.compile(rf"(?:^|[/\"'=]){made}(?:$|[\"'])").search if len("".join(pieces[::2])) > 4 else None
        for command in program.commands if found else ():
            if command.name not in ("echo", "printf") and found and any(found(each.text) for each in command.words):
                raise LeftOut(f"line {command.line}: it reads the file of its own output, {name[:60]}")


def _refuse_hidden_variables(program: Program, steps: list[Step], script: SlurmScript) -> None:
    """Raise LeftOut if srun would hide variables of the script from its tasks: it follows `--export` of sbatch."""
    passed = script.get("export")
    if passed is None or "ALL" in passed.split(",") or not steps:
        return
    words = {word.text for each in program.commands for word in each.words}
    if "SLURM_EXPORT_ENV" not in {*words, *program.assignments} and "export" in words:
        raise LeftOut(f"line {steps[0].line}: by `--export={passed[:40]}`, srun passes on no variable of the script")


def _note_options(directives: list[Directive], steps: list[Step], reader: ImportReader, in_array: bool) -> None:
    own = [Directive(*option, step.line) for step in steps if step.name != "hostname" for option in step.options]
    given = [*directives, *(each for each in own if each.name not in ("output", "error"))]
    for each in dict.fromkeys(given):
        path = ("line", each.line, f"--{each.name}")
        if each.name == "gpu-bind" and bound_gpus(each.value) is not None:
            continue
        if each.name in LISTED_OPTIONS:
            if each.name != "constraint" or not known_gpu_model(each.value):
                reader.note(path, *LISTED_OPTIONS[each.name])
        elif each.name == "export" and each in directives and each.value not in ("ALL", "NONE", "NIL"):
            for name, _, value in (part.partition("=") for part in each.value.split(",")):
                if looks_secret(value, name):
                    why = f"the value of {name} looks like a credential"
                    reader.note(path, why, f"make a Secret, and write `env: {{{name}: {{secret: …}}}}`")
            if "ALL" not in each.value.split(","):
                reader.note(path, "other variables of who submits are not passed on, as in all pods", "")
        elif each.name == "array" and "%" in each.value:
            reader.note(path, "elements start as they fit", "limit them by `after`")
        elif each.name not in (*SIZE_OPTIONS, *USED_OPTIONS, *SILENT_OPTIONS, "kill-on-bad-exit", "mpi"):
            reader.note(path, "avactl has no such option", "")
    image = next((each for each in given if each.name in ("container-image", "image")), None)
    if image is not None and _container_image([image]) is None:
        reader.note(("line", image.line, f"--{image.name}"), "the pods run the image of `--image job=…`", "")


def _container_image(options: list[Directive]) -> str | None:
    """Return the image that pyxis or Shifter is told: pyxis writes `registry#name` for `registry/name`."""
    found = next((each.value for each in reversed(options) if each.name in ("container-image", "image")), None)
    if found is None or found.startswith(("/", ".")) or found.endswith(".sqsh") or "$" in found:
        return None
    return found.removeprefix("docker:").removeprefix("//").replace("#", "/", 1)


def _directory(options: list[Directive]) -> str | None:
    """Return the directory in which the program runs."""
    found = next((each for each in reversed(options) if each.name in ("container-workdir", "chdir")), None)
    if found is None:
        return None
    if re.search(r"[$`]", found.value):
        raise LeftOut(f"line {found.line}: the script computes the working directory")
    return found.value


def _exported(script: SlurmScript) -> Body:
    """Return the variables of `--export=NAME=VALUE`; secrets are not among them."""
    parts = (script.get("export") or "").split(",")
    pairs = [each.partition("=") for each in parts if "=" in each]
    return {name: value for name, _, value in pairs if not looks_secret(value, name)}


def _workers(sizes: Sizes) -> Body:
    workers: Body = {"replicas": sizes.nodes} if sizes.nodes > 1 else {}
    workers |= {"cpu": str(sizes.cpus), "memory": sizes.memory}
    if sizes.gpus:
        workers["gpus"] = sizes.gpus
        workers |= {"gpu": sizes.model} if sizes.model else {}
    return workers


def _parse_time(script: SlurmScript) -> int:
    """Return the time limit in seconds: `MINUTES`, `MM:SS`, `HH:MM:SS`, `D-HH[:MM[:SS]]`; 0 for none.

    Raises LeftOut for what is none of them.
    """
    text = script.get("time")
    if text is None or text.upper() in ("0", "INFINITE", "UNLIMITED"):
        return 0
    found = re.fullmatch(r"(?:(\d{1,4})-)?(\d{1,5})(?::(\d{1,2}))?(?::(\d{1,2}))?", text)
    if not found:
        raise LeftOut(f"`--time={text[:40]}` is no time limit")
    days, *rest = found.groups()
    numbers = [int(each) for each in rest if each is not None]
    if days is not None:
        numbers += [0] * (3 - len(numbers))
        return int(days) * 86_400 + numbers[0] * 3600 + numbers[1] * 60 + numbers[2]
    if len(numbers) == 1:
        return numbers[0] * 60
    return sum(number * 60**power for power, number in enumerate(reversed(numbers)))
