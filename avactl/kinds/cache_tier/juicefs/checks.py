"""Checks of tiers and datasets on JuiceFS: what the spec can say and Community Edition cannot do."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from avactl.base.quantity import format_quantity, parse_quantity
from avactl.diagnostics import Diagnostic, Note
from avactl.diagnostics.secrets import looks_secret
from avactl.kinds.cache_tier.juicefs.known_options import VERSION, known_options, similar_option
from avactl.kinds.cache_tier.juicefs.options import FREE_SPACE, MIB
from avactl.kinds.cache_tier.machines import tier_pools
from avactl.program.dataset_access import tier_path
from avactl.program.dataset_listing import COPIED, MAX_LIST, OWN_DIRECTORY, copy_files, read_listing
from avactl.program.ineffective_keys import without_effect
from avactl.program.program import Item, Program
from avactl.spec.platform.cache_tier import CacheTierSpec
from avactl.spec.platform.dataset import DatasetSpec

Path = tuple[str | int, ...]

LEAST_MEMORY = 1024 * MIB
"""Memory of a mount pod; its buffers get a quarter."""

_OPTIONS_OF_SPEC = {
    "cache-dir": "set `workers.tiers`",
    "cache-size": "set `workers.tiers`",
    "subdir": "set `underStores`",
    "read-only": "remove it: the tier reads only",
    "no-bgjob": "remove it",
    "no-usage-report": "remove it",
    "attr-cache": "set `refresh`",
    "entry-cache": "set `refresh`",
    "dir-entry-cache": "set `refresh`",
    "open-cache": "set `refresh`",
    "storage": "set it in the Secret of the volume",
    "bucket": "set it in the Secret of the volume",
    "background": "remove it",
    "log": "remove it",
    "metrics": "remove it: the CSI driver sets it",
    "o": "remove it",
    "update-fstab": "remove it",
    "force": "remove it",
    "writeback": "remove it: the tier reads only",
}
"""Options that avactl or the CSI driver set, and the field to use instead."""


def check(item: Item[CacheTierSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield the problems of one tier."""
    spec = item.spec
    if spec.volume is None:
        yield Diagnostic(
            "missing-key",
            "engine `juicefs` requires `volume`: JuiceFS cannot read other programs' objects, and keeps data in a "
            "volume of its own",
            item.span("spec", "engine"),
            hint="add `volume: {secret: NAME}`, a Secret with `name`, `metaurl` and what else its CSI driver needs",
        )
    if spec.role == "write":
        yield _unsupported_problem(
            item,
            ("spec", "role"),
            "buffer writes",
            "a write returns once it is in the volume's store, and its write-back cache is lost with a machine",
            "write `role: read`, or another `engine`",
        )
    elif "write_back" in spec.model_fields_set:
        yield without_effect(item, ("spec", "writeBack"), "a read tier never writes")
    if "masters" in spec.model_fields_set:
        yield without_effect(item, ("spec", "masters"), "the metadata is in the volume's database")
    if spec.deletion_policy == "delete":
        yield without_effect(item, ("spec", "deletionPolicy"), "the tier has no journal")
    if spec.ttl:
        yield _unsupported_problem(
            item,
            ("spec", "ttl"),
            "free data by the time since it was cached",
            "its cache counts from the last read",
            "write `properties: {cache-expire: 24h}`",
        )
    yield from _check_workers(item)
    yield from _check_memory(item, program)
    yield from _check_fuse(item)
    yield from _check_stores(item)
    yield from _check_properties(item)


def _unsupported_problem(item: Item, path: Path, what: str, why: str, hint: str) -> Diagnostic:
    return Diagnostic("engine-cannot", f"JuiceFS Community Edition cannot {what}: {why}", item.span(*path), hint=hint)


