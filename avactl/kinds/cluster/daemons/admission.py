"""Admission policies of team namespaces: pods, Services and volumes that members create stay within the tenancy.

RBAC decides which kinds of objects a member may write, pod security which access to the node a pod has. These policies
decide the rest. docs/security.md has a table of the same rules. A message has the form `RULE: reason; remedy`.
"""

from __future__ import annotations

from typing import NamedTuple

from avactl.contracts import names
from avactl.contracts.foreign_keys import domain_pattern, refused_on_pods
from avactl.contracts.pod_annotations import GPU_SHARE, USER, written_only_by_scheduler
from avactl.kinds.cluster.daemons.delivery import delivery_account
from avactl.kinds.cluster.daemons.serving import serving_account
from avactl.kinds.cluster.priorities import PRIORITIES
from avactl.kinds.team.allowances import DEFAULT_PRIORITIES, DEFAULT_SERVICE_TYPES
from avactl.kinds.team.names import RUN_ACCOUNT
from avactl.program.checks.pod_security_levels import CONFINED_PROFILES, RESTRICTED_VOLUMES
from avactl.program.lowering import k8s
from avactl.program.lowering.gpu_request import (
    AMD_VISIBLE_DEVICES,
    DEVICES_FIELD,
    VISIBLE_DEVICES,
    nvidia_pools,
    uses_amd_gpus,
)
from avactl.program.manifest import Body, Manifest
from avactl.program.program import Item, Program
from avactl.spec.platform.cluster import ClusterSpec
from avactl.spec.schema.pod_affinity import NODE_TAINTS
from avactl.spec.schema.pod_settings import LONGEST_GRACE, RUNTIME_PARTS, RUNTIME_PREFIXES

COMPONENT = "admission"
POLICIES = tuple(
    f"avactl-team-{what}"
    for what in ("pods", "members", "annotations", "networks", "services", "volumes", "claims", "deletions", "rollouts")
)
PODS, MEMBERS, MARKS, NETWORKS, SERVICES, VOLUMES, CLAIMS, DELETIONS, ROLLOUTS = POLICIES
_JOB_ACCOUNTS = ("follower", "launcher", "master")
"""Endings of accounts that compiled training jobs have."""
HARMLESS_PRIORITY = 1000
"""Priority of `avactl-normal`: a class of the cluster's own may have as much."""


class AdmissionRule(NamedTuple):
    """One requirement: a CEL expression that must hold, why, and what to write instead."""

    name: str
    expression: str
    message: str


def admission_policies(item: Item[ClusterSpec], program: Program) -> list[Manifest]:
    """Return the policies and bindings of one cluster."""
    templates = [
        _build_resources("apps", ["deployments", "statefulsets", "replicasets", "daemonsets"]),
        _build_resources("batch", ["jobs", "cronjobs"]),
    ]
    workloads = [
        _build_resources("", ["pods"]),
        _build_resources("", ["pods/ephemeralcontainers"], ("UPDATE",)),
        *templates,
    ]
    marks = [
        _build_resources("", ["pods"]),
        _build_resources("", ["pods/status", "pods/ephemeralcontainers", "pods/resize"], ("UPDATE",)),
        _build_resources("", ["pods/binding"], ("CREATE",)),
    ]
    return [
        *_build_policy(
            item,
            PODS,
            workloads,
            f"{POD.format('object')} != {POD.format('oldObject')}",
            _pod_rules(item, program),
            _rule_variables(item),
        ),
        *_build_members(item, [_build_resources("", ["pods"], ("CREATE",)), *templates]),
        *_build_policy(
            item,
            MARKS,
            marks,
            "object.metadata.?annotations != oldObject.metadata.?annotations || "
            "object.metadata.?labels != oldObject.metadata.?labels",
            _annotation_rules(),
        ),
        *_build_networks(item, workloads),
        *_build_policy(
            item, SERVICES, [_build_resources("", ["services"])], "object.spec != oldObject.spec", _SERVICE_RULES
        ),
        *_build_policy(
            item,
            VOLUMES,
            [_build_resources("", ["persistentvolumeclaims"])],
            "object.spec.?volumeName != oldObject.spec.?volumeName",
            _VOLUME_RULES,
        ),
        *_build_policy(
            item,
            CLAIMS,
            [_build_resources("resource.k8s.io", ["resourceclaims"], ("UPDATE",))],
            "object.metadata.?finalizers != oldObject.metadata.?finalizers",
            _CLAIM_RULES,
        ),
        *_build_policy(
            item,
            DELETIONS,
            [_build_resources("", ["pods"], ("DELETE",)), _build_resources("", ["pods/eviction"], ("CREATE",))],
            "true",
            _DELETION_RULES,
        ),
        *_build_rollouts(item),
    ]


