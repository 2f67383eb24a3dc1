"""Checks of a CacheTier's stores: mount directories, endpoints, options."""

from __future__ import annotations

from collections.abc import Iterator

from avactl.diagnostics import Diagnostic, Note
from avactl.diagnostics.suggest import one_of
from avactl.kinds.cache_tier.alluxio.checks.properties import check_mount_options, check_property_credentials
from avactl.kinds.cache_tier.alluxio.stores import store_scheme
from avactl.program.dataset_access import PUSHED, durable_store
from avactl.program.ineffective_keys import without_effect
from avactl.program.program import Item
from avactl.spec.platform.cache_tier import CacheTierSpec, Durable, UnderStore


def check_stores(item: Item[CacheTierSpec]) -> Iterator[Diagnostic]:
    """Yield the problems of the under-stores and of where they are mounted."""
    mounts: dict[str, int] = {}
    urls: list[tuple[str, int]] = []
    for index, store in enumerate(item.spec.under_stores):
        path = ("spec", "underStores", index)
        place = store.mount.rstrip("/")
        yield from _check_mount(item, path, store, place)
        before = mounts.setdefault(place, index)
        if before != index:
            yield Diagnostic(
                "mount-conflict",
                f"two under-stores are mounted at `{store.mount}`",
                item.span(*path, "mount"),
                hint="give each a directory of its own",
                notes=(Note(item.span("spec", "underStores", before, "mount"), "first mount"),),
            )
        url = store.url.rstrip("/") + "/"
        for other, at in urls:
            if url.startswith(other) or other.startswith(url):
                yield Diagnostic(
                    "mount-conflict",
                    f"`{store.url}` and `{other.rstrip('/')}` overlap, which Alluxio rejects",
                    item.span(*path, "url"),
                    hint="mount only the outer one, which includes the inner one; or declare a second tier",
                    notes=(Note(item.span("spec", "underStores", at, "url"), "other mount"),),
                )
                break
        urls.append((url, index))
        yield from store_problems(item, path, store, store.url)
    durable = durable_store(item)
    for index, store in enumerate(item.spec.under_stores):
        evicted = store.mount.rstrip("/").removesuffix(PUSHED)
        if durable is not None and evicted != store.mount.rstrip("/") and evicted in mounts:
            yield Diagnostic(
                "mount-conflict",
                f"`{store.mount}` is where files of `{evicted}` are after a push",
                item.span("spec", "underStores", index, "mount"),
                hint="mount the store elsewhere",
                notes=(Note(item.span("spec", "underStores", mounts[evicted], "mount"), "the written directory"),),
            )
    if durable is not None and durable.url:
        yield from store_problems(item, ("spec", "writeBack", "durable"), durable, durable.url)


def _check_mount(
    item: Item[CacheTierSpec], path: tuple[str | int, ...], store: UnderStore, place: str
) -> Iterator[Diagnostic]:
    parts = place.count("/")
    if not place:
        yield Diagnostic(
            "mount-conflict",
            "an under-store cannot be mounted at `/`, the root of the cache",
            item.span(*path, "mount"),
            hint=f"write a directory, e.g. `mount: /{store.url.partition('://')[2].split('/')[0]}`",
        )
    elif parts > 1:
        yield Diagnostic(
            "mount-conflict",
            f"`{store.mount}` is {parts} levels deep: its parent directories would not be in any store",
            item.span(*path, "mount"),
            hint=f"use a single level, e.g. `mount: /{place.strip('/').replace('/', '-')}`",
        )


def store_problems(
    item: Item[CacheTierSpec], path: tuple[str | int, ...], store: UnderStore | Durable, url: str
) -> Iterator[Diagnostic]:
    """Yield the problems of one store: of its `url`, `endpoint`, `secret` and `options`."""
    kind = store_scheme(url)
    name = url.partition("://")[0]
    if kind.needs_endpoint and store.endpoint is None:
        yield Diagnostic(
            "missing-key",
            f"a store at `{name}://` requires `endpoint`",
            item.span(*path, "url"),
            hint="add `endpoint: https://…`",
        )
    elif store.endpoint is not None and kind.endpoint is None:
        yield without_effect(item, (*path, "endpoint"), f"stores at `{name}://` have no endpoint")
    missing = [option for option in kind.needs_options if option not in store.options]
    if missing:
        yield Diagnostic(
            "missing-key",
            f"a store at `{name}://` requires {one_of(missing).replace(' or ', ' and ')}",
            item.span(*path, "url"),
            hint=f"add `options: {{{', '.join(f'{option}: …' for option in missing)}}}`",
        )
    if store.secret is not None and kind.access_key is None:
        yield without_effect(item, (*path, "secret"), f"stores at `{name}://` do not use access keys")
    yield from check_property_credentials(item, (*path, "options"), store.options)
    if not url.startswith("hdfs://"):  # its options are Hadoop's own, too
        yield from check_mount_options(item, (*path, "options"), store.options)
