"""Drive a repository's stacks through Pulumi's Automation API. `pulumi` is imported when a stack is opened."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from avactl.apply.pulumi import aliases as pulumi_aliases
from avactl.apply.pulumi.aliases import Aliases, Past, PastObject
from avactl.apply.pulumi.engine_report import EngineChange, EngineReport, object_of, strip_colours
from avactl.apply.pulumi.resource_plan import (
    PROJECT,
    adopts_by_itself,
    manifest_parent,
    manifest_urn,
    of_stack,
    provider_inputs,
)
from avactl.apply.pulumi.stack_state import ObjectRef, is_declared, is_equal, read_record, with_record
from avactl.base.errors import HintedError
from avactl.base.exit_codes import USAGE
from avactl.base.installation import install_command
from avactl.base.kubeconfig import AccessError, choose_context, current_context
from avactl.base.object_identity import ObjectKey
from avactl.compiler import Compilation
from avactl.compiler.selection import PROJECT_DIRECTORY
from avactl.contracts.names import MANAGED_BY, MANAGER
from avactl.diagnostics.redaction import redact_text
from avactl.diagnostics.suggest import did_you_mean
from avactl.program.manifest import Manifest
from avactl.spec.schema.reconcile_modes import PULUMI

if TYPE_CHECKING:
    from pulumi import automation
    from pulumi.automation import PulumiCommand

_T = TypeVar("_T")

WRITE_ONCE = {"PULUMI_EXPERIMENTAL": "true", "PULUMI_SKIP_CHECKPOINTS": "true"}
"""Engine variables that write the state once per run instead of once per step: each write is the whole state, so the
time of a run would grow with the square of its steps. `stack_state` has what makes a killed run harmless."""

PATCH_FORCE = {"PULUMI_K8S_ENABLE_PATCH_FORCE": "true"}
"""Provider variable that overwrites fields of other managers. Providers before 4.29 do not know `enablePatchForce`."""

_STATE_VERSION = 3
"""Of the state that the engine exports and imports."""

MAX_SHOWN_OBJECTS = 10
"""Existing objects that a refusal names."""


class PulumiEngineError(HintedError):
    """The engine cannot continue."""


class WrongUseError(PulumiEngineError):
    """The caller named something that does not exist, or gave too little information."""

    exit_code = USAGE


class StackName(NamedTuple):
    """A stack: the platform's objects on a cluster, or those of one team."""

    cluster: str
    team: str | None = None

    def __str__(self) -> str:
        return f"{self.cluster}.{self.team}" if self.team else self.cluster


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Access to the clusters, and engine settings."""

    root: Path
    """The repository."""
    kubeconfig: Path | None = None
    contexts: Mapping[str, str] = field(default_factory=dict)
    """Cluster → context of the kubeconfig."""
    adopt: bool = False
    """Adopt existing objects."""


def stack_names(compilation: Compilation) -> list[StackName]:
    """Return the stacks of a repository in apply order: each cluster before its teams.

    Clusters applied by another engine (`reconcile.mode`) have none.
    """
    found = {StackName(m.cluster, m.item.team) for m in compilation.manifests if _applied_by(compilation, m) in PULUMI}
    return sorted(found, key=lambda stack: (stack.cluster, stack.team or ""))


def _applied_by(compilation: Compilation, manifest: Manifest) -> str:
    """Return the engine that applies a manifest: `reconcile.mode` of its cluster."""
    mode: str = compilation.program.cluster_spec(manifest.cluster).reconcile.mode
    return mode


def find_stacks(compilation: Compilation, asked: Iterable[str], *, apply: bool = False) -> list[StackName]:
    """Return the stacks with these names, all if there are none. Raises WrongUseError for an unknown name.

    A team without specs may still have a stack: applying it deletes its objects. With `apply`, stacks that the operator
    in the cluster applies are excluded.
    """
    modes = {m.cluster: _applied_by(compilation, m) for m in compilation.manifests}
    others = {cluster: mode for cluster, mode in modes.items() if mode not in (("pulumi",) if apply else PULUMI)}
    known = [stack for stack in stack_names(compilation) if stack.cluster not in others]
    names = list(asked)
    for cluster in [name.partition(".")[0] for name in names or (() if known else sorted(others))]:
        if cluster in others:
            hint = "it applies the output of `avactl render`; or set `reconcile: {mode: pulumi}`"
            if others[cluster] in PULUMI:
                hint = "the operator in the cluster applies merged changes; `avactl preview` shows them"
            elif others[cluster] == "builtin":
                hint = "`avactl reconcile` applies it; or set `reconcile: {mode: pulumi}`"
            raise WrongUseError(
                f"cluster {cluster} is not applied through Pulumi: its `reconcile.mode` is {others[cluster]}", hint
            )
    if not names:
        return known
    clusters = {stack.cluster for stack in known}
    found = []
    for name in names:
        cluster, _, team = name.partition(".")
        stack = StackName(cluster, team or None)
        if cluster not in clusters or (stack not in known and not team):
            raise WrongUseError(f"unknown stack `{name}`", did_you_mean(name, [str(s) for s in known], "stacks"))
        found.append(stack)
    return sorted(found, key=known.index) if set(found) <= set(known) else found


def require_engine() -> None:
    """Raise EngineError unless the engine and its Python SDK are installed."""
    if importlib.util.find_spec("pulumi") is None or importlib.util.find_spec("pulumi_kubernetes") is None:
        raise PulumiEngineError("Pulumi for Python is not installed", f"install it: {install_command('pulumi')}")
    if shutil.which("pulumi") is None:
        hint = "install it: https://www.pulumi.com/docs/install/; or apply the output of `avactl render` with kubectl"
        raise PulumiEngineError("the Pulumi engine is not installed: no `pulumi` on PATH", hint)


def find_context(
    compilation: Compilation, cluster: str, kubeconfig: Path | None, chosen: str | None = None
) -> str | None:
    """Return the context of a cluster: the chosen one, or that of its name; None: the current one.

    Raises WrongUseError in a repository with several clusters, and KubeconfigError.
    """
    found = choose_context(kubeconfig, cluster, chosen or "")
    if not found and len({manifest.cluster for manifest in compilation.manifests}) > 1:
        message = f"no kubeconfig context is set for cluster {cluster}"
        raise WrongUseError(message, f"use `--context {cluster}=NAME`, or name the context `{cluster}`")
    return found or None


class Session:
    """One open stack. Every method raises EngineError with the engine's message."""

    def __init__(self, compilation: Compilation, name: StackName, options: EngineOptions) -> None:
        """Select the stack, and create it if it is new."""
        require_engine()
        self.compilation = compilation
        self.name = name
        self.options = options
        self.manifests = of_stack(compilation, *name)
        self._past, self._former = Past(), Aliases()
        self._record: list[ObjectRef] | None = None
        self._adopts = options.adopt
        self._refreshed = False
        # The SDK would make a directory by itself, and leave it behind at each run.
        self._scratch = tempfile.mkdtemp(prefix="avactl-pulumi-")
        weakref.finalize(self, shutil.rmtree, self._scratch, ignore_errors=True)
        self._stack = self._run_guarded(self._open)
        self.context = self._run_guarded(self._find_context)
        """Context of the kubeconfig; None: the current one."""
        self._deployment: Mapping[str, Any] | None = None
        self._read_stack()

    @property
    def kept(self) -> list[PastObject]:
        """Objects that hold data and whose specs were removed: they are kept."""
        return pulumi_aliases.kept_objects(self._past, self.manifests, self._former)

    @property
    def renamed(self) -> dict[tuple[str, str, str], str]:
        """Renamed specs: (kind, team, name) → URN of the former component."""
        return dict(self._former.specs)

    @property
    def unfinished(self) -> bool:
        """Return True if the last run failed or was killed: what it did may not be in the state."""
        return self._record is not None

    def refresh(self) -> None:
        """Update the engine's state from the cluster, so that the next run corrects drift.

        Jobs are excluded, except those of an unfinished run: one that was cleaned up after its end must not run again.
        """
        recorded = {ref.key for ref in self._record or ()}
        jobs = [entry for (key, _), entry in self._past.objects.items() if key.group == "batch" and key not in recorded]
        excluded = [entry.urn for entry in jobs]
        report = EngineReport()
        if self._past.objects or self._past.components:
            self._run_guarded(
                lambda: self._stack.refresh(exclude=excluded or None, on_event=report.take, color="never"), report
            )
        self._read_stack()
        self._refreshed = True

    def preview(self) -> EngineReport:
        """Report the changes that `up` would make."""
        self._refuse_empty()
        self._refuse_existing(offline=True)
        if self._is_declared():
            return EngineReport(same=len(self.manifests))
        report = EngineReport()
        self._run_guarded(
            lambda: self._stack.preview(on_event=report.take, exclude=self._excluded_urns(), color="never"), report
        )
        return report

    def up(self, say: Callable[[EngineChange], None] = lambda change: None) -> EngineReport:
        """Apply; `say` is called after each change."""
        self._refuse_overtaken()
        if self.unfinished and not self._refreshed:
            self.refresh()
        self._refuse_empty()
        self._refuse_existing()
        self._refuse_left_behind()
        if self._is_declared():
            return EngineReport(same=len(self.manifests))
        self._write_record()
        report = EngineReport()

        def take(event: Any) -> None:
            change = report.take(event)
            if change is not None:
                say(change)

        self._run_guarded(lambda: self._stack.up(on_event=take, exclude=self._excluded_urns(), color="never"), report)
        return report

    def _refuse_overtaken(self) -> None:
        """Refuse to go on if another run has written the state since it was read: the record would undo that."""
        if self._run_guarded(lambda: self._stack.export_stack().deployment) != self._deployment:
            raise PulumiEngineError(f"stack {self.name}: another run has applied it meanwhile", "run the command again")

    def _is_declared(self) -> bool:
        """Return True if the engine would find nothing to do."""
        from avactl.apply.pulumi.resources import plugin_version

        if self.unfinished or self._refreshed or self._former.specs or self._former.objects:
            return False
        forgets = adopts_by_itself(self.compilation, self.name.cluster)
        inputs = provider_inputs(self.name.cluster, context=self.context, adopt=self._adopts or forgets)
        return is_declared(
            self._deployment,
            self.manifests,
            str(self.name),
            provider_inputs={**inputs, "version": plugin_version()},
            excluded=self._excluded_urns() or (),
            forgets=forgets,
        )

    def _write_record(self) -> None:
        """Write into the state which objects the next run creates, changes or deletes."""
        from pulumi import automation

        self._refuse_overtaken()
        declared = {ObjectKey.of(manifest.body): manifest.body for manifest in self.manifests}
        past = {key: entry.body for (key, _), entry in self._past.objects.items()}
        touched = {
            ObjectRef.of(body)
            for key, body in {**past, **declared}.items()
            if key not in declared or key not in past or not is_equal(past[key], declared[key])
        }
        state = with_record(self._deployment, str(self.name), sorted({*touched, *(self._record or ())}))
        self._run_guarded(lambda: self._stack.import_stack(automation.Deployment(_STATE_VERSION, state)))

    def _open(self) -> automation.Stack:
        from pulumi import automation

        from avactl.apply.pulumi.lean_sdk import WorkspaceWithoutOutputs, drop_debug_messages, drop_stack_traces

        # When the engine gives up, our program's gRPC server logs a traceback about the closed connection.
        logging.getLogger("grpc._server").disabled = True
        drop_debug_messages()
        drop_stack_traces()
        environment = {"PULUMI_SKIP_UPDATE_CHECK": "true", **PATCH_FORCE, **WRITE_ONCE}
        if self.options.kubeconfig is not None:
            environment["KUBECONFIG"] = str(self.options.kubeconfig.resolve())
        project = self._project
        workspace = WorkspaceWithoutOutputs(
            work_dir=str(project or self._scratch),
            program=self._program,
            env_vars=environment,
            project_settings=None if project else automation.ProjectSettings(PROJECT, "python", main=str(Path.cwd())),
            pulumi_command=_engine_command(),
        )
        if self.manifests:
            return automation.Stack.create_or_select(str(self.name), workspace)
        try:
            return automation.Stack.select(str(self.name), workspace)
        except automation.StackNotFoundError as error:
            known = [str(name) for name in stack_names(self.compilation)]
            raise WrongUseError(
                f"unknown stack `{self.name}`", did_you_mean(str(self.name), known, "stacks")
            ) from error

    @property
    def _project(self) -> Path | None:
        """Return the repository's Pulumi project with the stack settings, if it has one."""
        directory = self.options.root / PROJECT_DIRECTORY
        return directory if (directory / "Pulumi.yaml").is_file() else None

    def _find_context(self) -> str | None:
        """Return the cluster's kubeconfig context: as requested, as in the stack's settings, or of the same name."""
        chosen = self.options.contexts.get(self.name.cluster)
        if chosen is None and self._project is not None:
            setting = self._stack.get_all_config().get(f"{PROJECT}:context")
            chosen = str(setting.value) if setting is not None else None
        return find_context(self.compilation, self.name.cluster, self.options.kubeconfig, chosen)

    def _read_stack(self) -> None:
        """Read the stack's objects."""
        self._deployment = self._run_guarded(lambda: self._stack.export_stack().deployment)
        self._record = read_record(self._deployment)
        self._past = pulumi_aliases.from_state(self._deployment)
        self._former = pulumi_aliases.former_urns(self._past, self.manifests, str(self.name))

    def _program(self) -> None:
        from avactl.apply.pulumi.resources import register_stack

        register_stack(self.compilation, *self.name, context=self.context, adopt=self._adopts, former=self._former)

    def _refuse_empty(self) -> None:
        """Refuse to replace a renamed spec's volume by an empty one."""
        protected = {entry.urn for entry in self._past.objects.values() if entry.protected}
        for now, before in self._former.objects.items():
            if before in protected and object_of(before) != object_of(now):
                item = next(m.item for m in self.manifests if manifest_urn(m, str(self.name)) == now)
                raise PulumiEngineError(
                    f"stack {self.name}: {item} was renamed: {object_of(before)} holds data, but an empty "
                    f"{object_of(now)} would replace it",
                    f"add `objectName: {self._former.names[item.key]}` to its metadata to keep its objects",
                )

    def _created(self) -> list[Manifest]:
        """Return the objects that the engine's state does not know."""
        known = {key for key, _ in self._past.objects}
        return [m for m in self.manifests if not m.patch and ObjectKey.of(m.body) not in known]

    def _refuse_existing(self, *, offline: bool = False) -> None:
        """Refuse to create objects that others have created, before anything is written.

        The provider refuses, too, but only at the object's turn, and not before version 4.29: it would take them over.
        Those of an unfinished run are taken over. `offline`: without an answer of the API server, refuse nothing.
        """
        if self.options.adopt or adopts_by_itself(self.compilation, self.name.cluster):
            return
        created = [ObjectRef.of(manifest.body) for manifest in self._created()]
        existing = self._find_existing(created, offline) if created else {}
        if own := self._own(existing):
            self._adopts = True
        if foreign := [ref for ref in existing if ref not in own]:
            verb = "exists" if len(foreign) == 1 else "exist"
            raise PulumiEngineError(f"stack {self.name}: {_name_objects(foreign)} already {verb}", ADOPT_HINT)

    def _refuse_left_behind(self) -> None:
        """Refuse to forget objects of an unfinished run that no spec declares any more."""
        known = {key for key, _ in self._past.objects} | {ObjectKey.of(m.body) for m in self.manifests}
        undeclared = [ref for ref in self._record or () if ref.key not in known]
        if left := self._own(self._find_existing(undeclared)) if undeclared else []:
            raise PulumiEngineError(
                f"stack {self.name}: an unfinished run created {_name_objects(left)}, which no spec declares any more",
                f"delete them, or keep them without the label {MANAGED_BY}",
            )

    def _own(self, existing: Mapping[ObjectRef, Mapping[str, Any]]) -> list[ObjectRef]:
        """Return those of some objects in the cluster that an unfinished run created."""
        recorded = {ref.key for ref in self._record or ()}
        labels = {ref: body["metadata"].get("labels") or {} for ref, body in existing.items()}
        return [ref for ref in existing if ref.key in recorded and labels[ref].get(MANAGED_BY) == MANAGER]

    def _find_existing(self, refs: list[ObjectRef], offline: bool = False) -> dict[ObjectRef, Mapping[str, Any]]:
        from avactl.apply.pulumi.existing_objects import find_existing
        from avactl.kube import access
        from avactl.kube.client import ApiError, Client, UnreachableError

        async def find() -> dict[ObjectRef, Mapping[str, Any]]:
            # As the engine does, take the account of the pod only if there is no kubeconfig.
            context = self.context or current_context(self.options.kubeconfig)
            async with Client(access.find(self.options.kubeconfig, context)) as client:
                return await find_existing(client, refs)

        try:
            return asyncio.run(find())
        except (AccessError, UnreachableError) as error:
            if offline:
                return {}
            raise PulumiEngineError(redact_text(f"stack {self.name}: {error}"), UNREACHABLE_HINT) from error
        except ApiError as error:
            message = f"stack {self.name}: cannot find out which objects exist already: {error}"
            raise PulumiEngineError(redact_text(message), "`--adopt` does not ask, and takes them over") from error

    def _excluded_urns(self) -> list[str] | None:
        """Return URNs that the engine must not touch: kept objects and their dependencies that no spec declares."""
        declared = {manifest_urn(manifest, str(self.name)) for manifest in self.manifests}
        declared |= {manifest_parent(manifest, str(self.name)) for manifest in self.manifests}
        return sorted(pulumi_aliases.left_alone(self._past, self.kept) - declared) or None

    def _run_guarded(self, run: Callable[[], _T], report: EngineReport | None = None) -> _T:
        """Run the engine, and convert its failure to an EngineError."""
        from pulumi.automation import CommandError, InvalidVersionError

        try:
            return run()
        except CommandError as error:
            problems = report.problems if report is not None and report.problems else [_extract_stderr(str(error))]
            text = "\n".join(problems)
            hint = next((hint for word, hint in _ERROR_HINTS if word in text), "")
            raise PulumiEngineError(redact_text(f"stack {self.name}: {text}"), hint) from error
        except InvalidVersionError as error:
            raise PulumiEngineError(
                str(error), "install a newer engine: https://www.pulumi.com/docs/install/"
            ) from error


