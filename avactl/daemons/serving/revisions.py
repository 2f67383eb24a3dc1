"""Versions of a service: ReplicaSets that the daemon or the Deployment controller has made, and their Services.

The ReplicaSet of the stable version is the Deployment's own outside of rollouts (*attached*): the Deployment controller
scales it and counts its pods. In a rollout both versions are *detached*: their labels do not match the Deployment's
selector and their owner reference is no controller's, so the Deployment controller leaves them alone. Neither touches
the pods. Source: ClaimReplicaSets in k8s.io/kubernetes/pkg/controller/controller_ref_manager.go.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any, NamedTuple

import orjson

from avactl.contracts import names

HASH_LABEL = "pod-template-hash"
COMPONENT_LABEL = "app.kubernetes.io/component"
DETACHED = names.REVISION_COMPONENT
"""Component label of a detached ReplicaSet; its pods keep the service's."""
REJECTED = names.REJECTED_VERSION
NUMBER = "deployment.kubernetes.io/revision"
"""Annotation of the Deployment controller: it counts versions by it."""
_HASH_LENGTH = 10
HASH = re.compile(r"[a-z0-9]{1,20}").fullmatch
"""Hash of a pod template, as this daemon and the Deployment controller write it."""

Body = dict[str, Any]


class ServingRevision(NamedTuple):
    """One version, as observed."""

    hash: str
    body: Body
    attached: bool
    replicas: int
    ready: int
    """Ready pods; 0 as long as the controller has not seen the current number of replicas."""
    unready: int
    """Pods that are not ready, with the same exception."""
    rejected: bool
    failure: str
    """Why the controller cannot create pods; empty if it can."""

    @property
    def name(self) -> str:
        name: str = self.body["metadata"]["name"]
        return name

    @property
    def template(self) -> Body:
        """The pod template without its hash, to compare with the Deployment's."""
        known = self.body["spec"]["template"]
        template: Body = orjson.loads(known) if isinstance(known, bytes) else deepcopy(known)
        template.get("metadata", {}).get("labels", {}).pop(HASH_LABEL, None)
        return template


def template_of(deployment: Mapping[str, Any]) -> Body:
    """Return the pod template of a Deployment, in the form of `ServingRevision.template`."""
    template: Body = deepcopy(deployment["spec"]["template"])
    template.get("metadata", {}).get("labels", {}).pop(HASH_LABEL, None)
    template.setdefault("metadata", {})
    return template


def templates_equal(one: Body, other: Body) -> bool:
    """Return True if two templates start the same pods. Both were read from one API server, with its defaults."""
    first, second = deepcopy(one), deepcopy(other)
    for each in (first, second):
        each.setdefault("metadata", {}).pop("creationTimestamp", None)
    return first == second


def revisions_of(deployment: Mapping[str, Any], owned: Iterable[Body]) -> dict[str, ServingRevision]:
    """Return the versions by hash, of ReplicaSets that this Deployment owns; those being deleted are left out."""
    found: dict[str, ServingRevision] = {}
    uid = deployment["metadata"]["uid"]
    for body in owned:
        metadata = body["metadata"]
        own = next((each for each in metadata.get("ownerReferences") or () if each.get("uid") == uid), None)
        hash = str((metadata.get("labels") or {}).get(HASH_LABEL, ""))
        if own is None or metadata.get("deletionTimestamp") or not HASH(hash):
            continue
        if not same_selector(deployment, body, hash):
            continue  # not a version of this service: a member's own
        status = body.get("status") or {}
        seen = status.get("observedGeneration", 0) >= metadata.get("generation", 0)
        failure = next(
            (
                str(each.get("message", ""))[:400]
                for each in status.get("conditions") or ()
                if each.get("type") == "ReplicaFailure" and each.get("status") == "True"
            ),
            "",
        )
        replicas = int(body["spec"].get("replicas", 1))
        ready = min(int(status.get("availableReplicas", 0)), replicas) if seen else 0
        found[hash] = ServingRevision(
            hash,
            body,
            bool(own.get("controller")),
            replicas,
            ready,
            replicas - ready if seen else 0,
            REJECTED in (metadata.get("annotations") or {}),
            failure,
        )
    return found


