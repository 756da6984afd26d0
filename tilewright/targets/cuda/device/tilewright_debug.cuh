// What a kernel says while it runs: only texts that print or assert include this.
#pragma once

#ifdef __CUDACC_RTC__
extern "C" __device__ __attribute__((noreturn)) void __assertfail(const char* message, const char* file, unsigned int line, const char* function, size_t size);
#else
#include <assert.h>
#include <stdio.h>
#endif

namespace tw {

// One line, in C's format; at most 32 numbers.  It is seen when the host next waits for the device.
template <class... Numbers> TW_DEVICE void print(const char* format, Numbers... numbers) { printf(format, numbers...); }

// Ends the kernel and says why: the driver shows the message with its place, block and thread.
TW_DEVICE void assertion_failed(const char* message, const char* file, uint32_t line, const char* function) { __assertfail(message, file, line, function, 1); }

}  // namespace tw
