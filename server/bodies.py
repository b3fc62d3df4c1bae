"""How many bytes of bodies and of answers the server holds at once: in all, and of one tenant. Pure."""

from collections import Counter

from engine.errors import Code, Problem

# All bodies under way may take this many times the bound of one, and this part of the memory that the process may use.
# What is made of a body takes up to eight times its bytes, so that all of them leave half of the memory for the rest.
BODIES = 64
OF_MEMORY = 1 / 16
# One tenant's bodies may take this part of that.
OF_TENANT = 1 / 2


class Bodies:
    """What the bodies of requests take, from their first byte to the end of their answers.

    However little memory there is, two bodies of `max_body_bytes` are taken, and one of each tenant.
    """

    def __init__(self, max_body_bytes: int, memory: int) -> None:
        self.bound = max(2 * max_body_bytes, min(BODIES * max_body_bytes, int(memory * OF_MEMORY)))
        self.tenant_bound = max(max_body_bytes, int(self.bound * OF_TENANT))
        # Invariant: `_held` is the sum of what was added and not yet removed, `_of` the same for each tenant that has
        # any; bytes of nobody's (tenants are off, or an operator's) are in the first alone.
        self._held = 0
        self._of: Counter[str] = Counter()

    def add(self, tenant: str | None, size: int) -> Problem | None:
        """Count bytes that have come. What to answer where they are too many; they are counted all the same."""
        self._held += size
        if tenant is not None:
            self._of[tenant] += size
            if self._of[tenant] > self.tenant_bound:
                text = f"the bodies of this tenant's requests under way are larger than {self.tenant_bound} bytes"
                return Problem(Code.RATE_LIMITED, text, retry_after_s=1)
        if self._held > self.bound:
            return Problem(Code.UNAVAILABLE, "too many large requests at once", retry_after_s=1)
        return None

    def add_answer(self, tenant: str | None, size: int) -> Problem | None:
        """Count an answer that is sent. What to say in its place where too much waits for clients to read it; then it
        is not counted. One is sent however large it is.
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
        """Bytes that were added are gone."""
        self._held -= size
        if tenant is not None:
            self._of[tenant] -= size
            if self._of[tenant] == 0:
                del self._of[tenant]
