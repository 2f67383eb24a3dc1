"""Plans and states in ConfigMaps of the system namespace: a store of the watch, and optimistic writes."""

from __future__ import annotations

import contextlib
from typing import Any

from avactl.contracts.delivery import PROBLEM_KEY, STATE_KEY, PipelineState, PromotionState
from avactl.contracts.document import dump
from avactl.contracts.names import CONFIG_LABEL
from avactl.kube.client import MERGE, ApiError, Client, UnreachableError

Body = dict[str, Any]


class ConfigMaps:
    """ConfigMaps of one namespace, as a store of a reflector."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client, self._namespace = client, namespace
        self._known: dict[str, Body] = {}

    def put(self, item: Body) -> None:
        """Add or update a ConfigMap."""
        name = item["metadata"]["name"]
        known = self._known.get(name)
        if known is None or _resource_version(item) >= _resource_version(known):
            self._known[name] = item

    def remove(self, key: str) -> None:
        """Remove a ConfigMap."""
        self._known.pop(key.rpartition("/")[2], None)

    def keys(self) -> list[str]:
        """Return the keys of all ConfigMaps."""
        return [f"{self._namespace}/{name}" for name in self._known]

    def of(self, kind: str) -> list[str]:
        """Return the names of the ConfigMaps whose content is of a kind, a value of `CONFIG_LABEL`."""
        return [name for name, each in self._known.items() if _config_kind(each) == kind]

    def data(self, name: str) -> dict[str, str] | None:
        """Return the content of a ConfigMap; None if it does not exist."""
        found = self._known.get(name)
        return None if found is None else found.get("data") or {}

    async def write_state(self, plan: str, state: PipelineState) -> None:
        """Write the state of a pipeline if it is unchanged since it was read. Raises ApiError (409) otherwise."""
        await self._patch(state_name(plan), {STATE_KEY: dump(state)})

    async def write_promotion(self, plan: str, state: PromotionState) -> None:
        """Write the state of a promotion. Raises ApiError (409) if it has changed since it was read."""
        await self._patch(state_name(plan), {STATE_KEY: dump(state)})

    async def write_problem(self, plan: str, problem: str) -> None:
        """Write the problem that stops a pipeline or a promotion, for users."""
        held = self.data(state_name(plan))
        if held is None or held.get(PROBLEM_KEY, "") == problem:
            return
        with contextlib.suppress(ApiError, UnreachableError):
            await self._patch(state_name(plan), {PROBLEM_KEY: problem or None})

    async def _patch(self, name: str, data: Body) -> None:
        metadata = self._known[name]["metadata"]
        body = {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "data": data}
        path = f"/api/v1/namespaces/{self._namespace}/configmaps/{name}"
        self.put(await self._client.request("PATCH", path, body, content_type=MERGE))


def state_name(plan: str) -> str:
    """Return the name of the ConfigMap with the state of a pipeline or a promotion, from the name of its plan."""
    kind, _, name = plan.partition(".")
    return f"{kind}-state.{name}"


def _config_kind(item: Body) -> str:
    found: str = (item["metadata"].get("labels") or {}).get(CONFIG_LABEL, "")
    return found


def _resource_version(item: Body) -> int:
    text = str(item["metadata"].get("resourceVersion", ""))
    return int(text) if text.isdecimal() and len(text) < 20 else 0
