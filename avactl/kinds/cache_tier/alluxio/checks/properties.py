"""Checks of a spec's own Alluxio properties: refused properties and the reasons."""

from __future__ import annotations

import re
from collections.abc import Iterator

from avactl.diagnostics import Diagnostic
from avactl.diagnostics.secrets import looks_secret
from avactl.kinds.cache_tier.alluxio.known_properties import is_known_property, similar_property
from avactl.program.program import Item
from avactl.spec.platform.cache_tier import CacheTierSpec

_IS_PROPERTY_NAME = re.compile(r"[A-Za-z0-9_.@-]+").fullmatch
_WATERMARK = re.compile(r"alluxio\.worker\.tieredstore\.level[0-9]+\.watermark\.(high|low)\.ratio").fullmatch
_CREDENTIAL = re.compile(r"(?i)(access|secret)\.?key|key\.?secret|password|passwd|(?<!\.)token$|credentials?$").search

_OWN: tuple[tuple[str, str], ...] = (
    (r"alluxio\.user\.file\.create\.ttl", "set `ttl`"),
    (r"alluxio\.user\.file\.writetype\.default", "set `role` and `writeBack.mode`"),
    (r"alluxio\.user\.file\.replication\.durable", "set `writeBack.replicas`"),
    (r"alluxio\.user\.file\.persistence\.initial\.wait\.time", "set `writeBack.delay`"),
    (r"alluxio\.user\.file\.metadata\.sync\.interval", "set `refresh`"),
    (r"alluxio\.worker\.(tieredstore\..*|ramdisk\.size|memory\.size)", "set `workers.tiers`"),
    (r"alluxio\.master\.(embedded\.journal\.addresses|journal\.(type|folder)|rpc\.addresses)", "set `masters`"),
    (r"alluxio\.master\.(metastore|metastore\.dir)", "set `masters`"),
    (r"alluxio\.master\.mount\.table\..*|alluxio\.underfs\.address", "set `underStores`"),
    (r"alluxio\.fuse\.mount\.(point|alluxio\.path)", "set `fuse.path`"),
    (r"alluxio\.(worker|user|master|job\.master|job\.worker)\.(container\.)?hostname", "remove it"),
    (r"alluxio\.worker\.data\.server\.domain\.socket\..*|alluxio\.security\.login\.username", "remove it"),
    (r"alluxio\..*\.port", "remove it: pods have their own addresses, so ports never collide"),
)
"""Properties set by avactl, and the field to use instead. Other properties are defaults that may be overridden."""


def check_properties(item: Item[CacheTierSpec]) -> Iterator[Diagnostic]:
    """Yield the problems of `spec.properties`."""
    path = ("spec", "properties")
    covered = set()
    for problem in check_property_credentials(item, path, item.spec.properties):
        covered.add(problem.span)
        yield problem
    for name, value in item.spec.properties.items():
        if item.span(*path, name) not in covered:
            yield from _check_property(item, path, name, value)


def check_property_credentials(
    item: Item[CacheTierSpec], path: tuple[str | int, ...], values: dict[str, str]
) -> Iterator[Diagnostic]:
    """Yield the credentials in a mapping of Alluxio properties, detected by name or by value."""
    for name, value in values.items():
        if looks_secret(value, name) or (_CREDENTIAL(name) and not value.startswith("/")):
            yield Diagnostic(
                "credential-literal",
                f"`{name}` of {item} is a credential and is visible to everyone with access to the repository",
                item.span(*path, name),
                label="redacted",
                hint="reference a Secret in `secret` of the under-store; then rotate the credential or purge "
                "it from git history",
                secret=True,
            )


def check_mount_options(
    item: Item[CacheTierSpec], path: tuple[str | int, ...], values: dict[str, str]
) -> Iterator[Diagnostic]:
    """Yield the mount options of a store that Alluxio does not know."""
    for name in values:
        if not is_known_property(name):
            near = similar_property(name)
            yield Diagnostic(
                "unknown-property",
                f"Alluxio 2.9.4 has no mount option `{name}`, and would ignore it",
                item.span(*path, name, key=True),
                hint=f"did you mean `{near}`?" if near else "remove it, or correct the name",
            )


def _check_property(item: Item[CacheTierSpec], path: tuple[str, str], name: str, value: str) -> Iterator[Diagnostic]:
    key = item.span(*path, name, key=True)
    if not name.startswith("alluxio.") or not _IS_PROPERTY_NAME(name):
        store = name.startswith(("fs.", "s3a.", "aws."))
        yield Diagnostic(
            "unknown-property",
            f"`{name}` is not an Alluxio property: names begin with `alluxio.`",
            key,
            hint="move it to `options` of the under-store" if store else "remove it, or correct the name",
        )
    elif _WATERMARK(name):
        yield Diagnostic(
            "refused-property",
            f"`{name}` has had no effect since Alluxio 2.3",
            key,
            hint="remove it; `alluxio.worker.management.tier.align.reserved.bytes` controls the reserved space",
        )
    elif name == "alluxio.user.file.create.ttl.action":
        loses = "it also deletes the object in the store" if value.upper() == "DELETE" else "avactl sets it to FREE"
        yield Diagnostic(
            "refused-property",
            f"`{name}: {value}` is refused: {loses}",
            item.span(*path, name),
            hint="remove it; `ttl` frees cached data and never deletes it",
        )
    elif (instead := next((hint for pattern, hint in _OWN if re.fullmatch(pattern, name)), None)) is not None:
        yield Diagnostic("refused-property", f"avactl sets `{name}` itself", key, hint=instead)
    elif not is_known_property(name):
        near = similar_property(name)
        yield Diagnostic(
            "unknown-property",
            f"Alluxio 2.9.4 has no property `{name}`, and would ignore it",
            key,
            hint=f"did you mean `{near}`?" if near else "remove it, or correct the name",
        )
    elif "\n" in value or "\r" in value or not value.isprintable():
        yield Diagnostic(
            "invalid-value",
            f"the value of `{name}` spans several lines or contains unprintable characters",
            item.span(*path, name),
            hint="write a single line",
        )
