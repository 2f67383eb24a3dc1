"""Admission policies on the accounts of avactl's daemons, for what RBAC cannot express: fields, names, kinds of
namespaces. docs/security.md has a table of the same rules. A message has the form `RULE: reason; remedy`.

Together with the Roles they hold even if a daemon is taken over: no account can extend its own rights, run code on a
machine or with another account's rights outside the namespaces of teams, or touch objects that are not avactl's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from os.path import commonprefix
from typing import Any

import orjson

from avactl.contracts import names
from avactl.contracts.foreign_keys import ADMIN_ACCESS_LABEL
from avactl.contracts.pod_annotations import Writer, written_by, written_only_by_scheduler
from avactl.kinds.cluster.daemons import admission, guard, topology
from avactl.kinds.cluster.daemons.admission import AdmissionRule
from avactl.program.cache_engines import engine_of
from avactl.program.lowering import k8s, namespaces
from avactl.program.manifest import Body, Manifest
from avactl.program.program import Item, Program
from avactl.spec.platform.cluster import ClusterSpec

_ADMINISTRATOR_HINT = "an administrator applies it with `avactl reconcile --once`"
_SERVER_FIELDS = ("generation", "managedFields", "resourceVersion")
"""Fields of the metadata that the API server writes."""


def limit_policy(
    item: Item[ClusterSpec],
    name: str,
    namespace: str,
    resources: list[Body],
    rules: Iterable[AdmissionRule],
    component: str,
    variables: dict[str, str] | None = None,
    conditions: dict[str, str] | None = None,
) -> list[Manifest]:
    """Return a policy on what the service account `name` of a namespace may write, and its binding."""
    account = f"request.userInfo.username == 'system:serviceaccount:{namespace}:{name}'"
    conditions = {f"from-{component}": account, **(conditions or {})}
    spec = {
        "matchConstraints": {"resourceRules": resources},
        "matchConditions": [{"name": key, "expression": text} for key, text in conditions.items()],
        **k8s.drop_none(
            variables=[{"name": key, "expression": text} for key, text in (variables or {}).items()] or None
        ),
    }
    texts = [(rule.expression, f"{rule.name}: {rule.message}") for rule in rules]
    return k8s.admission_policy(item, item.name, name, spec, texts, component=component)


def _build_resources(group: str, resources: list[str], *operations: str) -> Body:
    return {"apiGroups": [group], "apiVersions": ["*"], "operations": list(operations), "resources": resources}


def _requirement_for(resource: str, *requirements: str) -> str:
    """CEL: requests for other resources pass; those for this one (`pods`, `pods/status`) meet the requirements."""
    plural, _, part = resource.partition("/")
    others = f"request.resource.resource != '{plural}' || request.?subResource.orValue('') != '{part}'"
    return f"{others} || ({' && '.join(requirements)})"


def _changes_only(path: str, *fields: str) -> str:
    """CEL: an update changes no other fields of the map at a path."""
    keys = admission.cel_strings(fields)
    now, before = (f"dyn({each}.?{path}.orValue({{}}))" for each in ("object", "oldObject"))
    return (
        f"{now}.all(k, k in {keys} || (k in {before} && {now}[k] == {before}[k])) && "
        f"{before}.all(k, k in {keys} || k in {now})"
    )


def _only_metadata(*fields: str) -> str:
    return _changes_only("metadata", *_SERVER_FIELDS, *fields)


def _only_annotations(*annotations: str) -> str:
    return f"{_only_metadata('annotations')} && {_changes_only('metadata.?annotations', *annotations)}"


def _only_conditions(*types: str) -> str:
    conditions = "{}.?status.?conditions.orValue([]).filter(c, !(c.type in " + admission.cel_strings(types) + "))"
    return f"{conditions.format('object')} == {conditions.format('oldObject')}"


# -- the scheduler


_TOPOLOGY_LABELS = ("topology.kubernetes.io/region", "topology.kubernetes.io/zone")
"""Labels that the API server adds to a Binding, from the node (KEP-4742)."""


def _of_a_pod(item: str) -> str:
    """CEL: a ResourceClaim is annotated as that of extended resources, and a pod is its only owner."""
    owners = f"{item}.metadata.?ownerReferences.orValue([])"
    return (
        f"({item}.metadata.?annotations[?'{names.EXTENDED_CLAIM}'].orValue('') == 'true' && {owners}.size() == 1 && "
        f"{owners}.all(o, o.apiVersion == 'v1' && o.kind == 'Pod' && o.?controller.orValue(false)))"
    )


def scheduler_policy(item: Item[ClusterSpec]) -> list[Manifest]:
    """Return the policy of the scheduler: its own pods, and of volumes and claims what binds them."""
    own = f"oldObject.spec.?schedulerName.orValue('') == '{names.SCHEDULER_NAME}'"
    claim, before = "object.spec.?claimRef", "oldObject.spec.?claimRef"
    bound, status = written_by(Writer.SCHEDULER_BINDING), written_by(Writer.SCHEDULER_STATUS)
    allowed = " || ".join(f"k == '{name}'" for name in bound)
    exclusive = written_only_by_scheduler()
    own_annotations = [name for name in status if name in exclusive]
    same = " && ".join(
        f"({before}.?{key}.orValue('') == '' || {claim}.?{key}.orValue('') == {before}.?{key}.orValue(''))"
        for key in ("namespace", "name")
    )
    rules = [
        AdmissionRule(
            "own-pods",
            f"({_requirement_for('pods', own)}) && ({_requirement_for('pods/status', own)})",
            f"the scheduler changes and deletes only pods with `schedulerName: {names.SCHEDULER_NAME}`",
        ),
        AdmissionRule(
            "pod-status",
            _requirement_for(
                "pods/status",
                _changes_only("status", "conditions", "nominatedNodeName", "extendedResourceClaimStatus"),
                _only_conditions("PodScheduled", "DisruptionTarget", names.TIMED_OUT),
                _only_annotations(*status),
            ),
            f"the scheduler writes only PodScheduled, DisruptionTarget, {names.TIMED_OUT}, the nominated node, "
            f"the claim of extended resources and the annotation {' and '.join(own_annotations)}",
        ),
        AdmissionRule(
            "binding",
            _requirement_for(
                "pods/binding",
                "!request.namespace.startsWith('kube-')",
                f"object.metadata.?labels.orValue({{}}).all(k, k in {admission.cel_strings(_TOPOLOGY_LABELS)})",
                f"object.metadata.?annotations.orValue({{}}).all(k, {allowed})",
            ),
            f"the scheduler binds no pods in `kube-*`, and adds only the annotation {' and '.join(bound)}",
        ),
        AdmissionRule(
            "group-status",
            _requirement_for(
                "podgroups/status",
                _changes_only("status", "conditions"),
                _only_conditions(names.INITIALLY_SCHEDULED),
                _only_metadata(),
            ),
            f"the scheduler writes only the condition {names.INITIALLY_SCHEDULED} of PodGroups",
        ),
        AdmissionRule(
            "claim-ref",
            _requirement_for(
                "persistentvolumes",
                f"{before}.?uid.orValue('') == ''",
                same,
                _changes_only("spec", "claimRef"),
                _only_annotations("pv.kubernetes.io/bound-by-controller"),
            ),
            "the scheduler writes only `claimRef`, of volumes that are not bound",
        ),
        AdmissionRule(
            "selected-node",
            _requirement_for(
                "persistentvolumeclaims",
                _changes_only("spec"),
                _only_annotations("volume.kubernetes.io/selected-node"),
            ),
            "the scheduler writes only the annotation volume.kubernetes.io/selected-node",
        ),
        AdmissionRule(
            "finalizers",
            "request.operation != 'UPDATE' || "
            + _requirement_for(
                "resourceclaims",
                _changes_only("spec"),
                _only_metadata("finalizers"),
                "oldObject.metadata.?finalizers.orValue([]).all(f, f in object.metadata.?finalizers.orValue([]))",
            ),
            "the scheduler only adds finalizers",
        ),
        AdmissionRule(
            "extended-resources",
            "request.operation == 'UPDATE' || "
            + _requirement_for(
                "resourceclaims",
                f"({_of_a_pod('object')} || request.operation == 'DELETE')",
                f"({_of_a_pod('oldObject')} || request.operation == 'CREATE')",
            ),
            "the scheduler creates and deletes only ResourceClaims of the extended resources of one pod",
        ),
        AdmissionRule(
            "cordon",
            _requirement_for(
                "nodes",
                "object.spec.?unschedulable.orValue(false)",
                _changes_only("spec", "unschedulable"),
                _changes_only("status"),
                _only_annotations(names.CORDONED_AT),
            ),
            f"the scheduler only cordons nodes, and writes the annotation {names.CORDONED_AT}",
        ),
        AdmissionRule(
            "scale",
            _requirement_for("statefulsets/scale", "object.spec.?replicas.orValue(0) == 0"),
            "the scheduler only stops workspaces",
        ),
    ]
    resources = [
        _build_resources("", ["pods"], "DELETE"),
        _build_resources("", ["pods/status", "persistentvolumes", "persistentvolumeclaims", "nodes"], "UPDATE"),
        _build_resources("", ["pods/binding"], "CREATE"),
        _build_resources("resource.k8s.io", ["resourceclaims"], "CREATE", "UPDATE", "DELETE"),
        _build_resources("apps", ["statefulsets/scale"], "UPDATE"),
        _build_resources("scheduling.k8s.io", ["podgroups/status"], "UPDATE"),
    ]
    return limit_policy(item, names.CONTROLLER, item.spec.system_namespace, resources, rules, "scheduler")


# -- the cache daemon


def cache_policy(item: Item[ClusterSpec], name: str, component: str) -> list[Manifest]:
    """Return the policy of the cache daemon: one label of pods, and its own ConfigMap."""
    rules = [
        AdmissionRule(
            "label",
            _requirement_for(
                "pods",
                _changes_only("spec"),
                _only_metadata("labels"),
                _changes_only("metadata.?labels", names.SAFE_TO_DRAIN),
            ),
            f"the cache daemon writes only the label {names.SAFE_TO_DRAIN} of pods",
        ),
        AdmissionRule(
            "status",
            _requirement_for("configmaps", f"object.metadata.name == '{names.CACHE_STATUS}'"),
            f"the cache daemon writes only the ConfigMap {names.CACHE_STATUS}",
        ),
    ]
    resources = [_build_resources("", ["pods"], "UPDATE"), _build_resources("", ["configmaps"], "CREATE", "UPDATE")]
    return limit_policy(item, name, names.CACHE_NAMESPACE, resources, rules, component)


# -- the serving daemon


_ROLLOUT_CONDITION = f"{names.GROUP}/Rollout"


_OF_GROUPS = (
    " || (request.resource.resource == 'services' && "
    f"oldObject.metadata.?labels[?'app.kubernetes.io/component'].orValue('') == '{names.REVISION_COMPONENT}') || "
    f"(request.resource.resource == 'pods' && oldObject.metadata.?labels[?'{names.LWS_INDEX}'].orValue('') == '0' && "
    f"oldObject.metadata.?labels[?'{names.MANAGED_BY}'].orValue('') == '{names.MANAGER}')"
)
"""CEL: a deletion is of the Service of a version, or of the leader of a group of a service."""


def _group_fields() -> AdmissionRule:
    """Return the rule on LeaderWorkerSets: the daemon changes the partition, and state and condition of rollouts."""
    strategy = "spec.?rolloutStrategy"
    fields = _requirement_for(
        "leaderworkersets",
        _changes_only("spec", "rolloutStrategy"),
        _changes_only(strategy, "rollingUpdateConfiguration"),
        _changes_only(f"{strategy}.?rollingUpdateConfiguration", "partition"),
        _only_annotations(names.ROLLOUT_STATE),
    )
    status = _requirement_for(
        "leaderworkersets/status", _changes_only("status", "conditions"), _only_conditions(_ROLLOUT_CONDITION)
    )
    return AdmissionRule(
        "groups",
        f"({fields}) && ({status})",
        "the serving daemon writes the partition of LeaderWorkerSets, and the state and condition of rollouts",
    )


def _pool_fields() -> AdmissionRule:
    """Return the rule on InferencePools: of their selectors, the daemon changes only which version they select."""
    labels = "spec.?selector.?matchLabels"
    fields = _requirement_for(
        "inferencepools",
        _changes_only("spec", "selector"),
        _changes_only("spec.?selector", "matchLabels"),
        _changes_only(labels, *names.VERSION_LABELS),
        _only_metadata(),
    )
    return AdmissionRule("pools", fields, "the serving daemon writes the version that an InferencePool selects")


def serving_policy(item: Item[ClusterSpec], component: str) -> list[Manifest]:
    """Return the policy of the serving daemon: of objects of specs, the fields of a rollout."""
    team = f"namespaceObject.metadata.?labels[?'{names.TEAM_LABEL}'].hasValue()"
    update, groups = "request.operation != 'UPDATE'", item.spec.leader_worker_set is not None
    pools = item.spec.routes_to_pools
    of_groups = _OF_GROUPS if groups else ""
    rules = [
        AdmissionRule("team-namespaces", team, "the serving daemon writes only in namespaces of teams"),
        AdmissionRule(
            "rollout-fields",
            " && ".join(
                f"({rule})"
                for rule in (
                    _requirement_for("deployments", _changes_only("spec"), _only_annotations(names.ROLLOUT_STATE)),
                    _requirement_for(
                        "deployments/status",
                        _changes_only("status", "conditions"),
                        _only_conditions(_ROLLOUT_CONDITION),
                    ),
                    _requirement_for("replicasets", f"({update} || ({_changes_only('spec', 'replicas')}))"),
                    _requirement_for(
                        "services", f"({update} || ({_changes_only('spec', 'selector')} && {_only_metadata()}))"
                    ),
                    _requirement_for("httproutes", _changes_only("spec", "rules"), _only_metadata()),
                    _requirement_for("grpcroutes", _changes_only("spec", "rules"), _only_metadata()),
                )
            ),
            "the serving daemon writes the state and condition of rollouts, replicas of versions, selectors of "
            "Services and rules of routes",
        ),
        AdmissionRule(
            "deletions",
            f"request.operation != 'DELETE' || request.resource.resource == 'replicasets'{of_groups}",
            "Services and Jobs of a version are deleted with its ReplicaSet"
            + (", without one by themselves; of pods, only the leaders of groups are" if groups else ""),
        ),
        AdmissionRule(
            "cluster-ip",
            _requirement_for(
                "services", "(request.operation == 'DELETE' || object.spec.?type.orValue('ClusterIP') == 'ClusterIP')"
            ),
            "Services of versions have the type ClusterIP",
        ),
        *([_group_fields()] if groups else []),
        *([_pool_fields()] if pools else []),
    ]
    resources = [
        _build_resources("apps", ["deployments", "deployments/status"], "UPDATE"),
        _build_resources("apps", ["replicasets"], "CREATE", "UPDATE", "DELETE"),
        _build_resources("", ["services"], "CREATE", "UPDATE", "DELETE"),
        _build_resources("batch", ["jobs"], "CREATE", "UPDATE", "DELETE"),
        _build_resources("gateway.networking.k8s.io", ["httproutes", "grpcroutes"], "UPDATE"),
    ]
    if groups:
        resources += [
            _build_resources("leaderworkerset.x-k8s.io", ["leaderworkersets", "leaderworkersets/status"], "UPDATE"),
            _build_resources("", ["pods"], "DELETE"),
        ]
    if pools:
        resources.append(_build_resources("inference.networking.k8s.io", ["inferencepools"], "UPDATE"))
    return limit_policy(item, names.SERVING_DAEMON, item.spec.system_namespace, resources, rules, component)


# -- the reconciler

_WORKLOAD_RESOURCES = ("pods", "deployments", "statefulsets", "replicasets", "daemonsets", "jobs", "cronjobs")
_HARMLESS_RESOURCES = (
    "serviceaccounts",
    "configmaps",
    "persistentvolumeclaims",
    "services",
    "networkpolicies",
    "poddisruptionbudgets",
    "leases",
    "resourcequotas",
    "limitranges",
    "horizontalpodautoscalers",
    "podmonitors",
    "prometheusrules",
    "alertmanagerconfigs",
    "resourceclaimtemplates",
)
"""Resources that give no rights and run no code."""
_SERVICE_REQUIREMENTS = (
    "object.spec.?externalIPs.orValue([]).size() == 0",
    "object.spec.?type.orValue('') != 'ExternalName'",
)
"""CEL: a Service diverts no traffic of others."""
_POD_SECURITY_LABEL = "pod-security.kubernetes.io/enforce"
_KUBERNETES_LABELS = r"'^(kubernetes|node|node-role|node-restriction|node[.]cloudprovider)([.]kubernetes)?[.]io/'"
"""Labels and taints of Kubernetes and its components, such as `node-role.kubernetes.io/control-plane`."""


def reconciler_policy(
    item: Item[ClusterSpec], program: Program, name: str, component: str, delivery: str
) -> list[Manifest]:
    """Return the policy of the built-in reconciler. RBAC keeps it from changing this policy, cluster-wide roles and
    other admission policies.

    In namespaces of teams it does what specs say. Those of the platform have accounts with more rights, and privileged
    pods; there it starts no pods but plain ones, and gives no rights. `delivery`: user name of the delivery daemon.
    """
    system = item.spec.system_namespace
    place = "request.?namespace.orValue('')"
    pod = admission.POD
    variables = {
        "namespaced": f"{place} != '' && request.resource.resource != 'namespaces'",
        "team": f"namespaceObject.metadata.?labels[?'{names.TEAM_LABEL}'].hasValue() && "
        f"{guard.MANAGED.format('namespaceObject')}",
        "platform": "variables.namespaced && !variables.team && request.operation != 'DELETE'",
        "workload": f"request.resource.resource in {admission.cel_strings(_WORKLOAD_RESOURCES)}",
        "pod": f"variables.workload ? {pod.format('object')} : dyn({{}})",
        "containers": "dyn(variables.pod.?containers.orValue([])) + dyn(variables.pod.?initContainers.orValue([])) + "
        "dyn(variables.pod.?ephemeralContainers.orValue([]))",
    }
    known = f"request.operation == 'UPDATE' && {pod.format('oldObject')} == variables.pod"
    rules = [
        AdmissionRule(
            "namespace",
            f"!variables.namespaced || {place} == '{system}' || {guard.MANAGED.format('namespaceObject')}",
            f"{name} may only write in namespaces of avactl",
        ),
        AdmissionRule(
            "foreign-object",
            "variables.namespaced || request.resource.resource == 'nodes' || oldObject == null || "
            f"{guard.MANAGED.format('oldObject')}",
            f"{name} may not change an object that is not avactl's",
        ),
        AdmissionRule(
            "platform-objects",
            "!variables.platform || variables.workload || "
            f"request.resource.resource in {admission.cel_strings(_HARMLESS_RESOURCES)} "
            f"|| ({_state_roles(system, delivery)})",
            f"outside of teams' namespaces, {name} grants no rights; {_ADMINISTRATOR_HINT}",
        ),
        AdmissionRule("subresource", "request.?subResource.orValue('') == ''", f"{name} writes no subresources"),
        AdmissionRule(
            "platform-pods",
            f"!variables.platform || !variables.workload || ({known}) || ({_plain_pod(system)})",
            f"outside of teams' namespaces, {name} changes no pods with an account, Secrets or privileges; "
            f"{_ADMINISTRATOR_HINT}",
        ),
        AdmissionRule(
            "scripts",
            f"!variables.platform || ({_requirement_for('configmaps', _same_scripts())})",
            f"privileged pods run scripts of this ConfigMap; {_ADMINISTRATOR_HINT}",
        ),
        AdmissionRule(
            "namespaces",
            _requirement_for("namespaces", _namespace_rule()),
            f"{name} writes namespaces of teams; {_ADMINISTRATOR_HINT}",
        ),
        AdmissionRule(
            "volume",
            _requirement_for("persistentvolumes", f"request.operation == 'DELETE' || {_volume_rule(item, program)}"),
            f"{name} creates only volumes of cache tiers; {_ADMINISTRATOR_HINT}",
        ),
        AdmissionRule(
            "service",
            f"!variables.platform || ({_requirement_for('services', *_SERVICE_REQUIREMENTS)})",
            f"{name} diverts no traffic; {_ADMINISTRATOR_HINT}",
        ),
        AdmissionRule(
            "node",
            _requirement_for("nodes", _node_rule()),
            f"{name} writes only its own labels and taints of nodes; {_ADMINISTRATOR_HINT}",
        ),
    ]
    every = _build_resources("*", ["*/*"], "CREATE", "UPDATE", "DELETE")
    conditions = {"not-an-event": "request.resource.resource != 'events'"}
    return limit_policy(item, name, system, [every], rules, component, variables, conditions)


def _state_roles(system: str, delivery: str) -> str:
    """CEL: the Role by which the delivery daemon writes the state of one pipeline or promotion, or its binding."""
    if not delivery:
        return "false"
    _, _, namespace, account = delivery.split(":")
    rule = (
        "{'apiGroups': dyn(['']), 'resources': dyn(['configmaps']), 'verbs': dyn(['patch']), "
        "'resourceNames': dyn([object.metadata.name])}"
    )
    subject = f"{{'kind': 'ServiceAccount', 'name': '{account}', 'namespace': '{namespace}'}}"
    prefixes = admission.cel_strings((names.PIPELINE_STATE_PREFIX, names.PROMOTION_STATE_PREFIX))
    return (
        f"request.namespace == '{system}' && {prefixes}.exists(p, object.metadata.name.startsWith(p)) && "
        f"(request.resource.resource == 'roles' ? dyn(object.rules) == dyn([{rule}]) : "
        "request.resource.resource == 'rolebindings' && object.roleRef.kind == 'Role' && "
        f"object.roleRef.name == object.metadata.name && dyn(object.subjects) == dyn([{subject}]))"
    )


def _plain_pod(system: str) -> str:
    """CEL: a pod without privileges, rights and credentials, such as a Job that loads a dataset; or one of the topology
    daemon, whose account may only write one condition of its own node."""
    account = "variables.pod.?serviceAccountName.orValue('')"
    return (
        f"(({account} in ['', 'default'] && !variables.pod.?automountServiceAccountToken.orValue(true)) || "
        f"(request.namespace == '{system}' && {account} == '{topology.NAME}')) && "
        "variables.pod.?volumes.orValue([]).all(v, has(v.configMap) || has(v.emptyDir) || "
        "has(v.persistentVolumeClaim)) && "
        "variables.containers.all(c, c.?envFrom.orValue([]).all(e, !has(e.secretRef)) && "
        "c.?env.orValue([]).all(e, !e.?valueFrom.?secretKeyRef.hasValue())) && "
        f"!variables.pod.?hostNetwork.orValue(false) && variables.pod.?nodeName.orValue('') == '' && "
        f"{admission.RESTRICTED}"
    )


def _same_scripts() -> str:
    """CEL: no script and no configuration of a program is added or changed."""
    executed = "(k.endsWith('.sh') || k.endsWith('.properties'))"
    old = "(request.operation == 'UPDATE' ? oldObject.?data.orValue({}) : {})"
    return f"object.?data.orValue({{}}).all(k, !{executed} || (k in {old} && object.data[k] == {old}[k]))"


def _namespace_rule() -> str:
    """CEL: a team's namespace, never privileged but for the host's network; of others, nothing that matters here."""

    def label(side: str, name: str) -> str:
        return f"{side}.metadata.?labels[?'{name}'].orValue('')"

    team, level = names.TEAM_LABEL, _POD_SECURITY_LABEL
    taken = ("default", names.CACHE_NAMESPACE, *sorted(namespaces.OF_OTHERS))
    same = " && ".join(f"{label('object', each)} == {label('oldObject', each)}" for each in (team, ADMIN_ACCESS_LABEL))
    reserved = " || ".join(
        [
            f"object.metadata.name in {admission.cel_strings(taken)}",
            *(f"object.metadata.name.startsWith('{prefix}')" for prefix in namespaces.RESERVED_PREFIXES),
            f"object.metadata.name.endsWith('{namespaces.RESERVED_SUFFIX}')",
        ]
    )
    created = f"{label('object', team)} != '' && !({reserved}) && {label('object', ADMIN_ACCESS_LABEL)} == ''"
    safe = (
        f"{label('object', level)} in ['restricted', 'baseline'] || ({label('object', team)} != '' && "
        f"{label('object', level)} == 'privileged' && {label('object', names.HOST_NETWORK_LABEL)} != '')"
    )
    kept = f"{label('object', team)} == '' && {label('object', level)} == {label('oldObject', level)}"
    return (
        f"request.operation == 'DELETE' ? {label('oldObject', team)} != '' : {guard.MANAGED.format('object')} && "
        f"(request.operation == 'CREATE' ? {created} && ({safe}) : {same} && ({safe} || ({kept})))"
    )


def _node_rule() -> str:
    """CEL: labels and taints of a pool, none of Kubernetes' own; taints of the node controllers may be removed, because
    an apply replaces the list."""
    labels = "{}.metadata.?labels.orValue({{}})"
    now, before = labels.format("object"), labels.format("oldObject")
    own = f"k.matches({_KUBERNETES_LABELS})"
    roles = "{}.spec.?taints.orValue([]).filter(t, t.key.startsWith('node-role.kubernetes.io/'))"
    return " && ".join(
        [
            "request.operation == 'UPDATE'",
            _changes_only("spec", "taints"),
            _only_metadata("labels", "annotations"),
            _changes_only("metadata.?annotations", f"{names.GROUP}/patched"),
            f"{now}.all(k, !{own} || (k in {before} && {now}[k] == {before}[k]))",
            f"{before}.all(k, !{own} || k in {now})",
            f"{roles.format('object')} == {roles.format('oldObject')}",
            "object.spec.?taints.orValue([]).all(t, t in oldObject.spec.?taints.orValue([]) || "
            f"!t.key.matches({_KUBERNETES_LABELS}))",
        ]
    )


_SAMPLE_VOLUMES = (("a", "/a"), ("b", "/b"))
"""Names and directories of two volumes, whose specs differ where those of all volumes of a tier do."""


def _volume_rule(item: Item[ClusterSpec], program: Program) -> str:
    """CEL: the volume has the shape of those that the cluster's tiers compile to, or keeps its mount options; the API
    server lets no other field change that says where its data is."""
    shapes = [
        shape
        for tier in program.tiers(item.name)
        for read_only in (True, False)
        if (
            shape := _shape_rule(*(engine_of(tier).volume(tier, program, *each, read_only) for each in _SAMPLE_VOLUMES))
        )
    ]
    kept = "(request.operation == 'UPDATE' && object.spec.?mountOptions == oldObject.spec.?mountOptions)"
    return " || ".join([kept, *dict.fromkeys(f"({shape})" for shape in shapes)])


def _shape_rule(one: Body, other: Body) -> str:
    """CEL: the spec of a volume equals that of two samples, but for texts in which these differ: there it begins like
    both, and goes on as a path does."""
    wanted: list[str] = []
    for key in sorted(one):
        patterns: list[str] = []
        literal = _literal_rule(one[key], other[key], f"object.spec.{key}", patterns)
        wanted += [f"has(object.spec.{key})", f"dyn(object.spec.{key}) == dyn({literal})", *patterns]
    return " && ".join(wanted)


def _literal_rule(one: Any, other: Any, path: str, patterns: list[str]) -> str:
    if isinstance(one, dict):
        # The values of a map, and of a list, have one type.
        entries = (
            f"{_quote_text(key)}: dyn({_literal_rule(one[key], other[key], f'{path}[{_quote_text(key)}]', patterns)})"
            for key in one
        )
        return f"{{{', '.join(entries)}}}"
    if isinstance(one, list):
        pairs = enumerate(zip(one, other, strict=True))
        entries = (f"dyn({_literal_rule(*pair, f'{path}[{index}]', patterns)})" for index, pair in pairs)
        return f"[{', '.join(entries)}]"
    if one == other:
        return orjson.dumps(one).decode()
    if path.endswith("['volumeHandle']"):
        return "object.metadata.name"
    begin = re.escape(commonprefix([one, other]))  # noqa: RUF071 - texts, not paths
    patterns.append(f"{path}.matches({_quote_text(f'^{begin}[A-Za-z0-9._/=-]+$')}) && !{path}.contains('..')")
    return path


def _quote_text(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
