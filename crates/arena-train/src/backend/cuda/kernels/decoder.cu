// The decoder's layers but for its linear ones: plain kernels, in which a thread makes each sum alone and in order.
// The host's functions of the same names say what is computed.

#define LAYER_NORM_EPSILON 1e-5f

// A thread for each row.
extern "C" __global__ void layer_norm_forward(const float *__restrict__ input,
                                              const float *__restrict__ weight,
                                              const float *__restrict__ bias,
                                              float *__restrict__ output,
                                              float *__restrict__ statistics, unsigned width,
                                              unsigned rows) {
    unsigned row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    const float *x = input + row * width;
    float mean = 0.0f, variance = 0.0f;
    for (unsigned i = 0; i < width; i++) mean += x[i];
    mean /= (float)width;
    for (unsigned i = 0; i < width; i++) variance += (x[i] - mean) * (x[i] - mean);
    variance /= (float)width;
    float scale = 1.0f / sqrtf(variance + LAYER_NORM_EPSILON);
    for (unsigned i = 0; i < width; i++) {
        output[row * width + i] = (x[i] - mean) * scale * weight[i] + bias[i];
    }
    statistics[2 * row] = mean;
    statistics[2 * row + 1] = scale;
}

// A thread for each row. A null residual gradient is not added.
extern "C" __global__ void layer_norm_input_gradient(
    const float *__restrict__ input, const float *__restrict__ statistics,
    const float *__restrict__ weight, const float *__restrict__ above,
    const float *__restrict__ residual, float *__restrict__ gradient, unsigned width,
    unsigned rows) {
    unsigned row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    const float *x = input + row * width, *dy = above + row * width;
    float mean = statistics[2 * row], scale = statistics[2 * row + 1];
    float mean_gradient = 0.0f, mean_product = 0.0f;
    for (unsigned i = 0; i < width; i++) {
        float through = dy[i] * weight[i];
        mean_gradient += through;
        mean_product += through * ((x[i] - mean) * scale);
    }
    mean_gradient /= (float)width;
    mean_product /= (float)width;
    for (unsigned i = 0; i < width; i++) {
        float normal = (x[i] - mean) * scale;
        float value = scale * (dy[i] * weight[i] - mean_gradient - normal * mean_product);
        if (residual != 0) value += residual[row * width + i];
        gradient[row * width + i] = value;
    }
}

// A thread for each column.
extern "C" __global__ void layer_norm_weight_gradient(const float *__restrict__ input,
                                                      const float *__restrict__ statistics,
                                                      const float *__restrict__ above,
                                                      float *__restrict__ weight_gradient,
                                                      float *__restrict__ bias_gradient,
                                                      unsigned width, unsigned rows) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= width) return;
    float weight = 0.0f, bias = 0.0f;
    for (unsigned row = 0; row < rows; row++) {
        float dy = above[row * width + i];
        weight += dy * ((input[row * width + i] - statistics[2 * row]) * statistics[2 * row + 1]);
        bias += dy;
    }
    weight_gradient[i] = weight;
    bias_gradient[i] = bias;
}

// tanh(t) with t = sqrt(2 / pi) (x + 0.044715 x^3), as a logistic function of 2 t.
__device__ __forceinline__ float gelu_gate(float x) {
    return 1.0f / (1.0f + expf(-1.595769f * (x + 0.044715f * x * x * x)));
}

extern "C" __global__ void gelu_forward(const float *__restrict__ input,
                                        float *__restrict__ output, unsigned count) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) output[i] = input[i] * gelu_gate(input[i]);
}

extern "C" __global__ void gelu_input_gradient(const float *__restrict__ input,
                                               const float *__restrict__ above,
                                               float *__restrict__ gradient, unsigned count) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    float x = input[i], gate = gelu_gate(x);
    float slope = 1.595769f * (1.0f + 3.0f * 0.044715f * x * x);
    gradient[i] = above[i] * (gate + x * gate * (1.0f - gate) * slope);
}

extern "C" __global__ void add(const float *__restrict__ left, const float *__restrict__ right,
                               float *__restrict__ sum, unsigned count) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) sum[i] = left[i] + right[i];
}

extern "C" __global__ void add_scaled(float *__restrict__ sum, const float *__restrict__ values,
                                      float scale, unsigned count) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) sum[i] += scale * values[i];
}

// Philox4x32-10 for the element's block of four, and of its words the element's own.
extern "C" __global__ void dropout(float *__restrict__ values, unsigned threshold, float scale,
                                   unsigned seed_low, unsigned seed_high, unsigned step,
                                   unsigned layer, unsigned count) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    unsigned a = i / 4, b = 0, c = step, d = layer, key0 = seed_low, key1 = seed_high;
    for (int round = 0; round < 10; round++) {
        unsigned low0 = 0xD2511F53u * a, high0 = __umulhi(0xD2511F53u, a);
        unsigned low1 = 0xCD9E8D57u * c, high1 = __umulhi(0xCD9E8D57u, c);
        a = high1 ^ b ^ key0;
        b = low1;
        c = high0 ^ d ^ key1;
        d = low0;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    unsigned lane = i % 4, word = lane == 0 ? a : lane == 1 ? b : lane == 2 ? c : d;
    values[i] = word < threshold ? 0.0f : values[i] * scale;
}

// A thread for each feature of a token. One that is not in the vocabulary becomes NaN: the host cannot look at it
// without waiting for the device.
extern "C" __global__ void embedding_forward(const unsigned *__restrict__ tokens,
                                             const float *__restrict__ token_table,
                                             const float *__restrict__ position_table,
                                             float *__restrict__ output, unsigned context,
                                             unsigned vocabulary, unsigned width,
                                             unsigned count) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    unsigned token = tokens[i / width], position = i / width % context;
    float nan = __int_as_float(0x7fffffff);
    float value = token < vocabulary ? token_table[token * width + i % width] : nan;
    output[i] = value + position_table[position * width + i % width];
}

