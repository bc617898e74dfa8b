//! The threads of the tree: which process each belongs to, and what the tracer must remember of it.

use std::collections::{HashMap, HashSet};

use foldhash::fast::RandomState;

use super::observer::Caller;
use super::sys::Tid;

/// What is known of a thread; `P` is what the observer keeps of its syscall.
pub(super) struct Tracee<P> {
    pub tgid: Tid,
    /// Whether its creator's event has announced it.
    pub announced: bool,
    /// What the observer keeps of the syscall whose result it awaits.
    pub pending: Option<P>,
    /// Whether the next syscall-stop is the exit of a syscall that was seen entering.
    pub in_syscall: bool,
    pub in_group_stop: bool,
    /// Whether it was made to stop so that its last read-only syscall is known to be over.
    pub is_hurried: bool,
}

impl<P> Tracee<P> {
    fn new(tgid: Tid) -> Self {
        Tracee {
            tgid,
            announced: true,
            pending: None,
            in_syscall: false,
            in_group_stop: false,
            is_hurried: false,
        }
    }
}

pub(super) struct Tracees<P> {
    threads: HashMap<Tid, Tracee<P>, RandomState>,
    /// How many threads each process has beside the leader, if any.
    beside_leader: HashMap<Tid, usize, RandomState>,
    /// Processes that may share their memory with another process, until they execute or end.
    sharing: HashSet<Tid, RandomState>,
    /// The creator of each process that uses its memory while it waits (vfork), until that executes or ends.
    lenders: HashMap<Tid, Tid, RandomState>,
    /// Threads that ended before their creator's event announced them.
    ended_early: HashSet<Tid, RandomState>,
}

impl<P> Tracees<P> {
    /// A tree of one process.
    pub fn new(command: Tid) -> Self {
        let mut threads = HashMap::default();
        threads.insert(command, Tracee::new(command));
        Tracees {
            threads,
            beside_leader: HashMap::default(),
            sharing: HashSet::default(),
            lenders: HashMap::default(),
            ended_early: HashSet::default(),
        }
    }

    pub fn len(&self) -> usize {
        self.threads.len()
    }

    pub fn contains(&self, tid: Tid) -> bool {
        self.threads.contains_key(&tid)
    }

    /// The process of a thread.
    pub fn process_of(&self, tid: Tid) -> Option<Tid> {
        self.threads.get(&tid).map(|thread| thread.tgid)
    }

    /// The threads of a process.
    pub fn threads_of(&self, process: Tid) -> impl Iterator<Item = Tid> {
        self.threads.iter().filter(move |(_, thread)| thread.tgid == process).map(|(tid, _)| *tid)
    }

    /// Whether a thread is in a group-stop.
    pub fn is_in_group_stop(&self, tid: Tid) -> bool {
        self.threads.get(&tid).is_some_and(|thread| thread.in_group_stop)
    }

    /// Whether `tid` is known, as the leader of its process.
    pub fn is_leader(&self, tid: Tid) -> bool {
        self.threads.get(&tid).is_some_and(|thread| thread.tgid == tid)
    }

    /// Whether `tid` is in a syscall that was seen entering, and whose exit matters.
    pub fn is_in_syscall(&self, tid: Tid) -> bool {
        self.threads.get(&tid).is_some_and(|thread| thread.in_syscall)
    }

    /// What is kept of a thread; made, as for a leader, if there is nothing.
    pub fn get(&mut self, tid: Tid) -> &mut Tracee<P> {
        self.threads.entry(tid).or_insert_with(|| Tracee::new(tid))
    }

    pub fn caller(&mut self, tid: Tid) -> Caller {
        Caller { tid, tgid: self.get(tid).tgid }
    }

    /// Adds a thread of `tgid` unless it is known; whether it is a new one beside the leader.
    pub fn add(&mut self, tid: Tid, tgid: Tid, announced: bool) -> bool {
        let known = self.contains(tid);
        let thread = self.threads.entry(tid).or_insert_with(|| Tracee::new(tgid));
        thread.announced = announced;
        if !announced {
            // An earlier thread of this number, which nobody announced, is long gone.
            self.ended_early.remove(&tid);
        }
        if known || tid == tgid {
            return false;
        }
        *self.beside_leader.entry(tgid).or_default() += 1;
        true
    }

    /// Whether the creator's event announces a thread that has ended already; true once.
    pub fn take_ended_early(&mut self, tid: Tid) -> bool {
        self.ended_early.remove(&tid)
    }

    /// Notes that a process shares its memory with another; returns it, and those whose memory that is as well, though
    /// they wait at present.
    pub fn share_memory(&mut self, process: Tid) -> Vec<Tid> {
        let lender = |process: &Tid| self.lenders.get(process).copied();
        let all: Vec<_> = std::iter::successors(Some(process), lender).collect();
        self.sharing.extend(&all);
        all
    }

