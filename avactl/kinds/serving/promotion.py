"""Promotions: a service gets the values of another one that has proven them, by commits to its own spec.

The plan is on the cluster of the target, in the system namespace, where the team cannot write. The clusters have only
git in common: each records the health of its own service there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import ceil
from typing import Any

from avactl.contracts.delivery import (
    HEALTH_KEY,
    PROMOTION_KEY,
    HealthPlan,
    PromotedSpec,
    PromotedValues,
    PromotionPlan,
    value_digest,
)
from avactl.contracts.document import dump
from avactl.contracts.names import (
    CONFIG_LABEL,
    DELIVERY_DAEMON,
    HEALTH_REPORT,
    PROMOTED_VALUES,
    PROMOTION_CONFIG,
    PROMOTION_STATE,
    PROMOTION_STATE_PREFIX,
)
from avactl.diagnostics import Diagnostic, Note, Reference
from avactl.diagnostics.suggest import did_you_mean
from avactl.kinds.cluster.delivery import commit_place
from avactl.kinds.serving.committed import rollout_hint, unknown_end_problems
from avactl.kinds.serving.parts.promotion import PROMOTE_FROM, PromoteFrom, promoted_fields
from avactl.kinds.serving.rollout.lower import chosen_strategy
from avactl.kinds.serving.spec import ServingDeployment, ServingDeploymentSpec
from avactl.program.lowering import k8s
from avactl.program.lowering.rights import account_subject, build_role
from avactl.program.manifest import Manifest
from avactl.program.ownership import Owned
from avactl.program.program import Item, Program
from avactl.spec.documents.value_path import PathEntry, parse_path, value_at
from avactl.spec.platform.delivery import Delivery
from avactl.spec.schema.values import duration_seconds

COMPONENT = "promotion"
STATE = Owned("ConfigMap", ("data",), "the delivery daemon, in the ConfigMap `promotion-state.NAMESPACE.NAME`")
_PATH = ("spec", "promoteFrom")
Service = Item[ServingDeploymentSpec]


def source_of(item: Service, program: Program) -> Service | None:
    """Return the service that a service is promoted from; None if it has none, or an unknown one."""
    chosen = item.spec.promote_from
    return None if chosen is None else program.find_kind(ServingDeployment, chosen.service, item.team)


def with_promotion(item: Service, program: Program, objects: list[Manifest]) -> list[Manifest]:
    """Return the objects of a service with the plan of its promotion, and with the digests by which the health of its
    pods is that of certain values.
    """
    values = _promoted_values(item, program)
    for manifest in objects:
        if values and manifest.kind == "Deployment" and chosen_strategy(item.spec) is not None:
            manifest.body["metadata"].setdefault("annotations", {})[PROMOTED_VALUES] = values
    return [*objects, *_promotion_objects(item, program)]


def _promoted_values(item: Service, program: Program) -> str:
    """Return the digests of the values that are promoted from a service or to it; "" without a promotion."""
    source = source_of(item, program)
    paths = set() if source is None else set(promoted_fields(item.doc.value, source.doc.value))
    for target in _targets(program).get(item.key, ()):
        paths.update(promoted_fields(target.doc.value, item.doc.value))
    if not paths:
        return ""
    digests = {path: value_digest(value_at(item.doc.value, path)) for path in sorted(paths)}
    return dump(PromotedValues(digests))


def _promotion_objects(item: Service, program: Program) -> list[Manifest]:
    """Return the plan of the promotion to a service, what the daemon writes, and the reports of both services."""
    chosen, source = item.spec.promote_from, source_of(item, program)
    if chosen is None or source is None:
        return []
    system = program.cluster_spec(item.cluster).system_namespace
    window, rollout = ceil(duration_seconds(chosen.healthy_for)), chosen_strategy(item.spec) is not None
    plan = PromotionPlan(
        team=str(item.team),
        source=_spec_of(source),
        target=_spec_of(item),
        fields=tuple(promoted_fields(item.doc.value, source.doc.value)),
        terms=value_digest(value_at(item.doc.value, PROMOTE_FROM)),
        window=window,
        by=chosen.by,
        rollout=rollout,
    )
    name = f"{item.ns}.{item.name}"
    plan_map = k8s.config_map(
        item,
        item.cluster,
        f"{COMPONENT}.{name}",
        system,
        {PROMOTION_KEY: dump(plan, indent=True)},
        component=COMPONENT,
        extra_labels={CONFIG_LABEL: PROMOTION_CONFIG},
    )
    reports = [_build_report(item, source, program, "source", HealthPlan(**_place(source), window=window))]
    if rollout:
        own = HealthPlan(**_place(item), window=window, fields=plan.fields)
        reports.append(_build_report(item, item, program, "target", own))
    return [plan_map, *_build_state(item, f"{PROMOTION_STATE_PREFIX}{name}", system), *reports]


def _build_state(item: Service, name: str, system: str) -> list[Manifest]:
    """Return the ConfigMap for users that the daemon writes, and its right to write that one."""
    state = k8s.build_manifest(
        item,
        item.cluster,
        "v1",
        "ConfigMap",
        name,
        namespace=system,
        component=COMPONENT,
        owned=(STATE.field,),
        extra_labels={CONFIG_LABEL: PROMOTION_STATE},
    )
    rules = [k8s.policy_rule([""], ["configmaps"], ["patch"], resourceNames=[name])]
    daemon = account_subject(DELIVERY_DAEMON, system)
    return [state, *build_role(item, item.cluster, name, system, rules, [daemon], COMPONENT)]


def _build_report(item: Service, service: Service, program: Program, side: str, document: HealthPlan) -> Manifest:
    """Return the ConfigMap that lets a service's cluster record its health in git."""
    return k8s.config_map(
        item,
        service.cluster,
        f"{HEALTH_REPORT}.{service.ns}.{item.name}.{side}",
        program.cluster_spec(service.cluster).system_namespace,
        {HEALTH_KEY: dump(document, indent=True)},
        component="report",
        extra_labels={CONFIG_LABEL: HEALTH_REPORT},
    )


