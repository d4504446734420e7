//! A step as a memory snapshot of PyTorch, so that the viewer which people know shows it.
//!
//! What the viewer wants: a pickle of protocol 2 to 4, numbers of at most 8 bytes, a `device` in each segment, blocks
//! that tile their segment, `free_requested` directly before `free_completed` of the same address, and if there are
//! categories, then also one that is called `unknown`.

use std::collections::HashMap;

use crate::measure::bumped;
use crate::model::{Buffer, Origin, Recording, Source, Step};
use crate::names::{NameId, SiteId};
use crate::pickle::Writer;

/// Where the segment begins. JavaScript knows numbers up to 2^53 exactly.
const BASE: u64 = 0x7f00_0000_0000;

/// Writes a step of a recording as a pickle of protocol 4.
///
/// What lives through the step is one block at the bottom, and on an arena a second one at the top, which is kept. The
/// buffers lie where they lay in an arena or a plan, and else where a bump would put them.
///
/// # Panics
///
/// When the step is not one of the recording.
#[must_use]
pub fn snapshot_of(recording: &Recording, step: usize) -> Vec<u8> {
    let step = &recording.steps[step];
    let layout = Layout::of(recording, step);
    let mut writing = Writing { recording, pickle: Writer::new(), frames: HashMap::new() };
    writing.snapshot(step, &layout);
    writing.pickle.finish()
}

/// Where everything lies, in bytes from the base.
struct Layout {
    offsets: Vec<u64>,
    /// What lives through the step: where it begins, and how large it is.
    through: Vec<(u64, u64)>,
    total_bytes: u64,
    /// Whether the end of the step frees all of its buffers.
    ends_free: bool,
}

impl Layout {
    fn of(recording: &Recording, step: &Step) -> Self {
        let is_placed = matches!(recording.source, Source::Events | Source::Plan);
        let known: Option<Vec<u64>> = step.buffers.iter().map(Buffer::offset_bytes).collect();
        let (mut offsets, mut through) = (Vec::new(), Vec::new());
        let ends_free = recording.source == Source::Events && step.figures.ended;
        let mut total_bytes = 0;
        match (known.filter(|_| is_placed), &recording.region) {
            (Some(known), Some(region)) => {
                offsets = known;
                total_bytes = region.capacity_bytes;
                let floor = step.figures.kept_floor_bytes.unwrap_or(region.capacity_bytes);
                through.push((0, region.mark_bytes));
                through.push((floor, region.capacity_bytes.saturating_sub(floor)));
            }
            (Some(known), None) => offsets = known,
            (None, _) => {
                through.push((0, step.through_bytes));
                // The buffers begin at their alignment again.
                let begin = step.through_bytes.next_multiple_of(1 << 9);
                let above = bumped(&mut step.buffers.iter()).0;
                offsets.extend(above.into_iter().map(|offset| begin + offset));
            }
        }
        through.retain(|(_, bytes)| *bytes > 0);
        let ends =
            step.buffers.iter().zip(&offsets).map(|(buffer, offset)| offset + buffer.bytes());
        let ends = ends.chain(through.iter().map(|(begin, bytes)| begin + bytes));
        total_bytes = ends.fold(total_bytes, u64::max);
        Self { offsets, through, total_bytes, ends_free }
    }
}

struct Writing<'r> {
    recording: &'r Recording,
    pickle: Writer,
    /// The entry of the memo that has the frames of a site in a scope.
    frames: HashMap<(Option<SiteId>, Option<NameId>), u32>,
}

