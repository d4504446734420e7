// One kernel for each kind of instruction that the network's kernels do not use.

// C = A * B for square matrices whose size is a multiple of 16.
extern "C" __global__ void matmul(const float *a, const float *b, float *c, int n) {
    __shared__ float as[16][16], bs[16][16];
    int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
    float sum = 0;
    for (int t = 0; t < n; t += 16) {
        as[threadIdx.y][threadIdx.x] = a[row * n + t + threadIdx.x];
        bs[threadIdx.y][threadIdx.x] = b[(t + threadIdx.y) * n + col];
        __syncthreads();
        for (int k = 0; k < 16; k++) sum += as[threadIdx.y][k] * bs[k][threadIdx.x];
        __syncthreads();
    }
    c[row * n + col] = sum;
}

// y = (x - mean) / sqrt(var + eps) per row; dynamic shared memory; one block per row.
extern "C" __global__ void layer_norm(const float *x, float *y, int n, float eps) {
    extern __shared__ float s[];
    float sum = 0, squares = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        float v = x[blockIdx.x * n + i];
        sum += v;
        squares += v * v;
    }
    s[threadIdx.x] = sum;
    s[blockDim.x + threadIdx.x] = squares;
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) {
            s[threadIdx.x] += s[threadIdx.x + half];
            s[blockDim.x + threadIdx.x] += s[blockDim.x + threadIdx.x + half];
        }
    }
    __syncthreads();
    float mean = s[0] / n, var = s[blockDim.x] / n - mean * mean;
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        y[blockIdx.x * n + i] = (x[blockIdx.x * n + i] - mean) * rsqrtf(var + eps);
}

extern "C" __global__ void scale_float4(const float4 *x, float4 *y, float by, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float4 v = x[i];
    y[i] = make_float4(v.x * by, v.y * by, v.z * by, v.w * by);
}

// Bit i of out[warp] says whether lane i's value is positive; counts[warp] how many are, any and all below it.
extern "C" __global__ void ballot(const int *x, unsigned *out, int *counts) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned mask = __ballot_sync(0xffffffffu, x[i] > 0);
    int any = __any_sync(0xffffffffu, x[i] > 100), all = __all_sync(0xffffffffu, x[i] > -100);
    if (threadIdx.x % 32 == 0) {
        out[i / 32] = mask;
        counts[i / 32] = __popc(mask) * 100 + any * 10 + all;
    }
}

// A maximum of floats by compare-and-swap, and integer atomics.
extern "C" __global__ void atomics(const float *x, int *best, unsigned *counters, unsigned long long *wide, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int seen = *best;
    while (__int_as_float(seen) < x[i]) {
        int before = atomicCAS(best, seen, __float_as_int(x[i]));
        if (before == seen) break;
        seen = before;
    }
    atomicAdd(&counters[0], 1u);
    atomicMax(&counters[1], (unsigned)i);
    atomicMin(&counters[2], (unsigned)i);
    atomicOr(&counters[3], 1u << (i % 32));
    atomicXor(&counters[4], (unsigned)i);
    atomicInc(&counters[5], 6u);
    atomicAdd(wide, (unsigned long long)i << 20);
}

extern "C" __global__ void doubles(const double *x, double *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = sqrt(fabs(x[i])) + exp(x[i] * 0.25) - 1.0 / (1.0 + x[i] * x[i]);
}

__device__ __noinline__ float horner(const float *coefficients, int degree, float x) {
    float value = 0;
    for (int i = degree; i >= 0; i--) value = value * x + coefficients[i];
    return value;
}

__device__ __noinline__ int gcd(int a, int b) { return b == 0 ? a : gcd(b, a % b); }

__constant__ float table[4] = {1.0f, -2.0f, 0.5f, 0.25f};
__device__ int visits = 40;

extern "C" __global__ void calls_and_constants(const float *x, float *y, int *g, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    y[i] = horner(table, 3, x[i]);
    g[i] = gcd(1 + i * 6, 84);
    atomicAdd(&visits, 1);
}

