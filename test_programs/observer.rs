//! Traces a command with an observer of its own, which answers as the tests want it: `RULE MECHANISM
//! COMMAND...`. Prints what was reported to it.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use agent_snapshot::trace::attributes::ProcessAttributes;
use agent_snapshot::trace::filter::Interception;
use agent_snapshot::trace::launch::{self, InterceptionOptions, Program};
use agent_snapshot::trace::notifications;
use agent_snapshot::trace::observer::{Caller, Decision, Observer, SyscallEntry};
use agent_snapshot::trace::shared::Shared;
use agent_snapshot::trace::sys::{self, Interrupter, Tid};
use agent_snapshot::trace::syscalls::FileRef;
use agent_snapshot::trace::tracer::Tracer;
use agent_snapshot::trace::wait_status::End;

/// What happens to a call whose path ends in `second`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// It is postponed as long as it may be.
    Forever,
    /// It is postponed three times.
    Thrice,
    /// It is postponed until a call on `first` is over.
    AfterFirst,
    /// It is postponed, and its thread is killed when it is judged again.
    Killed,
    /// The observer panics when it is asked.
    PanicBefore,
    /// The observer panics when the result is reported.
    PanicAfter,
    /// The observer panics at every call of its methods.
    PanicAlways,
}

#[derive(Default)]
struct Seen {
    /// How often each call was judged.
    judged: BTreeMap<String, u32>,
    over: Vec<String>,
    overdue: bool,
    killed: u32,
    started: u32,
    ended: u32,
    failed: bool,
    signals: Vec<i32>,
}

struct Scripted {
    rule: Rule,
    seen: Mutex<Seen>,
}

impl Scripted {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        assert!(self.rule != Rule::PanicAlways, "a bug");
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The last component of a call's only path, if it is one of those that the rules are about.
fn subject(call: &SyscallEntry<'_>) -> Option<String> {
    let Some(FileRef::Path { path, .. }) = call.decoded.accesses.first().map(|access| &access.file) else {
        return None;
    };
    let name = String::from_utf8_lossy(path.rsplit(|byte| *byte == b'/').next()?).into_owned();
    matches!(name.as_str(), "first" | "second").then(|| format!("{} {name}", call.name))
}

impl Observer for Scripted {
    type Pending = String;

    fn on_entry(&self, caller: Caller, call: &SyscallEntry<'_>) -> Decision<String> {
        let Some(subject) = subject(call) else { return Decision::Continue };
        let mut seen = self.seen();
        let judged = seen.judged.entry(subject.clone()).or_default();
        *judged += 1;
        let judged = *judged;
        let postponed = subject.ends_with("second")
            && match self.rule {
                Rule::Forever => true,
                Rule::Thrice => judged <= 3,
                Rule::AfterFirst => !seen.over.iter().any(|over| over.ends_with("first")),
                Rule::Killed => {
                    if judged == 2 {
                        seen.killed += 1;
                        sys::kill(caller.tgid, libc::SIGKILL).unwrap();
                    }
                    true
                }
                Rule::PanicBefore => panic!("a bug"),
                Rule::PanicAfter | Rule::PanicAlways => false,
            };
        if postponed && call.overdue {
            seen.overdue = true;
        } else if postponed {
            return Decision::Postpone;
        }
        Decision::AwaitResult(subject)
    }

    fn on_result(&self, _: Caller, pending: String, result: Option<i64>) {
        assert!(self.rule != Rule::PanicAfter, "a bug");
        let result = result.map_or("none".to_owned(), |result| result.to_string());
        self.seen().over.push(format!("{result} {pending}"));
    }

    fn ended(&self, _: Tid, _: End) {
        self.seen().ended += 1;
    }

    fn failed(&self, bug: &str) {
        assert_eq!(bug, "a bug");
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).failed = true;
    }

    fn unreadable(&self, _: Caller, _: &'static str) {
        drop(self.seen());
    }

    fn signal(&self, _: Caller, signal: i32) {
        self.seen().signals.push(signal);
    }

    fn executed(&self, _: Caller, _: Option<String>) {
        drop(self.seen());
    }

    fn started(&self, _: Tid, _: Tid) {
        self.seen().started += 1;
    }

    fn share_working_directory(&self, _: Tid, _: Tid) {}
    fn shares_memory(&self, _: Tid, _: bool) {
        drop(self.seen());
    }

    fn stopped(&self, _: Tid, _: i32) {
        drop(self.seen());
    }

    fn continued(&self, _: Tid) {
        drop(self.seen());
    }

    fn gap(&self, what: &str) {
        panic!("{what}");
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let rule = match arguments.next().unwrap().as_str() {
        "forever" => Rule::Forever,
        "thrice" => Rule::Thrice,
        "after-first" => Rule::AfterFirst,
        "killed" => Rule::Killed,
        "panic-before" => Rule::PanicBefore,
        "panic-after" => Rule::PanicAfter,
        "panic-always" => Rule::PanicAlways,
        other => panic!("{other} is no rule"),
    };
    let interception = match arguments.next().unwrap().as_str() {
        "auto" | "inside" => Interception::Notifications,
        "stops" => Interception::Stops,
        "every-call" => Interception::EveryCall,
        other => panic!("{other} is no mechanism"),
    };
    let argv: Vec<_> = arguments.map(|argument| CString::new(argument).unwrap()).collect();
    let program = Program { path: argv[0].clone(), argv, attributes: ProcessAttributes::replace() };
    let wanted = InterceptionOptions {
        interception,
        for_recall: false,
        descriptors: &[],
        refusable: None,
        inside: false,
    };
    let seized = launch::spawn(&program, wanted, || Ok(())).unwrap().seize().unwrap();
    let mut launched = seized.installed().unwrap();
    assert_eq!(launched.interception, interception);
    let observer = Arc::new(Scripted { rule, seen: Mutex::default() });
    let shared = Arc::new(Shared::new(None).unwrap());
    if let Some(listener) = launched.listener.take() {
        let interrupter = Mutex::new(Interrupter::of_this_thread().unwrap());
        let (observer, shared) = (Arc::clone(&observer), Arc::clone(&shared));
        std::thread::spawn(move || notifications::serve(&listener, &shared, &interrupter, &*observer, None));
    }
    launched.release().unwrap();
    Tracer::new(launched.command, interception, &shared, &*observer).run();
    let seen = observer.seen.lock().unwrap_or_else(PoisonError::into_inner);
    seen.judged.iter().for_each(|(call, times)| println!("judged {call}: {times}"));
    seen.over.iter().for_each(|call| println!("over {call}"));
    let Seen { overdue, killed, started, ended, failed, signals, .. } = &*seen;
    println!("signals {signals:?}");
    println!("overdue: {overdue}; killed: {killed}; started: {started}; ended: {ended}; failed: {failed}");
}