def _build_members(item: Item[ClusterSpec], resources: list[Body]) -> list[Manifest]:
    """Return the policy that the member for whom a pod runs is the account that creates it.

    Members of teams with `perMember` name themselves in pods with GPUs, which would have no limit otherwise. Templates
    are checked, too: their controllers create the pods.
    """
    name = f"variables.notes[?'{USER.name}'].orValue('')"
    prefix = item.spec.oidc.username_prefix
    asked = ("requests", "limits")
    rule = AdmissionRule(
        "member",
        f"variables.platform || ({name} == '' ? !(variables.limited && variables.gpus) : "
        f"request.userInfo.username == {k8s.json_line(prefix)} + {name})",
        f"the GPUs of a pod count for a member of the team; set the annotation {USER.name} to your user name"
        + (f", without `{prefix}`" if prefix else ""),
    )
    variables = {
        **{key: _rule_variables(item)[key] for key in ("pod", "containers", "platform")},
        "notes": _POD_NOTES.format("object"),
        "limited": f"namespaceObject.metadata.?annotations[?'{names.MEMBER_LIMITS}'].orValue('') == 'true'",
        # Every resource with a domain, so that no kind of GPUs is forgotten.
        "gpus": f"'{GPU_SHARE.name}' in variables.notes || variables.pod.?resourceClaims.orValue([]).size() > 0 || "
        "variables.containers.exists(c, "
        + " || ".join(f"c.?resources.?{part}.orValue({{}}).exists(r, r.contains('/'))" for part in asked)
        + ")",
    }
    notes = {side: _POD_NOTES.format(side) for side in ("object", "oldObject")}
    changed = [f"{POD.format('object')} != {POD.format('oldObject')}"]
    changed += [f"{notes['object']}[?'{key}'] != {notes['oldObject']}[?'{key}']" for key in (USER.name, GPU_SHARE.name)]
    return _build_policy(item, MEMBERS, resources, " || ".join(changed), [rule], variables)


def _build_networks(item: Item[ClusterSpec], workloads: list[Body]) -> list[Manifest]:
    """Return the policy on annotations of pods that choose networks and cloud roles.

    Templates are checked, too: the pods are created by controllers, which also create those of specs. Network plugins,
    which annotate pods, may write the status of pods, and members may not.
    """
    before = f"(request.operation == 'UPDATE' ? {_POD_NOTES.format('oldObject')} : {{}})"
    status = "authorizer.group('').resource('pods').subresource('status').namespace(request.namespace)"
    foreign = f"k.matches('^{domain_pattern(refused_on_pods())}')"
    rule = AdmissionRule(
        "network-annotations",
        f"variables.platform || {status}.check('patch').allowed() || "
        f"(variables.notes.all(k, !{foreign} || variables.notes[k] == variables.before[?k].orValue('')) && "
        f"variables.before.all(k, !{foreign} || k in variables.notes))",
        "annotations of network plugins and cloud roles take a pod out of the team's network and rights, and only the "
        f"platform sets them; remove those of {', '.join(refused_on_pods())}",
    )
    variables = {
        "platform": _rule_variables(item)["platform"],
        "notes": _POD_NOTES.format("object"),
        "before": before,
    }
    changed = f"{_POD_NOTES.format('object')} != {_POD_NOTES.format('oldObject')}"
    return _build_policy(item, NETWORKS, workloads, changed, [rule], variables)


