# SPDX-License-Identifier: Apache-2.0
"""The program ``vmfseg``: its commands, imported when they are called, and its error messages and exit codes."""

from __future__ import annotations

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
_BUNDLE = {
    "new": "Make a bundle for your own scans.",
    "build": "Write the bundles of the package from their layers.",
    "check": "Check bundles without executing them.",
}
_COMMANDS = {
    "bundle": "Make bundles, and check one before it is used.",
    "doctor": "Check Python, libraries, devices, memory, disk and cache.",
    "evaluate": "Score predicted label maps against the truth.",
    "explain": "Draw image, prediction and the map of every kernel.",
    "export": "Export the network to ONNX, OpenVINO, TorchScript or torch.export.",
    "info": "Describe a bundle or a trained model.",
    "phantom": "Make a multi-vendor phantom data set.",
    "report": "Write a self-contained HTML report of a run.",
    "segment": "Segment scans, with predicted Dice and a green/amber/red flag.",
    "serve": "Serve models by the MONAI Label REST API, with a viewer in the browser.",
    "shift": "Test whether scans come from a scanner that the model does not know.",
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
        super().__init__(name=name, help=summary)
        self.module = module

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Import the function and go on with its own command."""
        function = getattr(importlib.import_module(f"vmfseg.cli.{self.module}"), str(self.name))
        app = typer.Typer(pretty_exceptions_enable=False, context_settings=_HELP_OPTIONS)
        settings = dict(_HELP_OPTIONS)
        if getattr(function, "takes_any_option", False):
            settings |= {"allow_extra_args": True, "ignore_unknown_options": True}  # type: ignore[dict-item]
        # \b in a raw docstring: typer keeps the lines of the paragraph below the character
        text = inspect.cleandoc(function.__doc__ or "").replace("\\b", "\b")
        app.command(self.name, help=text, context_settings=settings)(function)
        return get_command(app).make_context(info_name, args, parent=parent, **extra)


class _Group(TyperGroup):
    """The commands of ``vmfseg``."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, summary in _COMMANDS.items():
            self.add_command(LazyCommand(name, f"{name}_command", summary))
        members = [LazyCommand(name, "bundle_command", summary) for name, summary in _BUNDLE.items()]
        options = {"no_args_is_help": True, "context_settings": _HELP_OPTIONS}
        group = TyperGroup(name="bundle", help=_COMMANDS["bundle"], **options)
        for member in members:
            group.add_command(member)
        self.add_command(group, "bundle")


app = typer.Typer(
    name="vmfseg",
    cls=_Group,
    help="Segment scans of unseen scanners from few labels, and see why.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings=_HELP_OPTIONS,
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
    calm_threads()  # before a command imports torch
    try:
        app()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)
    except Exception as error:
        from vmfseg.utils import find_vmf_error

        refusal = find_vmf_error(error)
        if os.environ.get("VMFSEG_DEBUG"):
            import traceback

            traceback.print_exc()
        if refusal is not None:
            sys.stderr.write(f"vmfseg: {refusal.render()}\n")
            sys.exit(refusal.exit_code)
        if isinstance(error, ValueError):
            sys.stderr.write(f"vmfseg: error VMF100: {error}\n")
            sys.exit(2)
        sys.stderr.write(
            f"vmfseg: error VMF900: {type(error).__name__}: {error}\n  fix    run again with --debug and report it\n"
        )
        sys.exit(7)


if __name__ == "__main__":
    main()
