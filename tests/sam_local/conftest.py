"""These tests need what ``make sam-local`` builds: SAM CLI (``SAM_CLI``), the layer and the runtime's packages."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from moto.moto_api._internal.models import moto_api_backend

from artifacts.installers import find_python
from artifacts.locks import LAYER_PYTHON
from local_stack.moto_server import MotoServer
from local_stack.stack import ROOT, LocalStack, deployed
from support.rights_fleet import PARAMETERS
from support.sam_environment import build_root, emulators

collect_ignore_glob = [] if "SAM_CLI" in os.environ else ["test_*.py"]


@pytest.fixture(scope="session")
def built_layer() -> Path:
    """The layer, as ``make layer`` builds it."""
    layer = ROOT / "build" / "layer"
    if not (layer / "python").is_dir():
        pytest.skip("there is no layer in build/layer: make layer")
    return layer


@pytest.fixture(scope="session")
def lambda_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file system that a function sees, without code and layer."""
    interpreter = find_python(LAYER_PYTHON)
    if interpreter is None:
        pytest.skip(f"there is no Python {LAYER_PYTHON} here, which is the one of the functions")
    folder = tmp_path_factory.mktemp("lambda") / "root"
    build_root(folder, interpreter, ROOT / "build" / "lambda-runtime", emulators())
    return folder


@pytest.fixture
def whole_stack(moto_server: MotoServer) -> Iterator[LocalStack]:
    """A stack with tables in the Glue Data Catalog, whose functions have the rights of their roles."""
    with deployed(moto_server, parameters=PARAMETERS) as stack:
        yield stack
    moto_api_backend.reset()  # the next test's tables have the same locations
