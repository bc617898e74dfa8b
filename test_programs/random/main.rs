//! A random program of filesystem calls, made by a seed.
//!
//! `--setup SEED` makes a tree in the working directory; `SEED` runs the program in it, and prints each
//! call to stderr. What it does follows from the seed alone, as far as threads and processes that run
//! at once let it: it knows the tree from the seed and from its own calls, and reads nothing else, so
//! that the first syscall on a path is the one that matters. `SEED race` lets several of them
//! use the same names at once. `tests/truth/random.rs` compares the tree with what was recorded.

#[path = "../support.rs"]
#[macro_use]
mod support;
mod calls;
mod descriptors;
mod names;
mod plan;
mod rng;
mod together;
mod world;

use std::env;
use std::os::unix::ffi::OsStrExt as _;

use rng::Rng;
use world::World;

/// How many operations a program has.
const OPERATIONS: u64 = 60;

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse::<u64>().expect("a seed is a number");
    let root = env::current_dir().unwrap().as_os_str().as_bytes().to_vec();
    match arguments[..] {
        ["--setup", seed] => plan::make(number(seed)),
        // What `together.rs` executes: a part of a program in a process image of its own.
        ["--part", seed, operations, root] => {
            let mut world = World::new(Rng::new(number(seed)), root.as_bytes().to_vec());
            for path in [&b"a"[..], b"b", b"a/c", b"b/d"] {
                world.model.insert(path.to_vec(), world::Kind::Directory);
            }
            world.cwd.clear();
            world.run(number(operations));
        }
        [seed] => {
            let mut world = World::new(Rng::new(number(seed)), root);
            world.model = plan::model(number(seed));
            let operations = world.rng.below(OPERATIONS) + 10;
            world.run(operations);
            world.write_mappings();
        }
        [seed, "race"] => {
            let mut world = World::new(Rng::new(number(seed)), root);
            world.model = plan::model(number(seed));
            world.race();
        }
        _ => panic!("usage: --setup SEED | SEED [race]"),
    }
}
