// What warps of other machines of the family have besides: copies that others make, signals, barriers of some warps.
#pragma once
#include "loom.h"

namespace loom {

struct alignas(64) Pattern { uint64_t words[16]; };
template <int BYTES> TW_DEVICE void fetch(uint32_t to, const void* from, TW_SITE) { ::tw_copy_async(to, from, BYTES, BYTES, site); }
template <int BYTES> TW_DEVICE void fetch(uint32_t to, const void* from, uint32_t valid, TW_SITE) { ::tw_copy_async(to, from, BYTES, valid, site); }
TW_DEVICE void fetched(TW_SITE) { ::tw_copy_commit(site); }
TW_DEVICE void await_fetched(uint32_t left, TW_SITE) { ::tw_copy_wait(left, site); }
TW_DEVICE void raise_when_fetched(uint32_t flag, TW_SITE) { ::tw_copy_arrive(flag, 1, site); }

template <class... At> TW_DEVICE void shuttle_in(uint32_t to, const Pattern& of, uint32_t flag, At... at) {
  const int32_t places[] = {int32_t(at)...};
  ::tw_box_load(to, &of, flag, sizeof...(at), places, 0, TwSite::here());
}
template <class... At> TW_DEVICE void shuttle_out(const Pattern& of, uint32_t from, At... at) {
  const int32_t places[] = {int32_t(at)...};
  ::tw_box_store(&of, from, sizeof...(at), places, 0, TwSite::here());
}
template <class... At> TW_DEVICE void shuttle_onto(const Pattern& of, uint32_t from, At... at) {
  const int32_t places[] = {int32_t(at)...};
  ::tw_box_store(&of, from, sizeof...(at), places, 1, TwSite::here());
}
TW_DEVICE void bolt_in(uint32_t to, const void* from, uint32_t bytes, uint32_t flag, TW_SITE) { ::tw_bulk_load(to, from, bytes, flag, 0, site); }
TW_DEVICE void bolt_out(void* to, uint32_t from, uint32_t bytes, TW_SITE) { ::tw_bulk_store(to, from, bytes, 0, site); }
TW_DEVICE void sent(TW_SITE) { ::tw_store_commit(site); }
TW_DEVICE void await_sent(uint32_t left, TW_SITE) { ::tw_store_wait(left, 0, site); }
TW_DEVICE void await_taken(uint32_t left, TW_SITE) { ::tw_store_wait(left, 1, site); }

TW_DEVICE void plant(uint32_t flag, uint32_t hands, TW_SITE) { ::tw_signal_init(flag, hands, site); }
TW_DEVICE void planted(TW_SITE) { ::tw_fence_barrier_init(site); }
TW_DEVICE void raise(uint32_t flag, TW_SITE) { ::tw_signal_arrive(flag, 1, site); }
TW_DEVICE void announce(uint32_t flag, uint32_t bytes, TW_SITE) { ::tw_signal_expect_tx(flag, bytes, site); }
TW_DEVICE void raise_announcing(uint32_t flag, uint32_t bytes, TW_SITE) { ::tw_signal_arrive_expect_tx(flag, bytes, site); }
TW_DEVICE void await(uint32_t flag, uint32_t parity, TW_SITE) { ::tw_signal_wait(flag, parity, 0, site); }
TW_DEVICE void show(TW_SITE) { ::tw_fence_proxy(3, site); }
TW_DEVICE void show_near(TW_SITE) { ::tw_fence_proxy(1, site); }
TW_DEVICE void gather_some(int number, int strands, TW_SITE) { ::tw_named_sync(uint32_t(number), uint32_t(strands), site); }
TW_DEVICE void pass_by(int number, int strands, TW_SITE) { ::tw_named_arrive(uint32_t(number), uint32_t(strands), site); }

}  // namespace loom