def _spec_of(item: Service) -> PromotedSpec:
    return PromotedSpec(**_place(item), file=item.doc.file, document=item.spec_name)


def _place(item: Service) -> dict[str, Any]:
    return {"cluster": item.cluster, "namespace": str(item.ns), "service": item.name}


def _targets(program: Program) -> dict[Any, list[Service]]:
    """Return the services that are promoted from each service, by its key."""

    def find() -> dict[Any, list[Service]]:
        found: dict[Any, list[Service]] = {}
        for item in program.of_kind(ServingDeployment):
            source = source_of(item, program)
            if source is not None:
                found.setdefault(source.key, []).append(item)
        return found

    return program.memo("promotion targets", find)


# -- checks --------------------------------------------------------------------------------------------------------


def promotion_problems(item: Service, program: Program) -> Iterator[Diagnostic]:
    """Yield the problems of `spec.promoteFrom`."""
    chosen = item.spec.promote_from
    if chosen is None:
        return
    source = source_of(item, program)
    if source is None:
        if (ServingDeployment.KIND, chosen.service) not in program.broken:
            yield _unknown_problem(item, program, chosen)
        return
    cycle = _find_cycle(item, program)
    if cycle:
        yield Diagnostic(
            "conflicting-keys",
            f"{item} would be promoted from itself: " + " ← ".join(each.spec_name for each in cycle),
            item.span(*_PATH, "service"),
            hint="remove `promoteFrom` from the first one, which a pipeline or people change",
            notes=tuple(Note(each.span(*_PATH, "service"), str(each)) for each in cycle[1:-1]),
        )
        return
    yield from _field_problems(item, source, chosen)
    yield from _rollout_problems(item, source)
    yield from _cluster_problems(item, source, program, chosen)


def _unknown_problem(item: Service, program: Program, chosen: PromoteFrom) -> Diagnostic:
    services = program.of_kind(ServingDeployment)
    own = program.names(item.kind, item.team)
    owner = next((each.team for each in services if each.spec_name == chosen.service), None)
    message = f"team {item.team} has no {ServingDeployment.KIND} `{chosen.service}`"
    hint = "declare it, or remove `promoteFrom`"
    if len(own.words) > 1:
        hint = did_you_mean(chosen.service, own, "services of the team", item.spec_name)
    if owner is not None:
        message += f": it belongs to team {owner}"
        hint = "a service is promoted from one of its own team"
    meant = "" if owner is not None else own.closest(chosen.service, item.spec_name) or ""
    about, span = Reference(item.kind, chosen.service, meant), item.span(*_PATH, "service")
    return Diagnostic("missing-reference", message, span, hint=hint, reference=about)


