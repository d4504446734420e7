// Images are [batch, height, width, channels]; a product's rows are pixels and its columns channels.

extern "C" __global__ void im2col(const float* x, float* cols, int batch, int size, int channels,
                                  int kernel) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int patch = kernel * kernel * channels;
    if (i >= batch * size * size * patch) return;
    int c = i % channels;
    int kx = i / channels % kernel;
    int ky = i / (channels * kernel) % kernel;
    int pixel = i / patch;
    int px = pixel % size + kx - kernel / 2;
    int py = pixel / size % size + ky - kernel / 2;
    int image = pixel / (size * size);
    bool inside = px >= 0 && px < size && py >= 0 && py < size;
    cols[i] = inside ? x[((image * size + py) * size + px) * channels + c] : 0.0f;
}

// Gathers: each element of `dx` adds up the columns that it was copied to.
extern "C" __global__ void col2im(const float* dcols, float* dx, int batch, int size, int channels,
                                  int kernel) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= batch * size * size * channels) return;
    int c = i % channels;
    int x = i / channels % size;
    int y = i / (channels * size) % size;
    int image = i / (channels * size * size);
    float sum = 0.0f;
    for (int ky = 0; ky < kernel; ky++) {
        for (int kx = 0; kx < kernel; kx++) {
            int px = x - kx + kernel / 2;
            int py = y - ky + kernel / 2;
            if (px < 0 || px >= size || py < 0 || py >= size) continue;
            int pixel = (image * size + py) * size + px;
            sum += dcols[((pixel * kernel + ky) * kernel + kx) * channels + c];
        }
    }
    dx[i] = sum;
}

extern "C" __global__ void add_bias(float* y, const float* bias, int n, int channels, int relu) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float value = y[i] + bias[i % channels];
    y[i] = relu ? fmaxf(value, 0.0f) : value;
}

extern "C" __global__ void relu_backward(const float* y, float* dy, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && y[i] <= 0.0f) dy[i] = 0.0f;
}

// One block of 256 threads per channel.
extern "C" __global__ void bias_backward(const float* dy, float* dbias, int rows, int channels) {
    __shared__ float sums[256];
    float sum = 0.0f;
    for (int row = threadIdx.x; row < rows; row += 256) sum += dy[row * channels + blockIdx.x];
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) dbias[blockIdx.x] = sums[0];
}

extern "C" __global__ void max_pool(const float* x, float* y, int* argmax, int n, int size,
                                    int channels) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int half = size / 2;
    int c = i % channels;
    int px = i / channels % half;
    int row = i / (channels * half);  // image * half + py
    int best = (row * 2 * size + px * 2) * channels + c;
    int corner = best;
    for (int k = 1; k < 4; k++) {
        int at = corner + (k / 2 * size + k % 2) * channels;
        if (x[at] > x[best]) best = at;
    }
    y[i] = x[best];
    argmax[i] = best;
}

// The windows do not overlap, so no two threads write to the same place. `dx` is zero before.
extern "C" __global__ void max_pool_backward(const float* dy, const int* argmax, float* dx, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) dx[argmax[i]] = dy[i];
}

// One thread per row: the loss, and the gradient of the mean loss.
extern "C" __global__ void softmax_cross_entropy(const float* logits, const int* labels, float* losses,
                                                 float* dlogits, int batch, int classes) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= batch) return;
    const float* x = logits + row * classes;
    float top = x[0];
    for (int k = 1; k < classes; k++) top = fmaxf(top, x[k]);
    float sum = 0.0f;
    for (int k = 0; k < classes; k++) sum += expf(x[k] - top);
    int label = labels[row];
    losses[row] = logf(sum) + top - x[label];
    for (int k = 0; k < classes; k++) {
        float p = expf(x[k] - top) / sum;
        dlogits[row * classes + k] = (p - (k == label ? 1.0f : 0.0f)) / batch;
    }
}

extern "C" __global__ void adam(float* w, float* m, float* v, const float* grad, int n, float lr,
                                float beta1, float beta2, float eps, float scale1, float scale2) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float g = grad[i];
    m[i] = beta1 * m[i] + (1.0f - beta1) * g;
    v[i] = beta2 * v[i] + (1.0f - beta2) * g * g;
    w[i] -= lr * (m[i] * scale1) / (sqrtf(v[i] * scale2) + eps);
}
