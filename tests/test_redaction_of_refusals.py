"""Refusals of the API server: the reason stays legible, the value of a field that holds a credential does not."""

from __future__ import annotations

import pytest

from avactl.diagnostics.redaction import redact_text

LEGIBLE = (
    '.spec.template.spec.imagePullSecrets: duplicate entries for key [name="registry"] (500)',
    "spec.ports: Required value (422)",
    "spec.adminPassword: Required value",
    "spec.apiToken: Forbidden: may not be set when `auth` is",
    "spec.template.spec.volumes[0].secret: Not found",
    ".spec.password: field not declared in schema",
    ".spec.password: expected map, got &{[1]}",
)


@pytest.mark.parametrize("text", LEGIBLE)
def test_the_reason_is_legible(text: str) -> None:
    assert redact_text(text) == text


@pytest.mark.parametrize(
    "text",
    [
        'spec.adminPassword: Invalid value: "CREDENTIAL": must be longer',
        'spec.adminPassword: Invalid value: "x\\"CREDENTIAL": must be longer',
        "spec.adminPassword: Invalid value: CREDENTIAL",
        'spec.adminPassword: Duplicate value: "CREDENTIAL"',
        "spec.adminPassword: CREDENTIAL",
        "spec.adminPassword: Forbidden-CREDENTIAL",
        "adminPassword=ForbiddenCREDENTIAL",
    ],
)
def test_the_value_is_not(text: str) -> None:
    text = text.replace("CREDENTIAL", "hunter2hunter2")
    assert "hunter2" not in redact_text(text)
    assert len(redact_text(text)) == len(text)
