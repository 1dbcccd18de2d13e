# SPDX-License-Identifier: Apache-2.0
"""Handlers that plug into any MONAI or ignite engine."""