def _rule_variables(item: Item[ClusterSpec]) -> dict[str, str]:
    """Return the variables of the rules on pods.

    The serving and delivery daemons copy templates that were checked when written. So does the controller of
    LeaderWorkerSets and DisaggregatedSets, which members of teams cannot write.
    """
    accounts = _template_copiers(item)
    if (groups := item.spec.leader_worker_set) is not None:
        accounts.append(f"system:serviceaccount:{groups.namespace}:{groups.service_account}")
    own = "".join(f" || request.userInfo.username == '{account}'" for account in accounts)
    return {**_POD_VARIABLES, "platform": f"{_IS_PLATFORM}{own}"}


def _template_copiers(item: Item[ClusterSpec]) -> list[str]:
    """Return the users that copy pod templates in the namespaces of teams."""
    return [account for account in (serving_account(item), delivery_account(item)) if account]


def _build_rollouts(item: Item[ClusterSpec]) -> list[Manifest]:
    """Return the policy on annotations that the serving daemon obeys; none without the daemon."""
    account = serving_account(item)
    if not account:
        return []
    # Writes to the status subresource can change annotations, too. The delivery daemon commits roll-backs by the
    # annotations of rejected versions and template digests, and promotes values by their digests.
    objects = [
        _build_resources(
            "apps", [f"{each}{part}" for each in ("deployments", "replicasets") for part in ("", "/status")]
        )
    ]
    marks = (names.ROLLOUT, names.ROLLOUT_STATE, names.REJECTED_VERSION, names.TEMPLATE_DIGEST, names.PROMOTED_VALUES)
    before = "(request.operation == 'UPDATE' ? oldObject.metadata.?annotations[?k].orValue('') : '')"
    rule = AdmissionRule(
        "rollout",
        f"{cel_strings(marks)}.all(k, object.metadata.?annotations[?k].orValue('') == {before}) || variables.platform",
        f"{', '.join(marks[:-1])} and {marks[-1]} are written by specs and the serving daemon; declare `rollout` in "
        "the spec",
    )
    changed = "object.metadata.?annotations != oldObject.metadata.?annotations"
    return _build_policy(item, ROLLOUTS, objects, changed, [rule], {"platform": _rule_variables(item)["platform"]})


def _build_resources(group: str, resources: list[str], operations: tuple[str, ...] = ("CREATE", "UPDATE")) -> Body:
    return {"apiGroups": [group], "apiVersions": ["v1"], "operations": list(operations), "resources": resources}


def _build_policy(
    item: Item[ClusterSpec],
    name: str,
    resources: list[Body],
    changed: str,
    rules: list[AdmissionRule],
    variables: dict[str, str] | None = None,
) -> list[Manifest]:
    """Return a policy and its binding. Updates that do not change what the rules are about pass: controllers and
    kubelets must be able to finish objects from before the policy."""
    spec: Body = {
        "matchConstraints": {
            "namespaceSelector": {"matchExpressions": [{"key": names.TEAM_LABEL, "operator": "Exists"}]},
            "resourceRules": resources,
        },
        "matchConditions": [{"name": "changed", "expression": f"request.operation != 'UPDATE' || {changed}"}],
        **k8s.drop_none(
            variables=[{"name": key, "expression": text} for key, text in (variables or {}).items()] or None
        ),
    }
    texts = [(rule.expression, f"{rule.name}: {rule.message}") for rule in rules]
    return k8s.admission_policy(item, item.name, name, spec, texts, component=COMPONENT)


def _pod_part(of_pod: str, of_template: str) -> str:
    """CEL: a part of the pod of any workload, `{0}`. `dyn`, because the types of the workloads differ."""
    return (
        f"(request.resource.resource == 'pods' ? dyn({{0}}).{of_pod} : request.resource.resource == 'cronjobs' ? "
        f"dyn({{0}}).spec.jobTemplate.spec.template.{of_template} : dyn({{0}}).spec.template.{of_template})"
    )


