//! Processes and threads: one after the other, at once in places of their own, at once in one place.

use crate::support::legacy::*;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;

use crate::names;
use crate::rng::Rng;
use crate::support::{Answer, CWD};
use crate::world::{Kind, World};

/// Runs some operations in a process or thread of their own, and waits for it.
pub fn child(world: &mut World) {
    if world.nested > 2 {
        return;
    }
    let operations = world.rng.below(8) + 1;
    let seed = world.rng.next();
    match world.rng.below(5) {
        0 | 1 => {
            let pid = fork(world, SHARED, |world| {
                world.rng = Rng::new(seed);
                world.run(operations);
            });
            wait(world, pid);
        }
        2 => in_thread(world, |world| world.run(operations)),
        3 => in_thread(world, |world| {
            // A working directory of the thread's own.
            let answer = sys!(SYS_unshare, CLONE_FS);
            world.say_of("unshare(CLONE_FS)", answer);
            world.run(operations);
        }),
        _ => {
            // A process image of its own, started as a shell would.
            let me = std::env::current_exe().unwrap();
            let root = world.root.clone();
            let mut command = std::process::Command::new(me);
            command.args(["--part", &seed.to_string(), &operations.to_string()]);
            command.arg(std::ffi::OsStr::from_bytes(&root));
            let status = command.current_dir(std::ffi::OsStr::from_bytes(&root)).status();
            world.say_of("a program", status.map(|_| 0).map_err(|error| error.raw_os_error().unwrap_or(0)));
        }
    }
}

/// What two processes may have in common.
const SHARED: &[c_int] = &[0, 0, CLONE_FS, CLONE_FILES, CLONE_FS | CLONE_FILES];

/// A copy of the world in a process of its own; what it changes is believed nowhere else.
fn fork(world: &mut World, shared: &[c_int], work: impl FnOnce(&mut World)) -> Answer {
    let with = world.rng.pick(shared);
    let answer = sys!(SYS_clone, with | SIGCHLD, 0, 0, 0, 0);
    if answer == Ok(0) {
        let mut world = world.clone();
        world.nested += 1;
        // Two processes must not write to one mapping at once, and descriptors may be shared.
        world.mappings.clear();
        if with & CLONE_FILES != 0 {
            world.descriptors.clear();
        }
        work(&mut world);
        // SAFETY: ends the process without running anything of its parent's.
        unsafe { _exit(0) };
    }
    world.say_of(&format!("fork({with:#x})"), answer);
    answer
}

fn wait(world: &World, pid: Answer) {
    if let Ok(pid) = pid {
        let mut status = 0;
        let _ = sys!(SYS_wait4, pid, &raw mut status, __WALL, 0);
        if status != 0 {
            world.say_of(&format!("a child ended with status {status:#x}"), Ok(0));
        }
    }
}

fn in_thread(world: &mut World, work: impl FnOnce(&mut World) + Send) {
    world.nested += 1;
    let cwd = world.cwd.clone();
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| work(world));
        thread.join().unwrap();
    });
    world.nested -= 1;
    world.cwd = cwd;
}

/// Several at once, each in a directory of its own.
pub fn parallel(world: &mut World) {
    if world.nested > 0 {
        return;
    }
    let mut parts = Vec::new();
    for number in 0..3_u8 {
        let scope = [b'p', b'0' + number].to_vec();
        let path = CString::new(names::join(&world.root, &scope)).unwrap();
        if sys!(SYS_mkdir, path.as_c_str(), 0o755).is_ok() {
            world.model.insert(scope.clone(), Kind::Directory);
        }
        let mut part = world.clone();
        part.rng = Rng::new(world.rng.next());
        part.scope = scope;
        part.nested = 3;
        part.mappings.clear();
        part.descriptors.clear();
        parts.push(part);
    }
    at_once(world, parts, 12);
}

/// Several at once, on the same names.
pub fn race(world: &mut World) {
    let parts = (0..4).map(|_| {
        let mut part = world.clone();
        part.rng = Rng::new(world.rng.next());
        part.racing = true;
        part.nested = 3;
        part
    });
    let parts = parts.collect();
    at_once(world, parts, 25);
}

impl World {
    pub fn race(&mut self) {
        race(self);
    }
}

fn at_once(world: &mut World, mut parts: Vec<World>, operations: u64) {
    if world.rng.chance(50) {
        std::thread::scope(|scope| {
            for part in &mut parts {
                scope.spawn(|| {
                    // Where one thread goes, the others that share its working directory go along.
                    if !part.racing || part.rng.chance(50) {
                        let _ = sys!(SYS_unshare, CLONE_FS);
                    }
                    part.run(operations);
                });
            }
        });
        for part in parts {
            world.model.extend(part.model);
        }
    } else {
        let shared = if parts.iter().any(|part| part.racing) { SHARED } else { &[0] };
        let start = |part: &mut World| fork(part, shared, |part| part.run(operations));
        let children: Vec<Answer> = parts.iter_mut().map(start).collect();
        for child in children {
            wait(world, child);
        }
    }
    // The working directory may have changed under us.
    let root = CString::new(world.root.clone()).unwrap();
    let answer = sys!(SYS_chdir, root.as_c_str());
    world.say_of("chdir to the root", answer);
    world.cwd.clear();
}

/// Executes a file of the tree, in a process of its own.
pub fn execute(world: &mut World) {
    // A copy of one thread of several may hold a lock for good.
    if world.nested > 2 {
        return;
    }
    let path = world.file();
    let spelled = world.spell(&path);
    let answer = sys!(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if answer == Ok(0) {
        let arguments = [spelled.path.as_ptr(), std::ptr::null()];
        let answer = if spelled.dirfd == CWD {
            sys!(SYS_execve, spelled.path.as_c_str(), arguments.as_ptr(), 0)
        } else {
            sys!(SYS_execveat, spelled.dirfd, spelled.path.as_c_str(), arguments.as_ptr(), 0, 0)
        };
        world.say("execve", &spelled, answer);
        // SAFETY: ends the process without running anything of its parent's.
        unsafe { _exit(0) };
    }
    wait(world, answer);
}
