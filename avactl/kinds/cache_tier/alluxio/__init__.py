"""Engine `alluxio`: an Alluxio 2.9 cluster."""

from avactl.kinds.cache_tier.alluxio import dataset, fuse, workers
from avactl.kinds.cache_tier.alluxio.checks.tier import check
from avactl.kinds.cache_tier.alluxio.daemon_config import tier_document
from avactl.kinds.cache_tier.alluxio.lower import lower
from avactl.kinds.cache_tier.alluxio.reserved import reserved_bytes
from avactl.program.cache_engines import EngineRecord

ENGINE = EngineRecord(
    title="Alluxio",
    image="alluxio",
    check=check,
    lower=lower,
    volume=dataset.volume,
    worker=workers.worker_needs,
    shared=True,
    fuse=fuse.fuse_needs,
    host_mount=True,
    reserved=reserved_bytes,
    check_dataset=dataset.check,
    dataset=dataset.dataset,
    daemon=tier_document,
    directories=dataset.directories,
)

__all__ = ["ENGINE"]
