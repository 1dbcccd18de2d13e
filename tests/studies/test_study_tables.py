# SPDX-License-Identifier: Apache-2.0
"""Tables of figures that are known: against NumPy, SciPy and numbers worked by hand."""

from __future__ import annotations

import base64
import csv
import io
import re
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from study_files import finish, note_study, plan_of, write_figures

from vmfseg.studies import open_study, read_records, summarize_study
from vmfseg.studies.summary import AVERAGE, paired_difference
from vmfseg.studies.table_files import write_tables
from vmfseg.utils import VmfError, read_json, write_json

GAINS = {"vmfnet": 0.0, "vmfpseudo": 0.04, "vmfweak": -0.03}
CONTENT = {
    "title": "A & B <i>",
    "data": "mnms",
    "published": "mnms",
    "methods": list(GAINS),
    "targets": ["A", "B"],
    "fractions": [0.02, 1.0],
    "seeds": [0, 1],
    "protocols": ["clean", "paper"],
}


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """Return a study of 48 runs: one failed, one not there yet."""
    out, plan = tmp_path_factory.mktemp("study"), plan_of(CONTENT)
    note_study(plan, out)
    for index, run in enumerate(plan.runs):
        folder, cell = out / "runs" / run.name, run.cell
        if index == len(plan.runs) - 1:
            continue
        write_figures(folder, cell.target, cell.seed, GAINS[cell.method], cell.protocol)
        finish(folder, 40.0 * (1 + cell.seed))
        if index == 0:
            error = VmfError("VMF505", subject="training", rule="the memory | is not enough", found="9 GB")
            result = read_json(folder / "result.json")
            write_json(folder / "result.json", {**result, "state": "failed", "error": error.as_dict()})
    return out


@pytest.fixture(scope="module")
def tables(out):
    study, runs = open_study(out)
    records = read_records(runs)
    write_tables(out)
    return {(table.protocol, table.fraction): table for table in summarize_study(study, records)}, records


def _dices(records, **wanted):
    return [r for r in records if r.state == "done" and all(getattr(r.cell, k) == v for k, v in wanted.items())]


def test_cells_are_means_and_deviations_over_seeds(out, tables):
    found, records = tables
    line = next(line for line in found["clean", 1.0].lines if line.name == "vmfpseudo")
    for target in "AB":
        chosen = _dices(records, method="vmfpseudo", target=target, fraction=1.0, protocol="clean")
        values = [read_json(record.folder / "metrics.json")["mean_dice"] for record in chosen]
        assert line.dice[target].mean == pytest.approx(np.mean(values))
        assert line.dice[target].sd == pytest.approx(np.std(values, ddof=1))
    whole = [_dices(records, method="vmfpseudo", seed=seed, fraction=1.0, protocol="clean") for seed in (0, 1)]
    both = [[record.dice for record in one] for one in whole]
    assert line.dice[AVERAGE].mean == pytest.approx(np.mean(both))
    assert line.dice[AVERAGE].sd == pytest.approx(np.std(np.mean(both, axis=1), ddof=1))
    assert line.cpu_seconds.mean == pytest.approx(60.0)
    assert line.distance["A"].mean == pytest.approx(9.6)


def test_an_average_takes_whole_seeds_only(tables):
    found, _ = tables
    line = next(line for line in found["clean", 0.02].lines if line.name == "vmfnet")
    assert (line.done, line.planned) == (3, 4)
    assert (line.dice["A"].n, line.dice["B"].n, line.dice[AVERAGE].n) == (1, 2, 1)


def test_the_paper_protocol_shows_the_references_figures(tables):
    found, _ = tables
    line = next(line for line in found["paper", 1.0].lines if line.name == "vmfpseudo")
    assert line.dice["A"].mean == pytest.approx(0.74)
    assert line.distance["A"].mean == pytest.approx(16.0)
    assert 100 * line.published["A"] == pytest.approx(82.72)


def test_paired_differences_agree_with_scipy(out, tables):
    found, records = tables
    comparison = next(c for c in found["clean", 1.0].comparisons if c.name == "vmfpseudo")
    by_subject = []
    for method in ("vmfpseudo", "vmfnet"):
        scores: dict[str, list[float]] = {}
        for record in _dices(records, method=method, fraction=1.0, protocol="clean"):
            with (record.folder / "metrics.csv").open() as stream:
                for row in csv.DictReader(stream):
                    scores.setdefault(row["subject"], []).append(float(row["dice"]))
        by_subject.append({subject: np.mean(values) for subject, values in scores.items()})
    differences = np.array([by_subject[0][s] - by_subject[1][s] for s in by_subject[0]])
    assert comparison.n == len(differences) == 24
    assert comparison.mean == pytest.approx(differences.mean())
    assert comparison.p == pytest.approx(stats.wilcoxon(differences).pvalue)
    assert comparison.better == (differences > 0).sum()
    interval = stats.bootstrap((differences,), np.mean, method="percentile", random_state=1).confidence_interval
    width = interval.high - interval.low
    assert (comparison.low, comparison.high) == pytest.approx((interval.low, interval.high), abs=0.1 * width)
    assert comparison.p <= comparison.p_holm <= 2 * comparison.p + 1e-12


def test_equal_methods_have_no_p_value():
    comparison = paired_difference("a", "b", [0.0] * 6)
    assert (comparison.mean, comparison.low, comparison.high, comparison.p) == (0.0, 0.0, 0.0, None)