def same_selector(deployment: Mapping[str, Any], body: Body, hash: str) -> bool:
    """Return True if a ReplicaSet selects exactly the pods of one version of the service."""
    wanted = {**deployment["spec"]["selector"].get("matchLabels", {}), HASH_LABEL: hash}
    selector = body["spec"].get("selector") or {}
    return selector.get("matchLabels") == wanted and not selector.get("matchExpressions")


def find(revisions: Mapping[str, ServingRevision], template: Body) -> ServingRevision | None:
    """Return the version with this template: one that runs first, then the oldest."""
    matching = [each for each in revisions.values() if templates_equal(each.template, template)]
    return min(matching, key=lambda each: (not each.replicas, each.body["metadata"]["creationTimestamp"]), default=None)


def revision_number(revision: ServingRevision) -> int:
    """Return the number by which the Deployment controller counts its versions; 0 for one that it has not made."""
    text = str((revision.body["metadata"].get("annotations") or {}).get(NUMBER, ""))
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def new_hash(template: Body, taken: Iterable[str]) -> str:
    """Return the hash of a new version; `taken` are hashes of versions with other templates."""
    known, number = set(taken), 0
    while True:
        plain = {**template, "metadata": {k: v for k, v in template["metadata"].items() if k != "creationTimestamp"}}
        text = orjson.dumps([plain, number], option=orjson.OPT_SORT_KEYS)
        # No vowels, as in the hashes of Kubernetes: no words.
        digits = hashlib.sha256(text).hexdigest()[:_HASH_LENGTH].translate(str.maketrans("ae", "xz"))
        if digits not in known:
            return digits
        number += 1


def new_body(deployment: Mapping[str, Any], hash: str, replicas: int, *, attached: bool) -> Body:
    """Return the ReplicaSet of a new version."""
    metadata, spec = deployment["metadata"], deployment["spec"]
    template = template_of(deployment)
    template["metadata"] = {
        **{key: value for key, value in template["metadata"].items() if value is not None},
        "labels": {**template["metadata"].get("labels", {}), HASH_LABEL: hash},
    }
    labels, owners = revision_membership(deployment, hash, attached=attached)
    digest = (metadata.get("annotations") or {}).get(names.TEMPLATE_DIGEST, "")[:64]
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {
            "name": f"{metadata['name']}-{hash}",
            "namespace": metadata["namespace"],
            "labels": {**template["metadata"]["labels"], **labels},
            # As the Deployment controller copies it to a ReplicaSet of its own.
            **({"annotations": {names.TEMPLATE_DIGEST: digest}} if digest else {}),
            "ownerReferences": owners,
        },
        "spec": {
            "replicas": replicas,
            "minReadySeconds": spec.get("minReadySeconds", 0),
            "selector": {"matchLabels": {**spec["selector"].get("matchLabels", {}), HASH_LABEL: hash}},
            "template": template,
        },
    }


def revision_membership(
    deployment: Mapping[str, Any], hash: str, *, attached: bool
) -> tuple[dict[str, str], list[Body]]:
    """Return labels and owner references by which a ReplicaSet is the Deployment controller's, or not."""
    own = deployment["spec"]["selector"].get("matchLabels", {})
    labels = {HASH_LABEL: hash, COMPONENT_LABEL: own.get(COMPONENT_LABEL, "") if attached else DETACHED}
    owner: Body = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "name": deployment["metadata"]["name"],
        "uid": deployment["metadata"]["uid"],
    }
    if attached:
        owner["controller"] = True
    return labels, [owner]


def service_body(
    name: str, namespace: str, ports: Mapping[str, int], hash: str, selector: Mapping[str, str], owner: Body
) -> Body:
    """Return the Service of one version, which is deleted with its owner."""
    labels = {names.MANAGED_BY: names.MANAGER, HASH_LABEL: hash, COMPONENT_LABEL: DETACHED}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": labels,
            "ownerReferences": [owner],
        },
        "spec": {
            "selector": dict(selector),
            "ports": [{"name": each, "port": port, "targetPort": port} for each, port in ports.items()],
        },
    }


def owner_of(revision: ServingRevision) -> Body:
    """Return the reference by which an object is deleted with the ReplicaSet of a version."""
    uid = revision.body["metadata"]["uid"]
    return {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": revision.name, "uid": uid}
