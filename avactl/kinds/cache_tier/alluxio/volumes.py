"""Volumes of pods on a machine: bind mounts of directories in FUSE, which outlive a FUSE process that is killed.

A pod's volume is a bind mount of one directory. If that directory were in FUSE itself, the pod would keep the mount of
a FUSE process that has ended. It is a bind mount of its own instead, and once FUSE is mounted anew, a new bind mount is
put over it: mount propagation (`HostToContainer`) puts it over the pod's mount too.

The kernel mounts on a directory of an ended FUSE process as long as it has not forgotten it. It forgets one, and those
below it, when a request for it fails: so nothing may look for a directory in a FUSE process that does not answer.
"""

from __future__ import annotations

import posixpath
import re
import shlex

from avactl.kinds.cache_tier.alluxio import names
from avactl.program.dataset_access import host_path, pushed_path, tier_path, volume_directory, volume_path
from avactl.program.dataset_listing import version_directory
from avactl.program.program import Item, Program
from avactl.spec.platform.cache_tier import CacheTierSpec

KEY = "volumes"
"""Key of the list in its ConfigMap."""
_PASS_INTERVAL_S = 2
"""Seconds between two looks at the mounts."""
_REQUEST_TIMEOUT_S = 30
"""Seconds for a request to FUSE, which can hang."""


def mountable_paths(tier: Item[CacheTierSpec], program: Program) -> set[str]:
    """Return the paths of a tier's namespace that pods may mount: versions of datasets, and buckets of teams."""
    found: set[str | None] = set()
    for dataset in program.datasets():
        if dataset.spec.tier == tier.name:
            for version in dataset.spec.versions:
                url = version_directory(dataset, program, version)
                found.add(tier_path(tier, url) if url else None)
    for team in program.teams():
        for bucket in team.spec.buckets:
            if bucket.tier == tier.name:
                found |= {tier_path(tier, bucket.url), pushed_path(tier, bucket.url)}
    return {path for path in found if path is not None}


def volume_list(tier: Item[CacheTierSpec], program: Program) -> str:
    """Return the list that the script follows: a line `NAME PATH` for each volume."""
    return "".join(
        f"{posixpath.basename(volume_path(tier, path))} {path}\n" for path in sorted(mountable_paths(tier, program))
    )


def volumes_script(tier: Item[CacheTierSpec]) -> str:
    """Return the script that keeps the bind mounts."""
    fuse, volumes = host_path(tier, "/"), volume_directory(tier)
    return f"""\
#!/bin/bash
# Keeps a bind mount of each volume's directory in FUSE. One that belongs to a FUSE process that has ended stays, and
# gets another one over it: pods that run see that one, and lose both if the first is unmounted. Nothing is unmounted or
# removed here: a volume that no spec has any more ends with its FUSE process.
# A directory that is looked for while FUSE does not answer is forgotten by the kernel, and nothing can be mounted over
# its mounts any more. Hence the look at the root before, which asks FUSE and forgets nothing.
set -u
fuse={shlex.quote(fuse)}
volumes={shlex.quote(volumes)}
trap 'exit 0' TERM
while sleep {_PASS_INTERVAL_S} & wait $!; do
  unset device
  declare -A device
  while read -r _ _ number _ point _; do device[$point]=$number; done </proc/self/mountinfo
  now=${{device[{shlex.quote(_escape_path(fuse))}]:-}}
  [ -n "$now" ] || continue
  if [ -z "${{device[{shlex.quote(_escape_path(volumes))}]:-}}" ]; then
    # In memory: after a reboot no empty directory is left that a pod could take for its volume.
    mkdir -p "$volumes"
    mount -t tmpfs -o mode=755,size=16m volumes "$volumes"
    continue
  fi
  mkdir -p "$volumes/.mounts"
  while read -r name path; do
    place=$(readlink "$volumes/$name" || echo ".mounts/$name")
    mounted=${{device[{shlex.quote(_escape_path(volumes))}/$place]:-}}
    if [ "$mounted" != "$now" ]; then
      timeout {_REQUEST_TIMEOUT_S} ls "$fuse" >/dev/null || break
      timeout {_REQUEST_TIMEOUT_S} test -d "$fuse$path" || continue
      mkdir "$volumes/$place" 2>/dev/null || true
      if ! timeout {_REQUEST_TIMEOUT_S} mount --bind "$fuse$path" "$volumes/$place"; then
        # Forgotten all the same. Pods that run must be started anew; those that start get a mount of their own.
        [ -n "$mounted" ] || continue
        place=.mounts/$name.${{now/:/-}}
        mkdir "$volumes/$place" 2>/dev/null || true
        timeout {_REQUEST_TIMEOUT_S} mount --bind "$fuse$path" "$volumes/$place" || continue
        echo "$name: pods that run have lost this volume: start them anew"
      fi
    fi
    # Pods mount this name: it must not lead to a directory before that is mounted.
    [ "$(readlink "$volumes/$name")" = "$place" ] || ln -sfn "$place" "$volumes/$name"
  done <{names.VOLUMES_DIR}/{KEY}
done
"""


def _escape_path(path: str) -> str:
    """Return a path as in /proc/self/mountinfo."""
    return re.sub(r"[ \\]", lambda match: f"\\{ord(match[0]):03o}", path)
