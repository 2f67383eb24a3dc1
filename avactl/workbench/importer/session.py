"""One import: from source objects to files in a repository."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from avactl.base.directories import want_no_link, write_file
from avactl.compiler import Compilation, compile_tree
from avactl.kinds.team.names import team_namespaces
from avactl.spec.repository.tree import DirTree, MemoryTree, Tree, find_root
from avactl.workbench.importer.check import Checked, ImportedFiles, check
from avactl.workbench.importer.comparison import Compared, compare
from avactl.workbench.importer.convert import Known, convert_objects
from avactl.workbench.importer.model import Body, GivenValue, ImportedSpec, ImportOutcome, ImportProblem, Loss
from avactl.workbench.importer.sources.context import ImportOptions

_NEW_CLUSTER = "imported"
"""Name of a Cluster that the import writes."""


@dataclass
class Imported:
    """The result of an import."""

    specs: list[ImportedSpec]
    outcomes: list[ImportOutcome]
    compilation: Compilation
    files: dict[str, bytes]
    """New files, by their path from the root of the repository."""
    compared: list[Compared]
    cluster: str

    @property
    def losses(self) -> list[Loss]:
        """Values that were not carried over as they are, by place."""
        # Templates that share an anchor have their losses at one place.
        found = {(loss.span, loss.why): loss for spec in reversed(self.specs) for loss in spec.losses}
        return [loss for _, loss in sorted(found.items())]


def import_objects(
    objects: list[GivenValue], options: ImportOptions, directory: Path, *, force: bool = False, version: str = ""
) -> tuple[Imported, Path]:
    """Return the specs of all objects, and the root of the repository that `directory` is in. Writes nothing.

    With `force`, existing files may be replaced. Raises ImportProblem.
    """
    if not objects:
        raise ImportProblem("there are no objects to import", "name files or directories with manifests, or `--live`")
    root = _repository_root(directory)
    prefix = "" if directory.resolve() == root.resolve() else _relative_path(directory, root)
    below: Tree = DirTree(root) if root.is_dir() else MemoryTree({})
    # `include` may name the directory before it exists.
    base = (
        compile_tree(ImportedFiles(below, {f"{prefix}imported.yaml": b"# to be imported\n"})) if below.paths() else None
    )
    if base is not None and not base.ok:
        first = next(each for each in base.diagnostics if each.severity == "error")
        told = f"the repository {root} has errors: {first.span}: {first.message}"
        raise ImportProblem(told, "`avactl validate` shows all")
    known, cluster = _known_platform(base, options, version)
    converted = convert_objects(objects, options, known)
    if cluster is not None:
        converted.specs.insert(0, cluster)
    checked: Checked = check(converted, below, prefix)
    if not any(spec.given for spec in converted.specs):
        converted.specs.clear()
        checked.files.clear()
    taken = [path for path in checked.files if os.path.lexists(root / path)]
    if taken and not force:
        more = f" and {len(taken) - 1} more" if len(taken) > 1 else ""
        raise ImportProblem(f"{root / taken[0]}{more} already exist", "choose another directory, or `--force`")
    made = Imported(
        converted.specs,
        converted.outcomes,
        checked.compilation,
        checked.files,
        compare(converted.specs, checked.compilation),
        known.cluster,
    )
    return made, root


def write(made: Imported, root: Path) -> None:
    """Write the files. Raises OSError, and then writes nothing if a directory is a symbolic link of the repository."""
    for path in made.files:
        want_no_link(root / path)
    for path, data in made.files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        write_file(target, data.decode())


def _repository_root(directory: Path) -> Path:
    """Return the repository of a directory that need not exist yet."""
    start = directory.resolve()
    while not start.is_dir():
        start = start.parent
    found = find_root(start)
    return found if (found / "avactl.yaml").is_file() else directory


def _relative_path(directory: Path, root: Path) -> str:
    return directory.resolve().relative_to(root.resolve()).as_posix() + "/"


def _known_platform(
    base: Compilation | None, options: ImportOptions, version: str
) -> tuple[Known, ImportedSpec | None]:
    """Return what the repository declares, and a Cluster if it has none."""
    clusters = sorted(item.name for item in base.program.clusters()) if base is not None else []
    if base is None or not clusters:
        name = options.cluster or _NEW_CLUSTER
        body: Body = {"kubernetesVersion": version or "1.36", "reconcile": {"mode": "files"}}
        if options.images:
            images = {key: value for key, value in sorted(options.images.items()) if key != "job"}
            body |= {"images": images} if images else {}
        return Known(name), ImportedSpec("Cluster", name, None, body)
    name = options.cluster or (clusters[0] if len(clusters) == 1 else "")
    if not name or name not in clusters:
        shown = ", ".join(clusters[:6])
        raise ImportProblem(
            f"the repository has no Cluster `{name}`" if name else "the repository has several Clusters",
            f"choose one with `--cluster`: {shown}",
        )
    program = base.program
    teams = {space: item.name for item in program.teams(name) for space in team_namespaces(item)}
    models = {str(program.machine(pool).gpu_model): pool.spec.resource_name for pool in program.gpu_pools(name)}
    return Known(name, teams, models, program.taints(name)), None
