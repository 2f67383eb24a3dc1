"""The scheduler's names are the compiler's."""

from __future__ import annotations

from avactl.kinds import pods
from avactl.kinds.base import GROUP
from avactl.kinds.node_pool.lower import CONFIG_LABEL
from avactl.scheduler import names


def test_names_are_those_of_the_compiled_objects() -> None:
    assert names.GROUP == GROUP
    assert names.CONFIG_LABEL == CONFIG_LABEL
    assert names.SCHEDULER_NAME == pods.SCHEDULER_NAME
    assert (names.POOL_LABEL, names.GPU_LABEL) == (pods.POOL_LABEL, pods.GPU_LABEL)
    assert (names.GANG_LABEL, names.GANG_SIZE) == (pods.GANG_LABEL, pods.GANG_SIZE_ANNOTATION)
    assert (names.LINK, names.LINK_POLICY) == (pods.LINK_ANNOTATION, pods.LINK_POLICY_ANNOTATION)
    assert (names.GPU_SHARE, names.DEVICES) == (pods.GPU_SHARE_ANNOTATION, pods.DEVICES_ANNOTATION)
    assert names.PREEMPTIBLE == pods.PREEMPTIBLE_ANNOTATION
