# SPDX-License-Identifier: Apache-2.0
"""From files on disk to batches in memory: one strict reader, data sets, splits, the phantom, loaders."""
