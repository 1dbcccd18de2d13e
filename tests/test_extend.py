# SPDX-License-Identifier: Apache-2.0
"""The page "Extend it": its code runs as it stands, from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "extend.md"


def test_every_block_of_the_page_runs_and_is_short():
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == len(re.findall(r"^## ", text, re.MULTILINE)) == 6
    names: dict[str, object] = {"__name__": "extend"}
    for block in blocks:
        lines = [line for line in block.splitlines() if line.strip()]
        assert len(lines) <= 20
        exec(compile(block, PAGE.name, "exec"), names)  # the page's own asserts are the test
    assert names["counter"].seen["labelled"] == 2
