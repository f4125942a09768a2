// The comparators of a sorting network, minimum and maximum; IS_ODD says whether a value must be tested for NaN on its
// own. Constants: KIND, float or double, and FLOAT, 1 for float.

#if FLOAT && __CUDA_ARCH__ >= 800
// a NaN makes both values of a comparator NaN, so it reaches the result without a test
__device__ __forceinline__ float minimum(float a, float b) {
  float c; asm("min.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b)); return c;
}
__device__ __forceinline__ float maximum(float a, float b) {
  float c; asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b)); return c;
}
#define IS_ODD(value) false
#else
__device__ __forceinline__ KIND minimum(KIND a, KIND b) { return a < b ? a : b; }
__device__ __forceinline__ KIND maximum(KIND a, KIND b) { return a < b ? b : a; }
#define IS_ODD(value) (value != value)
#endif
