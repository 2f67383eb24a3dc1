"""Jobs that run the Alluxio shell: mount under-stores, load data, free it."""

from __future__ import annotations

from collections.abc import Sequence

from avactl.kinds.cache_tier.alluxio import names
from avactl.kinds.cache_tier.alluxio.pods import SITE_MOUNT, config_volume, engine_image, java_options
from avactl.kinds.cache_tier.pods import build_pod, spare_tolerations
from avactl.program.lowering.pods import build_resources, container_security
from avactl.program.manifest import Body
from avactl.program.program import Item, Program
from avactl.spec.platform.cache_tier import CacheTierSpec

MEMORY = 1024
"""Memory of a shell, in MiB. Listing a directory of a million files takes a few hundred."""


def shell_pod(
    tier: Item[CacheTierSpec], program: Program, script: str, args: Sequence[str], env: Sequence[Body] = ()
) -> Body:
    """Build a pod that runs a script of the tier's ConfigMap with the Alluxio shell. It satisfies `restricted`."""
    container = {
        "name": "alluxio",
        "image": engine_image(tier, program),
        "command": ["/bin/bash", f"/config/{script}", *args],
        "env": [*env, {"name": "ALLUXIO_USER_JAVA_OPTS", "value": java_options(MEMORY, direct=False)}],
        "resources": build_resources("200m", f"{MEMORY}Mi"),
        "securityContext": container_security(),
        "volumeMounts": [SITE_MOUNT, {"name": "config", "mountPath": "/config", "readOnly": True}],
    }
    return build_pod(
        tier,
        program,
        restartPolicy="OnFailure",
        tolerations=spare_tolerations(tier, program),
        containers=[container],
        volumes=[config_volume(tier)],
    )


LOAD_SCRIPT = f"""\
#!/bin/bash
# load.sh COPIES BANDWIDTH PATH…: loads directories into the cache and waits until they are there. BANDWIDTH is what
# one worker reads in a second, bytes; 0 is no limit. Files that are there already are not read again.
set -euo pipefail
alluxio() {{ {names.HOME}/bin/alluxio "$@"; }}
copies="$1" bandwidth="$2"
shift 2
limit=()
if [ "$bandwidth" != 0 ]; then limit=(--bandwidth "$bandwidth"); fi

for path in "$@"; do
  # A load of what the masters have not seen in the store fails: it "does not exist".
  alluxio fs loadMetadata -R "$path"
  alluxio fs load "$path" --submit --verify --partial-listing ${{limit[@]+"${{limit[@]}}"}}
  while :; do
    sleep 10
    report=$(alluxio fs load "$path" --progress)
    printf '%s\\n' "$report"
    case "$report" in
      *"Job State: SUCCEEDED"*) break ;;
      *"Job State: FAILED"* | *"Job State: STOPPED"*) exit 1 ;;
    esac
  done
  # Copies beyond the first are also pinned: they stay until somebody frees them.
  if [ "$copies" -gt 1 ]; then alluxio fs setReplication --min "$copies" -R "$path"; fi
done
"""

PREFIXES_SCRIPT = f"""\
#!/bin/bash
# prefixes.sh PATH…: creates directories in their stores, so that pods can mount them before anything is written there.
set -euo pipefail
alluxio() {{ {names.HOME}/bin/alluxio "$@"; }}

# A directory that is created before its store is mounted would be in the way of the mount.
mounted() {{
  alluxio fs mount | awk -v path="$1/" '$2 == "on" && $3 != "/" && index(path, $3 "/") == 1 {{ found = 1 }}
    END {{ exit !found }}'
}}

for path in "$@"; do
  until mounted "$path"; do sleep 10; done
  # An object store has no empty directories: CACHE_THROUGH writes an object that stands for it.
  alluxio fs test -d "$path" || alluxio fs -Dalluxio.user.file.writetype.default=CACHE_THROUGH mkdir "$path"
done
"""

FREE_SCRIPT = f"""\
#!/bin/bash
# free.sh SECONDS PATH…: drops from the cache each directory of whose files none was read, and none was new, for so
# long. The store keeps them.
set -euo pipefail
alluxio() {{ {names.HOME}/bin/alluxio "$@"; }}
limit=$(date -u -d "@$(($(date +%s) - $1))" +%Y%m%d%H%M%S)
shift

# The newest time of a kind of a directory's files; empty where there is no file.
newest() {{
  alluxio fs -Dalluxio.user.date.format.pattern=yyyyMMddHHmmss -Duser.timezone=UTC ls -R --timestamp "$1" "$2" |
    awk '{{
      for (i = 1; i < NF; i++)
        if (length($i) == 14 && $(i + 1) ~ /^[0-9]+%$/) {{ if ($i > last) last = $i; next }}
    }}
    END {{ print last }}'
}}

for path in "$@"; do
  read_at=$(newest lastAccessTime "$path")
  seen_at=$(newest creationTime "$path")
  if [[ -n "$seen_at" && "$read_at" < "$limit" && "$seen_at" < "$limit" ]]; then
    alluxio fs free -f "$path"
  else
    echo "$path is in use: read $read_at, new $seen_at, limit $limit (UTC)"
  fi
done
"""
