"""StatefulSets and Deployments of editors with a persistent home directory → Workspaces."""

from __future__ import annotations

import re

from avactl.workbench.importer.cleaning import clean_object
from avactl.workbench.importer.model import Body, GivenValue, ImportedSpec, ImportReader, spec_name
from avactl.workbench.importer.sources.context import Context
from avactl.workbench.importer.sources.metadata import take_common
from avactl.workbench.importer.sources.pods import Pod, read_pod

_TEMPLATE_PATH = ("spec", "template")
_EDITOR_NAME = re.compile(r"jupyter|notebook|code-server|codeserver|openvscode-server|rstudio", re.IGNORECASE).search
_EDITOR_PORTS = (("code-server", 8080), ("codeserver", 8080), ("openvscode", 3000), ("rstudio", 8787), ("", 8888))
_HOME_DIRECTORIES = ("/home", "/root", "/config", "/workspace")
_OWNER_KEYS = ("hub.jupyter.org/username", "notebook-owner", "owner", "user")
"""Annotations and labels that name the user."""
_DROPPED_KEYS = (
    "serviceName",
    "podManagementPolicy",
    "updateStrategy",
    "strategy",
    "revisionHistoryLimit",
    "progressDeadlineSeconds",
    "minReadySeconds",
    "persistentVolumeClaimRetentionPolicy",
    "ordinals",
)
"""Keys of the object that say how pods are replaced: a workspace has one."""


def is_editor(given: GivenValue) -> bool:
    """Return True for the image of an editor that a Workspace can run."""
    containers = given.get(*_TEMPLATE_PATH, "spec", "containers")
    images = [each.get("image") for each in containers or () if isinstance(each, dict)]
    return any(_EDITOR_NAME(str(image)) for image in images[:1])


def convert_workspace(context: Context, reader: ImportReader) -> ImportedSpec | str:
    """Return the Workspace of a StatefulSet or Deployment, or the reason why it stays a manifest."""
    given = reader.given
    if not is_editor(given):
        return "it is no editor that avactl knows, such as Jupyter or code-server"
    replicas = given.get("spec", "replicas")
    if replicas not in (None, 0, 1):
        return f"it has {replicas} pods, and a Workspace has one"
    home = _find_home(given)
    if home is None:
        return "it mounts no claim, and a Workspace has a persistent home directory"
    take_common(reader, _OWNER_KEYS)
    claim, mount, template = home
    more = _take_templates(reader, template)
    pod = read_pod(reader, _TEMPLATE_PATH)
    _drop_home(pod, claim)
    if more:
        pod.settings.setdefault("volumes", []).extend(more)
    body: Body = {"user": _find_user(reader, pod), "image": pod.image, "home": mount["mountPath"], "idleTimeout": "0s"}
    if mount.get("subPath"):
        why = f"the home directory is the root of its volume, not `{mount['subPath']}` in it"
        reader.lose(pod.paths["image",], why, "move the files")
    for key in ("rdma", "sharedMemory"):
        if pod.compute.pop(key, None):
            reader.lose(pod.paths.get(("workers", key), pod.paths["image",]), f"a Workspace has no key `{key}`", "")
    body |= {"command": pod.command, "args": pod.args, "env": pod.env, **pod.compute, **pod.user}
    if pod.container_patch.get("ports"):
        reader.lose((*pod.paths["image",][:-1], "ports"), "the container has the editor's port only, named `http`", "")
    body["port"] = _find_port(pod)
    if reader.take("spec", "replicas") == 0:
        body["running"] = False
    reader.take("spec", "selector")
    kept = clean_object(given.value)["spec"]
    for key in _DROPPED_KEYS:
        if kept.get(key) not in (None, {}) and not (key == "serviceName" and kept[key] == spec_name(given.name)):
            reader.lose(("spec", key), "a Workspace has one pod, which is replaced as avactl does it", "")
        reader.take("spec", key)
    body["pod"] = pod.settings
    spec = context.spec("Workspace", reader, body)
    _keep_home(context, reader, spec, claim, template)
    for patch, path in pod.patches({"kind": "StatefulSet"}, "workspace"):
        spec.origins["patches", len(spec.patches)] = (given, path)
        spec.patches.append(patch)
    for to, path in pod.paths.items():
        spec.origins["spec", *(to[1:] if to[0] == "workers" else to)] = (given, path)
    if pod.settings.get("serviceAccountName"):
        context.accounts[str(spec.team)].add(pod.settings["serviceAccountName"])
    _absorb_services(context, reader, spec)
    if given.kind == "Deployment":
        reader.lose(("kind",), "a Workspace is a StatefulSet: the pod is made anew", "delete the Deployment first")
    if "runAsUser" not in body:
        reader.lose(
            pod.paths["image",],
            "the editor runs as user 1000, and not as the user of the image",
            "set `runAsUser`; 0, root, needs `podSecurity: baseline`",
        )
    reader.lose_rest("a Workspace has no key for it", "add it by `patches`")
    spec.spec = {key: value for key, value in body.items() if value not in (None, {}, [])}
    return spec


