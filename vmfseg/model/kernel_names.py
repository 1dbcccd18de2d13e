# SPDX-License-Identifier: Apache-2.0
"""Give kernels names, and write the model that segments what they are named after.

A network without masks finds parts of the image; what they are called, a person says: by hand (``{"3": "lung", "7":
"lung", "9": "blood"}``) or by a few labelled slices. The named model has the encoder and the kernels of the old one and
an :class:`~vmfseg.networks.AssignmentHead`; kernels without a name are background. It is a model like any other:
``vmfseg segment FOLDER scan.nii.gz``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vmfseg.model.artifact import MODEL_FILES
from vmfseg.model.predictor import Predictor
from vmfseg.networks import AssignmentHead
from vmfseg.utils import VmfError, read_json
from vmfseg.utils.io import StrPath

__all__ = ["read_names", "save_named_model"]

_LONGEST = 100


def read_names(path: StrPath, num_kernels: int) -> dict[int, str]:
    """Read names of kernels from a JSON file, ``{"3": "lung"}``.

    Args:
        path: the file.
        num_kernels: of the network.

    Raises:
        VmfError: VMF301 no JSON, VMF357 no names of kernels of this network.
    """
    content = read_json(path)
    names: dict[int, str] = {}
    for key, name in content.items() if isinstance(content, dict) else [("", content)]:
        known = str(key).isascii() and str(key).isdigit() and int(key) < num_kernels
        if not known or not isinstance(name, str) or not name.strip() or len(name) > _LONGEST:
            raise _refused(path, num_kernels, f"{str(key)[:20]!r}: {str(name)[:40]!r}")
        names[int(key)] = name.strip()
    if not {name for name in names.values() if name != "background"}:
        raise _refused(path, num_kernels, "no name beside background")
    return names


def save_named_model(predictor: Predictor, names: Mapping[int, str], folder: StrPath) -> dict[int, str]:
    """Write a model that segments the named kernels, and return its labels.

    Classes of the old model keep their order; other names follow in the order of the kernels.

    Args:
        predictor: a model with kernels.
        names: of kernels by number; several kernels may share one.
        folder: a new or empty one.

    Raises:
        VmfError: VMF358 if the folder holds a model, VMF359 if there is no name.
        ValueError: if the network has no kernels.
    """
    network: Any = predictor.network
    if not predictor.has_kernels:
        raise ValueError("predictor must hold a network with vMF kernels, got one without.")
    place = Path(folder)
    if any((place / name).exists() for name in MODEL_FILES):
        raise VmfError("VMF358", subject=str(place), found="a model")
    chosen = {kernel: name for kernel, name in sorted(names.items()) if name != "background"}
    if not chosen:
        raise VmfError(
            "VMF359",
            subject=str(place),
            found="a label map in which no class is drawn, or that fits no kernel",
            fix="draw some slices, or give names by hand",
        )
    known = [name for value, name in predictor.labels.items() if value and name in chosen.values()]
    order = ["background", *known, *dict.fromkeys(name for name in chosen.values() if name not in known)]
    labels = dict(enumerate(order))
    definition = {
        **predictor.model.network, "out_channels": len(order), "head": "assignment", "reconstruct": False,
        "presence": "none",
    }  # fmt: skip
    head = AssignmentHead(network.kernels.num_kernels, len(order), network.encoder.stride)
    head.assign([order.index(chosen.get(kernel, "background")) for kernel in range(network.kernels.num_kernels)])
    state = {key: value for key, value in network.state_dict().items() if key.startswith(("encoder.", "kernels."))}
    state |= {f"head.{key}": value for key, value in head.state_dict().items()}
    old = predictor.model
    # what was learnt about the old classes does not hold for these
    facts = {
        key: value for key, value in old.facts.items() if key not in ("sha256", "versions", "assignment", "shipped")
    }
    named = replace(old, network=definition, labels=labels, facts=facts)
    place.mkdir(parents=True, exist_ok=True)
    named.save(place, state, kernel_names={str(kernel): name for kernel, name in chosen.items()})
    return labels


def _refused(path: StrPath, num_kernels: int, found: str) -> VmfError:
    return VmfError(
        "VMF357",
        subject=str(path),
        rule=f"names are texts by the number of a kernel, 0 to {num_kernels - 1}",
        found=found,
    )
