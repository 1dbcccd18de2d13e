# SPDX-License-Identifier: Apache-2.0
"""Pictures and the one-file report."""
