"""User pods: restricted security context, datasets, buckets, code. For GPUs see `lowering.gpu_request`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from avactl.contracts import names
from avactl.contracts.pod_annotations import USER
from avactl.program import dataset_access
from avactl.program.lowering.gpu_request import NO_GPUS as NO_GPUS
from avactl.program.lowering.gpu_request import GpuRequest as GpuRequest
from avactl.program.lowering.gpu_request import device_class as device_class
from avactl.program.lowering.k8s import drop_none
from avactl.program.lowering.pod_collisions import refuse_collisions
from avactl.program.lowering.pod_settings import with_settings
from avactl.program.manifest import Body
from avactl.program.program import Item, Program
from avactl.spec.repository.git_settings import credential_key, settings_variables
from avactl.spec.schema.base import EnvSource
from avactl.spec.schema.compute import DatasetMount, GitCode
from avactl.spec.schema.pod_settings import LONGEST_GRACE as LONGEST_GRACE
from avactl.spec.schema.pod_settings import PodSettings

USER_ID = 1000
"""Default user and group. Pod security `restricted` requires a non-zero value."""

TMP = "/tmp"  # noqa: S108 - in the container
HOME = "/home/user"
"""HOME of user containers: a volume, because no image has a directory for every user ID."""


def container_security() -> Body:
    """The container-level fields of pod security `restricted`."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def pod_security(user: int = USER_ID, group: int | None = None) -> Body:
    """The pod-level fields of pod security `restricted`, unless the user is root."""
    return {
        "runAsNonRoot": user != 0,
        "runAsUser": user,
        "runAsGroup": group or user,
        "fsGroup": group or user,
        # Otherwise a volume of a million checkpoint files would be walked at each start.
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def env_list(env: Mapping[str, Any]) -> list[Body]:
    """Environment variables in spec order; Secrets, ConfigMaps and fields by reference."""
    result: list[Body] = []
    for name, value in env.items():
        if isinstance(value, EnvSource):
            result.append({"name": name, "valueFrom": _build_source(value)})
        else:
            result.append({"name": name, "value": value})
    return result


def _build_source(value: EnvSource) -> Body:
    if value.secret is not None:
        return {"secretKeyRef": {"name": value.secret.name, "key": value.secret.key}}
    if value.config_map is not None:
        return {"configMapKeyRef": {"name": value.config_map.name, "key": value.config_map.key}}
    return {"fieldRef": {"fieldPath": value.field}}


def member_annotation(item: Item) -> dict[str, str]:
    """Return the annotation of pods that names the member for whom they run; empty for the team's own."""
    return {USER.name: item.resource.member} if item.resource.member else {}


def merge_env(*parts: Iterable[Body]) -> list[Body]:
    """Environment variables in order; the last of several with the same name wins, at its own position."""
    result: dict[str, Body] = {}
    for part in parts:
        for entry in part:
            # Kubernetes expands `$(NAME)` only from variables defined earlier, so the later position is the safe one.
            result.pop(entry["name"], None)
            result[entry["name"]] = entry
    return list(result.values())


def build_resources(cpu: str, memory: str, extended: dict[str, str] | None = None, claims: Iterable[str] = ()) -> Body:
    """Requests equal to limits for memory and devices; CPU has no limit, so that idle cores are used."""
    extra = extended or {}
    result: Body = {
        "requests": {"cpu": cpu, "memory": memory, **extra},
        "limits": {"memory": memory, **extra},
    }
    if used := [{"name": name} for name in claims]:
        result["claims"] = used
    return result


def build_helper(
    name: str, image: str | None, script: str, env: Iterable[Body], compute: Body, mounts: Sequence[Body], **more: Any
) -> Body:
    """Build a container of the platform in a user pod: it runs a shell script and sees no GPU."""
    return {
        "name": name,
        "image": image,
        "command": ["sh", "-c", script],
        "env": merge_env(env_list({"HOME": TMP, **NO_GPUS}), env),
        "resources": compute,
        "securityContext": container_security(),
        # Its pod's status tells why it failed, where `kubectl describe` and the daemons look.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": list(mounts),
        **more,
    }


class PodVolumes:
    """The volumes of a pod and the mounts of its main container."""

    def __init__(self, item: Item, program: Program) -> None:
        self.item = item
        self.program = program
        self.volumes: list[Body] = []
        self.mounts: list[Body] = []
        self.init: list[Body] = []
        self.env_from: list[Body] = []

    def empty(self, name: str, path: str, *, size: str | None = None, memory: bool = False) -> None:
        """Add an emptyDir; `size` in bytes."""
        source = drop_none(sizeLimit=size, medium="Memory" if memory else None)
        self.volumes.append({"name": name, "emptyDir": source})
        self.mounts.append({"name": name, "mountPath": path})

    def claim(self, name: str, claim: str, path: str, *, read_only: bool = False, fuse: bool = False) -> None:
        """Add a PersistentVolumeClaim; `fuse`: propagate mounts that the host recreates."""
        source = drop_none(claimName=claim, readOnly=True if read_only else None)
        self.volumes.append({"name": name, "persistentVolumeClaim": source})
        self.mounts.append(
            drop_none(
                name=name,
                mountPath=path,
                readOnly=True if read_only else None,
                mountPropagation="HostToContainer" if fuse else None,
            )
        )

    def config(
        self, name: str, config_map: str, path: str, *, keys: Sequence[str] = (), executable: bool = False
    ) -> None:
        """Add a ConfigMap as files: all of its keys, or the given ones."""
        source = drop_none(
            name=config_map,
            items=[{"key": key, "path": key} for key in keys] or None,
            defaultMode=0o555 if executable else None,
        )
        self.volumes.append({"name": name, "configMap": source})
        self.mounts.append({"name": name, "mountPath": path, "readOnly": True})

    def file(self, volume: str, key: str, path: str) -> None:
        """Mount one file of an existing ConfigMap volume at its own path."""
        self.mounts.append({"name": volume, "mountPath": path, "subPath": key, "readOnly": True})

    def datasets(self, mounts: Sequence[DatasetMount]) -> None:
        """Add datasets, through their cache tier or fetched from the object store."""
        for index, mount in enumerate(mounts):
            volume = f"dataset-{index}"
            access = dataset_access.resolve(self.program, self.item, mount)
            if access.claim:
                self.claim(volume, access.claim, mount.mount, read_only=True, fuse=True)
                if access.manifest:
                    # Next to the data: nothing can be mounted under a read-only directory.
                    self.config(f"{volume}-list", access.manifest, f"{mount.mount.rstrip('/')}.manifest")
                continue
            self.fetched(f"fetch-{index}", access, volume, mount.mount)

    def fetched(
        self,
        name: str,
        access: dataset_access.DatasetAccess,
        volume: str,
        path: str,
        script: str = "",
    ) -> None:
        """Add a volume, and the init container that copies an object-store prefix into it, or the listed objects."""
        self.empty(volume, path, size=access.size)
        mounts: list[Body] = [{"name": volume, "mountPath": path}]
        script = script or FETCH_SCRIPT
        if access.manifest:
            self.config(f"{volume}-list", access.manifest, f"{path.rstrip('/')}.manifest")
            mounts.append(self.mounts[-1])
            script = listed_script(script)
        self.init.append(fetch_container(self.program, self.item, name, access, mounts, script))

    def buckets(self) -> None:
        """Add the team's buckets: all URLs in the environment, and those with a cache tier mounted under /buckets."""
        team = self.program.find_team(self.item.team) if self.item.team else None
        if team is not None and team.spec.buckets:
            source = {"name": dataset_access.TEAM_BUCKETS}
            self.env_from.append({"prefix": dataset_access.BUCKET_PREFIX, "configMapRef": source})
        for bucket in dataset_access.mounted_buckets(self.program, self.item):
            claim = dataset_access.bucket_claim(bucket.name)
            self.claim(
                f"bucket-{bucket.name}",
                claim,
                f"/buckets/{bucket.name}",
                read_only=bucket.access == "read",
                fuse=True,
            )
            tier = self.program.tier(bucket.tier) if bucket.tier is not None else None
            if tier is not None and dataset_access.pushed_path(tier, bucket.url) is not None:
                claim = dataset_access.pushed_claim(bucket.name)
                place = f"/buckets/{bucket.name}{dataset_access.PUSHED}"
                self.claim(f"pushed-{bucket.name}", claim, place, read_only=True, fuse=True)

    def code(self, git: GitCode) -> None:
        """Add a git repository, fetched by an init container."""
        self.empty("code", git.mount)
        mounts: list[Body] = [{"name": "code", "mountPath": git.mount}, {"name": "code-tmp", "mountPath": TMP}]
        self.volumes.append({"name": "code-tmp", "emptyDir": {}})
        settings = {"safe.directory": "*"}  # the volume's root belongs to root
        env = {"URL": git.url, "REF": git.ref, "TARGET": git.mount}
        if git.secret:
            self.volumes.append({"name": "git-secret", "secret": {"secretName": git.secret, "defaultMode": 0o440}})
            mounts.append({"name": "git-secret", "mountPath": GIT_SECRET, "readOnly": True})
            if key := credential_key(git.url):
                settings[key] = f"!sh {GIT_SECRET_HELPER}"
        env |= settings_variables(settings)
        image = self.program.cluster_spec(self.item.cluster).images.git
        self.init.append(build_helper(CODE, image, GIT_SCRIPT, env_list(env), build_resources("100m", "256Mi"), mounts))


CODE = "code"
"""Init container that fetches code."""
TERMINATION_LOG = "/dev/termination-log"
"""File of a container whose content Kubernetes puts into the pod's status, up to 4 KiB."""
GIT_SECRET = "/etc/git-secret"  # noqa: S105 - a path
GIT_SECRET_HELPER = f"{TMP}/credential-helper"
MISSING_REVISION = 66
"""Exit code of the init container `code` for a revision that does not exist: another try would not find it either."""
GIT_SCRIPT = f"""\
set -eu
if [ -f {GIT_SECRET}/username ]; then
  printf 'echo "username=$(cat {GIT_SECRET}/username)"; echo "password=$(cat {GIT_SECRET}/password)"' \\
    > {GIT_SECRET_HELPER}
fi
if [ -f {GIT_SECRET}/ssh-privatekey ]; then
  # ssh wants a name for the user that runs it.
  if ! id -un >/dev/null 2>&1; then
    echo "the git image has no user $(id -u): git over ssh needs one" >&2
    exit 1
  fi
  check=accept-new hosts={TMP}/known_hosts
  if [ -f {GIT_SECRET}/known_hosts ]; then check=yes hosts={GIT_SECRET}/known_hosts; fi
  export GIT_SSH_COMMAND="ssh -i {GIT_SECRET}/ssh-privatekey -o IdentitiesOnly=yes \\
    -o StrictHostKeyChecking=$check -o UserKnownHostsFile=$hosts"
fi
cd "$TARGET"
[ -d .git ] || git init -q .
git remote remove origin 2>/dev/null || true
git remote add origin "$URL"
# Most servers give one commit by its name; the others give all of them.
if git fetch -q --depth 1 origin "$REF"; then
  git checkout -q --force --detach FETCH_HEAD
else
  git fetch -q --tags origin '+refs/heads/*:refs/remotes/origin/*'
  for name in "$REF" "origin/$REF" ""; do
    if [ -z "$name" ]; then
      echo "error: $URL has no commit, tag or branch $REF" >&2
      exit {MISSING_REVISION}
    fi
    if git rev-parse -q --verify "$name^{{commit}}" >/dev/null; then break; fi
  done
  git checkout -q --force --detach "$name"
fi
git log -1 --format='code: %H %s'
# Pipelines read the commit in the pod's status.
if [ -w {TERMINATION_LOG} ]; then git rev-parse HEAD > {TERMINATION_LOG}; fi
"""
"""Fetches one revision into TARGET. Safe to rerun in a volume that it has filled."""

_RCLONE: dict[str, dict[str, str]] = {
    "s3": {"BACKEND": "s3", "RCLONE_S3_PROVIDER": "AWS"},
    "oss": {"BACKEND": "s3", "RCLONE_S3_PROVIDER": "Alibaba"},
    "cos": {"BACKEND": "s3", "RCLONE_S3_PROVIDER": "TencentCOS"},
    "kodo": {"BACKEND": "s3", "RCLONE_S3_PROVIDER": "Qiniu"},
    "gs": {"BACKEND": "gcs"},
    "hdfs": {"BACKEND": "hdfs"},
}
"""rclone's backend for each scheme of object-store URLs. Source: https://rclone.org/s3/#s3-provider"""

FETCH_SCRIPT = """\
set -eu
place="${SOURCE#*://}"
if [ "$BACKEND" = hdfs ]; then
  export RCLONE_HDFS_NAMENODE="${place%%/*}"
  case "$place" in */*) place="/${place#*/}" ;; *) place=/ ;; esac
fi
if [ "$BACKEND" = s3 ] && [ -z "${RCLONE_S3_ACCESS_KEY_ID:-}" ]; then export RCLONE_S3_ENV_AUTH=true; fi
if [ "${RCLONE_S3_PROVIDER:-}" = AWS ] && [ -n "${RCLONE_S3_ENDPOINT:-}" ]; then export RCLONE_S3_PROVIDER=Other; fi
exec rclone copy --transfers 8 --stats 30s --stats-one-line ":$BACKEND:$place" "$TARGET"
"""
_WANT_LISTED = """\
# rclone passes over what the store does not have.
while IFS= read -r name; do
  [ -f "$TARGET/$name" ] || { echo "error: $SOURCE/$name: there is no such object" >&2; exit 1; }
done <"$LIST/objects.txt"
if [ -s "$LIST/objects.sha256" ]; then rclone checksum sha256 "$LIST/objects.sha256" "$TARGET" --one-way; fi
"""

VERIFY = r"""
# A published model has the SHA-256 of each file. What differs is removed, so that it is copied again.
verified() {
  [ -f "$1/manifest.sha256" ] || return 0
  if ! rclone checksum sha256 "$1/manifest.sha256" "$1" --one-way; then
    rm -rf "${1:?}"/*
    echo "error: $2: a file has another checksum than when it was published" >&2
    return 1
  fi
}
"""
"""Shell function: compares the files of a directory with `manifest.sha256` in it, which `avactl delivery` publishes.
Source: https://rclone.org/commands/rclone_checksum/"""
FETCH_MODEL_SCRIPT = FETCH_SCRIPT.replace("exec rclone", "rclone") + VERIFY + 'verified "$TARGET" "$SOURCE"\n'
"""As `FETCH_SCRIPT`, for models: what was published is compared with its checksums."""


def listed_script(script: str) -> str:
    """Return a script that copies only the objects of a list, which must be all there, and be those."""
    copy = script.replace("exec rclone", "rclone")
    return copy.replace("rclone copy ", 'rclone copy --files-from-raw "$LIST/objects.txt" ') + _WANT_LISTED


def rclone_backend(scheme: str) -> Mapping[str, str]:
    """Return rclone's backend (`BACKEND`) for a scheme of object-store URLs, and its options as variables."""
    return _RCLONE[scheme]


def secret_env(secret: str, variables: Mapping[str, str]) -> list[Body]:
    """Environment variables from optional keys of a Secret: variable → key."""
    return [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key, "optional": True}}}
        for name, key in variables.items()
    ]


