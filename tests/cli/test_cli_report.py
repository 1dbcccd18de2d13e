# SPDX-License-Identifier: Apache-2.0
"""``vmfseg report`` as a user meets it."""

import numpy as np
import pytest
from typer.testing import CliRunner

from vmfseg.cli.main import app, main
from vmfseg.metrics import SegmentationScores


@pytest.fixture
def run_dir(tmp_path):
    truth = np.zeros((12, 12, 2), np.uint8)
    truth[2:6, 2:6], truth[7:10, 2:6] = 1, 2
    scores = SegmentationScores({1: "LV", 2: "RV"})
    for domain in "AB":
        scores.update(np.roll(truth, 1, axis=0), truth, (1.0, 1.0, 5.0), f"s{domain}", domain)
    scores.write(tmp_path / "run")
    return tmp_path / "run"


def test_writes_the_report_and_says_where(run_dir):
    result = CliRunner().invoke(app, ["report", str(run_dir)])
    assert result.exit_code == 0, result.output
    assert result.output.strip() == f"report: {run_dir / 'report.html'}"
    text = (run_dir / "report.html").read_text(encoding="utf-8")
    assert "Domain A, B; 2 volumes of 2 subjects" in text


def test_output_can_be_named_and_replaced(run_dir, tmp_path):
    target = tmp_path / "elsewhere" / "r.html"
    arguments = ["report", str(run_dir), "-o", str(target), "--cases", "0"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert CliRunner().invoke(app, [*arguments, "--overwrite"]).exit_code == 0
    assert target.is_file()
    assert not (run_dir / "report.html").exists()


def test_help_names_every_option():
    text = CliRunner().invoke(app, ["report", "--help"], env={"COLUMNS": "200"}).output
    for option in ("--output", "--dataset_dir", "--checkpoint", "--cases", "--overwrite"):
        assert option in text


@pytest.mark.parametrize(
    ("prepare", "code", "message"),
    [
        pytest.param(lambda d: (d / "metrics.csv").unlink(), 4, "error VMF352: the run folder must hold", id="no run"),
        pytest.param(lambda d: (d / "metrics.json").write_text("{"), 4, "error VMF301: the file is", id="damaged"),
        pytest.param(lambda d: (d / "report.html").write_text("x"), 6, "error VMF503: the output exists", id="exists"),
    ],
)  # fmt: skip
def test_errors_are_short(run_dir, monkeypatch, capsys, prepare, code, message):
    prepare(run_dir)
    monkeypatch.setattr("sys.argv", ["vmfseg", "report", str(run_dir)])
    with pytest.raises(SystemExit) as stopped:
        main()
    text = capsys.readouterr().err
    assert stopped.value.code == code
    assert message in text
    assert len(text.splitlines()) <= 5


def test_a_shipped_model_has_no_scores_and_the_error_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["vmfseg", "report", "hearts"])
    with pytest.raises(SystemExit) as stopped:
        main()
    text = capsys.readouterr().err
    assert stopped.value.code == 4
    assert "a shipped model has no scores of yours" in text
    assert "vmfseg evaluate" in text


def test_a_name_below_bundles_is_taken_as_train_and_segment_take_it(run_dir, tmp_path, monkeypatch, capsys):
    output = tmp_path / "bundles" / "hearts" / "output"
    output.parent.mkdir(parents=True)
    run_dir.rename(output)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["report", "hearts", "--cases", "0"])
    assert result.exit_code == 0, result.output
    assert (output / "report.html").is_file()
    monkeypatch.setattr("sys.argv", ["vmfseg", "report", "heart"])
    with pytest.raises(SystemExit):
        main()
    assert "Did you mean 'hearts'?" in capsys.readouterr().err
