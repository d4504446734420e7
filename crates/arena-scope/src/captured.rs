//! Which kinds of step were captured as a graph, and what their last steps were like.

use std::cell::RefCell;

use arena_core::StepSignature;

use crate::step_key::{KeyMap, StepKey};

/// The kinds of step that were captured, and the signature of the last step of each; `None` where what was
/// captured is stale.
#[derive(Debug, Default)]
pub(crate) struct CapturedKinds(RefCell<KeyMap<Option<StepSignature>>>);

impl CapturedKinds {
    /// A step of this kind was captured.
    pub(crate) fn add(&self, key: StepKey, signature: StepSignature) {
        *self.0.borrow_mut().get_or_insert_with(key, || None) = Some(signature);
    }

    /// A root scope of that kind closed.
    pub(crate) fn note(&self, key: StepKey, signature: StepSignature) {
        if let Some(Some(latest)) = self.0.borrow_mut().get_mut(key) {
            *latest = signature;
        }
    }

    /// Steps of this kind follow another plan from now on: what was captured of them is stale.
    pub(crate) fn forget(&self, key: StepKey) {
        if let Some(latest) = self.0.borrow_mut().get_mut(key) {
            *latest = None;
        }
    }

    /// The signature of the last step of this kind, if a graph of it can still be whole.
    pub(crate) fn latest(&self, key: StepKey) -> Option<StepSignature> {
        self.0.borrow().get(key).copied().flatten()
    }
}
