"""The page about the models agrees with the models and with the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from models.check import INVARIANTS, MODELS, guards, source

_ROOT = Path(__file__).parents[2]
_PAGE = (_ROOT / "models/README.md").read_text()
_SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", _PAGE, re.MULTILINE | re.DOTALL))
_NAMES = sorted(set(re.findall(r"`([\w.]+):(\w+)`", _PAGE)))


def test_the_page_names_functions_and_guards() -> None:
    assert len(_NAMES) > 30
    assert set(MODELS) <= _SECTIONS.keys()


@pytest.mark.parametrize(("module", "name"), _NAMES)
def test_every_function_that_the_page_names_is_in_the_code(module: str, name: str) -> None:
    code = (_ROOT / "layers/icekeeper/src/icekeeper" / f"{module.replace('.', '/')}.py").read_text()
    assert re.search(rf"^ *(def|class) {name}\b", code, re.MULTILINE)


@pytest.mark.parametrize("model", MODELS)
def test_every_guard_of_the_page_has_a_variant_in_its_model_and_the_reverse(model: str) -> None:
    rows = re.findall(r"^\| ([A-Z_]+) \| .* \| `(\w+)`[^|]*\|$", _SECTIONS[model], re.MULTILINE)
    assert tuple(sorted(guard for guard, _ in rows)) == guards(model)
    assert {invariant for _, invariant in rows} <= set(INVARIANTS)


@pytest.mark.parametrize("model", MODELS)
def test_every_process_of_a_model_is_an_actor_of_the_page(model: str) -> None:
    for actor in re.findall(r"^proctype (\w+)", source(model), re.MULTILINE):
        assert f"`{actor}`" in _SECTIONS[model]
