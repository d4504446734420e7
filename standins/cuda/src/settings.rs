//! What a test, or the environment of the process, may set.

use crate::schedule::Mode;
use crate::vmm;
use std::str::FromStr;

/// The environment variable with what every driver of the process begins with: `capability=8.0,driver=12.0,mode=eager`.
pub(crate) const VARIABLE: &str = "CUDA_STANDIN";

/// How many devices there may be.
pub(crate) const MOST_DEVICES: usize = 8;

/// A driver's version as `cuDriverGetVersion` gives it, and the newest PTX instruction set that it compiles.
const INSTRUCTION_SETS: [(i32, (u32, u32)); 12] = [
    (12_000, (8, 0)),
    (12_010, (8, 1)),
    (12_020, (8, 2)),
    (12_030, (8, 3)),
    (12_040, (8, 4)),
    (12_050, (8, 5)),
    (12_060, (8, 5)),
    (12_070, (8, 6)),
    (12_080, (8, 7)),
    (12_090, (8, 8)),
    (13_000, (9, 0)),
    (13_010, (9, 1)),
];

/// What the devices and their driver are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// How many devices a reset leaves.
    pub(crate) devices: usize,
    pub(crate) total_bytes: u64,
    /// Memory that somebody else is said to hold.
    pub(crate) taken_bytes: u64,
    pub(crate) capability: (i32, i32),
    /// 1000 times the major version and 10 times the minor one.
    pub(crate) driver_version: i32,
    pub(crate) mode: Mode,
    /// Whether each launch draws the order of its threads.
    pub(crate) draws_threads: bool,
    /// Whether released addresses are given out again, the last one first.
    pub(crate) reuses_addresses: bool,
    /// Which device's arithmetic this is: 0 for results that are as exact as they can be.
    pub(crate) rounding: u64,
    /// Physical memory is mapped in multiples of this; 0 where the device maps none.
    pub(crate) granularity_bytes: u64,
    /// Whether stream-ordered allocation is supported.
    pub(crate) pools: bool,
    /// Whether `cuMemFree` waits for the device first.
    pub(crate) free_waits: bool,
    /// Whether a copy from pageable memory has read it when the call returns.
    pub(crate) stages_pageable: bool,
}

impl Settings {
    const PLAIN: Self = Self {
        devices: 1,
        total_bytes: 8 << 30,
        taken_bytes: 0,
        capability: (9, 0),
        driver_version: 12_090,
        mode: Mode::Deferred,
        draws_threads: true,
        reuses_addresses: false,
        rounding: 0,
        granularity_bytes: vmm::GRANULARITY_BYTES,
        pools: true,
        free_waits: true,
        stages_pageable: true,
    };

    /// What [`VARIABLE`] asks for.
    ///
    /// # Panics
    ///
    /// When it asks for what there is not: a test with a misspelt setting would pass without it.
    pub(crate) fn of_the_environment() -> Self {
        let text = std::env::var(VARIABLE).unwrap_or_default();
        Self::parse(&text).unwrap_or_else(|why| panic!("{VARIABLE}={text}: {why}"))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut settings = Self::PLAIN;
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').ok_or(format!("`{part}` has no value"))?;
            let unknown = || format!("`{value}` is no value of `{name}`");
            match name {
                "devices" => {
                    let count = number(value).filter(|count| *count <= MOST_DEVICES);
                    settings.devices = count.ok_or_else(unknown)?;
                }
                "capability" => settings.capability = version(value).ok_or_else(unknown)?,
                "driver" => {
                    let (major, minor) = version(value).ok_or_else(unknown)?;
                    settings.driver_version = 1000 * major + 10 * minor;
                    settings.instruction_set().ok_or_else(unknown)?;
                }
                "mode" => {
                    settings.mode = match value {
                        "eager" => Mode::Eager,
                        "deferred" => Mode::Deferred,
                        "endless" => Mode::Endless,
                        "drawn" => Mode::Drawn,
                        _ => return Err(unknown()),
                    }
                }
                "threads" => settings.draws_threads = choice(value, "by-number", "drawn")?,
                "addresses" => settings.reuses_addresses = choice(value, "fresh", "reused")?,
                "rounding" => settings.rounding = number(value).ok_or_else(unknown)?,
                _ => return Err(format!("there is no setting `{name}`")),
            }
        }
        Ok(settings)
    }

    /// The newest PTX that the driver compiles; `None` for a driver that the stand-in does not know.
    pub(crate) fn instruction_set(&self) -> Option<(u32, u32)> {
        let known = INSTRUCTION_SETS.iter().find(|(version, _)| *version == self.driver_version);
        known.map(|(_, set)| *set)
    }
}

/// False for the first of two words, true for the second.
fn choice(value: &str, first: &str, second: &str) -> Result<bool, String> {
    match value {
        value if value == first => Ok(false),
        value if value == second => Ok(true),
        _ => Err(format!("`{value}` is neither `{first}` nor `{second}`")),
    }
}

fn number<T: FromStr>(text: &str) -> Option<T> {
    text.parse().ok()
}

/// `9.0` as 9 and 0.
fn version(text: &str) -> Option<(i32, i32)> {
    let (major, minor) = text.split_once('.')?;
    Some((number(major)?, number(minor)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_sets_what_it_names_and_nothing_else() {
        assert_eq!(Settings::parse(""), Ok(Settings::PLAIN));
        let text = "devices=2,capability=7.5,driver=12.0,mode=eager,threads=by-number,addresses=reused,rounding=3";
        let wanted = Settings {
            devices: 2,
            capability: (7, 5),
            driver_version: 12_000,
            mode: Mode::Eager,
            draws_threads: false,
            reuses_addresses: true,
            rounding: 3,
            ..Settings::PLAIN
        };
        assert_eq!(Settings::parse(text), Ok(wanted));
    }

    #[test]
    fn a_setting_that_does_not_exist_is_refused() {
        let wrong = [
            "capability",
            "capability=9",
            "driver=11.8",
            "mode=fast",
            "threads=random",
            "speed=1",
            "devices=9",
        ];
        for text in wrong {
            assert!(Settings::parse(text).is_err(), "{text}");
        }
    }
}
