// What copies of bytes and copies of tensor boxes have in common.
#pragma once
#include "engine.h"

namespace emulator {

bool lands_at_once(Cluster& cluster);                 // by the schedule
// A store of this thread: `read` takes the bytes from shared memory, `write` brings them to global memory; each at its time.
void issue_store(Thread& thread, std::function<void()> read, std::function<void()> write);
void open_store_group(Thread& thread);
uint32_t give_entry(TransactionBarrier& barrier);     // number of a new copy that completes on the barrier
uint32_t complete_on(Thread& thread, const TransactionBarrier& barrier, uint32_t copy);   // an operation that does
// Memory that an operation reads or writes until it is complete; `proxy`: slot_async or 0, and slot_atomic where it combines.
void operation_reads(Thread& thread, uint32_t operation, const char* from, size_t bytes, uint8_t proxy);
void operation_writes(Thread& thread, uint32_t operation, const CopyPiece& piece, uint8_t proxy);
std::vector<Block*> destinations(Thread& thread, tw_u32 to, tw_u32 mask);   // by mask, or the block that the address names
uint32_t address_in(const Block& block, tw_u32 address);
void check_live(Thread& thread, const Block& block);  // a copy into a block that has left
void reduce_into(char* to, const char* from, uint32_t bytes, uint32_t element, uint8_t type);   // type by a tensor map's number

}  // namespace emulator
