//! Processes of the tree that try to trace others of it and are refused: the kernel knows us as the tracer of those, and
//! `nested` does not stand in for it.
//!
//! A debugger that fails so may leave its child behind, stopped or in a loop. Traced, the child would have been the debugger's
//! to end; as it is, nothing ends it, and neither would the recording. Neighbour: `tracer.rs` knows what asks for a tracer
//! and what ends.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use super::observer::Caller;
use super::proc_status::process_and_parent;
use super::sys::Tid;
use super::tracees::Tracees;

/// A process that its parent was to trace.
#[derive(Debug)]
struct Untraced {
    parent: Tid,
    /// Whether the parent tried to attach; otherwise the process has only asked for it (PTRACE_TRACEME), as some do that want
    /// to know whether they are traced.
    was_attached_to: bool,
}

/// The processes of the tree that their parent was to trace.
#[derive(Debug, Default)]
pub(super) struct RefusedTracers(HashMap<Tid, Untraced, RandomState>);

impl RefusedTracers {
    /// Notes that `caller` asks to trace `thread`, or if that is none, to be traced by its parent.
    pub fn ask(&mut self, caller: Caller, thread: Option<Tid>) {
        let was_attached_to = thread.is_some();
        let Some((process, parent)) = process_and_parent(thread.unwrap_or(caller.tid)) else { return };
        // What a stranger wants to trace goes on without it.
        if !was_attached_to || parent == caller.tgid {
            self.0.insert(process, Untraced { parent, was_attached_to });
        }
    }

    /// Takes those that are left without their parent and without the command, unless they run on by themselves.
    pub fn take_abandoned<P>(&mut self, command: Tid, tracees: &mut Tracees<P>) -> Vec<Tid> {
        if self.0.is_empty() || tracees.contains(command) {
            return Vec::new();
        }
        self.0.retain(|process, _| tracees.contains(*process));
        let is_abandoned = |process: &Tid, untraced: &mut Untraced| {
            !tracees.contains(untraced.parent)
                && (untraced.was_attached_to || tracees.get(*process).in_group_stop)
        };
        self.0.extract_if(is_abandoned).map(|(process, _)| process).collect()
    }
}
