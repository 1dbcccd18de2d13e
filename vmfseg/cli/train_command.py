# SPDX-License-Identifier: Apache-2.0
"""``vmfseg train``: run the training of a bundle, with checked overrides."""

from __future__ import annotations

import json
import logging
import re
import signal
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from vmfseg.cli.terminal import echo
from vmfseg.utils import VmfError
from vmfseg.utils.io import StrPath

__all__ = ["read_pairs", "train", "train_bundle"]

#: What a class raises when it is built from wrong arguments.
_REFUSALS = (ValueError, TypeError, AttributeError, LookupError, ArithmeticError)
#: Built first, so that wrong arguments are refused before any data is read or made.
_WITHOUT_DATA = ("network_def", "preprocessing", "augmentation", "postprocessing", "train::loss")


def train(
    context: typer.Context,
    bundle: Annotated[str, typer.Argument(metavar="BUNDLE", help="Name or folder of a bundle.", show_default=False)],
    dataset_dir: Annotated[
        str | None, typer.Option("--dataset_dir", help="Your data; without it, the built-in phantom.")
    ] = None,
    target_domain: Annotated[
        str | None, typer.Option("--target_domain", help="Domain that is left out and judged.")
    ] = None,
    labeled_fraction: Annotated[
        float | None, typer.Option("--labeled_fraction", help="Share of labelled subjects in every group.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Decides split, weights, order, augmentation.")] = None,
    protocol: Annotated[str | None, typer.Option(help="clean, or paper (the reference code's choices).")] = None,
    max_iterations: Annotated[
        int | None, typer.Option("--max_iterations", help="Labelled batches in all, in whole epochs.")
    ] = None,
    network_def: Annotated[
        str | None, typer.Option("--network_def", metavar="JSON", help="Another network: _target_ and its arguments.")
    ] = None,
    num_kernels: Annotated[int | None, typer.Option("--num_kernels", help="vMF kernels (network_def).")] = None,
    kappa: Annotated[float | None, typer.Option(help="Concentration of the kernels (network_def).")] = None,
    init: Annotated[
        str | None, typer.Option(help="Start from the weights of a bundle, a run, model.pt or model.safetensors.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Folder of this run and its model; without it, inside the bundle."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Do everything again.")] = False,
    paper: Annotated[bool, typer.Option("--paper", help="The paper's scale (configs/paper.json).")] = False,
    configs: Annotated[
        list[Path] | None,
        typer.Option("--config", help="JSON or YAML file of overrides: plain values; repeatable."),
    ] = None,
    pairs: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any key of the config; repeatable.")
    ] = None,
    trust: Annotated[bool, typer.Option("--trust", help="Execute configs that are not those of the package.")] = False,
) -> None:
    r"""Train a bundle: all its stages, to a model with scores. Finished stages are skipped.

    Every key of the bundle's train.json is an option, nested ones with ::
    between the parts; values are JSON. A key that the config does not have is an
    error.

    \b
    Examples:
      vmfseg train vmfnet_mnms
      vmfseg train vmfnet_mnms --dataset_dir ~/MnMs --target_domain B --paper
      vmfseg train vmfnet_mnms --kappa 20 -o runs/kappa20 --resume
      vmfseg train vmfnet_mnms --network_def::level 1 --set batch_size=8
      vmfseg train vmfnet_mnms --init runs/kappa20 --config mine.json
      vmfseg train hearts --dataset_dir scans.csv --init hearts -o runs/few
      vmfseg train ~/downloads/their_bundle --trust
    """
    named = {
        "dataset_dir": dataset_dir,
        "target_domain": target_domain,
        "labeled_fraction": labeled_fraction,
        "seed": seed,
        "protocol": protocol,
        "max_iterations": max_iterations,
        "network_def": None if network_def is None else _value(network_def),
        "network_def::num_kernels": num_kernels,
        "network_def::kappa": kappa,
        "init": init,
        "resume": resume or None,
        "fresh": fresh or None,
    }
    if output is not None:
        named |= {"output_dir": str(output), "ckpt_dir": str(output / "models")}
    if bundle.startswith("-"):
        raise VmfError("VMF111", subject=bundle, rule="BUNDLE must come first", fix="vmfseg train BUNDLE [OPTIONS]")
    overrides = {key: value for key, value in named.items() if value is not None}
    values = {**read_pairs(pairs or []), **_options(context.args), **overrides}
    try:
        train_bundle(bundle, values, configs or (), paper=paper, trust=trust)
    except KeyboardInterrupt:
        echo("interrupted; --resume goes on from the last checkpoint", err=True)
        raise typer.Exit(130) from None


train.takes_any_option = True  # type: ignore[attr-defined]


def train_bundle(
    bundle: StrPath,
    overrides: Mapping[str, Any] | None = None,
    configs: Sequence[StrPath] = (),
    *,
    paper: bool = False,
    trust: bool = False,
) -> None:
    """Run the ``training`` of a bundle by MONAI's workflow, in this process.

    Args:
        bundle: folder of a bundle, or a name below ``./bundles``.
        overrides: values by config id.
        configs: files of overrides, see :func:`vmfseg.bundle.trust.read_overlay`.
        paper: add ``configs/paper.json``.
        trust: run it even if :func:`vmfseg.bundle.trust.require_trusted` would refuse it.

    Raises:
        VmfError: VMF100 an option out of its range, VMF110 a key that the config lacks, VMF330 no such bundle, VMF305
            a config that is missing, VMF310 to VMF317 a config that cannot work, VMF410 and VMF411 a bundle that is not
            the package's, VMF419 overrides that are not plain, VMF505 out of memory, and what the data, the stages and
            the writer refuse.
    """
    from monai.bundle import ConfigWorkflow

    from vmfseg.bundle.components import config_findings
    from vmfseg.bundle.config import entries, normalize_key, overlay, read_config
    from vmfseg.bundle.keys import check_keys, check_knobs
    from vmfseg.bundle.trust import read_overlay, require_trusted
    from vmfseg.model.artifact import find_bundle

    folder = find_bundle(bundle)
    files = [folder / "configs" / name for name in ("train.json", *(["paper.json"] if paper else []))]
    for file in files:
        if not file.is_file():
            raise VmfError("VMF305", subject=str(file), rule="the bundle has no such config", fix="check the bundle")
    require_trusted(folder, trust)
    config = overlay(*(read_config(file, f"configs/{file.name}") for file in files))
    values: dict[str, Any] = {"bundle_root": str(folder)} if "bundle_root" in config else {}
    places = {name: f"configs/{file.name}" for file in files for name in read_config(file)}
    for path in configs:
        added = read_overlay(path, config, trust)
        places |= dict.fromkeys(added, str(path))
        values |= added
    # whole sections before what is changed in them
    values |= dict(sorted((overrides or {}).items(), key=lambda item: normalize_key(item[0]).count("::")))
    with _quiet():
        check_keys(config, values)
        config = overlay(config, values)
        check_knobs(config, {name: place for name, place in places.items() if name not in (overrides or {})})
        for finding in config_findings(config, f"configs/{files[-1].name}", ("training",)):
            raise finding
        # what was checked is what runs: whole sections, with the changes already in them
        changed = {name: config[name] for name in {normalize_key(key).split("::")[0] for key in values}}
        names = [str(file) for file in files]
        # a bundle's logging.conf can name any code, so it is not used
        workflow = ConfigWorkflow(names, logging_file=False, run_id="training", workflow_type="train", **changed)
        failure: Exception | None = None
        try:
            with _terminated_like_interrupted():
                workflow.initialize()
                early = (*_WITHOUT_DATA, *(["network"] if config.get("init") else []))  # with the weights to start from
                for name in (name for name in early if name in dict(entries(config))):
                    workflow.parser.get_parsed_content(name)
                workflow.run()
                workflow.finalize()
        except Exception as error:
            failure = error
        if failure is not None:
            raise _explain(failure, config, values)


def read_pairs(pairs: Sequence[str]) -> dict[str, Any]:
    """Read ``KEY=VALUE`` words; values are JSON.

    Raises:
        VmfError: VMF111 for a word without ``=``.
    """
    for pair in pairs:
        if "=" not in pair:
            raise VmfError("VMF111", subject=f"--set {pair}", rule="--set takes KEY=VALUE", fix=f"--set {pair}=VALUE")
    return {key: _value(text) for key, text in (pair.split("=", 1) for pair in pairs)}


def _options(words: Sequence[str]) -> dict[str, Any]:
    """Read ``--key value``, ``--key=value`` and a bare ``--key`` (true), as MONAI's command line does."""
    found: dict[str, Any] = {}
    position = 0
    while position < len(words):
        word = words[position]
        if not word.startswith("--"):
            raise VmfError("VMF111", subject=word, rule="every value must follow its option", fix="--KEY VALUE")
        key, equals, text = word[2:].partition("=")
        key = key.replace("-", "_")
        following = words[position + 1] if position + 1 < len(words) else "--"
        if equals:
            found[key] = _value(text)
        elif following.startswith("--"):
            found[key] = True
        else:
            found[key] = _value(following)
            position += 1
        position += 1
    return found


def _value(text: str) -> Any:
    """Read a value as JSON, else as Python's literals as MONAI's command line does, else as text."""
    from fire.parser import DefaultParseValue  # type: ignore[import-untyped]

    for read in (partial(json.loads, parse_constant=lambda _: text), DefaultParseValue):
        with suppress(ValueError, RecursionError, MemoryError):  # the last two: more levels than a value may have
            return read(text)
    return text


def _explain(error: Exception, config: Mapping[str, Any], values: Mapping[str, Any]) -> Exception:
    """Return what lies under the errors that MONAI wraps around every failure in a config."""
    from vmfseg.bundle.config import normalize_key

    root: BaseException = error
    component = ""
    while root.__cause__ is not None and not isinstance(root, VmfError):
        built = re.match(r"Failed to instantiate component '([^']+)'", str(root))
        component = built[1] if built else component if "Failed to" not in str(root) else ""
        root = root.__cause__
    if isinstance(root, MemoryError) or "not enough memory" in str(root) or "out of memory" in str(root):
        return VmfError(
            "VMF505", subject="training", found=str(root).splitlines()[0] if str(root) else type(root).__name__
        )
    refused = isinstance(root, _REFUSALS) and not isinstance(root, VmfError)
    given = [normalize_key(key).rsplit("::", 1)[-1] for key in values]
    if component and refused and not (isinstance(root, ValueError) and any(key in str(root) for key in given)):
        return _refused_value(component, str(root), config)
    return root if isinstance(root, Exception) else error


def _refused_value(component: str, found: str, config: Mapping[str, Any]) -> VmfError:
    """Say which entry of the config holds the arguments that a class refuses."""
    from vmfseg.bundle.config import entries

    places = [
        place
        for place, value in entries(config)
        if isinstance(value, Mapping) and component.endswith(str(value.get("_target_", "?")))
    ]
    return VmfError(
        "VMF315",
        subject=f"configs/train.json: {', '.join(places[:3]) or component}",
        rule=f"{component.rsplit('.', 1)[-1]} refuses an argument",
        found=found,
        fix="correct the value in the config, or give another by --KEY VALUE",
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Hold back MONAI's general warning about configs, and the log lines that repeat an error which is shown anyway."""
    loggers = [logging.getLogger(name) for name in ("ignite", "monai.bundle.workflows")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*_target_.*", category=UserWarning)
        warnings.filterwarnings("ignore", message=".*eval\\(\\).*", category=UserWarning)
        try:
            for logger in loggers:
                logger.setLevel(logging.CRITICAL)
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """Let SIGTERM (schedulers, containers) end the run as Ctrl-C does: workers ended, bar closed, exit code 130."""

    def interrupt(_number: int, _frame: Any) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
