"""Authentication of exposed workspaces: by the gateway, or by the editor itself."""

from __future__ import annotations

import re
from collections.abc import Iterator

from avactl.diagnostics import Diagnostic, Note
from avactl.kinds.workspace.spec import WorkspaceSpec
from avactl.program.program import Item, Program
from avactl.spec.schema.base import EnvSource
from avactl.spec.schema.exposure import Expose

VARIABLES = ("JUPYTER_TOKEN", "PASSWORD", "HASHED_PASSWORD")
"""Variables from which editors take the credentials of their user: Jupyter; code-server and RStudio; code-server.

Sources: jupyter_server/auth/identity.py; https://coder.com/docs/code-server/FAQ; rocker-org/rocker-versioned2
"""
_SWITCHED_OFF = re.compile(
    r"""--(?:\w+\.)?token(?:=|\s+)(?:''|""|(?=\s|$))"""
    r"|--auth(?:=|\s+)none\b|--auth-none(?:=|\s+)1\b|--(?:\w+\.)?allow_unauthenticated_access(?:=|\s+)true\b",
    re.IGNORECASE,
)
"""Options by which Jupyter, code-server and RStudio let everybody in."""
_MAX_BYTES = 65_536


def authentication_problems(item: Item[WorkspaceSpec], program: Program, expose: Expose) -> Iterator[Diagnostic]:
    """Yield a problem if neither the gateway nor the editor of an exposed workspace authenticates users."""
    cluster = program.cluster(item.cluster)
    offered = cluster.spec.exposure
    if offered is None or offered.authenticates:
        return
    for key in ("command", "args"):
        words = getattr(item.spec, key)
        found = _SWITCHED_OFF.search(" ".join(word if word else "''" for word in words)[:_MAX_BYTES])
        if found is not None:
            yield Diagnostic(
                "exposed-without-authentication",
                f"`{found[0].strip()[:60]}` lets everybody at `{expose.host}` run code in the workspace",
                item.span("spec", key),
                hint="remove the option, or let the gateway authenticate users: `authenticates: true` in the Cluster's "
                "`exposure`",
                notes=(Note(item.span("spec", "expose", "host"), "exposed here"),),
            )
            return
    if any(isinstance(item.spec.env.get(name), EnvSource) for name in VARIABLES):
        return
    yield Diagnostic(
        "exposed-without-authentication",
        f"{item} is exposed, and neither the gateway nor the editor is known to authenticate users",
        item.span("spec", "expose", key=True),
        hint="add `env: {JUPYTER_TOKEN: {secret: {name: …, key: …}}}` (PASSWORD for code-server and RStudio), or "
        "`authenticates: true` to the Cluster's `exposure`, if its gateway does",
        notes=(Note(cluster.span("spec", "exposure", key=True), "the gateway"),),
    )
