"""``icekeeper report``: a page of real tables, and what it says where it cannot be written."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.cli.app import main
from icekeeper.text import size_text


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path / 'catalog.db'}", "warehouse": tmp_path.as_uri()}
    for key, value in properties.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{key.upper()}", value)
    monkeypatch.setenv("ICEKEEPER_STATE", str(tmp_path / "state.db"))
    catalog = SqlCatalog("lake", **properties)
    catalog.create_namespace("shop")
    rows = pa.table({"id": [1, 2]})
    for name, files in (("messy", 12), ("calm", 1)):
        table = catalog.create_table(f"shop.{name}", rows.schema)
        for _ in range(files):
            table.append(rows)
    catalog.close()


@pytest.mark.usefixtures("lake")
def test_a_page_shows_every_table_and_its_last_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "lake.html"
    assert main(["report", "--catalog", "lake", "--output", str(page)]) == 0
    assert capsys.readouterr().out == f"{page}: 2 tables, 1 needs work\n"
    text = page.read_text()
    assert text.count("<td>shop.messy</td>") == 2
    assert text.count("<td>shop.calm</td>") == 1
    assert "12 data files of" in text
    assert main(["maintain", "shop.messy", "--catalog", "lake", "--engine", "local"]) == 0
    assert main(["report", "--catalog", "lake", "--output", str(page)]) == 0
    assert "2 tables, 0 need work" in capsys.readouterr().out
    assert "compacted 12 files into 1" in page.read_text()
    assert list(tmp_path.glob(".lake.html*")) == []
    capsys.readouterr()
    newest = max((tmp_path / "shop" / "calm" / "metadata").glob("*.json"))
    newest.write_text("{")
    assert main(["report", "--catalog", "lake", "--output", str(page)]) == 1
    assert capsys.readouterr().err == "error: 1 table cannot be read: shop.calm\n"
    assert "1 of 2 tables is in trouble, 0 need work." in page.read_text()


@pytest.mark.usefixtures("lake")
def test_what_is_stored_is_told_by_who_needs_it(tmp_path: Path) -> None:
    """The files of before the compaction are kept by older snapshots; what nothing references, by its age alone."""
    page = tmp_path / "lake.html"
    folder = tmp_path / "shop" / "messy" / "data"
    history = sum(file.stat().st_size for file in folder.glob("*.parquet"))
    (folder / "stray.parquet").write_bytes(b"x" * 20_000)
    assert main(["maintain", "shop.messy", "--catalog", "lake", "--engine", "local"]) == 0
    live = sum(file.stat().st_size for file in folder.glob("compact-*.parquet"))
    assert main(["report", "--catalog", "lake", "--output", str(page)]) == 0
    row = page.read_text().split("All tables, by")[1].split("<td>shop.messy</td>")[1].split("</tr>")[0]
    for what, size in (("live", live), ("history", history), ("orphans", 20_000)):
        assert f'title="{what}">{size_text(size)}</td>' in row


@pytest.mark.usefixtures("lake")
def test_small_files_that_no_pass_would_merge_are_no_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file in each of six partitions: the first pass looks, and finds nothing to merge."""
    with closing(SqlCatalog("lake", uri=f"sqlite:///{tmp_path / 'catalog.db'}")) as catalog:
        table = catalog.load_table("shop.calm")
        with table.update_spec() as update:
            update.add_identity("id")
        table.append(pa.table({"id": [*range(6)]}))
    health = ["health", "shop.calm", "--catalog", "lake", "--json"]
    page, small = tmp_path / "lake.html", "on average are below"
    assert main(health) == 0
    assert small in capsys.readouterr().out
    assert main(["maintain", "shop.calm", "--catalog", "lake", "--engine", "local"]) == 0
    capsys.readouterr()
    assert main(health) == 0
    assert json.loads(capsys.readouterr().out)["warnings"] == []
    assert main(["report", "--catalog", "lake", "--output", str(page)]) == 0
    row = page.read_text().split("All tables, by")[1].split("<td>shop.calm</td>")[1].split("</tr>")[0]
    assert small not in row
    with closing(SqlCatalog("lake", uri=f"sqlite:///{tmp_path / 'catalog.db'}")) as catalog:
        for _ in range(6):
            catalog.load_table("shop.calm").append(pa.table({"id": [1]}))
    capsys.readouterr()
    assert main(health) == 0
    assert small in capsys.readouterr().out


@pytest.mark.usefixtures("lake")
def test_the_page_shows_more_tables_than_one_scan_proposes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(SqlCatalog("lake", uri=f"sqlite:///{tmp_path / 'catalog.db'}")) as catalog:
        table = catalog.load_table("shop.calm")
        for _ in range(11):
            table.append(pa.table({"id": [1, 2]}))
    monkeypatch.setenv("ICEKEEPER_MAX_JOBS_PER_DETECTION", "1")
    page = tmp_path / "lake.html"
    assert main(["report", "--catalog", "lake", "--output", str(page)]) == 0
    assert capsys.readouterr().out == f"{page}: 2 tables, 2 need work\n"
    assert "max_jobs_per_detection" not in page.read_text()


@pytest.mark.usefixtures("lake")
def test_where_the_page_cannot_be_written_that_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "none" / "lake.html"
    assert main(["report", "--catalog", "lake", "--output", str(page)]) == 2
    assert f"--output {page} cannot be written: No such file or directory" in " ".join(capsys.readouterr().err.split())
