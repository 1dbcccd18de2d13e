# SPDX-License-Identifier: Apache-2.0
"""``vmfseg serve`` before it listens: what it refuses, and how."""

import socket
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("fastapi", reason="the extra serve is not installed")
sys.path.append(str(Path(__file__).parent.parent / "model"))
from inference_bundle import tiny_network, write_tiny_bundle

from vmfseg.cli.main import app
from vmfseg.utils import VmfError


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return write_tiny_bundle(tmp_path_factory.mktemp("bundles"), tiny_network())


def serve(*words, **environment):
    return CliRunner().invoke(app, ["serve", *map(str, words)], env=environment)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        pytest.param(("--host", "0.0.0.0"), "VMF195", id="all hosts"),
        pytest.param(("--host", "192.168.1.5"), "VMF195", id="a network"),
        pytest.param(("--host", "example.org"), "VMF195", id="a name"),
        pytest.param(("--token", "short"), "VMF195", id="short token"),
        pytest.param(("--host", "127.0.0.1"), "VMF279", id="no studies"),
    ],
)
def test_refused_before_it_listens(bundle, tmp_path, words, code):
    result = serve(bundle, "--studies", tmp_path / "none", *words)
    assert isinstance(result.exception, VmfError)
    assert result.exception.code == code


def test_unknown_bundle_and_taken_port_are_named(bundle, tmp_path):
    assert serve("nothing", "--studies", tmp_path, "--port", 0).exception.code == "VMF330"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = serve(bundle, "--studies", tmp_path, "--port", taken.getsockname()[1])
    assert result.exception.code == "VMF543"


def test_a_missing_package_is_named_with_the_command(bundle, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    result = serve(bundle, "--studies", tmp_path)
    assert result.exception.code == "VMF530"
    assert result.exception.fix == "pip install 'vmfseg[serve]'"


def test_help_has_an_example():
    text = serve("--help", COLUMNS="80").output
    assert "vmfseg serve hearts --studies ~/scans" in text
    assert "VMFSEG_TOKEN" in text
