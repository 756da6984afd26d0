// Short vectors and register fragments.
#pragma once
#include "tilewright_vectors.cuh"

namespace tw {

template <int BYTES> struct Carrier;    // the machine's type for an access of this many bytes
template <> struct Carrier<1> { typedef uint8_t type; };
template <> struct Carrier<2> { typedef uint16_t type; };
template <> struct Carrier<4> { typedef uint32_t type; };
template <> struct Carrier<8> { typedef uint2 type; };
template <> struct Carrier<16> { typedef uint4 type; };
struct alignas(32) Words { uint64_t data[4]; };  // one access to global memory from sm_100, else two
template <> struct Carrier<32> { typedef Words type; };

}  // namespace tw
