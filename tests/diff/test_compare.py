"""Two compilations compared: what became of each spec, and what follows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import yaml

from avactl.change.diff import Disruption, compare
from avactl.change.diff.groups import group_intents
from avactl.change.diff.model import ABSENT
from avactl.change.diff.phrases import show_field
from avactl.compiler import PASSES, compile_tree
from avactl.compiler.config import load_config, rules_of
from avactl.compiler.driver import run_passes
from avactl.compiler.pass_state import PassState
from avactl.compiler.policies.evaluation import judge_specs
from avactl.spec.documents.yaml import load_yaml
from avactl.spec.repository.tree import MemoryTree
from tests.diff.sides import HEAD, PLATFORM, body, broken, changes, compiled, job, texts, the, with_bodies, workspace
from tests.work import calls

TEMPLATE = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "main", "image": "x:1"}]}}
TEAM = "kind: Team\nmetadata: {name: speech}\nspec: {members: {groups: [speech]}}"
CHECKPOINT = {"path": "s3://bucket/ckpt"}


def test_nothing_changed() -> None:
    assert changes([job()], [job()]).empty


def test_comments_order_and_written_defaults_are_no_change() -> None:
    one, other = job(), workspace()
    plain = compiled(one, other)
    assert compare(plain, compiled("# first\n" + other, one + "  # last")).empty
    assert compare(plain, compiled(job(retries=3), other)).empty
    assert changes([workspace(memory="8Gi", cpu=2)], [workspace(memory="8192Mi", cpu="2000m")]).empty


def test_order_of_environment_variables_is_a_change() -> None:
    diff = changes([job(env={"A": "1", "B": "$(A)"})], [job(env={"B": "$(A)", "A": "1"})])
    intent = the(diff, "j")
    assert [(c.path, c.op) for c in intent.spec] == [("spec.env", "reordered")]
    assert intent.op == "changed"
    assert intent.disruption == Disruption.REPLACE


def test_the_name_of_a_file_does_not_hide_a_spec() -> None:
    documents, _ = load_yaml("<avactl>/hardware/library/t4.yaml", f"{HEAD}{job()}".encode())
    platform, _ = load_yaml("platform.yaml", PLATFORM.encode())
    tree = MemoryTree({"avactl.yaml": "policies: {images-pinned: {}}\n"})
    rules = rules_of(load_config(tree)[0], ())
    base, head = (
        run_passes(PassState(tree, documents=(*platform, *more), rules=rules), PASSES[1:-1]) for more in ((), documents)
    )
    assert [intent.op for intent in compare(base, head).intents] == ["added"]
    assert rules is not None
    assert {found.rule for _, found in judge_specs(rules, tree, head.program.items, ())} == {"images-pinned"}


def test_a_job_that_grows() -> None:
    small = {"replicas": 1, "gpus": 8, "cpu": 8, "memory": "64Gi"}
    diff = changes([job(workers=small, checkpoint=CHECKPOINT)], [job(checkpoint=CHECKPOINT)])
    intent = the(diff, "j")
    assert (intent.op, intent.disruption) == ("changed", Disruption.REPLACE)
    assert texts(intent, "run") == ["pods restart and resume from the last checkpoint"]
    assert texts(intent, "quota") == ["quota vision 8 → 16 of 24 V100"]
    assert texts(intent, "capacity") == ["fits pool v100 (specs request 16 of 32 V100)"]
    assert diff.fits


def test_a_job_without_checkpoint_starts_from_the_beginning() -> None:
    diff = changes([job()], [job(command=["python", "train.py", "--epochs", "120"])])
    assert texts(the(diff, "j"), "run") == ["pods restart from the beginning: no checkpoint is configured"]


def test_a_renamed_job_leaves_its_checkpoint_volume_behind() -> None:
    old, new = (job(name, checkpoint={"volume": "100Gi"}) for name in ("a", "b"))
    intent = the(changes([old], [new]), "b")
    assert texts(intent, "run") == ["pods restart from the beginning: the new checkpoint volume is empty"]
    assert any("a-checkpoint is kept" in text for text in texts(intent, "data"))


def test_a_suspended_job() -> None:
    waiting, running = job(suspended=True), job()
    assert texts(the(changes([waiting], [running]), "j"), "run") == ["starts"]
    assert texts(the(changes([running], [waiting]), "j"), "run") == ["is stopped"]
    assert texts(the(changes([waiting], [job(suspended=True, args=["x"])]), "j"), "run") == [
        "takes effect when resumed: it is suspended"
    ]


def test_the_name_of_a_secret_is_no_secret() -> None:
    code = {"url": "https://git.example.com/a.git", "ref": "main"}
    old, new = (job(code={"git": {**code, "secret": name}}) for name in ("git-one", "git-two"))
    changed = {(c.path, c.old, c.new) for c in the(changes([old], [new]), "j").spec}
    assert changed == {("spec.code.git.secret", "git-one", "git-two")}


def test_quota_is_told_for_the_sum_of_the_team() -> None:
    eight = {"gpus": 8, "cpu": 8, "memory": "64Gi"}
    old = [job("a", workers=eight, strategy="single"), job("b", workers=eight, strategy="single")]
    diff = changes(old, [*old, job("c", workers=eight, strategy="single")])
    assert texts(the(diff, "c"), "quota") == ["quota vision 16 → 24 of 24 V100, 8 borrowed"]
    assert the(diff, "c").op == "added"
    assert the(diff, "c").disruption == Disruption.NONE


def test_specs_that_only_say_the_same_of_other_things_are_not_told() -> None:
    diff = changes([job(), workspace()], [job(retries=5), workspace()])
    assert [str(intent.key) for intent in diff.intents] == ["TrainingJob vision/j"]


def test_what_follows_from_another_spec_names_it() -> None:
    pinned = "registry.example.com/git@sha256:" + "c" * 64
    code = {"git": {"url": "https://git.example.com/a.git", "ref": "main"}}
    base = compiled(job(code=code))
    tree = base.tree
    assert pinned in tree.read("platform.yaml").decode()
    files = {
        path: tree.read(path).decode().replace("git@sha256:" + "c" * 64, "git@sha256:" + "9" * 64)
        for path in tree.paths()
    }
    diff = compare(base, compile_tree(MemoryTree(files)))
    intent = the(diff, "j")
    assert intent.op == "affected"
    assert texts(intent, "cause") == ["because of Cluster main"]
    assert the(diff, "main").op == "changed"
    assert [i.op for i in diff.intents] == ["changed", "affected"]


def test_a_shrinking_home_is_data_loss_and_comes_first() -> None:
    diff = changes([job(), workspace(storage="50Gi")], [job(retries=5), workspace(storage="20Gi")])
    first = diff.intents[0]
    assert (first.key.name, first.disruption, diff.disruption) == ("w", Disruption.DATA_LOSS, Disruption.DATA_LOSS)
    (loss,) = [c for c in first.consequences if c.level == "danger"]
    assert "w-home" in loss.text
    assert "50Gi → 20Gi" in loss.text
    assert "protected" in loss.text


def test_a_growing_home_is_not() -> None:
    assert the(changes([workspace(storage="20Gi")], [workspace(storage="50Gi")]), "w").disruption < Disruption.REPLACE


def test_a_removed_workspace_keeps_its_home() -> None:
    intent = the(changes([workspace()], []), "w")
    kept = [change for change in intent.objects if change.op == "kept"]
    assert [change.id.kind for change in kept] == ["PersistentVolumeClaim"]
    assert (intent.op, intent.disruption) == ("removed", Disruption.REPLACE)


def test_a_removed_workspace_with_policy_delete_loses_it() -> None:
    diff = changes([workspace(deletionPolicy="delete")], [])
    intent = the(diff, "w")
    assert intent.disruption == Disruption.DATA_LOSS
    assert texts(intent, "data") == ["deletes PersistentVolumeClaim vision/w-home with the data on it"]


def test_a_changed_deletion_policy_is_told() -> None:
    intent = the(changes([workspace()], [workspace(deletionPolicy="delete")]), "w")
    assert "its data will be deleted together with the spec" in texts(intent, "data")


def test_a_renamed_job() -> None:
    intent = the(changes([job("old", checkpoint=CHECKPOINT)], [job("new", checkpoint=CHECKPOINT)]), "new")
    assert intent.op == "renamed"
    assert intent.old_key is not None
    assert intent.old_key.name == "old"
    worker = next(change for change in intent.objects if change.id.kind == "Job")
    assert (worker.op, worker.id.name, worker.old_id and worker.old_id.name) == ("renamed", "new-worker", "old-worker")
    # What only follows from the name is not told.
    assert {field.path for field in worker.fields} == {
        "metadata.annotations[avactl.dev/run]",
        "spec.template.metadata.annotations[avactl.dev/run]",
    }


def test_a_renamed_workspace_says_where_the_data_stays_and_how_to_keep_it() -> None:
    moved = workspace("w2").replace("w2@", "w@")
    intent = the(changes([workspace()], [moved]), "w2")
    assert intent.op == "renamed"
    assert "PersistentVolumeClaim w-home is kept with its data; w2-home starts empty" in texts(intent, "data")
    assert any("objectName: w" in text for text in texts(intent, "data"))
    keeping = moved.replace("team: vision", "team: vision, objectName: w")
    kept = the(changes([workspace()], [keeping]), "w2")
    assert kept.op == "renamed"
    assert kept.disruption <= Disruption.METADATA, kept.objects


def test_another_user_is_another_workspace() -> None:
    diff = changes([workspace("alice")], [workspace("bob")])
    assert [(i.key.name, i.op) for i in diff.intents] == [("alice", "removed"), ("bob", "added")]


def test_a_job_that_moves_to_another_team() -> None:
    # Without GPUs, so that no quota is needed.
    cpu: dict[str, Any] = {"workers": {"cpu": 1}, "strategy": "single"}
    diff = changes([TEAM, job(**cpu)], [TEAM, job(team="speech", **cpu)])
    intent = the(diff, "j")
    assert (intent.op, str(intent.key)) == ("renamed", "TrainingJob speech/j")
    assert {change.id.namespace for change in intent.objects} == {"speech"}


def test_an_object_that_moves_to_another_spec_is_one_change() -> None:
    base, head = compiled(workspace()), compiled(workspace())
    one = with_bodies(base, (body("ConfigMap", data={"a": "1"}), {}))
    other = with_bodies(head, (body("ConfigMap", data={"a": "2"}), {}))
    (intent,) = compare(one, other).intents
    assert [(o.op, str(o.id)) for o in intent.objects] == [("changed", "ConfigMap vision/w")]


def test_fields_that_controllers_own_disturb_nothing() -> None:
    base = compiled(workspace())
    old, new = ({"replicas": n, "template": TEMPLATE, "selector": {}} for n in (1, 5))
    owned = {"owned": ("spec.replicas",)}
    (intent,) = compare(
        with_bodies(base, (body("Deployment", spec=old), owned)),
        with_bodies(base, (body("Deployment", spec=new), owned)),
    ).intents
    assert intent.disruption == Disruption.NONE
    assert intent.objects[0].fields[0].reason == "set by a controller"


def test_a_credential_of_the_base_is_covered() -> None:
    secret, other = "ghp_" + "a1B2" * 9, "s3cr3t-Passw0rd"
    base = compiled(workspace())
    env = [{"name": "GIT", "value": secret}, {"name": "DB_PASSWORD", "value": other}]
    old = {
        "template": {"spec": {"containers": [{"name": "main", "env": env, "args": ["--token", other, f"k={secret}"]}]}}
    }
    new = {"template": {"spec": {"containers": [{"name": "main"}]}}}
    conf = {
        "app.json": f'{{"password": "{other}"}}',
        "app.conf": f"# conf\nother=1\nurl=https://u:{secret}@example.com\n",
    }
    diff = compare(
        with_bodies(base, (body("Deployment", spec=old), {}), (body("ConfigMap", data=conf), {})),
        with_bodies(base, (body("Deployment", spec=new), {}), (body("ConfigMap", data={}), {})),
    )
    assert len(diff.intents[0].objects) == 2
    assert secret not in repr(diff)
    assert other not in repr(diff)


def test_a_base_with_errors() -> None:
    bad = job("b", strategy="allReduc")
    diff = compare(
        broken(job("a"), bad, workspace(storage="50Gi")), compiled(job("a", retries=9), job("b"), workspace())
    )
    assert [d.code for d in diff.base_problems] == ["invalid-value"]
    assert the(diff, "b").op == "repaired"
    assert the(diff, "a").op == "changed"
    # Objects of specs that are right are compared all the same: data loss is not missed.
    assert the(diff, "w").disruption == Disruption.DATA_LOSS


def test_what_depends_on_errors_of_the_base_is_not_called_changed() -> None:
    pool = "kind: NodePool\nmetadata: {name: extra}\nspec: {cluster: main, machineType: v100-pcie-8, count: 2, "
    bad, good = pool + "coutn: 1}", pool + "taints: [{key: nvidia.com/gpu, value: b}]}"
    diff = compare(broken(job(), bad), compiled(job(), good))
    assert the(diff, "extra").op == "repaired"
    follower = the(diff, "j")
    assert (follower.op, follower.objects, follower.objects_known) == ("affected", (), False)
    assert texts(follower) == ["because of NodePool extra"]


def test_new_warnings_are_told_and_old_ones_are_not() -> None:
    base = compiled(job())
    head = compiled(job(retries=4))
    assert compare(base, replace(head, diagnostics=base.diagnostics)).warnings == ()
    warned = broken(job(strategy="x"))
    warning = replace(warned.diagnostics[0], severity="warning")
    assert compare(base, replace(head, diagnostics=(warning,))).warnings == (warning,)


def test_facts_of_one_side() -> None:
    intent = the(changes([], [workspace()]), "w")
    assert intent.facts
    assert all(fact.old is ABSENT for fact in intent.facts)


def test_ten_thousand_objects_are_little_work_each() -> None:
    base = compiled(workspace())

    def side(image: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        found: list[tuple[dict[str, Any], dict[str, Any]]] = []
        for index in range(10_000):
            now = image if index % 100 == 0 else "x:1"
            template = {
                "spec": {"containers": [{"name": "main", "image": now, "env": [{"name": "A", "value": "1"}] * 3}]}
            }
            found.append((body("Deployment", f"d{index}", "apps/v1", spec={"template": template}), {}))
        return found

    old, new = with_bodies(base, *side("x:1")), with_bodies(base, *side("x:2"))
    assert len(compare(old, new).intents[0].objects) == 100
    # Not the first time, which imports modules.
    assert calls(lambda: compare(old, new)) < 30 * 10_000


def test_a_spec_that_asks_for_no_gpus_tells_of_no_quota() -> None:
    one, two = (job(workers={"cpu": n}, strategy="single") for n in (1, 2))
    assert texts(the(changes([one], [two]), "j"), "quota", "capacity") == []


# -- security ---------------------------------------------------------------------------------------------------------

SECRET = {"WANDB_MODE": "offline", "KEY": {"secret": {"name": "wandb", "key": "api"}}}
SHARED = "kind: Dataset\nmetadata: {name: clicks, team: ads}\nspec: {tier: read, sharedWith: [vision], versions: [V]}"
SHARED = SHARED.replace("V]", '{name: v1, url: "s3://imagenet/clicks"}]')
ADS = "kind: Team\nmetadata: {name: ads}"


def test_a_new_job_shows_what_it_may_reach() -> None:
    rich = job(env=SECRET, datasets=[{"name": "ads/clicks"}], strategy="mpi")
    assert texts(the(changes([ADS, SHARED], [ADS, SHARED, rich]), "j"), "security") == [
        "Secret wandb",
        "data of ads/clicks",
        "service account j-follower",
        "service account j-launcher",
        "runs mpirun python train.py --epochs 90 in example.com/train:1",
        "env WANDB_MODE, KEY",
    ]


KUBECTL = next(
    document["spec"]["images"]["kubectl"] for document in yaml.safe_load_all(PLATFORM) if document["kind"] == "Cluster"
)
POD = {
    "serviceAccountName": "trainer",
    "automountServiceAccountToken": True,
    "securityContext": {"allowPrivilegeEscalation": True},
    "sidecars": [
        {"name": "quiet", "image": "example.com/miner:1", "args": ["--pool"]},
        {
            "name": "tool",
            "image": KUBECTL,
            "command": ["sh", "-c", "kubectl delete"],
            "securityContext": {"capabilities": {"add": ["SETUID"]}},
        },
    ],
    "volumes": [
        {"name": "a", "mountPath": "/a", "nfs": {"server": "nfs.example.com", "path": "/home"}},
        {"name": "b", "mountPath": "/b", "csi": {"driver": "smb.csi.k8s.io", "nodePublishSecretRef": {"name": "smb"}}},
    ],
}


def test_pod_settings_show_what_they_reach() -> None:
    team = "kind: Team\nmetadata: {name: ads}\nspec: {serviceAccounts: [{name: trainer}], namespaces: [NS]}"
    team = team.replace("NS", "{name: ads, podSecurity: baseline}")
    plain, rich = job(team="ads"), job(team="ads", pod=POD)
    reached = [
        "example.com/miner:1",
        "kubectl delete",
        "Secret ",
        "smb",
        "service account ",
        "trainer, with its token",
        "nfs.example.com:/home",
        "of smb.csi.k8s.io",
        "escalate privileges in worker",
        "SETUID in tool",
    ]
    for before in ([team], [team, plain]):
        text = "\n".join(texts(the(changes(before, [team, rich]), "j"), "security"))
        assert [each for each in reached if each not in text] == []


def test_patched_commands_do_not_hide_behind_images_of_the_platform() -> None:
    patch = {
        "target": {"kind": "Job"},
        "merge": {
            "spec": {
                "template": {
                    "spec": {"containers": [{"name": "worker", "image": KUBECTL, "command": ["kubectl", "delete"]}]}
                }
            }
        },
    }
    found = texts(the(changes([], [f"{job()}\npatches: {[patch]!r}"]), "j"), "security")
    assert [each for each in found if each.startswith("runs kubectl delete ")]


def test_a_changed_job_shows_what_else_it_may_reach() -> None:
    old = job(env={"B": {"secret": {"name": "old", "key": "k"}}})
    found = texts(the(changes([old], [job(env=SECRET)]), "j"), "security")
    assert found == ["Secret - old", "Secret + wandb"]
    assert texts(the(changes([old], [job(env={"B": {"secret": {"name": "old", "key": "k2"}}})]), "j"), "security") == []


def test_members_of_a_team_and_directories_of_machines_are_shown() -> None:
    new = f"{ADS}\nspec: {{members: {{groups: [ads], admins: [lin]}}}}"
    assert texts(the(changes([ADS], [new]), "ads", "Team"), "security") == [
        "grants + avactl-admin to User lin",
        "grants + avactl-member to User lin",
        "grants + avactl-member to Group ads",
    ]
    tier = "kind: CacheTier\nmetadata: {name: t}\nspec: {cluster: main, role: read, workers: {tiers: [DISK]}, STORES}"
    tier = tier.replace("STORES", 'underStores: [{mount: /t, url: "s3://t", secret: keys}]')
    tier = tier.replace("DISK", "{medium: SSD, quota: 1Ti, path: /data/ssd}")
    paths = ["/dev/fuse", "/mnt/avactl", "/run/avactl/t", "/data/ssd/t"]
    assert texts(the(changes([], [tier]), "t"), "security") == [
        "privileged fuse",
        "privileged volumes",
        *(f"host path {path}" for path in paths),
        "Secret keys",
    ]


def test_the_network_of_machines_is_shown() -> None:
    new = f"{ADS}\nspec: {{namespaces: [{{name: ads}}, {{name: ads-fast, hostNetwork: true}}]}}"
    found = changes(
        [ADS], [new, job(team="ads", hostNetwork={}).replace("team: ads", "team: ads, namespace: ads-fast")]
    )
    assert "pod security + privileged in ads-fast" in texts(the(found, "ads", "Team"), "security")
    assert "host network j-worker" in texts(the(found, "j"), "security")


def test_a_job_with_other_rights_does_not_hide_among_others() -> None:
    jobs = [job(name) for name in ("one", "two")]
    diff = changes([], [*jobs, job("three", command=["python", "miner.py"]), job("four", env=SECRET)])
    shown = [[intent.key.name for intent in group.intents] for group in group_intents(diff)]
    assert sorted(map(sorted, shown)) == [["four"], ["one", "two"], ["three"]]


def test_types_of_values_are_changes() -> None:
    thing = "{apiVersion: example.com/v1, kind: Thing, metadata: {name: t}, spec: {a: VALUE}}"
    text = f"kind: KubernetesObjects\nmetadata: {{name: k}}\nspec: {{namespace: vision, objects: [{thing}]}}"
    for old, new in (("1", "true"), ("1", "1.0"), ("0", "false"), ("1", "'1'"), ("'1'", "'1000m'"), ("null", "'null'")):
        intent = the(changes([text.replace("VALUE", old)], [text.replace("VALUE", new)]), "k")
        assert (intent.op, len(intent.spec), len(intent.objects)) == ("changed", 1, 1)
        for change in (*intent.spec, *intent.objects[0].fields):
            one, _, other = show_field(change).removeprefix("objects[0].").removeprefix("spec.").partition(" → ")
            assert one.partition(" ")[2] != other
