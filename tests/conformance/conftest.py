# SPDX-License-Identifier: Apache-2.0
import pytest

from vmfseg.utils import seeded


@pytest.fixture(autouse=True)
def _same_draws_whatever_ran_before(request):
    with seeded("tests", request.node.nodeid):
        yield
