"""The Pulumi engine for tests: its command and Kubernetes provider, built from their pinned Go modules.

Pulumi's host of Python programs is part of no Go module. Inline programs of the Automation API need none.
"""

from __future__ import annotations

import os
from pathlib import Path

from tools.controlplane import build_binaries
from tools.controlplane.build import EmbeddedFiles, Module

HERE = Path(__file__).parent
CLI_VERSION = "v3.260.0"
PROVIDER = "github.com/pulumi/pulumi-kubernetes/provider/v4"
PROVIDER_VERSION = "4.25.0"
"""The release whose commit go.mod pins: the module's own tags are not in the form that Go knows."""

# Set by the release scripts. The Automation API refuses an engine without a version, the engine such a provider.
_CLI_VERSION_FLAG = f"-X github.com/pulumi/pulumi/sdk/v3/go/common/version.Version={CLI_VERSION}"
_PROVIDER_VERSION_FLAG = f"-X {PROVIDER}/pkg/version.Version={PROVIDER_VERSION}"

MODULES = (
    Module(HERE / "pulumi-cli", f"-s -w {_CLI_VERSION_FLAG}", {"pulumi": "github.com/pulumi/pulumi/pkg/v3/cmd/pulumi"}),
    Module(
        HERE / "pulumi-kubernetes",
        f"-s -w {_PROVIDER_VERSION_FLAG}",
        {"pulumi-resource-kubernetes": "."},
        embeds=EmbeddedFiles(PROVIDER, "cmd/pulumi-resource-kubernetes", ("schema.json", "terraform-mapping.json")),
    ),
)


def find_engine() -> str:
    """Return a PATH that begins with the engine, building what is not in the cache. As `build_binaries`.

    A cold build takes about 15 CPU-minutes. The engine finds its plugins on PATH.
    """
    binaries = build_binaries([name for module in MODULES for name in module.packages], MODULES)
    return os.pathsep.join([*(str(path.parent) for path in binaries.values()), os.environ["PATH"]])