    /// Notes that a process uses the memory of its creator, which waits until it executes or ends.
    pub fn lend_memory(&mut self, creator: Tid, process: Tid) {
        self.lenders.insert(process, creator);
    }

    /// The creator whose memory a process uses.
    pub fn lender(&self, process: Tid) -> Option<Tid> {
        self.lenders.get(&process).copied()
    }

    /// Whether a process shares its memory with another.
    pub fn shares_memory(&self, process: Tid) -> bool {
        self.sharing.contains(&process)
    }

    /// Whether more than one thread can write the memory of a process.
    pub fn has_several_writers(&self, process: Tid) -> bool {
        self.beside_leader.contains_key(&process) || self.shares_memory(process)
    }

    /// Removes a thread that has ended, and says whether that left its process with the leader alone.
    pub fn remove(&mut self, tid: Tid) -> Option<(Tracee<P>, bool)> {
        let Some(thread) = self.threads.remove(&tid) else {
            // It was killed before its first stop.
            self.ended_early.insert(tid);
            return None;
        };
        if !thread.announced {
            self.ended_early.insert(tid);
        }
        if thread.tgid == tid {
            self.beside_leader.remove(&tid);
            self.sharing.remove(&tid);
            self.lenders.retain(|process, lender| *process != tid && *lender != tid);
            return Some((thread, false));
        }
        let mut alone = false;
        if let Some(beside) = self.beside_leader.get_mut(&thread.tgid) {
            *beside -= 1;
            alone = *beside == 0;
        }
        if alone {
            self.beside_leader.remove(&thread.tgid);
        }
        Some((thread, alone))
    }

    /// Starts anew with `tid` as the only thread of its process, which has executed a program. Returns what
    /// was known of all its threads, `tid` included.
    pub fn execute(&mut self, tid: Tid) -> Vec<(Tid, Tracee<P>)> {
        let Tracee { tgid, announced, .. } = *self.get(tid);
        let former = self.threads.extract_if(|_, thread| thread.tgid == tgid).collect();
        self.beside_leader.remove(&tgid);
        self.sharing.remove(&tgid);
        self.lenders.remove(&tgid);
        self.threads.insert(tid, Tracee { announced, ..Tracee::new(tgid) });
        former
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEADER: Tid = Tid(10);
    const THREAD: Tid = Tid(11);

    #[test]
    fn the_leader_is_alone_again_when_the_last_other_thread_has_ended() {
        let mut tracees = Tracees::<()>::new(LEADER);
        assert!(tracees.add(THREAD, LEADER, true));
        assert!(!tracees.add(THREAD, LEADER, true), "it is known");
        assert!(tracees.add(Tid(12), LEADER, true));
        assert!(tracees.has_several_writers(LEADER));
        assert!(!tracees.remove(Tid(12)).unwrap().1);
        assert!(tracees.remove(THREAD).unwrap().1);
        assert!(!tracees.has_several_writers(LEADER));
    }

    #[test]
    fn an_announcement_that_comes_after_the_end_is_taken_once() {
        let mut tracees = Tracees::<()>::new(LEADER);
        assert!(tracees.remove(THREAD).is_none());
        assert!(tracees.take_ended_early(THREAD));
        assert!(!tracees.take_ended_early(THREAD));
        tracees.add(THREAD, THREAD, false);
        tracees.remove(THREAD);
        assert!(tracees.take_ended_early(THREAD), "it was met before it was announced");
        tracees.remove(THREAD);
        tracees.add(THREAD, THREAD, false);
        assert!(!tracees.take_ended_early(THREAD), "it is another thread of that number");
    }

    #[test]
    fn an_execve_leaves_one_thread_that_knows_nothing_of_its_former_syscall() {
        let mut tracees = Tracees::new(LEADER);
        tracees.add(THREAD, LEADER, true);
        tracees.add(Tid(20), Tid(20), true);
        tracees.share_memory(LEADER);
        tracees.get(THREAD).pending = Some("execve");
        tracees.get(LEADER).in_syscall = true;
        let mut former: Vec<_> =
            tracees.execute(LEADER).into_iter().map(|(tid, thread)| (tid, thread.pending)).collect();
        former.sort();
        assert_eq!(former, [(LEADER, None), (THREAD, Some("execve"))]);
        assert!(tracees.is_leader(LEADER) && !tracees.is_in_syscall(LEADER));
        assert!(!tracees.contains(THREAD) && tracees.contains(Tid(20)));
        assert!(!tracees.has_several_writers(LEADER));
    }
}
