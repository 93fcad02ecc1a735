"""Checks of addresses that servers name, and of answers that may not be the service's own."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import urlsplit

_FOREIGN = (
    b'{"__type": "ForeignAnswer", "message": "the answer does not come from the service, so the request counts as '
    b'failed; look for a proxy that answers in its place"}'
)


def require_members(client: Any, members: Mapping[str, str]) -> None:
    """Make a boto3 client check, before it parses a JSON answer, that the answer is the service's own
    (rule: trust-only-own-answers).

    boto3 would take a proxy's page with status 200 for an empty answer: that an item, such as a pin, does not exist, or
    that an item, such as a lease, was written.  Here such an answer becomes a transient failure, like a 502, after
    which boto3 repeats the request if it repeats failed requests.

    ``members``: operation → a member that every answer contains; empty if answers may be empty objects.  Source: the
    services' API references, "Response Syntax".
    """

    def look(response_dict: dict[str, Any], operation_model: Any, **_: Any) -> None:
        member = members.get(operation_model.name)
        if member is not None and response_dict["status_code"] < 300 and not _has(response_dict["body"], member):
            response_dict.update(status_code=502, body=_FOREIGN)

    service = client.meta.service_model.service_id.hyphenize()
    client.meta.events.register(f"before-parse.{service}", look)
    client.meta.events.register_first(f"needs-retry.{service}", _believe_parsed)


def _has(body: bytes, member: str) -> bool:
    text = body.strip()
    return text.startswith(b"{") and text.endswith(b"}") and (not member or f'"{member}"'.encode() in text)


def _believe_parsed(response: Any, **_: Any) -> None:
    """Copy the changed status into the HTTP response, by which boto3 decides whether to repeat the request."""
    if response is not None:
        http_response, parsed = response
        http_response.status_code = parsed["ResponseMetadata"]["HTTPStatusCode"]


_IP: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_PORTS = {"http": 80, "https": 443}
# An address without user, blanks, control characters and backslashes, which some libraries read as slashes (WHATWG URL
# standard).
_PLAIN = re.compile(
    r"(?P<scheme>https?)://(?P<host>[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::(?P<port>[0-9]{1,5}))?(?:[/?#][!-\[\]-~]*)?",
    re.IGNORECASE,
)
# Link-local addresses (RFC 3927, RFC 4291), and addresses of clouds' metadata services: AWS's IPv6 (EC2 user guide,
# "Instance metadata"; EKS Pod Identity), Alibaba's, Azure's and Oracle's.
_NEVER = tuple(
    ipaddress.ip_network(network)
    for network in (
        *("169.254.0.0/16", "fe80::/10", "fd00:ec2::254/128", "fd00:ec2::23/128"),
        *("100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32"),
    )
)
# IPv6 addresses whose last four bytes are an IPv4 address (RFC 4291, 2.5.5; RFC 6052, 2.1).
_EMBEDDING = tuple(ipaddress.IPv6Network(network) for network in ("::/96", "::ffff:0:0/96", "64:ff9b::/96"))


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of an address: scheme, host and port (RFC 6454)."""

    scheme: str
    host: str
    port: int

    @property
    def place(self) -> tuple[str, int]:
        """Host and port, without the protocol."""
        return self.host, self.port


def origin_of(address: str) -> Origin | None:
    """The origin of an address that a server or table names; ``None`` if it is not a plain HTTP address.

    Libraries parse unusual addresses differently: one takes for the host what another takes for the user.  So only
    plain addresses have an origin, and other addresses are never used.
    """
    plain = _PLAIN.fullmatch(address)
    if plain is None:
        return None
    scheme = plain["scheme"].lower()
    return Origin(scheme, plain["host"].lower(), int(plain["port"] or _PORTS[scheme]))


def own_origin(address: str) -> Origin | None:
    """The origin of an address in the operator's configuration, which may contain a user; ``None`` if it has none."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return None
    if parts.scheme not in _PORTS or not host:
        return None
    return Origin(parts.scheme, f"[{host}]" if ":" in host else host, port or _PORTS[parts.scheme])


def is_link_local(host: str) -> bool:
    """Whether a host is a link-local address, in any spelling, or a name that currently resolves to such an address.

    ``False`` for a name that cannot be resolved.  The result may change: call this before each connection.
    """
    try:
        found = [_literal(host)]
    except ValueError:
        found = _looked_up(host)
    return any(meant in network for address in found for meant in _meanings(address) for network in _NEVER)


def _literal(host: str) -> _IP:
    """The address that a host spells; raises ValueError if it is a name."""
    if host.startswith("["):
        return ipaddress.IPv6Address(host.strip("[]"))
    try:
        # This includes decimal, octal, hexadecimal and shortened spellings, which the C library accepts on connecting.
        return ipaddress.IPv4Address(socket.inet_aton(host.rstrip(".")))
    except OSError as error:
        raise ValueError(host) from error


def _looked_up(host: str) -> list[_IP]:
    try:
        answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [ipaddress.ip_address(str(answer[4][0]).partition("%")[0]) for answer in answers]


def _meanings(address: _IP) -> list[_IP]:
    """The address, and the IPv4 addresses that it embeds."""
    if isinstance(address, ipaddress.IPv4Address):
        return [address]
    inner = [address.sixtofour, *(address.teredo or ())]
    if any(address in network for network in _EMBEDDING):
        inner.append(ipaddress.IPv4Address(address.packed[-4:]))
    return [address, *(embedded for embedded in inner if embedded is not None)]
