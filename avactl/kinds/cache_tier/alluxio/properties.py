"""Properties of an Alluxio cluster: the `alluxio-site.properties` of all its processes.

Names and defaults: Alluxio 2.9.4, `alluxio.conf.PropertyKey`.
"""

from __future__ import annotations

from avactl.base.quantity import parse_quantity
from avactl.kinds.cache_tier.alluxio import names
from avactl.kinds.cache_tier.alluxio.pods import direct_memory, split_memory
from avactl.program.dataset_access import host_path
from avactl.program.program import Item
from avactl.spec.platform.cache_tier import CacheTierSpec
from avactl.spec.schema.values import duration_seconds

USER = "alluxio"
"""The user that all processes log in as. Alluxio's `SIMPLE` authentication trusts the client's user name, so tenants
are isolated by the tier's network policy, and by volumes that expose one directory each."""
BLOCK = 64
"""The engine's size of blocks, MiB."""


def _format_milliseconds(duration: str) -> str:
    return f"{int(duration_seconds(duration) * 1000)}ms"


def site_properties(item: Item[CacheTierSpec], daemon: bool = False) -> dict[str, str]:
    """Return all properties of a tier in output order; those of the spec come last.

    `daemon`: the cache daemon persists files, and the engine does not by itself.
    """
    return {
        **_master_properties(item),
        **_storage_properties(item),
        **_client_properties(item, daemon),
        **_fuse_properties(item),
        **item.spec.properties,
    }


def render(properties: dict[str, str]) -> str:
    """Return the text of a Java properties file."""
    return "".join(f"{key}={value}\n".replace("\\", "\\\\") for key, value in properties.items())


def _master_properties(item: Item[CacheTierSpec]) -> dict[str, str]:
    hosts = names.master_hosts(item)
    properties = {
        "alluxio.master.embedded.journal.addresses": ",".join(f"{host}:{names.JOURNAL_PORT}" for host in hosts),
        "alluxio.master.journal.type": "EMBEDDED",
        "alluxio.master.journal.folder": names.JOURNAL_DIR,
        "alluxio.master.metastore": "ROCKS",
        "alluxio.master.metastore.dir": f"{names.JOURNAL_DIR}/metastore",
        # Disable phone-home.
        "alluxio.master.update.check.enabled": "false",
        "alluxio.security.login.username": USER,
        # Object-store permissions have no meaning here, and reading them costs a request per object.
        "alluxio.underfs.s3.inherit.acl": "false",
        "alluxio.underfs.s3.default.mode": "0755",
    }
    if len(hosts) == 1:
        # With several masters each sets its own name, and the others find it by the journal addresses.
        properties["alluxio.master.hostname"] = hosts[0]
    return properties


