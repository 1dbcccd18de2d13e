# SPDX-License-Identifier: Apache-2.0
"""Every error code of the package is registered, used and documented, and has one meaning."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import vmfseg
from vmfseg.utils import VmfError
from vmfseg.utils.error_codes import ERROR_CODES, error_page
from vmfseg.utils.errors import EXIT_CODES

PACKAGE = Path(vmfseg.__file__).parent
CODE = re.compile(r"VMF\d{3}")


def used_codes() -> dict[str, set[str]]:
    """Return the codes that stand as constants in the source, with their files; docstrings do not count."""
    found: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        if path.name == "error_codes.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and CODE.fullmatch(node.value):
                found.setdefault(node.value, set()).add(path.relative_to(PACKAGE).as_posix())
    return found


USED = used_codes()


def test_every_code_of_the_package_is_registered():
    assert {code: files for code, files in USED.items() if code not in ERROR_CODES} == {}


def test_every_registered_code_is_used():
    assert set(ERROR_CODES) - set(USED) == set()


def test_codes_are_written_out():
    """A code that is put together at run time could not be found here."""
    for path in PACKAGE.rglob("*.py"):
        if path.name != "error_codes.py":
            assert not re.search(r"""["']VMF\{""", path.read_text()), path


def test_docstrings_and_tests_speak_of_registered_codes():
    for path in PACKAGE.rglob("*.py"):
        unknown = set(CODE.findall(path.read_text())) - set(ERROR_CODES)
        assert not unknown, f"{path.name}: {unknown}"


def test_a_code_has_one_meaning_and_a_meaning_one_code():
    meanings = [text.lower() for text in ERROR_CODES.values()]
    assert len(set(meanings)) == len(meanings)
    assert list(ERROR_CODES) == sorted(ERROR_CODES)
    for code, text in ERROR_CODES.items():
        assert CODE.fullmatch(code)
        assert re.fullmatch(r"\S[^\n]{10,110}\.", text), code


@pytest.mark.parametrize("code", ERROR_CODES)
def test_every_code_has_a_promised_exit_code(code):
    assert VmfError(code).exit_code == EXIT_CODES[code[3]]
    assert VmfError(code).exit_code in (2, 3, 4, 5, 6, 7)


def test_the_page_of_the_documentation_is_that_of_the_registry():
    page = PACKAGE.parent / "docs" / "error_codes.md"
    assert page.read_text() == error_page(), "write error_page() of vmfseg.utils.error_codes there"
