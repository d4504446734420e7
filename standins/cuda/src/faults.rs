//! Counting of calls by name, and failing a chosen one.

use crate::abi::Code;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Calls since the last reset.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    by_name: BTreeMap<Cow<'static, str>, u64>,
    in_order: Vec<Cow<'static, str>>,
    plans: Vec<Plan>,
}

/// The order to fail one call in the future.
#[derive(Debug)]
struct Plan {
    /// `None` counts the calls of every name.
    name: Option<String>,
    /// How many matching calls are still to pass; the one after them fails.
    to_pass: u64,
    code: Code,
}

impl Calls {
    /// Notes a call and says whether it has to fail.
    pub(crate) fn note(&mut self, name: impl Into<Cow<'static, str>>) -> Option<Code> {
        let name = name.into();
        *self.by_name.entry(name.clone()).or_default() += 1;
        self.in_order.push(name.clone());
        let mut failed = None;
        self.plans.retain_mut(|plan| {
            let matches = plan.name.as_deref().is_none_or(|wanted| wanted == &*name);
            if !matches {
                return true;
            }
            if plan.to_pass == 0 {
                failed.get_or_insert(plan.code);
                return false;
            }
            plan.to_pass -= 1;
            true
        });
        failed
    }

    /// Fails the `n`-th call from now on (1 is the next one) of this name, or of any name.
    pub(crate) fn fail_nth(&mut self, name: Option<&str>, n: u64, code: u32) {
        self.plans.push(Plan {
            name: name.map(str::to_owned),
            to_pass: n.saturating_sub(1),
            code: Code(code),
        });
    }

    /// Calls of one name, or of all names together.
    pub(crate) fn count(&self, name: Option<&str>) -> u64 {
        match name {
            Some(name) => self.by_name.get(name).copied().unwrap_or(0),
            None => self.in_order.len() as u64,
        }
    }

    /// The names in the order of the calls.
    pub(crate) fn in_order(&self) -> &[Cow<'static, str>] {
        &self.in_order
    }

    /// Plans that have not come due yet.
    pub(crate) fn plan_count(&self) -> u64 {
        self.plans.len() as u64
    }

    /// Drops plans that have not come due.
    pub(crate) fn clear_plans(&mut self) {
        self.plans.clear();
    }

    /// Starts counting again from nothing; plans stay.
    pub(crate) fn clear_counts(&mut self) {
        self.by_name.clear();
        self.in_order.clear();
    }
}
