//! Where earlier drops would save: the lines are named, and the bytes come true when the drops are written.

use arena_plan::{Advice, DropAdvice, KindAdvice, Options, PlannedRun};
use arena_scope::{Arena, ByteSize, Device, Error, Host, Scope, Transient, View, ViewMut};
use rstest::rstest;

const SOURCE: &str = include_str!("advice.rs");

/// The number of the only line with this text.
fn line(text: &str) -> u32 {
    // The text itself stands in the line that asks.
    let asks = |line: &str| line.contains(&format!("\"{text}"));
    let mut lines = SOURCE.lines().zip(1..).filter(|(line, _)| line.contains(text) && !asks(line));
    let (_, number) = lines.next().expect("there is such a line");
    assert!(lines.next().is_none(), "{text} stands in several lines");
    number
}

/// A kernel: what it computes does not matter.
fn apply<D: Device>(from: View<'_, f32, D>, mut to: ViewMut<'_, f32, D>) -> Result<(), Error> {
    let len = from.len().min(to.len());
    to.reborrow().range(..len)?.copy_from(from.range(..len)?)
}

/// Ordinary Rust: each intermediate is a local, and lives to the end of the function. `drops` of the drops that
/// the advice gives are written.
fn network<'s, D: Device>(
    step: &Scope<'s, '_, D>,
    pixels: View<'_, f32, D>,
    drops: usize,
) -> Result<Transient<'s, f32, D>, Error> {
    let mut normalised = step.alloc::<f32>(4096)?;
    apply(pixels, normalised.view_mut())?;
    let mut edges = step.alloc::<f32>(8192)?;
    apply(normalised.view(), edges.view_mut())?;
    let normalised = (drops < 3).then_some(normalised);
    let mut corners = step.alloc::<f32>(6144)?;
    apply(edges.view(), corners.view_mut())?;
    let edges = (drops < 1).then_some(edges);
    let mut features = step.alloc::<f32>(2048)?;
    apply(corners.view(), features.view_mut())?;
    let corners = (drops < 2).then_some(corners);
    let mut logits = step.alloc::<f32>(64)?;
    let mut workspace = step.alloc::<f32>(16_384)?;
    apply(features.view(), workspace.view_mut())?;
    apply(workspace.view(), logits.view_mut())?;
    drop((normalised, edges, corners)); // Here a local dies.
    Ok(logits)
}

fn one_run<D: Device>(arena: &mut Arena<D>, drops: usize) -> Result<(), Error> {
    let pixels = arena.persistent_zeroed::<f32>(1024)?;
    arena.scope_named("train", |step| {
        let logits = network(step, pixels.view(), drops)?;
        let mut loss = step.alloc::<f32>(1)?;
        apply(logits.view(), loss.view_mut())
    })
}

fn probed(drops: usize) -> Result<PlannedRun, Error> {
    PlannedRun::probe(&Host::new(), &Options::default(), |arena| one_run(arena, drops))
}

fn only(advice: Advice) -> KindAdvice {
    let mut kinds = advice.kinds;
    assert_eq!(kinds.len(), 1);
    kinds.remove(0)
}

fn lines(drop: &DropAdvice) -> (u32, Option<u32>) {
    (drop.requested_at.line(), drop.last_used_at.map(|site| site.line()))
}

#[rstest]
fn the_dead_locals_of_a_function_are_named_by_their_lines(
    #[values(false, true)] on_the_host: bool,
) -> Result<(), Error> {
    let run = if on_the_host {
        let mut arena = Arena::builder(Host::new()).capacity(ByteSize::mib(1)).build()?;
        arena.record(None);
        one_run(&mut arena, 0)?;
        PlannedRun::from_record(&arena, &Options::default())
    } else {
        probed(0)?
    };
    let advice = only(run.advice());
    assert_eq!(advice.key, "train".into());
    let expected = [
        ("let mut edges =", "apply(edges.view(), corners"),
        ("let mut corners =", "apply(corners.view(), features"),
        ("let mut normalised =", "apply(normalised.view(), edges"),
    ];
    let expected = expected.map(|(requested, used)| (line(requested), Some(line(used))));
    assert_eq!(advice.drops.iter().map(lines).collect::<Vec<_>>(), expected, "{advice}");
    let alive_at = line("apply(workspace.view(), logits");
    assert!(advice.drops.iter().all(|drop| drop.alive_at.line() == alive_at), "{advice}");
    assert!(advice.drops.iter().all(|drop| drop.requested_at.file().ends_with("advice.rs")));
    Ok(())
}

#[test]
fn the_bytes_come_true_as_the_drops_are_written_one_after_another() -> Result<(), Error> {
    let before = probed(0)?;
    let advice = only(before.advice());
    let mut expected = advice.planned_bytes;
    for (written, drop) in advice.drops.iter().enumerate() {
        assert!(drop.saves_bytes > 0);
        expected -= drop.saves_bytes;
        let after = probed(written + 1)?;
        let planned = after.kinds()[0].step.as_ref().unwrap().plan.peak_bytes();
        assert_eq!(planned, expected, "with {} drops\n{advice}", written + 1);
        let saved = before.capacity().bytes() - after.capacity().bytes();
        assert_eq!(saved, advice.planned_bytes - expected);
        one_run(&mut after.build(Host::new())?, written + 1)?;
    }
    assert_eq!(expected, advice.by_last_use_bytes);
    let after = only(probed(3)?.advice());
    assert_eq!((after.planned_bytes, after.drops), (advice.by_last_use_bytes, Vec::new()));
    Ok(())
}