impl Writing<'_> {
    fn snapshot(&mut self, step: &Step, layout: &Layout) {
        self.pickle.begin_dict();
        self.pickle.text("segments");
        self.pickle.begin_list();
        self.segment(step, layout);
        self.pickle.end_list();
        self.pickle.text("device_traces");
        self.pickle.begin_list();
        self.trace(step, layout);
        self.pickle.end_list();
        self.pickle.end_dict();
    }

    fn segment(&mut self, step: &Step, layout: &Layout) {
        // What is alive at the end, by its place.
        let is_alive =
            |buffer: &Buffer| buffer.dropped().is_none() && !layout.ends_free && buffer.bytes() > 0;
        let buffers =
            step.buffers.iter().zip(&layout.offsets).filter(|(buffer, _)| is_alive(buffer));
        let mut blocks: Vec<(u64, u64, Option<&Buffer>)> =
            buffers.map(|(buffer, &offset)| (offset, buffer.bytes(), Some(buffer))).collect();
        blocks.extend(layout.through.iter().map(|&(offset, bytes)| (offset, bytes, None)));
        blocks.sort_by_key(|&(offset, ..)| offset);
        let active: u64 = blocks.iter().map(|(_, bytes, _)| bytes).sum();

        self.pickle.begin_dict();
        self.pickle.entry("device", 0);
        self.pickle.entry("address", BASE);
        self.pickle.entry("total_size", layout.total_bytes);
        for key in ["allocated_size", "active_size", "requested_size"] {
            self.pickle.entry(key, active);
        }
        self.pickle.entry("stream", 0);
        self.pickle.text("segment_type");
        self.pickle.text("large");
        self.pickle.text("is_expandable");
        self.pickle.truth(false);
        self.pickle.text("frames");
        self.frames_of(None);
        self.pickle.text("blocks");
        // Filled up with what is free, so that they tile the segment.
        let mut tiles = Vec::with_capacity(2 * blocks.len() + 1);
        let mut end = 0;
        for (offset, bytes, buffer) in blocks {
            if offset > end {
                tiles.push((end, offset - end, None, false));
            }
            tiles.push((offset, bytes, buffer, true));
            end = offset + bytes;
        }
        if layout.total_bytes > end {
            tiles.push((end, layout.total_bytes - end, None, false));
        }
        self.pickle.begin_list();
        for (number, (offset, bytes, buffer, is_active)) in tiles.into_iter().enumerate() {
            self.pickle.begin_dict();
            self.pickle.entry("address", BASE + offset);
            self.pickle.entry("size", bytes);
            self.pickle.entry("requested_size", if is_active { bytes } else { 0 });
            self.pickle.text("state");
            self.pickle.text(if is_active { "active_allocated" } else { "inactive" });
            self.pickle.text("frames");
            self.frames_of(buffer);
            self.pickle.end_dict();
            self.pickle.after_item(number);
        }
        self.pickle.end_list();
        self.pickle.end_dict();
    }

    /// The entries of the only device, in the order of the step's moments.
    fn trace(&mut self, step: &Step, layout: &Layout) {
        let mut events: Vec<(u32, bool, usize)> = Vec::with_capacity(2 * step.buffers.len());
        // Without bytes a buffer has no address of its own.
        for (place, buffer) in
            step.buffers.iter().enumerate().filter(|(_, buffer)| buffer.bytes() > 0)
        {
            if buffer.origin() == Origin::Step {
                events.push((buffer.birth(), true, place));
            }
            match buffer.dropped() {
                Some(moment) => events.push((moment, false, place)),
                None if layout.ends_free => events.push((step.moments, false, place)),
                None => {}
            }
        }
        // At one moment what dies goes first: its bytes may be used again.
        events.sort_by_key(|&(moment, is_birth, place)| (moment, is_birth, place));
        self.pickle.begin_list();
        // Has the category without which the viewer fails.
        self.entry("segment_alloc", (BASE, layout.total_bytes), 0, None);
        let mut number = 1;
        for (moment, is_birth, place) in events {
            let (buffer, offset) = (&step.buffers[place], layout.offsets[place]);
            let at = (BASE + offset, buffer.bytes());
            let actions =
                if is_birth { &["alloc"][..] } else { &["free_requested", "free_completed"] };
            for action in actions {
                self.pickle.after_item(number - 1);
                self.entry(action, at, moment, Some(buffer));
                number += 1;
            }
        }
        self.pickle.end_list();
    }

    fn entry(
        &mut self,
        action: &str,
        (address, bytes): (u64, u64),
        moment: u32,
        buffer: Option<&Buffer>,
    ) {
        self.pickle.begin_dict();
        self.pickle.text("action");
        self.pickle.text(action);
        self.pickle.entry("addr", address);
        self.pickle.entry("size", bytes);
        self.pickle.entry("stream", 0);
        self.pickle.entry("time_us", u64::from(moment));
        self.pickle.text("frames");
        self.frames_of(buffer);
        let recording = self.recording;
        if action == "segment_alloc" || action == "alloc" {
            let scope = buffer.and_then(|buffer| buffer.scope());
            self.pickle.text("category");
            self.pickle.text(scope.map_or("unknown", |scope| recording.names.get(scope)));
        }
        if let Some(tag) = buffer.and_then(|buffer| buffer.tag()) {
            self.pickle.text("user_metadata");
            self.pickle.text(recording.names.get(tag));
        }
        self.pickle.end_dict();
    }

    /// The frames of a buffer: the line that requested it, and around it its scopes.
    fn frames_of(&mut self, buffer: Option<&Buffer>) {
        let key = buffer.map_or((None, None), |buffer| (buffer.site(), buffer.scope()));
        if let Some(&entry) = self.frames.get(&key) {
            self.pickle.get(entry);
            return;
        }
        let names = &self.recording.names;
        let (site, scope) = key;
        self.pickle.begin_list();
        if let Some(site) = site {
            let (file, line, function) = names.parts(site);
            let (file, line) = if line > 0 { (file, line) } else { file_and_line(file) };
            self.frame(file, line, function);
        }
        for scope in
            scope.map_or("", |scope| names.get(scope)).rsplit('/').filter(|name| !name.is_empty())
        {
            self.frame("scope", 0, scope);
        }
        self.pickle.end_list();
        let entry = self.pickle.memoize();
        self.frames.insert(key, entry);
    }

    fn frame(&mut self, file: &str, line: u32, name: &str) {
        self.pickle.begin_dict();
        self.pickle.text("filename");
        self.pickle.text(file);
        self.pickle.entry("line", u64::from(line));
        self.pickle.text("name");
        self.pickle.text(name);
        self.pickle.end_dict();
    }
}

