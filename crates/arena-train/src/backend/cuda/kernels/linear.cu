// What surrounds the matrix products of a linear layer.

// values[row][feature] = activation(values[row][feature] + bias[feature]).
extern "C" __global__ void bias_activation(float *__restrict__ values,
                                           const float *__restrict__ bias, unsigned features,
                                           unsigned relu, unsigned count) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    float sum = values[i] + bias[i % features];
    // Written so that a NaN stays a NaN.
    values[i] = relu && sum <= 0.0f ? 0.0f : sum;
}

// Takes a gradient through the ReLU whose output is given.
extern "C" __global__ void relu_mask(float *__restrict__ gradient,
                                     const float *__restrict__ relu_output, unsigned count) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    // Stored, not multiplied by zero: that would keep a NaN.
    if (!(relu_output[i] > 0.0f)) gradient[i] = 0.0f;
}

// sums[chunk][column] = the sum of the chunk's rows in that column, always in the same order. With
// routes only the elements count whose route is open; without, routes is null.
// Blocks of 32 x 8 threads: 32 columns, 8 sums at a time; the grid is columns x chunks.
extern "C" __global__ void column_sums(const float *__restrict__ values,
                                       const unsigned char *__restrict__ routes,
                                       float *__restrict__ sums, unsigned rows, unsigned cols,
                                       unsigned chunk_rows) {
    __shared__ float parts[8][32];
    unsigned col = blockIdx.x * 32 + threadIdx.x;
    unsigned first = blockIdx.y * chunk_rows;
    unsigned end = rows - first < chunk_rows ? rows : first + chunk_rows;
    float sum = 0.0f;
    if (col < cols) {
        for (unsigned row = first + threadIdx.y; row < end; row += 8) {
            unsigned at = row * cols + col;
            if (routes == 0 || routes[at] != CLOSED) sum += values[at];
        }
    }
    parts[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && col < cols) {
        for (unsigned part = 1; part < 8; part++) sum += parts[part][threadIdx.x];
        sums[blockIdx.y * cols + col] = sum;
    }
}
