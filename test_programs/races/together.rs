//! Processes that start each try at the same moment.

use crate::support::legacy::*;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::rng::Rng;
use crate::support::{ok, wait_for};

/// One of the processes of a race.
pub struct Party {
    pub rng: Rng,
    arrived: &'static AtomicU64,
    parties: u64,
    meetings: u64,
    base: Instant,
}

impl Party {
    /// Waits until all parties are here.
    pub fn meet(&mut self) {
        self.meetings += 1;
        self.arrived.fetch_add(1, Ordering::SeqCst);
        while self.arrived.load(Ordering::SeqCst) < self.meetings * self.parties {
            std::thread::yield_now();
        }
    }

    /// Spends as long as one of the parties may be ahead of another, so that many tries meet at every
    /// point of each other's calls.
    pub fn spread(&mut self) {
        let most = self.rng.pick(&[0, 20, 100, 400]);
        let until = Instant::now() + Duration::from_micros(self.rng.below(most + 1));
        while Instant::now() < until {
            std::hint::spin_loop();
        }
    }

    /// Nanoseconds since the start of the race, on one clock for all parties.
    pub fn clock(&self) -> u128 {
        self.base.elapsed().as_nanos()
    }

    /// Makes `call`, and prints what it was with the moments before and after it.
    pub fn timed(&self, what: &str, call: impl FnOnce()) {
        let start = self.clock();
        call();
        // One write(2), so that the lines of several processes do not mix.
        let line = format!("{what} {start} {}\n", self.clock());
        let written = ok(sys!(SYS_write, 1, line.as_ptr(), line.len()));
        assert_eq!(usize::try_from(written), Ok(line.len()));
    }
}

/// Memory that processes share.
fn shared() -> &'static AtomicU64 {
    let (protection, flags) = (PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS);
    // SAFETY: a new mapping, which is never unmapped; it is zero, and aligned to a page.
    unsafe {
        let page = mmap(std::ptr::null_mut(), size_of::<AtomicU64>(), protection, flags, -1, 0);
        assert_ne!(page, MAP_FAILED);
        &*page.cast::<AtomicU64>()
    }
}

/// Runs each of `parties` in a process of its own, which shares something with the others, and waits for all.
pub fn at_once<P: FnOnce(&mut Party)>(shares: c_int, parties: impl ExactSizeIterator<Item = P>) {
    let arrived = shared();
    let (count, base) = (parties.len() as u64, Instant::now());
    let mut children = Vec::new();
    for (number, work) in parties.enumerate() {
        let pid = ok(sys!(SYS_clone, SIGCHLD | shares, 0, 0, 0, 0));
        if pid == 0 {
            let rng = Rng::new(number as u64 + u64::from(std::process::id()));
            work(&mut Party { rng, arrived, parties: count, meetings: 0, base });
            // SAFETY: ends the process without running anything of its parent's.
            unsafe { _exit(0) };
        }
        children.push(pid);
    }
    children.into_iter().for_each(wait_for);
}
