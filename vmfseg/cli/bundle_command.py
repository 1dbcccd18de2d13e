# SPDX-License-Identifier: Apache-2.0
"""``vmfseg bundle``: make, write and check bundles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from vmfseg.bundle.archive import opened_bundle
from vmfseg.bundle.check import inspect_bundle
from vmfseg.bundle.compile import bundle_names, write_bundle
from vmfseg.bundle.new import METHODS, new_bundle
from vmfseg.cli.terminal import AsJson, Overwrite, print_line
from vmfseg.utils import VmfError

__all__ = ["build", "check", "new"]


def new(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Small letters, digits and _: knee_t2.", show_default=False)
    ],
    labels: Annotated[str, typer.Option(help="Class names of the labels 1, 2, ...: LV,MYO,RV.", show_default=False)],
    spacing: Annotated[float, typer.Option(help="In-plane spacing of the slices in mm.", show_default=False)],
    size: Annotated[int, typer.Option(help="Size of the slices in pixels, a multiple of 16.", show_default=False)],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for the bundle's folder.")] = Path("bundles"),
    method: Annotated[str, typer.Option(help=f"{', '.join(METHODS[:-1])} or {METHODS[-1]}.")] = "vmfnet",
    target_domain: Annotated[
        str, typer.Option("--target_domain", help="Domain that is left out and judged; can be given later.")
    ] = "",
    labeled_fraction: Annotated[
        float, typer.Option("--labeled_fraction", help="Share of labelled subjects in every group.")
    ] = 1.0,
    overwrite: Overwrite = False,
) -> None:
    r"""Make a bundle for your own scans: a folder with a table of images, masks and domains.

    Slices of SIZE pixels at SPACING mm must hold the organ; the spacing of your
    finest scanner is a good start.

    \b
    Example:
      vmfseg bundle new knee --labels femur,tibia --spacing 0.8 --size 160
      vmfseg train knee --dataset_dir ~/knees --target_domain siteC
    """
    new_bundle(
        name,
        output,
        labels.split(","),
        spacing,
        size,
        method=method,
        target_domain=target_domain,
        labeled_fraction=labeled_fraction,
        overwrite=overwrite,
    )
    root = output / name
    typer.echo(f"written: {root} ({size} x {size} pixels of {spacing} mm hold {size * spacing:.0f} mm)")
    typer.echo(f"next: vmfseg train {root} --dataset_dir DIR --target_domain {target_domain or 'DOMAIN'}")


def build(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Which bundles; all by default.")] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for the bundles' folders.")] = Path("bundles"),
) -> None:
    r"""Write the bundles of the package from their layers. Files that are as they should be stay untouched.

    \b
    Examples:
      vmfseg bundle build vmfnet_mnms -o my_bundles
      vmfseg bundle build
    """
    for name in names or bundle_names():
        typer.echo(f"{output / name}: {len(write_bundle(name, output))} files")


def check(
    bundles: Annotated[
        list[str],
        typer.Argument(
            metavar="BUNDLE", help="Folders or zip files of bundles, or names below ./bundles.", show_default=False
        ),
    ],
    as_json: AsJson = False,
) -> None:
    r"""Check bundles without executing them: code, files, hashes, broken configs.

    Exit code 0: good. 4: a config is broken. 5: not to be trusted, because it
    could run code of its own, write elsewhere, or is not what its manifest notes.

    \b
    Examples:
      vmfseg bundle check ~/downloads/their_bundle.zip
      vmfseg bundle check vmfnet_mnms --json
    """
    reports = [_report(bundle) for bundle in bundles]
    if as_json:
        typer.echo(json.dumps(reports, indent=2, ensure_ascii=False))
    else:
        for report in reports:
            _show(report)
    code = max(VmfError(finding["code"]).exit_code for finding in _all(reports)) if _all(reports) else 0
    if code:
        raise typer.Exit(code)


def _all(reports: list[dict[str, Any]]) -> list[dict[str, str]]:
    return [finding for report in reports for finding in report["findings"]]


def _report(bundle: str) -> dict[str, Any]:
    path = Path(bundle).expanduser()
    place = path if path.exists() or not (Path("bundles") / bundle).exists() else Path("bundles") / bundle
    try:
        with opened_bundle(place) as root:
            found = inspect_bundle(root)
    except VmfError as error:
        found = [error]
    return {"bundle": str(place), "good": not found, "findings": [finding.as_dict() for finding in found]}


def _show(report: dict[str, Any]) -> None:
    for finding in report["findings"]:
        print_line(VmfError(**finding).render(), "red" if finding["code"] >= "VMF4" else "yellow")
    untrusted = sum(finding["code"] >= "VMF4" for finding in report["findings"])
    broken = len(report["findings"]) - untrusted
    parts = [f"{untrusted} not to be trusted"] * bool(untrusted) + [f"{broken} broken"] * bool(broken)
    verdict = ", ".join(parts) or "good: no code of its own, files as noted, configs can work"
    print_line(f"{report['bundle']}: {verdict}", "" if parts else "green")
