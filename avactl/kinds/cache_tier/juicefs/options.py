"""Mount options of a tier. Names and units: JuiceFS Community Edition 1.4.2, `juicefs mount --help`."""

from __future__ import annotations

from avactl.base.quantity import parse_quantity
from avactl.kinds.cache_tier.machines import level_directories
from avactl.program.program import Item
from avactl.spec.platform.cache_tier import CacheTierSpec
from avactl.spec.schema.values import duration_seconds

MIB = 1024 * 1024
FREE_SPACE = "0.1"
"""Share of the disk below the cache that stays free; the cache shrinks for it."""
SHARED_MEMORY = "/dev/shm/avactl"  # noqa: S108
"""Directory of MEM levels on the machine: a file system in memory that all mount pods of the machine share. JuiceFS's
own `memory` is one process's, so what a prewarm loads there, no job reads."""
RESCAN = "10m"
"""Time until a client that runs already finds what another client of the machine has cached. One that starts later
looks at once."""


def cache_dirs(item: Item[CacheTierSpec]) -> str:
    """Return the directories of the cache on each machine; they share its size equally."""
    return ":".join(each.path for each in level_directories(item, 0, SHARED_MEMORY))


def read_options(item: Item[CacheTierSpec]) -> list[str]:
    """Return the mount options of readers; those of the spec come last."""
    (level,) = item.spec.workers.tiers
    # Versions do not change, and the directory of a new one is looked up when it is first read.
    fresh = f"{int(duration_seconds(item.spec.refresh or '1h'))}s"
    found = {
        "cache-dir": cache_dirs(item),
        "cache-size": f"{int(parse_quantity(level.quota)) // MIB}",
        "free-space-ratio": FREE_SPACE,
        "cache-scan-interval": RESCAN,
        # A client may use four times as much. Source: JuiceFS's documentation on troubleshooting, memory usage.
        "buffer-size": f"{int(parse_quantity(item.spec.fuse.memory)) // MIB // 4}",
        "attr-cache": fresh,
        "entry-cache": fresh,
        "dir-entry-cache": fresh,
        "open-cache": fresh,
        **item.spec.properties,
    }
    # Background jobs are for clients that write. The usage report goes to the vendor.
    return [
        "read-only",
        "no-bgjob",
        "no-usage-report",
        *(f"{key}={value}" if value else key for key, value in found.items()),
    ]


def import_options() -> list[str]:
    """Return the mount options of imports, which read nothing twice."""
    return ["no-usage-report", "cache-size=0"]
