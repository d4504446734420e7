//! Names in texts.

#![forbid(unsafe_code)]

use std::fmt;

/// A name in a text; an empty one would leave a gap.
pub(crate) struct Named<'a>(pub(crate) &'a str);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { f.write_str("(unnamed)") } else { write!(f, "`{}`", self.0) }
    }
}
