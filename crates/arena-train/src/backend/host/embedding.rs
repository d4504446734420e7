//! Embeddings of tokens and of their positions.

use pulp::Arch;
use rayon::prelude::*;

use super::error::{KernelError, check_len};
use super::split::part_len;

/// Below this many elements a pass is not worth a join.
const SERIAL_BELOW: usize = 1 << 14;

/// Sequences of tokens, and the tables that they are looked up in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmbeddingShape {
    /// Sequences.
    pub batch: usize,
    /// Tokens of a sequence.
    pub context: usize,
    /// Different tokens.
    pub vocabulary: usize,
    /// Features of a token.
    pub width: usize,
}

impl EmbeddingShape {
    /// Tokens of all sequences.
    #[must_use]
    pub const fn tokens(&self) -> usize {
        self.batch * self.context
    }

    /// Elements of all tokens' features.
    #[must_use]
    pub const fn output_len(&self) -> usize {
        self.tokens() * self.width
    }

    /// Checks the lengths of the tokens and of both tables, or of their gradients.
    pub(in crate::backend) fn check_lens(
        &self,
        tokens: usize,
        token_table: usize,
        position_table: usize,
    ) -> Result<(), KernelError> {
        if self.width == 0 || self.context == 0 {
            return Err(KernelError::Shape { reason: "an embedding has features and positions" });
        }
        let product = |a: usize, b: usize| a.checked_mul(b).ok_or(KernelError::Overflow);
        let expected = product(self.batch, self.context)?;
        product(expected, self.width)?;
        check_len("tokens", tokens, expected)?;
        check_len("token table", token_table, product(self.vocabulary, self.width)?)?;
        let expected = product(self.context, self.width)?;
        if position_table < expected {
            let (operand, found) = ("position table", position_table);
            return Err(KernelError::Length { operand, expected, found });
        }
        Ok(())
    }

    fn check_tokens(&self, tokens: &[u32]) -> Result<(), KernelError> {
        let classes = self.vocabulary;
        match tokens.iter().position(|&token| token as usize >= classes) {
            Some(index) => Err(KernelError::Label { index, label: tokens[index], classes }),
            None => Ok(()),
        }
    }

    fn parts(&self, threads: usize) -> usize {
        if self.output_len() < SERIAL_BELOW { 1 } else { threads }
    }
}

/// `output[t] = token_table[tokens[t]] + position_table[t modulo context]`.
///
/// Shapes: `tokens` `[batch, context]`, `token_table` `[vocabulary, width]`, `position_table` at least
/// `[context, width]`, `output` `[batch, context, width]`.
///
/// # Errors
///
/// [`KernelError`] when a slice does not fit the shape or a token is not in the vocabulary; nothing is written.
pub fn embedding_forward(
    shape: &EmbeddingShape,
    tokens: &[u32],
    token_table: &[f32],
    position_table: &[f32],
    output: &mut [f32],
    threads: usize,
) -> Result<(), KernelError> {
    shape.check_lens(tokens.len(), token_table.len(), position_table.len())?;
    shape.check_tokens(tokens)?;
    let width = shape.width;
    check_len("output", output.len(), shape.output_len())?;
    let (arch, part) = (Arch::new(), part_len(shape.tokens(), shape.parts(threads)));
    output.par_chunks_mut(part * width).zip(tokens.par_chunks(part)).enumerate().for_each(
        |(index, (output, tokens))| {
            arch.dispatch(
                #[inline(always)]
                || {
                    let rows = output.chunks_exact_mut(width).zip(tokens);
                    for (row, (output, token)) in rows.enumerate() {
                        let position = (index * part + row) % shape.context;
                        let token = &token_table[*token as usize * width..][..width];
                        let position = &position_table[position * width..][..width];
                        for ((output, token), position) in
                            output.iter_mut().zip(token).zip(position)
                        {
                            *output = token + position;
                        }
                    }
                },
            );
        },
    );
    Ok(())
}

/// The gradients of both tables. That of the tokens' table is *added* to what is there: a table that is tied to the
/// last layer has that layer's gradient already. That of the positions is written, with 0 for those beyond the context.
///
/// The work is cut by row of a table: each sum is made by one thread, in the tokens' order.
///
/// Shapes: `tokens` `[batch, context]`, `output_gradient` `[batch, context, width]`, `token_gradient`
/// `[vocabulary, width]`, `position_gradient` at least `[context, width]`.
///
/// # Errors
///
/// As for [`embedding_forward`].
pub fn embedding_gradient(
    shape: &EmbeddingShape,
    tokens: &[u32],
    output_gradient: &[f32],
    token_gradient: &mut [f32],
    position_gradient: &mut [f32],
    threads: usize,
) -> Result<(), KernelError> {
    shape.check_lens(tokens.len(), token_gradient.len(), position_gradient.len())?;
    shape.check_tokens(tokens)?;
    let width = shape.width;
    check_len("output gradient", output_gradient.len(), shape.output_len())?;
    let arch = Arch::new();
    let part = part_len(shape.vocabulary, shape.parts(threads));
    token_gradient.par_chunks_mut(part * width).enumerate().for_each(|(index, gradient)| {
        arch.dispatch(
            #[inline(always)]
            || {
                let first = index * part;
                for (token, above) in tokens.iter().zip(output_gradient.chunks_exact(width)) {
                    let Some(row) = (*token as usize).checked_sub(first) else { continue };
                    let row = row * width..(row + 1) * width;
                    let Some(sums) = gradient.get_mut(row) else { continue };
                    for (sum, above) in sums.iter_mut().zip(above) {
                        *sum += above;
                    }
                }
            },
        );
    });
    let part = part_len(shape.context, shape.parts(threads));
    let (used, beyond) = position_gradient.split_at_mut(shape.context * width);
    beyond.fill(0.0);
    used.par_chunks_mut(part * width).enumerate().for_each(|(index, gradient)| {
        arch.dispatch(
            #[inline(always)]
            || {
                gradient.fill(0.0);
                for sequence in output_gradient.chunks_exact(shape.context * width) {
                    for (sum, above) in gradient.iter_mut().zip(&sequence[index * part * width..]) {
                        *sum += above;
                    }
                }
            },
        );
    });
    Ok(())
}