#[test]
fn it_is_printed_with_what_each_drop_saves() -> Result<(), Error> {
    let (file, alive) = (file!(), line("apply(workspace.view(), logits"));
    let told = probed(0)?.advice().to_string();
    let drop = |requested: &str, used: &str, saves: &str| {
        let (requested, used) = (line(requested), line(used));
        format!(
            "  {file}:{requested}: last used at :{used}, still alive at :{alive}; \
             dropping after :{used} saves {saves}\n"
        )
    };
    let expected = [
        "`train` (0): planned 147712 bytes, 73984 if each buffer were dropped after its last use\n",
        &drop("let mut edges =", "apply(edges.view(), corners", "32768 bytes (32.00 KiB)"),
        &drop("let mut corners =", "apply(corners.view(), features", "24576 bytes (24.00 KiB)"),
        &drop("let mut normalised =", "apply(normalised.view(), edges", "16384 bytes (16.00 KiB)"),
    ];
    assert_eq!(told, expected.concat());
    let told = probed(3)?.advice().to_string();
    assert_eq!(told, "`train` (0): planned 73984 bytes, and no earlier drop saves a byte\n");
    Ok(())
}

fn advice_on(
    step: impl Fn(&mut Scope<'_, '_, arena_scope::Probe>) -> Result<(), Error>,
) -> Result<KindAdvice, Error> {
    let run = PlannedRun::probe(&Host::new(), &Options::default(), |arena| {
        arena.scope_named("step", |scope| step(scope))
    })?;
    Ok(only(run.advice()))
}

#[test]
fn a_buffer_that_is_never_used_is_named_so() -> Result<(), Error> {
    let advice = advice_on(|step| {
        let _scratch = step.alloc_zeroed::<u8>(1000)?;
        let x = step.alloc::<u8>(4096)?;
        let _ = x.view();
        Ok(())
    })?;
    let [drop] = advice.drops[..] else { panic!("{advice}") };
    assert_eq!(lines(&drop), (line("step.alloc_zeroed::<u8>(1000)"), None));
    assert_eq!(drop.saves_bytes, 1024);
    assert!(advice.to_string().contains(": never used, still alive at :"), "{advice}");
    Ok(())
}

#[test]
fn buffers_of_one_line_are_told_of_once() -> Result<(), Error> {
    let advice = advice_on(|step| {
        let mut layers = Vec::new();
        for _ in 0..24 {
            let mut layer = step.alloc::<u8>(256)?;
            layer.view_mut().zero()?;
            layers.push(layer);
        }
        Ok(())
    })?;
    let [drop] = advice.drops[..] else { panic!("{advice}") };
    assert_eq!((drop.buffers, drop.saves_bytes), (24, 23 * 256));
    Ok(())
}

#[test]
fn a_view_that_is_kept_counts_when_it_is_used() -> Result<(), Error> {
    let advice = advice_on(|step| {
        let x = step.alloc::<u8>(256)?;
        let kept = x.view();
        let y = step.alloc::<u8>(256)?;
        kept.mark_used(); // what a kernel does on the probe
        y.view().mark_used();
        Ok(())
    })?;
    assert_eq!((advice.planned_bytes, advice.by_last_use_bytes), (512, 512));
    assert_eq!(advice.drops, []);
    Ok(())
}

// Each of two moments is held up by another buffer.
#[test]
fn a_drop_that_saves_nothing_alone_is_told_with_the_one_that_it_needs() -> Result<(), Error> {
    let advice = advice_on(|step| {
        for _ in 0..2 {
            step.scope(|inner| {
                let _dead = inner.alloc::<u8>(1024)?;
                let x = inner.alloc::<u8>(4096)?;
                let _ = x.view();
                arena_scope::Ok(())
            })?;
            step.scope(|inner| {
                let _gone = inner.alloc::<u8>(1024)?;
                let x = inner.alloc::<u8>(4096)?;
                let _ = x.view();
                arena_scope::Ok(())
            })?;
        }
        Ok(())
    })?;
    let saved: Vec<_> = advice.drops.iter().map(|drop| (drop.buffers, drop.saves_bytes)).collect();
    assert_eq!(saved, [(2, 0), (2, 1024)]);
    assert!(advice.to_string().contains("lets the next ones save more"), "{advice}");
    Ok(())
}

#[test]
fn ten_drops_are_told_of_at_most_and_the_largest_come_first() -> Result<(), Error> {
    let advice = advice_on(|step| {
        let dead = (
            step.alloc::<u8>(256)?,
            step.alloc::<u8>(256)?,
            step.alloc::<u8>(512)?,
            step.alloc::<u8>(512)?,
            step.alloc::<u8>(512)?,
            step.alloc::<u8>(512)?,
            step.alloc::<u8>(512)?,
            step.alloc::<u8>(512)?,
            step.alloc::<u8>(512)?,
            step.alloc::<u8>(512)?,
            step.alloc::<u8>(1024)?,
            step.alloc::<u8>(256)?,
        );
        drop(step.alloc::<u8>(8192)?);
        drop(dead);
        Ok(())
    })?;
    let saved: Vec<_> = advice.drops.iter().map(|drop| drop.saves_bytes).collect();
    assert_eq!(saved, [1024, 512, 512, 512, 512, 512, 512, 512, 512, 256]);
    assert_eq!(advice.by_last_use_bytes, 8192);
    Ok(())
}
