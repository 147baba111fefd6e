"""django-health-check: does a lock store grant and free locks?"""

from __future__ import annotations

import dataclasses
import datetime
import socket

from health_check.base import HealthCheck
from health_check.exceptions import ServiceUnavailable

from django_locks.conf import entries
from django_locks.exceptions import InvalidLockStore, StoreUnavailable
from django_locks.values import clean_holder, new_owner

NAME = "django_locks.health"
TTL = 10.0


@dataclasses.dataclass
class LockStore(HealthCheck):  # type: ignore[misc]
    """Takes and frees a lock in the store of an alias in ``LOCKS``; that another probe has it just now is fine, too.

    No signals are sent: probes are in no history and no metric.
    """

    alias: str = "default"
    timeout: datetime.timedelta = dataclasses.field(default=datetime.timedelta(seconds=7), repr=False)

    async def run(self) -> None:
        """Raise ServiceUnavailable if the store of the alias is missing, misconfigured or does not answer."""
        try:
            settings = entries(self.alias)
            key, owner = settings.prefix + NAME, new_owner()
            if await settings.store.aacquire(key, owner, TTL, clean_holder(socket.gethostname())) is not None:
                await settings.store.arelease(key, owner)
        except InvalidLockStore as error:
            raise ServiceUnavailable(f"LOCKS has no valid entry {self.alias!r}") from error
        except StoreUnavailable as error:
            # Its text may name hosts and users, and these messages are public.
            raise ServiceUnavailable(f"The lock store {self.alias!r} cannot be asked") from error
