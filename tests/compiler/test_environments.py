"""Environments, defaults and templates: values, precedence, where they come from, and whose they may be."""

from __future__ import annotations

import re
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from avactl.compiler import Compilation, compile_tree
from avactl.compiler.driver import compile_change
from avactl.compiler.layers.merge import LayerPart, merge_values, trace_parts
from avactl.kinds import TrainingJob, Workspace
from avactl.kinds.training.spec import TrainingJobSpec
from avactl.program.program import Item
from avactl.spec.repository.tree import MemoryTree
from tests.test_invalid import BASE

CONFIG = "environments:\n  prod: {overlays: [overlays/prod]}\n  staging: {overlays: [overlays/staging]}\n"
JOB = """\
apiVersion: avactl.dev/v1
kind: TrainingJob
metadata: {name: resnet50, team: vision}
spec:
  image: registry.example.com/vision/train:2.1
  command: [python, train.py]
  strategy: allReduce
  workers: {replicas: 2, gpus: 1, gpu: V100, cpu: 4, memory: 16Gi}
"""
HEAD = "apiVersion: avactl.dev/v1\nkind: TrainingJob\nmetadata: {name: resnet50, team: vision}\n"


def compiled(files: dict[str, str], environment: str = "") -> Compilation:
    return compile_tree(MemoryTree({**BASE, **files}, environment=environment))


def job(files: dict[str, str], environment: str = "", name: str = "resnet50") -> Item[TrainingJobSpec]:
    """The job of a repository without problems."""
    compilation = compiled(files, environment)
    assert compilation.diagnostics == ()
    return compilation.program.get_kind(TrainingJob, name, "vision")


def problems(files: dict[str, str], environment: str = "") -> list[tuple[str, str]]:
    return [(d.code, str(d.span)) for d in compiled(files, environment).diagnostics]


# -- merging -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lower", "upper", "result"),
    [
        ({"a": 1, "b": 2}, {"b": 3, "c": 4}, {"a": 1, "b": 3, "c": 4}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": None}}, {"a": {"c": 2}}),
        ({"a": None}, {"b": 1}, {"a": None, "b": 1}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"a": [1]}, {"a": {"b": 1}}, {"a": {"b": 1}}),
        (
            {"a": [{"name": "x", "b": 1, "c": 1}, {"name": "y"}]},
            {"a": [{"name": "z"}, {"name": "x", "b": 2}]},
            {"a": [{"name": "x", "b": 2, "c": 1}, {"name": "y"}, {"name": "z"}]},
        ),
        ({"a": [{"name": "x"}, {"name": "y"}]}, {"a": [{"name": "x", "$patch": "delete"}]}, {"a": [{"name": "y"}]}),
        ({"a": [{"name": "x"}]}, {"a": []}, {"a": []}),
        ({"a": [{"name": "x"}, {"name": "x"}]}, {"a": [{"name": "x", "b": 1}]}, {"a": [{"name": "x", "b": 1}]}),
        ({"a": [{"name": "x"}]}, {"a": [{"b": 1}]}, {"a": [{"b": 1}]}),
    ],
)
def test_merge(lower: dict[str, Any], upper: dict[str, Any], result: dict[str, Any]) -> None:
    assert merge_values(lower, upper) == result


def test_three_layers_merge_as_two_and_one() -> None:
    layers = [{"a": {"b": 1, "c": 1}}, {"a": None}, {"a": {"d": 3}}]
    assert reduce(merge_values, layers) == {"a": {"d": 3}}


def _values() -> Any:
    leaves = st.none() | st.integers(0, 3)
    entries = st.lists(
        st.fixed_dictionaries({"name": st.sampled_from("xyz")}, optional={"a": leaves, "$patch": st.just("delete")}),
        max_size=3,
    )
    return st.recursive(
        leaves | st.lists(leaves, max_size=2) | entries,
        lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
        max_leaves=8,
    )


