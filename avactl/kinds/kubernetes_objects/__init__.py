"""The KubernetesObjects kind."""

from avactl.kinds.kubernetes_objects.check import check
from avactl.kinds.kubernetes_objects.lower import facts, lower, written_objects
from avactl.kinds.kubernetes_objects.spec import KubernetesObjects, KubernetesObjectsSpec
from avactl.program.registry import Kind

__all__ = ["KIND", "KubernetesObjects", "KubernetesObjectsSpec"]

KIND = Kind(model=KubernetesObjects, lower=lower, check=check, facts=facts, written=written_objects)