POD = _pod_part("spec", "spec")
"""The pod of any workload."""
_POD_NOTES = _pod_part("metadata.?annotations.orValue({{}})", "?metadata.?annotations.orValue({{}})")
"""Annotations of the pods of any workload."""
_IS_PLATFORM = (
    "authorizer.group('rbac.authorization.k8s.io').resource('rolebindings').namespace(request.namespace)"
    ".check('create').allowed() || request.userInfo.username == 'system:kube-controller-manager' || "
    "request.userInfo.?groups.orValue([]).exists(g, g == 'system:serviceaccounts:kube-system')"
)
"""True for those who apply specs, and for Kubernetes' controllers, whose templates were checked when written."""
_POD_VARIABLES = {
    "pod": POD.format("object"),
    "containers": "variables.pod.containers + variables.pod.?initContainers.orValue([]) + "
    "variables.pod.?ephemeralContainers.orValue([])",
    "class": "variables.pod.?priorityClassName.orValue('')",
    "platform": _IS_PLATFORM,
}


_OWN_NETWORK = f"namespaceObject.metadata.?labels[?'{names.HOST_NETWORK_LABEL}'].orValue('') == ''"
_PROFILES = str([*CONFINED_PROFILES])
RESTRICTED = (
    "!variables.pod.?hostPID.orValue(false) && !variables.pod.?hostIPC.orValue(false) && "
    f"variables.pod.?volumes.orValue([]).all(v, {' || '.join(f'has(v.{name})' for name in RESTRICTED_VOLUMES)}) && "
    "variables.pod.?securityContext.?sysctls.orValue([]).size() == 0 && "
    "([variables.pod] + variables.containers).all(c, c.?securityContext.?runAsUser.orValue(1) != 0 && "
    "!c.?securityContext.?seLinuxOptions.hasValue() && "
    "!c.?securityContext.?windowsOptions.?hostProcess.orValue(false) && "
    f"c.?securityContext.?appArmorProfile.?type.orValue('RuntimeDefault') in {_PROFILES}) && "
    "variables.containers.all(c, !c.?securityContext.?privileged.orValue(false) && "
    "!c.?securityContext.?allowPrivilegeEscalation.orValue(true) && "
    "c.?securityContext.?runAsNonRoot.orValue(variables.pod.?securityContext.?runAsNonRoot.orValue(false)) && "
    "c.?securityContext.?seccompProfile.?type.orValue("
    f"variables.pod.?securityContext.?seccompProfile.?type.orValue('Unconfined')) in {_PROFILES} && "
    "c.?securityContext.?capabilities.?drop.orValue([]).exists(name, name == 'ALL') && "
    "c.?securityContext.?capabilities.?add.orValue([]).all(name, name == 'NET_BIND_SERVICE') && "
    "c.?securityContext.?procMount.orValue('Default') == 'Default')"
)
"""True for pods without what pod security `restricted` forbids, but for the network and its ports.

A Job from before the namespace was allowed the host's network makes its pods by Kubernetes' controllers, which are part
of the platform.
"""


def _annotation_list(annotation: str, default: tuple[str, ...]) -> str:
    """CEL list of an annotation of the namespace."""
    return f"namespaceObject.metadata.?annotations[?'{annotation}'].orValue('{','.join(default)}').split(',')"


def cel_strings(values: tuple[str, ...]) -> str:
    """CEL list of texts."""
    return "[" + ", ".join(f"'{value}'" for value in values) + "]"


