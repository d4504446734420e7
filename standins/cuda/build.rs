//! Gives the shared library the name under which programs look for the CUDA driver.
//!
//! The file itself must be called something else: cargo puts its output folder on the library path of tests, where a
//! file named `libcuda.so` would shadow a real driver.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so");
    println!("cargo:rerun-if-changed=build.rs");
}
