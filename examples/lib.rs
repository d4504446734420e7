//! The examples of Watermark Arena are the files beside this one. Each numbered one can be run with
//! `cargo run -p arena-examples --example 01_scope` and the like; the others need a GPU and the feature
//! `cuda`. This library holds nothing but the tests of the documents' code.

/// The code in `README.md`.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The code in `docs/guide.md`.
#[cfg(doctest)]
#[doc = include_str!("../docs/guide.md")]
struct Guide;

/// The code in `docs/errors.md`.
#[cfg(doctest)]
#[doc = include_str!("../docs/errors.md")]
struct Errors;

/// The code in `docs/regions.md`.
#[cfg(doctest)]
#[doc = include_str!("../docs/regions.md")]
struct Regions;

/// The code in `docs/planning.md`.
#[cfg(doctest)]
#[doc = include_str!("../docs/planning.md")]
struct Planning;

/// The code in `docs/cuda.md`.
#[cfg(all(doctest, feature = "_cuda"))]
#[doc = include_str!("../docs/cuda.md")]
struct CudaPage;
