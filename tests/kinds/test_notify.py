"""Notifications: which alerts a spec has, and whom they reach."""

from __future__ import annotations

import re
from typing import Any

from avactl.apply.doctor.secrets import needed_secrets
from avactl.compiler import Compilation
from tests.definitions import define_monitoring
from tests.kinds.compiling import apply, body, codes, compiled, names, unchecked
from tests.kinds.specs import JOB, SERVICE, TEAM, joined
from tools.controlplane import KubeClient

CLUSTER = """
kind: Cluster
metadata: {name: main}
spec: {monitoring: {notifications: true, labels: {release: prometheus}}}
"""
OWN = """\
  notify:
    events: [failed, succeeded, queued]
    queuedFor: 2h
    webhook: {name: hooks, key: url}
    email: [ann@example.com]
"""


def platform(*specs: str, team: str = "") -> str:
    return joined(CLUSTER, f"{TEAM}spec: {{{team}}}\n", *specs)


def alerts(result: Compilation, name: str) -> dict[str, dict[str, Any]]:
    (group,) = body(result, "PrometheusRule", f"{name}-notify", "vision")["spec"]["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


def test_a_job_with_receivers_of_its_own() -> None:
    result = compiled(platform(JOB + OWN))
    found = alerts(result, "train")
    assert list(found) == ["AvactlJobFailed", "AvactlJobSucceeded", "AvactlJobQueued"]
    assert found["AvactlJobQueued"]["for"] == "7200s"
    config = body(result, "AlertmanagerConfig", "train-notify", "vision")["spec"]
    matcher, namespace = config["route"]["matchers"]
    assert namespace == {"name": "namespace", "value": "vision", "matchType": "="}
    assert all("namespace" in rule["expr"] for rule in found.values())  # the label, by which the alert is grouped
    assert {rule["labels"][matcher["name"]] for rule in found.values()} == {matcher["value"]}
    (receiver,) = config["receivers"]
    assert receiver["webhookConfigs"][0]["urlSecret"] == {"name": "hooks", "key": "url"}
    assert receiver["emailConfigs"][0]["to"] == "ann@example.com"
    assert [(need.name, need.keys) for need in needed_secrets(result.manifests)] == [("hooks", {"url"})]


def test_alerts_are_about_the_jobs_of_the_spec_and_no_others() -> None:
    result = compiled(platform(JOB + OWN))
    for rule in alerts(result, "train").values():
        assert 'namespace="vision"' in rule["expr"]
        (pattern,) = set(re.findall(r'(?:job_name|owner_name)=~"([^"]+)"', rule["expr"]))
        assert re.fullmatch(pattern, "train-worker")
        assert re.fullmatch(pattern, "train-worker-29384756")  # of a CronJob
        assert not re.fullmatch(pattern, "train-worker-other")
        assert not re.fullmatch(pattern, "other-train-worker")


def test_the_teams_receivers_are_the_default() -> None:
    result = compiled(platform(JOB, SERVICE, team="notify: {email: [vision@example.com]}"))
    assert names(result, "AlertmanagerConfig") == ["vision/avactl-team"]
    assert list(alerts(result, "train")) == ["AvactlJobFailed", "AvactlJobQueued"]
    assert list(alerts(result, "detector")) == ["AvactlServiceUnavailable"]
    matcher, _ = body(result, "AlertmanagerConfig", "avactl-team", "vision")["spec"]["route"]["matchers"]
    for name in ("train", "detector"):
        assert {rule["labels"][matcher["name"]] for rule in alerts(result, name).values()} == {matcher["value"]}
    both = compiled(platform(JOB + OWN, team="notify: {email: [vision@example.com]}"))
    assert names(both, "AlertmanagerConfig") == ["vision/avactl-team", "vision/train-notify"]
    assert names(compiled(platform(JOB)), "PrometheusRule") == []


def test_only_where_the_platform_lets_teams_choose_urls() -> None:
    off = platform(JOB + OWN).replace("notifications: true", "notifications: false")
    assert codes(unchecked(off)) == ["notifications-off"]


def test_a_waiting_time_is_for_the_event_of_waiting() -> None:
    others = OWN.replace(", queued]", "]")
    assert [each.message for each in unchecked(platform(JOB + others)).diagnostics] == [
        "`queuedFor` has no effect here: `queued` is not among the `events`"
    ]


def test_the_api_server_takes_what_tells(kube: KubeClient) -> None:
    define_monitoring(kube)
    made = compiled(platform(JOB + OWN, SERVICE, team="notify: {email: [v@example.com]}")).manifests
    # Without pods: the plane has policies of other tests' clusters.
    applied = apply(kube, [each for each in made if each.kind not in ("Job", "Deployment")])
    kinds = [each["kind"] for each in applied]
    assert (kinds.count("PrometheusRule"), kinds.count("AlertmanagerConfig")) == (2, 2)
