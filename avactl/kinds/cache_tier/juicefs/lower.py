"""JuiceFS → the volumes of the tier and the scripts that import and load."""

from __future__ import annotations

from avactl.kinds.cache_tier.juicefs import names
from avactl.kinds.cache_tier.juicefs.scripts import IMPORT_SCRIPT, WARM_SCRIPT
from avactl.kinds.cache_tier.juicefs.volumes import whole
from avactl.kinds.lowering import k8s
from avactl.kinds.manifest import Manifest
from avactl.kinds.program import Item, Program
from avactl.names import CACHE_NAMESPACE


def lower(item: Item, program: Program) -> list[Manifest]:
    """Return the objects of one tier. None of them holds data: that is in the volume's own store and metadata."""
    scripts = {"import.sh": IMPORT_SCRIPT, "warm.sh": WARM_SCRIPT}
    config = k8s.config_map(item, item.spec.cluster, names.config(item), CACHE_NAMESPACE, scripts)
    return [config, *whole(item, program)]
