# SPDX-License-Identifier: Apache-2.0
"""What is measured: the verbs of vmfseg, and plain MONAI."""
