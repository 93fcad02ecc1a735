"""Text for people and logs: secrets masked, control characters escaped, amounts with units."""

from __future__ import annotations

import copy
import json
import logging
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from threading import Lock
from typing import Any
from urllib.parse import quote, quote_plus, unquote

# Counts, sizes and times as text for people (pure).

_MINUTE_MS, _HOUR_MS, _DAY_MS = 60_000, 3_600_000, 86_400_000
_UNITS = (("TB", 1024**4), ("GB", 1024**3), ("MB", 1024**2), ("KB", 1024), ("B", 1))
_LEAST_USD = 0.0001


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """A count with its noun: ``1 snapshot``, ``2 snapshots``."""
    return f"{count} {noun}" if count == 1 else f"{count} {plural or noun + 's'}"


def size_text(size: float) -> str:
    """A number of bytes in B, KB (2^10), MB (2^20), GB or TB, with two digits below 100."""
    unit, divisor = next((u for u in _UNITS if size >= u[1]), _UNITS[-1])
    number = size / divisor
    return f"{number:.0f} {unit}" if number >= 100 or divisor == 1 else f"{number:.2g} {unit}"


def age_text(age_ms: int) -> str:
    """Milliseconds as whole minutes below an hour, as hours below three days, then as days."""
    if age_ms < _HOUR_MS:
        return counted(age_ms // _MINUTE_MS, "minute")
    return counted(age_ms // _HOUR_MS, "hour") if age_ms < 3 * _DAY_MS else counted(age_ms // _DAY_MS, "day")


def usd_text(amount: float) -> str:
    """An amount of US dollars to a hundredth of a cent."""
    if amount <= 0:
        return "$0"
    return f"${amount:.4f}" if amount >= _LEAST_USD else f"less than ${_LEAST_USD}"


# Text as people and readers of logs may see it: what a terminal, a browser or a log would act on is spelled out.
#
# Names, paths, properties and the messages that quote them come from whoever may write a table.  Raw, they clear a
# screen (ESC, C1), show another text than they hold (bidi marks, zero-width characters) or begin a line that looks like
# ours (line breaks).  So text is escaped where it leaves for people: the command's console and JSON, log lines, the
# report page, metric dimensions (rule: escape-at-the-edge).  Everywhere else, and for whoever parses the JSON, it stays
# as it is.

_INDENT = "    "


def escaped(text: str) -> str:
    r"""One line of printable characters: all others are spelled as Python does, ``\n``, ``\x1b`` and ``\u202e``."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)


def escaped_lines(text: str) -> str:
    """As :func:`escaped`, but lines, as those of a traceback, stay lines: all but the first are indented."""
    return f"\n{_INDENT}".join(map(escaped, text.split("\n")))


def escaped_document(document: Any) -> Any:
    """A JSON document whose texts are all :func:`escaped`, keys too; numbers and the rest stay."""
    if isinstance(document, str):
        return escaped(document)
    if isinstance(document, Mapping):
        return {escaped_document(key): escaped_document(value) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [escaped_document(value) for value in document]
    return document


def printable_json(text: str) -> str:
    r"""The same JSON document in printable characters and line breaks; a parser reads what it would have read before.

    Others stand in strings only, where JSON spells any character as ``\u202e``.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one == "\n" else json.dumps(one)[1:-1] for one in text)


# Masks secrets in text.  Values of the properties on a list may be shown to people; every other value is a secret.
#
# A list of secret properties would miss the next one that PyIceberg or a header brings; a list of those that may be
# shown at worst hides too much (rule: mask-values-not-listed).  Addresses on the list are shown without the password
# and the parameters in them.
#
# Errors, exceptions of libraries and log lines are made far from the properties whose values they must not show.  So
# code that connects by properties calls :func:`remember_secrets`, and all text for people passes through
# :func:`masked`: every :class:`icekeeper.errors.MaintenanceError`, log lines and tracebacks, and what the command
# prints.

_MASK = "***"
# A sentence that quotes a longer value (names and properties may have megabytes) is cut: it is logged, shown and kept
# in the state, whose items have at most 400 KB (DynamoDB).
_LONGEST, _HEAD, _TAIL = 20_000, 16_000, 2_000
# Shorter values occur in ordinary words.  Those that are remembered for the whole process meet more words than those
# that are masked in one sentence, so they must be longer.
_SHORTEST = 4
_SHORTEST_REMEMBERED = 8
_MOST_REMEMBERED = 200
_ORDINARY = frozenset({"true", "false", "none", "null"})

_OF_AWS = (
    "access-key-id",  # a name: AWS itself tells it in errors, and without it nobody knows whom a policy refuses
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

# Whoever may write a table chooses long texts: each of these looks at a character a bounded number of times.
_WORD = re.compile(r"[^\s\"']+")
_BEFORE_PASSWORD = re.compile(r"[a-z][a-z0-9+.-]{0,30}://[^/@:]*:", re.IGNORECASE)
_USER_IN_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/@:\"']*:(?P<password>[^\s\"']*)@", re.IGNORECASE)
_BARE_USER = re.compile(r"^[a-z0-9+.-]+://(?P<user>[^@/]+)@", re.IGNORECASE)
_PARAMETER = re.compile(r"(?<=[?&;])(?P<name>[^=?&;\s]*)=(?P<value>[^&;\s]+)")
# Libraries may show a part of a value alone: of "id:secret", of "Bearer token", of "AccountKey=…;EndpointSuffix=…".
_SHORTEST_PART = 8
_PARTS = re.compile(r"(?:^|[;&?,])[^=;&?,]*?=([^;&,]+)")


def secrets_of(properties: Mapping[str, Any]) -> frozenset[str]:
    """The values of a catalog's or store's properties, nested ones included, that must not be shown."""
    return frozenset(
        secret
        for key, value in _leaves(properties)
        for secret in (_in_address(value) if key in _SHOWN else _with_parts(value))
        if len(secret) >= _SHORTEST and secret.lower() not in _ORDINARY
    )


def mask(text: str, properties: Mapping[str, Any]) -> str:
    """Text without any secret of the properties, however it is encoded."""
    forms = {form for secret in secrets_of(properties) for form in _forms(secret)}
    return _without(text, _longest_first(forms))


def address_to_show(address: str) -> str:
    """An address without the password and the parameters in it; everything else is shown as it is."""
    plain = _without_passwords(address)
    return _PARAMETER.sub(rf"\g<name>={_MASK}", plain) if "://" in plain else plain


class _Remembered:
    """The secrets of the newest 200 sets of properties of this process: a catalog may vend credentials per table."""

    def __init__(self) -> None:
        self._forms: OrderedDict[frozenset[tuple[str, str]], frozenset[str]] = OrderedDict()
        self._all: tuple[str, ...] = ()
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
            self._all = _longest_first(frozenset().union(*self._forms.values()))

    @property
    def forms(self) -> tuple[str, ...]:
        return self._all


_remembered = _Remembered()


def remember_secrets(properties: Mapping[str, Any]) -> None:
    """Make :func:`masked` hide the secrets of these properties from now on."""
    _remembered.add(properties)


def masked(text: str) -> str:
    """Text without any secret that this process was given, and without passwords in addresses."""
    return _without(text, _remembered.forms)


def masked_sentence(text: str) -> str:
    """As :func:`masked`, and without the middle where it is too long for logs, state and people."""
    told = masked(text)
    if len(told) <= _LONGEST:
        return told
    return f"{told[:_HEAD]} … ({len(told) - _HEAD - _TAIL} more characters) … {told[-_TAIL:]}"


def masked_document(document: Any) -> Any:
    """A JSON document whose texts are all :func:`masked`; keys, numbers and the rest stay."""
    if isinstance(document, str):
        return masked(document)
    if isinstance(document, Mapping):
        return {key: masked_document(value) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [masked_document(value) for value in document]
    return document


class MaskingFormatter(logging.Formatter):
    """Another formatter's lines, tracebacks included, without secrets, and escaped (rule: escape-at-the-edge)."""

    def __init__(self, inner: logging.Formatter | None = None) -> None:
        super().__init__()
        self._inner = inner or logging.Formatter(logging.BASIC_FORMAT)

    def format(self, record: logging.LogRecord) -> str:
        told = copy.copy(record)
        told.msg, told.args = escaped(masked(record.getMessage())), None
        # Also kept as text in the record, by whatever formatter came first.
        told.exc_info = told.exc_text = told.stack_info = None
        parts = [self._inner.format(told)]
        if record.exc_info:
            parts.append(escaped_lines(masked(self.formatException(record.exc_info))))
        if record.stack_info:
            parts.append(escaped_lines(masked(record.stack_info)))
        return "\n".join(parts)


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
        # A library that takes a part of the password for the port or the host shows that part.
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
    """The forms, the longest first, because one secret may contain another."""
    return tuple(sorted(forms, key=len, reverse=True))


def _without(text: str, forms: Iterable[str]) -> str:
    for form in forms:
        text = text.replace(form, _MASK)
    return _without_passwords(text)


def _without_passwords(text: str) -> str:
    """Text without the passwords in its addresses; one may hold slashes: it ends at the last @ before a blank."""
    return _WORD.sub(_without_password, text) if "://" in text and "@" in text else text


def _without_password(word: re.Match[str]) -> str:
    begin, at, end = word[0].rpartition("@")
    found = _BEFORE_PASSWORD.search(begin) if at else None
    return word[0] if found is None else f"{begin[: found.end()]}{_MASK}@{end}"


def _forms(secret: str) -> set[str]:
    """A secret as it may stand in plain text, an address, a JSON document or a Python string."""
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
