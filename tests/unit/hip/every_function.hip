// Every function of the device headers, called by each of 128 threads; what they give goes to `numbers` and `results`.
TW_KERNEL(128, 1)
every_function(const float* floats, const uint32_t* words, double* numbers, uint32_t* results, int32_t* i32, uint32_t* u32, int64_t* i64, uint64_t* u64,
               float* f32, double* f64, tw::half* f16, tw::bfloat16* bf16, uint8_t* bytes) {
  TW_SHARED(shared_memory, 8192);
  float* const tile = reinterpret_cast<float*>(shared_memory);
  const int t = threadIdx.x;
  int number = 0, result = 0;
  const auto put = [&](double x) { numbers[number++ * 128 + t] = x; };
  const auto give = [&](uint64_t x) { results[result++ * 128 + t] = uint32_t(x ^ x >> 32); };
  const float x = floats[t], y = floats[128 + t], z = floats[256 + t];
  const uint32_t a = words[t], b = words[128 + t], c = words[256 + t], d = words[384 + t];

  // conversions, each way, of numbers of every size
  const double wide = double(x) + double(y) * 1e-9;
  const int64_t whole = int64_t(uint64_t(a) << 32 | b);
  give(tw::convert<tw::half>(wide).bits); give(tw::convert<tw::bfloat16>(wide).bits); give(tw::convert<tw::float8_e4m3>(wide).bits);
  give(tw::convert<tw::float8_e5m2>(wide * 300.0).bits); give(tw::convert<tw::float8_e8m0>(y * y * y).bits); give(tw::convert<tw::float4_e2m1>(x).bits);
  give(tw::convert<tw::float4_e2m1>(y * 0.2f).bits); give(tw::convert<tw::float8_e4m3>(x * 40.0f).bits); give(tw::convert<tw::float8_e4m3>(x * 1e-3f).bits);
  give(tw::convert<tw::float8_e5m2>(x * 1e-6f).bits); give(tw::convert<tw::bfloat16>(whole).bits); give(tw::convert<tw::bfloat16>(uint64_t(whole)).bits);
  give(tw::convert<tw::bfloat16>((int64_t(1) << 62 | int64_t(1) << 54) + (t & 1)).bits); give(tw::convert<tw::bfloat16>(-((int64_t(1) << 62 | int64_t(1) << 54) + (t & 1))).bits);
  give(tw::convert<tw::bfloat16>(int32_t(a)).bits); give(tw::convert<tw::half>(uint32_t(a & 0x1FFFFu)).bits); give(tw::float_bits(tw::convert<tw::tfloat32>(x).value));
  give(tw::convert<tw::float8_e5m2>(x * 1e5f).bits); give(tw::convert<tw::float8_e8m0>(tw::bits_float(a & 0x7FFFFFFFu)).bits); give(tw::convert<tw::float8_e8m0>(tw::bits_float(0x00C00000u << (t & 3))).bits);
  put(tw::convert<float>(tw::half{uint16_t(a)})); put(tw::convert<float>(tw::bfloat16{uint16_t(a)})); put(tw::convert<float>(tw::float8_e4m3{uint8_t(a)}));
  put(tw::convert<float>(tw::float8_e4m3{uint8_t(t & 1 ? 0x7F : 0xFF)})); put(tw::convert<float>(tw::float8_e5m2{uint8_t(a)})); put(tw::convert<float>(tw::float8_e8m0{uint8_t(a)}));
  put(tw::convert<float>(tw::float8_e8m0{uint8_t(t & 1 ? 0xFF : 0)})); put(tw::convert<float>(tw::float4_e2m1{uint8_t(a & 15)}));
  give(tw::convert<tw::float6_e2m3>(x).bits); put(tw::convert<float>(tw::float6_e3m2{uint8_t(a & 63)})); put(tw::convert<float>(tw::float8_e4m3b11fnuz{uint8_t(a)}));
  give(tw::convert<tw::float8_e4m3fnuz>(x * 20.0f).bits); give(tw::convert<tw::float8_e4m3fnuz>(x * 1e-3f).bits); give(tw::convert<tw::float8_e5m2fnuz>(x * 4e3f).bits); give(tw::convert<tw::float8_e5m2fnuz>(x * 1e-6f).bits);
  put(tw::convert<float>(tw::float8_e4m3fnuz{uint8_t(a)})); put(tw::convert<float>(tw::float8_e5m2fnuz{uint8_t(a)})); put(tw::convert<float>(tw::float8_e4m3fnuz{0x80})); give((tw::float8_e4m3fnuz{uint8_t(a)} + tw::float8_e4m3fnuz{uint8_t(b)}).bits); give(tw::float8_e5m2fnuz{uint8_t(a)} < tw::float8_e5m2fnuz{uint8_t(b)});
  give(tw::convert<int8_t>(x * 10.0f)); give(tw::convert<uint8_t>(x * 30.0f)); give(tw::convert<int32_t>(wide * 3e8)); give(tw::convert<uint32_t>(wide * 5e8)); give(tw::convert<int64_t>(wide * 1e18)); give(tw::convert<uint64_t>(wide * 2e18));
  give(tw::convert<int16_t>(x * 5000.0f));
  const tw::half h{uint16_t(tw::convert<tw::half>(y).bits)}, k = tw::convert<tw::half>(z);
  const tw::bfloat16 p = tw::convert<tw::bfloat16>(y), q = tw::convert<tw::bfloat16>(z);
  give((h + k).bits); give((h - k).bits); give((h * k).bits); give((h / k).bits); give((-h).bits); give(fma(h, k, h).bits);
  give((p + q).bits); give((p - q).bits); give((p * q).bits); give((p / q).bits); give((-p).bits); give(fma(p, q, p).bits);

  // words
  give(tw::lop3<0xEA>(a, b, c)); give(tw::lop3<0x96>(a, b, c)); give(tw::lop3<0x1B>(a, b, c)); give(tw::prmt(a, b, 0x5410)); give(tw::prmt(a, b, c)); give(tw::prmt(a, b, 0xFEDC)); give(tw::prmt(a, b, 0x37BF));
  tw::Fragment<uint8_t, 64> flat, turned;
  for (int i = 0; i < 16; ++i) tw::set_word(flat, i, a * (2 * i + 1) ^ b);
  tw::transpose_blocks<4, 8>(turned, flat); for (int i = 0; i < 16; ++i) give(tw::get_word(turned, i));
  tw::transpose_blocks<8, 4>(turned, flat); for (int i = 0; i < 16; ++i) give(tw::get_word(turned, i));
  tw::Fragment<tw::half, 32> flat_halves, turned_halves;
  for (int i = 0; i < 16; ++i) tw::set_word(flat_halves, i, a * (2 * i + 1) ^ c);
  tw::transpose_blocks<2, 8>(turned_halves, flat_halves); for (int i = 0; i < 16; ++i) give(tw::get_word(turned_halves, i));
  tw::transpose_blocks<4, 4>(turned_halves, flat_halves); for (int i = 0; i < 16; ++i) give(tw::get_word(turned_halves, i));
  tw::Fragment<tw::half, 12> moved_halves;
  for (int i = 0; i < 6; ++i) tw::set_word(moved_halves, i, c);
  tw::move_fragment<8>(moved_halves, 4, flat_halves, 2); tw::move_fragment<2>(moved_halves, 0, flat_halves, 30); for (int i = 0; i < 6; ++i) give(tw::get_word(moved_halves, i));
  tw::settle_fragment<8>(moved_halves, 2, flat_halves, 6); tw::settle_fragment<2>(moved_halves, 10, flat_halves, 0); for (int i = 0; i < 6; ++i) give(tw::get_word(moved_halves, i));
  put(tw::settled(x)); put(tw::settled(wide)); give(tw::settled(uint8_t(a))); give(tw::agreed(words[0] & 1)); give(tw::agreed(words[1] & 1)); give(tw::agreed(words[2] & 1));
  put(tw::float_of_byte<0>(a)); put(tw::float_of_byte<1>(a)); put(tw::float_of_byte<2>(a)); put(tw::float_of_byte<3>(a));
  give(tw::low_twice(a)); give(tw::high_twice(a)); give(tw::neg_f16x2(a)); give(tw::neg_bf16x2(a));
  const uint32_t u = tw::pack_f16x2(y, z), v = tw::pack_f16x2(z, x), w = tw::pack_bf16x2(y, z), o = tw::pack_bf16x2(z, x);
  give(u); give(w); give(tw::add_f16x2(u, v)); give(tw::sub_f16x2(u, v)); give(tw::mul_f16x2(u, v)); give(tw::fma_f16x2(u, v, u)); give(tw::max_f16x2(u, v)); give(tw::min_f16x2(u, v));
  give(tw::add_bf16x2(w, o)); give(tw::sub_bf16x2(w, o)); give(tw::mul_bf16x2(w, o)); give(tw::fma_bf16x2(w, o, w)); give(tw::max_bf16x2(w, o)); give(tw::min_bf16x2(w, o));
  put(tw::low_f16x2(u)); put(tw::high_f16x2(u)); put(tw::low_bf16x2(w)); put(tw::high_bf16x2(w));
  give(tw::pack_e4m3x4(x, y, z, x * y)); give(tw::halves<false>(tw::float8_e5m2{}, a)); give(tw::halves<true>(tw::float8_e5m2{}, a)); give(tw::halves<false>(tw::float8_e4m3{}, a)); give(tw::halves<true>(tw::float8_e4m3{}, a));
  give(tw::halves<true>(tw::float8_e4m3{}, 0xFF7F0000u)); give(tw::halves<false>(tw::float8_e4m3{}, 0x00007FFFu));
  give(tw::pack_s8x4(int32_t(x * 20), int32_t(a) >> 20, int32_t(b) >> 25, t - 64)); give(tw::pack_s8x4(127, -128, 126, -127)); give(tw::pack_s8x4(128, -129, 129, -130));
  give(tw::dp4a_s8s8(a, b, int32_t(c))); give(tw::dp4a_u8s8(a, b, int32_t(c))); give(tw::dp4a_u8u8(a, b, c));

  // functions
  put(tw::exp10(y * 0.1f)); put(tw::rsqrt(y * y + 1.0f)); put(tw::rsqrt(double(y) * y + 1.0)); give(tw::popcount(a)); give(tw::popcount(uint64_t(whole))); give(tw::popcount(int32_t(a))); give(tw::popcount(whole));
  put(tw::fast_exp2(y)); put(tw::fast_log2(y * y + 1.0f)); put(tw::fast_sin(y)); put(tw::fast_cos(y)); put(tw::fast_rcp(y)); put(tw::fast_rsqrt(y * y + 1.0f)); put(tw::fast_tanh(y * 0.1f));

  // lanes
  give(tw::lane_index()); give(tw::warp_uniform(t / 64)); give(tw::shuffle(a, 3)); give(tw::shuffle(whole, t + 5, tw::ALL_LANES, 16)); give(tw::shuffle_xor(a, 1)); give(tw::shuffle_xor(a, 24, tw::ALL_LANES, 16));
  give(tw::shuffle_up(a, 3)); give(tw::shuffle_up(a, 2, tw::ALL_LANES, 8)); give(tw::shuffle_down(a, 3)); give(tw::shuffle_down(uint8_t(a), 2, tw::ALL_LANES, 8));
  give(tw::ballot(a & 1)); give(tw::ballot(a & 1, 0xFF0)); give(tw::any((a & 63) == 7)); give(tw::all(a & 1)); give(tw::all(true)); give(tw::any(false)); give(tw::match_any(a & 3)); give(tw::match_all(5)); give(tw::match_all(a & 1));
  put(tw::warp_add(y)); put(tw::simdgroup_add(y)); give(tw::simdgroup_add(a)); give(tw::warp_add(whole)); give(tw::warp_min(a)); give(tw::warp_max(int32_t(a))); give(tw::warp_and(a | 0xF0F0F0F0u)); give(tw::warp_or(a & 0x0F0F0F0Fu)); give(tw::warp_xor(a)); give(tw::elect_one());
  tw::Fragment<uint32_t, 4> quad;
  for (int i = 0; i < 4; ++i) quad[i] = a + i;
  tw::quad_transpose(quad);
  for (int i = 0; i < 4; ++i) give(quad[i]);

  // memory and meetings
  tw::Fragment<float, 4> part;
  tw::load_fragment<4>(part, 0, floats + 4 * t);
  tw::store_fragment<4>(tile + 4 * t, part, 0);
  tw::sync_threads();
  put(tile[(t * 37) % 512]); give(tw::shared_address(tile + t) - tw::shared_address(tile));
  tw::schedule_fence();
  tw::sync_shared();
  give(tw::read(tw::place(words, t, t % 3 != 0))); give(tw::read(tw::within(words + t, t % 5 != 0))); put(tw::read(tw::place(floats, t)));
  give(tw::read(tw::place(reinterpret_cast<const uint8_t*>(words), t + 1))); give(tw::read(tw::place(reinterpret_cast<const uint16_t*>(words), t + 1, t % 2 != 0)));
  tw::Fragment<uint32_t, 4> placed;
  tw::load_fragment<2>(placed, 0, tw::place(words, 2 * t, t % 7 != 0)); tw::load_fragment<2>(placed, 2, tw::within(words + 2 * t, t % 7 == 0));
  for (int i = 0; i < 4; ++i) give(placed[i]);
  tw::load_fragment<4>(placed, 0, tw::place(words, 4 * t));
  for (int i = 0; i < 4; ++i) give(placed[i]);
  tw::Fragment<int8_t, 8> codes;
  tw::Fragment<uint8_t, 8> fields;
  tw::Fragment<tw::float4_e2m1, 8> fourths;
  give(tw::get_packed<4>(reinterpret_cast<const uint8_t*>(words), t + 1)); give(tw::get_packed<2>(reinterpret_cast<const uint8_t*>(words), int64_t(t))); give(tw::get_packed<1>(reinterpret_cast<const uint8_t*>(words), 3 * t));
  tw::load_packed<4, 8>(codes, 0, reinterpret_cast<const uint8_t*>(words + t)); tw::load_packed<2, 8>(fields, 0, reinterpret_cast<const uint8_t*>(words) + 2 * t); tw::load_packed<4, 8>(fourths, 0, reinterpret_cast<const uint8_t*>(words + t));
  tw::load_packed<4, 8>(codes, 0, tw::place(reinterpret_cast<const uint8_t*>(words), 4 * t, t % 3 != 1));
  for (int i = 0; i < 8; ++i) give(uint32_t(codes[i]) ^ uint32_t(fields[i]) << 8 ^ uint32_t(fourths[i].bits) << 16);
  uint8_t* const packed = shared_memory + 4096;
  tw::store_packed<4, 8>(packed + 4 * t, codes, 0); tw::store_packed<2, 8>(packed + 1024 + 2 * t, fields, 0); tw::store_packed<4, 8>(packed + 2048 + 4 * t, fourths, 0);
  tw::sync_threads();
  for (int i = 0; i < 4; ++i) give(packed[4 * t + i] ^ packed[1024 + 2 * t + i / 2] << 8 ^ packed[2048 + 4 * t + i] << 16);
  give(*tw::global_pointer<const uint32_t>(reinterpret_cast<uint64_t>(words + t)));
  give(tw::sync_threads_count(a & 1)); give(tw::sync_threads_or((a & 1023) == 5)); give(tw::sync_threads_and(a & 1)); give(tw::sync_threads_and(true)); give(tw::sync_threads_or(false));
  give(tw::first_of_wave());
#if TW_WARP_SIZE == 64
  // Copies that no register holds: the first lane's place, and behind it one lane after the other; all of them count for the wait.
  const uint32_t* const landed = reinterpret_cast<const uint32_t*>(shared_memory + 2048);
  tw::sync_threads();
  for (int i = 0; i < 17; ++i) tw::cp_async<4>(landed + 384 + tw::first_of_wave(), tw::place(words, t));
  tw::cp_async_wait<0>();
  tw::cp_async<4>(landed + tw::first_of_wave(), tw::place(words, t ^ 5, t % 3 != 0)); tw::cp_async<4>(landed + 128 + tw::first_of_wave(), tw::within(words + (t ^ 9), t % 5 != 0));
  for (int i = 0; i < 17; ++i) tw::cp_async<4>(landed + 256 + tw::first_of_wave(), words + (t ^ 3));
  tw::cp_async_wait<17>();
  tw::sync_threads();
  give(landed[t ^ 1]); give(landed[128 + (t ^ 1)]);
  tw::cp_async_wait<0>();
  tw::sync_threads();
  give(landed[256 + (t ^ 1)]); give(landed[384 + t]);
#endif
  tw::fence_block(); tw::fence_device(); tw::fence_system(); tw::sync_warp();

  // atomics
  tw::atomic_add(i32 + t % 8, t); tw::atomic_min(i32 + 8 + t % 8, -t); tw::atomic_max(i32 + 16 + t % 8, t); tw::atomic_and(u32 + t % 8, a); tw::atomic_or(u32 + 8 + t % 8, a); tw::atomic_xor(u32 + 16 + t % 8, a);
  tw::atomic_add(u32 + 24 + t % 8, a); tw::atomic_add(i64 + t % 8, whole); tw::atomic_min(i64 + 8 + t % 8, whole); tw::atomic_max(i64 + 16 + t % 8, whole); tw::atomic_add(u64 + t % 8, uint64_t(whole)); tw::atomic_max(u64 + 8 + t % 8, uint64_t(whole));
  tw::atomic_add(f32 + t % 8, float(t)); tw::atomic_max(f32 + 8 + t % 8, t < 6 ? 1.0f : -1.0f - y * y); tw::atomic_max(f32 + 16 + t % 8, t < 6 ? 0.0f : y); tw::atomic_min(f32 + 24 + t % 8, t < 6 ? 0.0f : y); tw::atomic_min(f32 + 32 + t % 8, tw::bits_float(0x7FC00000u)); tw::atomic_min(f32 + 56 + t % 8, 2.0f + float(t)); tw::atomic_max(f32 + 40 + t % 8, tw::bits_float(0x7FC00000u));
  tw::atomic_add(f64 + t % 8, double(t)); tw::atomic_add(f16 + t % 8, tw::convert<tw::half>(float(t & 7))); tw::atomic_add(bf16 + t % 8, tw::convert<tw::bfloat16>(float(t & 7)));
  tw::atomic_exchange(i32 + 24 + t % 32, t); tw::atomic_exchange(u64 + 16 + t % 32, uint64_t(t)); give(tw::atomic_load(f32 + 48)); give(tw::atomic_store(i64 + 30, int64_t(7))); give(tw::bit_cast<uint16_t>(tw::atomic_load(f16 + 20)));
  if (t == 0) { give(tw::atomic_cas(u32 + 40, 0u, 9u)); give(tw::atomic_cas(u32 + 40, 8u, 10u)); tw::store_release(u32 + 41, 3u); give(tw::load_acquire(u32 + 41)); tw::atomic_store(f16 + 21, tw::half{0x3C00}); }
  else { give(0); give(0); give(0); }
  tw::Fragment<float, 4> four;
  for (int i = 0; i < 4; ++i) four[i] = float(t + i);
  tw::atomic_add_fragment<4>(f32 + 52, four, 0);
  tw::Fragment<tw::half, 2> two;
  tw::Fragment<tw::bfloat16, 2> other_two;
  for (int i = 0; i < 2; ++i) { two[i] = tw::convert<tw::half>(float(t & 7)); other_two[i] = tw::convert<tw::bfloat16>(float(i)); }
  tw::atomic_add_fragment<2>(f16 + 30, two, 0);
  tw::atomic_add_fragment<2>(bf16 + 30, other_two, 0);
  tw::set_packed<4>(bytes, t % 64, int8_t(t % 64 - 32)); tw::set_packed<2>(bytes + 40, t % 64, uint8_t(t % 64 >> 2)); tw::set_packed<1>(bytes + 57, t % 48, uint8_t(t % 48 % 3 == 0));
  tw::grid_sync(u32 + 50);
  give(u32[50]); give(tw::clock() == 0 && tw::global_timer() == 1);

  // products
  tw::Fragment<float, 4 * 64 / TW_WARP_SIZE> sum;
  tw::Fragment<int32_t, 4 * 64 / TW_WARP_SIZE> total;
  const auto each = [&](auto& fragment, int size, auto make) { for (int i = 0; i < size; ++i) fragment[i] = make(i); };
  const auto clear = [&] { for (int i = 0; i < 256 / TW_WARP_SIZE; ++i) { sum[i] = float(i + t); total[i] = i - t; } };
  const auto show = [&] { for (int i = 0; i < 256 / TW_WARP_SIZE; ++i) { put(sum[i]); give(total[i]); } };
#if defined(TW_GFX1100)
  const int own = t & ~16;   // both halves of a wave hold the same operands
#else
  const int own = t;
#endif
  const auto small = [&](int i) { return float(int32_t(words[(own * 8 + i) % 512] % 9) - 4); };
#define TW_INTO_HALF(NAME, ND, N) { tw::Fragment<tw::half, N> left, right; tw::Fragment<tw::half, ND> halves; each(left, N, [&](int i) { return tw::convert<tw::half>(small(i)); }); each(right, N, [&](int i) { return tw::convert<tw::half>(small(i + 99)); }); each(halves, ND, [&](int i) { return tw::convert<tw::half>(float(i + t)); }); tw::NAME##_into_half(halves, left, right); for (int i = 0; i < ND; ++i) give(halves[i].bits); }
#if TW_WARP_SIZE == 64
#define TW_HALVES TW_INTO_HALF(mfma_m16n16k16, 4, 4) TW_INTO_HALF(mfma_m16n16k32, 4, 8)
#elif defined(TW_GFX1100)
#define TW_HALVES TW_INTO_HALF(wmma_m16n16k16, 8, 16)
#else
#define TW_HALVES TW_INTO_HALF(wmma12_m16n16k16, 8, 8)
#endif
  TW_HALVES
#if TW_WARP_SIZE == 64
#define TW_EACH_PRODUCT(NAME, T, N, VALUE) { tw::Fragment<T, N> left, right; each(left, N, [&](int i) { return VALUE(small(i)); }); each(right, N, [&](int i) { return VALUE(small(i + 99)); }); tw::NAME(sum, left, right); }
  clear();
  TW_EACH_PRODUCT(mfma_m16n16k16, tw::half, 4, tw::convert<tw::half>) TW_EACH_PRODUCT(mfma_m16n16k16, tw::bfloat16, 4, tw::convert<tw::bfloat16>) TW_EACH_PRODUCT(mfma_m16n16k4, float, 1, float)
  show(); clear();
  TW_EACH_PRODUCT(mfma_m16n16k32, tw::half, 8, tw::convert<tw::half>) TW_EACH_PRODUCT(mfma_m16n16k32, tw::bfloat16, 8, tw::convert<tw::bfloat16>)
#if defined(TW_GFX90A)
  { tw::Fragment<tw::float8_e4m3, 8> left; tw::Fragment<tw::float8_e5m2, 8> right; each(left, 8, [&](int i) { return tw::convert<tw::float8_e4m3>(small(i)); }); each(right, 8, [&](int i) { return tw::convert<tw::float8_e5m2>(small(i + 99)); }); tw::mfma_m16n16k32_through_bfloat16(sum, left, right); }
#endif
#if defined(TW_GFX942)
  TW_EACH_PRODUCT(mfma_m16n16k8, tw::tfloat32, 2, tw::convert<tw::tfloat32>)
  { tw::Fragment<tw::float8_e4m3, 8> left; tw::Fragment<tw::float8_e5m2, 8> right; each(left, 8, [&](int i) { return tw::convert<tw::float8_e4m3>(small(i)); }); each(right, 8, [&](int i) { return tw::convert<tw::float8_e5m2>(small(i + 99)); }); tw::mfma_m16n16k32_through_half(sum, left, right); }
  { tw::Fragment<int8_t, 16> left, right; each(left, 16, small); each(right, 16, [&](int i) { return small(i + 99); }); tw::mfma_m16n16k64(total, left, right); }
#endif
  show();
#else
#if defined(TW_GFX1100)
#define TW_RUN 16
#define TW_WAVE_PRODUCT tw::wmma_m16n16k16
#else
#define TW_RUN 8
#define TW_WAVE_PRODUCT tw::wmma12_m16n16k16
#endif
#define TW_EACH_PRODUCT(SUM, A, B, VALUE_A, VALUE_B) { tw::Fragment<A, TW_RUN> left; tw::Fragment<B, TW_RUN> right; each(left, TW_RUN, [&](int i) { return VALUE_A(small(i)); }); each(right, TW_RUN, [&](int i) { return VALUE_B(small(i + 99)); }); TW_WAVE_PRODUCT(SUM, left, right); }
  clear();
  TW_EACH_PRODUCT(sum, tw::half, tw::half, tw::convert<tw::half>, tw::convert<tw::half>) TW_EACH_PRODUCT(sum, tw::bfloat16, tw::bfloat16, tw::convert<tw::bfloat16>, tw::convert<tw::bfloat16>)
  TW_EACH_PRODUCT(total, int8_t, int8_t, int8_t, int8_t) show(); clear();
  TW_EACH_PRODUCT(total, uint8_t, uint8_t, 200 + (uint8_t), 250 + (uint8_t)) show(); clear();
  TW_EACH_PRODUCT(total, uint8_t, int8_t, 200 + (uint8_t), int8_t) show(); clear();
  TW_EACH_PRODUCT(total, int8_t, uint8_t, int8_t, 200 + (uint8_t)) show();
#if defined(TW_GFX1100)
  clear();
  { tw::Fragment<tw::float8_e4m3, 16> left; tw::Fragment<tw::float8_e5m2, 16> right; each(left, 16, [&](int i) { return tw::convert<tw::float8_e4m3>(small(i)); }); each(right, 16, [&](int i) { return tw::convert<tw::float8_e5m2>(small(i + 99)); }); tw::wmma_m16n16k16_through_half(sum, left, right); }
  show();
#endif
#if defined(TW_GFX1201)
  clear();
  TW_EACH_PRODUCT(sum, tw::float8_e4m3, tw::float8_e5m2, tw::convert<tw::float8_e4m3>, tw::convert<tw::float8_e5m2>) show();
#endif
#endif
}
