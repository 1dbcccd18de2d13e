# SPDX-License-Identifier: Apache-2.0
"""Ignite engines on MONAI's trainers, and the stages that chain them."""