@given(st.lists(st.dictionaries(st.sampled_from("abc"), _values(), max_size=3), min_size=1, max_size=4))
def test_every_merged_value_has_an_origin(layers: list[dict[str, Any]]) -> None:
    """The value of a leaf is the one at its origin; a mapping has one in each layer that contributes to it."""
    parts = [LayerPart(index, (), each) for index, each in enumerate(layers)]

    def check(value: Any, path: tuple[str | int, ...]) -> None:
        live, rest = trace_parts(parts, path)
        assert rest == ()
        if len(live) == 1:
            assert live[0].value == value
        own: Any = layers[live[-1].layer]
        for step in live[-1].path:
            own = own[step]
        assert own is live[-1].value
        for step, inner in (
            value.items() if isinstance(value, dict) else enumerate(value or ()) if (isinstance(value, list)) else ()
        ):
            check(inner, (*path, step))

    check(reduce(merge_values, layers), ())


# -- environments --------------------------------------------------------------------------------------------------


OVERLAYS = {
    "avactl.yaml": CONFIG,
    "jobs.yaml": JOB,
    "overlays/prod/jobs.yaml": HEAD + "spec:\n  workers: {replicas: 4}\n",
    "overlays/staging/jobs.yaml": HEAD + "spec:\n  timeout: 1h\n",
}


def test_an_overlay_changes_the_environment_that_lists_it() -> None:
    assert job(OVERLAYS, "prod").spec.workers.replicas == 4
    assert job(OVERLAYS, "prod").spec.timeout is None
    assert job(OVERLAYS, "staging").spec.workers.replicas == 2
    assert job(OVERLAYS, "staging").spec.timeout == "1h"


def test_a_repository_with_environments_is_compiled_in_one() -> None:
    assert problems(OVERLAYS) == [("unknown-environment", "avactl.yaml:1:1")]
    assert problems(OVERLAYS, "production") == [("unknown-environment", "avactl.yaml:1:1")]
    assert problems({"jobs.yaml": JOB}, "prod") == [("unknown-environment", "avactl.yaml:1:1")]


def test_specs_of_one_environment() -> None:
    files = {
        "avactl.yaml": "environments:\n  prod: {include: [prod]}\n  staging: {include: [staging]}\n",
        "prod/jobs.yaml": JOB,
        "staging/jobs.yaml": JOB.replace("resnet50", "probe"),
    }
    for environment, name in (("prod", "resnet50"), ("staging", "probe")):
        jobs = compiled(files, environment).program.of("TrainingJob")
        assert [item.name for item in jobs] == [name]
    assert problems({**files, "avactl.yaml": "environments: {prod: {include: [prd]}}\n"}, "prod") == [
        ("missing-reference", "avactl.yaml:1:33")
    ]


def test_the_last_overlay_wins() -> None:
    files = {
        **OVERLAYS,
        "avactl.yaml": "environments: {prod: {overlays: [overlays/staging, overlays/prod]}}\n",
        "overlays/staging/jobs.yaml": HEAD + "spec:\n  timeout: 1h\n  workers: {replicas: 3, cpu: 2}\n",
    }
    found = job(files, "prod")
    assert (found.spec.workers.replicas, str(found.spec.workers.cpu), found.spec.timeout) == (4, "2", "1h")
    assert str(found.span("spec", "workers", "cpu")) == "overlays/staging/jobs.yaml:6:31"


def test_both_sides_of_a_change_are_compiled_in_the_environment() -> None:
    base = MemoryTree({**BASE, **OVERLAYS}, environment="prod")
    head = {**OVERLAYS, "overlays/prod/jobs.yaml": HEAD + "spec:\n  workers: {replicas: 3}\n"}
    before, after = compile_change(base, MemoryTree({**BASE, **head}, environment="prod"))
    jobs = [each.program.get_kind(TrainingJob, "resnet50", "vision") for each in (before, after)]
    replicas = [job.spec.workers.replicas for job in jobs]
    assert replicas == [4, 3]


def test_a_base_before_there_were_environments_is_the_same_in_all() -> None:
    base = MemoryTree({**BASE, "jobs.yaml": JOB}, environment="prod")
    before, after = compile_change(base, MemoryTree({**BASE, **OVERLAYS}, environment="prod"))
    assert before.ok
    assert after.ok


# -- defaults and templates ----------------------------------------------------------------------------------------