def _storage_properties(item: Item[CacheTierSpec]) -> dict[str, str]:
    tiers = item.spec.workers.tiers
    properties = {"alluxio.worker.tieredstore.levels": str(len(tiers))}
    for level, tier in enumerate(tiers):
        prefix = f"alluxio.worker.tieredstore.level{level}"
        properties[f"{prefix}.alias"] = tier.medium
        directories = names.storage_dirs(tier)
        quota = int(parse_quantity(tier.quota)) // len(directories)
        properties[f"{prefix}.dirs.path"] = ",".join(directories)
        properties[f"{prefix}.dirs.quota"] = ",".join([f"{quota}B"] * len(directories))
        properties[f"{prefix}.dirs.mediumtype"] = ",".join([tier.medium] * len(directories))
    main, _ = split_memory(item.spec.workers.memory)
    # `fs load` reads whole blocks into buffers outside the heap, as many at once as a batch has, and never frees them.
    properties["alluxio.job.batch.size"] = str(min(200, max(1, direct_memory(main) // 2 // BLOCK)))
    if item.spec.fuse.enabled:
        # Short-circuit reads between pods of one machine: one socket per worker in a directory that FUSE sees too.
        properties["alluxio.worker.data.server.domain.socket.address"] = names.SOCKET_DIR
        properties["alluxio.worker.data.server.domain.socket.as.uuid"] = "true"
    return properties


def _client_properties(item: Item[CacheTierSpec], daemon: bool) -> dict[str, str]:
    """Return the client defaults; clients get them from the master."""
    spec = item.spec
    if spec.role == "read":
        properties = {
            "alluxio.user.file.writetype.default": "THROUGH",
            # Keep one copy in the cluster, on a worker derived from the block ID: otherwise each machine that reads a
            # dataset
            # fetches and caches all of it.
            "alluxio.user.file.passive.cache.enabled": "false",
            "alluxio.user.ufs.block.read.location.policy": "alluxio.client.block.policy.DeterministicHashPolicy",
            "alluxio.user.metadata.cache.enabled": "true",
        }
        refresh = spec.refresh
    else:
        back = spec.write_back
        properties = {
            "alluxio.user.file.writetype.default": "CACHE_THROUGH",
            # The other way, a worker whose first uploads fail or come at once can fail all later ones until it is
            # restarted: RejectedExecutionException of a terminated TransferManager (S3AOutputStream, Alluxio 2.9.4).
            "alluxio.underfs.s3.streaming.upload.enabled": "true",
        }
        if back.mode == "async":
            properties["alluxio.user.file.writetype.default"] = "ASYNC_THROUGH"
            properties["alluxio.user.file.replication.durable"] = str(back.replicas)
            # A worker that starts evicts before the master has told it what must stay (seen in Alluxio 2.9.4), so a
            # restart of a full worker costs replicas: make them anew before another restarts (default: 1 min).
            properties["alluxio.master.replication.check.interval"] = "10s"
            # What the engine persists by itself, it may evict before the daemon has compared it with the store.
            wait = "-1" if daemon else _format_milliseconds(back.delay)
            properties["alluxio.user.file.persistence.initial.wait.time"] = wait
        refresh = spec.refresh or "5m"
    properties["alluxio.user.file.metadata.sync.interval"] = _format_milliseconds(refresh) if refresh else "-1"
    # FREE drops only the cached copy; DELETE would delete the object in the store too.
    properties["alluxio.user.file.create.ttl.action"] = "FREE"
    if spec.ttl:
        properties["alluxio.user.file.create.ttl"] = _format_milliseconds(spec.ttl)
    return properties


def _fuse_properties(item: Item[CacheTierSpec]) -> dict[str, str]:
    if not item.spec.fuse.enabled:
        return {}
    return {
        "alluxio.fuse.mount.point": host_path(item, "/"),
        "alluxio.fuse.mount.alluxio.path": "/",
        "alluxio.fuse.mount.options": ",".join(fuse_options(item)),
        # The image has both versions; `sync_read` is an option of libfuse 2 only.
        "alluxio.fuse.jnifuse.libfuse.version": "2",
    }


def fuse_options(item: Item[CacheTierSpec]) -> list[str]:
    """Return the mount options of FUSE. Pods run as other users than FUSE, so `allow_other`.

    `sync_read`: the kernel asks for a file's parts in their order. Otherwise it asks for several at once, and they come
    to the engine out of order, which begins another stream for each jump: a sequential read takes four times as long
    from memory, and fetches an object four times from the store (seen in Alluxio 2.9.4).
    Read tiers are read-only and their files do not change, so the kernel may cache attributes and pages.
    """
    common = ["allow_other", "sync_read"]
    if item.spec.role == "read":
        return [*common, "ro", "kernel_cache", "attr_timeout=600", "entry_timeout=600"]
    return [*common, "attr_timeout=1", "entry_timeout=1"]


LOGGING = """\
# To the container's output, and nowhere else.
log4j.rootLogger=INFO, Console
log4j.appender.Console=org.apache.log4j.ConsoleAppender
log4j.appender.Console.layout=org.apache.log4j.PatternLayout
log4j.appender.Console.layout.ConversionPattern=%d{ISO8601} %-5p %c{1} - %m%n
# These two write the options of mounts, credentials and all (seen in Alluxio 2.9.4).
log4j.logger.alluxio.master.file.meta.MountTable=WARN
log4j.logger.alluxio.master.file.FileSystemMasterClientServiceHandler=ERROR
# Noise.
log4j.logger.com.amazonaws.util.EC2MetadataUtils=OFF
log4j.logger.io.grpc.netty.NettyServerHandler=OFF
log4j.logger.org.apache.ratis=WARN
"""
"""`log4j.properties` of masters, workers and FUSE."""
