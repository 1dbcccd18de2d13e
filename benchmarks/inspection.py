# SPDX-License-Identifier: Apache-2.0
"""What benchmarks/interpretability.py measures: candidates (trained networks, nulls), their slices, their figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.cluster.vq import kmeans2

from vmfseg.data import SliceDataset
from vmfseg.data.experiment import Experiment
from vmfseg.model import Predictor
from vmfseg.model.definitions import build
from vmfseg.model.foreground_box import box_overlap, foreground_box
from vmfseg.networks import ReconstructionUNet, VMFMixture, VMFNet
from vmfseg.representation import (
    ActivationSample,
    describe_channels,
    domain_leakage,
    information_over_bias,
    match_channels,
    measure_equivariance,
)
from vmfseg.representation.homogeneity import describe_homogeneity
from vmfseg.representation.independence import distance_correlation, pool_content, style_stand_ins
from vmfseg.representation.interpretability import bootstrap_interval
from vmfseg.representation.motions import default_motions
from vmfseg.representation.samples import by_subject
from vmfseg.representation.yardstick import LinearProbe, best_kernel, best_kernel_set, kernel_counts, region_dice
from vmfseg.transforms import BatchAugment
from vmfseg.utils import derive_seed, numpy_rng, torch_rng
from vmfseg.visualize import view_volume
from vmfseg.visualize.activations import TISSUE_GROUPS
from vmfseg.visualize.slice_views import SliceView

Represent = Callable[[torch.Tensor], torch.Tensor]
_BATCH = 16
_SOURCE_VOLUMES = 10
#: What is asked for: classes as labelled, and tissues that the phantom knows. Where one is not known, none is judged.
STRUCTURES = {
    "blood": ("LV", "RV"),
    "heart": ("LV", "MYO", "RV"),
    **{name: (name,) for name in ("lung", "liver", "LV", "MYO", "RV")},
}
_TISSUES = ("lung", "liver")
#: Of ``bundles/unsupervised_mnms``.
_AUGMENTATION: dict[str, Any] = {
    "rotation": (-30.0, 30.0), "integer_angles": False, "flip": 0.0, "scale": (0.85, 1.15), "gamma": (0.7, 1.5),
    "contrast": (0.75, 1.25), "brightness": 0.1, "bias_field": 0.3, "noise": 0.05,
}  # fmt: skip
PROBE_SLICES = (1, 4, 16)
_PROBE_DRAWS = 5


@dataclass(frozen=True)
class Candidate:
    """Something that maps images ``B1HW`` to activations ``BJhw`` that sum to one over ``J``."""

    name: str
    represent: Represent
    features: Represent | None = None
    kernels: np.ndarray | None = None
    period: int = 16
    dice: float | None = None  # of the segmentation on the unseen domain, where there is one
    probe: Represent | None = None  # maps for the linear probe; default the log activations


@dataclass(frozen=True)
class Material:
    """The slices of an experiment, read once: labelled source, unseen domain, middle slices of everyone at ED.

    ``images`` are all source images that networks without labels learn from, ``n1HW``.
    """

    labels: dict[int, str]
    source: list[SliceView]
    target: list[SliceView]
    everyone: list[SliceView]
    images: torch.Tensor

    @classmethod
    def load(cls, predictor: Predictor, experiment: Experiment) -> Material:
        """Read all volumes of a run; the activations in the views are not used."""
        known: dict[Any, list[SliceView]] = {}

        def views(rows: Sequence[Mapping[str, Any]]) -> list[SliceView]:
            found: list[SliceView] = []
            for row in rows:
                key = row["image"], row.get("frame")
                if key not in known:
                    known[key] = [view for view in view_volume(predictor, row) if view.truth is not None]
                found += known[key]
            return found

        rows = [row for row in experiment.datalist.to_dicts() if row.get("label") and row.get("phase") != "ES"]
        names = {label: name for label, name in experiment.labels.items() if label}
        source = experiment.labeled[:: max(1, len(experiment.labeled) // _SOURCE_VOLUMES)]
        slices = SliceDataset(experiment.images, predictor.model.build_preprocessing(), len(experiment.labels))
        images = torch.stack([slices[k]["image"] for k in range(len(slices))])
        return cls(names, views(source), views(experiment.target), _middle(views(rows), count=3), images)


def network_candidate(name: str, network: VMFNet, dice: float | None = None) -> Candidate:
    """Return a trained (or random) vMF network as a candidate."""
    return Candidate(
        name,
        lambda x: network.kernels(network.encoder(x)),
        network.encoder,
        network.kernels.unit_kernels().detach().numpy(),
        _period(network),
        dice,
    )


def random_candidate(predictor: Predictor, material: Material, seed: int = 1234) -> Candidate:
    """Null N1: the same architecture with random weights, kernels fitted to its features of source images."""
    network: VMFNet = build({**predictor.model.network, "seed": seed}, "network")
    return _fitted("N1 random network", network.eval(), material, seed)


def _fitted(name: str, network: VMFNet, material: Material, seed: int) -> Candidate:
    """Fit the kernels of a network to its features of source images."""
    with torch.no_grad():
        vectors = torch.cat([network.encoder(x) for x in _batches(material.source)]).movedim(1, -1).flatten(0, -2)
    vectors = vectors[vectors.norm(dim=1) > 0]
    chosen = torch.randperm(len(vectors), generator=torch_rng(seed, name))[:50_000]
    mixture = VMFMixture(network.kernels.num_kernels, float(network.kernels.kappa), seed=seed).fit(vectors[chosen])
    network.kernels.set_kernels(mixture.means)
    return network_candidate(name, network)


def cluster_candidate(predictor: Predictor, material: Material, seed: int = 1234) -> Candidate:
    """Null N2: k-means on intensity and position, on the same lattice and with as many groups."""
    network: Any = predictor.network
    count = network.kernels.num_kernels
    stride = material.source[0].image.shape[0] // material.source[0].activations.shape[1]
    vectors = torch.cat([_describe(x, stride) for x in _batches(material.source)]).movedim(1, -1).flatten(0, -2).numpy()
    chosen = numpy_rng(seed, "N2").permutation(len(vectors))[:20_000]
    centers, _ = kmeans2(vectors[chosen], count, minit="++", seed=seed)
    means = torch.from_numpy(centers).float()

    def represent(x: torch.Tensor) -> torch.Tensor:
        described = _describe(x, stride)
        distance = (described[:, None] - means[None, :, :, None, None]).square().sum(dim=2)
        return torch.nn.functional.one_hot(distance.argmin(dim=1), count).movedim(-1, 1).float()

    return Candidate("N2 k-means", represent, period=_period(network), probe=lambda x: _describe(x, stride))


def reconstruction_candidate(
    predictor: Predictor, material: Material, iterations: int = 1000, seed: int = 1234
) -> Candidate:
    """Null N3: the same encoder trained to reconstruct all source images, kernels fitted; the probe reads the features.

    It sees the images that the candidates see, augmented as in the bundles; nothing is hidden from it.
    """
    network: VMFNet = build({**predictor.model.network, "seed": seed}, "network")
    unet = ReconstructionUNet(network.encoder)
    optimizer = torch.optim.Adam(unet.parameters(), 1e-3)
    augment, generator = BatchAugment(**_AUGMENTATION), torch_rng(seed, "N3")
    for step in range(iterations):
        x = material.images[torch.randint(len(material.images), (12,), generator=generator)]
        x = augment({"image": x}, [derive_seed(seed, step, k) for k in range(len(x))])["image"]
        optimizer.zero_grad()
        (unet(x) - x).abs().mean().backward()
        optimizer.step()
    features = getattr(network.encoder, "pyramid", lambda x: [network.encoder(x)])  # with their length, unlike kernels
    return replace(_fitted("N3 reconstruction", network.eval(), material, seed), probe=lambda x: features(x)[0])


def yardstick(candidate: Candidate, material: Material, seed: int = 0) -> dict[str, Any]:
    """Return what the representation is worth: Dice on the unseen domain of one kernel, a set, and a linear probe.

    Everything is chosen on source slices. The probe is fitted on *n* slices with foreground, each of another subject as
    far as there are any; the mean of five draws.
    """
    source, target = (
        _samples(candidate, [_with_tissues(view, material.labels) for view in views])
        for views in (material.source, material.target)
    )
    result: dict[str, Any] = {}
    for name in STRUCTURES:
        values = structure_values(name, material.labels)
        if not values:
            continue
        won, inside = kernel_counts(source, values)
        if not inside.sum():
            continue
        for kind, kernels in (("one", (best_kernel(won, inside),)), ("set", best_kernel_set(won, inside))):
            regions = [np.isin(sample.activations.argmax(axis=0), kernels) for sample in target]
            dice = region_dice(target, regions, values)
            result.setdefault(name, {})[kind] = {
                "dice": float(dice.mean()),
                "interval_95": bootstrap_interval(dice, seed),
                "kernels": list(kernels),
            }
    heart = structure_values("heart", material.labels)
    box = _box(target, result["heart"]["set"]["kernels"], heart) if "heart" in result else None
    return {"structures": result, "box": box, "probe": _probe(candidate, material, target, seed)}


def _box(samples: Sequence[ActivationSample], kernels: Sequence[int], values: Sequence[int]) -> dict[str, float]:
    """Return how often the box around the heart's kernels overlaps the true one by one half, of slices that show it."""
    overlaps = []
    for sample in samples:
        heart = np.isin(sample.labels, values)
        if heart.any():
            step = len(heart) // sample.activations.shape[1]
            found = np.isin(sample.activations.argmax(axis=0), kernels).repeat(step, axis=0).repeat(step, axis=1)
            overlaps.append(box_overlap(foreground_box(found), foreground_box(heart)))
    return {"hit_rate": float(np.mean(np.asarray(overlaps) >= 0.5)), "mean_overlap": float(np.mean(overlaps))}


