// Kernels with one race each, and the same without it. Each writes out[0], or out[block].

#define THREADS 256

// The first thread adds up what all have written.
extern "C" __global__ void sum_after_barrier(const float *x, float *out) {
    __shared__ float parts[THREADS];
    parts[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) {
        float sum = 0;
        for (int i = 0; i < THREADS; i++) sum += parts[i];
        out[0] = sum;
    }
}

// The last thread adds up, and does not wait for the others.
extern "C" __global__ void sum_without_barrier(const float *x, float *out) {
    __shared__ float parts[THREADS];
    parts[threadIdx.x] = x[threadIdx.x];
    if (threadIdx.x == THREADS - 1) {
        float sum = 0;
        for (int i = 0; i < THREADS; i++) sum += ((volatile float *)parts)[i];
        out[0] = sum;
    }
}

// Each round reads what the round before has written, and writes over it without having waited.
extern "C" __global__ void rotate(const float *x, float *out, int safely) {
    __shared__ volatile float ring[THREADS];
    ring[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    for (int round = 0; round < 4; round++) {
        float next = ring[(threadIdx.x + 1) % THREADS];
        if (safely) __syncthreads();
        ring[threadIdx.x] = next;
        __syncthreads();
    }
    if (threadIdx.x == 0) out[0] = ring[0];
}

// No update is lost, but they come in any order, and floats add up to something else in another one.
extern "C" __global__ void sum_by_atomics(const float *x, float *out) {
    __shared__ float sum;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    atomicAdd(&sum, x[threadIdx.x]);
    __syncthreads();
    if (threadIdx.x == 0) out[0] = sum;
}

// Only one thread of each warp counts, but it loads, adds and stores.
extern "C" __global__ void count_warps(const float *x, float *out) {
    __shared__ volatile float count;
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
    if (threadIdx.x % 32 == 0) count = count + 1;
    __syncthreads();
    if (threadIdx.x == 0) out[0] = count;
}

// The same among blocks.
extern "C" __global__ void count_blocks(const float *x, float *out) {
    if (threadIdx.x == 0) *(volatile float *)out = *(volatile float *)out + 1;
}

// Reads the clock until a while has passed, and stores how long it was.
extern "C" __global__ void wait_for_the_clock(const float *x, float *out) {
    long long start = clock64();
    while (clock64() - start < 10000) {}
    out[0] = clock64() - start;
}

// Approximate functions, as they come.
extern "C" __global__ void approximate(const float *x, float *out) {
    out[threadIdx.x] = __expf(x[threadIdx.x]) + __fdividef(1.0f, 3.0f + x[threadIdx.x]);
}
