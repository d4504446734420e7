// A batch as the host sends it: bytes.

// bytes is [batch, image_len] pixels and then [batch] labels. One thread for each byte.
extern "C" __global__ void load_batch(const unsigned char *__restrict__ bytes,
                                      float *__restrict__ pixels, unsigned *__restrict__ labels,
                                      float scale, float shift, unsigned pixel_count,
                                      unsigned count) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    if (i < pixel_count) {
        pixels[i] = (float)bytes[i] * scale + shift;
    } else {
        labels[i - pixel_count] = bytes[i];
    }
}

extern "C" __global__ void fill(float *__restrict__ values, float value, unsigned count) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) values[i] = value;
}
