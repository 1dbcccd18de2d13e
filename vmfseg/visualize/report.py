# SPDX-License-Identifier: Apache-2.0
"""Report of a run as one HTML file: worst cases, scores, kernels, curves, manifest."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vmfseg.metrics.scores import METRICS
from vmfseg.metrics.tables import counted, protocol_words, reference_notes
from vmfseg.model import Predictor
from vmfseg.utils import VmfError, atomic_write
from vmfseg.utils.errors import find_vmf_error
from vmfseg.utils.io import StrPath, refuse_existing

from .curves import draw_boxes, draw_history
from .report_cases import ScoredVolume, add_pictures, scored_volumes
from .report_page import Page, flatten, picture
from .run_files import RunFiles, open_run, run_experiment

__all__ = ["build_report"]

_LOG = logging.getLogger(__name__)
_MEASURES = {"edv_ml": "EDV, ml", "esv_ml": "ESV, ml", "ef_percent": "ejection fraction, %"}


def build_report(
    run_dir: StrPath,
    output: StrPath | None = None,
    *,
    dataset_dir: StrPath | None = None,
    checkpoint: StrPath | None = None,
    cases: int = 4,
    overwrite: bool = False,
    trust: bool = False,
) -> Path:
    """Write the report of a run.

    Figures, tables and curves come from the files of the run. For pictures of cases the model segments a few volumes
    again; where that cannot be done (no model, no data) the report says why and shows the rest.

    Args:
        run_dir: output folder of a training, a bundle, the name of a bundle, or a folder that ``vmfseg evaluate``
            wrote.
        output: the HTML file; default ``report.html`` in the folder of the figures.
        dataset_dir: the data of the run; not needed for the phantom.
        checkpoint: the model, if it is neither in ``models`` of the folder nor in its bundle.
        cases: how many worst cases to show; 0 shows none and needs neither model nor data.
        overwrite: whether an existing report may be replaced.
        trust: see :meth:`vmfseg.model.Model.load`.

    Returns:
        The file.

    Raises:
        ValueError: if ``cases`` is negative.
        VmfError: VMF352 and VMF353 if ``run_dir`` holds no figures, VMF503 if the report exists.
    """
    if cases < 0:
        raise ValueError(f"cases must be 0 or more, got {cases}.")
    run = open_run(run_dir, checkpoint, trust=trust)
    target = Path(output) if output is not None else run.folder / "report.html"
    refuse_existing([target], overwrite)
    volumes = scored_volumes(run.rows)
    page = _page(run, volumes, _title(run, Path(run_dir)))
    if cases:
        _add_cases(page, run, volumes, cases, dataset_dir)
    atomic_write(target, page.render(), overwrite=overwrite)
    return target


def _title(run: RunFiles, given: Path) -> str:
    return (run.model.name if run.model else "") or given.name or given.resolve().name


def _page(run: RunFiles, volumes: Sequence[ScoredVolume], title: str) -> Page:
    summary, overall = run.summary, run.summary["overall"]
    domains = ", ".join(summary["domains"])
    counts = f"{counted(overall['n_volumes'], 'volume')} of {counted(overall['n_subjects'], 'subject')}"
    lead = ", ".join(part for part in (f"Domain {domains}; {counts}", protocol_words(summary)) if part)
    page = Page(title=title, lead=f"{lead}.")
    page.notes += run.notes
    page.notes += [str(line) for line in summary.get("inputs", {}).get("warnings", [])]
    page.cards = _cards(summary, volumes)
    page.class_names = list(summary["labels"].values())
    page.classes = _classes(summary)
    page.volumes = [_volume(volume, page.class_names) for volume in volumes]
    page.cardiac = [
        {"cavity": cavity, "measure": _MEASURES.get(name, name), **entry}
        for cavity, measures in summary.get("cardiac", {}).get("summary", {}).items()
        for name, entry in measures.items()
    ]
    page.reference = reference_notes(summary)
    if any(row.dice is not None for row in run.rows):
        page.boxes = picture(draw_boxes(run.rows), "Dice of each volume by domain and class")
    if run.epochs:
        selected = None if run.model is None else run.model.facts.get("selection", {}).get("epoch")
        page.history = picture(draw_history(run.epochs, selected), "Loss terms and validation Dice during training")
    page.facts = _facts(run)
    page.definitions = [(name, entry["unit"], entry["definition"]) for name, entry in summary["definitions"].items()]
    page.policy = summary["policy"]
    return page


def _add_cases(
    page: Page, run: RunFiles, volumes: Sequence[ScoredVolume], cases: int, dataset_dir: StrPath | None
) -> None:
    if run.model is None:
        page.notes.append("There is no trained model beside these figures, so there are no pictures of cases.")
        return
    try:
        experiment, same = run_experiment(run.model, dataset_dir)
        if not same:
            page.notes.append("The data is not the one of the run (checksums or split differ); pictures may differ.")
        predictor = Predictor.from_bundle(run.model.root, checkpoint=run.model.weights, trust=run.model.trust)
        add_pictures(page, predictor, experiment, volumes, cases)
    except (VmfError, RuntimeError) as error:
        refusal = find_vmf_error(error)
        if refusal is None:
            raise
        _LOG.warning("no pictures of cases: %s", refusal.render())
        # the subject may be a path of this machine, which is nobody's business in a file that is passed on
        reason = ": ".join(part for part in (refusal.rule, refusal.found) if part)
        page.notes.append(f"No pictures of cases ({refusal.code}): {reason}.")


def _cards(summary: Mapping[str, Any], volumes: Sequence[ScoredVolume]) -> list[tuple[str, str, bool]]:
    entries = [entry["dice"] for entry in summary["overall"]["classes"].values()]
    missed, spurious = (sum(entry[key] for entry in entries) for key in ("n_missed", "n_spurious"))
    cards = [(_dice(summary["mean_dice"]), "mean Dice over classes", False)]
    cards += [(_dice(e["dice"]["mean"]), f"Dice {name}", False) for name, e in summary["overall"]["classes"].items()]
    known = [volume for volume in volumes if volume.mean is not None]
    if known:
        cards.append((_dice(known[0].mean), f"worst volume, {known[0].name}", False))
    cards += [(str(missed), "structures missed", missed > 0), (str(spurious), "structures spurious", spurious > 0)]
    return cards


def _classes(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    groups = [(domain, group, False) for domain, group in summary["domains"].items()]
    if len(groups) > 1:
        groups.append(("all", summary["overall"], True))
    return [
        {"domain": domain, "name": name, "total": total, **{metric: entry[metric] for metric in METRICS}}
        for domain, group, total in groups
        for name, entry in group["classes"].items()
    ]


def _volume(volume: ScoredVolume, names: Sequence[str]) -> dict[str, Any]:
    first = volume.rows[0]
    by_class = {row.class_name: row for row in volume.rows}
    return {
        "domain": first.domain,
        "subject": first.subject,
        "phase": first.phase or ("" if first.frame is None else f"frame {first.frame}"),
        "mean": volume.mean,
        "dice": {name: by_class[name].dice if name in by_class else None for name in names},
        "hd95": {name: by_class[name].hd95_mm if name in by_class else None for name in names},
        "remark": volume.remark,
    }


def _facts(run: RunFiles) -> list[tuple[str, list[tuple[str, str]]]]:
    facts: list[tuple[str, list[tuple[str, str]]]] = []
    if run.model is not None:
        model, rest = run.model, dict(run.model.facts)
        versions, sums = rest.pop("versions", {}), rest.pop("sha256", {})
        steps = [str(step.get("_target_", "")).rsplit(".", 1)[-1] for step in model.preprocessing]
        about = {"bundle": model.name, "version": model.version, "preprocessing": steps, **rest}
        groups = {"Run": about, "Network": model.network, "Versions": versions, "Checksums (SHA-256)": sums}
        facts = [(title, flatten(values)) for title, values in groups.items() if values]
    spacings = [
        (" × ".join(f"{size:g}" for size in entry["spacing"]) + " mm", counted(entry["n_volumes"], "volume"))
        for entry in run.summary.get("spacing_mm", [])
    ]
    return [*facts, ("Voxel sizes", spacings)] if spacings else facts


def _dice(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