def _find_home(given: GivenValue) -> tuple[str, Body, int | None] | None:
    """Return the claim of the home directory, its mount, and its index among the templates of claims."""
    claims: dict[str, tuple[str, int | None]] = {}
    for volume in given.get(*_TEMPLATE_PATH, "spec", "volumes") or ():
        source = volume.get("persistentVolumeClaim") if isinstance(volume, dict) else None
        if isinstance(source, dict):
            claims[str(volume.get("name"))] = (str(source.get("claimName")), None)
    for index, each in enumerate(given.get("spec", "volumeClaimTemplates") or ()):
        name = _template_name(each)
        claims[name] = (f"{name}-{given.name}-0", index)
    mounts = given.get(*_TEMPLATE_PATH, "spec", "containers", 0, "volumeMounts") or ()
    found = [each for each in mounts if isinstance(each, dict) and str(each.get("name")) in claims]
    found.sort(key=lambda each: not str(each.get("mountPath")).startswith(_HOME_DIRECTORIES))
    if not found:
        return None
    claim, template = claims[str(found[0]["name"])]
    return claim, found[0], template


def _template_name(template: Body) -> str:
    """Return the name of a template of claims. Raises ValueError if it has none."""
    name = (template.get("metadata") or {}).get("name")
    if not name:
        raise ValueError("a template of claims has no name")
    return str(name)


def _take_templates(reader: ImportReader, home: int | None) -> list[Body]:
    """Return volumes for the templates of claims, without that of the home directory: the claims exist, and stay."""
    given = reader.given
    templates = given.get("spec", "volumeClaimTemplates") or ()
    names = {_template_name(each): index for index, each in enumerate(templates)}
    made: list[Body] = []
    for index, mount in enumerate(given.get(*_TEMPLATE_PATH, "spec", "containers", 0, "volumeMounts") or ()):
        name = str(mount.get("name"))
        if name not in names:
            continue
        reader.take(*_TEMPLATE_PATH, "spec", "containers", 0, "volumeMounts", index)
        if names[name] != home:
            claim = f"{name}-{given.name}-0"
            source = {"persistentVolumeClaim": {"claimName": claim}}
            why = f"the spec mounts claim `{claim}` at {mount.get('mountPath')}; nothing makes it anew"
            reader.lose(("spec", "volumeClaimTemplates", names[name]), why, "keep the claim")
            kept = {key: mount[key] for key in ("mountPath", "subPath", "readOnly") if mount.get(key)}
            made.append({"name": name, **kept, **source})
    if home is not None:
        why = "the claim of the home directory exists, and stays; nothing makes it anew"
        reader.lose(("spec", "volumeClaimTemplates", home), why, "keep the claim")
    reader.take("spec", "volumeClaimTemplates")
    return made


def _drop_home(pod: Pod, claim: str) -> None:
    """Take the home directory out of the volumes."""
    volumes = pod.settings.get("volumes", [])
    index = next(
        (at for at, each in enumerate(volumes) if (each.get("persistentVolumeClaim") or {}).get("claimName") == claim),
        None,
    )
    if index is None:
        return
    del volumes[index]
    places = [pod.paths.pop(("pod", "volumes", at), None) for at in range(len(volumes) + 1)]
    for number, path in enumerate(each for at, each in enumerate(places) if at != index):
        if path is not None:
            pod.paths["pod", "volumes", number] = path
    if not volumes:
        del pod.settings["volumes"]


