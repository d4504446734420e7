//! A pickle of protocol 4, of the opcodes that PyTorch's viewer knows.

use std::collections::HashMap;

/// As many items as Python puts into a list at once.
const BATCH: usize = 1000;

/// Collects a pickle. The viewer knows no framed or long opcodes, and numbers of at most 8 bytes.
#[derive(Debug)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
    memo: u32,
    texts: HashMap<String, u32>,
}

impl Writer {
    pub(crate) fn new() -> Self {
        Self { bytes: vec![0x80, 4], memo: 0, texts: HashMap::new() }
    }

    /// Begins a list; its items are written after it.
    pub(crate) fn begin_list(&mut self) {
        self.bytes.extend(b"](");
    }

    /// Goes on with the list after so many items. The viewer takes those of one opcode as arguments of one call, so
    /// there may not be many.
    pub(crate) fn after_item(&mut self, number: usize) {
        if (number + 1).is_multiple_of(BATCH) {
            self.bytes.extend(b"e(");
        }
    }

    pub(crate) fn end_list(&mut self) {
        self.bytes.push(b'e');
    }

    /// Begins a dictionary; its keys and values are written after it, one after the other.
    pub(crate) fn begin_dict(&mut self) {
        self.bytes.extend(b"}(");
    }

    pub(crate) fn end_dict(&mut self) {
        self.bytes.push(b'u');
    }

    /// A text: the first time itself, then its entry in the memo.
    pub(crate) fn text(&mut self, text: &str) {
        if let Some(&entry) = self.texts.get(text) {
            self.get(entry);
            return;
        }
        match u8::try_from(text.len()) {
            Ok(length) => self.bytes.extend([0x8c, length]),
            Err(_) => {
                self.bytes.push(b'X');
                self.bytes.extend((text.len() as u32).to_le_bytes());
            }
        }
        self.bytes.extend(text.as_bytes());
        let entry = self.memoize();
        self.texts.insert(text.to_owned(), entry);
    }

    /// A number below 2^63.
    pub(crate) fn number(&mut self, number: u64) {
        if let Ok(small) = u8::try_from(number) {
            self.bytes.extend([b'K', small]);
        } else if let Ok(medium) = u16::try_from(number) {
            self.bytes.push(b'M');
            self.bytes.extend(medium.to_le_bytes());
        } else {
            self.bytes.extend([0x8a, 8]);
            self.bytes.extend(number.min(i64::MAX as u64).to_le_bytes());
        }
    }

    pub(crate) fn truth(&mut self, truth: bool) {
        self.bytes.push(if truth { 0x88 } else { 0x89 });
    }

    /// A key and its number.
    pub(crate) fn entry(&mut self, key: &str, number: u64) {
        self.text(key);
        self.number(number);
    }

    /// Keeps the last value in the memo.
    pub(crate) fn memoize(&mut self) -> u32 {
        self.bytes.push(0x94);
        self.memo += 1;
        self.memo - 1
    }

    /// A value that the memo has.
    pub(crate) fn get(&mut self, entry: u32) {
        match u8::try_from(entry) {
            Ok(entry) => self.bytes.extend([b'h', entry]),
            Err(_) => {
                self.bytes.push(b'j');
                self.bytes.extend(entry.to_le_bytes());
            }
        }
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.bytes.push(b'.');
        self.bytes
    }
}
