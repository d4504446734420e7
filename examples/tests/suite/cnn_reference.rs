//! The loss of `cudarc_cnn`'s network on the host, in f64 and as plain as it can be.

/// A layer; a convolution has 3 x 3 weights, a ReLU and a maximum over 2 x 2 behind it.
pub(crate) enum Layer {
    Conv { size: usize, inputs: usize, outputs: usize },
    Linear { inputs: usize, outputs: usize, relu: bool },
}

/// The mean loss of the images. Each layer has two parameters: its weights and its bias.
pub(crate) fn loss(layers: &[Layer], params: &[Vec<f64>], images: &[f32], labels: &[i32]) -> f64 {
    let image_losses = images.chunks_exact(28 * 28).zip(labels).map(|(image, &label)| {
        let mut x: Vec<f64> = image.iter().map(|&pixel| f64::from(pixel)).collect();
        for (layer, params) in layers.iter().zip(params.chunks_exact(2)) {
            x = layer.forward(&params[0], &params[1], &x);
        }
        let sum: f64 = x.iter().map(|logit| logit.exp()).sum();
        sum.ln() - x[label as usize]
    });
    image_losses.sum::<f64>() / labels.len() as f64
}

impl Layer {
    fn forward(&self, weights: &[f64], bias: &[f64], x: &[f64]) -> Vec<f64> {
        match *self {
            Self::Linear { inputs, outputs, relu } => (0..outputs)
                .map(|out| {
                    let row = &weights[out * inputs..][..inputs];
                    let sum: f64 = row.iter().zip(x).map(|(w, x)| w * x).sum();
                    let y = sum + bias[out];
                    if relu { y.max(0.0) } else { y }
                })
                .collect(),
            Self::Conv { size, inputs, outputs } => {
                let mut pooled = vec![0.0_f64; size / 2 * (size / 2) * outputs];
                for (py, px) in (0..size).flat_map(|py| (0..size).map(move |px| (py, px))) {
                    for out in 0..outputs {
                        let mut sum = bias[out];
                        for (ky, kx) in (0..9).map(|k| (k / 3, k % 3)) {
                            let (sy, sx) = (py + ky, px + kx);
                            if sy == 0 || sx == 0 || sy > size || sx > size {
                                continue;
                            }
                            for c in 0..inputs {
                                let weight = weights[((out * 3 + ky) * 3 + kx) * inputs + c];
                                sum += weight * x[((sy - 1) * size + sx - 1) * inputs + c];
                            }
                        }
                        // 0 at first, the maximum is that of the ReLU as well.
                        let window = (py / 2 * (size / 2) + px / 2) * outputs + out;
                        pooled[window] = pooled[window].max(sum);
                    }
                }
                pooled
            }
        }
    }
}
