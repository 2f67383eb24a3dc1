"""Kubeconfig files, found and merged as kubectl does.

https://kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig/#merging-kubeconfig-files
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from avactl.base.errors import HintedError
from avactl.base.exit_codes import USAGE

_KUBECONFIG_HINT = "`--kubeconfig FILE` or $KUBECONFIG names one; your cluster's provider has a command that writes it"


class AccessError(HintedError):
    """There is no API server configuration, or what it needs is missing."""


class KubeconfigError(AccessError):
    """A kubeconfig is invalid, or has no such context."""

    exit_code = USAGE


class KubeconfigSection(NamedTuple):
    """A cluster, user or context of a kubeconfig."""

    name: str
    values: Mapping[str, Any]
    file: Path
    """The file that declares it. Relative paths in the section start in its directory."""

    def path(self, key: str) -> Path:
        """Return the file that a value names."""
        return self.file.parent / str(self.values[key])


@dataclass(frozen=True, slots=True)
class ContextSelection:
    """Cluster and user of one context. A context without a user selects a user without credentials."""

    context: KubeconfigSection
    cluster: KubeconfigSection
    user: KubeconfigSection


def locate_kubeconfig(kubeconfig: Path | None) -> list[Path]:
    """Return the kubeconfig files: the one given, else those of $KUBECONFIG that exist, else ~/.kube/config.

    Raises AccessError if there is none.
    """
    if kubeconfig is not None:
        return [kubeconfig]
    named = os.environ.get("KUBECONFIG", "")
    paths = [Path(part) for part in named.split(os.pathsep) if part] or [Path.home() / ".kube" / "config"]
    found = [path for path in paths if path.exists()]
    if not found:
        missing = " or ".join(map(str, paths)) + (", which $KUBECONFIG names" if named else "")
        raise AccessError(f"no kubeconfig: there is no file {missing}", _KUBECONFIG_HINT)
    return found


def choose_context(kubeconfig: Path | None, cluster: str, context: str = "") -> str:
    """Return the context for a Cluster: the one that is asked for, else the one with the Cluster's name.

    Empty if there is neither, or no kubeconfig: the current context. Raises KubeconfigError.
    """
    if context or not cluster:
        return context
    try:
        paths = locate_kubeconfig(kubeconfig)
    except AccessError:
        return ""
    return cluster if cluster in _merge(paths)[0]["contexts"] else ""


def current_context(kubeconfig: Path | None) -> str:
    """Return the name of the current context; empty if there is none, or no kubeconfig. Raises KubeconfigError."""
    try:
        paths = locate_kubeconfig(kubeconfig)
    except AccessError:
        return ""
    return _merge(paths)[1]


def _merge(paths: Sequence[Path]) -> tuple[dict[str, dict[str, KubeconfigSection]], str]:
    """Return the sections of the merged files, and the current context. Raises KubeconfigError.

    The first file that declares a name wins, and the first that has a current context.
    """
    sections: dict[str, dict[str, KubeconfigSection]] = {"contexts": {}, "clusters": {}, "users": {}}
    current = ""
    for path in paths:
        data = _read(path)
        current = current or str(data.get("current-context") or "")
        for key, found in sections.items():
            for name, values in _section_entries(data.get(key), key.removesuffix("s"), path):
                found.setdefault(name, KubeconfigSection(name, values, path))
    return sections, current


def select(paths: Sequence[Path], context: str = "", cluster: str = "") -> ContextSelection:
    """Return the selection of a context in the merged files. Raises KubeconfigError.

    By default it is the one with the name of the Cluster `cluster`, else the current one.
    """
    sections, current = _merge(paths)
    same = cluster if cluster in sections["contexts"] else ""
    wanted, where = context or same or current, ", ".join(map(str, paths))
    if not wanted:
        raise KubeconfigError(f"{where}: not a kubeconfig with a current context", "`--context` selects one")
    if wanted not in sections["contexts"]:
        known = ", ".join(sections["contexts"]) or "none"
        what = f"has no context `{wanted}`; its contexts: {known}"
        if not context:
            raise KubeconfigError(f"{where}: not a kubeconfig with a current context: it {what}")
        raise KubeconfigError(f"{where} {what}")
    chosen = sections["contexts"][wanted]
    server = sections["clusters"].get(str(chosen.values.get("cluster")))
    if server is None or not server.values.get("server"):
        what = f"cluster `{chosen.values.get('cluster')}` of context `{wanted}` has no server"
        raise KubeconfigError(f"{where}: not a kubeconfig with a current context: {what}")
    user = str(chosen.values.get("user") or "")
    if user and user not in sections["users"]:
        raise KubeconfigError(f"{where}: no user `{user}`, which context `{wanted}` names")
    return ContextSelection(chosen, server, sections["users"].get(user, KubeconfigSection("", {}, chosen.file)))


def _read(path: Path) -> Mapping[str, Any]:
    try:
        data = yaml.load(path.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
    except OSError as error:
        raise KubeconfigError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, ValueError) as error:
        why = " ".join(str(error).split())
        raise KubeconfigError(f"{path}: not a kubeconfig with a current context ({why})") from None
    if not isinstance(data, Mapping):
        raise KubeconfigError(f"{path}: not a kubeconfig with a current context")
    return data


def _section_entries(entries: Any, key: str, path: Path) -> list[tuple[str, Mapping[str, Any]]]:
    if entries is None:
        return []
    try:
        found = [(str(entry["name"]), entry.get(key) or {}) for entry in entries]
    except (KeyError, TypeError, AttributeError):
        raise KubeconfigError(f"{path}: `{key}s` is not a list of named entries") from None
    if not all(isinstance(values, Mapping) for _, values in found):
        raise KubeconfigError(f"{path}: `{key}s` is not a list of named entries")
    return found
