"""`avactl diff --live`: compare the specs with a cluster, by the dry run of `avactl reconcile`."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from avactl.base.exit_codes import CHANGES, OK, USAGE
from avactl.cli.cluster.cluster_session import chosen_context, connect, guard_imports
from avactl.cli.common import exit_with


def compare_live(
    path: Path, revision: str | None, cluster: str, kubeconfig: Path | None, context: str, *, json: bool
) -> int:
    """Print how the cluster's objects would change, and return the exit code, CHANGES if any would.

    `revision` is that of the specs, by default the work tree. Nothing is written.
    """
    with guard_imports():
        from avactl.apply.reconcile import command

    try:
        request = command.ReconcileRequest(
            path=path,
            connect=partial(connect, kubeconfig, context),
            context=chosen_context(kubeconfig, context),
            branch=revision or "",
            cluster=cluster,
            dry_run=True,
            json=json,
        )
        return asyncio.run(command.run(request))
    except ValueError as error:
        exit_with(str(error), USAGE)


def exit_code(code: int, wanted: bool) -> int:
    """Return the exit code of `diff`: changes count only if that was asked for."""
    return OK if code == CHANGES and not wanted else code
