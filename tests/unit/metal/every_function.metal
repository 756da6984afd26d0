// Every function of the device vocabulary, called by each of 64 threads; what they give goes to `numbers` and `results`.
#define PUT(x) numbers[64 * number++ + t] = float(x)
#define GIVE(x) results[64 * result++ + t] = uint32_t(x)
#define GIVE_LONG(x) { const uint64_t both = uint64_t(x); GIVE(both); GIVE(both >> 32); }

// Each format there and back: every code, and numbers of every size that it has.
#define FORMAT(NAME, ...)                                                                                              \
  PUT(tw::convert<float>(tw::NAME(uint8_t(4 * t)))); PUT(tw::convert<float>(tw::NAME(uint8_t(4 * t + 1))));            \
  PUT(tw::convert<float>(tw::NAME(uint8_t(4 * t + 2)))); PUT(tw::convert<float>(tw::NAME(uint8_t(4 * t + 3))));        \
  GIVE(tw::convert<tw::NAME>(x)); GIVE(tw::convert<tw::NAME>(near)); GIVE(tw::convert<tw::NAME>(tiny));                 \
  GIVE(tw::convert<tw::NAME>(spread)); GIVE(tw::convert<tw::NAME>(middle)); GIVE(tw::convert<tw::NAME>(int32_t(a) >> 20)); \
  GIVE(tw::convert<tw::NAME>(half(y))); GIVE(tw::convert<tw::NAME>(none)); GIVE(tw::convert<tw::NAME>(least));              \
  OPERATORS(tw::NAME(uint8_t(a & mask_##NAME)), tw::NAME(uint8_t(b & mask_##NAME)))
#define OPERATORS(LEFT, RIGHT)                                                                                          \
  GIVE(LEFT + RIGHT); GIVE(LEFT - RIGHT); GIVE(LEFT * RIGHT); GIVE(LEFT / RIGHT); GIVE(-LEFT);                           \
  GIVE((LEFT == RIGHT) | (LEFT != RIGHT) << 1 | (LEFT < RIGHT) << 2 | (LEFT <= RIGHT) << 3 | (LEFT > RIGHT) << 4 | (LEFT >= RIGHT) << 5);
#define mask_float8_e4m3 255u
#define mask_float8_e4m3fnuz 255u
#define mask_float8_e4m3b11fnuz 255u
#define mask_float8_e5m2 255u
#define mask_float8_e5m2fnuz 255u
#define mask_float8_e8m0 255u
#define mask_float6_e2m3 63u
#define mask_float6_e3m2 63u
#define mask_float4_e2m1 15u

[[max_total_threads_per_threadgroup(64)]]
kernel void every_function(device const float* floats [[buffer(0)]], device const uint32_t* words [[buffer(1)]], constant float* fixed [[buffer(2)]],
                           device float* numbers [[buffer(3)]], device uint32_t* results [[buffer(4)]], device int32_t* i32 [[buffer(5)]],
                           device uint32_t* u32 [[buffer(6)]], device float* f32 [[buffer(7)]], device half* f16 [[buffer(8)]],
                           device bfloat* bf16 [[buffer(9)]], device uint8_t* bytes [[buffer(10)]],
                           uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]],
                           uint thread_index_in_threadgroup [[thread_index_in_threadgroup]]) {
  alignas(16) threadgroup uint8_t shared_memory[4096];
  const int32_t t = int32_t(thread_index_in_threadgroup) + int32_t(threadgroup_position_in_grid.x);
  int number = 0, result = 0;
  const float x = floats[t], y = floats[64 + t], z = floats[128 + t];
  const uint32_t a = words[t], b = words[64 + t], c = words[128 + t];
  const uint64_t whole = uint64_t(a) << 32 | b;
  // Of every magnitude; about where small floats begin and end; halfway between two of them.
  const float spread = tw::bits_float(a), near = y * tw::bits_float(uint32_t(100 + t) << 23), tiny = y * 0.01f;
  const float none = tw::bits_float(0x7F800001u | uint32_t(t) << 31), least = tw::bits_float(0x5FFFFFu + uint32_t(t & 3));
  const float middle = tw::bits_float((a & 0x807FFFFFu & ~0xFFFFFu) | uint32_t(112 + t / 2) << 23 | (b & 1u) << 19 | (b & 2u) << 18);

  TW_FORMATS(FORMAT)
  OPERATORS(tw::tfloat32(a & ~0x1FFFu), tw::tfloat32(b & ~0x1FFFu))
  GIVE(tw::convert<tw::tfloat32>(spread)); GIVE(tw::convert<tw::tfloat32>(tw::bits_float(0x3F801000u + uint32_t(t) * 0x1000u)));
  GIVE(tw::convert<tw::tfloat32>(tw::bits_float(0x7F800000u))); GIVE(tw::convert<tw::tfloat32>(tw::bits_float(0x7FC00001u)));
  GIVE(tw::convert<tw::tfloat32>(tw::bits_float(0x7F000FFFu + uint32_t(t) * 1024u))); PUT(tw::convert<float>(tw::tfloat32(a)));
  GIVE(tw::bit_cast<uint16_t>(tw::convert<half>(spread))); GIVE(tw::bit_cast<uint16_t>(tw::convert<bfloat>(spread))); PUT(tw::convert<float>(half(y)));
  // Integers: a second rounding would show where the first one ends on the middle.
  const uint64_t edge = (1ul << 62 | 1ul << 54) + uint64_t(t & 1);
  GIVE(tw::bit_cast<uint16_t>(tw::convert<bfloat>(edge))); GIVE(tw::bit_cast<uint16_t>(tw::convert<bfloat>(-int64_t(edge)))); GIVE(tw::bit_cast<uint16_t>(tw::convert<bfloat>(whole)));
  GIVE(tw::bit_cast<uint16_t>(tw::convert<bfloat>(int64_t(whole)))); GIVE(tw::bit_cast<uint16_t>(tw::convert<bfloat>(int32_t(a)))); GIVE(tw::bit_cast<uint16_t>(tw::convert<bfloat>(a)));
  GIVE(tw::bit_cast<uint16_t>(tw::convert<bfloat>((1ul << (t % 40 + 23)) + (1ul << (t % 40 + 15)) + uint64_t(t & 1)))); PUT(tw::to_float_odd(whole >> t)); PUT(tw::to_float_odd(int64_t(whole) >> t)); PUT(tw::to_float_odd(uint64_t(t)));
  PUT(tw::to_float_odd(0x1FFFFFF7ul << t / 2)); PUT(tw::to_float_odd(int16_t(a)));
  const float wide = y * tw::bits_float(uint32_t(127 + t % 66) << 23);
  GIVE(tw::convert<int8_t>(y * 64.0f)); GIVE(tw::convert<uint8_t>(y * 128.0f)); GIVE(tw::convert<int16_t>(y * 16384.0f)); GIVE(tw::convert<uint16_t>(y * 32768.0f));
  GIVE(tw::convert<int32_t>(wide)); GIVE(tw::convert<uint32_t>(wide)); GIVE_LONG(tw::convert<int64_t>(wide)); GIVE_LONG(tw::convert<uint64_t>(wide)); GIVE(tw::convert<bool>(float(t % 3)));
  GIVE(tw::convert<int32_t>(half(y))); GIVE(tw::convert<int32_t>(tw::bits_float(0x7FC00000u))); GIVE(tw::convert<uint8_t>(300.0f)); GIVE(tw::convert<uint8_t>(-3.0f)); GIVE(tw::convert<int8_t>(200.0f));
  const float far = t & 8 ? (t & 1 ? 1e20f : -1e20f) : tw::bits_float(uint32_t(t & 4) << 29 | uint32_t(127 + (t & 1) + (t & 2 ? 63 : 31)) << 23);
  GIVE(tw::convert<int32_t>(far)); GIVE(tw::convert<uint32_t>(far)); GIVE_LONG(tw::convert<int64_t>(far)); GIVE_LONG(tw::convert<uint64_t>(far));
  // The last numbers inside, the first outside, on either side.
  const float ends = tw::bits_float((uint32_t(t & 1) << 31) + (uint32_t(134 + t / 8 * 8) << 23) - uint32_t(t & 2) + uint32_t(t & 4));
  const float end = tw::bits_float((uint32_t(t & 1) << 31) + (uint32_t(133 + t / 4) << 23) + (uint32_t(t & 2) >> 1) - 1u);
  GIVE(tw::convert<int8_t>(ends)); GIVE(tw::convert<uint8_t>(ends)); GIVE(tw::convert<int8_t>(end)); GIVE(tw::convert<uint8_t>(end)); GIVE(tw::convert<int16_t>(end)); GIVE(tw::convert<uint16_t>(end));
  GIVE(tw::convert<int8_t>(float(t % 8) + 124.0f)); GIVE(tw::convert<int8_t>(-float(t % 8) - 124.0f)); GIVE(tw::convert<uint8_t>(float(t % 8) + 252.0f)); GIVE(tw::convert<uint8_t>(float(t % 8) - 4.0f));
  GIVE(tw::convert<int16_t>(float(t % 8) + 32764.0f)); GIVE(tw::convert<int16_t>(-float(t % 8) - 32764.0f)); GIVE(tw::convert<uint16_t>(float(t % 8) + 65532.0f)); GIVE(tw::convert<uint16_t>(float(t % 8) - 4.0f));
  GIVE(tw::convert<uint32_t>(float(t % 8) - 4.0f)); GIVE_LONG(tw::convert<uint64_t>(float(t % 8) - 4.0f));

  // arithmetic
  PUT(tw::minimum(x, y)); PUT(tw::maximum(x, y)); GIVE(tw::minimum(int32_t(a), int32_t(b))); GIVE(tw::maximum(a, b));
  const int32_t top = int32_t(a) % 50, below = int32_t(b) % 7;
  GIVE(tw::floordiv(top, below)); GIVE(tw::floormod(top, below)); GIVE(tw::floordiv(a, b >> 20)); GIVE(tw::floormod(a, b >> 20)); GIVE(tw::floordiv(top, 0)); GIVE(tw::floormod(top, 0));
  GIVE(tw::floordiv(top, -1)); GIVE(tw::floormod(top, -1)); GIVE(tw::floordiv(-2147483647 - 1, -1)); GIVE(tw::floormod(-2147483647 - 1, -1)); GIVE(tw::floordiv(top, 1)); GIVE(tw::floormod(top, 1));
  const float positive = tw::abs(y) + 0.5f;
  PUT(tw::exp(y)); PUT(tw::exp2(y)); PUT(tw::fast_exp2(y)); PUT(tw::exp10(y)); PUT(tw::log(positive)); PUT(tw::log2(positive)); PUT(tw::log10(positive)); PUT(tw::sqrt(positive)); PUT(tw::rsqrt(positive));
  PUT(tw::sin(y)); PUT(tw::cos(y)); PUT(tw::tan(y)); PUT(tw::sinh(y)); PUT(tw::cosh(y)); PUT(tw::tanh(y)); PUT(tw::atan(y)); PUT(tw::atan2(y, z)); PUT(tw::pow(positive, z)); PUT(tw::fmod(y, positive));
  PUT(tw::floor(y)); PUT(tw::ceil(y)); PUT(tw::trunc(y)); PUT(tw::round(y)); PUT(tw::round(float(t) + 0.5f)); PUT(tw::fma(y, z, y)); PUT(tw::fma(half(y), half(z), half(y)));
  // Products halfway between two bfloat16, and what decides how they are rounded: a little more, a little less, nothing, and a sum with an odd last bit.
  const float side = (t & 4 ? -1.0f : 1.0f), decides[4] = {9.094947e-13f, -9.094947e-13f, 0.0f, 1.18743628e-07f};
  const bfloat one_factor = bfloat(side * (t & 8 ? 0.25f : 1.0f) * ((t & 3) % 3 ? 1.0078125f : 1.203125f)), other_factor = bfloat((t & 3) % 3 ? 1.5f : 1.25f);
  GIVE(tw::bit_cast<uint16_t>(tw::fma(one_factor, other_factor, bfloat(side * (t & 8 ? 0.25f : 1.0f) * decides[t & 3]))));
  PUT(tw::abs(x)); GIVE(tw::abs(int32_t(a))); GIVE_LONG(tw::abs(int64_t(whole))); GIVE(tw::abs(t - 1)); GIVE_LONG(tw::abs(int64_t(t) - 1));
  const float odd = tw::bits_float(0x7F7FFFFEu + uint32_t(t % 8) + (uint32_t(t & 8) << 28));
  GIVE(tw::isnan(x)); GIVE(tw::isinf(x)); GIVE(tw::isfinite(x)); GIVE(tw::isnan(odd)); GIVE(tw::isinf(odd)); GIVE(tw::isfinite(odd)); PUT(tw::abs(odd)); GIVE(tw::isnan(spread)); GIVE(tw::isinf(spread)); GIVE(tw::isfinite(spread));
  PUT(tw::log1p(positive)); PUT(tw::log1p(near * 1e-8f + 1e-9f)); PUT(tw::log1p(tw::abs(x))); PUT(tw::erf(y)); PUT(tw::erf(y * 0.25f)); PUT(tw::erf(y * 2.0f)); PUT(tw::erf(x));
  PUT(tw::erf(float(t) * 0.0625f)); PUT(tw::erf(-float(t) * 0.0625f)); PUT(tw::erf(float(t) * 0.016f));
  GIVE(tw::popcount(a)); GIVE(tw::popcount(whole)); GIVE(tw::dp4a_s8s8(a, b, int32_t(c))); GIVE(tw::dp4a_u8s8(a, b, int32_t(c))); GIVE(tw::dp4a_u8u8(a, b, c));
  GIVE(tw::lop3<0xEA>(a, b, c)); GIVE(tw::lop3<0x96>(a, b, c)); GIVE(tw::lop3<0x1B>(a, b, c));

  // lanes
  GIVE(tw::warp_uniform(t / 32)); GIVE(tw::warp_uniform(t)); GIVE(tw::shuffle(a, 3)); GIVE_LONG(tw::shuffle(whole, t + 5 & 31)); GIVE(tw::shuffle_xor(a, 1)); GIVE(tw::shuffle_up(uint8_t(a), 3)); GIVE(tw::shuffle_down(uint16_t(a), 3));
  PUT(tw::shuffle(half(y), 5)); GIVE(tw::ballot((a & 1u) != 0u)); GIVE(tw::any((a & 63u) == 7u)); GIVE(tw::all((a & 1u) != 0u)); GIVE(tw::all(t < 32)); GIVE(tw::any(t < 32));
  GIVE(tw::match_any(a & 3u)); GIVE(tw::match_all(t / 32)); GIVE(tw::match_all(a)); GIVE(tw::match_any(int64_t(a & 1u) << 40 | int64_t(a & 2u)));
  PUT(tw::warp_add(y)); GIVE_LONG(tw::warp_add(int64_t(whole))); PUT(tw::warp_min(y)); PUT(tw::warp_max(y)); GIVE(tw::warp_and(a | 0xF0F0F0F0u)); GIVE(tw::warp_or(a & 0x0F0F0F0Fu)); GIVE(tw::warp_xor(a));
  PUT(tw::simdgroup_add(y)); GIVE(tw::simdgroup_add(a)); GIVE(tw::simdgroup_add(int32_t(a))); GIVE(tw::simdgroup_add(uint8_t(a)));

  // memory
  tw::Fragment<float, 4> four;
  tw::load_fragment<4>(four, 0, floats + 4 * t); tw::store_fragment<4>(reinterpret_cast<threadgroup float*>(shared_memory) + 4 * t, four, 0);
  tw::sync_threads();
  PUT(reinterpret_cast<threadgroup float*>(shared_memory)[t * 37 % 256]); tw::load_fragment<2>(four, 2, fixed + 2 * (t & 7));
  for (int i = 0; i < 4; ++i) PUT(four[i]);
  tw::Fragment<half, 8> eight;
  tw::load_fragment<8>(eight, 0, reinterpret_cast<device const half*>(words) + 8 * (t % 32)); GIVE(tw::get_word(eight, t & 3)); tw::set_word(eight, 1, c);
  const tw::Fragment<uint32_t, 4> seen = tw::viewed_as<uint32_t, 4>(eight);
  for (int i = 0; i < 4; ++i) GIVE(seen[i]);
  GIVE(tw::load<4>(words + t)); GIVE(tw::load<4>(shared_memory + 4 * (t % 32))); GIVE(tw::bit_cast<uint16_t>(*tw::pointer(eight, 3)));
  GIVE(tw::bit_cast<uint16_t>(tw::slice<2>(eight, 2)[1])); GIVE(tw::bit_cast<uint16_t>(tw::slice<2>(eight, 6)[0])); tw::hold_registers(eight);
  tw::sync_threads();
  tw::store_fragment<1>(reinterpret_cast<threadgroup half*>(shared_memory) + t, eight, 3); tw::sync_shared(); GIVE(reinterpret_cast<threadgroup uint16_t*>(shared_memory)[63 - t]);
  GIVE(tw::global_pointer<device const uint32_t>(reinterpret_cast<uint64_t>(words + t))[0]);
  tw::Fragment<int8_t, 8> codes;
  tw::Fragment<uint8_t, 8> fields;
  tw::Fragment<tw::float4_e2m1, 8> fourths;
  const device uint8_t* packed = reinterpret_cast<const device uint8_t*>(words);
  tw::load_packed<4, 8>(codes, 0, packed + 4 * t); tw::load_packed<2, 8>(fields, 0, packed + 2 * t); tw::load_packed<4, 8>(fourths, 0, packed + 4 * t);
  for (int i = 0; i < 8; ++i) GIVE(uint32_t(uint8_t(codes[i])) | uint32_t(fields[i]) << 8 | uint32_t(fourths[i]) << 16);
  GIVE(tw::get_packed<4>(packed, t + 1)); GIVE(tw::get_packed<2>(packed, int64_t(t))); GIVE(tw::get_packed<1>(packed, 3 * t));
  tw::Fragment<uint8_t, 16> bits;
  tw::load_packed<1, 16>(bits, 0, packed + 2 * t); tw::load_fragment<1>(fields, 3, packed + t); GIVE(fields[3]);
  tw::sync_threads();
  tw::store_packed<1, 16>(shared_memory + 3072 + 2 * t, bits, 0); tw::store_packed<4, 8>(shared_memory + 4 * t, codes, 0); tw::store_packed<2, 8>(shared_memory + 1024 + 2 * t, fields, 0); tw::store_packed<4, 8>(shared_memory + 2048 + 4 * t, fourths, 0);
  tw::sync_warp(); tw::sync_threads();
  for (int i = 0; i < 4; ++i) GIVE(shared_memory[4 * t + i] | shared_memory[1024 + 2 * t + i / 2] << 8 | shared_memory[2048 + 4 * t + i] << 16);
  GIVE(tw::get_packed<2>(shared_memory, t + 3)); GIVE(shared_memory[3072 + (t ^ 5)]); GIVE(shared_memory[3136 + t]);
  GIVE(tw::fragment_alignment(24) << 12 | tw::fragment_alignment(12) << 8 | tw::fragment_alignment(6) << 4 | tw::fragment_alignment(3) | tw::fragment_alignment(32) << 16);

  // products
  tw::Fragment<float, 2> sum;
  tw::Fragment<half, 2> left, right;
  tw::Fragment<tw::float8_e4m3, 2> first;
  tw::Fragment<tw::float8_e5m2, 2> second;
  for (int i = 0; i < 2; ++i) {
    sum[i] = float(t + i); left[i] = half(float(a >> 4 * i & 15u)); right[i] = half(float(b >> 4 * i & 15u));
    first[i] = tw::convert<tw::float8_e4m3>(float(b >> 8 * i & 7u)); second[i] = tw::convert<tw::float8_e5m2>(float(a >> 8 * i & 3u));
  }
  tw::simdgroup_product(sum, left, right); PUT(sum[0]); PUT(sum[1]);
  tw::simdgroup_product_through_half(sum, first, second); PUT(sum[0]); PUT(sum[1]);
  tw::sync_threads();
  tw::simdgroup_store(reinterpret_cast<threadgroup float*>(shared_memory) + 128 * (t / 32), 11, sum);
  tw::simdgroup_store(reinterpret_cast<device float*>(results) + 64 * (597 + t / 32), 8, sum);
  tw::sync_threads();
  for (int i = 0; i < 2; ++i) PUT(reinterpret_cast<threadgroup float*>(shared_memory)[128 * i + t / 8 * 11 + t % 8]);

  // atomics
  tw::atomic_add(i32 + t % 8, t); tw::atomic_min(i32 + 8 + t % 8, -t); tw::atomic_max(i32 + 16 + t % 8, t); tw::atomic_and(u32 + t % 8, a); tw::atomic_or(u32 + 8 + t % 8, a); tw::atomic_xor(u32 + 16 + t % 8, a);
  tw::atomic_add(u32 + 24 + t % 8, a); tw::atomic_min(u32 + 32 + t % 8, a); tw::atomic_max(u32 + 40 + t % 8, a); tw::atomic_exchange(i32 + 24 + t / 2, t); tw::atomic_exchange(f32 + 24 + t % 32, y);
  tw::atomic_add(f32 + t % 8, float(t)); tw::atomic_min(f32 + 8 + t % 8, y); tw::atomic_max(f32 + 16 + t % 8, y);
  tw::atomic_add(f16 + t % 7, half(float(t & 7))); tw::atomic_add(bf16 + t % 7, bfloat(float(t & 7))); tw::atomic_min(f16 + 8 + t % 5, half(y)); tw::atomic_max(f16 + 16 + t % 5, half(y));
  tw::atomic_min(bf16 + 8 + t % 5, bfloat(y)); tw::atomic_max(bf16 + 16 + t % 5, bfloat(y)); GIVE(tw::bit_cast<uint16_t>(tw::atomic_add(f16 + 40 + t % 24, half(0.0f))));
  tw::Fragment<float, 3> steps;
  for (int i = 0; i < 3; ++i) steps[i] = float(t + i);
  tw::atomic_add_fragment<2>(f32 + 58 + t % 3, steps, 1);
  GIVE(tw::atomic_load(i32 + 60)); GIVE(tw::atomic_load(u32 + 60)); GIVE(tw::atomic_store(i32 + 61, 7)); GIVE(tw::atomic_store(u32 + 61, 9u));
  tw::set_packed<4>(bytes, t, int8_t(t - 32)); tw::set_packed<2>(bytes + 40, t, uint8_t(t >> 2)); tw::set_packed<1>(bytes + 57, t, uint8_t(t % 3 == 0));
}
