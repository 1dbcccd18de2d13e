# SPDX-License-Identifier: Apache-2.0
"""Plan a bundle from scans: spacing, size, labels, width and batch, each with its reason.

Nothing of the target domain decides anything: its scans are left out of every proposal.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from vmfseg.bundle.new import DEFAULT_BATCH, DEFAULT_WIDTH, Recipe, widths_of
from vmfseg.data.scan_facts import ScanFacts, by_domain, refuse_isotropic
from vmfseg.networks import VMFNet
from vmfseg.utils import VmfError, did_you_mean
from vmfseg.utils.memory import available_memory

__all__ = ["Budget", "Choice", "Plan", "find_budget", "plan_bundle", "training_bytes"]

_HALVED = 16  # sizes are multiples of it
_SMALLEST, _MARGIN = 64, 1.25  # pixels; of the window against the reach of the labels
_PIXELS = 6  # that the narrowest structure should have
_SHARE = 0.5  # of the free memory that a training may take
_OVERHEAD = 1.5  # copies while gradients are computed, and the workspace of convolutions
_PROBE = 32
_GIB = 2**30


@dataclass(frozen=True)
class Budget:
    """What a training may use.

    Args:
        memory: bytes, ``None`` where the system does not tell.
        device: ``"cuda"`` or ``"cpu"``.
    """

    memory: int | None
    device: str = "cpu"

    @property
    def largest(self) -> int:
        """Pixels along a side that such a machine trains with in reasonable time."""
        return 288 if self.device == "cuda" else 96

    @property
    def widest(self) -> int:
        """Channels of the finest level: the paper's on a GPU."""
        return 64 if self.device == "cuda" else DEFAULT_WIDTH

    def __str__(self) -> str:
        name = "GPU" if self.device == "cuda" else "CPU"
        return name if self.memory is None else f"{name} with {self.memory / _GIB:.1f} GiB free"


@dataclass(frozen=True)
class Choice:
    """One proposal: what, which value, and why."""

    name: str
    value: Any
    reason: str


@dataclass(frozen=True)
class Plan:
    """A recipe for a bundle, and the reason of each of its values."""

    recipe: Recipe
    choices: tuple[Choice, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"recipe": asdict(self.recipe), "choices": [asdict(choice) for choice in self.choices]}


def find_budget() -> Budget:
    """Return the memory of the first GPU, or of this machine where there is none."""
    if torch.cuda.is_available():
        return Budget(int(torch.cuda.mem_get_info()[0]), "cuda")
    return Budget(available_memory())


def plan_bundle(
    facts: Sequence[ScanFacts],
    labels: Mapping[int, str],
    budget: Budget,
    *,
    target_domain: str = "",
    method: str = "vmfnet",
) -> Plan:
    r"""Propose a bundle for scans.

    The spacing :math:`s` starts at the median over the source domains (of the median of each). With the farthest reach
    :math:`r` of a label from the center of its image, the window must hold :math:`2.5\,r` mm, that is
    :math:`16 \lceil 2.5\,r / 16 s \rceil` pixels a side. Where that is more than the machine trains with, the pixels
    grow, but never so far that the narrowest structure has fewer than 6; where it is less, the window grows to what the
    smallest field of view has, for organs off the center. Width and batch are the largest of the recipe whose training
    takes half of the free memory at most.

    Args:
        facts: from :func:`vmfseg.data.scan_facts.measure_scans`.
        labels: class names by number.
        budget: what the training may use.
        target_domain: the domain that will be left out and judged; its scans decide nothing.
        method: of the bundle.

    Raises:
        VmfError: VMF242 for volumes of cubes, VMF290 if the target is no domain of the scans, VMF295 without any
            source scan.
    """
    domains = by_domain(facts)
    if target_domain and target_domain not in domains:
        raise VmfError(
            "VMF290",
            subject="--target_domain",
            rule="the target must be a domain of the data",
            found=target_domain,
            fix=f"the domains are {', '.join(domains)}.{did_you_mean(target_domain, domains)}",
        )
    sources = {name: scans for name, scans in domains.items() if name != target_domain}
    scans = [scan for group in sources.values() for scan in group]
    if not scans:
        raise VmfError("VMF295", subject="plan", rule="there is no scan of a source domain", fix="add scans")
    refuse_isotropic(scans)
    names = [labels[value] for value in sorted(labels) if value]
    spacing, size, choices = _grid(sources, labels, budget)
    width, batch, fit = _capacity(size, len(names) + 1, 2 if method == "vmfpseudo" else 1, budget)
    recipe = Recipe(names, spacing, size, method, target_domain, width=width, batch_size=batch)
    return Plan(recipe, (_labels_choice(scans, labels), *choices, *fit))


