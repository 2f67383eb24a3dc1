"""Checks of `Cluster.spec.reconcile`: required settings of the engine are present, unsupported ones absent."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic.alias_generators import to_camel

from avactl.diagnostics import Diagnostic
from avactl.diagnostics.suggest import one_of
from avactl.program.program import Item
from avactl.spec.platform.cluster import ClusterSpec
from avactl.spec.platform.reconcile import USED, Reconcile
from avactl.spec.schema.values import duration_seconds


def check_reconcile(item: Item[ClusterSpec]) -> Iterator[Diagnostic]:
    """Yield the problems of one cluster's `reconcile`."""
    spec: Reconcile = item.spec.reconcile
    given = [name for name in type(spec).model_fields if name in spec.model_fields_set and name != "mode"]
    used = USED.get(spec.mode, frozenset())
    for name in given:
        if name not in used:
            yield Diagnostic(
                "conflicting-keys",
                f"`{to_camel(name)}` has no effect with `mode: {spec.mode}`",
                item.span("spec", "reconcile", to_camel(name), key=True),
                hint=_engine_hint(name, spec.mode),
            )
    if not used:
        return
    known = [name for name in given if name in used]
    if spec.repository is None:
        if known:
            yield Diagnostic(
                "missing-key",
                f"`{to_camel(known[0])}` requires `repository`, the repository that the engine follows",
                item.span("spec", "reconcile", to_camel(known[0]), key=True),
                hint="add `repository: https://…`, or remove the key",
            )
        return
    if spec.mode == "pulumiOperator" and spec.service_account is None:
        yield Diagnostic(
            "missing-key",
            "the Pulumi operator needs a service account to run stacks",
            item.span("spec", "reconcile", key=True),
            hint="add `serviceAccount: NAME` with permission to apply the compiled objects; see docs/gitops.md",
        )
    if spec.mode == "pulumiOperator" and spec.interval is not None and duration_seconds(spec.interval) < 60:
        yield Diagnostic(
            "invalid-value",
            f"spec.reconcile.interval: the Pulumi operator polls at most once a minute, not every {spec.interval}",
            item.span("spec", "reconcile", "interval"),
            hint="write `1m` or more",
        )
    if spec.mode == "builtin" and str(spec.repository).startswith("ssh:"):
        yield Diagnostic(
            "invalid-value",
            "spec.reconcile.repository: the built-in reconciler supports only https",
            item.span("spec", "reconcile", "repository"),
            hint=f"write `{_over_https(str(spec.repository))}` and set `secret` to a Secret with `username` and "
            "`password`"
            if spec.secret is None
            else f"write `{_over_https(str(spec.repository))}`; the Secret needs the keys `username` and `password`",
        )
    if spec.secret is not None and str(spec.repository).startswith("http:"):
        yield Diagnostic(
            "invalid-value",
            "spec.reconcile.repository: http would send the credentials of `secret` unencrypted",
            item.span("spec", "reconcile", "repository"),
            hint=f"write `https{str(spec.repository)[4:]}`",
        )


def _over_https(url: str) -> str:
    """Return the usual https URL of a repository given by its ssh URL."""
    place, _, path = url.removeprefix("ssh://").rpartition("@")[2].partition("/")
    return f"https://{place.partition(':')[0]}/{path}"


def _engine_hint(name: str, mode: str) -> str:
    if name == "secret" and mode == "argocd":
        return "remove it: Argo CD finds credentials by the repository's URL (`argocd repo add`)"
    modes = [other for other, used in USED.items() if name in used]
    return f"remove it, or set `mode` to {one_of(modes)}"
