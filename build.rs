//! Links the programs for a short start, which each recorded command waits for.

use std::env;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let is = |name: &str, value: &str| {
        env::var(name).is_ok_and(|values| values.split(',').any(|known| known == value))
    };
    if is("CARGO_CFG_TARGET_FEATURE", "crt-static") {
        return;
    }
    // At a fixed address nothing is relocated, which would write to some 90 pages before `main`.
    println!("cargo:rustc-link-arg-bins=-no-pie");
    if is("CARGO_CFG_TARGET_ENV", "gnu") {
        // The unwinder, instead of the shared libgcc_s, which would have to be loaded. Both are part of GCC.
        println!("cargo:rustc-link-lib=static:-bundle=gcc_eh");
    }
}
