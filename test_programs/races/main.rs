//! Several processes that act on one file or directory at the same moment.
//!
//! `--setup RACE TRIES` prepares the working directory, `RACE TRIES` runs the race once for each try, on
//! files and directories that have the number of the try in their names; `tests/races/aimed.rs` records
//! that. `--setup fuzz SEED` and `fuzz SEED` do random things; `tests/races/fuzz.rs` records those.

#[path = "../support.rs"]
#[macro_use]
mod support;
mod aimed;
mod fuzz;
#[allow(dead_code, reason = "the random programs use the rest")]
#[path = "../random/rng.rs"]
mod rng;
mod together;
mod tree;

use std::env;

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse::<usize>().expect("a number");
    let find = |name: &str| aimed::RACES.iter().find(|race| race.name == name).expect("a race");
    match arguments[..] {
        ["--setup", "fuzz", seed] => tree::make(number(seed) as u64),
        ["fuzz", seed] => fuzz::run(number(seed) as u64),
        ["--setup", race, tries] => (0..number(tries)).for_each(find(race).setup),
        [race, tries] => find(race).run(number(tries)),
        _ => panic!("usage: [--setup] RACE TRIES | [--setup] fuzz SEED"),
    }
}