/// A site of an arena: `FILE:LINE:COLUMN`.
fn file_and_line(site: &str) -> (&str, u32) {
    let mut parts = site.rsplitn(3, ':');
    let (_, line, file) = (parts.next(), parts.next(), parts.next());
    let line = line.and_then(|line| line.parse().ok());
    file.zip(line).unwrap_or((site, 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Told;
    use crate::names::Interner;
    use crate::pickle::{Pickle, Value};

    fn number(pickle: &Pickle<'_>, dict: Value, key: &str) -> u64 {
        pickle.unsigned(pickle.get(dict, key).unwrap()).unwrap()
    }

    fn text<'f>(pickle: &Pickle<'f>, dict: Value, key: &str) -> &'f str {
        std::str::from_utf8(pickle.text(pickle.get(dict, key).unwrap()).unwrap()).unwrap()
    }

    /// Fifteen hundred buffers, of which every third outlives the step.
    fn recording() -> Recording {
        let mut names = Interner::default();
        let scope = Some(names.name("train/block".into()));
        let buffers = (0..1500_u32).map(|number| {
            let dropped = (!number.is_multiple_of(3)).then_some(number + 1);
            Buffer::new(number, u64::from(number % 7)).dropped_at(dropped).within(scope)
        });
        let mut step = Step::new("step".to_owned(), Told::ByFile, 1501, buffers.collect());
        step.through_bytes = 1000;
        let source = Source::Trace;
        Recording { source, names: names.finish(), region: None, steps: vec![step], lost_steps: 0 }
    }

    #[test]
    fn what_the_viewer_wants_holds() {
        let file = snapshot_of(&recording(), 0);
        assert_eq!(file[..2], [0x80, 4]);
        let pickle = Pickle::read(&file).unwrap();
        let segments = pickle.get(pickle.root(), "segments").unwrap();
        for segment in pickle.list(segments).unwrap() {
            assert_eq!(number(&pickle, segment, "device"), 0);
            let mut end = number(&pickle, segment, "address");
            for block in pickle.list(pickle.get(segment, "blocks").unwrap()).unwrap() {
                assert_eq!(number(&pickle, block, "address"), end);
                end += number(&pickle, block, "size");
            }
            let total = number(&pickle, segment, "total_size");
            assert_eq!(end, number(&pickle, segment, "address") + total);
        }
        let traces = pickle.get(pickle.root(), "device_traces").unwrap();
        let trace = pickle.list(traces).unwrap().next().unwrap();
        let entries: Vec<_> = pickle.list(trace).unwrap().collect();
        let is = |entry: Value, action: &str| text(&pickle, entry, "action") == action;
        for pair in entries.windows(2).filter(|pair| is(pair[0], "free_requested")) {
            let address = |entry| number(&pickle, entry, "addr");
            assert!(is(pair[1], "free_completed") && address(pair[0]) == address(pair[1]));
        }
        let category = |entry: &Value| Some(pickle.text(pickle.get(*entry, "category")?)?.to_vec());
        let categories: Vec<_> = entries.iter().filter_map(category).collect();
        assert!(
            categories.contains(&b"unknown".to_vec())
                && categories.contains(&b"train/block".to_vec())
        );
    }

    /// The viewer gives the items of one opcode to one call.
    #[test]
    fn no_opcode_fills_a_list_with_more_than_a_thousand_items() {
        let file = snapshot_of(&recording(), 0);
        assert!(Pickle::read(&file).unwrap().largest_chunk() <= 1000);
    }
}
