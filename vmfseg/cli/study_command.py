# SPDX-License-Identifier: Apache-2.0
"""``vmfseg study``: plan, run, watch and tabulate a grid of bundle runs."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vmfseg.cli.terminal import print_line, print_table
from vmfseg.utils.errors import VmfError

if TYPE_CHECKING:
    from rich.table import Table

    from vmfseg.studies import Study
    from vmfseg.studies.records import Record

__all__ = ["plan", "run", "status", "table"]

File = Annotated[
    Path, typer.Argument(metavar="FILE", help="Study file: studies/phantom_mnms.yaml.", show_default=False)
]
Folder = Annotated[Path, typer.Argument(metavar="OUT", help="Folder of a study.", show_default=False)]
Data = Annotated[str, typer.Option("--dataset_dir", help="Your data; without it, the built-in phantom.")]
Methods = Annotated[
    list[str] | None, typer.Option("--method", metavar="NAME", help="Only this method of the study; repeatable.")
]
Trust = Annotated[bool, typer.Option("--trust", help="Execute bundles that are not those of the package.")]


def run(
    file: File,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the study.", show_default=False)],
    dataset_dir: Data = "",
    on: Annotated[str, typer.Option("--on", help="Engine: local, ray or slurm.")] = "local",
    jobs: Annotated[
        int, typer.Option("-j", "--jobs", min=0, help="Runs at the same time; 0: by cores and memory.")
    ] = 0,
    retry: Annotated[bool, typer.Option("--retry", help="Try failed runs again.")] = False,
    options: Annotated[
        list[str] | None,
        typer.Option("--engine", metavar="NAME=VALUE", help="Option of the engine, see the docs; repeatable."),
    ] = None,
    methods: Methods = None,
    trust: Trust = False,
) -> None:
    r"""Execute the runs of a study that are missing, then write its tables.

    Repeat the command to go on: finished runs are never repeated, a stopped one
    goes on from its last checkpoint, a failed one waits for --retry.

    \b
    Examples:
      vmfseg study run studies/phantom_mnms.yaml -o out/phantom
      vmfseg study run studies/mine.yaml --dataset_dir ~/MnMs -o out --on slurm
      vmfseg study run studies/mine.yaml -o out --on ray --engine address=auto
    """
    from vmfseg.studies import Plan, Study, find_data, make_engine, run_study
    from vmfseg.studies.table_files import write_tables

    study = Study.load(file, methods or ())
    planned = Plan(study, find_data(study, dataset_dir), trust)
    engine = make_engine(on, study.resources, jobs, _options(options or []))
    try:
        records = run_study(planned, output, engine, retry=retry, on_end=_tell)
    except KeyboardInterrupt:
        print_line("interrupted; the same command goes on", err=True)
        raise typer.Exit(130) from None
    for path in write_tables(output):
        print_line(f"written: {path}")
    failed = [record for record in records if record.state == "failed"]
    if failed:
        raise VmfError(
            "VMF374", subject=str(output), found=f"{len(failed)} of {len(records)}, the first: {failed[0].cell.label}"
        )


def plan(
    file: File,
    dataset_dir: Data = "",
    list_only: Annotated[bool, typer.Option("--list", help="Only the list, without timed runs.")] = False,
    methods: Methods = None,
    trust: Trust = False,
) -> None:
    r"""List the runs of a study and estimate what they cost, by one short timed run a method.

    \b
    Examples:
      vmfseg study plan studies/phantom_mnms.yaml
      vmfseg study plan studies/paper_mnms.yaml --dataset_dir ~/MnMs --list
    """
    from vmfseg.studies import Plan, Study, find_data
    from vmfseg.studies.estimate import estimate_costs

    study = Study.load(file, methods or ())
    planned = Plan(study, find_data(study, dataset_dir), trust)
    runs = planned.runs
    print_table(["run", "folder"], [[one.cell.label, one.name] for one in runs])
    print_line(f"{len(runs)} runs, {len({one.name for one in runs})} different")
    if list_only:
        return
    costs = estimate_costs(planned, on_method=lambda name: print_line(f"timing {name} ..."))
    on_gpu = planned.study.resources.gpus > 0
    header = ["method", "runs", "CPU h a run", "CPU h", *(["GPU h"] if on_gpu else []), "peak memory GB"]
    rows = [
        [
            *(c.method, str(c.runs), f"{c.cpu_hours:.3f}", f"{c.cpu_hours * c.runs:.2f}"),
            *([f"{c.gpu_hours * c.runs:.2f}"] if on_gpu else []),
            f"{c.memory_gb:.1f}",
        ]
        for c in costs
    ]
    print_table(header, rows, right=header[1:])
    gpu = f", {sum(c.gpu_hours * c.runs for c in costs):.1f} GPU hours (of the device here)" if on_gpu else ""
    print_line(f"estimate: {sum(c.cpu_hours * c.runs for c in costs):.1f} CPU hours in all{gpu}")


def status(
    output: Folder,
    watch: Annotated[bool, typer.Option("--watch", help="Look again every two seconds, until all have ended.")] = False,
) -> None:
    r"""Show the state of every method of a study, and what failed.

    \b
    Example:
      vmfseg study status out/phantom --watch
    """
    from rich.console import Console
    from rich.live import Live

    from vmfseg.studies import open_study, read_records
    from vmfseg.studies.markdown_table import unfinished_rows

    study, runs = open_study(output.expanduser())
    records = read_records(runs, figures=False)
    if watch:
        with Live(_states(study, records), console=Console(), auto_refresh=False) as live:
            while any(record.state in ("running", "stopped", "waiting") for record in records):
                time.sleep(2)
                records = read_records(runs, figures=False)
                live.update(_states(study, records), refresh=True)
    else:
        Console().print(_states(study, records))
    for label, state, error in unfinished_rows([record for record in records if record.state == "failed"]):
        print_line(f"{state}: {label}: {error}", "red")


def table(
    output: Folder,
    formats: Annotated[
        list[str] | None, typer.Option("--format", help="md, tex, csv or html; repeatable, all by default.")
    ] = None,
) -> None:
    r"""Write the tables of a study from what is finished, into its folder.

    \b
    Example:
      vmfseg study table out/phantom --format md --format html
    """
    from vmfseg.studies.table_files import FORMATS, write_tables

    for path in write_tables(output.expanduser(), formats or FORMATS):
        print_line(f"written: {path}")


def _tell(record: Record, ended: int, count: int) -> None:
    spent = f"{float(record.spent.get('cpu_seconds', 0)):.0f} CPU s"
    if record.error is not None:
        print_line(f"{ended}/{count} {record.cell.label}: failed, {record.error.code}: {record.error.rule}", "red")
    else:
        dice = "undefined" if record.dice is None else f"{100 * record.dice:.1f}"
        print_line(f"{ended}/{count} {record.cell.label}: Dice {dice}, {spent}")


def _states(study: Study, records: list[Record]) -> Table:
    from rich.table import Table

    columns = ("done", "running", "waiting", "stopped", "failed")
    shown = Table(title=study.title, box=None, pad_edge=False, header_style="bold", title_justify="left")
    for name in ("method", *columns, "Dice", "CPU s"):
        shown.add_column(name, justify="left" if name == "method" else "right")
    for name in dict.fromkeys(record.row for record in records):
        mine = [record for record in records if record.row == name]
        counts = Counter(record.state for record in mine)
        dices = [record.dice for record in mine if record.dice is not None]
        dice = f"{100 * sum(dices) / len(dices):.1f}" if dices else "-"
        cpu = sum(float(record.spent.get("cpu_seconds", 0)) for record in mine)
        shown.add_row(name, *(str(counts[state]) for state in columns), dice, f"{cpu:.0f}")
    return shown


def _options(pairs: list[str]) -> dict[str, str]:
    for pair in pairs:
        if "=" not in pair:
            raise VmfError("VMF100", subject=f"--engine {pair}", rule="--engine takes NAME=VALUE", fix=f"{pair}=VALUE")
    return dict(pair.split("=", 1) for pair in pairs)
