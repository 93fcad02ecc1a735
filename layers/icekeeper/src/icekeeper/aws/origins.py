"""Whether an address leads to this machine alone, and whether an answer is the service's own
(rule: trust-only-own-answers)."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import urlsplit

# Whether an answer of success is the service's own, for services that answer in JSON (rule: trust-only-own-answers).
#
# boto3 takes a page that a proxy answers with status 200 for an empty answer: to a read, that there is no such item,
# such as a pin; to a write, that the item, such as a lease, is written.  What is not the service's is made a failure
# that may pass, as a 502 is: boto3 repeats the request where it repeats failed ones. Source: the services' API
# references, "Response Syntax".

_FOREIGN = (
    b'{"__type": "ForeignAnswer", "message": "the answer is not one of the service, so that the request counts as '
    b'failed; look for a proxy that answers in its place"}'
)


def require_members(client: Any, members: Mapping[str, str]) -> None:
    """Have a boto3 client look at answers before they are parsed.

    ``members``: operation → a member that each of its answers has; empty where answers may be empty objects.
    """

    def look(response_dict: dict[str, Any], operation_model: Any, **_: Any) -> None:
        member = members.get(operation_model.name)
        if member is not None and response_dict["status_code"] < 300 and not _has(response_dict["body"], member):
            response_dict.update(status_code=502, body=_FOREIGN)

    service = client.meta.service_model.service_id.hyphenize()
    client.meta.events.register(f"before-parse.{service}", look)
    client.meta.events.register_first(f"needs-retry.{service}", _believe_parsed)


def _has(body: bytes, member: str) -> bool:
    told = body.strip()
    return told.startswith(b"{") and told.endswith(b"}") and (not member or f'"{member}"'.encode() in told)


def _believe_parsed(response: Any, **_: Any) -> None:
    """Give the answer the status that it was parsed with, by which boto3 decides what to do, as it does for S3."""
    if response is not None:
        http_response, parsed = response
        http_response.status_code = parsed["ResponseMetadata"]["HTTPStatusCode"]


# Addresses that somebody else names: their origin, and whether they lead to a service of this machine alone.
#
# Libraries read odd addresses differently: what one takes for the host is a user to the other.  So only plain addresses
# have an origin here, and others are never followed.

_IP: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_PORTS = {"http": 80, "https": 443}
# No user, no blanks or control characters, no backslash, which some libraries read as a slash (WHATWG URL standard).
_PLAIN = re.compile(
    r"(?P<scheme>https?)://(?P<host>[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::(?P<port>[0-9]{1,5}))?(?:[/?#][!-\[\]-~]*)?",
    re.IGNORECASE,
)
# Link-local (RFC 3927, RFC 4291), and where clouds have put what link-local addresses are for: AWS's IPv6 (EC2 user
# guide, "Instance metadata"; EKS Pod Identity), Alibaba's, Azure's and Oracle's.
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
    """Who answers at an address (RFC 6454)."""

    scheme: str
    host: str
    port: int

    @property
    def place(self) -> tuple[str, int]:
        """Host and port, whatever is spoken there."""
        return self.host, self.port


def origin_of(address: str) -> Origin | None:
    """The origin of an address that somebody else names; ``None`` where it is no plain address of HTTP."""
    plain = _PLAIN.fullmatch(address)
    if plain is None:
        return None
    scheme = plain["scheme"].lower()
    return Origin(scheme, plain["host"].lower(), int(plain["port"] or _PORTS[scheme]))


def own_origin(address: str) -> Origin | None:
    """The origin of an address of one's own configuration, which may hold a user; ``None`` where it has none."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return None
    if parts.scheme not in _PORTS or not host:
        return None
    return Origin(parts.scheme, f"[{host}]" if ":" in host else host, port or _PORTS[parts.scheme])


def is_link_local(host: str) -> bool:
    """Whether a host is a link-local address, in any spelling, or a name that now stands for one.

    A name that cannot be looked up stands for none.  What it stands for may change; who connects later asks again.
    """
    try:
        found = [_literal(host)]
    except ValueError:
        found = _looked_up(host)
    return any(address in network for one in found for address in _meanings(one) for network in _NEVER)


def _literal(host: str) -> _IP:
    """The address that a host is; raises ValueError where it is a name."""
    if host.startswith("["):
        return ipaddress.IPv6Address(host.strip("[]"))
    try:
        # Decimal, octal, hexadecimal and shortened spellings too, as the C library takes them when it connects.
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
    """The address, and the IPv4 address that is reached by it."""
    if isinstance(address, ipaddress.IPv4Address):
        return [address]
    inner = [address.sixtofour, *(address.teredo or ())]
    if any(address in network for network in _EMBEDDING):
        inner.append(ipaddress.IPv4Address(address.packed[-4:]))
    return [address, *(one for one in inner if one is not None)]