def _probe(candidate: Candidate, material: Material, target: list[ActivationSample], seed: int) -> dict[str, Any]:
    def maps(views: Sequence[SliceView]) -> np.ndarray:
        ask = candidate.probe or (lambda x: candidate.represent(x).clamp_min(1e-6).log())
        return torch.cat([_ask(ask, x) for x in _batches(views)]).numpy()

    every = set(material.labels)
    shown = [
        view
        for view in material.source
        if int((view.truth > 0).sum()) > view.truth.size // 20
        and (view.annotated is None or every <= set(view.annotated))
    ]
    known, unknown = maps(shown), maps(material.target)
    step = shown[0].truth.shape[0] // known.shape[-1]
    labels = [view.truth[step // 2 :: step, step // 2 :: step].astype(np.int64) for view in shown]
    found: dict[str, Any] = {}
    for count in PROBE_SLICES:
        draws = []
        for draw in range(_PROBE_DRAWS):
            chosen = _draw_slices(shown, count, numpy_rng("probe", seed, count, draw))
            probe = LinearProbe(len(material.labels) + 1).fit([known[i] for i in chosen], [labels[i] for i in chosen])
            guesses = [probe.predict(m) for m in unknown]
            draws.append([region_dice(target, [g == n for g in guesses], (n,)).mean() for n in material.labels])
        table = np.asarray(draws)
        found[str(count)] = {
            "dice": float(table.mean()),
            "spread": float(table.mean(axis=1).std()),
            "classes": dict(zip(material.labels.values(), map(float, table.mean(axis=0)), strict=True)),
        }
    return found


def _draw_slices(views: Sequence[SliceView], count: int, rng: np.random.Generator) -> list[int]:
    """Draw slices, one a subject in turn."""
    left: dict[str, list[int]] = {}
    for index in rng.permutation(len(views)).tolist():
        left.setdefault(views[index].subject, []).append(index)
    queue = [left[name][k] for k in range(len(views)) for name in left if k < len(left[name])]
    return queue[:count]


def structure_values(name: str, labels: Mapping[int, str]) -> tuple[int, ...]:
    """Return the voxel values of a structure in the evaluation map, none if one of its parts is no class or tissue."""
    known = {label: value for value, label in labels.items()}
    known |= {tissue: max(labels) + 1 + k for k, tissue in enumerate(_TISSUES)}
    values = tuple(known.get(part, 0) for part in STRUCTURES[name])
    return values if all(values) else ()


def _with_tissues(view: SliceView, labels: Mapping[int, str]) -> SliceView:
    """Return the view with the evaluation map as truth: classes, and elsewhere the tissues that the phantom knows."""
    truth: np.ndarray = view.truth.astype(np.int64)
    if view.tissues is not None:
        for name in _TISSUES:
            (number,) = structure_values(name, labels)
            truth = np.where((truth == 0) & np.isin(view.tissues, TISSUE_GROUPS[name]), number, truth)
    return replace(view, truth=truth)


def measure(candidate: Candidate, material: Material, seeds: Sequence[int] = (0, 1)) -> dict[str, Any]:
    """Return all figures of a candidate: plain numbers, ``None`` where undefined."""
    source, target = (_samples(candidate, views) for views in (material.source, material.target))
    everyone = _samples(candidate, material.everyone)
    match = match_channels(source, material.labels)
    result: dict[str, Any] = {"segmentation_dice": candidate.dice, "classes": describe_channels(target, match)}
    homology = describe_homogeneity(by_subject(everyone), material.labels)["channels"]
    for key in ("homology_subjects", "homology_domains"):
        values = [channel[key] for channel in homology if channel[key] is not None]
        result[key] = float(np.mean(values)) if values else None
    result["tissues"] = _tissues(candidate, material)
    result["yardstick"] = yardstick(candidate, material)
    middle = _middle(material.everyone)
    result["independence"] = _independence(candidate, middle)
    result["iob"] = _iob(candidate, material.everyone, {view.domain for view in material.target}, seeds)
    result["domain_leakage"] = domain_leakage(everyone)
    slices = [view for view in _middle(material.target) if view.phase != "ES"]
    images = torch.from_numpy(np.stack([view.image for view in slices]))[:, None].float()
    truths = torch.from_numpy(np.stack([view.truth for view in slices]).astype(np.int64))[:, None]
    rows = measure_equivariance(
        candidate.represent, images, truths, material.labels, motions=default_motions(candidate.period)
    )
    result["equivariance"] = [row.as_dict() for row in rows]
    return result


def _tissues(candidate: Candidate, material: Material) -> dict[str, Any]:
    """For every tissue of the phantom the channel that is best on source subjects, judged on the unseen domain."""
    groups = list(TISSUE_GROUPS)
    codes = np.zeros(256, dtype=np.int64)
    for number, name in enumerate(groups, start=1):
        codes[list(TISSUE_GROUPS[name])] = number
    sides = []
    for views in (material.source, material.target):
        known = [replace(view, truth=codes[view.tissues]) for view in views if view.tissues is not None]
        sides.append(_samples(candidate, known) if known else [])
    if not all(sides):
        return {}
    present = {int(value) for sample in sides[1] for value in np.unique(sample.labels)} - {0}
    labels = {number: name for number, name in enumerate(groups, start=1) if number in present}
    match = match_channels(sides[0], labels)
    best = {name: int(match.dice[:, column].argmax()) for column, name in enumerate(labels.values())}
    figures = describe_channels(sides[1], replace(match, assignment=best))["classes"]
    keys = ("channel", "matched_dice", "calibration_dice", "average_precision")
    return {name: {key: entry[key] for key in keys} for name, entry in figures.items()}


def _independence(candidate: Candidate, views: Sequence[SliceView]) -> dict[str, Any]:
    samples = _samples(candidate, views, features=True)
    images = np.stack([view.image.ravel() for view in views])
    content = pool_content(samples)
    result = {"image_content": distance_correlation(images, content)}
    for name, style in style_stand_ins(samples, candidate.kernels).items():
        result[f"content_{name}"] = distance_correlation(content, style)
        result[f"image_{name}"] = distance_correlation(images, style)
    return result


def _iob(candidate: Candidate, views: Sequence[SliceView], held_out: set[str], seeds: Sequence[int]) -> dict[str, Any]:
    images = torch.from_numpy(np.stack([view.image for view in views]))[:, None].float()
    content = torch.cat([_ask(candidate.represent, x) for x in images.split(_BATCH)])
    away = torch.tensor([view.domain in held_out for view in views])
    return information_over_bias(images, content, away, epochs=10, learning_rate=1e-3, channels=16, seeds=seeds)


def _samples(candidate: Candidate, views: Sequence[SliceView], features: bool = False) -> list[ActivationSample]:
    activations, described = [], []
    for x in _batches(views):
        activations.append(_ask(candidate.represent, x).double().numpy())
        if features and candidate.features is not None:
            described.append(_ask(candidate.features, x).numpy())
    joined = np.concatenate(activations)
    extra = np.concatenate(described) if described else [None] * len(views)
    return [
        ActivationSample(p, view.truth.astype(np.int64), view.subject, view.domain, view.image, f, view.annotated)
        for p, f, view in zip(joined, extra, views, strict=True)
    ]


def _middle(views: Sequence[SliceView], count: int = 1) -> list[SliceView]:
    """Return the slices with most foreground of every volume."""
    volumes: dict[Any, list[SliceView]] = {}
    for view in views:
        volumes.setdefault((view.domain, view.subject, view.phase), []).append(view)
    chosen = []
    for key in sorted(volumes):
        chosen += sorted(volumes[key], key=lambda view: (-int((view.truth > 0).sum()), view.index))[:count]
    return chosen


def _describe(x: torch.Tensor, stride: int) -> torch.Tensor:
    """Return intensity and position ``B3hw``, each with a spread of about one."""
    small = torch.nn.functional.avg_pool2d(x, stride)
    axes = [torch.linspace(-1.7, 1.7, size) for size in small.shape[2:]]
    grid = torch.stack(torch.meshgrid(*axes, indexing="ij")).expand(len(x), -1, -1, -1)
    return torch.cat([4 * small, grid], dim=1)


def _batches(views: Sequence[SliceView]) -> tuple[torch.Tensor, ...]:
    return torch.from_numpy(np.stack([view.image for view in views]))[:, None].float().split(_BATCH)


@torch.no_grad()
def _ask(represent: Represent, x: torch.Tensor) -> torch.Tensor:
    return represent(x)


def _period(network: VMFNet) -> int:
    """Return the product of the encoder's poolings; shifts by it move every lattice onto itself."""
    return int(getattr(network.encoder, "divisor", 16))


__all__ = [
    "PROBE_SLICES",
    "STRUCTURES",
    "Candidate",
    "Material",
    "cluster_candidate",
    "measure",
    "network_candidate",
    "random_candidate",
    "reconstruction_candidate",
    "structure_values",
    "yardstick",
]
