# SPDX-License-Identifier: Apache-2.0
"""The networks of the paper, each usable on its own as a plain ``nn.Module``."""
