# SPDX-License-Identifier: Apache-2.0
"""``vmfseg plan``: look at scans, propose a bundle for them with reasons, write it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vmfseg.cli.terminal import AsJson, Overwrite, print_json, print_line, print_table, progress_bar
from vmfseg.utils.io import refuse_existing

if TYPE_CHECKING:
    from vmfseg.bundle.scan_plan import Plan
    from vmfseg.data.datalist import Datalist
    from vmfseg.data.findings import Finding
    from vmfseg.data.scan_facts import ScanFacts

__all__ = ["look_and_plan", "plan"]

_GRID = ("domain", "scans", "labelled", "pixel mm", "slice mm", "field mm", "axes")
_CONTENT = ("domain", "intensity 1|50|99 %", "labels reach mm", "slices without label")


def plan(
    data: Annotated[
        Path,
        typer.Argument(metavar="DATA", help="A folder with a table of scans, the table, or a datalist.json."),
    ],
    target_domain: Annotated[
        str, typer.Option("--target_domain", help="Domain that is left out and judged: it decides nothing.")
    ] = "",
    classes: Annotated[
        str | None, typer.Option(help="Class names of the labels 1, 2, ..., if the data does not name them: LV,MYO,RV.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the bundle. [default: the name of the folder]", show_default=False)
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder in which the bundle is made.")] = Path(
        "bundles"
    ),
    sheet: Annotated[
        Path | None,
        typer.Option(help="Contact sheet, a PNG. [default: NAME_sites.png in this folder]", show_default=False),
    ] = None,
    method: Annotated[
        str, typer.Option(help="unet, vmfnet, vmfpseudo, ...: all are in vmfseg bundle new --help.")
    ] = "vmfnet",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and write nothing.")] = False,
    overwrite: Overwrite = False,
    workers: Annotated[int, typer.Option(min=1, help="Threads that read files.")] = 2,
    as_json: AsJson = False,
) -> None:
    r"""Look at your scans, propose a bundle with the reason of each value, and write it.

    Prints what differs between domains, and draws one slice of each into a PNG:
    look at it before you train. Nothing in the data's folder is written.

    \b
    Examples:
      vmfseg plan ~/knees --target_domain siteC
      vmfseg plan ~/knees --classes femur,tibia --name knee --dry-run
    """
    from vmfseg.bundle.compile import write_files

    title = name or bundle_name(data)
    picture = sheet if sheet is not None else Path(f"{title}_sites.png")
    root = output / title
    if not dry_run:
        refuse_existing([root, picture], overwrite)
    datalist, facts, findings, proposal = look_and_plan(
        data, classes=classes, target_domain=target_domain, method=method, workers=workers, quiet=as_json
    )
    files = proposal.recipe.compile(title)
    if not dry_run:
        _write_sheet(datalist, facts, proposal, picture, overwrite)
        write_files(files, root)
    if as_json:
        about = {
            **proposal.as_dict(),
            "domains": domain_rows(facts),
            "findings": [finding.as_dict() for finding in findings],
            "bundle": None if dry_run else str(root),
            "sheet": None if dry_run else str(picture),
        }
        print_json(about)
        return
    show_plan(facts, findings, proposal)
    if not dry_run:
        print_line(f"written: {root}, {picture} (look at it: do all sites show the organ alike?)")
        print_line(f"next: vmfseg verify {data}")
        domain = target_domain or "DOMAIN"
        print_line(f"      vmfseg train {root} --dataset_dir {data} --target_domain {domain}")


def look_and_plan(
    data: Path, *, classes: str | None, target_domain: str, method: str, workers: int = 2, quiet: bool = False
) -> tuple[Datalist, list[ScanFacts], list[Finding], Plan]:
    """Read a data set, measure its scans and plan a bundle.

    Raises:
        VmfError: what the data set, the reader and :func:`vmfseg.bundle.scan_plan.plan_bundle` refuse.
    """
    from vmfseg.bundle.scan_plan import find_budget, plan_bundle
    from vmfseg.data.discover import open_datalist
    from vmfseg.data.orientation import orientation_findings
    from vmfseg.data.scan_facts import measure_scans

    names = None if classes is None else dict(enumerate(["background", *(c.strip() for c in classes.split(","))]))
    datalist, findings = open_datalist(data, labels=names, checksums=False)
    with progress_bar("reading", "scans", quiet=quiet) as bar:
        task = bar.add_task("plan", total=len(datalist.rows))
        step: Callable[[int, int], None] = lambda done, _: bar.update(task, completed=done)  # noqa: E731
        facts = measure_scans(datalist, workers=workers, progress=step)
    findings = [*findings, *orientation_findings([scan.pose for scan in facts], datalist.labels)]
    proposal = plan_bundle(facts, datalist.labels, find_budget(), target_domain=target_domain, method=method)
    return datalist, facts, findings, proposal


def show_plan(facts: Sequence[ScanFacts], findings: Sequence[Finding], proposal: Plan) -> None:
    """Print the domains, what is unusual about them, and the proposals with their reasons."""
    rows = domain_rows(facts)
    for columns in (_GRID, _CONTENT):
        print_table(columns, [[row[name] for name in columns] for row in rows], right=_GRID[1:3])
        typer.echo("")
    for finding in findings:
        print_line(f"{finding.severity} {finding.code} {finding.subject}: {finding.message}", "yellow")
    choices = [(choice.name, str(choice.value), choice.reason) for choice in proposal.choices]
    print_table(("", "", ""), choices)


def domain_rows(facts: Sequence[ScanFacts]) -> list[dict[str, str]]:
    """Return a row of text for each domain."""
    from vmfseg.data.scan_facts import by_domain

    columns = (*_GRID, *_CONTENT[1:])
    return [dict(zip(columns, _cells(name, scans), strict=True)) for name, scans in by_domain(facts).items()]


def bundle_name(data: Path) -> str:
    """Return a name for a bundle from the path of its data.

    Example:
        >>> bundle_name(Path("/data/My Knees-2.csv")), bundle_name(Path("7T"))
        ('my_knees_2', 'data_7t')
    """
    place = data.expanduser().resolve()
    stem = place.name if place.is_dir() else place.stem
    word = re.sub(r"[^a-z0-9]+", "_", stem.lower()).strip("_")[:40]
    return word if re.match(r"[a-z]", word) else f"data_{word}".rstrip("_")


def _cells(name: str, scans: Sequence[ScanFacts]) -> list[str]:
    labelled = [scan for scan in scans if scan.row.is_labeled]
    reach = [max(scan.reach) for scan in scans if scan.reach is not None]
    low, middle, high = (sorted(scan.intensity[k] for scan in scans)[len(scans) // 2] for k in range(3))
    return [
        name,
        str(len(scans)),
        str(len(labelled)),
        _range([scan.in_plane for scan in scans]),
        _range([scan.spacing[2] for scan in scans]),
        _range([min(scan.extent) for scan in scans], ".0f"),
        ", ".join(sorted({scan.codes for scan in scans})),
        f"{low:.4g}|{middle:.4g}|{high:.4g}",
        _range(reach, ".0f") if reach else "-",
        _undrawn(labelled),
    ]


def _undrawn(scans: Sequence[ScanFacts]) -> str:
    if not scans:
        return "-"
    declared = sum(scan.shape[2] - scan.drawn for scan in scans)
    empty = sum(scan.empty for scan in scans)
    total = sum(scan.shape[2] for scan in scans)
    parts = [f"{empty} of {total} empty"] * bool(empty) + [f"{declared} declared"] * bool(declared)
    odd = [f"{scan.row.subject} drawn on {scan.undrawn} only" for scan in scans if scan.undrawn]
    return "; ".join([*parts, *odd[:2], *(["..."] if len(odd) > 2 else [])]) or "none"


def _range(values: Sequence[float], form: str = ".3g") -> str:
    low, high = format(min(values), form), format(max(values), form)
    return low if low == high else f"{low} to {high}"


def _write_sheet(datalist: Datalist, facts: Sequence[Any], proposal: Plan, path: Path, overwrite: bool) -> None:
    from vmfseg.utils import atomic_write
    from vmfseg.visualize.contact_sheet import draw_contact_sheet, sheet_panes

    window = proposal.recipe.size * proposal.recipe.spacing
    picture = draw_contact_sheet(sheet_panes(datalist, facts), datalist.labels, window)
    atomic_write(path, picture, overwrite=overwrite)
