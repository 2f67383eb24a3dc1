"""Pod settings in compiled pods."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from avactl.program.lowering.gpu_request import NO_GPUS
from avactl.program.lowering.k8s import drop_none
from avactl.program.manifest import Body
from avactl.spec.schema.base import Model
from avactl.spec.schema.pod_settings import Container, ContainerSecurity, EnvFrom, PodSettings, Privileges
from avactl.spec.schema.pod_volumes import SOURCES, PodVolume, VolumeMount

_OWN_KEYS = frozenset(("name", "mount_path", "sub_path"))


def to_kubernetes(value: Any) -> Any:
    """Return a model as in Kubernetes, without what is not set."""
    if isinstance(value, Model):
        return value.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)
    return [to_kubernetes(each) for each in value]


def with_settings(pod: Body, settings: PodSettings | None, env_list: Any, restricted: Body) -> Body:
    """Return a pod spec with the settings. Its first container is the main one. `env_list` makes entries of `env`,
    `restricted` are the security fields of containers."""
    if settings is None:
        return pod
    main, *others = pod["containers"]
    pod = {**pod, "containers": [_build_main(main, settings), *others]}
    volumes = [*pod.get("volumes", ()), *(_build_volume(each) for each in settings.volumes)]
    # Sidecars first: a proxy serves the init containers, too.
    init = [
        *pod.get("initContainers", ()),
        *({**_build_container(each, env_list, restricted), "restartPolicy": "Always"} for each in settings.sidecars),
        *(_build_container(each, env_list, restricted) for each in settings.init_containers),
    ]
    secrets = [*pod.get("imagePullSecrets", ()), *to_kubernetes(settings.image_pull_secrets)]
    more = drop_none(
        volumes=volumes or None,
        initContainers=init or None,
        nodeSelector={**pod.get("nodeSelector", {}), **settings.node_selector} or None,
        tolerations=_distinct_entries([*pod.get("tolerations", ()), *to_kubernetes(settings.tolerations)]) or None,
        affinity=_join_affinities(
            pod.get("affinity"), None if settings.affinity is None else to_kubernetes(settings.affinity)
        ),
        imagePullSecrets=_distinct_entries(secrets) or None,
        serviceAccountName=settings.service_account_name,
        automountServiceAccountToken=True if settings.automount_service_account_token else None,
        dnsPolicy=settings.dns_policy,
        dnsConfig=None if settings.dns_config is None else to_kubernetes(settings.dns_config),
        hostAliases=to_kubernetes(settings.host_aliases) or None,
        terminationGracePeriodSeconds=settings.termination_grace_period_seconds,
    )
    security = settings.security_context
    if security is not None:
        own = drop_none(
            fsGroup=security.fs_group,
            fsGroupChangePolicy=security.fs_group_change_policy,
            supplementalGroups=security.supplemental_groups or None,
        )
        more["securityContext"] = {**pod["securityContext"], **own}
    return {**pod, **more}


def _distinct_entries(entries: Iterable[Body]) -> list[Body]:
    found: list[Body] = []
    for each in entries:
        if each not in found:
            found.append(each)
    return found


def _join_affinities(one: Any, other: Any) -> Any:
    """Join two affinities: lists of preferences and conditions are added up."""
    if one is None or other is None:
        return one if other is None else other
    if isinstance(one, dict):
        return {key: _join_affinities(one.get(key), other.get(key)) for key in {**one, **other}}
    return [*one, *other]


def _build_main(container: Body, settings: PodSettings) -> Body:
    mounts = [_build_mount(each) for each in settings.volumes if each.mount_path is not None]
    found = {**container, **_env_from([*container.get("envFrom", ())], settings.env_from)}
    if mounts:
        found["volumeMounts"] = [*container.get("volumeMounts", ()), *mounts]
    if settings.security_context is not None:
        found["securityContext"] = _build_security(container["securityContext"], settings.security_context)
    if settings.ephemeral_storage is not None:
        found["resources"] = _with_disk(container["resources"], settings.ephemeral_storage)
    return found


def _build_container(container: Container, env_list: Any, restricted: Body) -> Body:
    resources: Body = {
        "requests": {"cpu": container.cpu, "memory": container.memory},
        "limits": {"memory": container.memory},
    }
    if container.ephemeral_storage is not None:
        resources = _with_disk(resources, container.ephemeral_storage)
    own = drop_none(
        name=container.name,
        image=container.image,
        command=container.command or None,
        args=container.args or None,
        workingDir=container.working_dir,
        env=env_list({**container.env, **NO_GPUS}),
        ports=to_kubernetes(container.ports) or None,
        resources=resources,
        securityContext=_build_security(restricted, container.security_context),
        volumeMounts=[_build_mount(each) for each in container.volume_mounts] or None,
    )
    return {**own, **_env_from([], container.env_from)}


def _with_disk(resources: Body, size: str) -> Body:
    return {**resources, **{key: {**resources[key], "ephemeral-storage": size} for key in ("requests", "limits")}}


def _env_from(given: list[Body], sources: list[EnvFrom]) -> Body:
    found = [*given, *to_kubernetes(sources)]
    return {"envFrom": found} if found else {}


def _build_security(given: Body, security: Privileges | None) -> Body:
    if security is None:
        return dict(given)
    found = {**given, "allowPrivilegeEscalation": security.allow_privilege_escalation}
    if security.read_only_root_filesystem:
        found["readOnlyRootFilesystem"] = True
    if security.capabilities is not None and security.capabilities.add:
        found["capabilities"] = {**given["capabilities"], "add": list(security.capabilities.add)}
    if isinstance(security, ContainerSecurity):
        found |= drop_none(runAsUser=security.run_as_user, runAsGroup=security.run_as_group)
        if security.run_as_user == 0:
            found["runAsNonRoot"] = False
    return found


def _build_mount(mount: PodVolume | VolumeMount) -> Body:
    return drop_none(
        name=mount.name,
        mountPath=mount.mount_path,
        subPath=mount.sub_path,
        readOnly=True if mount.read_only else None,
    )


def _build_volume(volume: PodVolume) -> Body:
    if volume.scratch is not None:
        spec = drop_none(
            accessModes=["ReadWriteOnce"],
            resources={"requests": {"storage": volume.scratch.size}},
            storageClassName=volume.scratch.storage_class_name,
        )
        return {"name": volume.name, "ephemeral": {"volumeClaimTemplate": {"spec": spec}}}
    name = next(source for source in SOURCES if getattr(volume, source) is not None)
    alias = type(volume).model_fields[name].alias or name
    return {"name": volume.name, alias: to_kubernetes(getattr(volume, name))}
