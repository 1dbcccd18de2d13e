# SPDX-License-Identifier: Apache-2.0
"""Figures one can trust: overlap and distances in mm, with a stated policy for empty masks."""
