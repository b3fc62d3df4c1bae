"""Bounds on the bytes of request bodies and of answers held at once: in total, and for each tenant. Pure."""

from collections import Counter

from engine.errors import Code, Problem

# All bodies in flight together: this many times the bound of one, and this part of the memory that the process may use.
# A parsed body takes up to eight times its bytes, so all of them leave half of the memory for the rest.
BODIES = 64
OF_MEMORY = 1 / 16
# The part of that for one tenant.
OF_TENANT = 1 / 2


class Bodies:
    """The bytes held for request bodies, from the first byte to the end of the answer; or the bytes held for answers.

    However little memory there is, two bodies of `max_body_bytes` fit, and one of each tenant.
    """

    def __init__(self, max_body_bytes: int, memory: int) -> None:
        self.bound = max(2 * max_body_bytes, min(BODIES * max_body_bytes, int(memory * OF_MEMORY)))
        self.tenant_bound = max(max_body_bytes, int(self.bound * OF_TENANT))
        # Invariant: `_held` is the sum of what was added and not yet removed, `_of` the same for each tenant that holds
        # any. Bytes without a tenant (tenants are off, or the caller is an operator) are in the first only.
        self._held = 0
        self._of: Counter[str] = Counter()

    def add(self, tenant: str | None, size: int) -> Problem | None:
        """Count bytes received. Returns the problem to answer with above a bound; the bytes are counted even then."""
        self._held += size
        if tenant is not None:
            self._of[tenant] += size
            if self._of[tenant] > self.tenant_bound:
                text = f"the bodies of this tenant's requests in flight are larger than {self.tenant_bound} bytes"
                return Problem(Code.RATE_LIMITED, text, retry_after_s=1)
        if self._held > self.bound:
            return Problem(Code.UNAVAILABLE, "too many large requests at once", retry_after_s=1)
        return None

    def add_answer(self, tenant: str | None, size: int) -> Problem | None:
        """Count an answer to be sent. Returns the problem to send in its place, and does not count it, when too many
        bytes wait for clients to read them. A single answer is allowed whatever its size.
        """
        own = 0 if tenant is None else self._of[tenant]
        problem = None
        if own and own + size > self.tenant_bound:
            text = f"answers of this tenant that its clients have not read are larger than {self.tenant_bound} bytes"
            problem = Problem(Code.RATE_LIMITED, text, retry_after_s=1)
        elif self._held and self._held + size > self.bound:
            problem = Problem(Code.UNAVAILABLE, "too many large answers wait for their clients", retry_after_s=1)
        else:
            self._held += size
            if tenant is not None:
                self._of[tenant] += size
        return problem

    def remove(self, tenant: str | None, size: int) -> None:
        """Subtract bytes that were added."""
        self._held -= size
        if tenant is not None:
            self._of[tenant] -= size
            if self._of[tenant] == 0:
                del self._of[tenant]
