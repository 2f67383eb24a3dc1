"""The Team kind: what it compiles to, and that tenants are apart on a real API server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from avactl.compiler import Compilation
from avactl.kinds.team.names import RUN_ACCOUNT
from avactl.program import registry
from avactl.program.dataset_access import TEAM_BUCKETS
from tests.kinds.compiling import DIGEST, apply, body, cached_path, codes, compiled, names, unchecked
from tools.controlplane import ApiError, ControlPlane, KubeClient
from tools.waiting import wait_until

CLUSTER = f"""
kind: Cluster
metadata: {{name: main}}
spec:
  images: {{alluxio: registry.example.com/alluxio{DIGEST}}}
  oidc: {{usernamePrefix: "oidc:", groupsPrefix: "oidc:"}}
---
"""
TIERS = """
---
kind: CacheTier
metadata: {name: read}
spec:
  cluster: main
  role: read
  workers: {tiers: [{medium: MEM, quota: 64Gi}]}
  underStores: [{mount: /raw, url: "s3://vision-raw"}]
---
kind: CacheTier
metadata: {name: write}
spec:
  cluster: main
  role: write
  workers: {tiers: [{medium: MEM, quota: 64Gi}]}
  underStores: [{mount: /results, url: "s3://results"}]
"""
VISION = """
kind: Team
metadata: {name: vision}
spec:
  members: {users: [ann], admins: [root], groups: [vision-dev], viewers: [auditors]}
  talksTo: [web]
  buckets:
    - {name: raw, url: "s3://vision-raw", access: read, tier: read}
    - {name: results-v2, url: "s3://results/vision", tier: write}
    - {name: archive, url: "s3://archive", secret: archive-s3}
"""
WEB = """
---
kind: Team
metadata: {name: web}
spec: {members: {users: [bob]}}
"""
PLATFORM = CLUSTER + VISION + WEB + TIERS


def own(result: Compilation, *kinds: str) -> list[Any]:
    """The objects of Cluster and Team themselves: these tests stand on their own feet."""
    return [manifest for manifest in result.manifests if manifest.item.kind in (kinds or ("Cluster", "Team"))]


def peers(policy: dict[str, Any], direction: str) -> list[Any]:
    end = {"ingress": "from", "egress": "to"}[direction]
    return [peer for rule in policy["spec"][direction] for peer in rule[end]]


def teams(found: list[Any]) -> list[str]:
    """The teams that a policy's peers name."""
    return [
        name
        for peer in found
        for expression in peer.get("namespaceSelector", {}).get("matchExpressions", [])
        for name in expression["values"]
    ]


def test_roles_are_bound_with_the_prefixes_of_the_cluster() -> None:
    result = compiled(PLATFORM)
    member = body(result, "RoleBinding", "avactl-member", "vision")["subjects"]
    assert [(subject["kind"], subject["name"]) for subject in member] == [
        ("User", "oidc:root"),
        ("User", "oidc:ann"),
        ("Group", "oidc:vision-dev"),
    ]
    assert names(result, "Role") == [
        "avactl-system/avactl-identity",
        "vision/avactl-admin",
        "vision/avactl-member",
        "vision/avactl-viewer",
        "web/avactl-member",
    ]


def test_only_admins_have_a_rule_on_secrets() -> None:
    result = compiled(PLATFORM)
    holders = set()
    for manifest in own(result, "Team"):
        for rule in manifest.body.get("rules", []):
            assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
            if "secrets" in rule["resources"]:
                holders.add(manifest.name)
    assert holders == {"avactl-admin"}


def test_talks_to_opens_both_ends_but_not_workspaces_and_jobs() -> None:
    result = compiled(PLATFORM)
    for team in ("vision", "web"):
        assert teams(peers(body(result, "NetworkPolicy", "allow-own", team), "ingress")) == [team]
    guests = body(result, "NetworkPolicy", "allow-teams", "vision")
    assert teams(peers(guests, "ingress")) == ["web"]
    assert guests["spec"]["podSelector"]["matchExpressions"][0]["values"] == [
        "pipeline",
        "processingjob",
        "servingdeployment",
        "trainingjob",
        "workspace",
    ]
    assert "web/allow-teams" not in names(result, "NetworkPolicy")
    assert teams(peers(body(result, "NetworkPolicy", "allow-egress", "web"), "egress")) == ["vision", "web"]
    assert teams(peers(body(result, "NetworkPolicy", "allow-egress", "vision"), "egress")) == ["vision"]