def fetch_container(
    program: Program,
    item: Item,
    name: str,
    access: dataset_access.DatasetAccess,
    mounts: list[Body],
    script: str,
) -> Body:
    """Build an init container that copies an object-store prefix into the first of its volumes.

    Keys of the Secret: `accessKeyId`, `secretAccessKey`, `endpoint`; `serviceAccount` (JSON) for Google Cloud Storage.
    """
    scheme = access.url.partition("://")[0]
    target, *lists = (mount["mountPath"] for mount in mounts)
    values = {"SOURCE": access.url, "TARGET": target, "RCLONE_CONFIG": "/notfound", **_RCLONE[scheme]}
    env = env_list(values | ({"LIST": lists[0]} if lists else {}))
    if access.secret and scheme == "gs":
        env += secret_env(access.secret, {"RCLONE_GCS_SERVICE_ACCOUNT_CREDENTIALS": "serviceAccount"})
    elif access.secret:
        keys = {"RCLONE_S3_ACCESS_KEY_ID": "accessKeyId", "RCLONE_S3_SECRET_ACCESS_KEY": "secretAccessKey"}
        env += secret_env(access.secret, {**keys, "RCLONE_S3_ENDPOINT": "endpoint"})
    image = program.cluster_spec(item.cluster).images.fetch
    return build_helper(name, image, script, env, build_resources("500m", "1Gi"), mounts)


