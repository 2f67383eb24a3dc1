"""`avactl topo`: machine topology from `nvidia-smi topo -m`, or from the tables of AMD's programs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from avactl.base.exit_codes import PROBLEMS, USAGE
from avactl.base.terminal import use_colour
from avactl.cli.cluster.cluster_session import DaemonKubeconfig, connect, guard_imports
from avactl.cli.common import exit_with, open_repository
from avactl.spec.repository.tree import find_root

if TYPE_CHECKING:
    from collections.abc import Sequence

    from avactl.diagnostics import Diagnostic
    from avactl.hardware.machine import Machine
    from avactl.hardware.topo_matrix import Matrix
    from avactl.program.program import Item
    from avactl.spec.platform.machine_type import MachineTypeSpec

topo = typer.Typer(
    help="Import a MachineType from `nvidia-smi topo -m` or `rocm-smi --showtopo`, or check a machine by its type.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

_MAX_BYTES = 4 * 1024 * 1024
_File = Annotated[str, typer.Argument(help="Output of `nvidia-smi topo -m`; `-` reads standard input.")]


def _read(file: str) -> tuple[str, str]:
    """Return the text of a file, and its display name."""
    from avactl.hardware.topo_text import decode

    try:
        if file == "-":
            data = sys.stdin.buffer.read(_MAX_BYTES + 1)
        else:
            with Path(file).open("rb") as stream:
                data = stream.read(_MAX_BYTES + 1)
    except OSError as error:
        exit_with(f"{file}: {error.strerror}", USAGE)
    if len(data) > _MAX_BYTES:
        exit_with(
            f"{file} is larger than {_MAX_BYTES >> 20} MiB", USAGE, "pass only the output of `nvidia-smi topo -m`"
        )
    return decode(data), "<stdin>" if file == "-" else file


def _print(problems: Sequence[Diagnostic], content: str) -> None:
    from avactl.diagnostics.text import render_text

    sys.stderr.write(render_text(problems, lambda _: content, use_colour(sys.stderr)))


def _parse_matrix(content: str, name: str, matrix: Matrix | list[Diagnostic] | None = None) -> Matrix:
    """Return `matrix`, by default that of NVIDIA; print its problems if it is invalid."""
    from avactl.hardware.topo_matrix import Matrix, read

    matrix = read(content, name) if matrix is None else matrix
    if not isinstance(matrix, Matrix):
        _print(matrix, content)
        raise typer.Exit(PROBLEMS)
    return matrix


@topo.command("import")
def import_(
    file: _File = "-",
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the type. Default: from the model and GPU count.")
    ] = None,
    gpu: Annotated[str | None, typer.Option("--gpu", help="GPU model, e.g. H100.")] = None,
    memory: Annotated[str | None, typer.Option("--memory", help="Memory of one GPU, e.g. 80Gi.")] = None,
    cpu: Annotated[str | None, typer.Option("--cpu", help="CPU cores that pods may use.")] = None,
    memory_host: Annotated[str | None, typer.Option("--memory-host", help="Host memory that pods may use.")] = None,
    nic_gbit: Annotated[float | None, typer.Option("--nic-gbit", min=0.001, help="NIC speed, Gbit/s.")] = None,
    query: Annotated[
        str | None,
        typer.Option(
            "--query",
            help="Output of `nvidia-smi -L`, `nvidia-smi --query-gpu=name,memory.total --format=csv` or `rocm-smi "
            "--showproductname`, for the GPU model and memory. FILE may also contain it.",
        ),
    ] = None,
) -> None:
    """Print a MachineType as YAML from `nvidia-smi topo -m`, `rocm-smi --showtopo` or `amd-smi topology`."""
    from avactl.compiler.validate import validate_document
    from avactl.hardware import amd_topo
    from avactl.hardware.machine_type_yaml import machine_type_yaml
    from avactl.hardware.topo_gpu import listed
    from avactl.hardware.topo_spec import GivenTopology, describe
    from avactl.kinds.machine_type.check import check_machine_type
    from avactl.program.program import Item
    from avactl.spec.documents.yaml import load_yaml

    content, shown = _read(file)
    amd = amd_topo.read(content, shown)
    matrix = _parse_matrix(content, shown, amd)
    gpus = listed(_read(query)[0] if query else content)
    described = describe(matrix, GivenTopology(name, gpu, memory, cpu, memory_host, nic_gbit), gpus)
    source = "`nvidia-smi topo -m`" if amd is None else "tables of AMD"
    comments = [f"Imported from {Path(shown).name} ({source}) by `avactl topo import`."]
    comments += [f"- {remark}" for remark in described.remarks]
    text = machine_type_yaml(described.name, described.spec, comments, described.assumed)
    documents, found = load_yaml("<machine type>", text.encode())
    if not found:
        resource = validate_document(documents[0])
        found = resource if isinstance(resource, list) else list(check_machine_type(Item(documents[0], resource)))
    if found:
        _print(found, text)
        exit_with("the options do not result in a valid machine type; nothing was written", USAGE)
    sys.stdout.write(text)
    guesses = [path for path in described.assumed if path != "cpu"]
    if guesses:
        print(f"avactl: assumed: {', '.join(guesses)} (comments in the output say how)", file=sys.stderr)


@topo.command()
def check(
    file: _File,
    type_: Annotated[
        str, typer.Option("--type", help="Name of a MachineType in the repository, or of a shipped type.")
    ],
    path: Annotated[
        Path | None, typer.Argument(help="Repository or file that declares it.", show_default="the current directory")
    ] = None,
) -> None:
    """Compare a machine with its declared type. Exit code 0: it matches, 1: it differs."""
    from avactl.hardware import amd_topo
    from avactl.hardware.nvidia_topo import find
    from avactl.hardware.topo_check import compare

    machine, generation = _declared_machine(type_, path)
    content, shown = _read(file)
    if amd_topo.read(content, shown) is not None:
        hint = "write a MachineType by `avactl topo import`, and compare the two"
        exit_with(f"{shown}: `topo check` compares `nvidia-smi topo -m`, not tables of AMD", USAGE, hint)
    matrix = _parse_matrix(content, shown)
    result = compare(machine, matrix, find(matrix, generation))
    for info in result.infos:
        print(f"info: {info}")
    if not result.differences:
        print(f"ok: the machine matches {type_}")
        return
    for difference in result.differences:
        print(f"{shown}: {difference}")
    count = len(result.differences)
    print(f"{count} difference{'' if count == 1 else 's'} from {type_}")
    raise typer.Exit(PROBLEMS)


def _declared_machine(name: str, path: Path | None) -> tuple[Machine, int | None]:
    """Return the facts of a machine type, and its NVLink generation."""
    from avactl.compiler.resolve import shipped_machine_type
    from avactl.diagnostics.suggest import did_you_mean
    from avactl.hardware import library
    from avactl.hardware.machine import Machine
    from avactl.kinds.machine_type.check import check_machine_type
    from avactl.program.capacity.machine_hardware import machine_facts
    from avactl.program.program import Item

    items: dict[str, Item[MachineTypeSpec]] = {}
    wrong: list[Diagnostic] = []
    read: Any = None
    if path is not None or (find_root(Path()) / "avactl.yaml").is_file():
        tree, _ = open_repository([path or Path()])
        read = tree.read
        items, wrong = _machine_types(tree)
    item = items.get(name)
    if item is None and name in library.shipped_names():
        item = Item(*shipped_machine_type(name))
    if item is None:
        hint = did_you_mean(name, {*items, *library.shipped_names()}, "MachineTypes")
        told = f"; {len(wrong)} spec files have errors: `avactl validate`" if wrong else ""
        exit_with(f"unknown MachineType `{name}`{told}", USAGE, hint)
    found = list(check_machine_type(item))
    if found:
        _print(found, read(item.doc.file).decode("utf-8", "replace") if read else "")
        exit_with(f"MachineType {name} has errors of its own", USAGE)
    spec = item.spec
    return Machine.from_facts(machine_facts(spec)), spec.nvlink.generation if spec.nvlink else None


def _machine_types(tree: Any) -> tuple[dict[str, Item[MachineTypeSpec]], list[Diagnostic]]:
    """Return the machine types of a repository by name; other problems in it are ignored."""
    from avactl.compiler.load import load
    from avactl.compiler.pass_state import PassState
    from avactl.compiler.validate import validate
    from avactl.program.program import Item

    state = validate(load(PassState(tree)))
    items: dict[str, Item[MachineTypeSpec]] = {
        r.metadata.name: Item(doc, r) for doc, r in state.resources if r.KIND == "MachineType"
    }
    return items, [problem for problem in state.diagnostics if problem.severity == "error"]


@topo.command()
def watch(
    node: Annotated[str, typer.Option("--node", envvar="NODE_NAME", help="Name of this machine's node.")],
    pool: Annotated[Path, typer.Option("--pool", help="Path of pool.json from the NodePool's ConfigMap.")],
    command: Annotated[
        str, typer.Option("--command", help="Command that prints the matrix; split like a shell command.")
    ] = "nvidia-smi topo -m",
    interval: Annotated[float, typer.Option("--interval", min=1, help="Seconds between checks.")] = 300.0,
    health_command: Annotated[
        str, typer.Option("--health-command", help="Command that prints the state of the GPUs; split likewise.")
    ] = "nvidia-smi -q -x",
    health_interval: Annotated[
        float, typer.Option("--health-interval", min=1, help="Seconds between checks of the GPUs' health.")
    ] = 30.0,
    probation: Annotated[
        float,
        typer.Option("--probation", min=0, help="Seconds without a fault until a GPU that had one is used again."),
    ] = 600.0,
    once: Annotated[bool, typer.Option("--once", help="Print the conditions without updating the node.")] = False,
    kubeconfig: DaemonKubeconfig = None,
) -> None:
    """Update the conditions `avactl.dev/TopologyMatches` and `avactl.dev/GPUsHealthy` of the node periodically."""
    import asyncio

    with guard_imports():
        from avactl.daemons.topology import daemon
        from avactl.daemons.topology.options import TopologyOptions
    options = TopologyOptions(
        node,
        pool,
        _split_command("--command", command),
        interval,
        _split_command("--health-command", health_command),
        health_interval,
        probation,
    )
    if once:
        conditions = asyncio.run(daemon.check_once(options))
        for name, (status, _, message) in conditions.items():
            print(f"{name} {status}: {message}")
        raise typer.Exit(PROBLEMS if any(value.status != "True" for value in conditions.values()) else 0)
    asyncio.run(daemon.run(connect(kubeconfig), options))


def _split_command(option: str, command: str) -> list[str]:
    import shlex

    try:
        words = shlex.split(command)
    except ValueError as error:
        exit_with(f"{option}: {str(error).lower()}", USAGE)
    return words or exit_with(f"{option} is empty", USAGE)
