"""Under-stores: mount options, and the script that reconciles the mount table with the spec."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from avactl.kinds.cache_tier.alluxio import names
from avactl.program.dataset_access import PUSHED, durable_store
from avactl.program.manifest import Body
from avactl.program.program import Item
from avactl.spec.platform.cache_tier import CacheTierSpec


class Scheme(NamedTuple):
    """Alluxio's settings for one URL scheme. Source: Alluxio 2.9.4, `alluxio.conf.PropertyKey`."""

    access_key: str | None
    """Option for `accessKeyId` of the Secret; None if the store does not use access keys."""
    secret_key: str | None
    endpoint: str | None
    """Option for the endpoint; None if the store has none."""
    fixed: tuple[tuple[str, str], ...] = ()
    needs_endpoint: bool = False
    needs_options: tuple[str, ...] = ()
    """Options that the store requires."""


SCHEMES: dict[str, Scheme] = {
    "s3": Scheme("s3a.accessKeyId", "s3a.secretKey", "alluxio.underfs.s3.endpoint"),
    # Version 1 takes HMAC keys; version 2 needs a key file on every machine.
    "gs": Scheme("fs.gcs.accessKeyId", "fs.gcs.secretAccessKey", None, (("alluxio.underfs.gcs.version", "1"),)),
    "oss": Scheme("fs.oss.accessKeyId", "fs.oss.accessKeySecret", "fs.oss.endpoint", needs_endpoint=True),
    "cos": Scheme("fs.cos.access.key", "fs.cos.secret.key", None, needs_options=("fs.cos.region", "fs.cos.app.id")),
    "kodo": Scheme(
        "fs.kodo.accesskey",
        "fs.kodo.secretkey",
        "alluxio.underfs.kodo.endpoint",
        needs_endpoint=True,
        needs_options=("alluxio.underfs.kodo.downloadhost",),
    ),
    "hdfs": Scheme(None, None, None),
}


FILES = Scheme(None, None, None)
"""A file system that the masters' and workers' pods mount."""


class AccessedStore(Protocol):
    """An object store with its access: an under-store, a durable store or a `MountedStore`."""

    @property
    def url(self) -> str: ...
    @property
    def endpoint(self) -> str | None: ...
    @property
    def secret(self) -> str | None: ...
    @property
    def options(self) -> Mapping[str, str]: ...


class MountedStore(NamedTuple):
    """A store as it is mounted. Only tiers with `writeBack.mode: push` mount others than their under-stores."""

    mount: str
    url: str
    endpoint: str | None
    secret: str | None
    options: dict[str, str]
    read_only: bool


def mounted_stores(item: Item[CacheTierSpec]) -> list[MountedStore]:
    """Return the stores of a tier by mount directory, which has no trailing slash.

    In mode `push` the directory of a writable under-store shows the durable store, and the under-store is beside it.
    """
    spec = item.spec
    durable = durable_store(item)
    found = []
    for store in spec.under_stores:
        mount, own = store.mount.rstrip("/"), store.read_only or spec.role == "read"
        plain = MountedStore(mount, store.url.rstrip("/"), store.endpoint, store.secret, store.options, own)
        if durable is None or own:
            found.append(plain)
            continue
        url = durable.url.rstrip("/") if durable.url else names.DURABLE_DIR
        found.append(MountedStore(mount, url, durable.endpoint, durable.secret, durable.options, False))
        found.append(plain._replace(mount=f"{mount}{PUSHED}"))
    return found


def store_scheme(url: str) -> Scheme:
    """Return the scheme of a store's URL, or of a directory."""
    return FILES if url.startswith("/") else SCHEMES[url.partition("://")[0]]


def is_foreign_s3(store: AccessedStore) -> bool:
    """Return True if an S3 store is not Amazon's (Ceph, MinIO, …); those need the bucket in the path."""
    return bool(store.url.startswith("s3://") and store.endpoint and ".amazonaws.com" not in store.endpoint)


def _credential_variables(index: int) -> tuple[str, str]:
    return f"STORE_{index}_ACCESS_KEY_ID", f"STORE_{index}_SECRET_ACCESS_KEY"


