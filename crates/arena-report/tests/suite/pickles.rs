//! Pickles that are no snapshots, hostile ones, and ten thousand broken ones.

use std::time::{Duration, Instant};

use rand::rngs::ChaCha8Rng;
use rand::{Rng, RngExt, SeedableRng};
use rstest::rstest;

use crate::common::{bytes, recording};

#[rstest]
#[case::empty_dict(b"\x80\x04}.", "file: byte 2: \"segments\" is missing or not a list")]
#[case::protocol_1(b"\x80\x01}.", "file: byte 1: pickle protocol 1 is not known")]
#[case::protocol_6(b"\x80\x06}.", "file: byte 1: pickle protocol 6 is not known")]
#[case::nothing_on_the_stack(
    b"\x80\x04.",
    "file: byte 2: the pickle takes a value that is not there"
)]
#[case::no_stop(b"\x80\x04}", "file: byte 3: the file ends too early")]
#[case::half_a_number(b"\x80\x04J\x01\x02", "file: byte 5: the file ends too early")]
#[case::long_text(b"\x80\x04X\xff\xff\xff\xffab", "file: byte 9: the file ends too early")]
#[case::long_frame(
    b"\x80\x04\x95\xff\x00\x00\x00\x00\x00\x00\x00}.",
    "file: byte 2: the file ends too early"
)]
#[case::longest_text(
    b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff",
    "file: byte 11: the file ends too early"
)]
#[case::long_number(
    b"\x80\x04\x8a\x0a0123456789.",
    "file: byte 2: a number of 10 bytes is too long"
)]
#[case::import(b"\x80\x02cos\nsystem\n.", "file: byte 2: opcode 0x63 would run code")]
#[case::call(b"\x80\x04))R.", "file: byte 4: opcode 0x52 would run code")]
#[case::persistent(b"\x80\x04)Q.", "file: byte 3: opcode 0x51 would run code")]
#[case::bytes(b"\x80\x04C\x01a.", "file: byte 2: opcode 0x43 is not one of a memory snapshot")]
#[case::memo_gap(b"\x80\x02}q\x01.", "file: byte 3: memo entry 1 is not the next one")]
#[case::memo_unknown(b"\x80\x02h\x00.", "file: byte 2: memo entry 0 is not the next one")]
#[case::append_to_dict(b"\x80\x04}Na.", "file: byte 4: there is no list here to be filled")]
#[case::set_in_list(b"\x80\x04]NNs.", "file: byte 5: there is no dictionary here to be filled")]
#[case::append_to_nothing(b"\x80\x04Na.", "file: byte 3: there is no list here to be filled")]
#[case::across_a_mark(b"\x80\x04]N(a.", "file: byte 5: the pickle takes a value that is not there")]
#[case::no_mark(b"\x80\x04]e.", "file: byte 3: the pickle takes a value that is not there")]
#[case::odd_pairs(b"\x80\x04}(Nu.", "file: byte 5: the pickle takes a value that is not there")]
#[case::negative(
    b"\x80\x04](}(\x8c\x0atotal_sizeJ\xff\xff\xff\xffue.",
    "file: byte 4: \"total_size\" of a segment is missing or not a number"
)]
#[case::goes_on(b"\x80\x04}.x", "file: byte 4: the pickle has ended, but the file goes on")]
fn a_wrong_pickle_is_refused_with_its_byte(#[case] file: &[u8], #[case] problem: &str) {
    let told = recording(file).unwrap_err();
    assert!(told.starts_with(problem), "{told}");
    assert!(!told.contains('\n'));
}

#[test]
fn a_pickle_that_calls_something_is_refused_where_it_would() {
    let told = recording(&bytes("hostile.pickle")).unwrap_err();
    assert!(told.contains("opcode 0x93 would run code"), "{told}");
}

/// One entry, which stands a hundred thousand times in a list: each time as a reference of two bytes.
#[test]
fn lists_that_repeat_each_other_are_refused_at_once() {
    let mut file = b"\x80\x04}(\x8c\x08segments]\x8c\x0ddevice_traces](](".to_vec();
    file.extend(b"}\x94(\x8c\x06action\x8c\x05alloc\x8c\x04addrK\x01\x8c\x04sizeK\x08u");
    for number in 0..100_000 {
        // A thousand at once, as Python does: more would be refused for the stack.
        file.extend(if number % 1000 == 999 { &b"h\x00e("[..] } else { b"h\x00" });
    }
    file.extend(b"eeu.");
    let told = recording(&file).unwrap_err();
    assert_eq!(told, "file: byte 14: the lists of the file repeat each other");
}

