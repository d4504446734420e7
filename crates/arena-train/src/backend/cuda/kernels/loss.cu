// Softmax cross-entropy.

#define LOSS_THREADS 256

// One block of LOSS_THREADS threads: a batch has few rows of few classes, and a single block adds
// up the loss in a fixed order without a second kernel. A null gradient is not written.
//
// A label that is no class makes the loss and its row's gradient NaN: the host cannot look at it
// without waiting for the device, and a wrong number must not pass for a loss.
extern "C" __global__ void softmax_cross_entropy(const float *__restrict__ logits,
                                                 const unsigned *__restrict__ labels,
                                                 float *__restrict__ mean,
                                                 unsigned *__restrict__ hits,
                                                 float *__restrict__ gradient, unsigned batch,
                                                 unsigned classes) {
    // In doubles: the mean of thousands of small terms.
    __shared__ double sums[LOSS_THREADS];
    __shared__ unsigned counts[LOSS_THREADS];
    const float nan = __int_as_float(0x7fffffff);
    double sum = 0.0;
    unsigned count = 0;
    for (unsigned row = threadIdx.x; row < batch; row += LOSS_THREADS) {
        const float *x = logits + row * classes;
        unsigned label = labels[row], best = 0;
        for (unsigned c = 1; c < classes; c++) {
            if (x[c] > x[best]) best = c;
        }
        // With the largest logit taken out no exponential overflows and one of them is 1.
        float largest = x[best], exponentials = 0.0f;
        for (unsigned c = 0; c < classes; c++) exponentials += expf(x[c] - largest);
        float log_sum = largest + logf(exponentials);
        bool known = label < classes;
        sum += known ? log_sum - x[label] : nan;
        count += best == label;
        if (gradient != 0) {
            for (unsigned c = 0; c < classes; c++) {
                float target = c == label ? 1.0f : 0.0f;
                float value = (expf(x[c] - log_sum) - target) / (float)batch;
                gradient[row * classes + c] = known ? value : nan;
            }
        }
    }
    sums[threadIdx.x] = sum;
    counts[threadIdx.x] = count;
    for (unsigned half = LOSS_THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) {
            sums[threadIdx.x] += sums[threadIdx.x + half];
            counts[threadIdx.x] += counts[threadIdx.x + half];
        }
    }
    if (threadIdx.x == 0) {
        *mean = batch == 0 ? 0.0f : (float)(sums[0] / batch);
        *hits = counts[0];
    }
}
