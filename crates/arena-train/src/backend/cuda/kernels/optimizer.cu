// The update of the parameters. Each rule exists twice: with the rate passed by value, and with the
// rate read from device memory, where advance_sgd or advance_adam has put it. The second can be
// replayed in a graph, whose arguments are frozen.

__device__ __forceinline__ void sgd_update(float *parameters, const float *gradients,
                                           float *velocity, unsigned i, float rate,
                                           float momentum) {
    float v = momentum * velocity[i] + gradients[i];
    velocity[i] = v;
    parameters[i] -= rate * v;
}

__device__ __forceinline__ void adam_update(float *parameters, const float *gradients, float *mean,
                                            float *mean_square, unsigned i, float rate,
                                            float beta1, float beta2, float epsilon, float kept) {
    float g = gradients[i];
    float m = beta1 * mean[i] + (1.0f - beta1) * g;
    float v = beta2 * mean_square[i] + (1.0f - beta2) * g * g;
    mean[i] = m;
    mean_square[i] = v;
    // kept is 1 without weight decay: the product is exact then, and nothing is contracted.
    parameters[i] = kept * parameters[i] - rate * m / (sqrtf(v) + epsilon);
}

extern "C" __global__ void sgd(float *__restrict__ parameters, const float *__restrict__ gradients,
                               float *__restrict__ velocity, float rate, float momentum,
                               unsigned count) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) sgd_update(parameters, gradients, velocity, i, rate, momentum);
}

extern "C" __global__ void sgd_scheduled(float *__restrict__ parameters,
                                         const float *__restrict__ gradients,
                                         float *__restrict__ velocity,
                                         const float *__restrict__ rates, float momentum,
                                         unsigned count) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) sgd_update(parameters, gradients, velocity, i, rates[0], momentum);
}

// rate and epsilon hold the bias corrections: see advance_adam.
extern "C" __global__ void adam(float *__restrict__ parameters, const float *__restrict__ gradients,
                                float *__restrict__ mean, float *__restrict__ mean_square,
                                float rate, float beta1, float beta2, float epsilon, float kept,
                                unsigned count) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        adam_update(parameters, gradients, mean, mean_square, i, rate, beta1, beta2, epsilon, kept);
    }
}

extern "C" __global__ void adam_scheduled(float *__restrict__ parameters,
                                          const float *__restrict__ gradients,
                                          float *__restrict__ mean, float *__restrict__ mean_square,
                                          const float *__restrict__ rates, float beta1, float beta2,
                                          unsigned count) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        adam_update(parameters, gradients, mean, mean_square, i, rates[0], beta1, beta2, rates[1],
                    rates[2]);
    }
}

// The rate after `done` steps: it falls in a line to 0 at `total`, or stays where total is 0.
__device__ __forceinline__ float rate_after(float learning_rate, unsigned long long done,
                                            unsigned long long total) {
    float factor = total == 0 ? 1.0f : 1.0f - (float)done / (float)total;
    return learning_rate * factor;
}

// In doubles: 1 - beta2^step at step 1 is 0.001, of which a float would keep four digits.
__device__ __forceinline__ double correction(float beta, unsigned long long step) {
    double power = 1.0;
    for (double square = beta; step > 0; step >>= 1, square *= square) {
        if (step & 1) power *= square;
    }
    return 1.0 - power;
}

// One thread: counts the step and leaves its rate in rates[0].
extern "C" __global__ void advance_sgd(unsigned long long *__restrict__ steps,
                                       float *__restrict__ rates, float learning_rate,
                                       unsigned long long total) {
    rates[0] = rate_after(learning_rate, *steps, total);
    *steps += 1;
}

// One thread: counts the step and leaves in rates what adam takes as rate, epsilon and kept:
// lr * (m / c1) / (sqrt(v / c2) + eps) = rate * m / (sqrt(v) + eps * sqrt(c2)), and the share of a
// parameter that weight decay leaves.
extern "C" __global__ void advance_adam(unsigned long long *__restrict__ steps,
                                        float *__restrict__ rates, float learning_rate, float beta1,
                                        float beta2, float epsilon, float weight_decay,
                                        unsigned long long total) {
    float rate = rate_after(learning_rate, *steps, total);
    unsigned long long step = *steps + 1;
    double root = sqrt(correction(beta2, step));
    rates[0] = (float)((double)rate * root / correction(beta1, step));
    rates[1] = (float)((double)epsilon * root);
    rates[2] = (float)(1.0 - (double)rate * (double)weight_decay);
    *steps = step;
}