def _pod_rules(item: Item[ClusterSpec], program: Program) -> list[AdmissionRule]:
    priorities = tuple(name for name, *_ in PRIORITIES if name != names.SYSTEM_PRIORITY)
    tolerated = (*program.taints(item.name), *NODE_TAINTS)
    spot = any(pool.spec.is_spot for pool in program.pools(item.name))
    rules = [
        AdmissionRule(
            "host-network",
            f"{_OWN_NETWORK} || variables.platform",
            "pods of this namespace may use the host's network, so only specs create them; use another namespace",
        ),
        AdmissionRule(
            "host-network-pods",
            f"{_OWN_NETWORK} || ({RESTRICTED})",
            "but for the network, pods of this namespace satisfy pod security `restricted`",
        ),
        AdmissionRule(
            "node-name",
            "variables.pod.?nodeName.orValue('') == "
            f"(request.operation == 'UPDATE' ? {POD.format('oldObject')}.?nodeName.orValue('') : '')",
            "`nodeName` bypasses the scheduler; remove it, and select nodes by `nodeSelector`",
        ),
        AdmissionRule(
            "priority",
            f"variables.class in {cel_strings(('', *priorities))} || "
            f"variables.pod.?priority.orValue({HARMLESS_PRIORITY + 1}) <= {HARMLESS_PRIORITY}",
            "this priority class is reserved for the platform; use `avactl-normal` or `avactl-low`",
        ),
        AdmissionRule(
            "member-priority",
            "variables.class == '' || "
            f"variables.class in {_annotation_list(names.MEMBER_PRIORITIES, DEFAULT_PRIORITIES)} || "
            "variables.pod.?priority.orValue(1) <= 0 || variables.platform",
            "pods without a spec may have at most the Team's `memberPriority`; use a lower class such as `avactl-low`, "
            "or declare a spec",
        ),
        AdmissionRule(
            "service-account",
            f"variables.pod.?serviceAccountName.orValue('') in ['', 'default', '{RUN_ACCOUNT}'] || variables.platform",
            f"other service accounts are reserved for the platform; use `serviceAccountName: {RUN_ACCOUNT}`",
        ),
        AdmissionRule(
            "tolerations",
            f"variables.pod.?tolerations.orValue([]).all(t, t.?key.orValue('') in "
            f"{cel_strings((*tolerated, names.CAPACITY) if spot else tolerated)})",
            f"pods may tolerate only the taints of node pools; keep only tolerations of {', '.join(tolerated)}",
        ),
        AdmissionRule(
            "runtime-class",
            "variables.pod.?runtimeClassName.orValue('') == ''",
            "a runtime class changes the isolation and tolerations of a pod; remove `runtimeClassName`",
        ),
        AdmissionRule(
            "termination",
            f"variables.pod.?terminationGracePeriodSeconds.orValue(0) <= {LONGEST_GRACE}",
            f"reclaimed GPUs must be free soon; set `terminationGracePeriodSeconds` to at most {LONGEST_GRACE}",
        ),
        # Also without `gracePeriodSeconds: 0` of their own, evictions and the garbage collector would force a deletion.
        AdmissionRule(
            "termination-at-once",
            "variables.pod.?terminationGracePeriodSeconds.orValue(1) != 0 || variables.platform",
            "a deleted pod would be gone, and its devices be given to others, before it has stopped; set "
            "`terminationGracePeriodSeconds` to 1 or more",
        ),
        AdmissionRule(
            "gpu-variables",
            f"variables.containers.all(c, c.?env.orValue([]).all(e, !e.name.matches('{names.GPU_VARIABLE_PATTERN}') || "
            f"e.name.matches('{names.CHOOSING_VARIABLE_PATTERN}') || "
            f"e.?value.orValue('') == 'void' || (e.name == '{VISIBLE_DEVICES}' && "
            f'e.?valueFrom.?fieldRef.?fieldPath.orValue("") == "{DEVICES_FIELD}")))',
            f"the variable makes the container runtime inject devices; set {VISIBLE_DEVICES} to `void`, or by "
            f"`fieldRef` to {DEVICES_FIELD}, and remove the others: {', '.join(names.GPU_VARIABLES[1:])} and other "
            "vendors' *_VISIBLE_DEVICES",
        ),
    ]
    if copiers := _template_copiers(item):
        rules.append(
            AdmissionRule(
                "copied-account",
                f"!(request.userInfo.username in {cel_strings(tuple(copiers))}) || "
                f"variables.pod.?serviceAccountName.orValue('') in ['', 'default', '{RUN_ACCOUNT}'] || "
                f"variables.pod.?serviceAccountName.orValue('') in {_annotation_list(names.SERVICE_ACCOUNTS, ())} || "
                # The Jobs of a training by several roles have accounts of their own, with rights on these Jobs only.
                f"variables.pod.serviceAccountName.matches('^' + object.metadata.?labels[?'{names.PIPELINE}']"
                f".orValue('/') + '(-[a-z0-9-]+)?-({'|'.join(_JOB_ACCOUNTS)})$')",
                f"the daemons of avactl start pods with `{RUN_ACCOUNT}` and the Team's `serviceAccounts` only",
            )
        )
    if spot:
        rules.append(
            AdmissionRule(
                "spot",
                f"variables.pod.?tolerations.orValue([]).all(t, t.?key.orValue('') != '{names.CAPACITY}') || "
                "variables.platform",
                "pods without a spec do not run on spot machines; remove the toleration, or declare a spec with `spot`",
            )
        )
    if item.spec.daemons.scheduler:
        rules.insert(
            0,
            AdmissionRule(
                "scheduler-name",
                f"variables.pod.?schedulerName.orValue('') == '{names.SCHEDULER_NAME}'",
                f"other schedulers ignore team quotas; set `schedulerName: {names.SCHEDULER_NAME}`",
            ),
        )
    return [*rules, *_image_rules(item, program)]


