"""What every log record about a lock carries beside its message, for handlers that file records by their fields."""

from __future__ import annotations


def log_extra(
    lock: str, lock_store: str, *, holder: str | None = None, fence: int | None = None, template: str = ""
) -> dict[str, object]:
    """Return ``extra`` of a log call: always the same keys, with ``None`` where nothing is known."""
    return {"lock": lock, "lock_store": lock_store, "holder": holder, "fence": fence, "template": template}