def test_nobody_reaches_a_cache_but_through_fuse() -> None:
    result = compiled(PLATFORM)
    assert "avactl-cache" not in str(body(result, "NetworkPolicy", "allow-egress", "vision"))


def test_a_service_that_is_exposed_opens_the_callers_egress() -> None:
    service = """
---
kind: ServingDeployment
metadata: {name: detect, team: web}
spec:
  model: {name: m, version: "1"}
  runtime: {name: custom, image: "registry.example.com/m:1", port: 8080}
  probe: {path: /health}
  exposeTo: [vision]
"""
    result = compiled(PLATFORM + service)
    assert teams(peers(body(result, "NetworkPolicy", "allow-egress", "vision"), "egress")) == ["vision", "web"]


@pytest.mark.parametrize(
    ("allowed", "blocks"),
    [
        ('["0.0.0.0/0"]', [{"cidr": "0.0.0.0/0", "except": ["169.254.169.254/32", "100.100.100.200/32"]}]),
        ('["10.0.0.0/8", "::/0"]', [{"cidr": "10.0.0.0/8"}, {"cidr": "::/0", "except": ["fd00:ec2::254/128"]}]),
        ('["169.254.169.254/32"]', [{"cidr": "169.254.169.254/32"}]),
        ("[]", []),
    ],
)
def test_egress_leaves_the_metadata_service_out(allowed: str, blocks: list[Any]) -> None:
    result = compiled(f"kind: Cluster\nmetadata: {{name: main}}\nspec: {{egressAllowed: {allowed}}}{WEB}")
    found = [
        peer["ipBlock"]
        for peer in peers(body(result, "NetworkPolicy", "allow-egress", "web"), "egress")[2:]
        if "ipBlock" in peer
    ]
    assert found == blocks


def test_a_bucket_is_a_volume_for_one_namespace_only() -> None:
    result = compiled(PLATFORM)
    volume = body(result, "PersistentVolume", "vision-bucket-raw")["spec"]
    assert cached_path(result, "vision-bucket-raw") == "read:/raw"
    assert (volume["claimRef"]["namespace"], volume["claimRef"]["name"]) == ("vision", "bucket-raw")
    assert volume["persistentVolumeReclaimPolicy"] == "Retain"
    assert volume["accessModes"] == ["ReadOnlyMany"]
    assert body(result, "PersistentVolume", "vision-bucket-results-v2")["spec"]["accessModes"] == ["ReadWriteMany"]
    assert names(result, "PersistentVolumeClaim")[:2] == ["vision/bucket-raw", "vision/bucket-results-v2"]
    assert body(result, "ConfigMap", TEAM_BUCKETS, "vision")["data"] == {
        "RAW": "s3://vision-raw",
        "RESULTS_V2": "s3://results/vision",
        "ARCHIVE": "s3://archive",
    }


def test_workspaces_know_the_urls_of_all_buckets() -> None:
    image = "registry.example.com/edit:1"
    users = {"vision": "ann", "web": "bob"}
    workspace = f"""
---
kind: Workspace
metadata: {{name: edit, team: TEAM}}
spec: {{user: USER, image: "{image}"}}
"""
    both = "".join(workspace.replace("TEAM", team).replace("USER", user) for team, user in users.items())
    result = compiled(PLATFORM + both)

    def sources(team: str) -> Any:
        return body(result, "StatefulSet", "edit", team)["spec"]["template"]["spec"]["containers"][0].get("envFrom")

    assert sources("vision") == [{"prefix": "AVACTL_BUCKET_", "configMapRef": {"name": TEAM_BUCKETS}}]
    assert sources("web") is None


def test_a_team_on_two_clusters_has_its_bucket_where_the_tier_is() -> None:
    result = compiled(PLATFORM + "\n---\nkind: Cluster\nmetadata: {name: west}")
    assert names(result, "Namespace", "west") == ["avactl-system", "vision", "web"]
    assert "vision/team-buckets" in names(result, "ConfigMap", "west")
    assert not names(result, "PersistentVolume", "west")


@pytest.mark.parametrize("policy", ["retain", "delete"])
def test_namespaces_stay_unless_the_team_says_delete(policy: str) -> None:
    result = compiled(f"{CLUSTER}kind: Team\nmetadata: {{name: web}}\nspec: {{deletionPolicy: {policy}}}")
    namespace = next(manifest for manifest in own(result, "Team") if manifest.kind == "Namespace")
    assert namespace.holds_data == (policy == "retain")