def test_markdown_has_every_cell_the_published_figures_and_what_failed(out, tables):
    text = (out / "table.md").read_text()
    assert "46 of 48 runs done (1 failed, 1 waiting)" in text
    assert text.index("## Target domain unseen") < text.index("## As the reference code counts (protocol paper)")
    line = next(line for line in text.splitlines() if line.startswith("| vmfpseudo | ") and "(70.1)" in line)
    assert re.match(r"\| vmfpseudo \| \*\*8\d\.\d ± \d\.\d\*\* \(70\.1\) \| \*\*8\d\.\d ± \d\.\d\*\* \(78\.8\)", line)
    assert re.search(r"^\| vmf\w+, 1 run \| not run yet \|  \|$", text, re.MULTILINE)
    assert r"| failed | VMF505: the memory \| is not enough (9 GB) |" in text
    widths = [line.count(" | ") for line in text.splitlines() if line.startswith("| vmf") and "[" not in line]
    widths = [width for width in widths if width > 2]  # the figures, not the runs without
    assert len(set(widths)) == 1


def test_latex_has_the_papers_layout_with_the_best_in_bold(out, tables):
    text = (out / "table.tex").read_text()
    assert r"A \& B <i>" in text
    assert r"\textbf{Percent} & \textbf{metrics} & \textbf{vMFNet} & \textbf{vMFPseudo} & \textbf{vMFWeak} \\" in text
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 6
    row = next(line for line in text.splitlines() if line.startswith(r"\multirow{2}{*}{100\%} & B & A"))
    cells = [cell.strip() for cell in row.split("&")]
    assert [r"\mathbf" in cell for cell in cells[3:6]] == [False, True, False]
    assert re.fullmatch(r"\$\\mathbf\{8\d\.\d\d_\{\d\.\d\}\}\$ \(82\.72\)", cells[4])
    assert text.count("{") == text.count("}")


def test_csv_has_a_row_for_every_run(out, tables):
    rows = list(csv.DictReader(io.StringIO((out / "table.csv").read_text())))
    assert len(rows) == 48
    assert [row["state"] for row in rows].count("done") == 46
    done = next(row for row in rows if row["state"] == "done")
    folder = out / "runs" / done["folder"]
    assert float(done["dice"]) == pytest.approx(read_json(folder / "metrics.json")["mean_dice"], abs=1e-6)
    assert "VMF505" in rows[0]["error"]


def test_the_page_stands_alone_and_escapes_texts(out, tables):
    text = (out / "table.html").read_text()
    assert "A &amp; B &lt;i&gt;" in text
    assert "<i>" not in text
    assert not re.findall(r"(?:src|href)=\"(?!data:)", text)
    assert "<script" not in text
    pictures = re.findall(r"data:image/png;base64,([^\"]+)", text)
    assert len(pictures) == 8  # labels, two fractions, costs; both protocols
    assert all(base64.b64decode(picture).startswith(b"\x89PNG") for picture in pictures)
    assert "VMF505" in text


def test_figures_that_were_changed_after_the_run_do_not_count(out, tmp_path):
    plan = plan_of({**CONTENT, "protocols": ["clean"], "fractions": [1.0]})
    note_study(plan, tmp_path)
    folder = tmp_path / "runs" / plan.runs[0].name
    write_figures(folder, "A", 0)
    finish(folder)
    assert read_records(open_study(tmp_path)[1])[0].state == "done"
    metrics = folder / "metrics.json"
    metrics.write_text(metrics.read_text().replace('"mean_dice": 0.', '"mean_dice": 0.9'))
    assert read_records(open_study(tmp_path)[1])[0].state != "done"


def test_lines_of_runs_make_the_same_tables_elsewhere(out, tables, tmp_path):
    sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
    import study_runs

    file, again = tmp_path / "runs.jsonl", tmp_path / "again"
    assert study_runs.pack(out, file) == 46
    assert study_runs.unpack(file, again) == 46
    failed = read_json(out / "study.json")["runs"][0]["name"]
    (again / "runs" / failed).mkdir()
    (again / "runs" / failed / "result.json").write_bytes((out / "runs" / failed / "result.json").read_bytes())
    (again / "study.json").write_bytes((out / "study.json").read_bytes())
    write_tables(again, ["md", "tex", "csv"])
    for ending in ("md", "tex", "csv"):
        assert (again / f"table.{ending}").read_text() == (out / f"table.{ending}").read_text()


def test_a_folder_without_a_study_says_so(tmp_path):
    with pytest.raises(VmfError, match="VMF375"):
        write_tables(tmp_path)


def test_a_table_of_a_thousand_runs_takes_less_than_ten_seconds(tmp_path):
    axes = {"targets": ["A", "B", "C", "D"], "seeds": list(range(25)), "fractions": [0.02, 0.05, 0.1, 0.5, 1.0]}
    plan = plan_of({**CONTENT, **axes, "methods": ["vmfnet", "vmfpseudo"], "protocols": ["clean"]})
    note_study(plan, tmp_path)
    for target in "ABCD":  # the same figures for all seeds: reading them is what takes time
        write_figures(tmp_path / target, target, 0)
    for run in plan.runs:
        folder = tmp_path / "runs" / run.name
        folder.mkdir(parents=True)
        for name in ("metrics.json", "metrics.csv"):
            (folder / name).hardlink_to(tmp_path / run.cell.target / name)
        finish(folder)
    start = time.process_time()
    write_tables(tmp_path)
    assert time.process_time() - start < 10
    assert "1000 of 1000 runs done" in (tmp_path / "table.md").read_text()
