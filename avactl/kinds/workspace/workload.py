"""Hooks for the workloads of workspaces: roles, lifecycle, look in the graph, and the impact of a change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from avactl.kinds.workspace.lower import home_claim
from avactl.kinds.workspace.spec import WorkspaceSpec
from avactl.program.program import Item, Program
from avactl.program.registry import ObjectEffect
from avactl.program.workload import Home, Lifecycle, ResourceRequests, WorkloadHooks, WorkloadRole
from avactl.spec.schema.pod_requests import on_spot, with_other_containers, with_pod


def roles(item: Item[WorkspaceSpec]) -> Iterator[WorkloadRole]:
    """Return the pod of a workspace; none while it is stopped."""
    if item.spec.running:
        yield WorkloadRole(("spec",), on_spot(with_pod(item.spec, item.spec.pod), item.spec.spot), 1, 1)


def default_requests(item: Item[WorkspaceSpec], program: Program) -> ResourceRequests:
    """Return the defaults of the workspace's team, with the further containers of the pod."""
    defaults, settings = program.team(str(item.team)).spec.workspace, item.spec.pod
    if settings is None:
        return defaults
    both = {
        key: f"{int(with_other_containers(settings, key, getattr(defaults, key)) * 1000)}m" for key in ("cpu", "memory")
    }
    return defaults.model_copy(update=both)


def impact(old: Item[WorkspaceSpec], new: Item[WorkspaceSpec], effects: Sequence[ObjectEffect]) -> str | None:
    """Return the effect on the user's session and home directory; None if neither is affected."""
    if old.spec.running and not new.spec.running:
        return "is stopped; the home directory is kept"
    if new.spec.running and not old.spec.running:
        return "is started"
    restarts = any(effect.kind == "StatefulSet" and effect.starts_pods for effect in effects)
    if not restarts or any(effect.loses_data for effect in effects):
        return None
    if any(effect.renamed for effect in effects):
        return "the session ends; a new one starts under the new name"
    return "the session ends; the home directory is kept"


def home_directory(item: Item[WorkspaceSpec]) -> Home:
    """Return the home directory."""
    spec = item.spec
    return Home(home_claim(item), spec.shared_home, spec.run_as_user, spec.run_as_group or spec.run_as_user)


WORKLOAD = WorkloadHooks(
    Lifecycle.SESSION,
    "workspace",
    roles,
    default_requests=default_requests,
    checks_capacity=True,
    stop="set `running: false` in unused workspaces",
    badge="work",
    home=home_directory,
    summary=lambda item: f"{item.spec.user}"[:44],
)
