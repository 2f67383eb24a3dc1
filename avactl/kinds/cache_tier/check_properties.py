"""Properties of a spec's own: which are refused, and why."""

from __future__ import annotations

import re
from collections.abc import Iterator

from avactl.diagnostics import Diagnostic
from avactl.diagnostics.secrets import looks_secret
from avactl.kinds.program import Item

_NAME = re.compile(r"[A-Za-z0-9_.@-]+").fullmatch
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
    (r"alluxio\..*\.port", "remove it: pods have addresses of their own, so ports never collide"),
)
"""What avactl sets itself, and the field to use instead. Everything else is a default that may be overridden."""


def properties(item: Item) -> Iterator[Diagnostic]:
    """The problems of `spec.properties`."""
    path = ("spec", "properties")
    covered = set()
    for problem in credentials(item, path, item.spec.properties):
        covered.add(problem.span)
        yield problem
    for name, value in item.spec.properties.items():
        if item.span(*path, name) not in covered:
            yield from _property(item, path, name, value)


def credentials(item: Item, path: tuple[str | int, ...], values: dict[str, str]) -> Iterator[Diagnostic]:
    """Credentials in a mapping of Alluxio's properties, by their names or by their looks."""
    for name, value in values.items():
        if looks_secret(value, name) or (_CREDENTIAL(name) and not value.startswith("/")):
            yield Diagnostic(
                "credential-literal",
                f"`{name}` of {item} holds a credential, and everybody who reads the repository reads it too",
                item.span(*path, name),
                label="covered",
                hint="name a Secret in `secret` of the under-store; take the value out of git's history, or make a "
                "new one",
                secret=True,
            )


def _property(item: Item, path: tuple[str, str], name: str, value: str) -> Iterator[Diagnostic]:
    key = item.span(*path, name, key=True)
    if not name.startswith("alluxio.") or not _NAME(name):
        store = name.startswith(("fs.", "s3a.", "aws."))
        yield Diagnostic(
            "unknown-property",
            f"`{name}` is not a property of Alluxio: they begin with `alluxio.`",
            key,
            hint="put it into `options` of the under-store" if store else "remove it, or correct the name",
        )
    elif _WATERMARK(name):
        yield Diagnostic(
            "refused-property",
            f"`{name}` has had no effect since Alluxio 2.3",
            key,
            hint="remove it; `alluxio.worker.management.tier.align.reserved.bytes` says how much room is kept free",
        )
    elif name == "alluxio.user.file.create.ttl.action":
        loses = "it deletes the object in the store too" if value.upper() == "DELETE" else "avactl sets it to FREE"
        yield Diagnostic(
            "refused-property",
            f"`{name}: {value}` is refused: {loses}",
            item.span(*path, name),
            hint="remove it; `ttl` frees cached data and never deletes it",
        )
    elif (instead := next((hint for pattern, hint in _OWN if re.fullmatch(pattern, name)), None)) is not None:
        yield Diagnostic("refused-property", f"avactl sets `{name}` itself", key, hint=instead)
    elif "\n" in value or "\r" in value or not value.isprintable():
        yield Diagnostic(
            "invalid-value",
            f"the value of `{name}` has more than one line, or characters that cannot be printed",
            item.span(*path, name),
            hint="write one line",
        )
