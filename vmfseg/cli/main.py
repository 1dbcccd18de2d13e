# SPDX-License-Identifier: Apache-2.0
"""The program ``vmfseg``: its commands, imported when they are called, and its error messages and exit codes."""

from __future__ import annotations

from vmfseg.cli.streams import interruptible, leave_when_interrupted, safe_streams

if __name__ == "__main__":
    leave_when_interrupted()  # the imports below take their time

import importlib
import inspect
import os
import sys
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from vmfseg import __version__
from vmfseg.threads import calm_threads

__all__ = ["app", "main"]

_HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}
#: Plain help and errors: the boxes of rich take twice the time to import.
_PLAIN: dict[str, Any] = {"pretty_exceptions_enable": False, "rich_markup_mode": None}
#: Commands that have commands of their own.
_GROUPS = {
    "bundle": {
        "new": "Make a bundle for your own scans.",
        "build": "Write the bundles of the package from their layers.",
        "check": "Check bundles without executing them.",
        "ship": "Write a trained model in the form in which it is given away.",
    },
    "study": {
        "plan": "List the runs of a study and estimate what they cost.",
        "run": "Execute the runs that are missing, here, on Ray or on Slurm.",
        "status": "Show the state of every method.",
        "table": "Write the tables: Markdown, LaTeX, CSV, HTML.",
    },
}
_COMMANDS = {
    "adapt": "Adapt a model that a phantom taught to your own scans, without labels.",
    "bundle": "Make bundles, and check one before it is used.",
    "doctor": "Check Python, libraries, devices, memory, disk and cache.",
    "evaluate": "Score predicted label maps against the truth.",
    "explain": "Draw image, prediction and the map of every kernel.",
    "export": "Export the network to ONNX, OpenVINO, TorchScript or torch.export.",
    "info": "Describe a bundle or a trained model.",
    "package": "Write a container recipe of a trained bundle.",
    "phantom": "Make a multi-vendor phantom data set.",
    "plan": "Look at your scans and propose a bundle for them, with reasons.",
    "report": "Write a self-contained HTML report of a run.",
    "segment": "Segment scans, with predicted Dice and a green/amber/red flag.",
    "serve": "Start a MONAI Label-compatible server with a viewer in the browser.",
    "shift": "Test whether scans come from a scanner that the model does not know.",
    "study": "Run a grid of methods, targets and seeds, and tabulate it.",
    "train": "Train a bundle.",
    "verify": "Check every image, label and pair of a data set.",
}


class LazyCommand(TyperCommand):
    """A command whose module is imported when it is called: ``vmfseg --help`` needs neither torch nor MONAI.

    Args:
        name: of the command.
        module: in which its function lies.
        summary: one line for the list of commands.
    """

    def __init__(self, name: str, module: str, summary: str) -> None:
        super().__init__(name=name, help=summary, short_help=summary, rich_markup_mode=None)
        self.module = module

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Import the function and go on with its own command."""
        function = getattr(importlib.import_module(f"vmfseg.cli.{self.module}"), str(self.name))
        app = typer.Typer(add_completion=False, context_settings=_HELP_OPTIONS, **_PLAIN)
        settings = dict(_HELP_OPTIONS)
        if getattr(function, "takes_any_option", False):
            settings |= {"allow_extra_args": True, "ignore_unknown_options": True}  # type: ignore[dict-item]
        interruptible()  # the imports are done
        # \b in a raw docstring: typer keeps the lines of the paragraph below the character
        text = inspect.cleandoc(function.__doc__ or "").replace("\\b", "\b")
        app.command(self.name, help=text, context_settings=settings)(function)
        command: Any = get_command(app)
        if extra.get("resilient_parsing"):  # TAB asks which options were given, not what their values mean
            for parameter in command.get_params(parent):
                parameter.process_value = lambda _context, value: value
        return command.make_context(info_name, args, parent=parent, **extra)


class _LightGroup(TyperGroup):
    """Commands under one name, found without imports that only their values need."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Give flags without a default ``False``: to convert ``None``, typer would import pydantic."""
        for parameter in self.get_params(ctx):
            if getattr(parameter, "is_flag", False) and parameter.default is None:
                parameter.default = False
        return super().parse_args(ctx, args)


class _Group(_LightGroup):
    """The commands of ``vmfseg``."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, summary in _COMMANDS.items():
            self.add_command(LazyCommand(name, f"{name}_command", summary))
        options = {"no_args_is_help": True, "context_settings": _HELP_OPTIONS, "rich_markup_mode": None}
        for name, members in _GROUPS.items():
            group = _LightGroup(name=name, help=_COMMANDS[name], short_help=_COMMANDS[name], **options)
            for member, summary in members.items():
                group.add_command(LazyCommand(member, f"{name}_command", summary))
            self.add_command(group, name)

    def invoke(self, ctx: Any) -> Any:
        """Run a command; one that is interrupted and says nothing itself ends with a line (typer would be silent)."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            leave_when_interrupted()
            sys.stderr.write("interrupted\n")
            raise typer.Exit(130) from None


app = typer.Typer(
    name="vmfseg",
    cls=_Group,
    help="Segment scans of unseen scanners from few labels, and see why.",
    no_args_is_help=True,
    context_settings=_HELP_OPTIONS,
    **_PLAIN,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"vmfseg {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version and stop."
    ),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error as well."),
) -> None:
    if debug:
        os.environ["VMFSEG_DEBUG"] = "1"


def main() -> None:
    """Run the command line. Exit codes: see :mod:`vmfseg.utils.errors`."""
    leave_when_interrupted()
    safe_streams()
    calm_threads()  # before a command imports torch
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # here, where a full disk can still be reported
    except Exception as error:
        if os.environ.get("VMFSEG_DEBUG"):
            import traceback

            traceback.print_exc()
        refusal = _refusal(error)
        sys.stderr.write(f"vmfseg: {refusal.render()}\n")
        sys.exit(refusal.exit_code)


def _refusal(error: Exception) -> Any:
    """Return what is shown of an error: a wrong argument, a fault of the system, or a bug."""
    from vmfseg.utils.errors import VmfError, find_vmf_error

    found = find_vmf_error(error)
    if found is not None:
        return found
    if isinstance(error, OSError):
        return VmfError(
            "VMF560",
            subject=" -> ".join(os.fsdecode(name) for name in (error.filename, error.filename2) if name),
            found=error.strerror or type(error).__name__,
        )
    if isinstance(error, MemoryError):
        cause = str(error).splitlines()[0] if str(error) else ""
        return VmfError("VMF561", found=cause)
    if isinstance(error, ValueError):
        return VmfError("VMF100", rule=str(error))
    rule = f"{type(error).__name__}: {error}"
    return VmfError("VMF900", rule=rule[:300], fix="run again with --debug and report it")


if __name__ == "__main__":
    main()
