"""Checks of a workspace, alone and on its cluster."""

from __future__ import annotations

from collections.abc import Iterator

from avactl.diagnostics import Diagnostic, Note
from avactl.kinds.workspace.authentication import authentication_problems
from avactl.kinds.workspace.lower import workspace_image
from avactl.kinds.workspace.spec import WorkspaceSpec
from avactl.program.capacity.capacity import gpu_problems
from avactl.program.checks.credentials import argument_problems, credential_problems
from avactl.program.checks.exposure import expose_problems
from avactl.program.checks.pod_security_levels import root_problem
from avactl.program.checks.pod_settings import pod_problems
from avactl.program.checks.reserved_env import reserved_env_problems
from avactl.program.checks.spot import spot_problems
from avactl.program.checks.words import variable_problems, word_problems
from avactl.program.dataset_access import mount_problems
from avactl.program.ineffective_keys import unused_model
from avactl.program.lowering.storage import sharing_problems
from avactl.program.program import Item, Program
from avactl.spec.schema.pod_requests import on_spot, with_pod


def check(item: Item[WorkspaceSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield the problems of one workspace."""
    spec = item.spec
    if (member := item.resource.metadata.member) not in (None, spec.user):
        yield Diagnostic(
            "conflicting-keys",
            f"the workspace runs for its user `{spec.user}`, and `metadata.member` is `{member}`",
            item.span("metadata", "member"),
            hint="remove `metadata.member`",
        )
    if workspace_image(item, program) is None:
        team = program.team(str(item.team))
        yield Diagnostic(
            "missing-key",
            f"`spec` needs `image`: team {team.name} sets no default",
            item.span("spec", key=True),
            hint=f"add `image: …`, or `workspace: {{image: …}}` to Team {team.name}",
        )
    yield from credential_problems(item, spec.env, ("spec", "env"))
    yield from variable_problems(item, spec.env, ("spec", "env"))
    yield from reserved_env_problems(item, spec.env, ("spec", "env"), {"AVACTL_IDLE_TIMEOUT": "idleTimeout"})
    yield from argument_problems(item, spec.command, ("spec", "command"))
    yield from argument_problems(item, spec.args, ("spec", "args"))
    yield from word_problems(item, spec.command, ("spec", "command"))
    yield from word_problems(item, spec.args, ("spec", "args"))
    yield from mount_problems(item, program, spec.datasets, ("spec", "datasets"))
    yield from _check_home(item)
    yield from expose_problems(item, program)
    if spec.expose is not None:
        yield from authentication_problems(item, program, spec.expose)
    yield from _check_stop(item, program)
    yield from root_problem(item, program)
    compute = on_spot(with_pod(spec, spec.pod), spec.spot)
    yield from pod_problems(item, program, spec.pod, ("spec", "pod"), [compute])
    yield from spot_problems(item, program, spec.spot, [compute])
    if spec.spot != "never" and not spec.preemptible:
        yield Diagnostic(
            "spot-not-restartable",
            f"the session in {item} ends without warning when the provider takes its machine back",
            item.span("spec", "spot", key=True),
            hint="add `preemptible: true` to accept it; the home directory is kept",
        )
    if spec.shared_home:
        yield from sharing_problems(item, program, "workspace", ("spec", "sharedHome"), "jobs share the home directory")
    yield from unused_model(item, spec, ("spec",))
    yield from gpu_problems(item, program, compute, ("spec",))


def _check_stop(item: Item[WorkspaceSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield a workspace that nothing stops."""
    cluster = program.cluster(item.cluster)
    if item.spec.when_idle == "stop" and not cluster.spec.daemons.scheduler:
        yield Diagnostic(
            "missing-daemon",
            f"`whenIdle: stop` needs the daemon `scheduler`, which cluster {cluster.name} does not run",
            item.span("spec", "whenIdle"),
            hint=f"write `daemons: {{scheduler: true}}` in Cluster {cluster.name}",
            notes=(Note(cluster.span("metadata", "name"), "the cluster"),),
        )


def _check_home(item: Item[WorkspaceSpec]) -> Iterator[Diagnostic]:
    """Yield a home directory that conflicts with another mount, or is inside a read-only one."""
    spec = item.spec
    home = spec.home.rstrip("/")
    where = ("spec", "home")
    if home in ("", "/dev", "/etc", "/proc", "/sys", "/usr", "/bin", "/lib"):
        hint = "use a directory such as `/home/user`"
        yield Diagnostic(
            "mount-conflict", f"spec.home: `{spec.home}` would hide the image's files", item.span(*where), hint=hint
        )
        return
    taken = [(mount.mount, ("spec", "datasets", i, "mount")) for i, mount in enumerate(spec.datasets)]
    for place, path in taken:
        place = place.rstrip("/")
        if home == place or home.startswith(f"{place}/"):
            yield Diagnostic(
                "mount-conflict",
                f"spec.home: `{spec.home}` is inside `{place or '/'}`, where a dataset is mounted read-only",
                item.span(*where),
                hint="mount the dataset elsewhere, e.g. inside the home directory",
                notes=(Note(item.span(*path), "mounted here"),),
            )
    if home == "/buckets" or home.startswith("/buckets/"):
        hint = "choose another directory"
        yield Diagnostic(
            "mount-conflict", "spec.home: the team's buckets are mounted at `/buckets`", item.span(*where), hint=hint
        )
