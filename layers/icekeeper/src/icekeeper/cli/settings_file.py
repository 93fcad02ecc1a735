"""``icekeeper policy init`` and ``policy check``: begin a file with the settings of a fleet, and check it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from icekeeper.cli.arguments import AnyCatalogs, AsJson
from icekeeper.cli.console import EXIT_OK, answer, notify
from icekeeper.errors import PartlyListed, PolicyError
from icekeeper.text import counted

if TYPE_CHECKING:
    from icekeeper.policy.policy_file import PolicyRules

_SHOWN = 3


def mention_file_here() -> None:
    """Print that a settings file of the current folder is not used, unless the environment or the user names it."""
    from icekeeper.pass_context.table_policy import POLICY_FILE, users_policy_file

    own = users_policy_file(os.environ)
    here = Path("icekeeper.yaml")
    if not here.is_file() or os.environ.get(POLICY_FILE, "").strip() or (own and own.exists() and own.samefile(here)):
        return
    notify(
        f"icekeeper.yaml in the current folder is not used: settings come from {own or 'the file'}"
        f"{', or the file' if own else ''} that {POLICY_FILE} names (icekeeper docs policy)"
    )


def policy_init(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="default: icekeeper.yaml in the user's configuration folder")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Write a file for the settings of all tables, in which every line is a comment; no file is overwritten."""
    from icekeeper.pass_context.table_policy import POLICY_FILE, users_policy_file
    from icekeeper.policy.policy_file import starter_file

    chosen = file or users_policy_file(os.environ)
    if chosen is None:
        raise PolicyError("policy init finds no configuration folder, because HOME is not set; name a file")
    try:
        if file is None:
            chosen.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(chosen, "x", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as stream:
            stream.write(starter_file())
    except FileExistsError:
        raise PolicyError(f"{chosen} exists, and is not overwritten; edit it, or name another file") from None
    except OSError as error:
        raise PolicyError(f"{chosen} cannot be written: {error.strerror or error}") from None
    named = os.environ.get(POLICY_FILE, "").strip()
    console = answer({"status": "succeeded", "file": str(chosen)}, as_json=as_json)
    console.print(f"wrote {chosen}; icekeeper policy check shows what it sets for which table", soft_wrap=True)
    if named or file is not None:
        console.print(f"to use it: export {POLICY_FILE}={chosen.absolute()}", soft_wrap=True)
    return EXIT_OK


def policy_check(
    file: Annotated[
        str | None, typer.Argument(metavar="FILE", help="a path or an s3:// address; default: the file in force")
    ] = None,
    catalogs: AnyCatalogs = None,
    as_json: AsJson = False,
) -> int:
    """Check a file of settings, and show what each of its rules sets for which tables."""
    from rich.text import Text

    from icekeeper.catalogs.load import known_catalogs
    from icekeeper.pass_context.table_policy import POLICY_FILE, policy_address, read_policy_file
    from icekeeper.report.terminal import print_rows

    address = file or policy_address(os.environ, of_user=True)
    if not address:
        raise PolicyError(f"no file of settings is in force: name one, or begin with policy init; {POLICY_FILE} wins")
    rules = read_policy_file(address)
    names = catalogs or sorted(known_catalogs())
    matched = _matched(rules, names)
    documents = [
        {
            "rule": number,
            "patterns": {field: [*texts] for field, texts in patterns.items()},
            "settings": {key: str(value) for key, value in layer.values.items()},
            "tables": [{"catalog": catalog, "table": table} for catalog, table in tables],
        }
        for number, ((patterns, layer), tables) in enumerate(zip(rules, matched, strict=True), 1)
    ]
    document = {"status": "succeeded", "file": address, "catalogs": names, "rules": documents}
    console = answer(document, as_json=as_json)
    where = f"the tables of {', '.join(names)}" if names else "no table, because no catalog is configured"
    console.print(f"{address}: valid; {counted(len(rules), 'rule')}, compared with {where}", soft_wrap=True)
    rows = [_row(rule, is_one=len(names) == 1, has_catalogs=bool(names)) for rule in documents]
    print_rows(console, [tuple(map(Text, row)) for row in rows])
    return EXIT_OK


def _matched(rules: PolicyRules, catalogs: list[str]) -> list[list[tuple[str, str]]]:
    """The tables of the catalogs that each rule matches, as ``(catalog, table)``.

    Raises:
        PolicyError: an unknown catalog, or the rules that match one table contradict each other or the deployment.
        StorageError: a catalog cannot be listed.
    """
    from icekeeper.catalogs.load import open_catalog
    from icekeeper.policy import layers_for, resolve
    from icekeeper.policy.policy_file import matching_layers

    matched: list[list[tuple[str, str]]] = [[] for _ in rules]
    checked: set[tuple[int, ...]] = set()
    for name in catalogs:
        catalog = open_catalog(name)
        try:
            for table in catalog.list_tables():
                about = catalog.id.warehouse, ".".join(table.namespace), table.name
                found = tuple(number for number, rule in enumerate(rules) if matching_layers((rule,), *about))
                for number in found:
                    matched[number].append((catalog.id.name, str(table)))
                if found not in checked:
                    checked.add(found)
                    try:
                        resolve(layers_for({}, os.environ, {}, rules=[rules[number][1] for number in found]))
                    except PolicyError as error:
                        raise PolicyError(f"{catalog.id.name} {table}: {error}") from None
        except PartlyListed as error:
            notify(str(error))
    return [sorted(tables) for tables in matched]


def _row(rule: Mapping[str, Any], *, is_one: bool, has_catalogs: bool) -> tuple[str, ...]:
    patterns = ", ".join(f"{field} {','.join(texts)}" for field, texts in rule["patterns"].items()) or "every table"
    settings = ", ".join(f"{key}={value}" for key, value in rule["settings"].items())
    tables = [found["table"] if is_one else f"{found['catalog']} {found['table']}" for found in rule["tables"]]
    more = f" and {len(tables) - _SHOWN} more" if len(tables) > _SHOWN else ""
    names = f"{counted(len(tables), 'table')}: {', '.join(tables[:_SHOWN])}{more}" if tables else "matches no table"
    return (f"rule {rule['rule']}", patterns, settings, *([names] if has_catalogs else []))
