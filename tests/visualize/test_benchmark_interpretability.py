# SPDX-License-Identifier: Apache-2.0
"""``benchmarks/interpretability.py`` from trained folders to its tables, at the smallest scale."""

import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    sys.modules.pop("interpretability", None)
    import interpretability

    return interpretability


def row(motion, family, score, test="eq", fill=None, mask="foreground"):
    return {
        "test": test, "motion": motion, "family": family, "mask": mask, "fill": fill, "score": score, "error": 0.1,
        "chance": 0.5, "floor": 0.0,
    }  # fmt: skip


def test_scores_are_means_of_the_chosen_rows_and_undefined_if_one_is(script):
    rows = [row("flip horizontal", "exact", 0.5), row("flip vertical", "exact", 0.7), row("turn 90", "exact", None)]
    assert script.score(rows, "eq", script.MOTIONS["flips"], None) == pytest.approx(0.6)
    assert script.score(rows, "eq", script.MOTIONS["turns"], None) is None
    assert script.score(rows, "eq", script.MOTIONS["scalings"], None) is None
    assert script.score(rows, "ce", script.MOTIONS["flips"], None) is None


def figures(dice, lung, score):
    classes = {name: {"matched_dice": dice} for name in ("LV", "MYO", "RV")}
    exact = [row("flip horizontal", "exact", score, test, fill) for test, fill in (("eq", None), ("ce", "local_mean"))]
    tissues = {"lung": {"matched_dice": lung}, "papillaries": {"matched_dice": None}}
    return {"classes": {"matched_dice": dice, "classes": classes}, "tissues": tissues, "equivariance": exact}


def test_claims_follow_from_the_figures(script):
    results = {
        "unsupervised": figures(0.1, 0.6, None),
        "weak": figures(0.2, 0.8, 0.4),
        "vMFNet": figures(0.8, 0.9, 0.7),
        "vMFNet without augmentation": figures(0.8, 0.9, 0.3),
        "N1 random network": figures(0.1, 0.7, 0.2),
    }
    text = script.claims(results)
    assert "RV 0.50, MYO 0.50): supported by vMFNet, vMFNet without augmentation, not by unsupervised, weak" in text
    assert "(to beat: lung 0.70): supported by weak, vMFNet, vMFNet without augmentation, not by unsupervised" in text
    assert "(to beat: papillaries 0.50): supported by none" in text
    assert "weak above unsupervised: by matched Dice supported (0.200 against 0.100), by CE undefined" in text
    assert "vMFNet has CE 0.700, without augmentation 0.300: the difference comes from augmentation" in text
    del results["vMFNet without augmentation"]
    assert "No model without augmentation was given" in script.claims(results)


def test_folders_are_named_by_their_bundle_or_by_the_user(script):
    found = script.find_bundles(["a/vmfnet_mnms", "other", "no aug=b/c"])
    assert found == {"vMFNet": Path("a/vmfnet_mnms"), "other": Path("other"), "no aug": Path("b/c")}


@pytest.mark.slow
def test_the_command_writes_all_tables(script, finished, tmp_path, monkeypatch, capsys):
    output = tmp_path / "results" / "i.md"
    arguments = [f"vMFNet={finished.bundle}", "--dataset_dir", str(finished.data), "--output", str(output)]
    arguments += ["--reconstruction_iterations", "2"]
    monkeypatch.setattr("sys.argv", ["interpretability.py", *arguments])
    script.main()
    text = output.read_text(encoding="utf-8")
    for title in (
        "What a representation is worth",
        "Meaningful and homologous",
        "Tissues, labelled or not",
        "Content, style",
        "Compositional",
        "claims",
    ):
        assert title in text
    results = json.loads(output.with_suffix(".json").read_text())
    assert list(results) == ["vMFNet", "N1 random network", "N2 k-means", "N3 reconstruction"]
    assert results["vMFNet"]["segmentation_dice"] == pytest.approx(finished.scores.compute()["mean_dice"])
    assert all(len(entry["equivariance"]) == len(results["vMFNet"]["equivariance"]) for entry in results.values())
    assert str(tmp_path) not in text
    assert text in capsys.readouterr().out
