"""Scripts of the pods that import data into the volume and load it into the cache."""

from __future__ import annotations

from avactl.kinds.cache_tier.juicefs import names
from avactl.program.dataset_listing import COPIED as LIST

IMPORT_SCRIPT = f"""\
#!/bin/bash
# import.sh SOURCE PATH [OPTION…]: copies a directory of an object store into the volume, once, and compares the copies;
# of a version with a list, the objects in {LIST} beside this script.
set -euo pipefail
source="$1" path="$2"
shift 2
target="{names.ROOT}$path"
copy="{names.ROOT}{names.STATE}/$(printf '%s' "$path" | sha256sum | cut -d ' ' -f 1)"
if [ -e "$copy.done" ]; then exit 0; fi

# Readers see a directory once it is complete. One that exists holds another import, and keeps what is there.
place="$copy"
if [ -e "$target" ]; then place="$target"; fi
mkdir -p "$place" "$(dirname "$copy")"
list="$(dirname "$0")/{LIST}"
if [ -e "$list" ]; then
  juicefs sync --check-new --files-from "$list" "$@" "$source/" "$place/"
  while IFS= read -r name; do
    [ -f "$place/$name" ] || {{ echo "$source/$name: there is no such object" >&2; exit 1; }}
  done <"$list"
else
  juicefs sync --check-new "$@" "$source/" "$place/"
fi
if [ -z "$(ls -A "$place")" ]; then
  echo "$source has no objects" >&2
  exit 1
fi
if [ "$place" != "$target" ]; then
  mkdir -p "$(dirname "$target")"
  mv -T "$place" "$target"
fi
touch "$copy.done"
"""

WARM_SCRIPT = f"""\
#!/bin/bash
# warm.sh PATH…: loads directories of the volume into the cache of this machine, as soon as they are imported.
set -euo pipefail
for path in "$@"; do
  until [ -d "{names.ROOT}$path" ]; do sleep 10; done
  juicefs warmup "{names.ROOT}$path"
  juicefs warmup --check "{names.ROOT}$path"
done
"""
