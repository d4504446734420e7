//! What each rank found, told to every rank.

use arena_scope::Device;

use crate::{Collective, CollectiveError, RankError};

/// The longest text of a failure that is told, in bytes.
const MAX_CAUSE_BYTES: usize = 4096;

/// What the ranks found, in their order; or the first rank that failed, with its cause.
pub type Found<const N: usize> = Result<Vec<[u64; N]>, RankError>;

/// Tells every rank what every rank found. All return the same: what all of them found, or the failure of the lowest rank
/// that has one.
///
/// # Errors
///
/// When the ranks cannot talk any more.
pub fn gather<D: Device, const N: usize>(
    ranks: &dyn Collective<D>,
    mine: Result<[u64; N], String>,
) -> Result<Found<N>, CollectiveError> {
    let mut found = Vec::new();
    let mut failed = None;
    for root in 0..ranks.size() {
        let is_mine = root == ranks.rank();
        let cause = mine.as_ref().err().map(|cause| shortened(cause)).unwrap_or_default();
        // How many bytes the cause has, and 1 if there is one.
        let mut head = [0_u8; 16];
        if is_mine {
            head[..8].copy_from_slice(&(cause.len() as u64).to_le_bytes());
            head[8] = u8::from(mine.is_err());
        }
        ranks.broadcast(&mut head, root)?;
        let (len, has_failed) = head.split_at(8);
        let len = u64::from_le_bytes(len.try_into().unwrap_or_default());
        if has_failed[0] == 1 {
            let mut text = vec![0; usize::try_from(len).unwrap_or(0).min(MAX_CAUSE_BYTES)];
            if is_mine {
                text.copy_from_slice(cause.as_bytes());
            }
            ranks.broadcast(&mut text, root)?;
            let cause = String::from_utf8_lossy(&text).into_owned();
            failed = failed.or(Some(RankError { rank: root, cause }));
        } else {
            let mut bytes = vec![0; N * 8];
            if let (true, Ok(mine)) = (is_mine, &mine) {
                let words = bytes.chunks_exact_mut(8).zip(mine);
                words.for_each(|(bytes, word)| bytes.copy_from_slice(&word.to_le_bytes()));
            }
            ranks.broadcast(&mut bytes, root)?;
            let (words, _) = bytes.as_chunks();
            let mut its = [0; N];
            its.iter_mut().zip(words).for_each(|(to, word)| *to = u64::from_le_bytes(*word));
            found.push(its);
        }
    }
    Ok(failed.map_or(Ok(found), Err))
}

fn shortened(cause: &str) -> &str {
    &cause[..cause.floor_char_boundary(MAX_CAUSE_BYTES)]
}
