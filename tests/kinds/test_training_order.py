"""Jobs after other jobs, and jobs at certain times."""

from __future__ import annotations

from typing import Any

import pytest

from avactl.contracts.pod_annotations import AFTER
from avactl.program.program import Program
from avactl.program.registry import get_kind
from tests.kinds.compiling import apply, body, codes, compiled, names, unchecked
from tests.kinds.specs import JOB, SCHEDULED, TEAM, joined
from tools.controlplane import KubeClient

PLATFORM = joined(
    SCHEDULED,
    """
kind: NodePool
metadata: {name: v100}
spec: {cluster: main, machineType: v100-pcie-8, count: 4}
""",
    TEAM,
)


def job(name: str, more: str = "") -> str:
    return JOB.replace("name: train,", f"name: {name},") + "".join(f"  {line}\n" for line in more.splitlines())


def template(found: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = found["spec"]["template"]
    return spec


def test_pods_name_the_jobs_that_end_the_runs_before() -> None:
    servers = "strategy: parameterServer\nframework: tensorflow\nworkers: {replicas: 2}\nservers: {replicas: 1}"
    result = compiled(joined(PLATFORM, job("etl"), job("big", servers), job("train", "after: [etl, big]")))
    notes = template(body(result, "Job", "train-worker", "vision"))["metadata"]["annotations"]
    # TensorFlow's chief leads; its workers and servers follow.
    assert notes[AFTER.name] == '["big-chief","etl-worker"]'
    assert AFTER.name not in template(body(result, "Job", "etl-worker", "vision"))["metadata"]["annotations"]


def test_a_cron_job_has_the_whole_job() -> None:
    schedule = "schedule: {cron: 0 3 * * 1-5, timeZone: Europe/Berlin, startingDeadline: 1h, keepFailed: 2}"
    plain = compiled(joined(PLATFORM, job("nightly", "timeout: 2h\nworkers: {gpus: 1}")))
    result = compiled(joined(PLATFORM, job("nightly", f"timeout: 2h\nworkers: {{gpus: 1}}\n{schedule}")))
    assert names(result, "Job") == []
    cron = body(result, "CronJob", "nightly-worker", "vision")["spec"]
    wanted = {
        "schedule": "0 3 * * 1-5",
        "timeZone": "Europe/Berlin",
        "concurrencyPolicy": "Forbid",
        "startingDeadlineSeconds": 3600,
        "successfulJobsHistoryLimit": 3,
        "failedJobsHistoryLimit": 2,
    }
    assert {key: cron[key] for key in wanted} == wanted
    assert "suspend" not in cron
    once = body(plain, "Job", "nightly-worker", "vision")["spec"]
    assert cron["jobTemplate"]["spec"] == once
    assert cron["jobTemplate"]["metadata"]["labels"]["app.kubernetes.io/instance"] == "nightly"
    stopped = compiled(joined(PLATFORM, job("nightly", f"suspended: true\n{schedule}")))
    assert body(stopped, "CronJob", "nightly-worker", "vision")["spec"]["suspend"] is True


def test_the_api_server_takes_every_object(kube: KubeClient) -> None:
    schedule = "schedule: {cron: 0 3 * * *, timeZone: America/Argentina/Buenos_Aires}"
    specs = [job("first"), job("second", "after: [first]"), job("third", schedule)]
    assert apply(kube, compiled(joined(PLATFORM, *specs)).manifests)


def test_a_change_of_a_schedule_restarts_nothing() -> None:
    one, other = (
        compiled(joined(PLATFORM, job("nightly", f"schedule: {{cron: 0 {hour} * * *}}"))).program.of("TrainingJob")[0]
        for hour in (3, 4)
    )
    impact = get_kind("TrainingJob").impact
    assert impact(one, other, []) is None


@pytest.mark.parametrize(
    ("specs", "expected"),
    [
        ([job("a", "after: [b]"), job("b", "after: [c]"), job("c", "after: [a]")], ["dependency-cycle"]),
        ([job("a", "after: [a]")], ["dependency-cycle"]),
        ([job("a", "after: [b]"), job("b", "after: [c]"), job("c", "after: [b]")], ["dependency-cycle"]),
        ([job("a"), job("b", "after: [a, a]")], ["duplicate-entry"]),
        ([job("a", "ttl: 1h"), job("b", "after: [a]")], ["dependency-expires"]),
        ([job("a", "schedule: {cron: 0 3 * * *}"), job("b", "after: [a]")], ["conflicting-keys"]),
        ([job("a"), job("b", "after: [a]\nschedule: {cron: 0 3 * * *}")], ["conflicting-keys"]),
        ([job("a", "schedule: {cron: 0 3 * * *}\nonChange: finish")], ["without-effect"]),
    ],
)
def test_what_cannot_be(specs: list[str], expected: list[str]) -> None:
    assert codes(unchecked(joined(PLATFORM, *specs))) == expected


def test_the_way_around_a_cycle_is_told() -> None:
    around = [job("a", "after: [x, b]"), job("x"), job("b", "after: [x, c]"), job("c", "after: [x, a]")]
    (found,) = unchecked(joined(PLATFORM, *around)).diagnostics
    assert found.message == "no job of the cycle ever starts: `a` after `b` after `c` after `a`"
    assert [note.text for note in found.notes] == ["TrainingJob vision/b", "TrainingJob vision/c"]


def test_each_job_before_another_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    count, most = 40, 16
    jobs = [job(f"j{n}", f"after: [{', '.join(f'j{m}' for m in range(max(0, n - most), n))}]") for n in range(count)]
    find, asked = Program.find, []

    def counted(program: Program, *of: Any) -> Any:
        asked.append(of)
        return find(program, *of)

    monkeypatch.setattr(Program, "find", counted)
    assert compiled(joined(PLATFORM, *jobs))
    # Each of the jobs before, and each entry of `after` a few times; not each entry of all jobs before.
    assert len([each for each in asked if each[0] == "TrainingJob"]) < count * count / 2 + 4 * count * most
