"""Engine `juicefs`: a volume of JuiceFS Community Edition, with a cache on each machine, by its CSI driver."""

from fractions import Fraction

from avactl.kinds.cache_tier.juicefs import dataset, volumes
from avactl.kinds.cache_tier.juicefs.checks import check, check_dataset
from avactl.kinds.cache_tier.juicefs.lower import lower
from avactl.kinds.cache_tier.juicefs.options import FREE_SPACE, read_options
from avactl.program.cache_engines import EngineRecord

ENGINE = EngineRecord(
    title="JuiceFS",
    image="juicefs",
    check=check,
    lower=lower,
    volume=volumes.volume,
    worker=volumes.mount_pod_needs,
    shared=False,
    copies=True,
    disk_share=1 - Fraction(FREE_SPACE),
    mount_options=read_options,
    check_dataset=check_dataset,
    dataset=dataset.dataset,
)

__all__ = ["ENGINE"]