def _mount_options(store: AccessedStore, index: int) -> list[str]:
    """Return the `--option` arguments of one mount, shell-quoted; credentials only as variable names."""
    kind = store_scheme(store.url)
    plain = dict(kind.fixed)
    if store.endpoint and kind.endpoint:
        plain[kind.endpoint] = store.endpoint
    if is_foreign_s3(store):
        plain["alluxio.underfs.s3.disable.dns.buckets"] = "true"
    plain.update(store.options)
    words = [f"--option {shlex.quote(f'{key}={value}')}" for key, value in plain.items()]
    if store.secret and kind.access_key:
        words += [
            f'--option "{option}=${variable}"'
            for option, variable in zip((kind.access_key, kind.secret_key), _credential_variables(index), strict=True)
        ]
    return words


def credential_environment(item: Item[CacheTierSpec]) -> list[Body]:
    """Return the credentials of the stores as references to their Secrets."""
    env: list[Body] = []
    for index, store in enumerate(mounted_stores(item)):
        if store.secret and store_scheme(store.url).access_key:
            for variable, key in zip(_credential_variables(index), ("accessKeyId", "secretAccessKey"), strict=True):
                env.append({"name": variable, "valueFrom": {"secretKeyRef": {"name": store.secret, "key": key}}})
    return env


_SCRIPT_HEAD = """\
#!/bin/bash
# Makes the mount table of cache tier {name} what its spec says. It may run again at any time.
set -euo pipefail

# Alluxio prints the options of a mount that fails, credentials and all: they are covered.
cover() {{
  awk 'BEGIN {{ for (name in ENVIRON) if (name ~ /^STORE_[0-9]+_/ && ENVIRON[name] != "") values[ENVIRON[name]] }}
    {{
      for (value in values) {{
        rest = $0; line = ""
        while ((at = index(rest, value)) > 0) {{
          line = line substr(rest, 1, at - 1) "******"; rest = substr(rest, at + length(value))
        }}
        $0 = line rest
      }}
      print
    }}'
}}
alluxio() {{ {home}/bin/alluxio "$@" 2>&1 | cover; }}

# Everything else needs the table, so this also waits for a master.
for attempt in $(seq 1 60); do
  if table=$({home}/bin/alluxio fs mount 2>&1); then break; fi
  if [ "$attempt" = 60 ]; then printf '%s\\n' "$table" >&2; exit 1; fi
  sleep 10
done

# The store that is mounted at a directory, if one is.
store_at() {{ awk -v at="$1" '$2 == "on" && $3 == at {{ sub("/$", "", $1); print $1 }}' <<<"$table"; }}

release() {{
  {persist}
  alluxio fs unmount "$1"
}}

# ensure DIRECTORY STORE [OPTION…]
ensure() {{
  local at="$1" store="$2" now
  shift 2
  now=$(store_at "$at")
  if [ "$now" = "$store" ]; then
    # Same store: only options and credentials may differ, and what is cached stays.
    alluxio fs updateMount "$@" "$at"
    return
  fi
  if [ -n "$now" ]; then release "$at"; fi
  alluxio fs mount "$@" "$at" "$store"
}}

# Mounts that the spec does not have any more.
awk '$2 == "on" && $3 != "/" {{ print $3 }}' <<<"$table" | while read -r at; do
  case "$at" in
    {wanted}) ;;
    *) release "$at" </dev/null ;;
  esac
done

"""


def mount_script(item: Item[CacheTierSpec]) -> str:
    """Return the script of the mount Job. It contains no secret values: credentials come from the environment."""
    stores = mounted_stores(item)
    writes = item.spec.role == "write"
    # Persist the write tier's pending data before unmounting.
    persist = 'alluxio fs persist "$1"' if writes else ": # nothing is written here, so nothing can be lost"
    text = _SCRIPT_HEAD.format(
        name=item.name,
        home=names.HOME,
        persist=persist,
        wanted="|".join(shlex.quote(store.mount) for store in stores),
    )
    for index, store in enumerate(stores):
        words = [f"ensure {shlex.quote(store.mount)} {shlex.quote(store.url)}"]
        if store.read_only:
            words.append("--readonly")
        text += " \\\n  ".join(words + _mount_options(store, index)) + "\n"
    return text
