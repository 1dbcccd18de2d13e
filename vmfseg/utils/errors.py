# SPDX-License-Identifier: Apache-2.0
"""The error class of the package: code, subject, rule, found, fix.

Whatever a user gets wrong is reported by a :class:`VmfError`: *subject* (argument or file), *rule* (what does not
hold), *found* (what came instead), *fix* (the cure). The command line, the server and the Python API all show the same
object, in at most five lines. :mod:`vmfseg.utils.error_codes` lists the codes; the first digit decides the exit code of
a command:

=====  ======================================  =========
code   meaning                                 exit code
=====  ======================================  =========
VMF1   wrong argument                          2
VMF2   input data refused                      3
VMF3   configuration or bundle refused         4
VMF4   untrusted artefact refused              5
VMF5   resource: disk, memory, lock            6
VMF9   a bug in vmfseg                         7
=====  ======================================  =========
"""

from __future__ import annotations

import re

from vmfseg.utils.error_codes import CURES, EXIT_CODES, registered_rule

__all__ = ["EXIT_CODES", "VmfError", "find_vmf_error", "printable"]

_MAX_LENGTH = 600
_BLOCK = re.compile(
    r"error (?P<code>VMF\d{3}): (?P<rule>[^\n]*)"
    r"(?:\n  about  (?P<subject>[^\n]*))?(?:\n  found  (?P<found>[^\n]*))?(?:\n  fix    (?P<fix>[^\n]*))?"
)


class VmfError(ValueError):
    """An error that names its subject, the broken rule, what was found and the cure.

    Args:
        code: ``"VMFnnn"`` of :data:`vmfseg.utils.error_codes.ERROR_CODES`, stable over releases, so that scripts can
            rely on it.
        subject: the argument or file that is refused.
        rule: what does not hold, one short clause; the text of the registry if it is left out.
        found: what came instead.
        fix: what the user can do about it; the cure of the registry if it is left out.

    Every field becomes one line of bounded length. Control characters, which a file name may hold and a terminal would
    obey, are escaped.

    Example:
        >>> error = VmfError("VMF204", subject="a.nii.gz", found="0 bytes")
        >>> print(error)
        error VMF204: the file is empty
          about  a.nii.gz
          found  0 bytes
          fix    copy or download the file again
        >>> error.exit_code
        3
    """

    def __init__(
        self, code: str, *, subject: str = "", rule: str | None = None, found: str = "", fix: str | None = None
    ) -> None:
        block = _BLOCK.search(code)
        if block is not None:  # a worker process of torch rebuilds exceptions from their text alone
            parts = {key: value or "" for key, value in block.groupdict().items()}
            code, subject, rule, found, fix = (parts[k] for k in ("code", "subject", "rule", "found", "fix"))
        rule = registered_rule(code) if rule is None else rule
        fix = CURES.get(code, "") if fix is None else fix
        self.code, self.subject, self.rule, self.found, self.fix = (_line(s) for s in (code, subject, rule, found, fix))
        super().__init__(self.render())

    @property
    def exit_code(self) -> int:
        """The exit code of a command that stops with this error."""
        return EXIT_CODES.get(self.code[3:4], 7)

    def render(self) -> str:
        """Return the message, at most four lines."""
        rows = (("about", self.subject), ("found", self.found), ("fix", self.fix))
        return "\n".join([f"error {self.code}: {self.rule}", *(f"  {key:<6} {text}" for key, text in rows if text)])

    def as_dict(self) -> dict[str, str]:
        """Return the fields for JSON (server responses, ``--json`` output)."""
        return {"code": self.code, "subject": self.subject, "rule": self.rule, "found": self.found, "fix": self.fix}

    def __reduce__(self) -> tuple[type[VmfError], tuple[str]]:
        return (type(self), (self.render(),))


def find_vmf_error(error: BaseException) -> VmfError | None:
    """Find the refusal inside an exception that other libraries wrapped, or return ``None``.

    MONAI re-raises errors of transforms as ``RuntimeError``, torch rebuilds those of worker processes from text; both
    keep the cause chain or the message, and that is where this looks.

    Example:
        >>> inner = VmfError("VMF204", subject="a.nii.gz", found="0 bytes")
        >>> find_vmf_error(RuntimeError(f"applying transform failed: {inner} in worker 3")).subject
        'a.nii.gz'
        >>> find_vmf_error(KeyError("x")) is None
        True
    """
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        if isinstance(link, VmfError):
            return link
        block = _BLOCK.search(str(link))
        if block is not None:
            return VmfError(block.group(0))
        seen.add(id(link))
        link = link.__cause__ or link.__context__
    return None


def _line(text: str) -> str:
    """Return a text as one bounded line of printable characters that any UTF-8 stream takes."""
    line = " ".join(str(text).split())
    line = line if len(line) <= _MAX_LENGTH else f"{line[: _MAX_LENGTH - 3]}..."
    return printable(line)


def printable(text: str) -> str:
    r"""Return a text with control characters escaped, which a file name may hold and a terminal would obey.

    Example:
        >>> printable("a\x1b[2Jb")
        'a\\x1b[2Jb'
    """
    kept = "\n\t"
    return "".join(
        c if c.isprintable() or c in kept else c.encode("unicode_escape", "surrogatepass").decode() for c in text
    )