KIND = "apiVersion: avactl.dev/v1\nkind: Defaults\n"
DEFAULTS = KIND + "spec:\n  TrainingJob:\n    spec: {ttl: 1d, timeout: 1d, framework: tensorflow}\n"
OF_TEAM = DEFAULTS.replace("spec:\n  T", "metadata: {team: vision}\nspec:\n  T").replace(
    "{ttl: 1d, timeout: 1d", "{timeout: 2h"
)
OF_TEAM = OF_TEAM.replace("tensorflow", "pytorch")
TEMPLATE = """\
apiVersion: avactl.dev/v1
kind: TrainingJob
template: true
metadata: {name: base, labels: {from: template}}
spec: {priority: high, framework: tensorflow, env: {A: "1", B: "1"}}
"""
EXTENDING = (
    JOB.replace("kind: TrainingJob", "kind: TrainingJob\nextends: base") + "  framework: pytorch\n  env: {B: null}\n"
)
ALL = {
    **OVERLAYS,
    "jobs.yaml": EXTENDING,
    "defaults.yaml": DEFAULTS,
    "vision.yaml": OF_TEAM,
    "templates.yaml": TEMPLATE,
    "overlays/prod/jobs.yaml": HEAD + "spec:\n  framework: custom\n",
}


def test_precedence() -> None:
    """Platform below team, template, spec and overlay."""
    found = job(ALL, "prod").spec
    assert (found.ttl, found.timeout, found.priority, found.framework) == ("1d", "2h", "high", "custom")
    assert found.env == {"A": "1"}
    files, values = dict(ALL), []
    for path in ("overlays/prod/jobs.yaml", "jobs.yaml", "templates.yaml", "vision.yaml", "defaults.yaml"):
        values.append(job(files, "prod").spec.framework)
        files[path] = re.sub(r"framework: [a-z]+(, )?", "timeout: 7h" if path.startswith("o") else "", files[path])
    assert values == ["custom", "pytorch", "tensorflow", "pytorch", "tensorflow"]


def test_values_are_located_where_they_were_written() -> None:
    found = job(ALL, "prod")
    assert str(found.span("spec", "ttl")) == "defaults.yaml:5:17"
    assert str(found.span("spec", "timeout")) == "vision.yaml:6:21"
    assert str(found.span("spec", "priority")) == "templates.yaml:5:18"
    assert str(found.span("metadata", "labels", "from")) == "templates.yaml:4:39"
    assert str(found.span("spec", "framework")) == "overlays/prod/jobs.yaml:5:14"
    assert str(found.span("spec", "workers", "cpu")) == "jobs.yaml:9:51"
    assert str(found.span("spec", "env", "A")) == "templates.yaml:5:56"
    assert str(found.span("spec", key=True)) == "jobs.yaml:5:1"
    assert str(found.span("spec", "nothing")) == "jobs.yaml:5:1"


def test_templates_and_defaults_are_no_specs() -> None:
    compilation = compiled({"templates.yaml": TEMPLATE, "defaults.yaml": DEFAULTS})
    assert compilation.diagnostics == ()
    assert compilation.program.of("TrainingJob") == []


def test_a_template_extends_another() -> None:
    second = TEMPLATE.replace("template: true", "template: true\nextends: base").replace(
        "name: base", "name: own, team: vision"
    )
    files = {"t.yaml": f"{TEMPLATE}---\n{second}".replace("priority: high, framework: tensorflow", "priority: low", 1)}
    files["jobs.yaml"] = JOB.replace("kind: TrainingJob", "kind: TrainingJob\nextends: own")
    assert job(files).spec.priority == "high"


def test_an_overlay_changes_a_template_and_defaults() -> None:
    files = {
        **ALL,
        "jobs.yaml": EXTENDING.replace("  framework: pytorch\n", ""),
        "overlays/prod/jobs.yaml": TEMPLATE.replace("template: true\n", "").replace("tensorflow", "custom")
        + "---\n"
        + OF_TEAM.replace("timeout: 2h", "timeout: 6h"),
    }
    found = job(files, "prod")
    assert (found.spec.framework, found.spec.timeout) == ("custom", "6h")
    assert str(found.span("spec", "timeout")) == "overlays/prod/jobs.yaml:11:21"


