"""FUSE: the tier as a directory on each machine."""

from __future__ import annotations

import shlex

from avactl.base.quantity import parse_quantity
from avactl.kinds.cache_tier.alluxio import names
from avactl.kinds.cache_tier.alluxio.pods import (
    LOGGING_MOUNT,
    SITE_MOUNT,
    config_volume,
    engine_image,
    field_variable,
    java_options,
    parse_mebibytes,
    socket_volume,
)
from avactl.kinds.cache_tier.alluxio.properties import fuse_options
from avactl.kinds.cache_tier.pods import build_pod, pool_tolerations
from avactl.program.cache_engines import EngineNeeds
from avactl.program.dataset_access import host_path
from avactl.program.lowering.pods import build_resources
from avactl.program.manifest import Body
from avactl.program.program import Item, Program, pool_size
from avactl.spec.platform.cache_tier import CacheTierSpec

_ANSWER_TIMEOUT_S = 20
"""Seconds in which FUSE answers a request, if it does not hang."""


def fuse_needs(item: Item[CacheTierSpec]) -> EngineNeeds:
    """Return the requests of the FUSE pod on each machine."""
    fuse = item.spec.fuse
    return (
        EngineNeeds(str(parse_quantity(fuse.cpu)), int(parse_quantity(fuse.memory))) if fuse.enabled else EngineNeeds()
    )


def start_spread(item: Item[CacheTierSpec], program: Program) -> int:
    """Seconds over which FUSE starts are spread, about one per second.

    When about 40 start at once, some fail (Alluxio issue #15016).
    """
    machines = sum(pool_size(pool) for pool in program.pools(item.spec.cluster))
    return max(10, min(machines, 300))


def fuse_script(item: Item[CacheTierSpec], program: Program) -> str:
    """Return the FUSE container's script: wait a random time at a first start, clean up a stale mount, mount."""
    at = shlex.quote(host_path(item, "/"))
    # New entry points take the mount point as an argument, old ones read MOUNT_POINT.
    return f"""\
#!/bin/bash
set -eu
export MOUNT_POINT={at}
# Many starts at once fail. A restart on a machine where this configuration ran is one of few, and must be quick.
started={names.SOCKET_DIR}/fuse.started
config=$(cksum </config/alluxio-site.properties || true)
if [ -z "$config" ] || [ "$(cat "$started" 2>/dev/null || true)" != "$config" ]; then
  sleep $((RANDOM % {start_spread(item, program)}))
fi
# A predecessor that was killed leaves a mount that answers nothing.
umount -l "$MOUNT_POINT" 2>/dev/null || true
mkdir -p "$MOUNT_POINT"
printf '%s' "$config" >"$started" || true
exec /entrypoint.sh fuse --fuse-opts={",".join(fuse_options(item))} "$MOUNT_POINT" /
"""


def health_script(item: Item[CacheTierSpec]) -> str:
    """Return the liveness probe's script: FUSE answers, be it with an error, or no master does.

    While no master answers, requests wait for one, and a restart of FUSE would not help.
    """
    at = shlex.quote(host_path(item, "/"))
    masters = " ".join(names.master_hosts(item))
    return f"""\
#!/bin/bash
grep -q " "{at}" fuse" /proc/mounts || {{ echo "not mounted"; exit 1; }}
# A name that no cache has.
error=$(timeout -k 1 {_ANSWER_TIMEOUT_S} stat {at}/.health-$RANDOM$RANDOM 2>&1)
code=$?
case "$code $error" in *"not connected"*) echo "$error"; exit 1 ;; esac
# 124 and 137: no answer in time.
[ "$code" != 124 ] && [ "$code" != 137 ] && exit 0
for host in {masters}; do
  if timeout 2 bash -c "echo >/dev/tcp/$host/{names.MASTER_PORT}" 2>/dev/null; then
    echo "no answer in {_ANSWER_TIMEOUT_S} s"
    exit 1
  fi
done
"""


def fuse_pod(item: Item[CacheTierSpec], program: Program) -> Body:
    """Build the FUSE DaemonSet's pod. The machine and other pods must see its mount, so it has to be privileged."""
    fuse = item.spec.fuse
    at = host_path(item, "/")
    memory = parse_mebibytes(fuse.memory)
    options = f"{java_options(memory, direct=True)} -Dalluxio.user.hostname=$(HOST_IP)"
    mount: Body = {"name": "mounts", "mountPath": fuse.path, "mountPropagation": "Bidirectional"}
    privileged: Body = {"privileged": True, "runAsUser": 0, "runAsNonRoot": False}
    # Not that the masters answer: FUSE is not at fault when they are down.
    mounted: Body = {"exec": {"command": ["grep", "-q", f" {at} fuse", "/proc/mounts"]}, "periodSeconds": 10}
    container: Body = {
        "name": "fuse",
        "image": engine_image(item, program),
        "command": ["/bin/bash", "/config/fuse.sh"],
        "env": [field_variable("HOST_IP", "status.hostIP"), {"name": "ALLUXIO_FUSE_JAVA_OPTS", "value": options}],
        "resources": build_resources(fuse.cpu, fuse.memory),
        "readinessProbe": mounted,
        # The first start waits for its turn.
        "startupProbe": {**mounted, "failureThreshold": 60},
        "livenessProbe": {
            "exec": {"command": ["/bin/bash", "/config/health.sh"]},
            "periodSeconds": 30,
            "timeoutSeconds": _ANSWER_TIMEOUT_S + 2 * item.spec.masters.replicas + 5,
            "failureThreshold": 2,
        },
        "lifecycle": {"preStop": {"exec": {"command": ["umount", "-l", at]}}},
        "securityContext": privileged,
        "volumeMounts": [
            SITE_MOUNT,
            LOGGING_MOUNT,
            {"name": "config", "mountPath": "/config", "readOnly": True},
            {"name": "device", "mountPath": "/dev/fuse"},
            mount,
            {"name": "sockets", "mountPath": names.SOCKET_DIR},
        ],
    }
    volumes: Body = {
        "name": "volumes",
        "image": engine_image(item, program),
        "command": ["/bin/bash", "/config/volumes.sh"],
        "resources": build_resources("10m", "64Mi"),
        "securityContext": privileged,
        "volumeMounts": [
            {"name": "config", "mountPath": "/config", "readOnly": True},
            {"name": "volumes", "mountPath": names.VOLUMES_DIR, "readOnly": True},
            mount,
        ],
    }
    return build_pod(
        item,
        program,
        # Pods without GPUs run on any machine, so FUSE does too.
        nodeSelector={"kubernetes.io/os": "linux"},
        tolerations=pool_tolerations(program.pools(item.spec.cluster)),
        containers=[container, volumes],
        terminationGracePeriodSeconds=60,
        volumes=[
            config_volume(item),
            {"name": "volumes", "configMap": {"name": names.volumes_name(item)}},
            {"name": "device", "hostPath": {"path": "/dev/fuse", "type": "CharDevice"}},
            {"name": "mounts", "hostPath": {"path": fuse.path, "type": "DirectoryOrCreate"}},
            socket_volume(item),
        ],
    )
