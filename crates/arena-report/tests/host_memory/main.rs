//! Reading a snapshot takes at most four times its file, and so does refusing one.
//!
//! A program of its own: the bytes of all threads are counted together, and those of other tests would be among them.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use arena_report::parse;
use rand::rngs::ChaCha8Rng;
use rand::{Rng, RngExt, SeedableRng};

/// The system's allocator, which counts the bytes that are held, and the most that were.
struct CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

static HELD_BYTES: AtomicU64 = AtomicU64::new(0);
static MOST_BYTES: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes to the system's allocator unchanged; counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held =
            HELD_BYTES.fetch_add(layout.size() as u64, Ordering::Relaxed) + layout.size() as u64;
        MOST_BYTES.fetch_max(held, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD_BYTES.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// What reading a file took at most, in bytes, and whether it was read.
fn taken(file: &[u8]) -> (u64, Result<usize, String>) {
    let before = HELD_BYTES.load(Ordering::Relaxed);
    MOST_BYTES.store(before, Ordering::Relaxed);
    let read = parse(Path::new("file"), file);
    let taken = MOST_BYTES.load(Ordering::Relaxed) - before;
    (taken, read.map(|read| read.steps.len()).map_err(|error| error.to_string()))
}

/// Beside four times the file: the tables of a few names, which do not grow with it.
const BESIDE: u64 = 16 << 10;

fn data(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    std::fs::read(path).unwrap()
}

/// A trace of many small entries, as short as PyTorch's can be: without frames and times.
fn many_entries(count: usize, free_every: usize) -> Vec<u8> {
    let mut file =
        b"\x80\x04}\x94(\x8c\x08segments\x94]\x94\x8c\x0ddevice_traces\x94]\x94]\x94(".to_vec();
    // Each text is in the memo, from entry 7 on.
    let mut memo = 6_u8;
    let mut places = std::collections::HashMap::new();
    let mut text = |file: &mut Vec<u8>, text: &'static str, memoize: &mut u8| {
        if let Some(&place) = places.get(text) {
            file.extend([b'h', place]);
        } else {
            file.extend([0x8c, text.len() as u8]);
            file.extend(text.as_bytes());
            file.push(0x94);
            places.insert(text, *memoize);
            *memoize = memoize.wrapping_add(1);
        }
    };
    for number in 0..count {
        let is_free = number % free_every == free_every - 1;
        let address = 0x7f00_0000_0000_u64 + (number as u64 - u64::from(is_free)) * 512;
        file.extend(b"}\x94(");
        memo = memo.wrapping_add(1);
        text(&mut file, "action", &mut memo);
        text(&mut file, if is_free { "free_completed" } else { "alloc" }, &mut memo);
        text(&mut file, "addr", &mut memo);
        file.extend([0x8a, 6]);
        file.extend(&address.to_le_bytes()[..6]);
        text(&mut file, "size", &mut memo);
        file.push(b'M');
        file.extend((500 + number as u16 % 7).to_le_bytes());
        text(&mut file, "stream", &mut memo);
        file.extend(b"K\x00u");
        if number % 1000 == 999 {
            file.extend(b"e(");
        }
    }
    file.extend(b"eau.");
    file
}

#[test]
fn reading_and_refusing_take_at_most_four_times_the_file() {
    let limit = |file: &[u8]| 4 * file.len() as u64 + BESIDE;
    for free_every in [2, 3, 1_000_000] {
        let file = many_entries(100_000, free_every);
        let (taken, read) = taken(&file);
        read.unwrap();
        println!("{} bytes for {} of file", taken, file.len());
        assert!(taken <= limit(&file), "{free_every}: {taken} bytes for a file of {}", file.len());
        assert!(taken > file.len() as u64, "nothing was counted");
    }
    // A pickle that is all values and no texts.
    for item in [&b"N"[..], b"]", b"]\x94", b"}(", b"]a", b"K\x00", b"(t", b")\x94h\x00"] {
        let mut file = b"\x80\x04](".to_vec();
        for _ in 0..200_000 / item.len() {
            file.extend(item);
        }
        file.extend(b"e.");
        let (taken, read) = taken(&file);
        assert!(read.is_err());
        assert!(taken <= limit(&file), "{item:?}: {taken} bytes for a file of {}", file.len());
    }
    let mut random = ChaCha8Rng::seed_from_u64(4);
    for shape in ["training", "two_devices", "expandable", "from_the_middle"] {
        let file = data(&format!("{shape}.pickle"));
        for _ in 0..500 {
            let mut broken = file.clone();
            for _ in 0..3 {
                let at = random.random_range(0..broken.len());
                broken[at] = random.next_u32() as u8;
            }
            let (taken, _) = taken(&broken);
            assert!(
                taken <= limit(&broken),
                "{shape}: {taken} bytes for a file of {}",
                broken.len()
            );
        }
    }
}