def _find_cycle(item: Service, program: Program) -> list[Service]:
    """Return the services from a service back to itself, each promoted from the next one; none without a cycle."""
    chain = [item]
    while (source := source_of(chain[-1], program)) is not None:
        chain.append(source)
        if source is item:
            return chain
        if source in chain[:-1]:
            return []  # of others, which say so themselves
    return []


def _field_problems(item: Service, source: Service, chosen: PromoteFrom) -> Iterator[Diagnostic]:
    notes = (Note(source.span("metadata", "name"), "promoted from"),)
    fields = promoted_fields(item.doc.value, source.doc.value)
    if source.spec.models is not None:
        yield Diagnostic(
            "conflicting-keys",
            f"{source} loads its `models` while it runs, and its pods stay ready without one that cannot be loaded: "
            "nothing proves a version of it",
            item.span(*_PATH, "service"),
            hint=f"write `model: {{…}}` in {source.spec_name}, and a service for each other one",
            notes=(Note(source.span("spec", "models", key=True), "loaded while the pods run"),),
        )
        return
    if chosen.fields is None and item.spec.models is not None:
        yield Diagnostic(
            "conflicting-keys",
            f"{item} and {source} have no model in common: one has `model`, and the other `models`",
            item.span(*_PATH, "service"),
            hint="write `model` in both, or `fields: [spec.runtime.image]`",
            notes=notes,
        )
        return
    yield from _not_editable((item,), PROMOTE_FROM, item.span(*_PATH, key=True))
    for index, path in enumerate(fields):
        at = item.span(*_PATH, "fields", index) if chosen.fields is not None else item.span(*_PATH, "service")
        values = [value_at(each.doc.value, path) for each in (item, source)]
        if all(value is None for value in values):
            yield Diagnostic(
                "missing-reference",
                f"neither {item} nor {source} has `{path}`",
                at,
                hint=f"write it in {source.doc.file}, or name another path: the default is what both models and "
                "runtimes have",
                notes=notes,
            )
            continue
        yield from _not_editable((item, source), path, at)


def _not_editable(services: Iterable[Service], path: str, at: Any) -> Iterator[Diagnostic]:
    """Yield a problem if a value is not in the service's own YAML document, where the daemon reads and changes it."""
    for each in services:
        if not each.doc.file.endswith((".yaml", ".yml")):
            yield Diagnostic(
                "not-editable",
                f"{each} is declared by {each.doc.file}, and a promotion is a change of YAML",
                at,
                hint="declare it in YAML, or remove `promoteFrom`",
                notes=(Note(each.span("metadata", "name"), "the service"),),
            )
            return
        where = each.span(*_steps(each, path))
        if where.file != each.doc.file or not _is_own(each, path):
            place = where.file if where.file != each.doc.file else "another document"
            yield Diagnostic(
                "not-editable",
                f"`{path}` of {each} is decided by {place}, and a promotion reads and changes only its own document in "
                f"{each.doc.file}",
                at,
                hint="write it in the spec itself, and remove it there; or leave it out of `fields`",
                notes=(Note(where, "decides the value"),),
            )
            return


def _is_own(item: Service, path: str) -> bool:
    """Return True if the document of a service has all of a value, and no template, defaults or overlay changes it."""
    doc = item.doc
    own = next(each for each in doc.sources if (each.file, each.index) == (doc.file, doc.index))
    return value_digest(value_at(own.value, path)) == value_digest(value_at(doc.value, path))


def _steps(item: Service, path: str) -> list[str | int]:
    """Return a path of the document of a service, as far as it exists."""
    steps: list[str | int] = []
    for step in parse_path(path):
        index = step.find(item.doc.get(*steps)) if isinstance(step, PathEntry) else step
        if index is None:
            break
        steps.append(index)
    return steps