// Threads beyond n leave before the barrier.
extern "C" __global__ void early_return(const int *x, int *y, int n) {
    __shared__ int s[64];
    if (threadIdx.x >= n) return;
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = s[n - 1 - threadIdx.x];
}

extern "C" __global__ void precise_math(const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v = x[i];
    y[8 * i + 0] = sinf(v);
    y[8 * i + 1] = cosf(v);
    y[8 * i + 2] = tanhf(v);
    y[8 * i + 3] = expf(v * 0.1f);
    y[8 * i + 4] = logf(fabsf(v) + 0.5f);
    y[8 * i + 5] = powf(fabsf(v) + 0.5f, 1.7f);
    y[8 * i + 6] = erff(v);
    y[8 * i + 7] = v / 3.0f + floorf(v) + roundf(v) + truncf(v) + copysignf(1.0f, v);
}

extern "C" __global__ void fast_math(const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v = x[i], r;
    y[6 * i + 0] = __sinf(v);
    y[6 * i + 1] = __cosf(v);
    y[6 * i + 2] = __expf(v * 0.1f);
    y[6 * i + 3] = __logf(fabsf(v) + 0.5f);
    y[6 * i + 4] = __fdividef(v, 3.0f);
    asm("tanh.approx.f32 %0, %1;" : "=f"(r) : "f"(v));
    y[6 * i + 5] = r;
}

// Conversions with rounding and saturation, bit tricks, 64-bit division, a jump table.
extern "C" __global__ void integers(const float *x, const long long *big, long long *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v = x[i];
    long long b = big[i];
    unsigned u = (unsigned)b;
    long long *o = out + 16 * i;
    o[0] = __float2int_rn(v);
    o[1] = __float2int_rz(v);
    o[2] = __float2int_ru(v);
    o[3] = __float2int_rd(v);
    o[4] = __float2uint_rz(v);
    o[5] = (signed char)b;
    o[6] = (unsigned short)b;
    o[7] = b / 7;
    o[8] = b % 1000003;
    o[9] = __mulhi((int)b, 123456789);
    o[10] = __clz(u) * 10000 + __popc(u) * 100 + __ffs(u);
    o[11] = __brev(u) ^ __byte_perm(u, ~u, 0x5140);
    o[12] = __funnelshift_l(u, ~u, 7) + (u >> 3) + ((int)b >> 3);
    o[13] = min((int)b, -5) + max((int)b, 5) + abs((int)b) / 2;
    o[14] = __umul64hi((unsigned long long)b, 0x123456789abcdefull);
    long long r;
    switch (u % 7) {
    case 0: r = b * 3; break;
    case 1: r = b ^ 0x5555; break;
    case 2: r = b - 17; break;
    case 3: r = ~b; break;
    case 4: r = b << 3; break;
    case 5: r = b >> 2; break;
    default: r = -b; break;
    }
    o[15] = r;
}

// A local array that is indexed at run time.
extern "C" __global__ void local_array(const int *x, int *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int digits[10];
    for (int d = 0; d < 10; d++) digits[d] = 0;
    for (int v = x[i]; v > 0; v /= 10) digits[v % 10]++;
    int best = 0;
    for (int d = 1; d < 10; d++) if (digits[d] > digits[best]) best = d;
    y[i] = best * 100 + digits[best];
}

struct Shape { int rows, cols; float by[3]; };

// A structure by value.
extern "C" __global__ void by_value(float *y, Shape s) {
    int i = threadIdx.x;
    if (i < s.rows * s.cols) y[i] = s.by[i % 3] * (i / s.cols);
}

// Every lane reads past the end when n is too large.
extern "C" __global__ void unchecked_copy(const float *x, float *y) {
    y[blockIdx.x * blockDim.x + threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
}

extern "C" __global__ void traps(int when) {
    if (threadIdx.x == when) __trap();
}

// Half of the block waits at a barrier that the other half never reaches.
extern "C" __global__ void stuck(int *y) {
    if (threadIdx.x < 32) {
        while (atomicAdd(y, 0) == 0) __nanosleep(10);
    }
    __syncthreads();
    y[0] = 1;
}
