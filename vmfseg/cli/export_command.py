# SPDX-License-Identifier: Apache-2.0
"""``vmfseg export``: the network of a model as a file for other runtimes."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vmfseg.cli.terminal import AsJson, Bundle, Checkpoint, Overwrite, Trust, echo, print_json

if TYPE_CHECKING:
    from vmfseg.export.exporter import ExportReport

__all__ = ["export"]


def export(
    bundle: Bundle,
    to: Annotated[str, typer.Option(help="onnx, torchscript, torch-export or openvino.")] = "onnx",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The file; default beside the weights, for segment --backend.")
    ] = None,
    int8: Annotated[bool, typer.Option("--int8", help="Quantize to 8 bits (openvino; needs vmfseg[int8]).")] = False,
    vendored: Annotated[
        bool, typer.Option("--vendored", help="Instead, copy the bundle and its code to -o, to run without vmfseg.")
    ] = False,
    checkpoint: Checkpoint = None,
    overwrite: Overwrite = False,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    r"""Export the network: batch norm folded, reconstruction left out, compared with torch before it is written.

    \b
    Examples:
      vmfseg export hearts --to onnx
      vmfseg export hearts --to openvino --int8
      vmfseg export hearts --to torchscript -o heart.ts
      vmfseg export hearts --vendored -o zoo/
    """
    from vmfseg.bundle.package import vendor_bundle
    from vmfseg.export.exporter import export_bundle

    if vendored:
        if output is None:
            raise ValueError("--vendored must have a folder to write to, got none. Give it by -o.")
        place = vendor_bundle(bundle, output, overwrite=overwrite)
        about, text = {"path": str(place)}, f"written: {place}"
    else:
        report = export_bundle(bundle, to, output, int8=int8, checkpoint=checkpoint, overwrite=overwrite, trust=trust)
        about, text = asdict(report), _text(report)
    if as_json:
        print_json(about)
    else:
        echo(text)


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
