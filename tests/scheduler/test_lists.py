"""Lists as the API server sends them."""

from __future__ import annotations

from typing import Any

import orjson

from avactl.kube.client import without_managed_fields

FIELDS = [{"manager": "kubelet", "fieldsV1": {"f:spec": {'k:{"name":"x"}': {".": {}, "f:ports": ["a"]}}}}]
TRICKY = '"managedFields":[ of somebody else ]},"spec":{}'


def test_managed_fields_are_left_out_and_nothing_else() -> None:
    plain: dict[str, Any] = {"metadata": {"name": "plain"}, "spec": {"nodeName": "n"}}
    notes = {"x": TRICKY}
    full: dict[str, Any] = {"metadata": {"name": "full", "annotations": notes, "managedFields": FIELDS}, "spec": notes}
    odd = {"metadata": {"name": "odd", "managedFields": FIELDS}, "data": {"x": TRICKY}}
    items = [plain, full, odd, full, plain]
    found = orjson.loads(without_managed_fields(orjson.dumps({"items": items})))["items"]
    full["metadata"]["managedFields"] = []
    assert found == items
