# SPDX-License-Identifier: Apache-2.0
"""The methods that the paper is compared with: U-Net, SDNet with factor augmentation, LDDG, SAML, DGNet, nnU-Net."""

from .dgnet import DGNet
from .dgnet_training import DGNetLoss, DGNetTrainer
from .lddg import LDDGLoss, LDDGNet
from .meta import MetaTrainer, MethodTrainer
from .objective import MethodLoss
from .outputs import MethodParts
from .saml import SAMLLoss, SAMLTrainer, SAMLUNet
from .sdnet import SDNet
from .sdnet_training import SDNetLoss, SDNetTrainer, load_generator
from .unet import SegmentationUNet

__all__ = [
    "DGNet",
    "DGNetLoss",
    "DGNetTrainer",
    "LDDGLoss",
    "LDDGNet",
    "MetaTrainer",
    "MethodLoss",
    "MethodParts",
    "MethodTrainer",
    "SAMLLoss",
    "SAMLTrainer",
    "SAMLUNet",
    "SDNet",
    "SDNetLoss",
    "SDNetTrainer",
    "SegmentationUNet",
    "load_generator",
]
