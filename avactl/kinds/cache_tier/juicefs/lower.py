"""JuiceFS → the volumes of the tier and the scripts that import and load."""

from __future__ import annotations

from avactl.contracts.names import CACHE_NAMESPACE
from avactl.kinds.cache_tier.juicefs import names
from avactl.kinds.cache_tier.juicefs.scripts import IMPORT_SCRIPT, WARM_SCRIPT
from avactl.kinds.cache_tier.juicefs.volumes import whole_volumes
from avactl.program.lowering import k8s
from avactl.program.manifest import Manifest
from avactl.program.program import Item, Program
from avactl.spec.platform.cache_tier import CacheTierSpec


def lower(item: Item[CacheTierSpec], program: Program) -> list[Manifest]:
    """Return the objects of one tier. None of them holds data: that is in the volume's own store and metadata."""
    scripts = {"import.sh": IMPORT_SCRIPT, "warm.sh": WARM_SCRIPT}
    config = k8s.config_map(item, item.spec.cluster, names.config_name(item), CACHE_NAMESPACE, scripts)
    return [config, *whole_volumes(item, program)]
