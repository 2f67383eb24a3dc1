"""The `avactl` command as a typer app. Each command is a module of one of the packages, imported on use."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from avactl.cli.common import EXIT_CODES, exit_on_hinted_error
from avactl.diagnostics.suggest import closest_word


class Command(NamedTuple):
    """One command of `avactl`."""

    package: str
    """Package of `avactl.cli` with its module. The function is `NAME` of the module `NAME` (with `_` behind words of
    Python: `set_`, `import_`); a `typer.Typer` has its own commands."""
    help: str
    """One line in `avactl --help`."""


COMMANDS = {
    "validate": Command("specs", "Check specs and report every problem with its location and remedy."),
    "render": Command("specs", "Write the compiled Kubernetes objects, one file each."),
    "diff": Command("changes", "Show what a change between two revisions does."),
    "ci": Command("changes", "Summarize a change in a pull request comment, from a CI pipeline."),
    "graph": Command("specs", "Draw teams, quotas, pools and workloads (SVG)."),
    "explain": Command("specs", "Explain a kind, a field or a diagnostic: meaning, type, unit, default."),
    "set": Command("specs", "Change values of a spec in place; comments and order are preserved."),
    "schema": Command("specs", "Print or write the JSON Schemas of the kinds, for editors."),
    "topo": Command("cluster", "Import a MachineType from `nvidia-smi topo -m`, or check a machine against its type."),
    "secrets": Command("specs", "List the Secrets that the specs need, with their keys."),
    "init": Command("specs", "Create a new spec repository that compiles."),
    "import": Command("specs", "Import manifests, a cluster or Slurm scripts as specs."),
    "preview": Command("changes", "Show the changes that `up` would make."),
    "up": Command("changes", "Apply a stack with the Pulumi engine."),
    "stacks": Command("changes", "List the Pulumi stacks, or those that a change affects."),
    "reconcile": Command("cluster", "Reconcile a cluster with git: apply, wait, prune, revert drift."),
    "plan": Command("changes", "Predict whether a change will run, and what it costs."),
    "local": Command("local", "Run a job as processes on this machine."),
    "dataset": Command("dataset", "Snapshot, verify, compare, list and pack the data of datasets."),
    "doctor": Command("cluster", "Check a cluster against the specs: what is missing, and the remedy."),
    "status": Command("cluster", "Show what is not at rest: promotions, pipelines, rollouts, jobs."),
    "snapshot": Command("cluster", "Capture the state of a cluster for `plan`: read-only, no secrets."),
    "why": Command("cluster", "Explain why a pod or job is pending."),
    "run": Command("jobs", "Run a job from a spec file: commit it on a branch, or start it at once."),
    "jobs": Command("jobs", "Show training jobs with their progress."),
    "logs": Command("jobs", "Print the logs of a training job, all pods together."),
    "wait": Command("jobs", "Wait until a training job has ended."),
    "dashboard": Command("jobs", "Show training jobs as a web page on this machine."),
    "top": Command("cluster", "Show live teams, pools and jobs of a cluster."),
    "pool": Command("cluster", "Draw a pool and the jobs on its GPUs (SVG)."),
    "defrag": Command("cluster", "Find the fewest pod moves that let a job start."),
    "scheduler": Command("cluster", "Run the scheduler in the cluster."),
    "cache": Command("cluster", "Run the cache daemon, or show what cache tiers hold."),
    "serving": Command("cluster", "Run the daemon of rollouts, or show the rollouts of services."),
    "delivery": Command("cluster", "Run the daemon of pipelines, show pipelines, and publish models."),
    "models": Command("models", "List versions of models, their lineage, and where they are served."),
    "promote": Command("models", "Serve a version of a model: commit it to the specs."),
    "rollback": Command("models", "Serve the version of a model from before: commit it to the specs."),
    "elastic": Command("cluster", "Run the master of an elastic job."),
}
"""Commands by name, in the order of `avactl --help`."""


class _Lazy(TyperGroup):
    """A group that imports commands on use: help and completion need only the table.

    Contexts and commands are Any, because some versions of typer bundle click.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        text = COMMANDS[cmd_name].help
        return TyperCommand(cmd_name, help=text, short_help=text)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if name in COMMANDS:
            return name, load_command(name), args[1:]
        near = closest_word(name, COMMANDS)
        if near is not None and not name.startswith("-"):
            ctx.fail(f"Unknown command `{name}`. Did you mean `{near}`?")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        with exit_on_hinted_error():
            return super().invoke(ctx)


def load_command(name: str) -> Any:
    """Import a command and return it with its parameters."""
    package = f"avactl.cli.{COMMANDS[name].package}"
    module = importlib.import_module(f"{package}.{'import_' if name == 'import' else name}")
    function = getattr(module, f"{name}_" if name in ("set", "import") else name)
    if isinstance(function, typer.Typer):
        single = function
        single.info.context_settings = _CONTEXT
    else:
        single = typer.Typer(add_completion=False, context_settings=_CONTEXT, rich_markup_mode=None)
        single.command(name)(function)
    command = typer.main.get_command(single)
    command.name = name
    return command


_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}

app = typer.Typer(
    cls=_Lazy,
    help="Compile specs of deep-learning clusters to Kubernetes objects, and show what a change does.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=_CONTEXT,
)


def _version(value: bool) -> None:
    if value:
        from avactl import __version__

        print(f"avactl {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    pass