/// Lists of a hundred references to the list before: a few hundred bytes with 10^10 items.
#[test]
fn lists_of_lists_of_themselves_take_no_time() {
    let mut file = b"\x80\x04}(\x8c\x08segments](".to_vec();
    for level in 0..5_u8 {
        file.extend(b"](");
        for _ in 0..100 {
            if level == 0 { file.push(b'N') } else { file.extend([b'h', level - 1]) }
        }
        file.extend(b"e\x94");
    }
    file.extend(b"eu.");
    let begin = Instant::now();
    let told = recording(&file).unwrap_err();
    assert!(told.contains("missing or not"), "{told}");
    assert!(begin.elapsed() < Duration::from_secs(1));
}

#[test]
fn a_thousand_marks_are_refused() {
    let mut file = b"\x80\x04".to_vec();
    file.extend([b'('; 1000]);
    let told = recording(&file).unwrap_err();
    assert!(told.starts_with("file: byte 66: the pickle has more than 64 open marks"), "{told}");
}

#[test]
fn sizes_that_cannot_be_added_up_are_refused() {
    let mut file = b"\x80\x04}(\x8c\x08segments]\x8c\x0ddevice_traces](](".to_vec();
    for _ in 0..4 {
        file.extend(b"}(\x8c\x06action\x8c\x05alloc\x8c\x04addrK\x01\x8c\x04size\x8a\x08");
        file.extend((1_u64 << 61).to_le_bytes());
        file.push(b'u');
    }
    file.extend(b"eeu.");
    let told = recording(&file).unwrap_err();
    assert!(
        told.contains("\"size\" of a trace's entry is missing or not a size that memory has"),
        "{told}"
    );
}

/// A list that has itself as an item, in every place of a snapshot.
#[test]
fn a_list_in_itself_is_refused() {
    for text in [&b"\x80\x04]\x94h\x00a."[..], b"\x80\x04}\x94(\x8c\x08segmentsh\x00u."] {
        assert!(recording(text).unwrap_err().contains("missing or not"));
    }
}

fn broken(file: &[u8], random: &mut ChaCha8Rng) -> Vec<u8> {
    let mut file = file.to_vec();
    for _ in 0..random.random_range(1..4) {
        let at = random.random_range(0..file.len());
        let other = random.random_range(0..file.len());
        let range = at.min(other)..at.max(other).min(at.min(other) + 40);
        match random.random_range(0..7) {
            0 => file[at] = random.next_u32() as u8,
            1 => file[at] ^= 1 << random.random_range(0..8),
            2 => file.truncate(at.max(1)),
            3 => drop(file.splice(at..at, file[range].to_vec())),
            4 => drop(file.drain(range)),
            5 => {
                let opcodes = b"]}()(.eausqhjrtKMJGNX\x94\x95\x8a\x8c\x85\x86\x87";
                file[at] = opcodes[random.random_range(0..opcodes.len())];
            }
            _ => {
                // A number becomes huge.
                let end = (at + 8).min(file.len());
                file[at..end].fill(0xff);
            }
        }
        if file.is_empty() {
            break;
        }
    }
    file
}

#[rstest]
#[case("training")]
#[case("old_without_traces")]
#[case("two_devices")]
#[case("expandable")]
#[case("from_the_middle")]
fn two_thousand_broken_files_are_refused_or_read_without_a_panic(#[case] shape: &str) {
    let file = bytes(&format!("{shape}.pickle"));
    let mut random = ChaCha8Rng::seed_from_u64(14);
    let (mut refused, mut slowest) = (0, Duration::ZERO);
    for _ in 0..2000 {
        let broken = broken(&file, &mut random);
        let begin = Instant::now();
        match recording(&broken) {
            Ok(read) => assert!(!read.steps.is_empty()),
            Err(told) => {
                refused += 1;
                assert!(told.starts_with("file:") && !told.contains('\n'), "{told}");
            }
        }
        slowest = slowest.max(begin.elapsed());
    }
    // A byte in a number leaves a snapshot of another size.
    assert!((1000..2000).contains(&refused), "{refused}");
    assert!(slowest < Duration::from_secs(2), "{slowest:?}");
}
