# SPDX-License-Identifier: Apache-2.0
"""Dictionary transforms, only where MONAI has none."""