// A thread for each element of the table; what is there stays in the sum.
extern "C" __global__ void embedding_token_gradient(const unsigned *__restrict__ tokens,
                                                    const float *__restrict__ above,
                                                    float *__restrict__ gradient,
                                                    unsigned token_count, unsigned width,
                                                    unsigned count) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    float sum = gradient[i];
    for (unsigned t = 0; t < token_count; t++) {
        if (tokens[t] == i / width) sum += above[t * width + i % width];
    }
    gradient[i] = sum;
}

// A thread for each element of the table.
extern "C" __global__ void embedding_position_gradient(const float *__restrict__ above,
                                                       float *__restrict__ gradient,
                                                       unsigned batch, unsigned row,
                                                       unsigned count) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    float sum = 0.0f;
    for (unsigned b = 0; i < row && b < batch; b++) sum += above[b * row + i];
    gradient[i] = sum;
}

// One query or key of one head of one sequence.
struct Place {
    unsigned sequence, token, head;
};

__device__ __forceinline__ Place place_of(unsigned i, unsigned context, unsigned heads) {
    Place place;
    place.head = i % heads;
    place.token = i / heads % context;
    place.sequence = i / heads / context;
    return place;
}

// Queries (0), keys (1) or values (2) of a token: [batch, context, 3, heads, head_width].
__device__ __forceinline__ unsigned features(Place place, unsigned token, unsigned part,
                                             unsigned context, unsigned heads, unsigned width) {
    return (((place.sequence * context + token) * 3 + part) * heads + place.head) * width;
}

__device__ __forceinline__ float product(const float *a, const float *b, unsigned width) {
    float sum = 0.0f;
    for (unsigned f = 0; f < width; f++) sum += a[f] * b[f];
    return sum;
}

// A thread for each query of each head.
extern "C" __global__ void attention_forward(const float *__restrict__ input,
                                             float *__restrict__ output,
                                             float *__restrict__ log_sums, float scale,
                                             unsigned context, unsigned heads, unsigned width,
                                             unsigned count) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    Place place = place_of(i, context, heads);
    const float *query = input + features(place, place.token, 0, context, heads, width);
    float *out = output + i * width;
    float largest = __int_as_float(0xff800000), sum = 0.0f;
    for (unsigned f = 0; f < width; f++) out[f] = 0.0f;
    for (unsigned key = 0; key <= place.token; key++) {
        const float *k = input + features(place, key, 1, context, heads, width);
        const float *v = input + features(place, key, 2, context, heads, width);
        float score = product(query, k, width) * scale;
        float most = fmaxf(largest, score);
        // Both are 0 to 1; the first time the sums so far are 0.
        float rescale = key == 0 ? 0.0f : expf(largest - most), weight = expf(score - most);
        sum = sum * rescale + weight;
        for (unsigned f = 0; f < width; f++) out[f] = out[f] * rescale + weight * v[f];
        largest = most;
    }
    for (unsigned f = 0; f < width; f++) out[f] /= sum;
    log_sums[i] = largest + logf(sum);
}

// A thread for each query of each head: its own gradient.
extern "C" __global__ void attention_query_gradient(const float *__restrict__ input,
                                                    const float *__restrict__ output,
                                                    const float *__restrict__ log_sums,
                                                    const float *__restrict__ above,
                                                    float *__restrict__ gradient, float scale,
                                                    unsigned context, unsigned heads,
                                                    unsigned width, unsigned count) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    Place place = place_of(i, context, heads);
    unsigned at = features(place, place.token, 0, context, heads, width);
    const float *query = input + at;
    float *to = gradient + at;
    float whole = product(output + i * width, above + i * width, width);
    for (unsigned f = 0; f < width; f++) to[f] = 0.0f;
    for (unsigned key = 0; key <= place.token; key++) {
        const float *k = input + features(place, key, 1, context, heads, width);
        const float *v = input + features(place, key, 2, context, heads, width);
        float weight = expf(product(query, k, width) * scale - log_sums[i]);
        float slope = weight * (product(above + i * width, v, width) - whole) * scale;
        for (unsigned f = 0; f < width; f++) to[f] += slope * k[f];
    }
}

// A thread for each key of each head: its gradient, and that of its value.
extern "C" __global__ void attention_key_gradient(const float *__restrict__ input,
                                                  const float *__restrict__ output,
                                                  const float *__restrict__ log_sums,
                                                  const float *__restrict__ above,
                                                  float *__restrict__ gradient, float scale,
                                                  unsigned context, unsigned heads,
                                                  unsigned width, unsigned count) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    Place place = place_of(i, context, heads);
    unsigned key_at = features(place, place.token, 1, context, heads, width);
    unsigned value_at = features(place, place.token, 2, context, heads, width);
    const float *key = input + key_at, *value = input + value_at;
    float *to_key = gradient + key_at, *to_value = gradient + value_at;
    for (unsigned f = 0; f < width; f++) to_key[f] = to_value[f] = 0.0f;
    for (unsigned token = place.token; token < context; token++) {
        const float *query = input + features(place, token, 0, context, heads, width);
        unsigned row = (place.sequence * context + token) * heads + place.head;
        const float *dy = above + row * width;
        float weight = expf(product(query, key, width) * scale - log_sums[row]);
        float whole = product(output + row * width, dy, width);
        float slope = weight * (product(dy, value, width) - whole) * scale;
        for (unsigned f = 0; f < width; f++) {
            to_key[f] += slope * query[f];
            to_value[f] += weight * dy[f];
        }
    }
}
