"""Hints of copies to the L2 cache, as the device vocabulary calls them."""

from __future__ import annotations

from collections.abc import Mapping

POLICIES: Mapping[str, str] = {
    "evict_first": "tw::POLICY_EVICT_FIRST", "evict_last": "tw::POLICY_EVICT_LAST", "evict_normal": "tw::POLICY_NORMAL",
}  # fmt: skip
"""By `Copy.eviction`."""
