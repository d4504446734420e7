//! Gives the shared library the name under which programs look for cuBLAS; the file itself is called otherwise, so that
//! it never shadows the real one on a test's library path.

fn main() {
    // Not `rustc-cdylib-link-arg`: cargo hands that on to the libraries that are made of this one.
    println!("cargo:rustc-link-arg=-Wl,-soname,libcublas.so");
    println!("cargo:rerun-if-changed=build.rs");
}
