"""Every mistake of the table is reported at its place, with the remedy. The table was written before the checks."""

from __future__ import annotations

import pytest

from tests.mistakes.table import Mistake, mistakes

MISTAKES = mistakes()
SHORT = frozenset(
    (
        "Job of Kubernetes among the specs",
        "PyTorchJob of Kubeflow",
        "status copied from a cluster",
        "resources of a container in a job",
        "template of pods in a job",
        "replicas of a job",
        "parallelism",
        "completions",
        "restartPolicy",
        "nodeSelector outside of pod",
        "tolerations outside of pod",
        "volumes outside of pod",
        "volumeMounts of the main container",
        "serviceAccountName outside of pod",
        "imagePullSecrets outside of pod",
        "securityContext outside of pod",
        "hostNetwork as a flag",
        "env as a list",
        "valueFrom",
        "httpGet in probe",
        "ports of a container",
        "selector of a Deployment",
        "imagePullPolicy",
        "storage class of a workspace",
        "grace period of a service",
        "borrow above the cluster",
        "more CPU than the machine",
        "version of Kubernetes that does not exist",
        "command as text",
        "command as one word of a list",
        "flag and value as one argument",
        "milli for mega",
        "hours in words",
        "min for minutes",
        "uppercase in an image",
        "path of a probe without a slash",
        "one slash in the URL of a bucket",
        "directory as the path of checkpoints",
        "user by name",
        "pull Secret as text",
        "version of a model as a number",
        "key without a value",
        "number of workers as a number",
        "dataset by its name alone",
        "no --- between two specs",
        "no space after the colon",
        "unquoted glob",
        "list without a dash",
        "bracket never closed",
        "Helm template",
        "variable of a shell",
        "typographic quotes",
        "unquoted version of Kubernetes loses its zero",
        "spec left out, its keys at the top",
        "non-breaking space in the indent",
        "comment sign without a space before it",
        "number that looks octal",
    )
)
"""Cases whose diagnostics are still to be mended."""


def _param(case: Mistake) -> object:
    marks = [pytest.mark.xfail(strict=True)] if case.title in SHORT else []
    return pytest.param(case, id=case.title, marks=marks)


@pytest.mark.parametrize("case", [_param(case) for case in MISTAKES])
def test_mistake(case: Mistake) -> None:
    shortfall = case.shortfall()
    assert not shortfall, shortfall


def test_there_are_a_hundred() -> None:
    assert len({case.title for case in MISTAKES}) == len(MISTAKES) >= 100
