# SPDX-License-Identifier: Apache-2.0
"""``vmfseg export``: the network of a bundle as a file for other runtimes, compared with the original."""

from __future__ import annotations

import inspect
import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from vmfseg.bundle import require_trusted
from vmfseg.bundle.vendor import vendor_bundle
from vmfseg.export.exporter import ExportReport, export_bundle
from vmfseg.model.spec import find_bundle

__all__ = ["export"]

_EXAMPLES = """Examples:
  vmfseg export vmfnet_mnms --to onnx
  vmfseg export vmfnet_mnms --to openvino --int8
  vmfseg export vmfnet_mnms --to torchscript -o heart.ts
  vmfseg export vmfnet_mnms --vendored -o zoo/
"""


def export(
    bundle: Annotated[
        str, typer.Argument(metavar="BUNDLE", help="Folder of a bundle, or a name below ./bundles.", show_default=False)
    ],
    to: Annotated[str, typer.Option(help="onnx, torchscript, torch-export or openvino.")] = "onnx",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The file; default beside the weights, for segment --backend.")
    ] = None,
    int8: Annotated[bool, typer.Option("--int8", help="Quantize to 8 bits (openvino; needs vmfseg\\[int8]).")] = False,
    vendored: Annotated[
        bool, typer.Option("--vendored", help="Instead, copy the bundle and its code to -o, to run without vmfseg.")
    ] = False,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Other weights than the bundle's: a file, or the folder that holds them.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
    trust: Annotated[bool, typer.Option("--trust", help="Use a bundle that vmfseg bundle check refuses.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON.")] = False,
) -> None:
    """Export the network: batch norm folded, reconstruction left out, compared with torch before it is written."""
    require_trusted(find_bundle(bundle), trust)
    if vendored:
        if output is None:
            raise ValueError("--vendored must have a folder to write to, got none. Give it by -o.")
        place = vendor_bundle(bundle, output, overwrite=overwrite)
        typer.echo(json.dumps({"path": str(place)}, indent=2) if as_json else f"written: {place}")
        return
    report = export_bundle(bundle, to, output, int8=int8, checkpoint=checkpoint, overwrite=overwrite)
    typer.echo(json.dumps(asdict(report), indent=2) if as_json else _text(report))


export.__doc__ = f"{inspect.cleandoc(export.__doc__ or '')}\n\n\b\n{_EXAMPLES}"


def _text(report: ExportReport) -> str:
    where = "source-validation slices" if report.real else "slices of noise (the bundle stores none of its own)"
    lines = [
        f"written: {report.path}",
        f"compared with torch on {report.slices} {where}:",
        f"  largest difference of logits  {report.max_logit_difference:.2g} (logits up to {report.max_logit:.3g})",
        f"  pixels with equal label       {100 * report.equal_labels:.4f} %",
    ]
    if report.dice is not None:
        lines.append(f"  Dice between the labels       {report.dice:.4f}")
    return "\n".join(lines)
