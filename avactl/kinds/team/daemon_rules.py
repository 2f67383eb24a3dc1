"""Rules of the daemons that write in the namespaces of teams."""

from __future__ import annotations

from avactl.program.lowering.k8s import policy_rule as rule
from avactl.program.manifest import Body


def serving_rules() -> list[Body]:
    """Rules of the serving daemon in each namespace of a team. No Secrets; it creates no pods and no routes."""
    return [
        # The patch writes the state of a rollout.
        rule(["apps"], ["deployments"], ("patch",)),
        # The condition avactl.dev/Rollout.
        rule(["apps"], ["deployments/status"], ("patch",)),
        # One ReplicaSet a version, with the pod template of the Deployment.
        rule(["apps"], ["replicasets"], ("create", "patch", "delete")),
        # One Service a version, owned by its ReplicaSet; the patch sets the selector of blue-green. Where the admission
        # plugin OwnerReferencesPermissionEnforcement is on, owners are set only by accounts that may delete the object.
        rule([""], ["services"], ("create", "patch", "delete")),
        # Weights. It cannot create routes: hosts are taken only by specs.
        rule(["gateway.networking.k8s.io"], ["httproutes", "grpcroutes"], ("patch",)),
        # Template of validation Jobs, and the Jobs, which are owned by ReplicaSets, too.
        rule(["batch"], ["cronjobs"], ("get",)),
        rule(["batch"], ["jobs"], ("create", "delete")),
        # Begin, steps and end of rollouts.
        rule(["events.k8s.io"], ["events"], ("create",)),
    ]
