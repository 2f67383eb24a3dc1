"""Weights of the addresses of a headless service: a ConfigMap that the serving daemon fills for its clients."""

from __future__ import annotations

from avactl.contracts import names
from avactl.contracts.document import dump
from avactl.contracts.serving import PoolSpeeds
from avactl.kinds.serving.spec import ServingDeploymentSpec
from avactl.program.lowering import k8s
from avactl.program.lowering.rights import account_subject, build_role
from avactl.program.manifest import Manifest
from avactl.program.ownership import Owned
from avactl.program.program import Item, Program

DATA = Owned("ConfigMap", ("data",), "the serving daemon, in the ConfigMap `NAME-weights` of `balance: headless`")


def with_weights(
    item: Item[ServingDeploymentSpec], program: Program, objects: list[Manifest], component: str
) -> list[Manifest]:
    """Return the objects of a service with its ConfigMap `NAME-weights`; unchanged without the serving daemon.

    The daemon knows the pools by an annotation of the headless Service, and may write this one ConfigMap.
    """
    cluster = program.cluster_spec(item.cluster)
    if not cluster.daemons.serving:
        return objects
    name = f"{item.name}-weights"
    speeds = {pool.name: speed for pool in program.pools(item.cluster) if (speed := program.machine(pool).speed) != 1}
    for manifest in objects:
        if manifest.kind == "Service" and manifest.body["spec"].get("clusterIP") == "None":
            manifest.body["metadata"].setdefault("annotations", {})[names.WEIGHTS] = dump(PoolSpeeds(speeds))

    rules = [k8s.policy_rule([""], ["configmaps"], ["patch"], resourceNames=[name])]
    daemon = account_subject(names.SERVING_DAEMON, cluster.system_namespace)
    return [
        *objects,
        k8s.build_manifest(
            item, item.cluster, "v1", "ConfigMap", name, namespace=item.ns, component=component, owned=(DATA.field,)
        ),
        *build_role(item, item.cluster, name, str(item.ns), rules, [daemon], component),
    ]