def _image_rules(item: Item[ClusterSpec], program: Program) -> list[AdmissionRule]:
    """Rules for clusters with GPUs of NVIDIA or AMD, whose images ask for all GPUs of the machine, unless the pod says
    otherwise. A container that gets its GPUs from NVIDIA's device plugin alone is not to say so: the plugin does."""
    rules = []
    pools = nvidia_pools(program, item.name)
    if uses_amd_gpus(program, item.name):
        rules.append(
            AdmissionRule(
                "gpu-visibility",
                f"variables.containers.all(c, {_sets(AMD_VISIBLE_DEVICES)})",
                f"images can ask for all GPUs of a machine; set {AMD_VISIBLE_DEVICES} to `void` in each container, "
                "also in those that request GPUs: AMD's device plugin does not need it",
            )
        )
    if not pools:
        return rules
    says = _sets(VISIBLE_DEVICES)
    required = AdmissionRule(
        "gpu-visibility",
        f"variables.containers.all(c, {says})",
        f"images can ask for all GPUs of a machine; set {VISIBLE_DEVICES} to `void` in each container, or by "
        f"`fieldRef` to {DEVICES_FIELD} in those that request GPUs of NVIDIA",
    )
    plugin = tuple(
        sorted(
            {
                pool.spec.resource_name
                for pool in pools
                if pool.spec.kubelet_chooses or (pool.spec.allocation != "dra" and not item.spec.daemons.scheduler)
            }
        )
    )
    if not plugin:
        return [*rules, required]
    requests = f"c.?resources.?limits.orValue({{}}).exists(r, r in {cel_strings(plugin)})"
    prefix = "f.?prefix.orValue('')"
    return [
        *rules,
        required._replace(
            expression=f"variables.containers.all(c, {says} || {requests})",
            message=f"images can ask for all GPUs of a machine; set {VISIBLE_DEVICES} to `void` in each container that "
            "requests no GPUs of NVIDIA",
        ),
        AdmissionRule(
            "gpu-env-from",
            f"variables.containers.all(c, {says} || c.?envFrom.orValue([]).all(f, {prefix} != '' && "
            f"!'{VISIBLE_DEVICES}'.startsWith({prefix})))",
            f"`envFrom` can set {VISIBLE_DEVICES}; give it a `prefix` in containers that request GPUs, or use `env`",
        ),
    ]


def _sets(variable: str) -> str:
    """CEL: the container `c` sets the variable, which `envFrom` and images then do not."""
    return f"c.?env.orValue([]).exists(e, e.name == '{variable}')"


def _keeps_entries(field: str) -> str:
    """CEL: no entry of avactl's in this map of the metadata was added, changed or removed."""
    same = f"object.metadata.?{field}[?k].orValue('') == oldObject.metadata.?{field}[?k].orValue('')"
    return " && ".join(
        f"{side}.metadata.?{field}.orValue({{}}).all(k, !k.startsWith('{names.GROUP}/') || {same})"
        for side in ("object", "oldObject")
    )


