"""Engine `alluxio`: an Alluxio 2.9 cluster."""

from avactl.kinds.cache_tier.alluxio import dataset, fuse, workers
from avactl.kinds.cache_tier.alluxio.checks.tier import check
from avactl.kinds.cache_tier.alluxio.daemon_config import document
from avactl.kinds.cache_tier.alluxio.lower import lower
from avactl.kinds.cache_tier.alluxio.reserved import reserved
from avactl.program.cache_engines import Engine

ENGINE = Engine(
    title="Alluxio",
    image="alluxio",
    check=check,
    lower=lower,
    volume=dataset.volume,
    worker=workers.needs,
    shared=True,
    fuse=fuse.needs,
    host_mount=True,
    reserved=reserved,
    check_dataset=dataset.check,
    dataset=dataset.dataset,
    daemon=document,
    directories=dataset.directories,
)

__all__ = ["ENGINE"]
