// Kernels of a small convolutional network, as a training loop needs them. All tensors are dense, row-major f32.

extern "C" __global__ void fill(float *out, float value, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = value;
}

// out[n][o] = sum over c,ky,kx of x * w + b, valid padding, stride 1.
extern "C" __global__ void conv_forward(const float *__restrict__ x, const float *__restrict__ w,
                                        const float *__restrict__ b, float *__restrict__ y,
                                        int batch, int cin, int h, int wd, int cout, int k) {
    int oh = h - k + 1, ow = wd - k + 1;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= batch * cout * oh * ow) return;
    int ox = i % ow, oy = i / ow % oh, o = i / (ow * oh) % cout, n = i / (ow * oh * cout);
    float sum = b[o];
    for (int c = 0; c < cin; c++)
        for (int ky = 0; ky < k; ky++)
            for (int kx = 0; kx < k; kx++)
                sum += x[((n * cin + c) * h + oy + ky) * wd + ox + kx] * w[((o * cin + c) * k + ky) * k + kx];
    y[i] = sum;
}

// One block per weight; threads sum over batch and positions, then reduce in shared memory.
extern "C" __global__ void conv_backward_weight(const float *x, const float *dy, float *dw,
                                                int batch, int cin, int h, int wd, int cout, int k) {
    __shared__ float part[128];
    int oh = h - k + 1, ow = wd - k + 1;
    int kx = blockIdx.x % k, ky = blockIdx.x / k % k, c = blockIdx.x / (k * k) % cin, o = blockIdx.x / (k * k * cin);
    float sum = 0;
    for (int i = threadIdx.x; i < batch * oh * ow; i += blockDim.x) {
        int ox = i % ow, oy = i / ow % oh, n = i / (ow * oh);
        sum += x[((n * cin + c) * h + oy + ky) * wd + ox + kx] * dy[((n * cout + o) * oh + oy) * ow + ox];
    }
    part[threadIdx.x] = sum;
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    }
    if (threadIdx.x == 0) dw[blockIdx.x] = part[0];
}

// Scatters with atomics: dx has to be zero before.
extern "C" __global__ void conv_backward_input(const float *w, const float *dy, float *dx,
                                               int batch, int cin, int h, int wd, int cout, int k) {
    int oh = h - k + 1, ow = wd - k + 1;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= batch * cout * oh * ow) return;
    int ox = i % ow, oy = i / ow % oh, o = i / (ow * oh) % cout, n = i / (ow * oh * cout);
    float g = dy[i];
    for (int c = 0; c < cin; c++)
        for (int ky = 0; ky < k; ky++)
            for (int kx = 0; kx < k; kx++)
                atomicAdd(&dx[((n * cin + c) * h + oy + ky) * wd + ox + kx], g * w[((o * cin + c) * k + ky) * k + kx]);
}

// col[(c,ky,kx)][(n,oy,ox)].
extern "C" __global__ void im2col(const float *x, float *col, int batch, int cin, int h, int wd, int k) {
    int oh = h - k + 1, ow = wd - k + 1;
    int cols = batch * oh * ow;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < cin * k * k * cols; i += gridDim.x * blockDim.x) {
        int row = i / cols, at = i % cols;
        int kx = row % k, ky = row / k % k, c = row / (k * k);
        int ox = at % ow, oy = at / ow % oh, n = at / (ow * oh);
        col[i] = x[((n * cin + c) * h + oy + ky) * wd + ox + kx];
    }
}

// y = maxpool2(relu(x + bias)); arg holds the flat input index of the maximum.
extern "C" __global__ void bias_relu_maxpool(const float *x, const float *bias, float *y, int *arg,
                                             int batch, int ch, int h, int wd) {
    int ph = h / 2, pw = wd / 2;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= batch * ch * ph * pw) return;
    int px = i % pw, py = i / pw % ph, plane = i / (pw * ph);
    int best = (plane * h + 2 * py) * wd + 2 * px;
    for (int dy = 0; dy < 2; dy++)
        for (int dx = 0; dx < 2; dx++) {
            int at = (plane * h + 2 * py + dy) * wd + 2 * px + dx;
            if (x[at] > x[best]) best = at;
        }
    y[i] = fmaxf(x[best] + bias[plane % ch], 0.0f);
    arg[i] = best;
}

// dx has to be zero before.
extern "C" __global__ void maxpool_relu_backward(const float *dy, const float *y, const int *arg, float *dx, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && y[i] > 0.0f) dx[arg[i]] = dy[i];
}

// One block of 32 threads per row: loss added up with an atomic, gradient of the mean loss.
extern "C" __global__ void softmax_cross_entropy(const float *logits, const unsigned char *labels, float *loss,
                                                 float *grad, int rows, int classes) {
    int row = blockIdx.x, lane = threadIdx.x;
    float top = -3.402823466e38f;
    for (int c = lane; c < classes; c += 32) top = fmaxf(top, logits[row * classes + c]);
    for (int d = 16; d > 0; d /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, d));
    float sum = 0;
    for (int c = lane; c < classes; c += 32) sum += expf(logits[row * classes + c] - top);
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    int label = labels[row];
    for (int c = lane; c < classes; c += 32) {
        float p = expf(logits[row * classes + c] - top) / sum;
        grad[row * classes + c] = (p - (c == label ? 1.0f : 0.0f)) / rows;
    }
    if (lane == 0) atomicAdd(loss, (logf(sum) + top - logits[row * classes + label]) / rows);
}

// Sums columns of a [rows][cols] matrix: one block per column, warps reduce by shuffles, then across warps.
extern "C" __global__ void column_sum(const float *x, float *out, int rows, int cols) {
    __shared__ float warps[32];
    float sum = 0;
    for (int r = threadIdx.x; r < rows; r += blockDim.x) sum += x[r * cols + blockIdx.x];
    for (int d = 16; d > 0; d /= 2) sum += __shfl_down_sync(0xffffffffu, sum, d);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = threadIdx.x < blockDim.x / 32 ? warps[threadIdx.x] : 0.0f;
        for (int d = 16; d > 0; d /= 2) sum += __shfl_down_sync(0xffffffffu, sum, d);
        if (threadIdx.x == 0) out[blockIdx.x] = sum;
    }
}

extern "C" __global__ void sgd_momentum(float *w, float *v, const float *g, float rate, float momentum, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    v[i] = momentum * v[i] + g[i];
    w[i] -= rate * v[i];
}

extern "C" __global__ void adam(float *w, float *m, float *v, const float *g, float rate, float beta1, float beta2,
                                float eps, int step, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    m[i] = beta1 * m[i] + (1 - beta1) * g[i];
    v[i] = beta2 * v[i] + (1 - beta2) * g[i] * g[i];
    float mhat = m[i] / (1 - powf(beta1, step)), vhat = v[i] / (1 - powf(beta2, step));
    w[i] -= rate * mhat / (sqrtf(vhat) + eps);
}

extern "C" __global__ void transpose(const float *x, float *y, int rows, int cols) {
    __shared__ float tile[16][17];
    int c = blockIdx.x * 16 + threadIdx.x, r = blockIdx.y * 16 + threadIdx.y;
    if (c < cols && r < rows) tile[threadIdx.y][threadIdx.x] = x[r * cols + c];
    __syncthreads();
    c = blockIdx.y * 16 + threadIdx.x;
    r = blockIdx.x * 16 + threadIdx.y;
    if (c < rows && r < cols) y[r * rows + c] = tile[threadIdx.x][threadIdx.y];
}
