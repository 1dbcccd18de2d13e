# SPDX-License-Identifier: Apache-2.0
"""Requests made up from the server's own OpenAPI description: no answer is an error of the server."""

from __future__ import annotations

import os
import sys
from collections import Counter
from typing import Any

import pytest
import requests
from hypothesis import HealthCheck, Phase, given, settings

schemathesis = pytest.importorskip("schemathesis", reason="the extra dev is not installed")
CASES = int(os.environ.get("VMFSEG_SCHEMA_CASES", "20"))


@pytest.mark.slow
def test_no_request_of_the_description_is_an_error_of_the_server(own_server):
    server = own_server(body_timeout=5.0)
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    operations = [operation.ok() for operation in schema.get_all_operations()]
    assert len(operations) > 20
    seen: Counter[int] = Counter()
    errors: list[str] = []
    session = requests.Session()

    def send(case: Any) -> None:
        answer = case.call(session=session, timeout=120)
        seen[answer.status_code] += 1
        if answer.status_code >= 500 and answer.status_code not in (501, 503):  # not offered; busy
            errors.append(f"{case.operation.label}: {answer.status_code} {answer.text[:300]}")

    rules = settings(
        max_examples=CASES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    for operation in operations:  # each on its own: one without parameters has a single case
        rules(given(operation.as_strategy())(send))()
    sys.stdout.write(f"{sum(seen.values())} requests to {len(operations)} operations, {dict(seen)}\n")
    assert errors == []
    assert sum(seen.values()) > CASES * len(operations) / 2
    assert server.get("/health").status_code == 200
    server.request("DELETE", "/train/")  # if one of them began a training
