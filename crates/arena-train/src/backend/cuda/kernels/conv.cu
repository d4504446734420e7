// Convolution as a matrix product. A position is one element of the convolution's output before
// the pool: (image, row, column). Its patch is what the kernel covers there, in the order of a
// filter's weights: [kernel row, kernel column, channel].

// The route of a pooled element that passes no gradient.
#define CLOSED 4

// patches[position][patch element]. One thread for each element, so that writes are contiguous.
extern "C" __global__ void im2col(const float *__restrict__ images, float *__restrict__ patches,
                                  unsigned in_rows, unsigned in_cols, unsigned channels,
                                  unsigned kernel, unsigned count) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    unsigned rows = in_rows - kernel + 1, cols = in_cols - kernel + 1;
    // One row of a patch lies in one piece in the image.
    unsigned run = kernel * channels;
    unsigned along = i % run, kernel_row = i / run % kernel, position = i / (run * kernel);
    unsigned col = position % cols, row = position / cols % rows, image = position / (cols * rows);
    unsigned pixel = (image * in_rows + row + kernel_row) * in_cols + col;
    patches[i] = images[pixel * channels + along];
}

// The transpose of im2col: each input element gathers what the patches that hold it say, always
// in the same order, where a scatter would need atomics.
extern "C" __global__ void col2im(const float *__restrict__ patches, float *__restrict__ images,
                                  unsigned in_rows, unsigned in_cols, unsigned channels,
                                  unsigned kernel, unsigned count) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    unsigned rows = in_rows - kernel + 1, cols = in_cols - kernel + 1;
    unsigned channel = i % channels, x = i / channels % in_cols;
    unsigned y = i / (channels * in_cols) % in_rows, image = i / (channels * in_cols * in_rows);
    unsigned first_row = y < rows ? 0 : y - rows + 1, last_row = y < kernel ? y : kernel - 1;
    unsigned first_col = x < cols ? 0 : x - cols + 1, last_col = x < kernel ? x : kernel - 1;
    float sum = 0.0f;
    for (unsigned kernel_row = first_row; kernel_row <= last_row; kernel_row++) {
        for (unsigned kernel_col = first_col; kernel_col <= last_col; kernel_col++) {
            unsigned position = (image * rows + y - kernel_row) * cols + x - kernel_col;
            unsigned tap = (position * kernel + kernel_row) * kernel + kernel_col;
            sum += patches[tap * channels + channel];
        }
    }
    images[i] = sum;
}

// sums is [batch * 2 out_rows, 2 out_cols, channels]; count is the number of pooled elements.
extern "C" __global__ void bias_relu_pool(const float *__restrict__ sums,
                                          const float *__restrict__ bias,
                                          float *__restrict__ output,
                                          unsigned char *__restrict__ routes, unsigned out_cols,
                                          unsigned channels, unsigned count) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    unsigned channel = i % channels, col = i / channels % out_cols, row = i / (channels * out_cols);
    unsigned below = 2 * out_cols * channels;
    unsigned corner = 2 * row * below + 2 * col * channels + channel;
    unsigned places[4] = {corner, corner + channels, corner + below, corner + below + channels};
    float best = sums[places[0]];
    unsigned char route = 0;
    for (unsigned place = 1; place < 4; place++) {
        float sum = sums[places[place]];
        // Not >=: of equals the first wins.
        if (sum > best) {
            best = sum;
            route = place;
        }
    }
    // The bias is the same for the whole window, so it is added once, to the winner.
    float value = best + bias[channel];
    // Written so that a NaN stays a NaN: a diverged run must be seen, not clipped.
    bool shut = value <= 0.0f;
    output[i] = shut ? 0.0f : value;
    routes[i] = shut ? CLOSED : route;
}

// Undoes the pool and the ReLU of a gradient: of each window, the element that the route names gets
// it and the others get zero. One thread writes the whole window, so every element is written.
extern "C" __global__ void unpool(const float *__restrict__ gradient,
                                  const unsigned char *__restrict__ routes,
                                  float *__restrict__ sums_gradient, unsigned out_cols,
                                  unsigned channels, unsigned count) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    unsigned channel = i % channels, col = i / channels % out_cols, row = i / (channels * out_cols);
    unsigned below = 2 * out_cols * channels;
    unsigned corner = 2 * row * below + 2 * col * channels + channel;
    float value = gradient[i];
    unsigned route = routes[i];
    // Stored, not multiplied by zero: that would keep a NaN.
    sums_gradient[corner] = route == 0 ? value : 0.0f;
    sums_gradient[corner + channels] = route == 1 ? value : 0.0f;
    sums_gradient[corner + below] = route == 2 ? value : 0.0f;
    sums_gradient[corner + below + channels] = route == 3 ? value : 0.0f;
}