def test_a_long_chain_of_templates() -> None:
    links = [
        TEMPLATE.replace("true", f"true\nextends: t{n + 1}").replace("name: base", f"name: t{n}") for n in range(9)
    ]
    last = TEMPLATE.replace("name: base", "name: t9")
    files = {"t.yaml": "---\n".join([*links, last]), "jobs.yaml": EXTENDING.replace("base", "t2")}
    assert compiled(files).program.of("TrainingJob")
    files["jobs.yaml"] = EXTENDING.replace("base", "t1")
    assert ("template-chain", "jobs.yaml:3:10") in problems(files)


def test_the_size_of_defaults_is_bounded() -> None:
    many = ", ".join(f"V{n}: x" for n in range(2000))
    found = problems({"defaults.yaml": DEFAULTS.replace("ttl: 1d", f"env: {{{many}}}")})
    assert found == [("layer-too-large", "defaults.yaml:2:7")]


def test_specs_do_not_inherit_what_is_too_large() -> None:
    many = "{" + ", ".join(f"V{n}: x" for n in range(2000)) + "}"
    overlay = TEMPLATE.replace("template: true\n", "")
    large = overlay[: overlay.index("spec:")] + f"spec: {{env: {many}}}\n"
    small = {
        "avactl.yaml": "environments: {prod: {overlays: [overlays]}}\n",
        "t.yaml": TEMPLATE,
        "jobs.yaml": EXTENDING,
    }
    assert compiled({**small, "overlays/t.yaml": overlay.replace("tensorflow", "custom")}, "prod").ok
    found = compiled({**small, "overlays/t.yaml": large}, "prod")
    assert [(d.code, str(d.span)) for d in found.diagnostics] == [("layer-too-large", "overlays/t.yaml:2:7")]
    assert not found.program.of("TrainingJob")


def test_the_number_of_overlays_is_bounded() -> None:
    one = "apiVersion: avactl.dev/v1\nkind: TrainingJob\nmetadata: {name: base}\nspec: {env: {VN: x}}\n"
    files = {
        "avactl.yaml": "environments: {prod: {overlays: [overlays]}}\n",
        "t.yaml": TEMPLATE,
        "jobs.yaml": EXTENDING,
    }
    overlays = [one.replace("VN", f"V{n}") for n in range(34)]
    assert compiled({**files, "overlays/t.yaml": "---\n".join(overlays[:32])}, "prod").ok
    found = problems({**files, "overlays/t.yaml": "---\n".join(overlays)}, "prod")
    assert found == [("layer-too-large", f"overlays/t.yaml:{5 * n + 3}:18") for n in (32, 33)]


def test_a_team_gets_no_defaults_and_templates_of_another() -> None:
    other = BASE["base/platform.yaml"].decode().replace("metadata: {name: vision}", "metadata: {name: audio}")
    team = next(each for each in other.split("---") if "kind: Team" in each)
    files = {
        "team.yaml": team,
        "defaults.yaml": OF_TEAM.replace("vision", "audio"),
        "jobs.yaml": JOB,
    }
    assert job(files).spec.timeout is None


def test_earlier_owners_decide_about_overlays() -> None:
    """A change cannot give itself the right to change another team's spec."""
    owners = "owners:\n  - {path: '*', teams: ['*'], kinds: ['*']}\n  - {path: /overlays/, teams: [%s]}\n"
    base = MemoryTree({**BASE, **OVERLAYS, "avactl.yaml": CONFIG + owners % "audio"}, environment="prod")
    head = MemoryTree({**BASE, **OVERLAYS, "avactl.yaml": CONFIG + owners % "vision"}, environment="prod")
    _, after = compile_change(base, head)
    assert [(d.code, str(d.span)) for d in after.diagnostics] == [("not-owner", "overlays/prod/jobs.yaml:3:34")]
    assert "before this change" in after.diagnostics[0].message


