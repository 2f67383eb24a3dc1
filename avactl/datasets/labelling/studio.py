"""A project of Label Studio, by its HTTP API."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from importlib.util import find_spec
from itertools import islice
from typing import Any, NamedTuple

import orjson

from avactl.base.installation import install_command
from avactl.base.terminal import shorten_middle, visible_text
from avactl.datasets.errors import ArgumentError, DatasetError, ObjectStoreError
from avactl.datasets.manifest import ManifestEntry, labels_problem
from avactl.datasets.query.labels import FACTS

TOKEN = "LABEL_STUDIO_API_KEY"  # noqa: S105 - the name of a variable, as of Label Studio's own SDK
OBJECT = "object"
"""Key of a task's data with the URL of its object."""
_PROJECT_HINT = "check the id of the project, which is in its URL"
_BATCH = 250
_PAGE = 100
_MAX_TASKS = 2_000_000
_TIMEOUT_S = 120.0


class Annotation(NamedTuple):
    """Labels that one person gives to one object."""

    person: str
    labels: dict[str, Any]
    at: str
    """Time of its last change."""


class Task(NamedTuple):
    """A task with its submitted annotations."""

    url: str
    """URL of the object; "" for a task that `add_tasks` has not made."""
    annotations: list[Annotation]
    refused: int
    """Annotations left out: with a control that the project does not have, or with values that are not labels."""


