"""Pod security: settings above the level of the namespace.

Source: https://kubernetes.io/docs/concepts/security/pod-security-standards/
"""

from __future__ import annotations

from collections.abc import Iterator

from avactl.diagnostics import Diagnostic, Note
from avactl.program.program import Item, Program
from avactl.spec.schema.compute import PodUser
from avactl.spec.schema.pod_settings import ContainerSecurity, PodSettings, Privileges

Path = tuple[str | int, ...]
RESTRICTED = frozenset(("NET_BIND_SERVICE",))
BASELINE = RESTRICTED | {
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
}
"""Capabilities that the levels allow to add."""
RESTRICTED_VOLUMES = (
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
)
"""Types of volumes that `restricted` allows."""
CONFINED_PROFILES = ("RuntimeDefault", "Localhost")
"""Types of seccomp and AppArmor profiles that `restricted` allows."""


def required_level(item: Item, program: Program, namespace: str | None = None) -> str:
    """Return the pod-security level that pods of a namespace must satisfy; by default that of the spec."""
    entries = program.team(str(item.team)).spec.namespaces or ()
    entry = next((each for each in entries if each.name == (namespace or item.ns)), None)
    # Without the network, pods of a namespace with the host's network satisfy `restricted`.
    return "restricted" if entry is None or entry.host_network else str(entry.pod_security)


def level_problems(item: Item, program: Program, settings: PodSettings, path: Path) -> Iterator[Diagnostic]:
    """Yield settings that the namespace's level does not allow."""
    allowed = required_level(item, program)
    for index, volume in enumerate(settings.volumes):
        if volume.nfs is not None and allowed == "restricted":
            yield _above_problem(
                item,
                program,
                (*path, "volumes", index, "nfs"),
                "volumes of type `nfs`",
                "baseline",
                "or mount a PersistentVolumeClaim of the server",
            )
    if settings.security_context is not None:
        yield from _check_privileges(item, program, settings.security_context, (*path, "securityContext"), allowed)
    for key, containers in (("sidecars", settings.sidecars), ("initContainers", settings.init_containers)):
        for index, container in enumerate(containers):
            if container.security_context is not None:
                at = (*path, key, index, "securityContext")
                yield from _check_privileges(item, program, container.security_context, at, allowed)


def root_problem(item: Item[PodUser], program: Program) -> Iterator[Diagnostic]:
    """Yield `runAsUser: 0` in a namespace that does not allow it."""
    if item.spec.run_as_user == 0 and required_level(item, program) == "restricted":
        yield _above_problem(item, program, ("spec", "runAsUser"), "root", "baseline", "or write another user: `1000`")


def _check_privileges(
    item: Item, program: Program, security: Privileges, path: Path, allowed: str
) -> Iterator[Diagnostic]:
    restricted = allowed == "restricted"
    if security.allow_privilege_escalation and restricted:
        yield _above_problem(item, program, (*path, "allowPrivilegeEscalation"), "privilege escalation", "baseline", "")
    if isinstance(security, ContainerSecurity) and security.run_as_user == 0 and restricted:
        yield _above_problem(item, program, (*path, "runAsUser"), "root", "baseline", "or write another user: `1000`")
    for index, name in enumerate(security.capabilities.add if security.capabilities is not None else ()):
        if name not in (RESTRICTED if restricted else BASELINE):
            at = (*path, "capabilities", "add", index)
            plain = name.removeprefix("CAP_")
            if plain != name and plain in BASELINE:
                message = f"Kubernetes names the capability {name} without `CAP_`"
                yield Diagnostic("invalid-value", message, item.span(*at), hint=f"write `{plain}`")
                continue
            yield _above_problem(
                item, program, at, f"the capability {name}", "baseline" if name in BASELINE else "", ""
            )


def _above_problem(item: Item, program: Program, path: Path, what: str, needed: str, other: str) -> Diagnostic:
    team = program.team(str(item.team))
    entries = team.spec.namespaces or ()
    index = next((at for at, each in enumerate(entries) if each.name == item.ns), None)
    if not needed:
        hint = "remove it: no level of a team allows it"
    elif index is not None and entries[index].host_network:
        hint = "use a namespace of the team without `hostNetwork: true`"
    else:
        hint = f"write `namespaces: [{{name: {item.ns}, podSecurity: {needed}}}]` in Team {team.name}"
    at = ("spec",) if index is None else ("spec", "namespaces", index)
    return Diagnostic(
        "pod-security",
        f"pod security of namespace {item.ns} does not allow {what}",
        item.span(*path),
        hint=f"{hint}, {other}" if other else hint,
        notes=(Note(team.span(*at), "the namespace's level"),),
    )
