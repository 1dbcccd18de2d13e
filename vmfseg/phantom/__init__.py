# SPDX-License-Identifier: Apache-2.0
"""A multi-vendor phantom made by physics: beating hearts and spinal cords, written in the layouts of M&Ms and SCGM.

Anatomy (:mod:`heart <vmfseg.phantom.heart>`, :mod:`thorax <vmfseg.phantom.thorax>`,
:mod:`cord <vmfseg.phantom.cord>`) says which tissue is where; :mod:`tissues <vmfseg.phantom.tissues>` and
:mod:`signal <vmfseg.phantom.signal>` turn tissue and protocol (:mod:`vendors <vmfseg.phantom.vendors>`) into
magnetization; :mod:`acquisition <vmfseg.phantom.acquisition>` turns that into what a scanner stores. Parameters
come from published tables and are never tuned to a result.

:class:`PhantomSlices` draws slices without end, of wider anatomies and acquisitions, for training;
:func:`draw_subject` draws whole stacks of them. Anatomy: :mod:`pathology <vmfseg.phantom.pathology>`,
:mod:`ventricles <vmfseg.phantom.ventricles>`, :mod:`chest <vmfseg.phantom.chest>`, :mod:`neck <vmfseg.phantom.neck>`;
physics: :mod:`relaxation <vmfseg.phantom.relaxation>`, :mod:`protocols <vmfseg.phantom.protocols>`,
:mod:`scanner <vmfseg.phantom.scanner>`.
"""

from .endless import PhantomSlices
from .make import PHANTOM_FILE, PhantomDefaults, make_phantom
from .montage import save_montage, save_slice_montage
from .signal import bssfp_signal, spoiled_gre_signal
from .subjects import PhantomSubject, draw_subject
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
    "PhantomSubject",
    "Receiver",
    "Tissue",
    "bssfp_signal",
    "draw_subject",
    "make_phantom",
    "save_montage",
    "save_slice_montage",
    "spoiled_gre_signal",
    "tissue_names",
]
