# SPDX-License-Identifier: Apache-2.0
"""The program ``vmfseg``: collects the verbs and turns every error into a short message and an exit code."""

from __future__ import annotations

import os
import sys
import traceback

import typer
from rich.console import Console

from vmfseg import __version__
from vmfseg.cli.bundle import app as bundle_app
from vmfseg.cli.doctor import doctor
from vmfseg.cli.evaluate import evaluate
from vmfseg.cli.explain import explain
from vmfseg.cli.export import export
from vmfseg.cli.info import info
from vmfseg.cli.phantom import phantom
from vmfseg.cli.report import report
from vmfseg.cli.segment import segment
from vmfseg.cli.serve import serve
from vmfseg.cli.shift import shift
from vmfseg.cli.texts import help_text
from vmfseg.cli.train import train
from vmfseg.cli.verify import verify
from vmfseg.utils import find_vmf_error

__all__ = ["app", "main"]

app = typer.Typer(
    name="vmfseg",
    help="Segment scanners you have never seen from few labels, and see why.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
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


for _verb in (doctor, evaluate, explain, export, info, phantom, report, segment, serve, shift, verify):
    app.command(_verb.__name__, help=help_text(_verb))(_verb)
_FREE = {"allow_extra_args": True, "ignore_unknown_options": True}  # every key of a config is an option
app.command("train", help=help_text(train), context_settings=_FREE)(train)
app.add_typer(bundle_app)


def main() -> None:
    """Run the command line. Exit codes: see :mod:`vmfseg.utils.errors`."""
    try:
        app()
    except KeyboardInterrupt:
        Console(stderr=True).print("interrupted")
        sys.exit(130)
    except Exception as error:
        refusal = find_vmf_error(error)
        if os.environ.get("VMFSEG_DEBUG"):
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
