# SPDX-License-Identifier: Apache-2.0
"""Export of a trained network to ONNX, OpenVINO, TorchScript and int8, each compared with the original."""

from .exporter import export_bundle

__all__ = ["export_bundle"]
