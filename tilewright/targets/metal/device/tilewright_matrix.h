// Products of 8 x 8 matrices whose elements lie in the registers of a simdgroup, two a lane.
namespace tw {

template <class T> TW_DEVICE simdgroup_matrix<T, 8, 8> matrix_of(const thread Fragment<T, 2>& fragment) {
  simdgroup_matrix<T, 8, 8> matrix;
  reinterpret_cast<thread vec<T, 2>&>(matrix.thread_elements()) = vec<T, 2>(fragment[0], fragment[1]);
  return matrix;
}
// d += a b
template <class D, class T> TW_DEVICE void simdgroup_product(thread Fragment<D, 2>& d, const thread Fragment<T, 2>& a, const thread Fragment<T, 2>& b) {
  simdgroup_matrix<D, 8, 8> sum = matrix_of(d);
  simdgroup_multiply_accumulate(sum, matrix_of(a), matrix_of(b), sum);
  const vec<D, 2> elements = reinterpret_cast<thread vec<D, 2>&>(sum.thread_elements());
  d[0] = elements[0];
  d[1] = elements[1];
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

}  // namespace tw
