# SPDX-License-Identifier: Apache-2.0
"""``vmfseg info``: describe a bundle or a trained model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vmfseg.cli.terminal import AsJson, Bundle, print_json, print_table

__all__ = ["info"]


def info(bundle: Bundle, as_json: AsJson = False) -> None:
    r"""Describe a bundle: task, labels, data, settings, scores, next commands. Nothing in it is executed.

    \b
    Examples:
      vmfseg info hearts
      vmfseg info runs/mine --json
    """
    from rich.markup import escape

    from vmfseg.bundle.describe import describe_bundle
    from vmfseg.model.artifact import find_bundle

    about = describe_bundle(find_bundle(bundle))
    if as_json:
        print_json(about)
    else:
        print_table(("", ""), [(name, escape(text)) for name, text in _rows(about) if text])


def _rows(about: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "bundle", f"{about['name']} {about['version']}" + (f": {about['title']}" if about["title"] else "")
    yield "task", about["task"]
    yield "about", about["description"]
    yield "labels", ", ".join(f"{value} {name}" for value, name in about["labels"].items())
    yield "data", about["data"]
    for side in ("input", "output"):
        yield side, _tensor(about[side])
    yield "settings", ", ".join(f"{key} {value}" for key, value in about["settings"].items())
    yield "model", _model(about["model"])
    yield from _scores(about["scores"])
    untrusted, broken = about["findings"]["untrusted"], about["findings"]["broken"]
    found = f"{untrusted} not to be trusted, {broken} broken: vmfseg bundle check {about['path']}"
    yield "check", found if untrusted or broken else "good: no code of its own, files as noted"
    yield "use", about["intended_use"]
    for number, command in enumerate(about["next"]):
        yield "" if number else "next", command


def _tensor(spec: Mapping[str, Any]) -> str:
    shape = " x ".join(str(size) for size in spec.get("spatial_shape", ()))
    channels, values = spec.get("num_channels", "?"), list(spec.get("value_range") or [])
    range_ = f", values {values[0]} to {values[-1]}" if len(values) > 1 else ""
    return f"{channels} channel{'' if channels == 1 else 's'}, {shape} pixels{range_}"


def _model(model: Mapping[str, Any] | None) -> str:
    if model is None:
        return "not trained"
    parts = [f"{model['network']}, trained on {model['trained_on']}"]
    if model["source_validation_dice"] is not None:
        parts.append(f"Dice {model['source_validation_dice']:.3f} on source validation")
    if model["as_noted"] is False:
        parts.append("CHANGED since: the hashes of the manifest do not match")
    if model["quality_error"] is not None:
        parts.append(f"typical error of predicted Dice: {model['quality_error']:.2f}")
    return ", ".join([*parts, *(f"with {name}.json" for name in ("quality", "shift") if model[name])])


def _scores(scores: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    if scores is None:
        yield "scores", "none yet"
        return
    mean = scores["mean_dice"]
    text = "no figure" if mean is None else f"mean Dice {mean:.3f}"
    protocol = {"clean": "target domain unseen"}.get(scores["protocol"], f"protocol {scores['protocol']}")
    yield "scores", f"{text} ({protocol}, {scores['file']})"
    for domain, classes in scores["domains"].items():
        cells = [f"{name} {dice:.3f}" if isinstance(dice, float) else f"{name} -" for name, dice in classes.items()]
        if cells:
            yield "", f"unseen domain {domain}: {', '.join(cells)}"
