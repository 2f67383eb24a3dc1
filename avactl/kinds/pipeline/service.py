"""The service of a pipeline: which of its models gets the new version, and where the spec says so."""

from __future__ import annotations

from collections.abc import Iterator

from avactl.diagnostics import Diagnostic, Note, Reference
from avactl.diagnostics.suggest import did_you_mean
from avactl.kinds.cluster.delivery import commit_place
from avactl.kinds.pipeline.spec import Deploy, PipelineSpec
from avactl.kinds.pipeline.steps import versions_directory
from avactl.kinds.serving.committed import rollout_hint, unknown_end_problems
from avactl.kinds.serving.parts.models import ServedModel
from avactl.kinds.serving.rollout.lower import chosen_strategy
from avactl.kinds.serving.spec import ServingDeployment, ServingDeploymentSpec
from avactl.kinds.team.buckets import relative_path
from avactl.program.program import Item, Program
from avactl.spec.platform.delivery import Delivery

_DEPLOY_PATH = ("spec", "deploy")


def service_of(item: Item[PipelineSpec], program: Program) -> Item[ServingDeploymentSpec] | None:
    """Return the service that the pipeline deploys to."""
    deploy = item.spec.deploy
    return None if deploy is None else program.find_kind(ServingDeployment, deploy.service, item.team)


def deployed_model(deploy: Deploy, service: Item[ServingDeploymentSpec]) -> tuple[int | None, ServedModel] | None:
    """Return the model that gets new versions, with its index in `models`, None for `model`; None if it is unclear."""
    name, only = deploy.model, service.spec.model
    if only is not None:
        return (None, only) if name in (None, only.name) else None
    found = [(index, model) for index, model in enumerate(service.spec.served) if name is None or model.name == name]
    return found[0] if len(found) == 1 else None


def value_paths(index: int | None, model: ServedModel) -> dict[str, str]:
    """Return the paths, as `avactl set` takes them, of the model's URL and version."""
    base = "spec.model" if index is None else f"spec.models[name={model.name}]"
    return {"url": f"{base}.url", "version": f"{base}.version"}


def live_urls(item: Item[PipelineSpec], program: Program) -> list[str]:
    """Return the URLs below the pipeline's directory that services of all teams serve, sorted."""
    found: set[str] = set()
    for service in program.of_kind(ServingDeployment):
        for model in service.spec.served:
            if model.url is not None and relative_path(versions_directory(item), model.url):
                found.add(model.url.rstrip("/"))
    return sorted(found)


