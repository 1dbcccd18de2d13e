# SPDX-License-Identifier: Apache-2.0
"""vmfseg: segment scanners you have never seen from few labels, and see why."""

__version__ = "0.1.0"

__all__ = ["__version__"]
