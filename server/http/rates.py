"""`RateLimit` and `RateLimit-Policy` of a tenant's answers (draft-ietf-httpapi-ratelimit-headers-10). Pure.

One policy, `requests`: the tenant's token bucket. `q` is its size, `w` the seconds in which it fills, `r` what is left
in it, `t` the seconds until it is full again if nothing is sent.
"""

from functools import lru_cache

from engine.quota import RequestsLeft

# The largest integer of a structured field (RFC 9651 section 3.3.1).
_MOST = 999_999_999_999_999


@lru_cache(maxsize=1024)
def rate_headers(left: RequestsLeft) -> tuple[tuple[bytes, bytes], ...]:
    """The two headers. Most tenants have the same quotas and few requests under way, so most calls hit the cache."""
    quota, window_s, remaining, reset_s = (min(number, _MOST) for number in left)
    return (
        (b"ratelimit-policy", b'"requests";q=%d;w=%d' % (quota, window_s)),
        (b"ratelimit", b'"requests";r=%d;t=%d' % (remaining, reset_s)),
    )