def _check_workers(item: Item[CacheTierSpec]) -> Iterator[Diagnostic]:
    workers = item.spec.workers
    path: Path = ("spec", "workers")
    for key in ("cpu", "memory"):
        if key in workers.model_fields_set:
            yield without_effect(item, (*path, key), "the FUSE client does the work: set `fuse`")
    if workers.replicas is not None:
        yield _unsupported_problem(
            item,
            (*path, "replicas"),
            "share a cache between machines",
            "each machine has a cache of its own",
            "remove `replicas`",
        )
    if len(workers.tiers) > 1:
        yield _unsupported_problem(
            item,
            (*path, "tiers", 1),
            "move data between storage tiers",
            "it spreads blocks over all its directories",
            "keep one tier; the kernel caches what it reads in memory",
        )


def _check_memory(item: Item[CacheTierSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield a MEM level that is larger than the file system in memory that it is in."""
    for index, level in enumerate(item.spec.workers.tiers):
        for pool in tier_pools(item, program) if level.medium == "MEM" else ():
            memory = program.machine(pool).memory
            # tmpfs(5): a size of half of the memory, where none is set.
            usable = int(parse_quantity(memory) / 2 * (1 - Fraction(FREE_SPACE)))
            if parse_quantity(level.quota) > usable:
                yield Diagnostic(
                    "tier-too-large",
                    f"a MEM tier of {level.quota} is in /dev/shm, which Linux limits to half of the memory: of "
                    f"{memory} on machines of pool `{pool.name}` the cache fills {format_quantity(usable)}",
                    item.span("spec", "workers", "tiers", index, "quota"),
                    severity="warning",
                    hint=f"write {format_quantity(usable)} or less, or mount a larger /dev/shm on the machines",
                    notes=(Note(pool.span("spec", "machineType"), f"pool {pool.name}"),),
                )
                return


def _check_fuse(item: Item[CacheTierSpec]) -> Iterator[Diagnostic]:
    fuse = item.spec.fuse
    if not fuse.enabled:
        yield _unsupported_problem(
            item,
            ("spec", "fuse", "enabled"),
            "serve data without FUSE",
            "its cache is in the FUSE client",
            "remove `enabled`",
        )
    if "path" in fuse.model_fields_set:
        yield without_effect(item, ("spec", "fuse", "path"), "the CSI driver chooses the directory")
    if parse_quantity(fuse.memory) < LEAST_MEMORY:
        yield Diagnostic(
            "memory-too-small",
            f"{fuse.memory} is not enough for a JuiceFS client: its buffers need more",
            item.span("spec", "fuse", "memory"),
            hint=f"write {format_quantity(LEAST_MEMORY)} or more",
        )


def _check_stores(item: Item[CacheTierSpec]) -> Iterator[Diagnostic]:
    for index, store in enumerate(item.spec.under_stores):
        path: Path = ("spec", "underStores", index)
        place = store.mount.rstrip("/")
        if not place:
            yield Diagnostic(
                "mount-conflict",
                "an under-store cannot be mounted at `/`, the root of the volume",
                item.span(*path, "mount"),
                hint=f"write a directory, e.g. `mount: /{store.url.partition('://')[2].split('/')[0]}`",
            )
        for at, other in enumerate(item.spec.under_stores[:index]):
            before = other.mount.rstrip("/")
            if place and before and (f"{place}/".startswith(f"{before}/") or f"{before}/".startswith(f"{place}/")):
                yield Diagnostic(
                    "mount-conflict",
                    f"`{store.mount}` and `{other.mount}` are one directory or inside each other",
                    item.span(*path, "mount"),
                    hint="give each under-store a directory of its own",
                    notes=(Note(item.span("spec", "underStores", at, "mount"), "the other mount"),),
                )
        scheme = store.url.partition("://")[0]
        if scheme != "s3":
            yield _unsupported_problem(
                item,
                (*path, "url"),
                f"import from `{scheme}://`",
                "avactl imports from S3 only",
                "use an S3 endpoint of the store, or another `engine`",
            )
        elif store.endpoint is not None and "." in store.url.removeprefix("s3://").partition("/")[0]:
            yield _unsupported_problem(
                item,
                (*path, "url"),
                "import from a bucket with a dot in its name",
                "it takes the first dot for the end of the name",
                "use another bucket",
            )
        for name in store.options:
            yield without_effect(item, (*path, "options", name), "JuiceFS has no mount options of stores")


def _check_properties(item: Item[CacheTierSpec]) -> Iterator[Diagnostic]:
    path: Path = ("spec", "properties")
    for name, value in item.spec.properties.items():
        key = item.span(*path, name, key=True)
        known = known_options().get(name)
        if looks_secret(value, name):
            yield Diagnostic(
                "credential-literal",
                f"`{name}` of {item} is a credential and is visible to everyone with access to the repository",
                item.span(*path, name),
                label="redacted",
                hint="put it into the Secret of the volume; then rotate the credential or purge it from git history",
                secret=True,
            )
        elif known is None:
            near = similar_option(name)
            yield Diagnostic(
                "unknown-property",
                f"JuiceFS {VERSION} has no mount option `{name}`",
                key,
                hint=f"did you mean `{near}`?" if near else "remove it, or correct the name",
            )
        elif name in _OPTIONS_OF_SPEC:
            yield Diagnostic("refused-property", f"avactl sets `{name}` itself", key, hint=_OPTIONS_OF_SPEC[name])
        elif known.flag and value:
            yield Diagnostic(
                "invalid-value", f"`{name}` has no value", item.span(*path, name), hint=f'write `{name}: ""`'
            )
        elif not known.flag and (not value or not value.isprintable() or {",", "=", " "} & set(value)):
            yield Diagnostic(
                "invalid-value",
                f"the value of `{name}` is empty, or contains a blank, `,` or `=`, which end a mount option",
                item.span(*path, name),
                hint=f"JuiceFS's own description: {known.description}",
            )


def check_dataset(item: Item[DatasetSpec], program: Program, tier: Item[CacheTierSpec]) -> Iterator[Diagnostic]:
    """Yield the problems of one dataset in a tier."""
    spec = item.spec
    if spec.keep:
        yield _unsupported_problem(
            item,
            ("spec", "keep"),
            "free one dataset by its last read",
            "its cache frees blocks",
            f"remove it, and write `properties: {{cache-expire: {spec.keep}}}` in CacheTier {tier.name}",
        )
    for index, version in enumerate(spec.versions):
        listing = read_listing(item, program, version)
        size = len(copy_files(listing, program)[COPIED].encode()) if listing is not None and not listing.problems else 0
        if size > MAX_LIST:
            yield Diagnostic(
                "manifest-too-large",
                f"the paths of the objects of `{version.manifest}` have {size // 1024} KiB; an import reads them from "
                f"a ConfigMap, which holds at most {MAX_LIST // 1024}",
                item.span("spec", "versions", index, "manifest"),
                hint="pack the objects (`avactl dataset pack`), or put them into a directory of their own and give its "
                "`url`",
            )
        path = tier_path(tier, version.url) if version.url else None
        if path is not None and f"{path}/".startswith(f"{OWN_DIRECTORY}/"):
            yield Diagnostic(
                "unsafe-path",
                f"`{OWN_DIRECTORY}` in the tier is for what avactl imports by lists",
                item.span("spec", "versions", index, "url"),
                hint="use another directory",
            )
    prewarm = spec.prewarm
    if prewarm is None:
        return
    where: Path = ("spec", "prewarm")
    if prewarm.pin:
        yield _unsupported_problem(
            item,
            (*where, "pin"),
            "pin data",
            "it evicts the blocks that were read longest ago or picked at random",
            "remove it, and make the tier larger than what its jobs read",
        )
    if prewarm.when != "once":
        yield _unsupported_problem(
            item,
            (*where, "when"),
            "load a version again at times",
            "each machine loads it when it is new there",
            "remove it",
        )
    if prewarm.bandwidth:
        yield _unsupported_problem(
            item,
            (*where, "bandwidth"),
            "limit one load",
            "the limit is that of the client",
            f"remove it, and write `properties: {{download-limit: …}}`, Mbps, in CacheTier {tier.name}",
        )
    if "replicas" in prewarm.model_fields_set:
        yield without_effect(item, (*where, "replicas"), "each machine has a copy of its own")
