// Products of 8 x 8 matrices whose elements lie in the registers of a simdgroup, two a lane.
namespace tw {

// d += a b
template <class D, class T> TW_DEVICE void simdgroup_product(thread Fragment<D, 2>& d, const thread Fragment<T, 2>& a, const thread Fragment<T, 2>& b) {
  simdgroup_matrix<T, 8, 8> left, right;
  simdgroup_matrix<D, 8, 8> sum;
  thread T* a_elements = reinterpret_cast<thread T*>(&left.thread_elements());
  thread T* b_elements = reinterpret_cast<thread T*>(&right.thread_elements());
  thread D* d_elements = reinterpret_cast<thread D*>(&sum.thread_elements());
  for (int i = 0; i < 2; ++i) {
    a_elements[i] = a[i];
    b_elements[i] = b[i];
    d_elements[i] = d[i];
  }
  simdgroup_multiply_accumulate(sum, left, right, sum);
  for (int i = 0; i < 2; ++i) d[i] = d_elements[i];
}
// The same of 8-bit floats: a half has all of their numbers.
template <class D, class A, class B>
TW_DEVICE void simdgroup_product_through_half(thread Fragment<D, 2>& d, const thread Fragment<A, 2>& a, const thread Fragment<B, 2>& b) {
  Fragment<half, 2> left, right;
  for (int i = 0; i < 2; ++i) {
    left[i] = half(to_float(a[i]));
    right[i] = half(to_float(b[i]));
  }
  simdgroup_product(d, left, right);
}
// A matrix of the simdgroup to memory, its rows so many elements apart.
#define TW_STORED(SPACE)                                                                                          \
  template <class T> TW_DEVICE void simdgroup_store(SPACE T* to, uint64_t apart, const thread Fragment<T, 2>& part) { \
    simdgroup_matrix<T, 8, 8> matrix;                                                                             \
    thread T* elements = reinterpret_cast<thread T*>(&matrix.thread_elements());                                  \
    for (int i = 0; i < 2; ++i) elements[i] = part[i];                                                            \
    metal::simdgroup_store(matrix, to, apart);                                                                    \
  }
TW_STORED(device)
#ifndef TW_ONE_MEMORY
TW_STORED(threadgroup)
#endif
#undef TW_STORED

}  // namespace tw