def _name_objects(refs: list[ObjectRef]) -> str:
    """Name the first objects, and say how many more there are."""
    names = [str(ref.key) for ref in refs]
    if len(names) > MAX_SHOWN_OBJECTS:
        names[MAX_SHOWN_OBJECTS:] = [f"{len(names) - MAX_SHOWN_OBJECTS} more"]
    return ", ".join(names)


@cache
def _engine_command() -> PulumiCommand:
    """Return the engine's command; its version is queried once."""
    from pulumi.automation import PulumiCommand

    return PulumiCommand()


def _extract_stderr(text: str) -> str:
    """Extract standard error from the Automation API's description of a failed command."""
    said = strip_colours(text.partition("\n stderr: ")[2] or text)
    lines = [line.removeprefix("error: ") for line in said.splitlines() if line.strip()]
    return "\n".join(lines) or "the engine failed without a message"


ADOPT_HINT = "`--adopt` takes over existing objects"
UNREACHABLE_HINT = "is the cluster up, and are --kubeconfig and --context correct?"
_ERROR_HINTS = (
    ("holds data", "revert the change; or set `deletionPolicy: delete`, apply, and then make the change"),
    ("already exists", ADOPT_HINT),
    ("currently locked", "another run is active; if not, `pulumi cancel` releases the lock"),
    ("passphrase", "set PULUMI_CONFIG_PASSPHRASE, or PULUMI_CONFIG_PASSPHRASE_FILE"),
    ("PULUMI_ACCESS_TOKEN", "choose a state backend: `pulumi login`, e.g. `pulumi login s3://BUCKET`"),
    ("no resource plugin", "install it: `pulumi plugin install resource kubernetes`"),
    ("unable to load Kubernetes client configuration", "choose the cluster with --kubeconfig and --context"),
    ("unreachable", UNREACHABLE_HINT),
)
