# SPDX-License-Identifier: Apache-2.0
"""A multi-vendor phantom made by physics: beating hearts and spinal cords, written in the layouts of M&Ms and SCGM.

Anatomy (:mod:`heart <vmfseg.phantom.heart>`, :mod:`thorax <vmfseg.phantom.thorax>`,
:mod:`cord <vmfseg.phantom.cord>`) says which tissue is where; :mod:`tissues <vmfseg.phantom.tissues>` and
:mod:`signal <vmfseg.phantom.signal>` turn tissue and protocol (:mod:`vendors <vmfseg.phantom.vendors>`) into
magnetization; :mod:`acquisition <vmfseg.phantom.acquisition>` turns that into what a scanner stores. Parameters
come from published tables and are never tuned to a result.
"""

from .endless import PhantomSlices
from .make import PHANTOM_FILE, PhantomDefaults, make_phantom
from .montage import save_montage
from .signal import bssfp_signal, spoiled_gre_signal
from .tissues import TISSUES, Tissue, tissue_names
from .vendors import CORD_SITES, HEART_CENTERS, CordProtocol, HeartProtocol, Receiver

__all__ = [
    "CORD_SITES",
    "HEART_CENTERS",
    "PHANTOM_FILE",
    "TISSUES",
    "CordProtocol",
    "HeartProtocol",
    "PhantomDefaults",
    "PhantomSlices",
    "Receiver",
    "Tissue",
    "bssfp_signal",
    "make_phantom",
    "save_montage",
    "spoiled_gre_signal",
    "tissue_names",
]
