//! Several processes that act on one file or directory at the same moment.
//!
//! `--list` names the races, `--setup RACE TRIES` prepares the working directory, `RACE TRIES` runs the
//! race once for each try, on files and directories that have the number of the try in their names.
//! `tests/races/aimed.rs` records them.

#[path = "../support.rs"]
#[macro_use]
mod support;
mod aimed;
#[allow(dead_code, reason = "the random programs use the rest")]
#[path = "../random/rng.rs"]
mod rng;
mod together;

use std::env;

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse::<usize>().expect("a number");
    let find = |name: &str| aimed::RACES.iter().find(|race| race.name == name).expect("a race");
    match arguments[..] {
        ["--list"] => aimed::RACES.iter().for_each(|race| println!("{}", race.name)),
        ["--setup", race, tries] => (0..number(tries)).for_each(find(race).setup),
        [race, tries] => find(race).run(number(tries)),
        _ => panic!("usage: --list | --setup RACE TRIES | RACE TRIES"),
    }
}
