"""The Workspace kind: its model, checks and lowering."""

from __future__ import annotations

from avactl.kinds.registry import Kind
from avactl.kinds.workspace.lower import lower
from avactl.kinds.workspace.spec import Workspace, WorkspaceSpec

__all__ = ["KIND", "Workspace", "WorkspaceSpec"]

KIND = Kind(model=Workspace, lower=lower)
