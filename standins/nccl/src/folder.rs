//! Where ranks meet: a folder, in which each writes files and looks for those of the others.
//!
//! A rank holds a lock on its file as long as it takes part. The system takes the lock from a process that ends, however
//! it does, so the others see that. What a rank gives to the n-th call of all ranks is a file as well; it is removed when
//! the rank has ended the call after it, for which every other one must have read it.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Where one rank stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It has not come yet.
    Absent,
    Present,
    /// It has left in order.
    Left,
    /// Its process has ended, or it has aborted.
    Gone,
}

/// One rank's place in the folder.
#[derive(Debug)]
pub(crate) struct Place {
    folder: PathBuf,
    rank: u32,
    ranks: u32,
    /// Locked while the rank takes part.
    _presence: File,
}

/// The path of a folder that nobody has yet.
pub(crate) fn fresh_path() -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("nccl-standin-{}-{number}", std::process::id()))
}

impl Place {
    /// Comes to the folder as a rank.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::AlreadyExists`] when somebody else is this rank; otherwise those of the file system.
    pub(crate) fn take(folder: &Path, rank: u32, ranks: u32) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        File::create_new(folder.join(format!("taken-{rank}")))?;
        let written = folder.join(format!("comes-{rank}"));
        let file = File::create(&written)?;
        file.try_lock()?;
        fs::write(&written, ranks.to_string())?;
        // Whoever sees the name sees the lock and the text as well.
        fs::rename(&written, folder.join(format!("rank-{rank}")))?;
        Ok(Self { folder: folder.to_owned(), rank, ranks, _presence: file })
    }

    pub(crate) fn ranks(&self) -> u32 {
        self.ranks
    }

    pub(crate) fn rank(&self) -> u32 {
        self.rank
    }

    /// The other ranks.
    pub(crate) fn others(&self) -> impl Iterator<Item = u32> + use<> {
        let own = self.rank;
        (0..self.ranks).filter(move |rank| *rank != own)
    }

    /// Where another rank stands.
    pub(crate) fn standing(&self, rank: u32) -> Standing {
        if self.left(rank).exists() {
            return Standing::Left;
        }
        match File::open(self.presence(rank)) {
            Err(_) => Standing::Absent,
            Ok(file) => match file.try_lock_shared() {
                // It may have left since.
                Ok(()) if self.left(rank).exists() => Standing::Left,
                Ok(()) => Standing::Gone,
                Err(_) => Standing::Present,
            },
        }
    }

    /// For how many ranks another one has come.
    pub(crate) fn ranks_of(&self, rank: u32) -> Option<u32> {
        fs::read_to_string(self.presence(rank)).ok()?.parse().ok()
    }

    /// Gives something to the `number`-th call of all ranks.
    pub(crate) fn give(&self, number: u64, bytes: &[u8]) -> io::Result<()> {
        let written = self.folder.join(format!("gives-{}", self.rank));
        fs::write(&written, bytes)?;
        fs::rename(written, self.given(number, self.rank))
    }

    /// Whether a rank has given something to a call.
    pub(crate) fn has_given(&self, number: u64, rank: u32) -> bool {
        self.given(number, rank).exists()
    }

    /// What a rank gave to a call; `None` as long as it has not.
    pub(crate) fn take_from(&self, number: u64, rank: u32) -> Option<Vec<u8>> {
        fs::read(self.given(number, rank)).ok()
    }

    /// Takes back what this rank gave to the call before, which every rank has read when it gives to this one.
    pub(crate) fn end(&self, number: u64) {
        if let Some(before) = number.checked_sub(1) {
            // It is only litter if it stays.
            let _ = fs::remove_file(self.given(before, self.rank));
        }
    }

    /// Leaves in order.
    pub(crate) fn leave(self) {
        let _ = fs::write(self.left(self.rank), "");
        self.tidy();
    }

    /// The others see that this rank has gone. What it has given to a call that it has not ended is gone as well.
    pub(crate) fn abandon(self, under_way: u64) {
        let _ = fs::remove_file(self.given(under_way, self.rank));
        self.tidy();
    }

    /// The last one removes the folder.
    fn tidy(self) {
        if self.others().all(|rank| self.standing(rank) != Standing::Present) {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }

    fn presence(&self, rank: u32) -> PathBuf {
        self.folder.join(format!("rank-{rank}"))
    }

    fn left(&self, rank: u32) -> PathBuf {
        self.folder.join(format!("left-{rank}"))
    }

    fn given(&self, number: u64, rank: u32) -> PathBuf {
        self.folder.join(format!("call-{number}-{rank}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ranks of a folder, in one process: locks belong to open files, not to processes.
    fn places(ranks: u32) -> Vec<Place> {
        let path = fresh_path();
        (0..ranks).map(|rank| Place::take(&path, rank, ranks).unwrap()).collect()
    }

    #[test]
    fn who_leaves_is_told_apart_from_who_is_gone_and_the_last_one_tidies_up() {
        let path = fresh_path();
        let first = Place::take(&path, 0, 3).unwrap();
        assert_eq!(first.standing(1), Standing::Absent);
        let second = Place::take(&path, 1, 3).unwrap();
        let third = Place::take(&path, 2, 3).unwrap();
        assert_eq!([1, 2].map(|rank| first.standing(rank)), [Standing::Present; 2]);
        second.leave();
        drop(third);
        assert_eq!([1, 2].map(|rank| first.standing(rank)), [Standing::Left, Standing::Gone]);
        assert!(path.exists());
        first.abandon(0);
        assert!(!path.exists());
    }

    #[test]
    fn a_rank_is_taken_once() {
        let places = places(1);
        let again = Place::take(&places[0].folder, 0, 1).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
        places.into_iter().for_each(Place::leave);
    }

    #[test]
    fn what_is_given_to_a_call_stays_until_the_next_one_has_ended() {
        let places = places(2);
        places[0].give(0, b"zero").unwrap();
        assert_eq!(places[1].take_from(0, 0).unwrap(), b"zero");
        assert_eq!(places[1].take_from(1, 0), None);
        places[0].end(0);
        places[0].give(1, b"one").unwrap();
        assert_eq!(places[1].take_from(0, 0).unwrap(), b"zero");
        places[0].end(1);
        assert_eq!(places[1].take_from(0, 0), None);
        assert_eq!(places[1].take_from(1, 0).unwrap(), b"one");
        places.into_iter().for_each(Place::leave);
    }
}