def _find_user(reader: ImportReader, pod: Pod) -> str:
    given = reader.given
    for path in (("metadata",), (*_TEMPLATE_PATH, "metadata")):
        for group in ("annotations", "labels"):
            for key in _OWNER_KEYS:
                found = given.get(*path, group, key)
                if isinstance(found, str) and re.fullmatch(r"\S{1,253}", found):
                    return found
    why = f"no label names the owner; the spec says `{given.name}`"
    reader.lose(pod.paths["image",], why, "write `user` as your identity provider names them")
    return given.name


def _find_port(pod: Pod) -> int:
    declared = pod.container_patch.pop("ports", None) or ()
    given = next((each.get("containerPort") for each in declared if isinstance(each, dict)), None)
    return given if isinstance(given, int) else next(port for part, port in _EDITOR_PORTS if part in pod.image)


def _keep_home(context: Context, reader: ImportReader, spec: ImportedSpec, claim: str, template: int | None) -> None:
    """Keep the home directory: its claim becomes the spec's own, or a patch names it."""
    given, own = reader.given, f"{spec.name}-home"
    size = given.get("spec", "volumeClaimTemplates", template or 0, "spec", "resources", "requests", "storage")
    for each in context.find("PersistentVolumeClaim", given.namespace, lambda each: each.name == claim):
        size = each.get("spec", "resources", "requests", "storage") or size
        spec.spec["sharedHome"] = "ReadWriteMany" in (each.get("spec", "accessModes") or ()) or None
        if claim == own:
            context.used.add(each)
            spec.given.append(each)
            part = ImportReader(each)
            part.losses = reader.losses
            take_common(part)
            modes = each.get("spec", "accessModes")
            if modes not in (["ReadWriteOnce"], ["ReadWriteMany"]):
                part.lose(("spec", "accessModes"), "the claim has one access mode, by `sharedHome`", "")
            if each.get("spec", "volumeMode") not in (None, "Filesystem"):
                part.lose(("spec", "volumeMode"), "a home directory is a file system", "")
            for key in ("accessModes", "volumeMode", "volumeName"):
                part.take("spec", key)
            part.take("spec", "resources", "requests", "storage")
            name = part.take("spec", "storageClassName")
            if name is not None:
                part.lose(
                    ("spec", "storageClassName"),
                    "the Cluster chooses the storage class of workspaces",
                    f"write `storageClasses: {{workspace: {name}}}` in the Cluster",
                )
            part.lose_rest("a Workspace has no key for it", "add it by `patches`")
    spec.spec["storage"] = str(size) if size is not None else "10Gi"
    if claim == own:
        return
    volume = {"name": "home", "persistentVolumeClaim": {"claimName": claim}}
    spec.patches.append(
        {"target": {"kind": "StatefulSet"}, "merge": {"spec": {"template": {"spec": {"volumes": [volume]}}}}}
    )
    spec.origins["patches", 0] = (given, (*_TEMPLATE_PATH, "spec", "volumes"))
    why = f"the home directory stays in claim `{claim}`, by a patch; the spec's own claim `{own}` is not mounted"
    reader.lose((*_TEMPLATE_PATH, "spec", "volumes"), why, "copy the files to it, then remove the patch")


def _absorb_services(context: Context, reader: ImportReader, spec: ImportedSpec) -> None:
    """Make the Services of the editor part of the spec, which has one of its own."""
    labels = reader.given.get(*_TEMPLATE_PATH, "metadata", "labels") or {}

    def selects(each: GivenValue) -> bool:
        found = each.get("spec", "selector")
        return isinstance(found, dict) and bool(found) and found.items() <= labels.items()

    for service in context.find("Service", reader.given.namespace, selects):
        context.used.add(service)
        spec.given.append(service)
        own = ImportReader(service)
        own.losses = reader.losses
        take_common(own)
        port = spec.spec["port"]
        if service.name != spec.name:
            own.lose(("metadata", "name"), f"the Service of the spec is `{spec.name}`", "let clients use that name")
        cleaned = clean_object(service.value)["spec"]
        for key in cleaned:
            if key == "type":
                own.lose(("spec", key), "users reach the editor by `kubectl port-forward` or a gateway", "set `expose`")
            elif key == "ports" and cleaned[key] != [{"name": "http", "port": port}]:
                why = f"the Service of the spec has the editor's port only, {port}, named `http`"
                own.lose(("spec", key), why, "let clients use that port")
            elif key not in ("ports", "selector", "clusterIP"):
                own.lose(("spec", key), "the Service of the spec has no key for it", "add it by `patches`")
        own.take("spec")