def service_problems(item: Item[PipelineSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield the problems of `spec.deploy`."""
    deploy = item.spec.deploy
    if deploy is None:
        return
    service = service_of(item, program)
    if service is None:
        if (ServingDeployment.KIND, deploy.service) not in program.broken:
            yield _unknown_problem(item, program, deploy.service)
        return
    declared = Note(service.span("metadata", "name"), "the service")
    found = deployed_model(deploy, service)
    if found is None:
        yield _unclear_problem(item, deploy, service, declared)
        return
    index, model = found
    path: tuple[str | int, ...] = ("spec", "model") if index is None else ("spec", "models", index)
    for key in ("dataset", "path"):
        if getattr(model, key) is not None:
            yield Diagnostic(
                "conflicting-keys",
                f"{service} takes model `{model.name}` from `{key}`, and the pipeline deploys by its `url`",
                item.span(*_DEPLOY_PATH, "service"),
                hint=f"replace `{key}` in the service by `url: {versions_directory(item)}/VERSION`",
                notes=(Note(service.span(*path, key, key=True), f"`{key}`"),),
            )
            return
    if model.versions is not None:
        yield Diagnostic(
            "conflicting-keys",
            f"{service} serves several `versions` of model `{model.name}`, and the pipeline sets one `version`",
            item.span(*_DEPLOY_PATH, "service"),
            hint="write `version` instead of `versions` in the service",
            notes=(Note(service.span(*path, "versions", key=True), "`versions`"),),
        )
        return
    if model.url is not None and not relative_path(versions_directory(item), model.url):
        yield Diagnostic(
            "not-published-there",
            f"{service} serves `{model.url}`, and the pipeline publishes below `{versions_directory(item)}`: "
            "the first run "
            "replaces a model that it has not published",
            item.span(*_DEPLOY_PATH, "service"),
            severity="warning",
            hint=f"publish to the directory of that URL, or begin with `url: {versions_directory(item)}/1`",
            notes=(Note(service.span(*path, "url"), "the model that is served"),),
        )
    yield from _not_editable(item, service, path)
    if service.spec.promote_from is not None:
        yield Diagnostic(
            "conflicting-keys",
            f"{item} deploys to {service}, which is promoted from {service.spec.promote_from.service}: each replaces "
            "what the other has set",
            item.span(*_DEPLOY_PATH, "service"),
            hint=f"deploy to `{service.spec.promote_from.service}`",
            notes=(Note(service.span("spec", "promoteFrom", key=True), "the promotion"),),
        )
    hint = "remove `rollout` from the service: the pipeline then deploys without waiting for it"
    yield from unknown_end_problems(service, item.span(*_DEPLOY_PATH, "service"), hint)
    if chosen_strategy(service.spec) is None:
        yield Diagnostic(
            "no-rollout",
            f"{service} has no canary and no blue-green rollout: new models get all requests at once, and a bad one "
            "is not rolled back",
            item.span(*_DEPLOY_PATH, "service"),
            severity="warning",
            hint=rollout_hint(
                service,
                "add `rollout: {canary: {steps: …, analysis: …}}` to the service",
                "bound all metrics that matter in `validation`",
            ),
            notes=(declared,),
        )
    if service.cluster != item.cluster:
        yield from _other_cluster_problems(item, program, service)


def _other_cluster_problems(
    item: Item[PipelineSpec], program: Program, service: Item[ServingDeploymentSpec]
) -> Iterator[Diagnostic]:
    """Yield reasons why a commit of the pipeline would not reach a service on another cluster, or its end be unknown.

    The two clusters have nothing in common but the branch of the specs and the object store.
    """
    own, other = program.cluster(item.cluster), program.cluster(service.cluster)
    at, needs = item.span(*_DEPLOY_PATH, "service"), chosen_strategy(service.spec) is not None
    notes = (Note(other.span("spec", key=True), f"Cluster {other.name}, of {service}"),)
    commits, follows = commit_place(own), commit_place(other)
    if commits is not None and follows is not None and commits.source != follows.source:
        yield Diagnostic(
            "other-cluster",
            f"{item} commits to {commits.describe()}, and cluster {other.name}, of {service}, follows "
            f"{follows.describe()}: its service would not change",
            at,
            hint="let both clusters follow one branch of one repository, or remove `deploy` and promote versions by "
            "hand",
            notes=notes,
        )
    if not needs:
        return
    if not other.spec.daemons.delivery or follows is None:
        yield Diagnostic(
            "missing-daemon",
            f"{item} learns how rollouts of {service} end from the delivery daemon of cluster {other.name}, which does "
            "not run it",
            at,
            hint=f"write `daemons: {{delivery: true}}` in Cluster {other.name}, with `delivery: {{secret: NAME}}`",
            notes=notes,
        )
    elif not follows.secret:
        yield Diagnostic(
            "missing-key",
            f"the delivery daemon of cluster {other.name} has no credentials to record with how rollouts of {service} "
            "end",
            at,
            hint=f"add `delivery: {{secret: NAME}}` to Cluster {other.name}: a Secret in its system namespace with the "
            "keys `username` and `password`",
            notes=notes,
        )
    elif (other.spec.delivery or Delivery()).rollback == "never":
        yield Diagnostic(
            "conflicting-keys",
            f"cluster {other.name} leaves rejected versions in git, and {item} on another cluster would take them for "
            "live ones",
            at,
            hint=f"write `rollback: commit` in `delivery` of Cluster {other.name}",
            notes=(Note(other.span("spec", "delivery", "rollback"), "rejected versions stay"),),
        )


def _unknown_problem(item: Item[PipelineSpec], program: Program, name: str) -> Diagnostic:
    services = program.of_kind(ServingDeployment)
    own = program.names(ServingDeployment.KIND, item.team)
    owner = next((each.team for each in services if each.spec_name == name), None)
    message = f"team {item.team} has no {ServingDeployment.KIND} `{name}`"
    hint = did_you_mean(name, own, "services of the team") if own.words else "declare it, or remove `deploy`"
    if owner is not None:
        message += f": it belongs to team {owner}"
        hint = "a pipeline changes services of its own team; publish, and let that team deploy"
    meant = "" if owner is not None else own.closest(name) or ""
    about, span = Reference(ServingDeployment.KIND, name, meant), item.span(*_DEPLOY_PATH, "service")
    return Diagnostic("missing-reference", message, span, hint=hint, reference=about)


def _unclear_problem(
    item: Item[PipelineSpec], deploy: Deploy, service: Item[ServingDeploymentSpec], declared: Note
) -> Diagnostic:
    names = [model.name for model in service.spec.served]
    wanted = deploy.model
    if wanted is None:
        return Diagnostic(
            "missing-key",
            f"{service} has {len(names)} models, and `deploy` does not say which one gets new versions",
            item.span(*_DEPLOY_PATH, key=True),
            hint=f"add `model: {names[0]}`, or another of them",
            notes=(declared,),
        )
    return Diagnostic(
        "missing-reference",
        f"{service} has no model `{wanted}`",
        item.span(*_DEPLOY_PATH, "model"),
        hint=did_you_mean(wanted, names, "models of the service"),
        notes=(declared,),
    )


def _not_editable(
    item: Item[PipelineSpec], service: Item[ServingDeploymentSpec], path: tuple[str | int, ...]
) -> Iterator[Diagnostic]:
    """Yield a problem if a commit cannot set the URL in the document of the service."""
    where = service.span(*path, "url")
    if not service.doc.file.endswith((".yaml", ".yml")):
        yield Diagnostic(
            "not-editable",
            f"{service} is declared by {service.doc.file}, and a pipeline deploys by a change of YAML",
            item.span(*_DEPLOY_PATH, "service"),
            hint="declare the service in YAML, or remove `deploy`",
            notes=(Note(service.span("metadata", "name"), "the service"),),
        )
    elif where.file != service.doc.file:
        yield Diagnostic(
            "not-editable",
            f"the URL of the model of {service} is decided by {where.file}, so a change of {service.doc.file} has no "
            "effect",
            item.span(*_DEPLOY_PATH, "service"),
            hint=f"write `url` and `version` in {service.doc.file}, and remove them there",
            notes=(Note(where, "decides the URL"),),
        )
