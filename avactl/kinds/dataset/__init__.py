"""Dataset: versioned data in object stores."""

from avactl.kinds.dataset.check import check, check_all
from avactl.kinds.dataset.facts import facts
from avactl.kinds.dataset.lower import lower
from avactl.program.registry import Kind
from avactl.spec.platform.dataset import Dataset, DatasetSpec, Prewarm, Version

KIND = Kind(model=Dataset, lower=lower, check=check, check_all=check_all, facts=facts)

__all__ = ["KIND", "Dataset", "DatasetSpec", "Prewarm", "Version"]
