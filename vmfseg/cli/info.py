# SPDX-License-Identifier: Apache-2.0
"""``vmfseg info``: what a bundle is, whether it is trained, how good it was, and what to do with it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vmfseg.bundle.describe import describe_bundle
from vmfseg.model.spec import find_bundle

__all__ = ["info"]


def info(
    bundle: Annotated[
        str, typer.Argument(metavar="BUNDLE", help="Folder of a bundle, or a name below ./bundles.", show_default=False)
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    r"""Say what a bundle is: task, labels, data, settings, scores, next commands. Nothing in it is executed.

    \b
    Examples:
      vmfseg info vmfnet_mnms
      vmfseg info runs/mine --json
    """
    about = describe_bundle(find_bundle(bundle))
    if as_json:
        typer.echo(json.dumps(about, indent=2, ensure_ascii=False))
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in _rows(about):
        table.add_row(name, escape(text))
    Console().print(table)


def _rows(about: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "bundle", f"{about['name']} {about['version']}: {about['title']}"
    yield "task", about["task"]
    yield "about", about["description"]
    yield "labels", ", ".join(f"{value} {name}" for value, name in about["labels"].items())
    yield "data", about["data"]
    for side in ("input", "output"):
        yield side, _tensor(about[side])
    yield "settings", ", ".join(f"{key} {value}" for key, value in about["settings"].items())
    yield "model", _model(about["model"])
    yield from _scores(about["scores"])
    findings = about["findings"]
    if findings["untrusted"] or findings["broken"]:
        counts = f"{findings['untrusted']} not to be trusted, {findings['broken']} broken"
        yield "check", f"{counts}: vmfseg bundle check {about['path']}"
    else:
        yield "check", "good: no code of its own, files as noted"
    yield "use", about["intended_use"]
    for number, command in enumerate(about["next"]):
        yield "" if number else "next", command


def _tensor(spec: Mapping[str, Any]) -> str:
    shape = " x ".join(str(size) for size in spec.get("spatial_shape", ()))
    channels = spec.get("num_channels", "?")
    values = list(spec.get("value_range") or [])
    range_ = f", values {values[0]} to {values[-1]}" if len(values) > 1 else ""
    return f"{channels} channel{'' if channels == 1 else 's'}, {shape} pixels, {spec.get('dtype', '?')}{range_}"


def _model(model: Mapping[str, Any] | None) -> str:
    if model is None:
        return "not trained"
    parts = [f"trained on {model['trained_on']}" if model["trained_on"] else "trained, no manifest"]
    if model["source_validation_dice"] is not None:
        parts.append(f"Dice {model['source_validation_dice']:.3f} on source validation")
    if model["as_noted"] is False:
        parts.append("CHANGED since: the hashes of the manifest do not match")
    parts += [f"with {name}.json" for name in ("quality", "shift") if model[name]]
    return ", ".join(parts)


def _scores(scores: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    if scores is None:
        yield "scores", "none yet"
        return
    mean = scores["mean_dice"]
    text = "no figure" if mean is None else f"mean Dice {mean:.3f}"
    yield "scores", f"{text} (protocol {scores['protocol']}, {scores['file']})"
    for domain, classes in scores["domains"].items():
        cells = [f"{name} {dice:.3f}" if isinstance(dice, float) else f"{name} -" for name, dice in classes.items()]
        if cells:
            yield "", f"unseen domain {domain}: {', '.join(cells)}"