def test_labels_of_a_namespace() -> None:
    team = f"{CLUSTER}kind: Team\nmetadata: {{name: web}}\nspec: {{namespaces: [{{name: web, labels: LABELS}}]}}"
    found = body(compiled(team.replace("LABELS", "{owner: me}")), "Namespace", "web")["metadata"]["labels"]
    assert (found["owner"], found["avactl.dev/team"]) == ("me", "web")
    for own in ("pod-security.kubernetes.io/enforce", "avactl.dev/team", "kubernetes.io/metadata.name"):
        assert codes(unchecked(team.replace("LABELS", f"{{{own}: privileged}}"))) == ["invalid-value"]


def test_facts_count_people_once() -> None:
    result = compiled(PLATFORM)
    facts = registry.get_kind("Team").facts(result.program.get("Team", "vision"), result.program)
    assert facts["members"] == "2 users, 1 group, 1 viewing group"
    assert facts["buckets"] == "raw, results-v2, archive"


def test_a_broken_team_is_not_told_twice() -> None:
    """`talksTo` names a team whose own spec is wrong: that is one problem, not two."""
    broken = "kind: Team\nmetadata: {name: web}\nspec: {member: {}}"
    text = f"{CLUSTER}kind: Team\nmetadata: {{name: vision}}\nspec: {{talksTo: [web]}}\n---\n{broken}"
    assert codes(unchecked(text)) == ["unknown-key"]


# -- on a real API server ------------------------------------------------------------------------------------------

USERS = {
    "oidc:ann": [],
    "oidc:root": [],
    "oidc:bob": [],
    "oidc:eve": ["oidc:auditors"],
    "oidc:dev": ["oidc:vision-dev"],
}


@pytest.fixture(scope="module")
def plane(control_plane_binaries: None) -> Iterator[ControlPlane]:
    with ControlPlane(controller_manager=True, users=USERS) as running:
        yield running


@pytest.fixture(scope="module")
def admin(plane: ControlPlane) -> Iterator[KubeClient]:
    with plane.client() as client:
        apply(client, own(compiled(PLATFORM)))
        for namespace in ("vision", "web"):
            secret = {"metadata": {"name": "key", "namespace": namespace}, "stringData": {"key": "value"}}
            client.create({"apiVersion": "v1", "kind": "Secret", **secret})
        yield client


@pytest.fixture
def user(plane: ControlPlane, admin: KubeClient) -> Iterator[Callable[[str], KubeClient]]:
    clients: list[KubeClient] = []

    def connect(name: str) -> KubeClient:
        clients.append(plane.client(plane.token(f"oidc:{name}")))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


def pod(namespace: str, name: str, **more: Any) -> dict[str, Any]:
    security = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container = {"name": "main", "image": "registry.example.com/main:1", "securityContext": security}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "serviceAccountName": RUN_ACCOUNT,
            "automountServiceAccountToken": False,
            "containers": [container],
            **more,
        },
    }


def refused(act: Callable[..., object], *arguments: Any) -> bool:
    with pytest.raises(ApiError) as error:
        act(*arguments)
    return error.value.status == 403


def may(client: KubeClient, verb: str, resource: str, namespace: str, group: str = "") -> bool:
    name, _, subresource = resource.partition("/")
    attributes = {"verb": verb, "group": group, "resource": name, "subresource": subresource, "namespace": namespace}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    return bool(client.request("POST", path, body=review).body["status"]["allowed"])


def test_apply_again_changes_nothing(admin: KubeClient) -> None:
    manifests = own(compiled(PLATFORM), "Team")
    for name in ("bucket-raw", "bucket-results-v2"):
        admin.wait_for("v1", "PersistentVolumeClaim", name, "vision", until=bound)
    for each in manifests:
        if each.kind == "Job":  # its controller writes the status
            admin.wait_for("batch/v1", "Job", each.name, each.namespace, until=active)
    first, second = ([found["metadata"]["resourceVersion"] for found in apply(admin, manifests)] for _ in range(2))
    assert first == second


@pytest.mark.parametrize("name", ["ann", "dev", "root"])
def test_a_member_works_in_the_teams_namespace_and_nowhere_else(user: Callable[[str], KubeClient], name: str) -> None:
    member = user(name)
    member.create(pod("vision", name))
    assert [found["metadata"]["name"] for found in member.list("v1", "Pod", "vision")].count(name) == 1
    for verb in ("get", "create"):
        assert may(member, verb, "pods/exec", "vision")
    assert may(member, "get", "pods/log", "vision")
    member.delete("v1", "Pod", name, "vision")

    assert refused(member.list, "v1", "Pod", "web")
    assert refused(member.create, pod("web", name))
    assert refused(member.list, "v1", "Pod")
    assert refused(member.list, "v1", "Node")
    assert refused(member.list, "v1", "PersistentVolume")
    assert refused(member.get, "v1", "Secret", "key", "web")


