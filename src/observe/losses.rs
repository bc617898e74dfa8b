//! Tells the user at once which bytes are lost, or which calls are refused so that none are; and which program
//! loses its privilege.
//!
//! The first few by their path, then how many more, at most once a second: with the next one, and at the
//! end. What the manifest says of it is in `warnings.rs`.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::snapshot::{BlobOmitted, printable};
use crate::sync::lock;

/// How many are named.
const NAMED: u32 = 3;
/// The time between two counts.
const INTERVAL: Duration = Duration::from_secs(1);

/// Passes a message to the user, without waiting; whether it was passed.
pub type Say = Box<dyn Fn(&str) -> bool + Send + Sync>;

/// What was lost and refused so far.
pub struct Losses {
    say: Say,
    lost: Mutex<Told>,
    refused: Mutex<Told>,
    /// Where the programs are listed that run unrecorded, if a shell records.
    config: Option<String>,
    privilege: AtomicBool,
}

#[derive(Debug, Default)]
struct Told {
    named: u32,
    /// How many were not told.
    more: u64,
    last: Option<Instant>,
}

impl Losses {
    /// Nothing so far; what comes is passed to `say`. In `config` a user can list programs that run unrecorded.
    pub fn new(say: Say, config: Option<String>) -> Losses {
        Losses {
            say,
            lost: Mutex::default(),
            refused: Mutex::default(),
            config,
            privilege: AtomicBool::default(),
        }
    }

    /// A program runs without the privilege of its set-ID bit; told of the first one.
    pub fn privilege(&self, path: &[u8]) {
        if self.privilege.swap(true, Ordering::Relaxed) {
            return;
        }
        let program = printable(path);
        let name = program.rsplit('/').next().unwrap_or_default();
        let way_out = match &self.config {
            Some(config) => format!(
                "; to run it unrecorded, add unrecorded = [\"{name}\"] to [shell] in {config}, or set \
                 AGENT_SNAPSHOT=off"
            ),
            None => String::new(),
        };
        (self.say)(&format!("{program} has lost its set-ID privilege because it is recorded{way_out}"));
    }

    /// A call went on and may have destroyed the bytes of a file, which are not kept.
    pub fn lost(&self, path: &[u8], reason: BlobOmitted) {
        let named = || format!("the old bytes of {} are lost: {}", printable(path), why(reason));
        self.tell(&self.lost, named, count_lost);
    }

    /// A call was refused, since the bytes of a file can't be kept.
    pub fn refused(&self, call: &str, path: &[u8], reason: BlobOmitted) {
        let named = || {
            let path = printable(path);
            format!("{call} of {path} was refused, since its bytes can't be kept: {}; {PERMIT}", why(reason))
        };
        self.tell(&self.refused, named, count_refused);
    }

    /// Tells what was not told yet.
    pub fn finish(&self) {
        for (told, count) in [(&self.lost, count_lost as fn(u64) -> String), (&self.refused, count_refused)] {
            let more = std::mem::take(&mut lock(told).more);
            if more > 0 {
                (self.say)(&count(more));
            }
        }
    }

    fn tell(&self, told: &Mutex<Told>, named: impl FnOnce() -> String, count: fn(u64) -> String) {
        let mut told = lock(told);
        told.more += 1;
        let (message, tells) = if told.named < NAMED {
            told.named += 1;
            (named(), 1)
        } else if told.last.is_none_or(|last| last.elapsed() >= INTERVAL) {
            (count(told.more), told.more)
        } else {
            return;
        };
        told.last = Some(Instant::now());
        if (self.say)(&message) {
            told.more -= tells;
        }
    }
}

/// What to do about a refusal.
const PERMIT: &str = "to lose them instead, record with --on-loss warn";

fn count_lost(count: u64) -> String {
    let files = if count == 1 { "file" } else { "files" };
    format!("the old bytes of {count} more {files} are lost")
}

fn count_refused(count: u64) -> String {
    let (calls, were) = if count == 1 { ("call", "was") } else { ("calls", "were") };
    format!("{count} more {calls} {were} refused, since bytes can't be kept; {PERMIT}")
}

fn why(reason: BlobOmitted) -> &'static str {
    match reason {
        BlobOmitted::NoSpace => "there is no space for them",
        BlobOmitted::Unreadable => "they can't be read",
        BlobOmitted::TooLarge => "the file is larger than --max-blob-bytes",
        BlobOmitted::ChangedWhileReading => "the file changed while it was read",
        BlobOmitted::Withheld => "they are withheld",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    type Said = Arc<Mutex<Vec<String>>>;

    fn losses() -> (Losses, Said) {
        let said = Said::default();
        let into = Arc::clone(&said);
        let say = move |message: &str| {
            into.lock().unwrap().push(message.to_owned());
            true
        };
        (Losses::new(Box::new(say), None), said)
    }

    #[test]
    fn three_are_named_and_the_rest_is_counted() {
        let (losses, said) = losses();
        for number in 0..5 {
            losses.lost(format!("/f{number}").as_bytes(), BlobOmitted::NoSpace);
        }
        losses.refused("unlinkat", b"/g", BlobOmitted::Unreadable);
        losses.finish();
        let lost = |name: &str| format!("the old bytes of /{name} are lost: there is no space for them");
        let said = said.lock().unwrap();
        assert_eq!(said[..3], [lost("f0"), lost("f1"), lost("f2")]);
        assert_eq!(
            said[3],
            "unlinkat of /g was refused, since its bytes can't be kept: they can't be read; to lose them \
             instead, record with --on-loss warn"
        );
        assert_eq!(said[4..], ["the old bytes of 2 more files are lost"]);
    }

    #[test]
    fn what_was_not_passed_on_is_counted_later() {
        let said = Said::default();
        let into = Arc::clone(&said);
        let say: Say = Box::new(move |message| {
            into.lock().unwrap().push(message.to_owned());
            !message.contains("/a")
        });
        let losses = Losses::new(say, None);
        losses.lost(b"/a", BlobOmitted::NoSpace);
        losses.lost(b"/b", BlobOmitted::NoSpace);
        losses.finish();
        assert_eq!(said.lock().unwrap().last().unwrap(), "the old bytes of 1 more file are lost");
    }

    #[test]
    fn a_count_comes_with_the_next_one_after_a_second() {
        let (losses, said) = losses();
        for _ in 0..5 {
            losses.lost(b"/a", BlobOmitted::NoSpace);
        }
        losses.lost.lock().unwrap().last = Instant::now().checked_sub(INTERVAL);
        losses.lost(b"/b", BlobOmitted::NoSpace);
        assert_eq!(said.lock().unwrap().last().unwrap(), "the old bytes of 3 more files are lost");
    }
}