def pod_spec(
    item: Item,
    program: Program,
    main: Body,
    *,
    volumes: PodVolumes | None = None,
    gpu: GpuRequest | None = None,
    service_account: str,
    priority: str | None = None,
    settings: PodSettings | None = None,
    settings_at: Sequence[tuple[str | int, ...]] = (("spec", "pod"),),
    **more: Any,
) -> Body:
    """Build a pod spec around its main container; `more` are further fields of the pod spec.

    `settings` of the spec are applied last; `settings_at` are the places where they may stand in the document. Raises
    RefusedError if they collide with what is in the pod.

    The main container gets the volume mounts, the security context, its GPUs, and, unless it sets HOME, a writable
    home. Tokens are mounted only if the caller sets `automountServiceAccountToken=True`.
    """
    cluster = program.cluster_spec(item.cluster)
    gathered = volumes or PodVolumes(item, program)
    given = main.get("env", ())
    user = getattr(item.spec, "run_as_user", USER_ID)
    if not any(entry["name"] == "HOME" for entry in given):
        gathered.empty("home", HOME)
    # A user without a name or home breaks code that looks them up: caches, torch.compile, getpass.
    own = env_list({"HOME": HOME, "USER": "user"})
    devices = env_list(NO_GPUS) if gpu is None else gpu.env()
    container = {**main, "env": merge_env(own, given, devices), "securityContext": container_security()}
    team = program.find_team(item.team) if item.team else None
    pull_secrets = dict.fromkeys([*cluster.pull_secrets, *(team.spec.pull_secrets if team is not None else ())])
    if gathered.mounts:
        container["volumeMounts"] = gathered.mounts
    if gathered.env_from:
        container["envFrom"] = gathered.env_from
    fields: Body = {
        "serviceAccountName": service_account,
        "automountServiceAccountToken": False,
        "securityContext": pod_security(user, getattr(item.spec, "run_as_group", None)),
        "containers": [container],
        "enableServiceLinks": False,
        **drop_none(
            initContainers=gathered.init or None,
            volumes=gathered.volumes or None,
            priorityClassName=priority,
            schedulerName=names.SCHEDULER_NAME if cluster.daemons.scheduler else None,
            imagePullSecrets=[{"name": name} for name in pull_secrets] or None,
        ),
    }
    if gpu is not None:
        fields.update(gpu.pod_fields())
    fields.update(more)
    if settings is not None:
        refuse_collisions(item, settings_at, fields, settings)
        fields = with_settings(fields, settings, env_list, container_security())
    return as_user(fields)


def as_user(pod: Body) -> Body:
    """Let the containers without a user of their own run as root if the pod does: helpers say that they do not."""
    if pod["securityContext"]["runAsUser"] != 0:
        return pod

    def of(container: Body) -> Body:
        security = container["securityContext"]
        return {**container, "securityContext": {**security, "runAsNonRoot": security.get("runAsUser", 0) != 0}}

    groups = [key for key in ("initContainers", "containers") if key in pod]
    return {**pod, **{key: [of(each) for each in pod[key]] for key in groups}}
