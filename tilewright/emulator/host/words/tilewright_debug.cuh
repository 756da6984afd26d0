// What a kernel says while it runs.
#pragma once

namespace tw {

template <class... Numbers> TW_DEVICE void print(const char* format, Numbers... numbers) { ::tw_print(format, numbers...); }
TW_DEVICE void assertion_failed(const char* message, const char* file, uint32_t line, const char*, TW_SITE) { ::tw_assertion_failed(message, site); }

}  // namespace tw
