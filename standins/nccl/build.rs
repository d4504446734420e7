//! Gives the shared library the name under which programs look for NCCL; the file itself is called otherwise, so that it
//! never shadows the real one on a test's library path.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnccl.so");
    println!("cargo:rerun-if-changed=build.rs");
}
