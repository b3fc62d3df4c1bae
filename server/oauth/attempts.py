"""How many tokens that give no access are read a second: of one address, and of all. Pure.

Reading a token and checking its signature takes up to a millisecond, before anything is known of its sender. A token
that was verified is cached and is not counted.

An address that has sent no such token lately is not held up by those that have: else a few of them would keep every
user out whose token is new.
"""

from collections import OrderedDict
from ipaddress import IPv6Address, ip_address

# A browser that is behind a proxy with a thousand others has their address: tokens expire some times an hour each.
PER_ADDRESS, ADDRESS_BURST = 20.0, 100.0
IN_ALL, ALL_BURST = 200.0, 400.0
# The first such token of each address, in all: bounds an attacker who has any number of them.
FIRST, FIRST_BURST = 200.0, 400.0
# Addresses that are remembered.
MAX_ADDRESSES = 4096


class _Bucket:
    __slots__ = ("at", "left")

    def __init__(self, burst: float, now: float) -> None:
        self.left, self.at = burst, now

    def fill(self, rate: float, burst: float, now: float) -> float:
        self.left = min(burst, self.left + max(0.0, now - self.at) * rate)
        self.at = now
        return self.left


class Attempts:
    """Token buckets. Times are monotonic seconds."""

    def __init__(self, now: float) -> None:
        self._all = _Bucket(ALL_BURST, now)
        self._first = _Bucket(FIRST_BURST, now)
        self._addresses: OrderedDict[str, _Bucket] = OrderedDict()

    def allowed(self, address: str, now: float) -> bool:
        """Whether one more token of this address may be read."""
        known = self._addresses.get(_sender(address))
        if known is None:
            return self._first.fill(FIRST, FIRST_BURST, now) >= 1
        return self._all.fill(IN_ALL, ALL_BURST, now) >= 1 and known.fill(PER_ADDRESS, ADDRESS_BURST, now) >= 1

    def count(self, address: str, now: float) -> None:
        """Count a token that gave no access."""
        address = _sender(address)
        bucket = self._addresses.get(address)
        if bucket is not None:
            self._all.left -= 1
        else:
            self._first.left -= 1
            bucket = self._addresses[address] = _Bucket(ADDRESS_BURST, now)
            if len(self._addresses) > MAX_ADDRESSES:
                self._addresses.popitem(last=False)
        self._addresses.move_to_end(address)
        bucket.left -= 1


def _sender(address: str) -> str:
    """Whose address it is: one customer has a whole network of 64 bits in IPv6 (RFC 6177)."""
    try:
        found = ip_address(address)
    except ValueError:  # a socket without addresses
        return address
    if not isinstance(found, IPv6Address):
        return address
    return str(found.ipv4_mapped) if found.ipv4_mapped is not None else f"{int(found) >> 64:x}/64"
