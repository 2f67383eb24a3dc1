"""FUSE: the tier as a directory of each machine."""

from __future__ import annotations

import shlex

from avactl.kinds.cache_tier import names
from avactl.kinds.cache_tier.pods import (
    LOGGING_MOUNT,
    SITE_MOUNT,
    config_volume,
    field,
    image,
    java,
    mebibytes,
    pod,
    socket_volume,
    tolerations,
)
from avactl.kinds.cache_tier.properties import fuse_options
from avactl.kinds.dataset_access import host_path
from avactl.kinds.lowering.pods import resources
from avactl.kinds.manifest import Body
from avactl.kinds.program import Item, Program, pool_size


def start_spread(item: Item, program: Program) -> int:
    """Over how many seconds the starts of FUSE are spread, about one a second.

    From about 40 at once some fail (Alluxio issue #15016).
    """
    machines = sum(pool_size(pool) for pool in program.pools(item.spec.cluster))
    return max(10, min(machines, 300))


def fuse_script(item: Item, program: Program) -> str:
    """What the FUSE container runs: wait a random while, clean up after a predecessor, mount."""
    at = shlex.quote(host_path(item, "/"))
    # New entry points take the mount point as an argument, old ones from MOUNT_POINT.
    return f"""\
#!/bin/bash
set -eu
export MOUNT_POINT={at}
sleep $((RANDOM % {start_spread(item, program)}))
# A predecessor that was killed leaves a mount that answers nothing.
umount -l "$MOUNT_POINT" 2>/dev/null || true
mkdir -p "$MOUNT_POINT"
exec /entrypoint.sh fuse --fuse-opts={",".join(fuse_options(item))} "$MOUNT_POINT" /
"""


def fuse_pod(item: Item, program: Program) -> Body:
    """FUSE. Its mount must be seen by the machine and other pods, for which it has to be privileged."""
    fuse = item.spec.fuse
    at = host_path(item, "/")
    memory = mebibytes(fuse.memory)
    options = f"{java(memory, direct=True)} -Dalluxio.user.hostname=$(HOST_IP)"
    container: Body = {
        "name": "fuse",
        "image": image(item, program),
        "command": ["/bin/bash", "/config/fuse.sh"],
        "env": [field("HOST_IP", "status.hostIP"), {"name": "ALLUXIO_FUSE_JAVA_OPTS", "value": options}],
        "resources": resources(fuse.cpu, fuse.memory),
        "readinessProbe": {
            # Whether it is mounted; not whether the masters answer, for whose silence FUSE is not to blame.
            "exec": {"command": ["grep", "-q", f" {at} fuse", "/proc/mounts"]},
            "periodSeconds": 10,
        },
        "lifecycle": {"preStop": {"exec": {"command": ["umount", "-l", at]}}},
        "securityContext": {"privileged": True, "runAsUser": 0, "runAsNonRoot": False},
        "volumeMounts": [
            SITE_MOUNT,
            LOGGING_MOUNT,
            {"name": "config", "mountPath": "/config", "readOnly": True},
            {"name": "device", "mountPath": "/dev/fuse"},
            {"name": "mounts", "mountPath": fuse.path, "mountPropagation": "Bidirectional"},
            {"name": "sockets", "mountPath": names.SOCKET_DIR},
        ],
    }
    return pod(
        item, program,
        # Pods that want no GPU run on any machine, so FUSE does too.
        nodeSelector={"kubernetes.io/os": "linux"},
        tolerations=tolerations(program.pools(item.spec.cluster)),
        containers=[container],
        terminationGracePeriodSeconds=60,
        volumes=[
            config_volume(item),
            {"name": "device", "hostPath": {"path": "/dev/fuse", "type": "CharDevice"}},
            {"name": "mounts", "hostPath": {"path": fuse.path, "type": "DirectoryOrCreate"}},
            socket_volume(item),
        ],
    )  # fmt: skip
