# SPDX-License-Identifier: Apache-2.0
"""Findings: errors and warnings about files, pairs and subjects, as records."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal

from vmfseg.utils import VmfError

__all__ = ["DataWarning", "Finding", "warn_findings"]


class DataWarning(UserWarning):
    """Something unusual about a file that is accepted by a stated rule."""


@dataclass(frozen=True)
class Finding:
    """One observation about the data.

    Args:
        severity: ``"error"`` (the data is refused) or ``"warning"`` (accepted by a stated rule, and said so).
        code: ``"VMFnnn"``, the same codes as :class:`~vmfseg.utils.VmfError`.
        subject: the subject, or the file where no subject is known.
        message: what was found and, where there is one, the cure.
        file: path of the file, empty if the finding is not about one file.

    Example:
        >>> finding = Finding("warning", "VMF225", "A0S9V9", "no orientation in the header", "a.nii.gz")
        >>> print(finding)
        warning VMF225 A0S9V9 (a.nii.gz): no orientation in the header
    """

    severity: Literal["error", "warning"]
    code: str
    subject: str
    message: str
    file: str = ""

    @classmethod
    def from_error(cls, error: VmfError, subject: str) -> Finding:
        """Turn a refusal into a finding about ``subject``."""
        text = "; ".join(part for part in (error.rule, error.found) if part)
        return cls("error", error.code, subject, f"{text} - {error.fix}" if error.fix else text, error.subject)

    def as_dict(self) -> dict[str, str]:
        """Return the fields for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        place = f" ({os.path.basename(self.file)})" if self.file and self.file != self.subject else ""
        return f"{self.severity} {self.code} {self.subject}{place}: {self.message}"


def warn_findings(findings: Iterable[Finding]) -> None:
    """Issue each finding as a :class:`DataWarning`; Python shows the same text only once per process."""
    for finding in findings:
        warnings.warn(str(finding), DataWarning, stacklevel=3)
