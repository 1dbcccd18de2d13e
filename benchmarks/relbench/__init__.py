# SPDX-License-Identifier: Apache-2.0
"""relbench: 180 faults, four points each and five gates, for the verbs of vmfseg and for plain MONAI side by side."""