def _annotation_rules() -> list[AdmissionRule]:
    # A pod is never created with them: controllers, of which some have all rights, copy annotations of templates.
    before = "(request.operation == 'UPDATE' ? oldObject.metadata.?annotations[?k].orValue('') : '')"
    pods = "authorizer.group('').resource('pods').subresource('binding')"
    binds = f"{pods}.namespace(request.namespace).check('create').allowed()"
    own = written_only_by_scheduler()
    theirs = [f"k.startsWith('{prefix}')" for prefix in RUNTIME_PREFIXES]
    theirs += [f"k.contains('{part}')" for part in RUNTIME_PARTS]
    return [
        AdmissionRule(
            "scheduler-annotations",
            f"{cel_strings(own)}.all(k, object.metadata.?annotations[?k].orValue('') == {before}) || "
            f"((request.operation == 'UPDATE' || request.subResource == 'binding') && {binds})",
            f"{' and '.join(own)} may be written only by the scheduler; remove them",
        ),
        AdmissionRule(
            "scheduler-requests",
            "request.operation != 'UPDATE' || "
            f"({_keeps_entries('annotations')} && {_keeps_entries('labels')}) || {binds}",
            f"annotations and labels {names.GROUP}/… of a pod cannot change; delete the pod and create another",
        ),
        AdmissionRule(
            "runtime-annotations",
            f"object.metadata.?annotations.orValue({{}}).all(k, !({' || '.join(theirs)}))",
            "the annotation makes the container runtime inject devices; remove annotations that begin with "
            f"{' or '.join(RUNTIME_PREFIXES)} or contain {' or '.join(RUNTIME_PARTS)}",
        ),
    ]


_SERVICE_RULES = [
    AdmissionRule(
        "service-type",
        f"object.spec.?type.orValue('ClusterIP') in {_annotation_list(names.SERVICE_TYPES, DEFAULT_SERVICE_TYPES)}",
        "the Team does not allow this type of Service; use `type: ClusterIP`, or add it to `serviceTypes` of the Team. "
        "`ExternalName` is never allowed",
    ),
    AdmissionRule(
        "external-ips",
        "object.spec.?externalIPs.orValue([]).size() == 0",
        "external IPs can divert traffic of other tenants; remove `externalIPs`",
    ),
]
_VOLUME_RULES = [
    AdmissionRule(
        "volume-name",
        "object.spec.?volumeName.orValue('') == '' || "
        "authorizer.group('').resource('persistentvolumes').check('create').allowed()",
        "only the platform chooses the volume of a claim; remove `volumeName`, and set `storageClassName`",
    )
]
_CLAIM_RULES = [
    AdmissionRule(
        "claim-in-use",
        f"!('{names.CLAIM_FINALIZER}' in oldObject.metadata.?finalizers.orValue([])) || "
        f"'{names.CLAIM_FINALIZER}' in object.metadata.?finalizers.orValue([]) || {_IS_PLATFORM}",
        "without its finalizer, a claim can be deleted while a pod uses its devices, which others would then get; "
        "delete the pod",
    )
]
_DELETION_RULES = [
    AdmissionRule(
        "forced-deletion",
        "(request.operation == 'DELETE' ? (dyn(oldObject).spec.?nodeName.orValue('') == '' || "
        # So kubelets delete pods: once the phase is final (`canBeDeleted` in pkg/kubelet/status/status_manager.go).
        "dyn(oldObject).status.?phase.orValue('') in ['Succeeded', 'Failed'] || "
        # The API server fills in the pod's own; schedulers must be able to preempt pods from before its rule.
        "dyn(oldObject).spec.?terminationGracePeriodSeconds.orValue(1) == 0 || "
        "dyn(request).options.?gracePeriodSeconds.orValue(1) != 0) : "
        f"dyn(object).?deleteOptions.?gracePeriodSeconds.orValue(1) != 0) || {_IS_PLATFORM}",
        "the pod would go on on its node, with devices that others get; delete it with a grace period, of 1 second or "
        "more",
    )
]
