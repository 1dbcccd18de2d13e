# SPDX-License-Identifier: Apache-2.0
"""The command line: one program, ``vmfseg``; each verb is a file, thin over a function that anyone can call."""
