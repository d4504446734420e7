//! Texts and call sites, each held once.

use std::borrow::Cow;
use std::collections::HashMap;
use std::num::NonZeroU32;

/// The number of a text, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NameId(NonZeroU32);

/// The number of a call site, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SiteId(NonZeroU32);

impl NameId {
    /// Its place among the names.
    #[must_use]
    pub fn index(self) -> usize {
        self.0.get() as usize - 1
    }

    fn nth(count: usize) -> Self {
        Self(NonZeroU32::new(count as u32).unwrap_or(NonZeroU32::MAX))
    }
}

impl SiteId {
    /// Its place among the sites.
    #[must_use]
    pub fn index(self) -> usize {
        self.0.get() as usize - 1
    }

    fn nth(count: usize) -> Self {
        Self(NonZeroU32::new(count as u32).unwrap_or(NonZeroU32::MAX))
    }
}

/// A line of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Site {
    /// The file, or the whole site as a text.
    pub(crate) file: NameId,
    /// 0 if the file's name says it all.
    pub(crate) line: u32,
    pub(crate) function: Option<NameId>,
}

/// The texts and sites of a recording.
#[derive(Debug, Clone, Default)]
pub struct Names {
    text: String,
    ends: Vec<usize>,
    sites: Vec<Site>,
}

impl Names {
    /// A text.
    ///
    /// # Panics
    ///
    /// When the number is of another recording.
    #[must_use]
    pub fn get(&self, name: NameId) -> &str {
        let begin = name.index().checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.text[begin..self.ends[name.index()]]
    }

    /// A call site, as people read it: `FILE:LINE` and the function if it is known.
    ///
    /// # Panics
    ///
    /// When the number is of another recording.
    #[must_use]
    pub fn site(&self, site: SiteId) -> String {
        let Site { file, line, function } = self.sites[site.index()];
        let mut text = self.get(file).to_owned();
        if line > 0 {
            text += &format!(":{line}");
        }
        if let Some(function) = function {
            text += &format!(" {}", self.get(function));
        }
        text
    }

    /// The parts of a call site: its file, its line and its function.
    pub(crate) fn parts(&self, site: SiteId) -> (&str, u32, &str) {
        let Site { file, line, function } = self.sites[site.index()];
        (self.get(file), line, function.map_or("", |function| self.get(function)))
    }

    /// How many texts there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// How many call sites there are.
    #[must_use]
    pub fn sites(&self) -> usize {
        self.sites.len()
    }
}

/// Collects names while a file is read.
#[derive(Debug, Default)]
pub(crate) struct Interner<'f> {
    names: Names,
    known: HashMap<Cow<'f, str>, NameId>,
    known_sites: HashMap<Site, SiteId>,
}

impl<'f> Interner<'f> {
    pub(crate) fn name(&mut self, text: Cow<'f, str>) -> NameId {
        let names = &mut self.names;
        *self.known.entry(text).or_insert_with_key(|text| {
            names.text.push_str(text);
            names.ends.push(names.text.len());
            NameId::nth(names.ends.len())
        })
    }

    pub(crate) fn site(&mut self, site: Site) -> SiteId {
        let sites = &mut self.names.sites;
        *self.known_sites.entry(site).or_insert_with(|| {
            sites.push(site);
            SiteId::nth(sites.len())
        })
    }

    /// A site that is one text.
    pub(crate) fn site_of_text(&mut self, text: Cow<'f, str>) -> SiteId {
        let file = self.name(text);
        self.site(Site { file, line: 0, function: None })
    }

    pub(crate) fn finish(self) -> Names {
        self.names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_and_a_site_are_held_once_and_read_back() {
        let mut names = Interner::default();
        let empty = names.name("".into());
        let file = names.name("train.py".into());
        let function = Some(names.name("forward".into()));
        assert_eq!(names.name(Cow::Owned("train.py".to_owned())), file);
        let site = names.site(Site { file, line: 7, function });
        assert_eq!(names.site(Site { file, line: 7, function }), site);
        let text = names.site_of_text("src/lib.rs:1:2".into());
        let names = names.finish();
        assert_eq!((names.get(empty), names.get(file), names.len()), ("", "train.py", 4));
        assert_eq!((names.site(site).as_str(), names.sites()), ("train.py:7 forward", 2));
        assert_eq!(names.site(text), "src/lib.rs:1:2");
    }
}
