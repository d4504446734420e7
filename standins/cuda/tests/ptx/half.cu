// Half precision. NVRTC needs the include folder of the CUDA runtime for it.

#include <cuda_fp16.h>

// y = half(x) * 2 + 1 in half precision, and once in pairs.
extern "C" __global__ void half_math(const float *x, float *y, __half2 *pairs, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    __half h = __float2half(x[i]);
    y[i] = __half2float(__hfma(h, __float2half(2.0f), __float2half(1.0f)));
    __half2 two = __halves2half2(h, __hneg(h));
    pairs[i] = __hadd2(__hmul2(two, two), __hmax2(two, __float2half2_rn(0.0f)));
}