def training_bytes(width: int, size: int, batch: int, classes: int) -> int:
    """Estimate the memory that a training of vMFNet takes.

    What autograd keeps for the gradients is measured on one small image and scaled to size and batch; weights,
    gradients and the two moments of Adam are added.

    Args:
        width: channels of the finest level.
        size: of the slices in pixels.
        batch: slices at once.
        classes: background included.
    """
    network = VMFNet(
        out_channels=classes, channels=widths_of(width), level=0, hidden_channels=width, log_activations=True, seed=0
    )
    weights = {parameter.untyped_storage().data_ptr() for parameter in network.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        parts = network(torch.zeros(1, 1, _PROBE, _PROBE), return_parts=True)
    maps = sum(kept.values()) * batch * (size / _PROBE) ** 2
    del parts
    state = 4 * 4 * sum(parameter.numel() for parameter in network.parameters())
    return int(_OVERHEAD * maps + state)


def _grid(
    sources: Mapping[str, Sequence[ScanFacts]], labels: Mapping[int, str], budget: Budget
) -> tuple[float, int, list[Choice]]:
    scans = [scan for group in sources.values() for scan in group]
    medians = [statistics.median(scan.in_plane for scan in group) for group in sources.values()]
    usual = statistics.median(medians)
    reaches = [max(scan.reach) for scan in scans if scan.reach is not None]
    if reaches:
        field, why = 2 * _MARGIN * max(reaches), f"labels reach {max(reaches):.0f} mm from the center of the image"
    else:
        field, why = min(min(scan.extent) for scan in scans), "no label says where the organ is: the smallest field"
    widths: dict[str, list[float]] = {}
    for scan in scans:
        for value, width in scan.widths.items():
            widths.setdefault(labels[value], []).append(width)
    narrow = min(((statistics.median(found), name) for name, found in widths.items()), default=(math.inf, ""))
    spacing, reason = usual, f"median of {len(sources)} domains ({min(medians):.2g} to {max(medians):.2g} mm)"
    coarse = field / budget.largest
    if coarse > spacing:
        spacing = min(coarse, max(spacing, narrow[0] / _PIXELS))
        aim = f"{budget.largest} pixels, what a {budget.device.upper()} trains with in time, hold the labels"
        limit = "" if spacing == coarse else f", as far as {narrow[1]} keeps {_PIXELS} pixels"
        reason += f"; coarser, so that {aim}{limit}"
    elif narrow[0] / spacing < _PIXELS:
        spacing = max(narrow[0] / _PIXELS, min(medians))
        reason += f"; finer, so that {narrow[1]} ({narrow[0]:.2g} mm wide) has {narrow[0] / spacing:.0f} pixels"
    spacing = float(f"{spacing:.2g}")
    needed = max(_SMALLEST, _sixteens(field / spacing))
    view = min(min(scan.extent) for scan in scans)
    size = max(needed, min(budget.largest, _sixteens(view / spacing)))
    why += f", which takes {needed} pixels" if needed < size else ""
    room = ", with room for organs off the center" if needed < size else ""
    return (
        spacing,
        size,
        [
            Choice("spacing", spacing, reason),
            Choice("size", size, f"{why}; {size} pixels hold {size * spacing:.0f} mm{room}"),
        ],
    )


def _sixteens(pixels: float) -> int:
    """Round up to a multiple of 16, what four halvings need."""
    return _HALVED * math.ceil(pixels / _HALVED - 1e-6)


def _capacity(size: int, classes: int, networks: int, budget: Budget) -> tuple[int, int, list[Choice]]:
    limit = math.inf if budget.memory is None else _SHARE * budget.memory
    widths = [width for width in (64, 32, 16, 8) if width <= budget.widest]
    tried = [(width, batch) for width in widths for batch in (DEFAULT_BATCH, DEFAULT_BATCH // 2)]
    for width, batch in tried:
        needed = networks * training_bytes(width, size, batch, classes)
        if needed <= limit:
            break
    fits = "fits" if needed <= limit else "may not fit"
    takes = f"a training takes about {needed / _GIB:.2g} GiB and {fits}: {budget}"
    origin = {64: "the paper's", DEFAULT_WIDTH: "that of the recipe for CPUs"}.get(width, "the widest that fits")
    small = "the recipe was tuned with it" if batch == DEFAULT_BATCH else "more does not fit"
    return (
        width,
        batch,
        [
            Choice("width", width, f"channels {', '.join(map(str, widths_of(width)))}, {origin}; {takes}"),
            Choice("batch", batch, small),
        ],
    )


def _labels_choice(scans: Sequence[ScanFacts], labels: Mapping[int, str]) -> Choice:
    counts = {name: sum(value in scan.widths for scan in scans) for value, name in labels.items() if value}
    labelled = sum(scan.row.is_labeled for scan in scans)
    seen = ", ".join(f"{name} in {count}" for name, count in counts.items())
    missing = [name for name, count in counts.items() if not count]
    note = f"; no source label has {', '.join(missing)}" if missing else ""
    return Choice("labels", ",".join(counts), f"of {labelled} labelled scans of {len(scans)}: {seen}{note}")
