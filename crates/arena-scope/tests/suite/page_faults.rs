//! On the host a write outside a buffer with an allocation of its own is a page fault. Each case runs in a
//! child of this program, which the fault ends.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};

use arena_scope::{Alignment, Arena, ByteSize, Error, Host, Placement};
use rstest::rstest;

/// Set in the child: the placement, the buffer's bytes and alignment, and where to write from its start.
const ORDER: &str = "ARENA_OVERRUN";
const SIGSEGV: i32 = 11;

fn write(address: u64) {
    let byte = std::ptr::with_exposed_provenance_mut::<u8>(address as usize);
    // SAFETY: the byte lies in a buffer, in free memory of the region, or nowhere; then the kernel ends
    // this process, which is what the test is about.
    unsafe { byte.write_volatile(7) };
}

/// What the child does.
#[test]
#[ignore = "it is the child of the tests below"]
fn child() -> Result<(), Error> {
    let order = std::env::var(ORDER).unwrap();
    let [placement, bytes, alignment, offset] = order.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{order}");
    };
    let placement = match placement {
        "Separate" => Placement::Separate,
        "Unguarded" => Placement::Unguarded,
        _ => Placement::Bump,
    };
    let [bytes, alignment, offset] = [bytes, alignment, offset].map(|n| n.parse::<i64>().unwrap());
    let builder = Arena::builder(Host::new()).capacity(ByteSize::mib(1));
    let mut arena = builder.placement(placement).build()?;
    arena.scope(|step| {
        let _below = step.alloc::<u8>(bytes as usize)?;
        let alignment = Alignment::new(alignment as u64)?;
        let buffer = step.alloc_aligned::<u8>(bytes as usize, alignment)?;
        for inside in [0, bytes - 1] {
            write(buffer.address().wrapping_add_signed(inside));
        }
        println!("written inside");
        write(buffer.address().wrapping_add_signed(offset));
        Ok(())
    })
}

fn end_of_child(placement: Placement, bytes: u64, alignment: u64, offset: i64) -> ExitStatus {
    let program = std::env::current_exe().unwrap();
    let output = Command::new(program)
        .args(["--exact", "page_faults::child", "--ignored", "--nocapture"])
        .env(ORDER, format!("{placement:?} {bytes} {alignment} {offset}"))
        .env("ASAN_OPTIONS", "detect_leaks=0:handle_segv=0")
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(told.contains("written inside"), "{told}");
    output.status
}

// Pages of any size up to 64 KiB.
const PAGES: u64 = 64 << 10;

#[rstest]
#[case::the_first_byte_behind(Placement::Unguarded, PAGES, 256, PAGES as i64)]
#[case::the_last_byte_before(Placement::Unguarded, PAGES, 256, -1)]
#[case::a_small_buffer(Placement::Unguarded, 100, 1, 100)]
#[case::behind_what_its_alignment_leaves(Placement::Unguarded, 100, 256, 256)]
#[case::an_alignment_of_a_page(Placement::Unguarded, PAGES, 4096, PAGES as i64)]
#[case::behind_the_guard_zone(Placement::Separate, PAGES, 256, PAGES as i64 + 256)]
#[case::before_the_guard_zone(Placement::Separate, PAGES - 512, 256, -257)]
fn a_write_outside_an_allocation_of_its_own_faults(
    #[case] placement: Placement,
    #[case] bytes: u64,
    #[case] alignment: u64,
    #[case] offset: i64,
) {
    assert_eq!(end_of_child(placement, bytes, alignment, offset).signal(), Some(SIGSEGV));
}

#[rstest]
#[case::the_bump_hides_the_byte_behind(Placement::Bump, PAGES as i64)]
#[case::the_bump_hides_the_byte_before(Placement::Bump, -1)]
#[case::unguarded_inside(Placement::Unguarded, PAGES as i64 - 1)]
#[case::separate_inside(Placement::Separate, PAGES as i64 - 1)]
fn elsewhere_a_write_does_not_fault(#[case] placement: Placement, #[case] offset: i64) {
    assert!(end_of_child(placement, PAGES, 256, offset).success());
}
