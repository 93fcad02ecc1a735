"""Text for people and logs: amounts with units, control characters escaped, secrets masked.

Escaping: names, paths and properties come from any writer of a table.  Unescaped, they can clear a screen (ESC,
C1), show a different text than they hold (bidi marks, zero-width characters) or start a line that looks like one of
ours (line breaks).  So text is escaped where it leaves the process for people: console, JSON output, log lines, report
page, metric dimensions (rule: escape-at-the-edge).  Everywhere else it stays unchanged.

Masking: every property value is a secret unless the property is listed in ``_SHOWN``.  A list of secret properties
would miss the next property that PyIceberg or a header adds; a list of public properties at worst hides too much
(rule: mask-values-not-listed).  Error messages and log lines are made far from the properties whose values they must
not show.  So code that connects by properties calls :func:`remember_secrets`, and all text for people passes through
:func:`masked`: messages of :class:`icekeeper.errors.MaintenanceError`, log lines, tracebacks, command output.
"""

from __future__ import annotations

import copy
import json
import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import Lock
from typing import Any
from urllib.parse import quote, quote_plus, unquote

_MINUTE_MS, _HOUR_MS, _DAY_MS = 60_000, 3_600_000, 86_400_000
_UNITS = (("TB", 1024**4), ("GB", 1024**3), ("MB", 1024**2), ("KB", 1024), ("B", 1))
_LEAST_USD = 0.0001


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """A count with its noun: ``1 snapshot``, ``2 snapshots``."""
    return f"{count} {noun}" if count == 1 else f"{count} {plural or noun + 's'}"


def size_text(size: float) -> str:
    """A number of bytes in B, KB (2^10), MB (2^20), GB or TB; below 100 with two digits."""
    unit, divisor = next((u for u in _UNITS if size >= u[1]), _UNITS[-1])
    number = size / divisor
    return f"{number:.0f} {unit}" if number >= 100 or divisor == 1 else f"{number:.2g} {unit}"


