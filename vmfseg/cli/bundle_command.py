# SPDX-License-Identifier: Apache-2.0
"""``vmfseg bundle``: make, write and check bundles."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from vmfseg.cli.terminal import AsJson, Overwrite, echo, print_json, print_line, print_table
from vmfseg.utils import VmfError
from vmfseg.utils.io import refuse_existing

__all__ = ["build", "check", "new", "ship"]


def new(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Small letters, digits and _: knee_t2.", show_default=False)
    ],
    source: Annotated[
        Path | None, typer.Option("--from", metavar="DATA", help="Plan it from these scans, as vmfseg plan does.")
    ] = None,
    labels: Annotated[
        str | None, typer.Option(help="Class names of the labels 1, 2, ...: LV,MYO,RV.", show_default=False)
    ] = None,
    spacing: Annotated[float | None, typer.Option(help="In-plane spacing of the slices in mm.")] = None,
    size: Annotated[int | None, typer.Option(help="Size of the slices in pixels, a multiple of 16.")] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder in which the bundle is made.")] = Path(
        "bundles"
    ),
    method: Annotated[
        str,
        typer.Option(help="dgnet, lddg, saml, sdnet, unet, unsupervised, vmfnet, vmfpseudo, vmfweak or weak."),
    ] = "vmfnet",
    target_domain: Annotated[
        str, typer.Option("--target_domain", help="Domain that is left out and judged; can be given later.")
    ] = "",
    labeled_fraction: Annotated[
        float, typer.Option("--labeled_fraction", help="Share of labelled subjects in every group.")
    ] = 1.0,
    overwrite: Overwrite = False,
) -> None:
    r"""Make a bundle for your own scans: a folder with a table of images, masks and domains.

    Slices of SIZE pixels at SPACING mm must hold the organ. With --from, what you
    do not give is planned from the scans; vmfseg plan shows the reasons.

    \b
    Examples:
      vmfseg bundle new knee --from ~/knees --target_domain siteC
      vmfseg bundle new knee --labels femur,tibia --spacing 0.8 --size 160
      vmfseg train knee --dataset_dir ~/knees --target_domain siteC
    """
    from vmfseg.bundle.new import new_bundle
    from vmfseg.cli.plan_command import look_and_plan

    root = output / name
    refuse_existing([root], overwrite)
    given = {"spacing": spacing, "size": size, "labels": None if labels is None else labels.split(",")}
    chosen: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if source is not None:
        proposal = look_and_plan(source, classes=labels, target_domain=target_domain, method=method)[-1]
        recipe = proposal.recipe
        chosen = {key: getattr(recipe, key) for key in (*given, "width", "batch_size")} | chosen
        kept = [choice for choice in proposal.choices if given.get(choice.name) is None]
        print_table(("", "", ""), [(choice.name, str(choice.value), choice.reason) for choice in kept])
    missing = [f"--{key}" for key in given if key not in chosen]
    if missing:
        raise ValueError(f"{', '.join(missing)} must be given, got nothing. Plan them by --from DATA.")
    new_bundle(
        name,
        output,
        **chosen,
        method=method,
        target_domain=target_domain,
        labeled_fraction=labeled_fraction,
        overwrite=overwrite,
    )
    side, step = chosen["size"], chosen["spacing"]
    echo(f"written: {root} ({side} x {side} pixels of {step} mm hold {side * step:.0f} mm)")
    place = source or "DIR"
    echo(f"next: vmfseg train {root} --dataset_dir {place} --target_domain {target_domain or 'DOMAIN'}")


def build(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Which bundles; all by default.")] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder in which the bundles are made.")] = Path(
        "bundles"
    ),
) -> None:
    r"""Write the bundles of the package from their layers. Files that are as they should be stay untouched.

    \b
    Examples:
      vmfseg bundle build vmfnet_mnms -o my_bundles
      vmfseg bundle build
    """
    from vmfseg.bundle.compile import bundle_names, write_bundle

    for name in names or bundle_names():
        echo(f"{output / name}: {len(write_bundle(name, output))} files")


def check(
    bundles: Annotated[
        list[str],
        typer.Argument(
            metavar="BUNDLE", help="Folders or zip files of bundles, or names of bundles.", show_default=False
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
        print_json(reports)
    else:
        for report in reports:
            _show(report)
    code = max(VmfError(finding["code"]).exit_code for finding in _all(reports)) if _all(reports) else 0
    if code:
        raise typer.Exit(code)


def ship(
    model: Annotated[
        str,
        typer.Argument(metavar="RUN", help="Folder of a run of hearts or cords.", show_default=False),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder for the files: bundles/hearts/models.", show_default=False)
    ],
    slices: Annotated[int, typer.Option(min=1, help="Phantom slices on which the labels are compared.")] = 64,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Calibrate again, for a run of another version: minutes.")
    ] = False,
    average: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Ship the mean of the weights of RUN and of this model, calibrated anew."),
    ] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    r"""Write a trained model in the form in which it is given away.

    Weights are stored in half precision if the labels of phantom slices stay the
    same. The manifest gets checksums of all files and what the training cost. A
    model that has learnt from scans of patients is refused.

    \b
    Example:
      vmfseg train hearts -o runs/hearts
      vmfseg bundle ship runs/hearts -o bundles/hearts/models --overwrite
    """
    import tempfile

    from vmfseg.model.ship import average_models, ship_model

    with tempfile.TemporaryDirectory(prefix="vmfseg-ship-") as folder:
        if average is not None:
            model = str(average_models(model, average, Path(folder) / "mean"))
        place = _calibrated(model, Path(folder)) if calibrate or average is not None else None
        report = ship_model(model, output, slices=slices, calibration=place, overwrite=overwrite)
    if as_json:
        print_json(asdict(report))
        return
    echo(f"written: {output} ({report.bytes / 1e6:.1f} MB, {report.precision})")
    echo(
        f"half precision on {report.slices} phantom slices: {100 * report.equal_labels:.4f} % of the pixels have equal "
        f"labels, Dice of the worst class {report.worst_dice:.4f}, logits up to {report.max_logit_difference:.2g} apart"
    )


def _calibrated(run: str, folder: Path) -> Path:
    """Calibrate a model on the drawn subjects of its own training, in another folder."""
    from vmfseg.data import prepare_experiment
    from vmfseg.engines.stages.calibration_stage import CalibrationStage
    from vmfseg.model import Model

    model = Model.load(run)
    data = model.facts.get("data") or {}
    drawn = prepare_experiment(str(data.get("dataset")), "", "", seed=data.get("seed", 0), phantom=data.get("phantom"))
    # a copy without the calibration that is there: one of another version could not be read
    for name in (model.weights.name, "manifest.json"):
        (folder / name).write_bytes(model.weights.with_name(name).read_bytes())
    CalibrationStage(folder, drawn.validation, drawn.images, slices=0).run(folder, False)
    return folder


def _all(reports: list[dict[str, Any]]) -> list[dict[str, str]]:
    return [finding for report in reports for finding in report["findings"]]


def _report(bundle: str) -> dict[str, Any]:
    from vmfseg.bundle.archive import opened_bundle
    from vmfseg.bundle.check import inspect_bundle
    from vmfseg.model.shelves import on_shelf

    path = Path(bundle).expanduser()
    place = path if path.exists() else on_shelf(bundle) or path
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