class Project:
    """A project. The token is in the environment, and in no message."""

    def __init__(self, server: str, project: int) -> None:
        """Raises StoreError if httpx is not installed or the server refuses the token, ArgumentError."""
        if find_spec("httpx") is None:
            raise ObjectStoreError("Label Studio requires the package httpx", install_command("labelling"))
        import httpx

        if not server.startswith(("http://", "https://")):
            raise ArgumentError(f"`{server}` is not the URL of a server", "write `--studio https://labels.example.com`")
        token = os.environ.get(TOKEN, "")
        if not token:
            raise ArgumentError(f"{TOKEN} is not set", "take a token from Account & Settings in Label Studio")
        self._project = project
        self._client = httpx.Client(base_url=server.rstrip("/"), timeout=_TIMEOUT_S, follow_redirects=False)
        if token.count(".") == 2:  # a personal access token, by which a short-lived one is asked for
            found = self._json("POST", "/api/token/refresh", json={"refresh": token})
            self._client.headers["Authorization"] = f"Bearer {found['access']}"
        else:
            self._client.headers["Authorization"] = f"Token {token}"
        self._controls = self._read_controls()

    def tasks(self) -> Iterator[Task]:
        """Yield all tasks. Raises DatasetError, StoreError."""
        for page in range(1, _MAX_TASKS // _PAGE + 1):
            query = {"project": self._project, "page": page, "page_size": _PAGE, "fields": "all"}
            found = self._json("GET", "/api/tasks/", params=query)
            tasks = found.get("tasks", [])
            for task in tasks:
                yield _read_task(task, self._controls)
            if not tasks or page * _PAGE >= int(found.get("total", 0)):
                return
        raise DatasetError(f"project {self._project} has more than {_MAX_TASKS:,} tasks", "label in several projects")

    def add_tasks(self, entries: Iterable[ManifestEntry], data_key: str) -> tuple[int, int]:
        """Make a task for each object that has none; return the number of new and of earlier ones.

        A run that was interrupted may be repeated. Raises DatasetError, StoreError.
        """
        known = {task.url for task in self.tasks()}
        added = 0
        remaining = (entry for entry in entries if entry.url not in known)
        while batch := list(islice(remaining, _BATCH)):
            body = [{"data": {data_key: entry.url, OBJECT: entry.url, **_label_data(entry)}} for entry in batch]
            path = f"/api/projects/{self._project}/import"
            done = self._json("POST", path, json=body, params={"commit_to_project": "true"})
            if done.get("task_count", len(batch)) != len(batch):
                raise DatasetError(
                    f"Label Studio made {done['task_count']} tasks of {len(batch)} objects", "look at the project"
                )
            added += len(batch)
        return added, len(known)

    def _read_controls(self) -> frozenset[str]:
        """Return the names of the project's controls, which become those of labels. Raises DatasetError, StoreError."""
        found = self._json("GET", f"/api/projects/{self._project}/")
        controls = found.get("parsed_label_config")
        if not isinstance(controls, dict):
            raise ObjectStoreError(f"{self._client.base_url}: project {self._project} has no configuration", "")
        if taken := sorted(FACTS.intersection(controls)):
            text = f"project {self._project} has a control `{taken[0]}`, which is no label, but a fact about the object"
            raise DatasetError(text, "rename it in the project's labelling interface")
        if shares := sorted(name for name in controls if f"{name}_agreement" in controls):
            text = f"project {self._project} has controls `{shares[0]}` and `{shares[0]}_agreement`"
            raise DatasetError(text, "rename the second one: that is the label with the agreement on the first")
        return frozenset(controls)

    def _json(self, method: str, path: str, **options: Any) -> Any:
        import httpx

        try:
            answer = self._client.request(method, path, **options)
        except httpx.HTTPError as error:
            text = visible_text(str(error) or type(error).__name__)
            raise ObjectStoreError(f"{self._client.base_url}: {text}", "check `--studio` and the network") from None
        if answer.status_code in (401, 403):
            hint = (
                f"set {TOKEN} to a token of a user of the project, and enable its kind in the organization's settings"
            )
            raise ObjectStoreError(f"{self._client.base_url} refuses the token ({answer.status_code})", hint)
        if answer.status_code == 404 and path == "/api/tasks/":
            return {}  # a page behind the last one
        if not answer.is_success:
            # An error of a page that does not exist is HTML.
            html = "html" in answer.headers.get("content-type", "")
            text = "" if html else visible_text(shorten_middle(answer.text.strip(), 300))
            raise ObjectStoreError(
                f"{self._client.base_url}{path}: {answer.status_code} {text}".rstrip(), _PROJECT_HINT
            )
        try:
            return answer.json()
        except (ValueError, RecursionError):
            raise ObjectStoreError(
                f"{self._client.base_url}{path}: the answer is not JSON", "check `--studio`"
            ) from None


def _label_data(entry: ManifestEntry) -> dict[str, Any]:
    return {"labels": dict(entry.labels)} if entry.labels else {}


def _read_task(task: dict[str, Any], controls: Collection[str]) -> Task:
    """Read a task. What an annotation says is whatever its author has sent."""
    url = task.get("data", {}).get(OBJECT, "")
    annotations, refused = [], 0
    for each in task.get("annotations", ()):
        if each.get("was_cancelled"):
            continue  # skipped by the person
        labels = _read_result(each.get("result") or [], controls)
        if labels is None:
            refused += 1
        elif labels:
            person = each.get("completed_by")
            if isinstance(person, dict):
                person = person.get("id")
            annotations.append(Annotation(str(person), labels, str(each.get("updated_at") or each.get("created_at"))))
    return Task(url if isinstance(url, str) else "", annotations, refused)


def _read_result(result: Any, controls: Collection[str]) -> dict[str, Any] | None:
    """Return labels by the names of the controls; regions of one control are a list. None if these are not labels."""
    found: dict[str, Any] = {}
    for region in result if isinstance(result, list) else [result]:
        if not isinstance(region, dict):
            return None
        if region.get("type") == "relation":
            continue  # between two regions
        name, kind, value = region.get("from_name"), str(region.get("type", "")), region.get("value")
        if not isinstance(name, str) or name not in controls or not isinstance(value, dict):
            return None
        if kind in ("choices", "textarea"):
            chosen = value.get("choices" if kind == "choices" else "text") or []
            found[name] = chosen[0] if isinstance(chosen, list) and len(chosen) == 1 else chosen
        elif kind in ("rating", "number"):
            found[name] = value.get(kind)
        elif isinstance(found.setdefault(name, []), list):
            found[name].append({"type": kind, **value})
        else:
            return None
    if labels_problem(found):
        return None
    try:
        orjson.dumps(found)
    except orjson.JSONEncodeError:  # e.g. a number of more than 64 bits
        return None
    return found