@pytest.mark.parametrize("name", ["ann", "dev", "root"])
def test_members_do_not_write_what_the_controller_of_groups_copies(
    user: Callable[[str], KubeClient], name: str
) -> None:
    """Its account may create pods that come from specs; the Cluster's `leaderWorkerSet` says which it is."""
    for group, resource in (
        ("leaderworkerset.x-k8s.io", "leaderworkersets"),
        ("disaggregatedset.x-k8s.io", "disaggregatedsets"),
    ):
        for verb in ("create", "update", "patch", "delete"):
            assert not may(user(name), verb, resource, "vision", group), f"{verb} {resource}"


def test_what_keeps_tenants_apart_is_out_of_a_members_reach(user: Callable[[str], KubeClient]) -> None:
    ann = user("ann")
    head = {"apiVersion": "v1", "kind": "Namespace"}
    assert refused(ann.patch, {**head, "metadata": {"name": "vision", "labels": {"avactl.dev/team": "web"}}})
    for group, resource in (
        ("networking.k8s.io", "networkpolicies"),
        ("rbac.authorization.k8s.io", "roles"),
        ("rbac.authorization.k8s.io", "rolebindings"),
        ("", "resourcequotas"),
        ("", "limitranges"),
        ("", "serviceaccounts"),
        ("", "serviceaccounts/token"),
    ):
        for verb in ("create", "update", "patch", "delete"):
            assert not may(ann, verb, resource, "vision", group), f"{verb} {resource}"


def test_pods_of_members_are_restricted(user: Callable[[str], KubeClient]) -> None:
    ann = user("ann")
    host = {"name": "host", "hostPath": {"path": "/mnt/avactl"}}
    assert refused(ann.create, pod("vision", "host", volumes=[host]))
    assert refused(ann.create, pod("vision", "net", hostNetwork=True))


def test_secrets_are_for_admins(user: Callable[[str], KubeClient]) -> None:
    root = user("root")
    assert root.get("v1", "Secret", "key", "vision")["data"]
    assert refused(root.list, "v1", "Secret", "web")
    for name in ("ann", "dev", "eve"):
        client = user(name)
        assert refused(client.get, "v1", "Secret", "key", "vision")
        assert refused(client.list, "v1", "Secret", "vision")


def test_viewers_only_look(user: Callable[[str], KubeClient]) -> None:
    eve = user("eve")
    eve.list("v1", "Pod", "vision")
    assert may(eve, "get", "pods/log", "vision")
    assert refused(eve.create, pod("vision", "eve"))
    assert refused(eve.list, "v1", "Pod", "web")
    for verb in ("get", "create"):
        assert not may(eve, verb, "pods/exec", "vision")
        assert not may(eve, verb, "pods/portforward", "vision")


def test_the_account_of_pods_has_no_rights(plane: ControlPlane, admin: KubeClient) -> None:
    with plane.client(plane.service_account_token("vision", RUN_ACCOUNT)) as account:
        for kind in ("Pod", "Secret", "ConfigMap", "ServiceAccount"):
            assert refused(account.list, "v1", kind, "vision")


def active(job: dict[str, Any]) -> bool:
    return bool(job.get("status", {}).get("active"))


def bound(claim: dict[str, Any]) -> bool:
    return bool(claim.get("status", {}).get("phase") == "Bound")


def test_another_team_cannot_bind_a_buckets_volume(admin: KubeClient, user: Callable[[str], KubeClient]) -> None:
    bob = user("bob")
    spec = {
        "accessModes": ["ReadOnlyMany"],
        "resources": {"requests": {"storage": "1Mi"}},
        "storageClassName": "",
        "volumeName": "vision-bucket-raw",
    }
    theft = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "theft", "namespace": "web"}}
    # A policy takes effect some time after it was created.
    wait_until(lambda: bob.refusal({**theft, "spec": spec}))
    with pytest.raises(ApiError, match="volume-name: "):
        bob.create({**theft, "spec": spec})
    # And where the platform binds it: the volume names its claim.
    admin.create({**theft, "spec": spec})
    admin.wait_for("v1", "PersistentVolumeClaim", "bucket-raw", "vision", until=bound)
    volume = admin.get("v1", "PersistentVolume", "vision-bucket-raw")
    assert volume["spec"]["claimRef"]["namespace"] == "vision"
    assert not bound(admin.get("v1", "PersistentVolumeClaim", "theft", "web"))
