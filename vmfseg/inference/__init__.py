# SPDX-License-Identifier: Apache-2.0
"""Volumes in, labels on the same grid out."""
