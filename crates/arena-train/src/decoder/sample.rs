//! Text that a trained decoder makes.

use arena_scope::StepKey;
use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};

use super::{Decoder, VOCABULARY};
use crate::backend::DecoderKernels;
use crate::data::Text;
use crate::error::TrainError;
use crate::training::Trainer;

/// The key of a step that makes one byte.
pub const SAMPLE: StepKey = StepKey::named("sample");

/// Bytes that are made.
const SAMPLE_BYTES: usize = 200;

/// Goes on behind the first bytes of a text that the network has not learnt from. Each byte is drawn with the
/// probability that the network gives it, after as many bytes as its longest sequence has.
pub(super) fn sample<B: DecoderKernels>(
    trainer: &mut Trainer<Decoder<B>>,
    text: &Text,
) -> Result<String, TrainError> {
    let (context, seed) = (trainer.config().network.context, trainer.config().seed);
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    // No order of an epoch has this stream.
    rng.set_stream(u64::MAX);
    let mut tokens: Vec<u32> = text.sequence(0)[..context].iter().copied().map(u32::from).collect();
    let (mut made, mut logits) = (Vec::new(), [0.0; VOCABULARY]);
    for _ in 0..SAMPLE_BYTES {
        trainer.scope_of_kind(SAMPLE, |scope, model| {
            let last = scope.upload(&tokens[tokens.len() - context..])?;
            let found = model.predict(scope, context, last)?;
            let last = (context - 1) * VOCABULARY;
            Ok(found.view().range(last..)?.read_into(&mut logits)?)
        })?;
        let byte = draw(&logits, &mut rng);
        tokens.push(byte.into());
        made.push(byte);
    }
    Ok(readable(&made))
}

/// A byte, drawn with its probability.
fn draw(logits: &[f32], rng: &mut impl Rng) -> u8 {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights = || logits.iter().map(|logit| f64::from(logit - most).exp());
    // 53 random bits are what an f64 in [0, 1) holds exactly.
    let unit = (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
    let mut left = unit * weights().sum::<f64>();
    let found = weights().position(|weight| {
        left -= weight;
        left < 0.0
    });
    // Rounding may leave a rest.
    u8::try_from(found.unwrap_or(logits.len() - 1)).unwrap_or(u8::MAX)
}

/// Text that a terminal shows as it is.
fn readable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let shown = |c: char| if c.is_control() && c != '\n' { '\u{fffd}' } else { c };
    text.chars().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::ChaCha8Rng;

    use super::{draw, readable};

    #[test]
    fn bytes_are_drawn_with_their_probabilities() {
        let mut logits = [f32::NEG_INFINITY; 256];
        (logits[65], logits[255]) = (3.0_f32.ln() - 50.0, -50.0);
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let drawn: Vec<u8> = (0..4000).map(|_| draw(&logits, &mut rng)).collect();
        let of = |byte| drawn.iter().filter(|drawn| **drawn == byte).count();
        assert_eq!(of(65) + of(255), 4000);
        assert!((2900..3100).contains(&of(65)), "{}", of(65));
    }

    #[test]
    fn a_sample_shows_no_control_character_but_line_ends() {
        assert_eq!(readable(b"a\n\x1b[2J\xff"), "a\n\u{fffd}[2J\u{fffd}");
    }
}
