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
    // At a fixed address, nothing has to be relocated: as many pages less are written to before `main`.
    println!("cargo:rustc-link-arg-bins=-no-pie");
    if is("CARGO_CFG_TARGET_ENV", "gnu") {
        // One library less to load. It is part of GCC, as the shared one is.
        println!("cargo:rustc-link-lib=static:-bundle=gcc_eh");
    }
}
