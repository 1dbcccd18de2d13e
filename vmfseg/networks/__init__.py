# SPDX-License-Identifier: Apache-2.0
"""The networks of the paper, each usable on its own as a plain ``nn.Module``."""

from .composer import VMFComposer
from .encoder import BackboneEncoder, VMFEncoder
from .heads import AssignmentHead, PresenceHead, SegmentationHead
from .kernels import VMFKernels
from .mixture import VMFMixture
from .parts import VMFParts, network_parts
from .pretraining import ReconstructionUNet
from .vmf_net import VMFNet

__all__ = [
    "AssignmentHead",
    "BackboneEncoder",
    "PresenceHead",
    "ReconstructionUNet",
    "SegmentationHead",
    "VMFComposer",
    "VMFEncoder",
    "VMFKernels",
    "VMFMixture",
    "VMFNet",
    "VMFParts",
    "network_parts",
]
