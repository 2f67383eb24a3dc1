"""One run of `avactl reconcile`: find the source, compile, apply, report."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from avactl.apply.reconcile.desired import Wanted, wanted_of
from avactl.apply.reconcile.options import ReconcileOptions
from avactl.apply.reconcile.reconciler import reconcile_once
from avactl.apply.reconcile.reporting import commit_status, report
from avactl.apply.reconcile.reporting.progress import ReconcileProgress
from avactl.apply.reconcile.reporting.report import StepResult
from avactl.apply.reconcile.source import SourceBranch, SourceRevision, WorkingDirectory
from avactl.base.directories import cache_directory
from avactl.base.exit_codes import CHANGES, INCOMPLETE, MISSING, OK, PROBLEMS
from avactl.base.terminal import json_output, use_colour
from avactl.compiler import Compilation, compile_tree
from avactl.compiler.config import owners_of
from avactl.compiler.layers.check import inherited_not_owned
from avactl.contracts.names import RECONCILER, SYSTEM_NAMESPACE
from avactl.diagnostics.suggest import closest_word, one_of
from avactl.diagnostics.text import render_problems
from avactl.kube.access import ClusterAccess
from avactl.kube.client import Client
from avactl.policy.owners import as_json, from_json, ownership_problem
from avactl.program.program import Program
from avactl.spec.repository.git import run_git
from avactl.spec.repository.tree import find_root


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileRequest(ReconcileOptions):
    """Options of the command: those of its runs, and where it reads and reports."""

    path: Path
    connect: Callable[[str], ClusterAccess]
    """Function from the name of the Cluster to the API server."""
    context: str = ""
    """Context of the kubeconfig: selects the Cluster of that name among several."""
    repo: str = ""
    branch: str = ""
    watch: bool = False
    json: bool = False
    interval: float = 60.0
    resync: float = 600.0
    listen: str = ""


@dataclass(frozen=True, slots=True)
class DesiredState:
    """Desired state of one cluster at a revision."""

    revision: SourceRevision
    compilation: Compilation
    cluster: str = ""
    wanted: tuple[Wanted, ...] = ()
    options: ReconcileOptions = field(default_factory=ReconcileOptions)

    @property
    def ok(self) -> bool:
        """True if it compiles; otherwise nothing is applied."""
        return self.compilation.ok


def source_of(request: ReconcileRequest) -> WorkingDirectory | SourceBranch:
    """Return the source of the specs. Raises ValueError and GitError."""
    if request.repo:
        inside = request.path.as_posix()
        if request.path.is_absolute() or ".." in request.path.parts:
            raise ValueError(f"{inside}: with --repo, PATH is a directory in the repository")
        cache = Path(cache_directory()) / "reconcile"
        return SourceBranch(request.repo, request.branch or "main", "" if inside == "." else inside, cache=cache)
    if not request.path.is_dir():
        raise ValueError(f"{request.path}: not a directory")
    root = find_root(request.path)
    if request.branch or request.watch:
        run_git(root, "rev-parse", "--git-dir")  # whatever is wrong speaks here
        return SourceBranch(str(root), request.branch or "HEAD")
    return WorkingDirectory(root)


def compile_revision(request: ReconcileRequest, revision: SourceRevision) -> DesiredState:
    """Compile a revision. Raises ValueError if it does not declare the cluster."""
    compilation = compile_tree(revision.tree)
    if not compilation.ok:
        return DesiredState(revision, compilation, request.cluster)
    clusters = sorted(item.name for item in compilation.program.clusters())
    name = request.cluster or (clusters[0] if len(clusters) == 1 else "")
    name = name or (request.context if request.context in clusters else "")
    if not name:
        known = (
            f"choose one with --cluster: {one_of(clusters, 6)}" if clusters else "the repository declares no Cluster"
        )
        raise ValueError(f"no cluster selected: {known}")
    if name not in clusters and not request.allow_empty:
        near = closest_word(name, clusters)
        raise ValueError(
            f"the repository has no Cluster `{name}`: " + (f"did you mean `{near}`?" if near else one_of(clusters, 6))
        )
    inventory = request.inventory or name
    namespace = compilation.program.cluster_spec(name).system_namespace if name in clusters else SYSTEM_NAMESPACE
    options = replace(
        request,
        cluster=name,
        inventory=inventory,
        namespace=namespace,
        commit=revision.commit,
        repository=_inventory_identity(revision),
        owners=as_json(owners_of(revision.tree)),
        not_owned=partial(_not_owned, compilation.program),
    )
    return DesiredState(revision, compilation, name, tuple(wanted_of(compilation, name, inventory)), options)


def _inventory_identity(revision: SourceRevision) -> str:
    """Return what owns the inventory: another environment would prune the objects of this one."""
    environment = revision.tree.environment
    known = revision.repository  # "" if unknown
    return f"{known} (environment {environment})" if known and environment else known


def _not_owned(program: Program, recorded: str) -> str:
    """Return the first spec that earlier `owners` do not allow, as a sentence; empty: all are allowed."""
    if not recorded:
        return ""
    owners = from_json(recorded)
    found = [
        ownership_problem((owners,), item.doc, item.resource) or inherited_not_owned(item.doc, item.kind, owners)
        for item in program.items
        if not item.doc.shipped
    ]
    return next((f"{each.span}: {each.message}" for each in found if each), "")


def code_of(result: StepResult) -> int:
    """Return the exit code of a run."""
    if result.dry_run and not result.problem and not result.failed:
        return CHANGES if result.changed else OK
    return OK if result.ok else INCOMPLETE


async def run(request: ReconcileRequest) -> int:
    """Reconcile once and return the exit code. Raises ValueError for invalid options, and GitError."""
    revision = source_of(request).newest()
    declared = compile_revision(request, revision)
    found = declared.compilation
    if found.diagnostics:
        text = render_problems(found.diagnostics, found.program.read_file, use_colour(sys.stderr))
        sys.stderr.write(text + ("\n" if declared.ok else ""))
    if not declared.ok:
        errors = sum(d.severity == "error" for d in declared.compilation.diagnostics)
        sys.stderr.write(f"avactl: {errors} errors: nothing was changed in the cluster\n")
        if not request.dry_run:
            await commit_status.set_status(
                revision, declared.cluster, "failure", f"{errors} errors; nothing was changed"
            )
        return PROBLEMS
    _warn_of_others(declared)
    # Objects come by the thousand, none of them in cycles: the collector would only walk them again and again.
    gc.freeze()
    gc.set_threshold(200_000, 50, 100)
    gc.enable()
    async with Client(request.connect(declared.cluster), agent=RECONCILER) as client:
        with ReconcileProgress(sys.stderr, request.json) as progress:
            result, reconciler = await reconcile_once(client, declared.options, declared.wanted, progress.listener())
        if not request.dry_run:
            await reconciler.tell(result)
    if not request.dry_run:
        await commit_status.set_status(revision, declared.cluster, *commit_status.status_words(result))
    if request.json:
        sys.stdout.write(json_output(report.as_json(result)))
    else:
        sys.stdout.write(report.as_text(result, use_colour(sys.stdout)))
    return MISSING if result.unreachable else code_of(result)


def _warn_of_others(declared: DesiredState) -> None:
    """Warn about a second engine: two engines on one cluster revert each other's changes."""
    if declared.cluster in {item.name for item in declared.compilation.program.clusters()}:
        mode = declared.compilation.program.cluster_spec(declared.cluster).reconcile.mode
        if mode not in ("builtin", "files"):
            sys.stderr.write(
                f"avactl: note: cluster {declared.cluster} says `reconcile.mode: {mode}`; if that engine also runs, "
                "the two revert each other's changes\n"
            )