def _rollout_problems(item: Service, source: Service) -> Iterator[Diagnostic]:
    at = item.span(*_PATH, "service")
    for each in (source, item):
        own = "promote it by a pull request of your own"
        waiting = "remove `rollout` from the service: it is then promoted without waiting for it"
        yield from unknown_end_problems(each, at, own if each is source else waiting)
        if chosen_strategy(each.spec) is not None:
            continue
        if each is source:
            yield Diagnostic(
                "missing-key",
                f"{source} does not say when a version of it is proven: it has no canary and no blue-green rollout",
                at,
                hint=rollout_hint(each, "add `rollout: {blueGreen: {}}` or `rollout: {canary: {…}}` to it", own),
                notes=(Note(each.span("metadata", "name"), str(each)),),
            )
        else:
            yield Diagnostic(
                "no-rollout",
                f"{item} has no canary and no blue-green rollout: a promoted version gets all requests at once, and a "
                "bad one is not rolled back",
                at,
                severity="warning",
                hint=rollout_hint(
                    each,
                    "add `rollout: {canary: {steps: …, analysis: …}}` to the service",
                    "decide with `by: pullRequest`, after a test",
                ),
            )
    if not source.spec.max_surge:
        yield Diagnostic(
            "conflicting-keys",
            f"with `maxSurge: 0`, Kubernetes calls {source} available also while one of its pods is missing: a crash "
            "would not end its time of good health",
            at,
            hint=f"write `maxSurge: 1` in {source.spec_name}",
            notes=(Note(source.span("spec", "maxSurge"), "one pod fewer is allowed"),),
        )
    if not isinstance(source.spec.replicas, int):
        yield Diagnostic(
            "without-effect",
            f"{source} is scaled automatically: `healthyFor` begins anew with each pod that is added, and does not run "
            "without pods",
            at,
            severity="warning",
            hint="give it a fixed number: `replicas: 2`",
            notes=(Note(source.span("spec", "replicas"), "its replicas"),),
        )


def _cluster_problems(item: Service, source: Service, program: Program, chosen: PromoteFrom) -> Iterator[Diagnostic]:
    """Yield reasons why a cluster could not record the health of its service, or not commit."""
    own, at = program.cluster(item.cluster), item.span(*_PATH, "service")
    place = commit_place(own)
    for each in (source, item):
        cluster = program.cluster(each.cluster)
        found = commit_place(cluster)
        notes = (Note(cluster.span("spec", key=True), f"Cluster {cluster.name}, of {each}"),)
        if not cluster.spec.daemons.delivery or found is None:
            yield Diagnostic(
                "missing-daemon",
                f"the promotion of {item} needs the delivery daemon of cluster {cluster.name}, which does not run it",
                at,
                hint=f"write `daemons: {{delivery: true}}` in Cluster {cluster.name}, with `delivery: {{secret: "
                "NAME}`",
                notes=notes,
            )
        elif not found.secret:
            yield Diagnostic(
                "missing-key",
                f"the delivery daemon of cluster {cluster.name} has no credentials to record the health of {each} with",
                at,
                hint=f"add `delivery: {{secret: NAME}}` to Cluster {cluster.name}: a Secret in its system namespace "
                "with the keys `username` and `password`",
                notes=notes,
            )
        elif (cluster.spec.delivery or Delivery()).rollback == "never" and chosen_strategy(each.spec) is not None:
            yield Diagnostic(
                "conflicting-keys",
                f"cluster {cluster.name} leaves rejected versions in git, where a promotion takes them for good ones",
                at,
                hint=f"write `rollback: commit` in `delivery` of Cluster {cluster.name}",
                notes=(Note(cluster.span("spec", "delivery", "rollback"), "rejected versions stay"),),
            )
        elif place is not None and found.source != place.source:
            yield Diagnostic(
                "other-cluster",
                f"the specs of {item} come from {place.describe()}, and those of {source} from {found.describe()}",
                at,
                hint="let both clusters follow one branch of one repository",
                notes=notes,
            )
        if each is item and found is not None and chosen.by == "pullRequest":
            explicit = item.doc.get(*_PATH, "by") is not None
            span = item.span(*_PATH, "by") if explicit else item.span(*_PATH, key=True)
            yield from found.refuse_proposals(f"{item} is promoted by pull request", "by: commit", span, notes)
