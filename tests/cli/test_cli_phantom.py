# SPDX-License-Identifier: Apache-2.0
"""``vmfseg phantom`` as a user meets it."""

import pytest
from typer.testing import CliRunner

from vmfseg.cli.main import app, main


def test_makes_a_phantom_with_plain_lines_and_a_picture(tmp_path):
    arguments = ["--dataset", "scgm", "--subjects", "2", "--size", "60", "--workers", "1"]
    result = CliRunner().invoke(app, ["phantom", str(tmp_path / "p"), *arguments, "--montage", str(tmp_path / "m.png")])
    assert result.exit_code == 0, result.output
    assert "phantom: 2/2 subjects" in result.output
    assert "2 subjects, layout scgm, seed 0" in result.output
    assert (tmp_path / "m.png").is_file()
    assert (tmp_path / "p" / "train" / "site1-sc01-image.nii.gz").is_file()


def test_help_names_every_option():
    text = CliRunner().invoke(app, ["phantom", "--help"], env={"COLUMNS": "200"}).output
    for option in ("--dataset", "--subjects", "--seed", "--frames", "--size", "--montage", "--workers", "--overwrite"):
        assert option in text


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        pytest.param(
            ["--dataset", "acdc"], 2, "dataset must be one of mnms, scgm, hearts, cords, got 'acdc'", id="dataset"
        ),
        pytest.param([], 6, "the output exists and is no phantom", id="occupied"),
    ],
)
def test_errors_are_short(tmp_path, monkeypatch, capsys, arguments, code, message):
    (tmp_path / "mine.txt").write_text("x")
    monkeypatch.setattr("sys.argv", ["vmfseg", "phantom", str(tmp_path), *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    text = capsys.readouterr().err
    assert stopped.value.code == code
    assert message in text
    assert len(text.splitlines()) <= 5