def age_text(age_ms: int) -> str:
    """Milliseconds as whole minutes below an hour, at least one, as hours below three days, then as days."""
    if age_ms < _HOUR_MS:
        return counted(max(1, age_ms // _MINUTE_MS), "minute")
    return counted(age_ms // _HOUR_MS, "hour") if age_ms < 3 * _DAY_MS else counted(age_ms // _DAY_MS, "day")


def usd_text(amount: float) -> str:
    """An amount of US dollars to a hundredth of a cent."""
    if amount <= 0:
        return "$0"
    return f"${amount:.4f}" if amount >= _LEAST_USD else f"less than ${_LEAST_USD}"


def escaped(text: str) -> str:
    r"""One line of printable characters; others are written as Python escapes: ``\n``, ``\x1b``, ``\u202e``."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def escaped_lines(text: str) -> str:
    """As :func:`escaped`, but line breaks stay, as in a traceback; all lines after the first are indented."""
    return "\n    ".join(map(escaped, text.split("\n")))


def escaped_document(document: Any) -> Any:
    """A JSON document with all strings :func:`escaped`, keys too."""
    return _with_strings(document, escaped, keys=True)


def printable_json(text: str) -> str:
    r"""An equal JSON document of printable characters and line breaks.

    Other characters occur only inside strings, where JSON can write any character as ``\u202e``.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text)


_MASK = "***"
# Names and properties may have megabytes.  A message that quotes them is cut, because it is also stored in the state,
# where an item has at most 400 KB (DynamoDB).
_LONGEST, _HEAD, _TAIL = 20_000, 16_000, 2_000
# Shorter values also occur inside ordinary words.  Values remembered for the whole process are compared with more text
# than those masked in one message, so their minimum is larger.
_SHORTEST = 4
_SHORTEST_REMEMBERED = 8
_MOST_REMEMBERED = 200
_ORDINARY = frozenset({"true", "false", "none", "null"})

_OF_AWS = (
    "access-key-id",  # not secret: AWS shows it in errors, and it identifies who was refused
    "endpoint",
    "max-retries",
    "profile-name",
    "region",
    "resolve-region",
    "retry-mode",
    "role-arn",
    "role-session-name",
)
_SHOWN = frozenset(
    {
        *(f"{service}.{key}" for service in ("client", "glue", "s3", "s3tables") for key in _OF_AWS),
        *("py-catalog-impl", "py-io-impl", "type", "uri", "warehouse"),
        *("echo", "init_catalog_tables", "pool_pre_ping"),
        *("audience", "oauth2-server-uri", "prefix", "resource", "scope"),
        *("auth.impl", "auth.type", "auth.oauth2.scope", "auth.oauth2.token_url", "ssl.cabundle"),
        *("rest.sigv4-enabled", "rest.sigv4.max-retries", "rest.signing-name", "rest.signing-region"),
        *("namespace-separator", "rest-page-size", "scan-planning-mode", "snapshot-loading-mode"),
        *("glue.id", "glue.skip-archive"),
        *("s3.anonymous", "s3.connect-timeout", "s3.force-virtual-addressing", "s3.path-style-access", "s3.proxy-uri"),
        *("s3.request-timeout", "s3.server-side-encryption", "s3.signer", "s3.signer.endpoint", "s3.signer.uri"),
        # Parts of the paths of files.
        *("adls.account-host", "adls.account-name", "gcs.project-id", "gcs.service.host", "hdfs.host", "hdfs.port"),
    }
)

# A writer of a table may choose very long texts, so each pattern looks at a character a bounded number of times.
_WORD = re.compile(r"[^\s\"']+")
_BEFORE_PASSWORD = re.compile(r"[a-z][a-z0-9+.-]{0,30}://[^/@:]*:", re.IGNORECASE)
_USER_IN_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/@:\"']*:(?P<password>[^\s\"']*)@", re.IGNORECASE)
_BARE_USER = re.compile(r"^[a-z0-9+.-]+://(?P<user>[^@/]+)@", re.IGNORECASE)
_PARAMETER = re.compile(r"(?<=[?&;])(?P<name>[^=?&;\s]*)=(?P<value>[^&;\s]+)")
# Libraries may show only a part of a value: of "id:secret", of "Bearer token", of "AccountKey=…;EndpointSuffix=…".
_SHORTEST_PART = 8
_PARTS = re.compile(r"(?:^|[;&?,])[^=;&?,]*?=([^;&,]+)")


def secrets_of(properties: Mapping[str, Any]) -> frozenset[str]:
    """The values of a catalog's or store's properties that must not be shown, including nested values.

    Of a listed address only the password and the parameters are secret.
    """
    return frozenset(
        secret
        for key, value in _leaves(properties)
        for secret in (_in_address(value) if key in _SHOWN else _with_parts(value))
        if len(secret) >= _SHORTEST and secret.lower() not in _ORDINARY
    )


def mask(text: str, properties: Mapping[str, Any]) -> str:
    """Text without any secret of the properties, also where it is quoted or escaped."""
    forms = {form for secret in secrets_of(properties) for form in _forms(secret)}
    return _without(text, _longest_first(forms))


def address_to_show(address: str) -> str:
    """An address without its password and parameter values."""
    plain = _without_passwords(address)
    return _PARAMETER.sub(rf"\g<name>={_MASK}", plain) if "://" in plain else plain


class _Remembered:
    """The secrets of the newest 200 sets of properties: a catalog may vend credentials per table."""

    def __init__(self) -> None:
        self._forms: OrderedDict[frozenset[tuple[str, str]], frozenset[str]] = OrderedDict()
        self.forms: tuple[str, ...] = ()
        self._lock = Lock()

    def add(self, properties: Mapping[str, Any]) -> None:
        given = frozenset(_leaves(properties))
        with self._lock:
            if given in self._forms:
                self._forms.move_to_end(given)
                return
            secrets = (secret for secret in secrets_of(properties) if len(secret) >= _SHORTEST_REMEMBERED)
            self._forms[given] = frozenset(form for secret in secrets for form in _forms(secret))
            if len(self._forms) > _MOST_REMEMBERED:
                self._forms.popitem(last=False)
            self.forms = _longest_first(frozenset().union(*self._forms.values()))


_remembered = _Remembered()


def remember_secrets(properties: Mapping[str, Any]) -> None:
    """From now on, :func:`masked` hides the secrets of these properties."""
    _remembered.add(properties)


def masked(text: str) -> str:
    """Text without any remembered secret, and without passwords in addresses."""
    return _without(text, _remembered.forms)


def masked_sentence(text: str) -> str:
    """As :func:`masked`; a text above 20,000 characters is cut in the middle."""
    shown = masked(text)
    if len(shown) <= _LONGEST:
        return shown
    return f"{shown[:_HEAD]} … ({len(shown) - _HEAD - _TAIL} more characters) … {shown[-_TAIL:]}"


def masked_document(document: Any) -> Any:
    """A JSON document with all strings :func:`masked`, except keys."""
    return _with_strings(document, masked, keys=False)


class MaskingFormatter(logging.Formatter):
    """Masks and escapes the lines of another formatter, tracebacks included (rule: escape-at-the-edge)."""

    def __init__(self, inner: logging.Formatter | None = None) -> None:
        super().__init__()
        self._inner = inner or logging.Formatter(logging.BASIC_FORMAT)

    def format(self, record: logging.LogRecord) -> str:
        shown = copy.copy(record)
        shown.msg, shown.args = escaped(masked(record.getMessage())), None
        # Another formatter may have stored the traceback as text in the record.
        shown.exc_info = shown.exc_text = shown.stack_info = None
        parts = [self._inner.format(shown)]
        if record.exc_info:
            parts.append(escaped_lines(masked(self.formatException(record.exc_info))))
        if record.stack_info:
            parts.append(escaped_lines(masked(record.stack_info)))
        return "\n".join(parts)


def _with_strings(document: Any, change: Callable[[str], str], *, keys: bool) -> Any:
    if isinstance(document, str):
        return change(document)
    if isinstance(document, Mapping):
        return {
            _with_strings(key, change, keys=True) if keys else key: _with_strings(value, change, keys=keys)
            for key, value in document.items()
        }
    if isinstance(document, list | tuple):
        return [_with_strings(value, change, keys=keys) for value in document]
    return document


def _leaves(properties: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for key, value in properties.items():
        name = f"{above}{key}".lower()
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{name}.")
        elif isinstance(value, str | int) and not isinstance(value, bool):
            yield name, str(value)


def _in_address(value: str) -> Iterator[str]:
    if "://" not in value:
        return
    if user := _USER_IN_ADDRESS.match(value):
        yield user["password"]
        # A library that mistakes a part of the password for the port or host shows that part.
        yield from re.split(r"[/?#@:]", user["password"])
    elif bare := _BARE_USER.match(value):
        yield bare["user"]
    yield from (found["value"] for found in _PARAMETER.finditer(value))


def _with_parts(value: str) -> Iterator[str]:
    yield value
    yield from _in_address(value)
    yield value.rpartition(":")[2]
    yield value.rpartition(" ")[2]
    yield from (part for part in _PARTS.findall(value) if len(part) >= _SHORTEST_PART)


def _longest_first(forms: Iterable[str]) -> tuple[str, ...]:
    """The longest first, because one secret may contain another."""
    return tuple(sorted(forms, key=len, reverse=True))


def _without(text: str, forms: Iterable[str]) -> str:
    for form in forms:
        text = text.replace(form, _MASK)
    return _without_passwords(text)


def _without_passwords(text: str) -> str:
    """A password may contain slashes: it ends at the last @ before a blank."""
    return _WORD.sub(_without_password, text) if "://" in text and "@" in text else text


def _without_password(word: re.Match[str]) -> str:
    begin, at, end = word[0].rpartition("@")
    found = _BEFORE_PASSWORD.search(begin) if at else None
    return word[0] if found is None else f"{begin[: found.end()]}{_MASK}@{end}"


def _forms(secret: str) -> set[str]:
    """A secret as it may be written in plain text, an address, a JSON document or a Python string."""
    forms = {
        secret,
        quote(secret),
        quote(secret, safe=""),
        quote_plus(secret),
        unquote(secret),
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        repr(secret)[1:-1],
    }
    return {form for form in forms if len(form) >= _SHORTEST}