def test_a_patch_of_a_template_has_the_rights_of_its_file() -> None:
    patch = "patches: [{target: {kind: Job}, merge: {metadata: {labels: {a: b}}}}]\n"
    owners = (
        "owners:\n  - {path: '*', teams: ['*'], kinds: ['*']}\n  - {path: /jobs.yaml, teams: [vision], patches: []}\n"
    )
    files = {"avactl.yaml": owners, "templates.yaml": TEMPLATE + patch, "jobs.yaml": EXTENDING}
    assert problems(files) == []
    assert problems({**files, "jobs.yaml": EXTENDING + patch}) == [("not-owner", "jobs.yaml:12:27")]


# -- engines -------------------------------------------------------------------------------------------------------


def objects(reconcile: str, environment: str) -> dict[str, Any]:
    """The specs of the objects with which a cluster follows the repository, by kind."""
    text = BASE["base/platform.yaml"].decode()
    files = {"base/platform.yaml": text.replace("  images:\n", f"  reconcile: {{{reconcile}}}\n  images:\n", 1)}
    if environment:
        files["avactl.yaml"] = "environments: {prod: {}}\n"
    compilation = compile_tree(MemoryTree(files, environment=environment))
    assert compilation.ok, compilation.diagnostics
    return {m.kind: m.body["spec"] for m in compilation.manifests if "spec" in m.body}


GIT = "repository: 'https://git.example.com/platform/specs.git'"


def test_engines_follow_the_environment_that_they_apply() -> None:
    for environment, branch in (("", "rendered"), ("prod", "rendered-prod")):
        assert objects(f"mode: flux, {GIT}", environment)["GitRepository"]["ref"] == {"branch": branch}
        assert objects(f"mode: argocd, {GIT}", environment)["Application"]["source"]["targetRevision"] == branch
    pod = objects(f"mode: builtin, {GIT}", "prod")["Deployment"]["template"]["spec"]
    assert pod["containers"][0]["args"][-2:] == ["--environment", "prod"]
    operator = f"mode: pulumiOperator, {GIT}, backend: 's3://state', serviceAccount: pulumi"
    workspace = objects(operator, "prod")["Stack"]["workspaceTemplate"]["spec"]
    assert workspace["env"] == [{"name": "AVACTL_ENVIRONMENT", "value": "prod"}]
    assert "workspaceTemplate" not in objects(operator, "")["Stack"]


def test_specs_of_python_files_get_overlays_and_defaults() -> None:
    spec = """\
from avactl.kinds import Metadata, Workspace
from avactl.kinds.workspace import WorkspaceSpec

ada = WorkspaceSpec(user="a@example.com", image="r/j:1")
specs = [Workspace(metadata=Metadata(name="ada", team="vision"), spec=ada)]
"""
    head = "apiVersion: avactl.dev/v1\nkind: Workspace\nmetadata: {name: ada, team: vision}\n"
    files = {
        "avactl.yaml": CONFIG + "python: {allow: true}\n",
        "ada.py": spec,
        "defaults.yaml": KIND + "spec: {Workspace: {spec: {idleTimeout: 2h, storage: 20Gi}}}\n",
        "overlays/prod/ada.yaml": head + "spec: {storage: 50Gi}\n",
        "overlays/staging/ada.yaml": head + "spec: {storage: 1}\n",
    }
    compilation = compiled(files, "prod")
    assert compilation.diagnostics == ()
    found = compilation.program.get_kind(Workspace, "ada", "vision")
    assert (found.spec.idle_timeout, str(found.spec.storage)) == ("2h", "50Gi")
    assert str(found.span("spec", "storage")) == "overlays/prod/ada.yaml:4:17"
    assert found.span("spec", "image").file == "ada.py"


def test_a_problem_of_a_default_names_the_spec() -> None:
    defaults = "apiVersion: avactl.dev/v1\nkind: Defaults\nspec:\n  TrainingJob: {spec: {ttl: 7d}}\n"
    nightly = JOB.replace("strategy: allReduce", 'schedule: {cron: "0 3 * * *"}').replace("replicas: 2", "replicas: 1")
    found = compiled({"defaults.yaml": defaults, "jobs.yaml": nightly}).diagnostics
    assert [(d.code, str(d.span)) for d in found] == [("conflicting-keys", "defaults.yaml:4:24")]
    assert [(note.text, str(note.span)) for note in found[0].notes] == [
        ("of TrainingJob vision/resnet50", "jobs.yaml:3:18")
    ]
